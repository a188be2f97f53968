//! The values of options: as they are read, and as they are shown.

use super::{MDTS_LOG2_MAX, PAGE_LOG2_MAX};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The items between commas; `\,` is a comma inside of one.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    if text.is_empty() {
        return items;
    }
    let mut item = String::new();
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            '\\' if rest.peek() == Some(&',') => item.extend(rest.next()),
            ',' => items.push(std::mem::take(&mut item)),
            other => item.push(other),
        }
    }
    items.push(item);
    items
}

/// Decimal digits and nothing else: `parse` alone would take a sign.
pub(crate) fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// 0 or 1.
pub(super) fn flag(text: &str) -> Option<bool> {
    number::<u8>(text).filter(|value| *value <= 1).map(|value| value == 1)
}

/// Digits, and the unit after them.
fn with_unit(text: &str) -> Option<(u64, String)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end)?;
    Some((number(digits)?, unit.to_ascii_lowercase()))
}

/// Bytes with a binary suffix, as fio writes them.
pub(crate) fn binary(text: &str) -> Option<u64> {
    let (value, unit) = with_unit(text)?;
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    value.checked_mul(1 << shift)
}

/// A count with a decimal suffix.
pub(super) fn count(text: &str) -> Option<u64> {
    let (value, unit) = with_unit(text)?;
    let factor = match unit.as_str() {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        _ => return None,
    };
    value.checked_mul(factor)
}

pub(super) fn time(text: &str) -> Option<Duration> {
    let (value, unit) = with_unit(text)?;
    let unit_ns: u64 = match unit.as_str() {
        "" if value == 0 => 1,
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    value.checked_mul(unit_ns).map(Duration::from_nanos)
}

pub(super) fn timeout(text: &str) -> Option<u8> {
    let ms = time(text)?.as_millis();
    ms.is_multiple_of(500).then(|| u8::try_from(ms / 500).ok()).flatten()
}

pub(super) fn mdts(text: &str) -> Option<u8> {
    match number::<u64>(text) {
        Some(log2) if log2 <= MDTS_LOG2_MAX.into() => u8::try_from(log2).ok(),
        _ => {
            let bytes = binary(text).filter(|bytes| bytes.is_power_of_two() && *bytes >= 8192)?;
            u8::try_from(bytes.trailing_zeros() - 12).ok().filter(|log2| *log2 <= MDTS_LOG2_MAX)
        }
    }
}

/// A memory page in bytes, as CAP has it.
pub(super) fn page(text: &str) -> Option<u8> {
    let bytes = binary(text).filter(|bytes| bytes.is_power_of_two() && *bytes >= 4096)?;
    u8::try_from(bytes.trailing_zeros() - 12).ok().filter(|log2| *log2 <= PAGE_LOG2_MAX)
}

/// Bytes with the largest binary suffix that divides them.
pub(crate) struct Binary(pub(crate) u64);

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(40, "T"), (30, "G"), (20, "M"), (10, "k")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        self.0.fmt(f)
    }
}

/// A count with the largest decimal suffix that divides it.
pub(super) struct Count(pub(super) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0"),
            n if n.is_multiple_of(1_000_000) => write!(f, "{}m", n / 1_000_000),
            n if n.is_multiple_of(1_000) => write!(f, "{}k", n / 1_000),
            n => n.fmt(f),
        }
    }
}

/// A time in the largest unit that keeps it whole.
pub(super) struct Time(pub(super) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_nanos() {
            ns if ns.is_multiple_of(1_000_000_000) => write!(f, "{}s", ns / 1_000_000_000),
            ns if ns.is_multiple_of(1_000_000) => write!(f, "{}ms", ns / 1_000_000),
            ns if ns.is_multiple_of(1_000) => write!(f, "{}us", ns / 1_000),
            ns => write!(f, "{ns}ns"),
        }
    }
}
