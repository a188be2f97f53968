//! The loop for a lane of one I/O at a time: what the general one does, without what only a batch
//! needs.
//!
//! The I/O that completed is stamped, counted and followed by the next one, by the same one clock
//! read. One I/O is in flight from the first push to the drain, so that the integral of I/Os in
//! flight is the time that passed, taken at each alarm.

use super::control::{Control, Progress};
use super::drive::{not_in_flight, record};
use super::window::{LaneResult, Pass, limits};
use crate::measure::{Clock, Recorder};
use crate::workload::{Consumer, Generator};
use nvpoll_engine::{EngineError, IoStatus, Operation, Queue, Tag, Wait};
use std::ops::ControlFlow;

/// The lane's only tag.
const TAG: Tag = Tag(0);

/// What of a lane the loop works on.
pub(super) struct Parts<'a> {
    pub(super) clock: &'a Clock,
    pub(super) generator: &'a mut Generator,
    pub(super) recorder: &'a mut Recorder,
}

/// Runs `pass`, which has at least one I/O to send, from `now` on.
///
/// # Errors
/// As [`Lane::drive`](super::Lane::drive).
#[inline(never)]
pub(super) fn run<Q: Queue>(
    lane: Parts<'_>,
    queue: &mut Q,
    pass: Pass,
    now: u64,
    control: &Control,
    progress: &Progress,
) -> Result<LaneResult, EngineError> {
    let Parts { clock, generator, recorder } = lane;
    let left_before = pass.left;
    let mut turns = Turns {
        queue,
        recorder,
        clock,
        pass,
        now,
        left_before,
        in_flight_before: 0,
        control,
        progress,
        outcome: None,
    };
    generator.stream(&mut turns);
    turns.outcome.unwrap_or_else(|| Err(not_in_flight()))
}

/// One I/O after the other.
struct Turns<'a, Q> {
    queue: &'a mut Q,
    recorder: &'a mut Recorder,
    clock: &'a Clock,
    pass: Pass,
    /// When the last I/O completed and the one in flight was sent; it never goes back.
    now: u64,
    // Cold: as they were at the last alarm.
    left_before: u64,
    in_flight_before: u64,
    control: &'a Control,
    progress: &'a Progress,
    /// Set when the loop ends.
    outcome: Option<Result<LaneResult, EngineError>>,
}

/// Reaps once: how the I/O ended, if it did.
#[inline(always)]
fn look<Q: Queue>(queue: &mut Q) -> Result<Option<IoStatus>, EngineError> {
    let (mut returned, mut strays, mut status) = (0, 0, IoStatus::OK);
    queue.reap(Wait::Upto(limits::SLEEP), &mut |tag: Tag, how| {
        returned += 1;
        strays |= tag.0 ^ TAG.0;
        status = how;
    })?;
    match returned {
        0 => Ok(None),
        1 if strays == 0 => Ok(Some(status)),
        _ => Err(not_in_flight()),
    }
}

impl<Q: Queue> Consumer for Turns<'_, Q> {
    /// Only called while there are I/Os left.
    #[inline(always)]
    fn consume(&mut self, operation: Operation) -> ControlFlow<()> {
        self.pass.spend_one();
        let status = match self.transfer(operation) {
            Ok(status) => status,
            Err(error) => return self.end(Err(error)),
        };
        let sent = self.now;
        let now = self.clock.now().max(sent);
        self.now = now;
        if !status.is_ok() {
            self.recorder.record_error(status, operation.offset);
        } else if sent >= self.pass.counts_from {
            record(self.recorder, operation.kind, now.wrapping_sub(sent));
        }
        // After the I/O was counted: by the window as it was when it completed.
        if now >= self.pass.alarm { self.ring_idle() } else { ControlFlow::Continue(()) }
    }
}

impl<Q: Queue> Turns<'_, Q> {
    /// Sends one I/O and waits for its end.
    ///
    /// The first look stands outside of any loop, so that the compiler sees what was pushed come
    /// back.
    #[inline(always)]
    fn transfer(&mut self, operation: Operation) -> Result<IoStatus, EngineError> {
        self.queue.push(TAG, operation);
        self.queue.kick()?;
        match look(self.queue)? {
            Some(status) => Ok(status),
            None if self.queue.sleeps() => self.sleep_on(),
            None => self.poll_on(),
        }
    }

    /// Looks until something came back, and at the clock each [`limits::EMPTY_PASSES`].
    #[inline(always)]
    fn poll_on(&mut self) -> Result<IoStatus, EngineError> {
        loop {
            for _ in 0..limits::EMPTY_PASSES {
                self.pass.empty_polls += 1;
                std::hint::spin_loop();
                if let Some(status) = look(self.queue)? {
                    return Ok(status);
                }
            }
            self.wait_on()?;
        }
    }

    /// As [`poll_on`](Self::poll_on), of an engine that has slept before it came back with nothing.
    #[cold]
    #[inline(never)]
    fn sleep_on(&mut self) -> Result<IoStatus, EngineError> {
        loop {
            self.pass.empty_polls += 1;
            self.wait_on()?;
            if let Some(status) = look(self.queue)? {
                return Ok(status);
            }
        }
    }

    /// Looks at the clock while the I/O is in flight.
    fn wait_on(&mut self) -> Result<(), EngineError> {
        let now = self.clock.now();
        if now >= self.pass.alarm {
            self.ring(now, 1)?;
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self, outcome: Result<LaneResult, EngineError>) -> ControlFlow<()> {
        self.outcome = Some(outcome);
        ControlFlow::Break(())
    }

    /// The rare things, with `in_flight` I/Os in flight; the result when the run is over.
    #[cold]
    #[inline(never)]
    fn ring(&mut self, now: u64, in_flight: u64) -> Result<Option<LaneResult>, EngineError> {
        let pass = &mut self.pass;
        // Never back, whatever the clock does.
        let now = now.max(pass.last);
        // From alarm to alarm one was in flight all the time.
        pass.advance(now, 1);
        let sent = self.left_before - pass.left;
        let completed = (sent + self.in_flight_before).saturating_sub(in_flight);
        pass.completed += completed;
        // Each brought one.
        pass.useful_polls += completed;
        let stop = self.control.is_stopped();
        self.progress.publish(pass.completed);
        let result = pass.ring(now, in_flight as usize, stop, self.clock, self.recorder)?;
        (self.left_before, self.in_flight_before) = (pass.left, in_flight);
        Ok(result)
    }

    /// [`ring`](Self::ring) with nothing in flight, and whether to go on.
    #[cold]
    #[inline(never)]
    fn ring_idle(&mut self) -> ControlFlow<()> {
        loop {
            match self.ring(self.now, 0) {
                Ok(None) if self.pass.left > 0 => return ControlFlow::Continue(()),
                // All are sent, and the window is still to open.
                Ok(None) => self.now = self.clock.now().max(self.now),
                Ok(Some(result)) => return self.end(Ok(result)),
                Err(error) => return self.end(Err(error)),
            }
        }
    }
}
