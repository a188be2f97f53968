//! Means and ratios over rounds, each with the interval that the rounds support.
//!
//! Rounds, not I/Os, are the sample: thousands of I/Os of one round share its temperature, its
//! background work and its moment, and count as one observation. Intervals are Student's t with
//! n - 1 degrees of freedom, two-sided, 95 %.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

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

impl Ratio {
    /// The same of figures that are certain to within `part` of themselves each (0.001 is 0.1 %): the
    /// interval is that much wider on both sides, however alike the rounds are.
    pub fn resolved_to(self, part: f64) -> Self {
        if !part.is_finite() || part <= 0.0 {
            return self;
        }
        let factor = (1.0 + part).max(1.0);
        let ci95 = self.ci95.map(|[low, high]| [low / factor, high * factor]);
        Self {
            ci95,
            distinguishable: ci95.map(|[low, high]| low > 1.0 || high < 1.0),
            least_detectable: self.least_detectable.map(|least| (1.0 + least) * factor - 1.0),
            ..self
        }
    }
}

/// How far the I/Os a second of one round are certain, as a part of them: those that are in flight when
/// the window opens or closes do not count, and where a window's edges fall among them is chance.
/// `None` where nothing was counted.
pub fn resolution(in_flight: f64, ios: f64, rounds: usize) -> Option<f64> {
    let of_round = ios / rounds.max(1) as f64;
    Some(in_flight / of_round).filter(|part| part.is_finite())
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

/// The ratio of `ours` to `base` where their rounds are not the same rounds: two runs, on two
/// systems, at two times. Welch's t on the logarithms, which does not take the spreads for equal; what
/// moved one run as a whole is in neither spread, so this interval says nothing of it.
///
/// `None` when one has no round, or a value is not positive and finite.
pub fn ratio_independent(ours: &[f64], base: &[f64]) -> Option<Ratio> {
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<_>>();
    let (ours, base) = (Spread::of(&logs(ours))?, Spread::of(&logs(base))?);
    let mean = ours.mean - base.mean;
    let welch = welch(&ours, &base);
    let half = welch.and_then(|(error, freedom)| Some(error * t(0.5 + CONFIDENCE / 2.0, freedom)?));
    let ci95 = half
        .map(|half| [mean - half, mean + half].map(f64::exp))
        .filter(|ends| ends.iter().all(|end| end.is_finite()));
    Some(Ratio {
        mean: mean.exp(),
        ci95,
        distinguishable: ci95.map(|[low, high]| low > 1.0 || high < 1.0),
        least_detectable: welch.and_then(|(error, freedom)| least_detectable(error, freedom)),
    })
}

/// Standard error of the difference of two means, and its degrees of freedom by Welch and
/// Satterthwaite.
fn welch(ours: &Spread, base: &Spread) -> Option<(f64, f64)> {
    let (a, b) = (ours.error?.powi(2), base.error?.powi(2));
    let freedoms = (ours.freedom()?, base.freedom()?);
    let freedom = (a + b).powi(2) / (a.powi(2) / freedoms.0 + b.powi(2) / freedoms.1);
    // Without any spread the fraction is 0 / 0, and the error 0 whatever the freedom.
    let freedom = if freedom.is_finite() { freedom } else { freedoms.0 + freedoms.1 };
    Some(((a + b).sqrt(), freedom))
}

/// The least difference that rounds of this spread would have shown.
fn least_detectable_ratio(spread: &Spread) -> Option<f64> {
    least_detectable(spread.error?, spread.freedom()?)
}

/// The least difference that is seen with the power of [`POWER`]: (t of the interval + t of the power)
/// standard errors, out of the logarithm.
fn least_detectable(error: f64, freedom: f64) -> Option<f64> {
    let t = t(0.5 + CONFIDENCE / 2.0, freedom)? + t(POWER, freedom)?;
    let part = (t * error).exp_m1();
    part.is_finite().then_some(part)
}

/// A round lies outside when its distance from the median is more than this many times the median
/// distance, which for normal rounds stands for 3.5 standard deviations (Iglewicz and Hoaglin, 1993).
const OUTLIER_Z: f64 = 3.5;
/// Median distance of a normal distribution, in standard deviations.
const MEDIAN_DISTANCE_SD: f64 = 0.6745;
/// Rounds closer to the median than this part of it are never outside: nobody asks about them.
const OUTLIER_PART_MIN: f64 = 0.01;
/// With fewer rounds nothing says which of them is the odd one.
const OUTLIER_ROUNDS_MIN: usize = 4;

/// Which of `samples` lie far from the others, one answer each. It is a hint to look, not a reason to
/// leave a round out.
pub fn outliers(samples: &[f64]) -> Vec<bool> {
    let none = vec![false; samples.len()];
    if samples.len() < OUTLIER_ROUNDS_MIN || samples.iter().any(|sample| !sample.is_finite()) {
        return none;
    }
    let Some(middle) = median(samples) else { return none };
    let distances: Vec<f64> = samples.iter().map(|sample| (sample - middle).abs()).collect();
    let Some(typical) = median(&distances) else { return none };
    let limit = (OUTLIER_Z / MEDIAN_DISTANCE_SD * typical).max(OUTLIER_PART_MIN * middle.abs());
    distances.iter().map(|distance| *distance > limit).collect()
}

/// The middle value; of an even number the mean of the two in the middle. `None` without any.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    match sorted.len() % 2 {
        0 => Some(f64::midpoint(*sorted.get(half.checked_sub(1)?)?, upper)),
        _ => Some(upper),
    }
}

