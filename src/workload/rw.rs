//! The access pattern, in fio's words.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What is done and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Reads in ascending order.
    Read,
    /// Writes in ascending order.
    Write,
    /// Reads anywhere.
    RandRead,
    /// Writes anywhere.
    RandWrite,
    /// Reads and writes mixed, in ascending order.
    #[serde(alias = "readwrite")]
    Rw,
    /// Reads and writes mixed, anywhere.
    RandRw,
    /// Deallocates in ascending order.
    Trim,
    /// Deallocates anywhere.
    RandTrim,
}

impl Rw {
    /// All patterns.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::RandRead,
        Self::RandWrite,
        Self::Rw,
        Self::RandRw,
        Self::Trim,
        Self::RandTrim,
    ];

    /// The name, as fio has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::Rw => "rw",
            Self::RandRw => "randrw",
            Self::Trim => "trim",
            Self::RandTrim => "randtrim",
        }
    }

    /// Whether offsets are drawn rather than counted up.
    pub const fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw | Self::RandTrim)
    }

    /// Whether both directions occur.
    pub const fn is_mixed(self) -> bool {
        matches!(self, Self::Rw | Self::RandRw)
    }

    /// Whether anything is read.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::RandWrite | Self::Trim | Self::RandTrim)
    }

    /// Whether blocks are deallocated in a write's place.
    pub const fn trims(self) -> bool {
        matches!(self, Self::Trim | Self::RandTrim)
    }

    /// Whether anything is written.
    pub const fn stores(self) -> bool {
        self.writes() && !self.trims()
    }

    /// Whether anything is written or deallocated: the target's data is lost.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }
}

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A pattern that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no access pattern; use read, write, randread, randwrite, rw (or readwrite), randrw, trim or randtrim"
)]
pub struct UnknownRw(String);

impl FromStr for Rw {
    type Err = UnknownRw;

    fn from_str(text: &str) -> Result<Self, UnknownRw> {
        match text {
            "readwrite" => Ok(Self::Rw),
            _ => Self::ALL
                .into_iter()
                .find(|rw| rw.name() == text)
                .ok_or_else(|| UnknownRw(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for rw in Rw::ALL {
            assert_eq!(rw.name().parse(), Ok(rw));
            assert_eq!(serde_json::to_string(&rw).unwrap(), format!("\"{}\"", rw.name()));
            assert_eq!(rw.reads() && rw.writes(), rw.is_mixed());
        }
        assert_eq!("readwrite".parse(), Ok(Rw::Rw));
        assert_eq!(serde_json::from_str::<Rw>("\"readwrite\"").unwrap(), Rw::Rw);
    }

    #[test]
    fn what_is_none_is_named_with_the_choices() {
        for text in ["", "READ", "trimwrite", "randread:4"] {
            let message = text.parse::<Rw>().unwrap_err().to_string();
            assert!(message.contains(&format!("\"{text}\"")) && message.contains("randrw"));
        }
    }
}
