//! Latencies as people read them: nanoseconds, mean, extremes, percentiles.

use super::recorder::Extent;
use hdrhistogram::Histogram;

/// Percentiles that a summary holds.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// Decimal digits that the histogram keeps; far finer than the buckets it is filled from.
const HISTOGRAM_DIGITS: u8 = 3;

/// One percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentile {
    /// Which, in percent.
    pub percent: f64,
    /// As many I/Os as `percent` says took at most this long, in nanoseconds.
    pub ns: u64,
    /// I/Os that rank above. A percentile that few lie beyond says little.
    pub beyond: u64,
}

/// Latencies of a set of I/Os, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencySummary {
    /// I/Os.
    pub count: u64,
    /// Shortest, exact to the clock's tick.
    pub min_ns: u64,
    /// Mean, from the exact sum.
    pub mean_ns: f64,
    /// Longest, exact to the clock's tick.
    pub max_ns: u64,
    /// Standard deviation over I/Os, from the buckets' middles: at most 0.5 % off.
    pub stddev_ns: f64,
    /// One for each of [`PERCENTILES`], in that order, each at most 0.5 % off.
    pub percentiles: [Percentile; PERCENTILES.len()],
}

impl LatencySummary {
    /// From buckets (middle in ticks, count) and the exact extremes; `None` without I/Os.
    ///
    /// The middle of a bucket stands for all its I/Os; a percentile is clamped to the observed
    /// extremes, so that none lies below the minimum or above the maximum.
    pub(super) fn new(
        buckets: impl Iterator<Item = (f64, u64)>,
        extent: &Extent,
        ns_per_tick: f64,
    ) -> Option<Self> {
        if !(ns_per_tick.is_finite() && ns_per_tick > 0.0) {
            return None;
        }
        let (min_ticks, max_ticks) = extent.min_max_ticks()?;
        let to_ns = |ticks: u64| (ticks as f64 * ns_per_tick).round() as u64;
        let (min_ns, max_ns) = (to_ns(min_ticks), to_ns(max_ticks));
        // One to the longest seen; the type wants an upper bound of at least 2.
        let mut histogram = Histogram::<u64>::new_with_max(max_ns.max(2), HISTOGRAM_DIGITS).ok()?;
        // From the shortest, so that large squares do not eat small differences.
        let centre_ns = min_ticks as f64 * ns_per_tick;
        let (mut sum, mut squares) = (0.0, 0.0);
        for (ticks, count) in buckets {
            let ns = (ticks * ns_per_tick).round() as u64;
            let off = ticks * ns_per_tick - centre_ns;
            sum += off * count as f64;
            squares += off * off * count as f64;
            histogram.record_n(ns.clamp(min_ns, max_ns), count).ok()?;
        }
        let count = histogram.len();
        let percentiles = PERCENTILES.map(|percent| {
            let quantile = percent / 100.0;
            let rank = (quantile * count as f64).ceil() as u64;
            let ns = histogram.value_at_quantile(quantile).clamp(min_ns, max_ns);
            Percentile { percent, ns, beyond: count.saturating_sub(rank) }
        });
        let mean_ns = extent.sum_ticks() as f64 * ns_per_tick / count as f64;
        let variance = (squares - sum * sum / count as f64) / count.saturating_sub(1).max(1) as f64;
        let stddev_ns = variance.max(0.0).sqrt();
        Some(Self { count, min_ns, mean_ns, max_ns, stddev_ns, percentiles })
    }

    /// The value of `percent`, where it is one of [`PERCENTILES`].
    pub fn percentile(&self, percent: f64) -> Option<Percentile> {
        self.percentiles.iter().copied().find(|p| p.percent == percent)
    }
}
