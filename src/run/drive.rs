//! The loop: the one that every engine's I/O goes through, and every figure comes from.
//!
//! A pass submits with the tags that are free, takes what completed, reads the clock once, and
//! counts. The one clock read stamps these completions and the next submissions: a completion is
//! never stamped before it was seen, nor a submission after it was made, so that a latency is never
//! too short; it is too long by the pass's own work, some nanoseconds an I/O.
//!
//! Everything that is rare (the window's edges, stop requests, live figures, an engine that makes
//! no progress) hangs on one comparison of the clock with the next *alarm*.

use super::control::{Control, Progress};
use crate::measure::{Clock, Direction, Recorder};
use crate::workload::Generator;
use nvpoll_engine::{EngineError, IoStatus, Operation, OperationKind, Queue, Tag, Wait};

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

/// An I/O in flight.
#[derive(Clone, Copy)]
struct Sent {
    ticks: u64,
    operation: Operation,
}

/// One lane's memory, all of it made before the loop starts.
pub struct Lane {
    clock: Clock,
    generator: Generator,
    recorder: Recorder,
    /// By tag.
    sent: Box<[Sent]>,
    /// Last in, first out, so that the warmest tag is used next.
    free: Vec<Tag>,
    done: Vec<(Tag, IoStatus)>,
}

impl Lane {
    /// A lane that keeps `depth` I/Os of `generator`'s in flight.
    pub fn new(clock: Clock, generator: Generator, depth: u16) -> Self {
        let nothing = Operation { kind: OperationKind::Flush, offset: 0, bytes: 0 };
        Self {
            clock,
            generator,
            recorder: Recorder::new(),
            sent: vec![Sent { ticks: 0, operation: nothing }; depth.into()].into(),
            free: (0..depth).rev().map(Tag).collect(),
            done: Vec::with_capacity(depth.into()),
        }
    }

    /// What was seen.
    pub fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// Runs `window` on `queue`. Nothing is in flight when it returns a result.
    ///
    /// # Errors
    /// When the engine fails, reports an I/O that is not in flight, or completes nothing for
    /// [`limits::STALL`]. I/Os may then still be in flight; dropping the queue deals with them.
    #[inline(never)]
    pub fn drive<Q: Queue>(
        &mut self,
        queue: &mut Q,
        window: Window,
        control: &Control,
        progress: &Progress,
    ) -> Result<LaneResult, EngineError> {
        let mut now = self.clock.now();
        let mut pass = Pass::new(window, now);
        loop {
            self.submit(queue, &mut pass, now);
            queue.kick()?;
            now = self.reap(queue, &mut pass)?;
            self.account(&mut pass, now)?;
            if now >= pass.alarm || pass.left == 0 {
                let stop = control.is_stopped();
                progress.publish(pass.completed);
                if let Some(result) = pass.ring(now, stop, &self.clock)? {
                    return Ok(result);
                }
            }
        }
    }

    /// Submits with every free tag.
    #[inline(always)]
    fn submit<Q: Queue>(&mut self, queue: &mut Q, pass: &mut Pass, now: u64) {
        while pass.left > 0 {
            let Some(tag) = self.free.pop() else { break };
            let operation = self.generator.next();
            if let Some(sent) = self.sent.get_mut(tag.index()) {
                *sent = Sent { ticks: now, operation };
            }
            queue.push(tag, operation);
            pass.in_flight += 1;
            pass.left -= 1;
        }
    }

    /// Reaps until something completed or the clock is due; returns the time just after.
    #[inline(always)]
    fn reap<Q: Queue>(&mut self, queue: &mut Q, pass: &mut Pass) -> Result<u64, EngineError> {
        for _ in 0..limits::EMPTY_PASSES {
            let done = &mut self.done;
            let found = queue.reap(Wait::Upto(limits::SLEEP), &mut |tag, status| {
                // Never full: more reports than there are tags end the run in `account`.
                if done.len() < done.capacity() {
                    done.push((tag, status));
                }
            })?;
            if found > 0 {
                pass.useful_polls += 1;
                break;
            }
            pass.empty_polls += 1;
            if Q::SLEEPS {
                break;
            }
            std::hint::spin_loop();
        }
        Ok(self.clock.now())
    }

