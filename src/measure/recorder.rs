//! What a worker writes down for each I/O: one count in a log-linear array, and the exact extremes.

use super::errors::ErrorTally;
use super::latency::LatencySummary;
use super::series::{Point, Series};
use nvpoll_engine::IoStatus;

/// Sub-buckets an octave, as a power of two: 128 of them, so a bucket is at most 1/128 of its value
/// wide and its middle at most 0.4 % off.
const SUB_BITS: u32 = 7;

/// Longest latency told apart, as a power of two in ticks. 2^45 ticks are 1.9 hours at 5 GHz and 9.8
/// hours at 1 GHz, so an hour is reached with every clock below 9.7 GHz.
const TICKS_MAX_BITS: u32 = 45;

/// Latencies from here on are counted as this many ticks. A row that holds one says so by its
/// maximum.
pub const TICKS_MAX: u64 = (1 << TICKS_MAX_BITS) - 1;

/// Every octave from 1 tick to [`TICKS_MAX`] has its sub-buckets. (Below 128 ticks most of them
/// cannot be hit; to leave them out would take an instruction more on every I/O.)
const BUCKETS: usize = (TICKS_MAX_BITS as usize) << SUB_BITS;

/// Bits of a double's mantissa that do not choose a bucket.
const DOUBLE_SHIFT: u32 = f64::MANTISSA_DIGITS - 1 - SUB_BITS;

/// What the rest of a double's bits are for 1.0.
const DOUBLE_ONE: u64 = 1.0_f64.to_bits() >> DOUBLE_SHIFT;

/// Which way an I/O moved data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Target to buffer.
    Read = 0,
    /// Buffer to target.
    Write = 1,
}

/// Number, sum and extremes of latencies, exact, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    sum: u64,
    min: u64,
    /// Of what was added since it was taken.
    max: u64,
    /// Of what was added before.
    max_before: u64,
}

impl Extent {
    const EMPTY: Self = Self { sum: 0, min: u64::MAX, max: 0, max_before: 0 };

    /// The longest since this was last called.
    fn take_max(&mut self) -> u64 {
        self.max_before = self.max_before.max(self.max);
        std::mem::take(&mut self.max)
    }

    /// The longest of all.
    fn max(&self) -> u64 {
        self.max.max(self.max_before)
    }

    /// Wrapping, because a sum of 2^64 ticks takes 48 I/Os in flight four years; the check for it
    /// would run on every I/O.
    #[inline(always)]
    fn add(&mut self, ticks: u64) {
        self.sum = self.sum.wrapping_add(ticks);
        if ticks < self.min {
            self.min = ticks;
        }
        if ticks > self.max {
            self.max = ticks;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max());
    }

    /// Sum of all latencies in ticks.
    pub fn sum_ticks(&self) -> u64 {
        self.sum
    }

    /// Shortest and longest latency in ticks, or `None` before the first.
    pub fn min_max_ticks(&self) -> Option<(u64, u64)> {
        (self.min <= self.max()).then_some((self.min, self.max()))
    }
}

/// Latencies of one direction.
#[derive(Clone, Debug)]
struct Lane {
    extent: Extent,
    counts: Box<[u64; BUCKETS]>,
}

impl Lane {
    fn new() -> Self {
        Self { extent: Extent::EMPTY, counts: Box::new([0; BUCKETS]) }
    }

    #[inline(always)]
    fn record(&mut self, ticks: u64) {
        match self.counts.get_mut(bucket_of(ticks)) {
            Some(count) => *count = count.wrapping_add(1),
            None => return self.record_outside(ticks),
        }
        self.extent.add(ticks);
    }

    /// What has no bucket of its own: 0 ticks, counted with 1, and more than [`TICKS_MAX`].
    #[cold]
    #[inline(never)]
    fn record_outside(&mut self, ticks: u64) {
        let [first, .., last] = &mut *self.counts;
        let count = if ticks == 0 { first } else { last };
        *count = count.wrapping_add(1);
        self.extent.add(ticks.min(TICKS_MAX));
    }

    fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    fn merge(&mut self, other: &Self) {
        self.extent.merge(&other.extent);
        for (to, from) in self.counts.iter_mut().zip(other.counts.iter()) {
            *to = to.wrapping_add(*from);
        }
    }
}

/// The bucket that counts `ticks`; [`BUCKETS`] or more for 0 and for what exceeds [`TICKS_MAX`].
///
/// A double's bits are the logarithm's whole part, then the mantissa from its top: exactly a
/// log-linear bucket number once the lower bits are cut off. Up to 2^53 the conversion is exact; from
/// 2^63 on the sign is set, which makes the number too large for any bucket. Half the instructions of
/// a logarithm in integers.
#[inline(always)]
fn bucket_of(ticks: u64) -> usize {
    let bits = (ticks as i64 as f64).to_bits();
    (bits >> DOUBLE_SHIFT).wrapping_sub(DOUBLE_ONE) as usize
}

/// Lowest and highest ticks that `bucket` counts; the highest is below the lowest for one that no
/// whole number of ticks falls in.
fn bucket_ticks(bucket: usize) -> (u64, u64) {
    let lowest = |bucket: u64| f64::from_bits((bucket + DOUBLE_ONE) << DOUBLE_SHIFT).ceil() as u64;
    (lowest(bucket as u64), lowest(bucket as u64 + 1) - 1)
}

/// What one worker saw: latencies by direction, flushes, errors, and the same by seconds. Fixed in size (100 KiB), so that
/// nothing is allocated after it is made.
///
/// Only I/Os that count are recorded; which do (submitted and completed inside the measured window)
/// is the caller's to say. An I/O that failed goes to [`record_error`](Self::record_error) alone.
#[derive(Clone, Debug)]
pub struct Recorder {
    lanes: [Lane; 2],
    // Cold from here.
    flushes: Extent,
    flush_count: u64,
    /// Of each direction, where I/Os differ in size; else they are not counted.
    bytes: [u64; 2],
    errors: ErrorTally,
    series: Series,
    /// All that is in the series.
    in_series: Point,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// An empty recorder. The only place that allocates.
    pub fn new() -> Self {
        Self {
            lanes: [Lane::new(), Lane::new()],
            flushes: Extent::EMPTY,
            flush_count: 0,
            bytes: [0; 2],
            errors: ErrorTally::default(),
            series: Series::new(),
            in_series: Point::EMPTY,
        }
    }

    /// Ends a step of the series: what was recorded since the last one is its point. Adds up the
    /// buckets, once a second at most: not for each pass.
    #[cold]
    pub fn cut(&mut self) {
        // The step's own longest; what came before is kept beside it.
        let max_ticks = self.lanes.iter_mut().map(|lane| lane.extent.take_max()).max().unwrap_or(0);
        let sum = |lane: &Lane| lane.extent.sum;
        let whole = Point {
            ios: self.count_all(),
            bytes: self.bytes(None),
            ticks: self.lanes.iter().map(sum).fold(0, u64::wrapping_add),
            max_ticks,
        };
        self.series.push(whole.since(&self.in_series));
        self.in_series = whole;
    }

    /// What was recorded in each step that was cut.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Counts a read or a write that took `ticks` of [`Clock`](super::Clock).
    #[inline(always)]
    pub fn record(&mut self, direction: Direction, ticks: u64) {
        self.lanes[direction as usize].record(ticks);
    }

    /// Counts a flush that took `ticks`. Flushes are no I/Os of the workload: they have a number, a
    /// mean and extremes of their own.
    #[inline]
    pub fn record_flush(&mut self, ticks: u64) {
        self.flush_count = self.flush_count.wrapping_add(1);
        self.flushes.add(ticks.min(TICKS_MAX));
    }

    /// Counts the bytes of an I/O that was recorded, where sizes differ.
    #[inline]
    pub fn add_bytes(&mut self, direction: Direction, bytes: u32) {
        if let Some(sum) = self.bytes.get_mut(direction as usize) {
            *sum = sum.wrapping_add(bytes.into());
        }
    }

