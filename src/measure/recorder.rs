//! What a worker writes down for each I/O: one count in a log-linear array, and the exact extremes.

use super::errors::ErrorTally;
use super::latency::LatencySummary;
use nvpoll_engine::IoStatus;

/// Sub-buckets an octave, as a power of two: 128 of them, so a bucket is at most 1/128 of its value
/// wide and its middle at most 0.4 % off.
const SUB_BITS: u32 = 7;
const SUB_COUNT: usize = 1 << SUB_BITS;

/// Longest latency told apart, as a power of two in ticks. 2^45 ticks are 1.9 hours at 5 GHz and 9.8
/// hours at 1 GHz, so an hour is reached with every clock below 9.7 GHz.
const TICKS_MAX_BITS: u32 = 45;

/// Latencies from here on are counted as this many ticks. A row that holds one says so by its
/// maximum.
pub const TICKS_MAX: u64 = (1 << TICKS_MAX_BITS) - 1;

/// Values below `SUB_COUNT` have a bucket each; every octave from there to `TICKS_MAX` has
/// `SUB_COUNT`.
const BUCKETS: usize = (TICKS_MAX_BITS - SUB_BITS + 1) as usize * SUB_COUNT;

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
    max: u64,
}

impl Extent {
    const EMPTY: Self = Self { sum: 0, min: u64::MAX, max: 0 };

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
        self.max = self.max.max(other.max);
    }

    /// Sum of all latencies in ticks.
    pub fn sum_ticks(&self) -> u64 {
        self.sum
    }

    /// Shortest and longest latency in ticks, or `None` before the first.
    pub fn min_max_ticks(&self) -> Option<(u64, u64)> {
        (self.min <= self.max).then_some((self.min, self.max))
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
            None => return self.record_clamped(),
        }
        self.extent.add(ticks);
    }

    #[cold]
    #[inline(never)]
    fn record_clamped(&mut self) {
        let [.., last] = &mut *self.counts;
        *last = last.wrapping_add(1);
        self.extent.add(TICKS_MAX);
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

/// The bucket that counts `ticks`; `BUCKETS` or more for what is longer than [`TICKS_MAX`].
#[inline(always)]
fn bucket_of(ticks: u64) -> usize {
    // The octave's number above the linear part, 0 for everything below 2 * SUB_COUNT. The OR makes
    // the argument nonzero, which leaves one instruction of the logarithm.
    let octave = (ticks | SUB_COUNT as u64).ilog2() - SUB_BITS;
    ((octave as usize) << SUB_BITS) + (ticks >> octave) as usize
}

/// Lowest and highest ticks that `bucket` counts.
fn bucket_ticks(bucket: usize) -> (u64, u64) {
    let octave = (bucket / SUB_COUNT).saturating_sub(1) as u32;
    let low = ((bucket - octave as usize * SUB_COUNT) as u64) << octave;
    (low, low + ((1 << octave) - 1))
}

/// What one worker saw: latencies by direction, flushes, errors. Fixed in size (78 KiB), so that
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
    errors: ErrorTally,
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
            errors: ErrorTally::default(),
        }
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
        self.errors.merge(&other.errors);
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
                    (low as f64 + (high - low) as f64 / 2.0, *count)
                },
            )
        });
        LatencySummary::new(buckets, &extent, ns_per_tick)
    }
}