    /// Counts what completed and frees its tags.
    #[inline(always)]
    fn account(&mut self, pass: &mut Pass, now: u64) -> Result<(), EngineError> {
        pass.advance(now);
        for &(tag, status) in &self.done {
            let sent = self.sent.get(tag.index()).filter(|_| pass.in_flight > 0);
            let Some(Sent { ticks, operation }) = sent else { return Err(not_in_flight(tag)) };
            if !status.is_ok() {
                self.recorder.record_error(status, operation.offset);
            } else if *ticks >= pass.counts_from {
                let latency = now.saturating_sub(*ticks);
                match operation.kind {
                    OperationKind::Read => self.recorder.record(Direction::Read, latency),
                    OperationKind::Write => self.recorder.record(Direction::Write, latency),
                    OperationKind::Flush => self.recorder.record_flush(latency),
                }
            }
            self.free.push(tag);
            pass.in_flight -= 1;
        }
        pass.completed += self.done.len() as u64;
        self.done.clear();
        Ok(())
    }
}

#[cold]
fn not_in_flight(tag: Tag) -> EngineError {
    EngineError::Failed(format!(
        "the engine reported an I/O that is not in flight (tag {}); the results of this run are void",
        tag.0
    ))
}

/// Which part of a run the loop is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// I/O runs, nothing counts yet.
    Ramp,
    /// The measured window.
    Window,
    /// What is in flight completes, nothing counts any more.
    Drain,
}

/// What the loop keeps from pass to pass.
struct Pass {
    // Hot.
    in_flight: u32,
    left: u64,
    last: u64,
    alarm: u64,
    /// Submissions from here on count; the end of time outside the window.
    counts_from: u64,
    in_flight_ticks: u128,
    completed: u64,
    useful_polls: u64,
    empty_polls: u64,
    // Cold.
    window: Window,
    phase: Phase,
    result: LaneResult,
    progress: (u64, u64),
}

impl Pass {
    fn new(mut window: Window, now: u64) -> Self {
        let is_open = now >= window.opens;
        window.opens = window.opens.max(now);
        Self {
            in_flight: 0,
            left: window.ios,
            last: now,
            // At once: a window without a ramp opens with the first pass.
            alarm: now,
            counts_from: if is_open { now } else { u64::MAX },
            in_flight_ticks: 0,
            completed: 0,
            useful_polls: 0,
            empty_polls: 0,
            window,
            phase: if is_open { Phase::Window } else { Phase::Ramp },
            result: LaneResult::default(),
            progress: (0, now),
        }
    }

    /// Adds what was in flight since the last clock read.
    #[inline(always)]
    fn advance(&mut self, now: u64) {
        let ticks = now.saturating_sub(self.last);
        self.in_flight_ticks += u128::from(self.in_flight) * u128::from(ticks);
        self.last = now;
    }

    /// The rare things. Returns the result when the run is over.
    #[cold]
    #[inline(never)]
    fn ring(
        &mut self,
        now: u64,
        stop: bool,
        clock: &Clock,
    ) -> Result<Option<LaneResult>, EngineError> {
        if self.phase == Phase::Ramp && (now >= self.window.opens || stop) {
            self.open(now);
        }
        let over = now >= self.window.closes || (self.left == 0 && self.in_flight == 0);
        if self.phase == Phase::Window && (over || stop) {
            self.close(now, stop && !over);
        }
        if self.phase == Phase::Drain && self.in_flight == 0 {
            return Ok(Some(self.result));
        }
        self.check_progress(now, clock)?;
        let edge = match self.phase {
            Phase::Ramp => self.window.opens,
            Phase::Window => self.window.closes,
            Phase::Drain => u64::MAX,
        };
        self.alarm = now.saturating_add(clock.to_ticks(limits::ALARM)).min(edge);
        Ok(None)
    }

    fn open(&mut self, now: u64) {
        self.phase = Phase::Window;
        self.counts_from = now;
        (self.in_flight_ticks, self.useful_polls, self.empty_polls) = (0, 0, 0);
        self.window.opens = now;
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
    fn check_progress(&mut self, now: u64, clock: &Clock) -> Result<(), EngineError> {
        let (completed, since) = self.progress;
        if self.completed != completed || self.in_flight == 0 {
            self.progress = (self.completed, now);
            return Ok(());
        }
        let stalled = now.saturating_sub(since);
        if stalled < clock.to_ticks(limits::STALL) {
            return Ok(());
        }
        Err(EngineError::Failed(format!(
            "no I/O completed for {:.0} s while {} were in flight; the target hangs",
            clock.to_s(stalled),
            self.in_flight
        )))
    }
}
