//! The measured window: when it opens and closes, and the rare things that a loop does between.

use crate::measure::{Clock, Recorder};
use nvpoll_engine::EngineError;
use std::hint::cold_path;
use std::time::Duration;

/// Named limits of the loop.
pub mod limits {
    use std::time::Duration;

    /// From one alarm to the next: how late a stop request is seen, how often live figures move.
    pub const ALARM: Duration = Duration::from_millis(20);
    /// Longest sleep in an engine that sleeps.
    pub const SLEEP: Duration = Duration::from_millis(100);
    /// Longest time without any completion while I/Os are in flight. Linux's NVMe driver gives a
    /// command 30 s, then aborts it and at last resets the controller; that is to be seen first.
    pub const STALL: Duration = Duration::from_secs(75);
    /// Empty passes of a polling engine from one clock read to the next.
    pub const EMPTY_PASSES: u64 = 32;
}

/// When a lane measures, in ticks of the run's clock; the same for all lanes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// I/Os that are submitted from here on count.
    pub opens: u64,
    /// I/Os that are completed up to here count; nothing is submitted after it.
    pub closes: u64,
    /// Most I/Os that are submitted; when the last of them completed, the window closes.
    pub ios: u64,
}

impl Window {
    /// The window when the pass that opens it came at `now`, a little late: it keeps its length.
    fn opened(self, now: u64) -> Self {
        let late = now.saturating_sub(self.opens);
        Self { opens: now, closes: self.closes.saturating_add(late), ..self }
    }
}

/// What a lane brings back beside its recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneResult {
    /// The window's measured length.
    pub elapsed_ticks: u64,
    /// I/Os in flight x ticks, over the window.
    pub in_flight_ticks: u128,
    /// Passes in the window that found something.
    pub useful_polls: u64,
    /// Passes in the window that found nothing.
    pub empty_polls: u64,
    /// The window closed early, because a stop was asked for.
    pub stopped: bool,
}

/// Which part of a run the loop is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// I/O runs, nothing counts yet.
    Ramp,
    /// The measured window.
    Window,
    /// What is in flight completes, nothing counts any more.
    Drain,
}

/// An alarm that is due after every pass.
pub(super) const AT_ONCE: u64 = 0;

/// What the loop keeps from pass to pass.
pub(super) struct Pass {
    // Hot.
    pub(super) left: u64,
    pub(super) last: u64,
    pub(super) alarm: u64,
    /// Submissions from here on count; the end of time outside the window.
    pub(super) counts_from: u64,
    pub(super) in_flight_ticks: u128,
    pub(super) completed: u64,
    pub(super) useful_polls: u64,
    pub(super) empty_polls: u64,
    // Cold.
    window: Window,
    phase: Phase,
    /// When the series' step ends.
    step_ends: u64,
    result: LaneResult,
    progress: (u64, u64),
}

impl Pass {
    pub(super) fn new(mut window: Window, now: u64) -> Self {
        let is_open = now >= window.opens;
        if is_open {
            window = window.opened(now);
        }
        Self {
            left: window.ios,
            last: now,
            // A window without a ramp opens with the first pass.
            alarm: AT_ONCE,
            counts_from: if is_open { now } else { u64::MAX },
            in_flight_ticks: 0,
            completed: 0,
            useful_polls: 0,
            empty_polls: 0,
            window,
            phase: if is_open { Phase::Window } else { Phase::Ramp },
            // The first ring says when.
            step_ends: u64::MAX,
            result: LaneResult::default(),
            progress: (0, now),
        }
    }

    /// Takes the I/Os for `idle` tags from those that are left; how many tags get none.
    #[inline(always)]
    pub(super) fn spend(&mut self, idle: usize) -> usize {
        if self.left > idle as u64 {
            self.left -= idle as u64;
            return 0;
        }
        cold_path();
        // From here on each pass may bring the last completion.
        self.alarm = AT_ONCE;
        idle - std::mem::take(&mut self.left) as usize
    }

