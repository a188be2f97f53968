//! Sizes, parts and times as people type them, with fio's suffixes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A size or time that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a number with a suffix that sizes have.
    #[error(
        "\"{0}\" is no size; use bytes or a suffix of 1024s, such as 4096, 4k, 128KiB, 1m, 2g, 0x1000"
    )]
    Size(String),
    /// Not a number with a suffix that times have.
    #[error("\"{0}\" is no time; use seconds or a suffix, such as 10, 10s, 500ms, 2m, 1h")]
    Time(String),
    /// Not a percentage.
    #[error("\"{0}\" is no part; use a whole number from 0% to 100%")]
    Percent(String),
    /// More than 64 bits hold.
    #[error("\"{0}\" is too large: it exceeds 2^64")]
    TooLarge(String),
}

/// A size in bytes: a whole number, decimal or `0x` hexadecimal, with a suffix of `b`, `k`, `m`, `g`,
/// `t` or `p`, also as `kb` or `kib`, in any case.
///
/// All suffixes are powers of 1024. So are fio's by default, except that its `kib` is then 1000 bytes
/// (`kb_base` turns both around): here `KiB` is what IEC 80000-13 says.
///
/// # Errors
/// [`UnitError::Size`], [`UnitError::TooLarge`].
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let bad = || UnitError::Size(text.to_owned());
    let lower = text.trim().to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        // A b is a digit there: hexadecimal has no suffix of its own.
        Some(rest) => (rest, 16),
        None => (lower.as_str(), 10),
    };
    let split = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(split);
    let shift = match suffix {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return Err(bad()),
    };
    if digits.is_empty() {
        return Err(bad());
    }
    u64::from_str_radix(digits, radix)
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| UnitError::TooLarge(text.to_owned()))
}

/// A time: a whole number of seconds, or with a suffix of `us`, `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
/// [`UnitError::Time`], [`UnitError::TooLarge`].
pub fn parse_time(text: &str) -> Result<Duration, UnitError> {
    let bad = || UnitError::Time(text.to_owned());
    let lower = text.trim().to_ascii_lowercase();
    let split = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (digits, suffix) = lower.split_at(split);
    let unit_us: u64 = match suffix {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "" | "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" | "hour" => 3_600_000_000,
        "d" | "day" => 86_400_000_000,
        _ => return Err(bad()),
    };
    if digits.is_empty() {
        return Err(bad());
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit_us))
        .map(Duration::from_micros)
        .ok_or_else(|| UnitError::TooLarge(text.to_owned()))
}

/// A time that is microseconds where it has no suffix, as fio's `thinktime`; in microseconds.
///
/// # Errors
/// [`UnitError::Time`], [`UnitError::TooLarge`].
pub fn parse_time_us(text: &str) -> Result<u64, UnitError> {
    let is_bare = text.trim().bytes().all(|byte| byte.is_ascii_digit());
    let time = match is_bare {
        true => parse_time(&format!("{}us", text.trim()))?,
        false => parse_time(text)?,
    };
    u64::try_from(time.as_micros()).map_err(|_| UnitError::TooLarge(text.to_owned()))
}

/// A stretch of a target: bytes, or a percentage of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// That many bytes.
    Bytes(u64),
    /// That part of the target, in percent, at most 100.
    Percent(u8),
}

impl Amount {
    /// In bytes, on a target of `target_bytes`; a percentage is rounded down to a multiple of
    /// `step_bytes`.
    pub fn of(self, target_bytes: u64, step_bytes: u32) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let part = u128::from(target_bytes) * u128::from(percent.min(100)) / 100;
                let step = u128::from(step_bytes.max(1));
                // At most target_bytes, which fits.
                (part / step * step) as u64
            }
        }
    }
}

impl Default for Amount {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => f.pad(&format_size(*bytes)),
            Self::Percent(percent) => f.pad(&format!("{percent}%")),
        }
    }
}

impl FromStr for Amount {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let Some(digits) = text.trim().strip_suffix('%') else {
            return parse_size(text).map(Self::Bytes);
        };
        match digits.parse::<u8>() {
            Ok(percent @ 0..=100) => Ok(Self::Percent(percent)),
            _ => Err(UnitError::Percent(text.to_owned())),
        }
    }
}

/// Bytes as a number, a percentage as text.
impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(bytes) => serializer.serialize_u64(*bytes),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrNumber("a size in bytes, or text such as 4k or 50%"))
    }
}

