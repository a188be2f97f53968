//! The clock of the hot loop: the processor's own counter where it is fit, else the system's.

/// Reads of the clock that [`Clock::read_cost_ns`] is measured over.
const COST_READS: u32 = 10_000;

/// Ticks that the scale is taken from: some minutes, so that rounding to nanoseconds does not show.
const SCALE_TICKS: u64 = 1 << 40;

/// A monotonic clock that is cheap to read. All of a run's figures come from one.
///
/// On x86-64 with an invariant time stamp counter (CPUID 8000_0007h, EDX bit 8) and on ARM64 a read
/// is one instruction, scaled against the system's monotonic clock at the start; elsewhere it is the
/// system's monotonic clock itself, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Clock {
    clock: quanta::Clock,
    ns_per_tick: f64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// The process's clock. The first call measures the counter against the system's clock, which
    /// takes up to 0.2 s.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let ns_per_tick = clock.delta_as_nanos(0, SCALE_TICKS) as f64 / SCALE_TICKS as f64;
        Self { clock, ns_per_tick }
    }

    /// Now, in ticks. Not ordered against the loads and stores around it: a fence would cost more
    /// than the few nanoseconds that it could put right.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.clock.raw()
    }

    /// Nanoseconds a tick.
    pub fn ns_per_tick(&self) -> f64 {
        self.ns_per_tick
    }

    /// `ticks` in nanoseconds.
    pub fn to_ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// `ticks` in seconds.
    pub fn to_s(&self, ticks: u64) -> f64 {
        self.to_ns(ticks) / 1e9
    }

    /// How many ticks `duration` takes, rounded; at most `u64::MAX`.
    pub fn to_ticks(&self, duration: std::time::Duration) -> u64 {
        (duration.as_nanos() as f64 / self.ns_per_tick).round() as u64
    }

    /// Whether reads come from the processor's counter. A scale of exactly 1 is the system's clock:
    /// a counter's scale is measured and comes out a little off any round number.
    pub fn is_counter(&self) -> bool {
        self.ns_per_tick != 1.0
    }

    /// What one read costs here, in nanoseconds, measured now (least of five goes).
    pub fn read_cost_ns(&self) -> f64 {
        let go = || {
            let start = self.now();
            for _ in 0..COST_READS {
                std::hint::black_box(self.now());
            }
            self.to_ns(self.now().saturating_sub(start)) / f64::from(COST_READS)
        };
        (0..5).map(|_| go()).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn agrees_with_the_systems_clock() {
        let clock = Clock::new();
        let (system, ticks) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(200));
        let (ticks, system) = (clock.now() - ticks, system.elapsed());
        let ratio = clock.to_s(ticks) / system.as_secs_f64();
        assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
    }

    #[test]
    fn converts_both_ways() {
        let clock = Clock::new();
        let ticks = clock.to_ticks(Duration::from_secs(10));
        assert!((clock.to_s(ticks) - 10.0).abs() < 1e-6);
        assert_eq!(clock.to_ticks(Duration::MAX), u64::MAX);
    }

    #[test]
    fn a_read_has_a_cost() {
        let cost_ns = Clock::new().read_cost_ns();
        assert!(cost_ns > 0.0 && cost_ns < 10_000.0, "{cost_ns}");
    }
}