    /// Takes the one I/O that a lane of one sends next, of which there is one.
    #[inline(always)]
    pub(super) fn spend_one(&mut self) {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            cold_path();
            // From here on each pass may bring the last completion.
            self.alarm = AT_ONCE;
        }
    }

    /// Adds what was in flight since the last clock read.
    #[inline(always)]
    pub(super) fn advance(&mut self, now: u64, in_flight: usize) {
        let ticks = now.wrapping_sub(self.last);
        self.in_flight_ticks += in_flight as u128 * u128::from(ticks);
        self.last = now;
    }

    /// The rare things, when all that completed up to `now` is in `recorder`. Returns the result when the
    /// run is over.
    #[cold]
    #[inline(never)]
    pub(super) fn ring(
        &mut self,
        now: u64,
        in_flight: usize,
        stop: bool,
        clock: &Clock,
        recorder: &mut Recorder,
    ) -> Result<Option<LaneResult>, EngineError> {
        if self.phase == Phase::Ramp && (now >= self.window.opens || stop) {
            self.open(now);
        }
        let over = now >= self.window.closes || (self.left == 0 && in_flight == 0);
        if self.phase == Phase::Window && (over || stop) {
            recorder.cut();
            self.close(now, stop && !over);
        } else if self.phase == Phase::Window {
            self.cut(now, clock, recorder);
        }
        if self.phase == Phase::Drain && in_flight == 0 {
            return Ok(Some(self.result));
        }
        self.check_progress(now, in_flight, clock)?;
        let next = now.saturating_add(clock.to_ticks(limits::ALARM));
        self.alarm = match self.phase {
            Phase::Ramp if self.left > 0 => next.min(self.window.opens),
            Phase::Window if self.left > 0 => next.min(self.window.closes).min(self.step_ends),
            _ => AT_ONCE,
        };
        Ok(None)
    }

    fn open(&mut self, now: u64) {
        self.phase = Phase::Window;
        self.counts_from = now;
        (self.in_flight_ticks, self.useful_polls, self.empty_polls) = (0, 0, 0);
        self.window = self.window.opened(now);
    }

    /// Ends the series' steps that are over; how many at once is limited, since a series that is full has
    /// steps twice as long.
    fn cut(&mut self, now: u64, clock: &Clock, recorder: &mut Recorder) {
        let step = |recorder: &Recorder| {
            clock.to_ticks(Duration::from_secs(recorder.series().step_s())).max(1)
        };
        if self.step_ends == u64::MAX {
            self.step_ends = self.window.opens.saturating_add(step(recorder));
        }
        while now >= self.step_ends && self.step_ends < u64::MAX {
            recorder.cut();
            self.step_ends = self.step_ends.saturating_add(step(recorder));
        }
    }

    fn close(&mut self, now: u64, stopped: bool) {
        self.phase = Phase::Drain;
        self.counts_from = u64::MAX;
        self.left = 0;
        self.result = LaneResult {
            elapsed_ticks: now.saturating_sub(self.window.opens),
            in_flight_ticks: self.in_flight_ticks,
            useful_polls: self.useful_polls,
            empty_polls: self.empty_polls,
            stopped,
        };
    }

    /// Ends a run whose engine completes nothing any more.
    fn check_progress(
        &mut self,
        now: u64,
        in_flight: usize,
        clock: &Clock,
    ) -> Result<(), EngineError> {
        let (completed, since) = self.progress;
        if self.completed != completed || in_flight == 0 {
            self.progress = (self.completed, now);
            return Ok(());
        }
        let stalled = now.saturating_sub(since);
        if stalled < clock.to_ticks(limits::STALL) {
            return Ok(());
        }
        Err(EngineError::Failed(format!(
            "no I/O completed for {:.0} s while {in_flight} were in flight; the target hangs",
            clock.to_s(stalled),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Direction;

    /// A lane of one worker that completes an I/O every 100 ms, with two pauses of the whole process.
    #[test]
    fn a_window_is_cut_into_seconds() {
        let clock = Clock::new();
        let ms = |ms: u64| 1 + clock.to_ticks(Duration::from_millis(ms));
        let window = Window { opens: ms(500), closes: ms(9_700), ios: u64::MAX };
        let (mut pass, mut recorder) = (Pass::new(window, ms(0)), Recorder::new());
        let mut result = None;
        let pauses = |at: u64| (4_300..7_600).contains(&at);
        for at in (0..).step_by(100).filter(|at| !pauses(*at)) {
            let now = ms(at);
            pass.advance(now, 1);
            if pass.counts_from <= now && pass.counts_from < ms(at.saturating_sub(99)) {
                recorder.record(Direction::Read, 1000 + at);
                pass.completed += 1;
            }
            if now >= pass.alarm {
                result = pass.ring(now, 0, false, &clock, &mut recorder).unwrap();
            }
            if result.is_some() {
                break;
            }
        }
        let elapsed = clock.to_s(result.unwrap().elapsed_ticks);
        assert!((9.19..9.21).contains(&elapsed), "{elapsed}");
        let points = recorder.series().points();
        let ios: Vec<u64> = points.iter().map(|point| point.ios).collect();
        // Ten to a second; a pass at its very end may be on either side. In the pause, which three ends
        // of steps lie in, nothing completes but what the pass after it sees.
        assert_eq!(points.len(), 10, "{ios:?}");
        assert_eq!(ios.iter().sum::<u64>(), recorder.count_all());
        assert!(ios[..3].iter().all(|ios| (9..=11).contains(ios)), "{ios:?}");
        assert_eq!(ios[4..7], [0, 0, 0][..], "{ios:?}");
        assert!(ios[9] <= 3, "{ios:?}");
        assert!(points[0].max_ticks < points[1].max_ticks, "each has its own");
    }
}