/// The quantile of Student's t at `p` with `freedom` degrees of freedom, which Welch's need not be a
/// whole number of.
fn t(p: f64, freedom: f64) -> Option<f64> {
    Some(StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(p))
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
        Some(t(0.5 + CONFIDENCE / 2.0, self.freedom()?)? * self.error?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_stacks_are_told_apart_by_one_io() {
        // 997 and 996 I/Os of each round, every time: no spread at all, four in flight.
        let close = ratio(&[997.0; 3], &[996.0; 3]).unwrap();
        assert_eq!(close.distinguishable, Some(true));
        let part = resolution(4.0, 2990.0, 3).unwrap();
        assert!((part - 4.0 / 996.67).abs() < 1e-6, "{part}");
        let resolved = close.resolved_to(part);
        assert_eq!(resolved.distinguishable, Some(false));
        assert_eq!(resolved.mean, close.mean);
        let least = resolved.least_detectable.unwrap();
        assert!((least - part).abs() < 1e-9, "{least}");
        // Ten seconds of a fast drive: it changes nothing.
        let fast = ratio(&[500e3, 501e3, 499e3], &[490e3, 491e3, 490e3]).unwrap();
        let part = resolution(32.0, 15e6, 3).unwrap();
        assert_eq!(fast.resolved_to(part).distinguishable, Some(true));
        assert_eq!(fast.resolved_to(f64::NAN), fast);
        assert_eq!((resolution(4.0, 0.0, 3), resolution(0.0, 0.0, 0)), (None, None));
    }

    #[derive(Deserialize)]
    struct Scipy {
        quantiles: Vec<Quantile>,
        means: Vec<MeanCase>,
        ratios: Vec<RatioCase>,
        independent: Vec<RatioCase>,
        outliers: Vec<OutlierCase>,
    }

    #[derive(Deserialize)]
    struct OutlierCase {
        samples: Vec<f64>,
        outside: Vec<bool>,
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
            close(t(0.975, case.freedom).unwrap(), case.p975);
            close(t(0.8, case.freedom).unwrap(), case.p80);
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
    fn ratios_of_independent_runs_are_scipys() {
        for case in scipy().independent {
            let ratio = ratio_independent(&case.ours, &case.base).unwrap();
            close(ratio.mean, case.mean);
            let [low, high] = ratio.ci95.unwrap();
            close(low, case.low);
            close(high, case.high);
            close(ratio.least_detectable.unwrap(), case.least);
            assert_eq!(ratio.distinguishable, Some(case.low > 1.0 || case.high < 1.0));
        }
        let one = ratio_independent(&[3.0], &[2.0, 2.1]).unwrap();
        assert_eq!((one.ci95, one.distinguishable, one.least_detectable), (None, None, None));
        let still = ratio_independent(&[2.0, 2.0], &[1.0, 1.0]).unwrap();
        assert_eq!(still.distinguishable, Some(true));
        for (ours, base) in [(&[][..], &[1.0][..]), (&[0.0], &[1.0]), (&[1.0], &[f64::NAN])] {
            assert_eq!(ratio_independent(ours, base), None);
        }
    }

    #[test]
    fn outliers_are_scipys() {
        for case in scipy().outliers {
            assert_eq!(outliers(&case.samples), case.outside, "{:?}", case.samples);
        }
        assert_eq!(outliers(&[1.0, 1.0, f64::NAN, 9.0]), [false; 4]);
        assert_eq!(
            (median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])),
            (None, Some(2.0), Some(2.5))
        );
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
