//! Figures as text: few digits, and the unit that fits.

/// `value` with `digits` significant digits, plain notation, at least the whole part.
pub(super) fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let with = |value: f64| {
        let whole = if value.abs() < 1.0 { 1 } else { value.abs().log10() as usize + 1 };
        format!("{value:.*}", digits.saturating_sub(whole))
    };
    // Rounding may carry into one digit more (9.9996 to 10.000): once more takes that away.
    let text = with(value);
    text.parse().map_or(text, with)
}

/// A rate: `912.0`, `51.23k`, `1.243M`.
pub(super) fn rate(value: f64) -> String {
    scaled(value, &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")], 4)
}

/// A time in nanoseconds: `912 ns`, `83.1 µs`, `1.24 ms`, `2.00 s`.
pub(super) fn time(ns: f64) -> String {
    scaled(ns, &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")], 3)
}

/// With the largest unit that leaves at least 1 after rounding, else the smallest.
fn scaled(value: f64, units: &[(f64, &str)], digits: usize) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let rounded = |unit: f64| significant(value / unit, digits);
    let fits = |unit: f64| rounded(unit).parse::<f64>().is_ok_and(|value| value.abs() >= 1.0);
    match units.iter().find(|(unit, _)| fits(*unit)).or(units.last()) {
        Some((unit, suffix)) => format!("{}{suffix}", rounded(*unit)),
        None => significant(value, digits),
    }
}

/// Bytes a second in GiB/s: `3.906`, `0.012`.
pub(super) fn gib_s(bytes: f64) -> String {
    let gib = bytes / f64::from(1 << 30);
    if gib < 1.0 { format!("{gib:.3}") } else { significant(gib, 4) }
}

/// `part` in percent of `of`: `0.4%`, `40%`.
pub(super) fn percent(part: f64, of: f64) -> String {
    let percent = part / of * 100.0;
    if !percent.is_finite() {
        "-".to_owned()
    } else if percent < 9.95 {
        format!("{percent:.1}%")
    } else {
        format!("{percent:.0}%")
    }
}

/// A ratio: `0.987`, `1.243`, `12.4`.
pub(super) fn part(value: f64) -> String {
    if value < 10.0 { format!("{value:.3}") } else { significant(value, 3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_units() {
        for (value, text) in [
            (0.0, "0.000"),
            (912.0, "912.0"),
            (999.96, "1.000k"),
            (51_234.0, "51.23k"),
            (999_960.0, "1.000M"),
            (1_243_000.0, "1.243M"),
            (0.25, "0.250"),
        ] {
            assert_eq!(rate(value), text, "{value}");
        }
        for (ns, text) in [
            (84.0, "84.0 ns"),
            (912.4, "912 ns"),
            (999.9, "1.00 µs"),
            (83_120.0, "83.1 µs"),
            (1_240_000.0, "1.24 ms"),
            (2e9, "2.00 s"),
            (3.6e12, "3600 s"),
        ] {
            assert_eq!(time(ns), text, "{ns}");
        }
        assert_eq!(gib_s(4_194_304_000.0), "3.906");
        assert_eq!(gib_s(12_884_902.0), "0.012");
        assert_eq!((percent(4.0, 1000.0), percent(400.0, 1000.0)), ("0.4%".into(), "40%".into()));
        assert_eq!((part(0.98712), part(12.43)), ("0.987".into(), "12.4".into()));
    }

    #[test]
    fn what_is_no_number_is_a_dash() {
        assert_eq!(rate(f64::NAN), "-");
        assert_eq!(time(f64::INFINITY), "-");
        assert_eq!(percent(1.0, 0.0), "-");
    }
}
