//! Means and ratios over rounds, each with the interval that the rounds support.
//!
//! Rounds, not I/Os, are the sample: thousands of I/Os of one round share its temperature, its
//! background work and its moment, and count as one observation. Intervals are Student's t with
//! n - 1 degrees of freedom, two-sided, 95 %.

use distrs::StudentsT;
use serde::{Deserialize, Serialize};

/// How sure an interval is.
const CONFIDENCE: f64 = 0.95;

/// How often a true difference of the least detectable size would be seen.
const POWER: f64 = 0.80;

/// A mean over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Mean over rounds.
    pub mean: f64,
    /// Lower and upper end of the 95 % interval of the mean; `None` when one round alone says
    /// nothing about the next.
    pub ci95: Option<[f64; 2]>,
}

impl Interval {
    /// Half of the interval's width.
    pub fn half_width(&self) -> Option<f64> {
        self.ci95.map(|[low, high]| (high - low) / 2.0)
    }
}

/// Mean and interval of `samples`; `None` when there are none, or one is no finite number.
pub fn mean_interval(samples: &[f64]) -> Option<Interval> {
    let spread = Spread::of(samples)?;
    let ci95 = spread
        .half_width()
        .map(|half| [spread.mean - half, spread.mean + half])
        .filter(|ends| ends.iter().all(|end| end.is_finite()));
    Some(Interval { mean: spread.mean, ci95 })
}

/// How many times as much one engine does as another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean of the rounds' ratios.
    pub mean: f64,
    /// 95 % interval of it; `None` with fewer than two rounds in common.
    pub ci95: Option<[f64; 2]>,
    /// Whether the interval leaves out 1. `None` where there is no interval: not known.
    pub distinguishable: Option<bool>,
    /// The least true difference that this many rounds of this spread would have shown four times
    /// out of five, as a part: 0.03 is 3 %.
    pub least_detectable: Option<f64>,
}

/// The ratio of `ours` to `base`, paired by round: element i of both is the same round, so what
/// moved both (a warm drive, a busy host) cancels. Taken in logarithms, so that twice and half are
/// equally far from 1 and the interval of the inverse is the inverse of the interval.
///
/// `None` when the lengths differ, there is no pair, or a value is not positive and finite.
pub fn ratio(ours: &[f64], base: &[f64]) -> Option<Ratio> {
    if ours.len() != base.len() {
        return None;
    }
    let logs: Vec<f64> = ours.iter().zip(base).map(|(ours, base)| (ours / base).ln()).collect();
    let spread = Spread::of(&logs)?;
    let ci95 =
        spread.half_width().map(|half| [spread.mean - half, spread.mean + half].map(f64::exp));
    Some(Ratio {
        mean: spread.mean.exp(),
        ci95,
        distinguishable: ci95.map(|[low, high]| low > 1.0 || high < 1.0),
        least_detectable: least_detectable_ratio(&spread),
    })
}

/// The least difference that rounds of this spread would have shown with the power of [`POWER`]:
/// (t of the interval + t of the power) standard errors, out of the logarithm.
fn least_detectable_ratio(spread: &Spread) -> Option<f64> {
    let freedom = spread.freedom()?;
    let t = StudentsT::ppf(0.5 + CONFIDENCE / 2.0, freedom) + StudentsT::ppf(POWER, freedom);
    let part = (t * spread.error?).exp_m1();
    part.is_finite().then_some(part)
}

/// Mean and standard error.
struct Spread {
    n: usize,
    mean: f64,
    /// Standard error of the mean, from two samples on.
    error: Option<f64>,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Self> {
        let n = samples.len();
        if n == 0 || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mean = samples.iter().sum::<f64>() / n as f64;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let error = (n > 1).then(|| (squares / (n - 1) as f64 / n as f64).sqrt());
        mean.is_finite().then_some(Self { n, mean, error })
    }

    fn freedom(&self) -> Option<f64> {
        (self.n > 1).then(|| (self.n - 1) as f64)
    }

