//! Whether a drive has come to rest, as SNIA's Solid State Storage Performance Test Specification (PTS)
//! defines steady state: over a window of five rounds no value is far from the others, and a line
//! through them is nearly level.

use serde::{Deserialize, Serialize};

/// Rounds of the window.
pub const WINDOW_ROUNDS: usize = 5;
/// Most that highest and lowest may differ by, in percent of the mean.
const RANGE_PCT_MAX: f64 = 20.0;
/// Most that the fitted line may rise or fall over the window, in percent of the mean.
const SLOPE_PCT_MAX: f64 = 10.0;

/// What the last five rounds say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Range and slope are within their bounds.
    pub steady: bool,
    /// Highest less lowest, in percent of the mean.
    pub range_pct: f64,
    /// What the least-squares line rises (or falls, then it is negative) by from the first round of the
    /// window to the last, in percent of the mean.
    pub slope_pct: f64,
}

impl Steadiness {
    /// Of the last [`WINDOW_ROUNDS`] of `rounds`; `None` with fewer, or without a positive mean.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let window = rounds.get(rounds.len().checked_sub(WINDOW_ROUNDS)?..)?;
        let n = window.len() as f64;
        let mean = window.iter().sum::<f64>() / n;
        if !mean.is_finite() || mean <= 0.0 {
            return None;
        }
        let (low, high) = window
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), y| (l.min(*y), h.max(*y)));
        let middle = (n - 1.0) / 2.0;
        let at = |index: usize| index as f64 - middle;
        let indexed = || window.iter().enumerate();
        let with: f64 = indexed().map(|(index, y)| at(index) * (y - mean)).sum();
        let of: f64 = indexed().map(|(index, _)| at(index).powi(2)).sum();
        let range_pct = (high - low) / mean * 100.0;
        let slope_pct = with / of * (n - 1.0) / mean * 100.0;
        let steady = range_pct <= RANGE_PCT_MAX && slope_pct.abs() <= SLOPE_PCT_MAX;
        Some(Self { steady, range_pct, slope_pct })
    }

    /// `steady: …` or `not steady: …`, with why.
    pub fn sentence(&self) -> String {
        let Self { steady, range_pct, slope_pct } = self;
        let word = if *steady { "steady" } else { "not steady" };
        format!(
            "{word}: over the last {WINDOW_ROUNDS} rounds IOPS range over {range_pct:.1} % (at most {RANGE_PCT_MAX:.0} % is steady) with a slope of {slope_pct:+.1} % (at most {SLOPE_PCT_MAX:.0} %)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against Python's `statistics.linear_regression` over range(5).
    #[test]
    fn against_an_independent_fit() {
        for (rounds, range, slope, steady) in [
            ([100.0, 101.0, 99.0, 100.5, 100.2], 1.997_204, -0.039_944, true),
            ([100.0, 104.0, 108.0, 112.0, 116.0], 14.814_815, 14.814_815, false),
            ([100.0, 95.0, 118.0, 99.0, 100.0], 22.460_938, 1.562_5, false),
            ([5000.0, 5200.0, 4900.0, 5100.0, 5050.0], 5.940_594, 0.0, true),
            ([90.0, 110.0, 90.0, 110.0, 90.0], 20.408_163, 0.0, false),
        ] {
            let seen = Steadiness::of(&rounds).unwrap();
            assert!((seen.range_pct - range).abs() < 1e-5, "{rounds:?}: {seen:?}");
            assert!((seen.slope_pct - slope).abs() < 1e-5, "{rounds:?}: {seen:?}");
            assert_eq!(seen.steady, steady, "{rounds:?}: {seen:?}");
            assert!(seen.sentence().starts_with(if steady { "steady: " } else { "not steady: " }));
        }
    }

    #[test]
    fn the_last_five_alone_count() {
        let falling = [900.0, 500.0, 200.0, 100.0, 101.0, 99.0, 100.0, 100.0];
        assert!(Steadiness::of(&falling).is_some_and(|seen| seen.steady));
        assert_eq!(Steadiness::of(&falling[..4]), None);
        assert_eq!(Steadiness::of(&[0.0; 5]), None);
        assert_eq!(Steadiness::of(&[f64::NAN; 5]), None);
    }
}