/// Reads [`Amount`] from a number or a text, so that a suite can say `bs = "4k"`.
pub(super) struct TextOrNumber(pub &'static str);

impl de::Visitor<'_> for TextOrNumber {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Amount, E> {
        Ok(Amount::Bytes(bytes))
    }

    // TOML's only integer.
    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Amount, E> {
        u64::try_from(bytes)
            .map(Amount::Bytes)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
        text.parse().map_err(E::custom)
    }
}

/// A size with the largest suffix that leaves a whole number: `4k`, `128k`, `1m`, `4097`.
pub fn format_size(bytes: u64) -> String {
    const SUFFIXES: [(u32, &str); 5] = [(50, "p"), (40, "t"), (30, "g"), (20, "m"), (10, "k")];
    let fits = |shift: u32| bytes != 0 && bytes.trailing_zeros() >= shift;
    match SUFFIXES.into_iter().find(|(shift, _)| fits(*shift)) {
        Some((shift, suffix)) => format!("{}{suffix}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4kb", 4096),
            ("128KiB", 131_072),
            ("1m", 1 << 20),
            ("2G", 2 << 30),
            ("3tib", 3 << 40),
            ("1p", 1 << 50),
            ("512b", 512),
            ("0x1000", 4096),
            ("0x10b", 0x10b),
            ("0x10k", 16_384),
            (" 8k ", 8192),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_quoted() {
        for text in ["", "k", "4q", "4kk", "-4k", "4.5k", "4 k", "0x", "0xg", "k4", "4k%", "²"] {
            assert_eq!(parse_size(text), Err(UnitError::Size(text.into())), "{text}");
        }
        for text in ["18446744073709551616", "16384p", "0x1ffffffffffffffff"] {
            assert_eq!(parse_size(text), Err(UnitError::TooLarge(text.into())), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ms) in
            [("10", 10_000), ("10s", 10_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_time("7us"), Ok(Duration::from_micros(7)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for text in ["", "s", "1.5s", "-1", "10 s", "5y"] {
            assert_eq!(parse_time(text), Err(UnitError::Time(text.into())), "{text}");
        }
        assert!(matches!(parse_time("999999999999999d"), Err(UnitError::TooLarge(_))));
    }

    #[test]
    fn times_in_microseconds() {
        for (text, us) in [("100", 100), ("2ms", 2000), ("1s", 1_000_000), ("0", 0)] {
            assert_eq!(parse_time_us(text), Ok(us), "{text}");
        }
        for text in ["", "x", "-1", "1.5"] {
            assert!(parse_time_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts() {
        assert_eq!("50%".parse(), Ok(Amount::Percent(50)));
        assert_eq!("4k".parse(), Ok(Amount::Bytes(4096)));
        for text in ["101%", "-1%", "%", "5.5%", "300%"] {
            assert_eq!(text.parse::<Amount>(), Err(UnitError::Percent(text.into())), "{text}");
        }
        assert_eq!(Amount::Percent(50).of(1_000_003, 4096), 499_712);
        assert_eq!(Amount::Percent(100).of(u64::MAX, 1), u64::MAX);
        assert_eq!(Amount::Bytes(7).of(1, 4096), 7);
    }

    #[test]
    fn amounts_in_json() {
        for (json, amount) in [
            ("4096", Amount::Bytes(4096)),
            ("\"4k\"", Amount::Bytes(4096)),
            ("\"50%\"", Amount::Percent(50)),
        ] {
            assert_eq!(serde_json::from_str::<Amount>(json).unwrap(), amount, "{json}");
        }
        assert_eq!(serde_json::to_string(&Amount::Bytes(4096)).unwrap(), "4096");
        assert_eq!(serde_json::to_string(&Amount::Percent(50)).unwrap(), "\"50%\"");
        for json in ["-1", "1.5", "\"x\"", "null", "[]"] {
            assert!(serde_json::from_str::<Amount>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn printed_as_typed() {
        for (bytes, text) in [
            (0, "0"),
            (512, "512"),
            (4096, "4k"),
            (131_072, "128k"),
            (1 << 20, "1m"),
            ((1 << 20) + 512, "1049088"),
            (3 << 40, "3t"),
        ] {
            assert_eq!(format_size(bytes), text);
            assert_eq!(parse_size(text), Ok(bytes));
        }
    }
}