    /// Bytes of one direction or of both, as far as they were counted.
    pub fn bytes(&self, direction: Option<Direction>) -> u64 {
        match direction {
            Some(direction) => self.bytes.get(direction as usize).copied().unwrap_or(0),
            None => self.bytes.iter().fold(0, |sum, bytes| sum.wrapping_add(*bytes)),
        }
    }

    /// Counts an operation that ended with `status` at byte `offset`.
    #[cold]
    pub fn record_error(&mut self, status: IoStatus, offset: u64) {
        self.errors.add(status, offset);
    }

    /// Adds all that `other` saw.
    pub fn merge(&mut self, other: &Self) {
        for (to, from) in self.lanes.iter_mut().zip(&other.lanes) {
            to.merge(from);
        }
        self.flushes.merge(&other.flushes);
        self.flush_count = self.flush_count.wrapping_add(other.flush_count);
        for (to, from) in self.bytes.iter_mut().zip(other.bytes) {
            *to = to.wrapping_add(from);
        }
        self.errors.merge(&other.errors);
        self.series.merge(&other.series);
    }

    /// I/Os recorded in `direction`. Adds up the buckets: not for the hot loop.
    pub fn count(&self, direction: Direction) -> u64 {
        self.lanes[direction as usize].count()
    }

    /// I/Os recorded in both directions.
    pub fn count_all(&self) -> u64 {
        self.count(Direction::Read).wrapping_add(self.count(Direction::Write))
    }

    /// Flushes recorded, and their sum and extremes.
    pub fn flushes(&self) -> (u64, &Extent) {
        (self.flush_count, &self.flushes)
    }

    /// Operations that failed.
    pub fn errors(&self) -> &ErrorTally {
        &self.errors
    }

