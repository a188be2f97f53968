//! How a userspace queue's thread waits when its completion queue is empty.
//!
//! Cold by nature: it is only asked when there is nothing to do. What a wait costs in processor time
//! and gives in latency is what `--wait` is there to compare.

use crate::WaitMode;
use std::time::{Duration, Instant};

/// How long the adaptive wait looks before it sleeps: some ten times what sleeping and waking cost.
const ADAPTIVE_SPIN: Duration = Duration::from_micros(20);
/// From one look at the clock to the next while looking without pause.
const LOOKS: u32 = 16;
/// How fast the mean follows: an eighth of each new value.
const MEAN_SHIFT: u32 = 3;

/// One queue's way of waiting.
#[derive(Debug)]
pub(crate) struct Waiting {
    mode: WaitMode,
    /// Of the hybrid wait: mean time from an empty queue to the next completion.
    mean_ns: u64,
}

/// What a wait needs of its queue.
pub(crate) trait Awaited {
    /// Whether a completion is there.
    fn has_completion(&self) -> bool;
    /// Sleeps until an interrupt, for at most `time_max`.
    ///
    /// # Errors
    /// When there is no interrupt to sleep on, or the system cannot.
    fn sleep(&self, time_max: Duration) -> std::io::Result<()>;
}

impl Waiting {
    pub fn new(mode: WaitMode) -> Self {
        Self { mode, mean_ns: 0 }
    }

    /// Whether it waits by itself, rather than leave the looking to the caller.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        self.mode != WaitMode::Poll
    }

    /// Waits until a completion is there, for at most `time_max`.
    ///
    /// # Errors
    /// When the system cannot sleep on an interrupt.
    pub fn wait(&mut self, queue: &impl Awaited, time_max: Duration) -> std::io::Result<()> {
        let start = Instant::now();
        match self.mode {
            WaitMode::Poll => {}
            WaitMode::Irq => queue.sleep(time_max)?,
            WaitMode::Adaptive => {
                if !look(queue, start, ADAPTIVE_SPIN.min(time_max)) {
                    queue.sleep(time_max)?;
                }
            }
            WaitMode::Hybrid => {
                std::thread::sleep(Duration::from_nanos(self.mean_ns / 2).min(time_max));
                if look(queue, start, time_max) {
                    self.learn(start.elapsed());
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, taken: Duration) {
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX >> 1);
        let (old, new) = (self.mean_ns >> MEAN_SHIFT, taken_ns >> MEAN_SHIFT);
        self.mean_ns = match self.mean_ns {
            0 => taken_ns,
            mean => (mean - old).saturating_add(new),
        };
    }
}

/// Looks without pause until a completion is there, up to `time_max` after `start`.
fn look(queue: &impl Awaited, start: Instant, time_max: Duration) -> bool {
    loop {
        for _ in 0..LOOKS {
            if queue.has_completion() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= time_max {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A queue whose completion comes after a time; sleeping on it takes until then.
    struct After {
        due: Instant,
        sleeps: Cell<u32>,
    }

    impl After {
        fn new(time: Duration) -> Self {
            Self { due: Instant::now() + time, sleeps: Cell::new(0) }
        }
    }

    impl Awaited for After {
        fn has_completion(&self) -> bool {
            Instant::now() >= self.due
        }
        fn sleep(&self, time_max: Duration) -> std::io::Result<()> {
            self.sleeps.set(self.sleeps.get() + 1);
            std::thread::sleep(self.due.saturating_duration_since(Instant::now()).min(time_max));
            Ok(())
        }
    }

    #[test]
    fn each_mode_comes_back_with_the_completion_or_in_time() {
        for mode in WaitMode::ALL.into_iter().filter(|mode| *mode != WaitMode::Poll) {
            let queue = After::new(Duration::from_millis(2));
            Waiting::new(mode).wait(&queue, Duration::from_secs(60)).unwrap();
            assert!(queue.has_completion(), "{mode}");
            assert_eq!(queue.sleeps.get() > 0, mode.needs_interrupts(), "{mode}");
            let never = After::new(Duration::from_secs(3600));
            Waiting::new(mode).wait(&never, Duration::from_millis(1)).unwrap();
            assert!(!never.has_completion(), "{mode}");
        }
    }

    #[test]
    fn a_completion_that_comes_at_once_is_not_slept_on_by_the_adaptive_wait() {
        let queue = After::new(Duration::ZERO);
        Waiting::new(WaitMode::Adaptive).wait(&queue, Duration::from_secs(60)).unwrap();
        assert_eq!(queue.sleeps.get(), 0);
    }

    #[test]
    fn the_hybrid_wait_follows_the_mean() {
        let mut waiting = Waiting::new(WaitMode::Hybrid);
        waiting.learn(Duration::from_micros(80));
        assert_eq!(waiting.mean_ns, 80_000);
        for _ in 0..100 {
            waiting.learn(Duration::from_micros(40));
        }
        assert!((39_000..42_000).contains(&waiting.mean_ns), "{}", waiting.mean_ns);
        waiting.learn(Duration::MAX);
        assert!(waiting.mean_ns > 1 << 50);
    }
}
