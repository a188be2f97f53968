//! When a command completes: the set latency, the set rate, and the device's clock.

use crate::options::SoftOptions;
use std::time::Instant;

/// Time that the rate's schedule may lag behind and then catch up: a stall of this length, of the
/// host or of the device's thread, costs no I/O over the second. It is also the most that an idle
/// device can save up: 0.4 % of a second's I/Os.
const CREDIT_NS: u64 = 4_000_000;
/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// The schedule of a device of a set speed.
pub(crate) struct Pace {
    origin: Instant,
    latency_ns: u64,
    rate: Option<Rate>,
}

/// One slot every `1 s / iops`, kept without rounding: whole nanoseconds and a remainder.
struct Rate {
    iops: u64,
    whole_ns: u64,
    rest: u64,
    next_ns: u64,
    next_rest: u64,
}

impl Pace {
    pub(crate) fn new(options: &SoftOptions) -> Self {
        let rate = options.iops.filter(|iops| *iops > 0).map(|iops| Rate {
            iops,
            whole_ns: SECOND_NS / iops,
            rest: SECOND_NS % iops,
            next_ns: 0,
            next_rest: 0,
        });
        let latency_ns = u64::try_from(options.latency.as_nanos()).unwrap_or(u64::MAX);
        Self { origin: Instant::now(), latency_ns, rate }
    }

    /// Whether there is a schedule at all; without one nobody reads the clock.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.latency_ns != 0 || self.rate.is_some()
    }

    /// Nanoseconds since the device was made.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// When a command that was fetched at `now_ns` is due: after the latency, and not before its
    /// slot. Due times never go back.
    #[inline]
    pub(crate) fn due_ns(&mut self, now_ns: u64) -> u64 {
        let after_latency = now_ns.saturating_add(self.latency_ns);
        match &mut self.rate {
            None if self.latency_ns == 0 => 0,
            None => after_latency,
            Some(rate) => after_latency.max(rate.take(now_ns)),
        }
    }
}

impl Rate {
    /// Takes the next slot and returns when it ends.
    fn take(&mut self, now_ns: u64) -> u64 {
        let oldest = now_ns.saturating_sub(CREDIT_NS);
        if self.next_ns < oldest {
            self.next_ns = oldest;
        }
        self.next_ns = self.next_ns.saturating_add(self.whole_ns);
        self.next_rest += self.rest;
        if self.next_rest >= self.iops {
            self.next_rest -= self.iops;
            self.next_ns = self.next_ns.saturating_add(1);
        }
        self.next_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pace(latency_us: u64, iops: Option<u64>) -> Pace {
        let latency = Duration::from_micros(latency_us);
        Pace::new(&SoftOptions { latency, iops, ..SoftOptions::default() })
    }

    #[test]
    fn a_rate_that_divides_no_second_is_exact() {
        let mut pace = pace(0, Some(300_007));
        // From the credit on: the schedule starts at `now - CREDIT_NS`.
        let start = 10 * SECOND_NS;
        let last = (0..300_007).map(|_| pace.due_ns(start)).last().unwrap();
        assert!(last.abs_diff(start - CREDIT_NS + SECOND_NS) <= 1, "{last}");
    }

    #[test]
    fn latency_bounds_shallow_queues_and_rate_deep_ones() {
        let mut pace = pace(80, Some(500_000));
        assert_eq!(pace.due_ns(SECOND_NS), SECOND_NS + 80_000, "credit is there: latency alone");
        for _ in 0..3_000 {
            pace.due_ns(SECOND_NS);
        }
        let due = pace.due_ns(SECOND_NS);
        assert_eq!(due, SECOND_NS - CREDIT_NS + 3_002 * 2_000, "the credit is spent: 2 us apart");
        assert_eq!(pace.due_ns(SECOND_NS) - due, 2_000);
    }

    #[test]
    fn no_schedule_is_due_at_once() {
        assert!(!pace(0, None).is_timed());
        assert_eq!(pace(0, None).due_ns(77), 0);
        assert_eq!(pace(80, None).due_ns(1), 80_001);
        assert_eq!(pace(80, None).due_ns(u64::MAX), u64::MAX);
    }
}