    /// Latencies of `direction`, or of both together, in nanoseconds; `None` when there are none.
    pub fn latency(
        &self,
        direction: Option<Direction>,
        ns_per_tick: f64,
    ) -> Option<LatencySummary> {
        let lanes: &[Lane] = match direction {
            Some(Direction::Read) => &self.lanes[..1],
            Some(Direction::Write) => &self.lanes[1..],
            None => &self.lanes,
        };
        let mut extent = Extent::EMPTY;
        lanes.iter().for_each(|lane| extent.merge(&lane.extent));
        let buckets = lanes.iter().flat_map(|lane| {
            lane.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(
                |(bucket, count)| {
                    let (low, high) = bucket_ticks(bucket);
                    ((low as f64 + high as f64) / 2.0, *count)
                },
            )
        });
        LatencySummary::new(buckets, &extent, ns_per_tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::PERCENTILES;
    use proptest::prelude::*;

    fn recorded(ticks: &[u64]) -> Recorder {
        let mut recorder = Recorder::new();
        ticks.iter().for_each(|ticks| recorder.record(Direction::Read, *ticks));
        recorder
    }

    #[test]
    fn every_edge_lies_in_its_own_bucket() {
        let mut next = 1;
        for bucket in 0..BUCKETS {
            let (low, high) = bucket_ticks(bucket);
            if high < low {
                assert!(low <= 128, "every bucket above 128 ticks can be hit: {bucket}");
                continue;
            }
            assert_eq!(low, next, "no gap and no overlap before bucket {bucket}");
            assert_eq!((bucket_of(low), bucket_of(high)), (bucket, bucket), "{low} to {high}");
            assert!((high - low) * 128 <= low, "at most 1/128 wide: {low} to {high}");
            next = high + 1;
        }
        assert_eq!(next, TICKS_MAX + 1);
    }

    #[test]
    fn what_no_bucket_holds_is_outside() {
        for ticks in [0, TICKS_MAX + 1, 1 << 53, i64::MAX as u64, 1 << 63, u64::MAX] {
            assert!(bucket_of(ticks) >= BUCKETS, "{ticks}");
        }
    }

    #[test]
    fn an_hour_is_told_apart_at_every_common_clock() {
        for ticks_per_s in [1e9, 5e9] {
            let hour = (3600.0 * ticks_per_s) as u64;
            let latency = recorded(&[hour]).latency(None, 1e9 / ticks_per_s).unwrap();
            assert_eq!((latency.min_ns, latency.max_ns), (3_600_000_000_000, 3_600_000_000_000));
        }
    }

    #[test]
    fn extremes_of_time_are_counted_and_clamped() {
        let recorder = recorded(&[0, 1, TICKS_MAX, TICKS_MAX + 1, u64::MAX]);
        assert_eq!(recorder.count(Direction::Read), 5);
        let latency = recorder.latency(None, 1.0).unwrap();
        assert_eq!((latency.min_ns, latency.max_ns), (0, TICKS_MAX));
        assert_eq!(latency.mean_ns, (3 * TICKS_MAX + 1) as f64 / 5.0);
    }

    #[test]
    fn nothing_recorded_is_nothing_not_zero() {
        let mut recorder = Recorder::new();
        assert_eq!(recorder.latency(None, 1.0), None);
        assert_eq!(recorder.flushes().1.min_max_ticks(), None);
        recorder.record(Direction::Write, 5);
        assert_eq!(recorder.latency(Some(Direction::Read), 1.0), None);
        assert_eq!(recorder.latency(Some(Direction::Write), 1.0).unwrap().count, 1);
        assert_eq!(recorder.latency(None, f64::NAN), None);
        assert_eq!(recorder.latency(None, 0.0), None);
    }

    #[test]
    fn directions_and_flushes_are_apart() {
        let mut recorder = Recorder::new();
        recorder.record(Direction::Read, 100);
        recorder.record(Direction::Write, 200);
        recorder.record(Direction::Write, 400);
        recorder.record_flush(9000);
        let of = |direction| recorder.latency(direction, 10.0).unwrap();
        assert_eq!(of(Some(Direction::Read)).mean_ns, 1000.0);
        assert_eq!(of(Some(Direction::Write)).mean_ns, 3000.0);
        assert_eq!((of(None).count, of(None).min_ns, of(None).max_ns), (3, 1000, 4000));
        let (count, extent) = recorder.flushes();
        assert_eq!((count, extent.min_max_ticks()), (1, Some((9000, 9000))));
    }

    /// Latencies over all magnitudes, most of them short, as they are.
    fn latencies() -> impl Strategy<Value = Vec<u64>> {
        let one = (0_u32..45, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1));
        prop::collection::vec(one, 1..400)
    }

    proptest! {
        #[test]
        fn agrees_with_the_sorted_latencies(mut ticks in latencies(), ns_per_tick in 0.2..50.0) {
            let latency = recorded(&ticks).latency(None, ns_per_tick).unwrap();
            ticks.sort();
            let n = ticks.len();
            let ns = |ticks: u64| ticks as f64 * ns_per_tick;
            prop_assert_eq!(latency.count, n as u64);
            prop_assert_eq!(latency.min_ns, ns(ticks[0]).round() as u64);
            prop_assert_eq!(latency.max_ns, ns(ticks[n - 1]).round() as u64);
            let mean = ticks.iter().map(|ticks| ns(*ticks)).sum::<f64>() / n as f64;
            prop_assert!((latency.mean_ns - mean).abs() <= mean * 1e-9);
            for (percentile, percent) in latency.percentiles.iter().zip(PERCENTILES) {
                let rank = (percent / 100.0 * n as f64).ceil() as usize;
                let exact = ns(ticks[rank - 1]);
                let off = (percentile.ns as f64 - exact).abs();
                // Half a bucket, the histogram's last digit, rounding to a nanosecond; and 0 ticks
                // are counted with 1.
                let allowed = exact * 0.005 + ns_per_tick + 1.0;
                prop_assert!(off <= allowed, "p{}: {} for {}", percent, percentile.ns, exact);
                prop_assert_eq!(percentile.beyond, (n - rank) as u64);
                prop_assert!((latency.min_ns..=latency.max_ns).contains(&percentile.ns));
            }
        }

        #[test]
        fn merged_is_as_if_recorded_by_one(ours in latencies(), theirs in latencies()) {
            let mut merged = recorded(&ours);
            merged.merge(&recorded(&theirs));
            let both = recorded(&[ours, theirs].concat());
            prop_assert_eq!(merged.latency(None, 1.0), both.latency(None, 1.0));
            prop_assert_eq!(merged.count_all(), both.count_all());
        }
    }
}