    fn half_width(&self) -> Option<f64> {
        Some(StudentsT::ppf(0.5 + CONFIDENCE / 2.0, self.freedom()?) * self.error?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Scipy {
        quantiles: Vec<Quantile>,
        means: Vec<MeanCase>,
        ratios: Vec<RatioCase>,
    }

    #[derive(Deserialize)]
    struct Quantile {
        freedom: f64,
        p975: f64,
        p80: f64,
    }

    #[derive(Deserialize)]
    struct MeanCase {
        samples: Vec<f64>,
        mean: f64,
        low: f64,
        high: f64,
    }

    #[derive(Deserialize)]
    struct RatioCase {
        ours: Vec<f64>,
        base: Vec<f64>,
        mean: f64,
        low: f64,
        high: f64,
        least: f64,
    }

    fn scipy() -> Scipy {
        serde_json::from_str(include_str!("testdata/scipy.json")).unwrap()
    }

    fn close(ours: f64, theirs: f64) {
        let off = (ours - theirs).abs() / theirs.abs().max(f64::MIN_POSITIVE);
        assert!(off < 1e-6, "{ours} where SciPy has {theirs}");
    }

    #[test]
    fn quantiles_are_scipys() {
        for case in scipy().quantiles {
            close(StudentsT::ppf(0.975, case.freedom), case.p975);
            close(StudentsT::ppf(0.8, case.freedom), case.p80);
        }
    }

    #[test]
    fn intervals_are_scipys() {
        for case in scipy().means {
            let interval = mean_interval(&case.samples).unwrap();
            close(interval.mean, case.mean);
            let [low, high] = interval.ci95.unwrap();
            close(low, case.low);
            close(high, case.high);
            close(interval.half_width().unwrap() + 1.0, (case.high - case.low) / 2.0 + 1.0);
        }
    }

    #[test]
    fn ratios_are_scipys() {
        for case in scipy().ratios {
            let ratio = ratio(&case.ours, &case.base).unwrap();
            close(ratio.mean, case.mean);
            let [low, high] = ratio.ci95.unwrap();
            close(low, case.low);
            close(high, case.high);
            close(ratio.least_detectable.unwrap(), case.least);
            let contains_1 = case.low <= 1.0 && case.high >= 1.0;
            assert_eq!(ratio.distinguishable, Some(!contains_1));
        }
    }

    #[test]
    fn one_round_has_no_interval() {
        let interval = mean_interval(&[5.0]).unwrap();
        assert_eq!((interval.mean, interval.ci95, interval.half_width()), (5.0, None, None));
        let ratio = ratio(&[3.0], &[2.0]).unwrap();
        assert!((ratio.mean - 1.5).abs() < 1e-12);
        assert_eq!((ratio.ci95, ratio.distinguishable, ratio.least_detectable), (None, None, None));
    }

    #[test]
    fn the_inverse_ratio_has_the_inverse_interval() {
        let (ours, base) = ([110.0, 125.0, 99.0, 104.0], [100.0, 101.0, 98.0, 103.0]);
        let there = ratio(&ours, &base).unwrap();
        let back = ratio(&base, &ours).unwrap();
        close(back.mean, 1.0 / there.mean);
        let ([low, high], [back_low, back_high]) = (there.ci95.unwrap(), back.ci95.unwrap());
        close(back_low, 1.0 / high);
        close(back_high, 1.0 / low);
    }

    #[test]
    fn pairing_takes_out_what_moves_both() {
        // Rounds differ by half, the two within a round by 2 % always.
        let base = [100.0, 150.0, 75.0, 130.0];
        let ours = base.map(|value| value * 1.02);
        let ratio = ratio(&ours, &base).unwrap();
        assert_eq!(ratio.distinguishable, Some(true));
        close(ratio.mean, 1.02);
    }

    #[test]
    fn no_figures_from_no_figures() {
        assert_eq!(mean_interval(&[]), None);
        assert_eq!(mean_interval(&[1.0, f64::NAN]), None);
        assert_eq!(mean_interval(&[f64::MAX, f64::MAX]), None);
        assert_eq!(ratio(&[], &[]), None);
        assert_eq!(ratio(&[1.0, 2.0], &[1.0]), None);
        assert_eq!(ratio(&[0.0], &[1.0]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
        assert_eq!(ratio(&[-1.0], &[1.0]), None);
    }
}
