//! Lists of weighted values in fio's syntax: `4k/60:64k/40`.

use super::units::{format_size, parse_size};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// Most parts of a list.
const PARTS_MAX: usize = 64;

/// The whole, in percent.
const WHOLE: u32 = 100;

/// Block sizes and how often each comes up, by direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BsSplit {
    /// Of reads: bytes, and percent of the I/Os; the percents are 100 together.
    read: Vec<(u32, u8)>,
    /// Of writes.
    write: Vec<(u32, u8)>,
}

/// A split that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is no split of block sizes: {why}; write SIZE/PERCENT parts, such as 4k/60:64k/40, and writes of their own behind a comma"
)]
pub struct BadSplit {
    text: String,
    why: String,
}

impl BsSplit {
    /// One size of each direction.
    pub fn sizes(read_bytes: u32, write_bytes: u32) -> Self {
        Self { read: vec![(read_bytes, 100)], write: vec![(write_bytes, 100)] }
    }

    /// A split whose sizes are read by `size`, which knows suffixes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, size: impl Fn(&str) -> Result<u64, String>) -> Result<Self, BadSplit> {
        let bad = |why: String| BadSplit { text: text.to_owned(), why };
        let list = |list: &str| -> Result<Vec<(u32, u8)>, BadSplit> {
            let parts = weighted(list, |bytes| {
                let bytes = size(bytes)?;
                u32::try_from(bytes).map_err(|_| format!("{bytes} bytes are too large"))
            });
            parts.map_err(bad)
        };
        let mut lists = text.split(',');
        let read = list(lists.next().unwrap_or_default())?;
        let write = lists.next().map(list).transpose()?;
        if lists.next().is_some() {
            return Err(bad("there are reads and writes, and no third direction".to_owned()));
        }
        Ok(Self { write: write.unwrap_or_else(|| read.clone()), read })
    }

    /// The parts of reads, or of writes: bytes and percent.
    pub fn parts(&self, writes: bool) -> &[(u32, u8)] {
        if writes { &self.write } else { &self.read }
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        self.read.iter().chain(&self.write).map(|(bytes, _)| *bytes)
    }

    /// The largest size, in bytes.
    pub fn bytes_max(&self) -> u32 {
        self.all().max().unwrap_or(0)
    }

    /// The smallest size, in bytes: offsets are multiples of it.
    pub fn bytes_min(&self) -> u32 {
        self.all().min().unwrap_or(0)
    }

    /// The first size of which `wrong` is true.
    pub fn find(&self, wrong: impl Fn(u32) -> bool) -> Option<u32> {
        self.all().find(|bytes| wrong(*bytes))
    }
}

/// Values with their percents, which are 100 together: those that are left out share what the others
/// leave, as in fio.
pub(super) fn weighted<T>(
    text: &str,
    value: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<(T, u8)>, String> {
    let mut parts = Vec::new();
    for part in text.split(':') {
        let (of, percent) = part.split_once('/').unwrap_or((part, ""));
        let percent = match percent.trim_end_matches('%') {
            "" => None,
            digits => match digits.parse::<u8>() {
                Ok(percent @ 1..=100) => Some(percent),
                _ => return Err(format!("\"{digits}\" is no percentage from 1 to 100")),
            },
        };
        parts.push((value(of)?, percent));
    }
    if parts.len() > PARTS_MAX {
        return Err(format!("{} parts; at most {PARTS_MAX} are possible", parts.len()));
    }
    let given: u32 = parts.iter().filter_map(|(_, percent)| *percent).map(u32::from).sum();
    let open = parts.iter().filter(|(_, percent)| percent.is_none()).count() as u32;
    let left = WHOLE.checked_sub(given).filter(|left| (open == 0) == (*left == 0) && *left >= open);
    let Some(mut left) = left else {
        return Err(format!("its percents are {given} and not {WHOLE} together"));
    };
    let mut open_left = open;
    let mut share = || {
        let part = left / open_left.max(1);
        (left, open_left) = (left - part, open_left.saturating_sub(1));
        // At most the whole.
        part as u8
    };
    Ok(parts.into_iter().map(|(of, percent)| (of, percent.unwrap_or_else(&mut share))).collect())
}

impl fmt::Display for BsSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |parts: &[(u32, u8)]| {
            let part = |(bytes, percent): &(u32, u8)| {
                format!("{}/{percent}", format_size((*bytes).into()))
            };
            parts.iter().map(part).collect::<Vec<_>>().join(":")
        };
        match self.read == self.write {
            true => f.pad(&list(&self.read)),
            false => f.pad(&format!("{},{}", list(&self.read), list(&self.write))),
        }
    }
}

impl FromStr for BsSplit {
    type Err = BadSplit;

    fn from_str(text: &str) -> Result<Self, BadSplit> {
        Self::parse(text, |size| parse_size(size).map_err(|error| error.to_string()))
    }
}

impl Serialize for BsSplit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BsSplit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_fio_writes_them() {
        for (text, read, write) in [
            ("4k/60:64k/40", vec![(4096, 60), (65_536, 40)], vec![(4096, 60), (65_536, 40)]),
            ("4k/10:64k/50:32k/", vec![(4096, 10), (65_536, 50), (32_768, 40)], vec![]),
            ("512:1k:2k", vec![(512, 33), (1024, 33), (2048, 34)], vec![]),
            ("8k", vec![(8192, 100)], vec![]),
            ("4k/50%:8k/50%,64k", vec![(4096, 50), (8192, 50)], vec![(65_536, 100)]),
        ] {
            let split: BsSplit = text.parse().unwrap();
            assert_eq!(split.parts(false), read, "{text}");
            assert_eq!(split.parts(true), if write.is_empty() { read } else { write }, "{text}");
            assert_eq!(split.to_string().parse(), Ok(split), "{text}");
        }
        let split: BsSplit = "4k/50:8k/50,64k".parse().unwrap();
        assert_eq!((split.bytes_min(), split.bytes_max()), (4096, 65_536));
        assert_eq!(serde_json::to_string(&split).unwrap(), "\"4k/50:8k/50,64k/100\"");
    }

    #[test]
    fn what_is_none_says_why() {
        for (text, why) in [
            ("", "is no size"),
            ("4k/60:64k/50", "110 and not 100"),
            ("4k/60:64k/30", "90 and not 100"),
            ("4k/100:8k", "100 and not 100"),
            ("4k/0:8k/100", "no percentage"),
            ("4k/x", "no percentage"),
            ("4q/100", "is no size"),
            ("4k,8k,16k", "third direction"),
            ("8g", "too large"),
        ] {
            let message = text.parse::<BsSplit>().unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
        let many = ["4k"; 65].join(":");
        assert!(many.parse::<BsSplit>().unwrap_err().to_string().contains("at most 64"));
    }
}
