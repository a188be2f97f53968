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
