//! Little's law: I/Os in flight = I/Os a second x mean time each is in flight.

/// A break beyond this part makes a figure untrustworthy.
pub const LITTLES_TOLERANCE: f64 = 0.05;

/// A row held against Little's law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LittlesLaw {
    /// I/Os in flight by the law: IOPS x mean latency.
    pub expected: f64,
    /// I/Os in flight as counted.
    pub counted: f64,
}

impl LittlesLaw {
    /// Holds `iops` and `latency_mean_ns` against `counted` I/Os in flight. `None` where there is
    /// nothing to hold: a figure is zero, negative or no number.
    pub fn check(iops: f64, latency_mean_ns: f64, counted: f64) -> Option<Self> {
        let expected = iops * latency_mean_ns / 1e9;
        let sound = |value: f64| value.is_finite() && value > 0.0;
        (sound(expected) && sound(counted)).then_some(Self { expected, counted })
    }

    /// How far the law's figure lies off the counted one, as a part of it: -0.4 is 40 % below.
    pub fn deviation(&self) -> f64 {
        self.expected / self.counted - 1.0
    }

    /// Whether the law holds within [`LITTLES_TOLERANCE`].
    pub fn holds(&self) -> bool {
        self.deviation().abs() <= LITTLES_TOLERANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_rows_that_hold_and_that_break() {
        // Fifteen drives at queue depth 32, random 4 KiB reads, published in 2025.
        let linux = LittlesLaw::check(2_491_000.0, 192_000.0, 480.0).unwrap();
        assert!(linux.holds(), "{linux:?} {}", linux.deviation());
        let windows = LittlesLaw::check(1_598_959.0, 169_000.0, 480.0).unwrap();
        assert!(!windows.holds());
        assert!((windows.deviation() + 0.437).abs() < 0.001, "{}", windows.deviation());
    }

    #[test]
    fn the_edge_is_five_percent_on_both_sides() {
        for (expected, holds) in [(0.951, true), (0.949, false), (1.049, true), (1.051, false)] {
            let law = LittlesLaw::check(1e9, expected, 1.0).unwrap();
            assert_eq!(law.holds(), holds, "{expected}");
        }
    }

    #[test]
    fn nothing_to_hold() {
        for (iops, latency_ns, counted) in
            [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (f64::NAN, 1.0, 1.0)]
        {
            assert_eq!(LittlesLaw::check(iops, latency_ns, counted), None);
        }
    }
}
