//! Whether a write is done when it is on the medium.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What each write waits for. The names are fio's (`sync`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// The drive's word, perhaps with the data in a cache that a power failure empties.
    #[default]
    None,
    /// The data on the medium, and what a file system notes of it.
    Sync,
    /// The data on the medium.
    Dsync,
}

impl SyncMode {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::None, Self::Sync, Self::Dsync];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sync => "sync",
            Self::Dsync => "dsync",
        }
    }
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that is none of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is nothing that a write waits for; use none, sync or dsync")]
pub struct UnknownSyncMode(String);

impl FromStr for SyncMode {
    type Err = UnknownSyncMode;

    /// fio takes 0 for none and 1 for sync as well.
    fn from_str(text: &str) -> Result<Self, UnknownSyncMode> {
        match text {
            "0" => Ok(Self::None),
            "1" => Ok(Self::Sync),
            _ => {
                let known = Self::ALL.into_iter().find(|mode| mode.name() == text);
                known.ok_or_else(|| UnknownSyncMode(text.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_words_are_read() {
        for mode in SyncMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("0".parse(), Ok(SyncMode::None));
        assert_eq!("1".parse(), Ok(SyncMode::Sync));
        assert!("2".parse::<SyncMode>().is_err());
    }
}
