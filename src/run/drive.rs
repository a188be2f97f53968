//! The loop: the one that every engine's I/O goes through, and every figure comes from.
//!
//! A pass sends again with the tags that came back, takes what completed, and reads the clock once.
//! The one clock read stamps the completions and the submissions that follow: a completion is never
//! stamped before it was seen, nor a submission after it was made, so that a latency is never too
//! short; it is too long by the pass's own work, some nanoseconds an I/O. An I/O is counted in the
//! turn that sends its tag again, so that one loop over the tags does all.
//!
//! Everything that is rare (the window's edges, stop requests, live figures, an engine that makes
//! no progress) hangs on one comparison of the clock with the next *alarm*.

use super::control::{Control, Progress};
use crate::measure::{Clock, Direction, Recorder};
use crate::workload::{Generator, Sink};
use nvpoll_engine::{EngineError, IoStatus, Operation, OperationKind, Queue, Tag, Wait};
use std::hint::cold_path;

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

/// An I/O in flight.
#[derive(Clone, Copy)]
struct Sent {
    /// When, or [`NEVER`] once it is counted or has failed.
    ticks: u64,
    offset: u64,
    kind: OperationKind,
}

/// Before any window: an I/O that was sent then does not count.
const NEVER: u64 = 0;

/// One lane's memory, all of it made before the loop starts.
pub struct Lane {
    clock: Clock,
    generator: Generator,
    recorder: Recorder,
    /// By tag.
    sent: Box<[Sent]>,
    idle: Idle,
}

/// The tags that are not in flight: a stack, so that the warmest are used next.
struct Idle {
    tags: Box<[Tag]>,
    /// How many of `tags` are idle, from its start on; not more than there are.
    count: usize,
}

impl Idle {
    fn in_flight(&self) -> usize {
        self.tags.len() - self.count
    }
}

impl Lane {
    /// A lane that keeps `depth` I/Os of `generator`'s in flight.
    pub fn new(clock: Clock, generator: Generator, depth: u16) -> Self {
        let tags: Box<[Tag]> = (0..depth).rev().map(Tag).collect();
        Self {
            clock,
            generator,
            recorder: Recorder::new(),
            sent: vec![Sent { ticks: NEVER, offset: 0, kind: OperationKind::Flush }; depth.into()]
                .into(),
            idle: Idle { count: tags.len(), tags },
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
            self.resend(queue, &mut pass, now)?;
            queue.kick()?;
            let in_flight = self.idle.in_flight();
            self.reap(queue, &mut pass)?;
            // Never back, whatever the clock does: differences need no check then.
            now = self.clock.now().max(now);
            pass.advance(now, in_flight);
            if now >= pass.alarm {
                // By the window as it was when they completed.
                self.count_idle(&pass, now)?;
                let stop = control.is_stopped();
                progress.publish(pass.completed);
                if let Some(result) = pass.ring(now, self.idle.in_flight(), stop, &self.clock)? {
                    return Ok(result);
                }
            }
        }
    }

    /// Counts what the idle tags brought back, and submits with them while there are I/Os left.
    #[inline(always)]
    fn resend<Q: Queue>(
        &mut self,
        queue: &mut Q,
        pass: &mut Pass,
        now: u64,
    ) -> Result<(), EngineError> {
        let stay = pass.spend(self.idle.count);
        if stay > 0 {
            self.count_idle(pass, now)?;
        }
        let Self { generator, recorder, sent, idle: Idle { tags, count }, .. } = self;
        let Some(used) = tags.get(stay..*count) else { return Err(not_in_flight()) };
        *count = stay;
        let counts_from = pass.counts_from;
        let mut turn = Turn { queue, recorder, sent, counts_from, now, stray: false };
        generator.assign(used.iter().copied(), &mut turn);
        if turn.stray { Err(not_in_flight()) } else { Ok(()) }
    }

    /// Counts what the idle tags brought back, and leaves them idle.
    #[cold]
    #[inline(never)]
    fn count_idle(&mut self, pass: &Pass, now: u64) -> Result<(), EngineError> {
        let Self { recorder, sent, idle: Idle { tags, count }, .. } = self;
        for tag in tags.iter().take(*count) {
            let Some(sent) = sent.get_mut(tag.index()) else { return Err(not_in_flight()) };
            sent.count(recorder, pass.counts_from, now);
            sent.ticks = NEVER;
        }
        Ok(())
    }

    /// Reaps until something completed or the clock is due.
    #[inline(always)]
    fn reap<Q: Queue>(&mut self, queue: &mut Q, pass: &mut Pass) -> Result<(), EngineError> {
        let Self { idle: Idle { tags, count }, sent, recorder, .. } = self;
        let mut returned = *count;
        for _ in 0..limits::EMPTY_PASSES {
            let found = queue.reap(Wait::Upto(limits::SLEEP), &mut |tag, status| {
                if let Some(place) = tags.get_mut(returned) {
                    *place = tag;
                }
                returned += 1;
                if !status.is_ok() {
                    fail(sent, recorder, tag, status);
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
        if returned > tags.len() {
            return Err(not_in_flight());
        }
        pass.completed += (returned - *count) as u64;
        *count = returned;
        Ok(())
    }
}

impl Sent {
    /// Counts the I/O, which completed at `now`, if it was sent since `counts_from`.
    #[inline(always)]
    fn count(&self, recorder: &mut Recorder, counts_from: u64, now: u64) {
        if self.ticks < counts_from {
            return;
        }
        let latency = now.wrapping_sub(self.ticks);
        match self.kind {
            OperationKind::Read => recorder.record(Direction::Read, latency),
            OperationKind::Write => recorder.record(Direction::Write, latency),
            OperationKind::Flush => {
                cold_path();
                recorder.record_flush(latency);
            }
        }
    }
}

/// A tag's turn: what it brought back is counted, and it is sent again.
struct Turn<'a, Q> {
    queue: &'a mut Q,
    recorder: &'a mut Recorder,
    sent: &'a mut [Sent],
    counts_from: u64,
    now: u64,
    /// There was a tag that is none of the lane's.
    stray: bool,
}

impl<Q: Queue> Sink for Turn<'_, Q> {
    #[inline(always)]
    fn take(&mut self, tag: Tag, operation: Operation) {
        let Some(sent) = self.sent.get_mut(tag.index()) else {
            cold_path();
            self.stray = true;
            return;
        };
        sent.count(self.recorder, self.counts_from, self.now);
        *sent = Sent { ticks: self.now, offset: operation.offset, kind: operation.kind };
        self.queue.push(tag, operation);
    }
}

/// An I/O that failed: it is counted by its status, and has no latency.
#[cold]
fn fail(sent: &mut [Sent], recorder: &mut Recorder, tag: Tag, status: IoStatus) {
    if let Some(sent) = sent.get_mut(tag.index()) {
        recorder.record_error(status, sent.offset);
        sent.ticks = NEVER;
    }
}

#[cold]
fn not_in_flight() -> EngineError {
    EngineError::Failed(
        "the engine reported an I/O that is not in flight; the results of this run are void"
            .to_owned(),
    )
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

/// An alarm that is due after every pass.
const AT_ONCE: u64 = 0;

/// What the loop keeps from pass to pass.
struct Pass {
    // Hot.
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
            result: LaneResult::default(),
            progress: (0, now),
        }
    }

    /// Takes the I/Os for `idle` tags from those that are left; how many tags get none.
    #[inline(always)]
    fn spend(&mut self, idle: usize) -> usize {
        if self.left > idle as u64 {
            self.left -= idle as u64;
            return 0;
        }
        cold_path();
        // From here on each pass may bring the last completion.
        self.alarm = AT_ONCE;
        idle - std::mem::take(&mut self.left) as usize
    }

    /// Adds what was in flight since the last clock read.
    #[inline(always)]
    fn advance(&mut self, now: u64, in_flight: usize) {
        let ticks = now.wrapping_sub(self.last);
        self.in_flight_ticks += in_flight as u128 * u128::from(ticks);
        self.last = now;
    }

    /// The rare things. Returns the result when the run is over.
    #[cold]
    #[inline(never)]
    fn ring(
        &mut self,
        now: u64,
        in_flight: usize,
        stop: bool,
        clock: &Clock,
    ) -> Result<Option<LaneResult>, EngineError> {
        if self.phase == Phase::Ramp && (now >= self.window.opens || stop) {
            self.open(now);
        }
        let over = now >= self.window.closes || (self.left == 0 && in_flight == 0);
        if self.phase == Phase::Window && (over || stop) {
            self.close(now, stop && !over);
        }
        if self.phase == Phase::Drain && in_flight == 0 {
            return Ok(Some(self.result));
        }
        self.check_progress(now, in_flight, clock)?;
        let next = now.saturating_add(clock.to_ticks(limits::ALARM));
        self.alarm = match self.phase {
            Phase::Ramp if self.left > 0 => next.min(self.window.opens),
            Phase::Window if self.left > 0 => next.min(self.window.closes),
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
    use crate::workload::{Rw, Workload};
    use nvpoll_engine::null::Null;
    use nvpoll_engine::{Engine, OpenOptions, QueueShape, Target};
    use std::time::Duration;

    const DEPTH: u16 = 4;

    /// A queue that knows how many I/Os it was given, and what to say that is not so.
    struct Watched<Q> {
        queue: Q,
        pushed: u64,
        also_reports: Option<Tag>,
    }

    impl<Q: Queue> Queue for Watched<Q> {
        fn push(&mut self, tag: Tag, operation: Operation) {
            self.pushed += 1;
            self.queue.push(tag, operation);
        }

        fn kick(&mut self) -> Result<(), EngineError> {
            self.queue.kick()
        }

        fn reap(
            &mut self,
            wait: Wait,
            sink: &mut impl FnMut(Tag, IoStatus),
        ) -> Result<u32, EngineError> {
            if let Some(tag) = self.also_reports {
                sink(tag, IoStatus::OK);
            }
            self.queue.reap(wait, sink)
        }

        fn fill(&mut self, _: Tag, _: &[u8]) {}

        fn copy_out(&self, _: Tag, _: &mut [u8]) {}
    }

    fn watched() -> (Lane, Watched<<Null as Engine>::Queue>, Clock) {
        let workload = Workload::new(Rw::RandRead, 4096, DEPTH.into());
        let null = Null::open(&Target::Null, &OpenOptions::default()).unwrap();
        let geometry = null.geometry(4096);
        let span = workload.span(geometry.size_bytes, geometry.block_bytes).unwrap();
        let shape = QueueShape { worker: 0, depth: DEPTH.into(), io_bytes: 4096 };
        let queue = null.queue(shape).unwrap();
        let clock = Clock::new();
        let lane = Lane::new(clock.clone(), Generator::new(&workload, span, 0, 0), DEPTH);
        (lane, Watched { queue, pushed: 0, also_reports: None }, clock)
    }

    /// A run over several alarms, ended by its window, by a number of I/Os and by both.
    #[test]
    fn each_io_counts_once() {
        let three_alarms = limits::ALARM * 3 + Duration::from_millis(3);
        for (time, ios) in [(three_alarms, u64::MAX), (three_alarms, 1001), (Duration::MAX, 1)] {
            let (mut lane, mut queue, clock) = watched();
            let now = clock.now();
            let closes = now.saturating_add(clock.to_ticks(time));
            let window = Window { opens: now, closes, ios };
            let progress = Progress::default();
            lane.drive(&mut queue, window, &Control::new(), &progress).unwrap();
            assert_eq!(lane.into_recorder().count_all(), queue.pushed, "{ios}");
            assert_eq!(progress.completed(), queue.pushed, "{ios}");
            assert!(ios == u64::MAX || queue.pushed == ios, "{ios}");
        }
    }

    #[test]
    fn a_ramp_and_what_drains_do_not_count() {
        let (mut lane, mut queue, clock) = watched();
        let now = clock.now();
        let after = |ms| now + clock.to_ticks(Duration::from_millis(ms));
        let window = Window { opens: after(30), closes: after(60), ios: u64::MAX };
        let progress = Progress::default();
        let result = lane.drive(&mut queue, window, &Control::new(), &progress).unwrap();
        let counted = lane.into_recorder().count_all();
        assert!(counted > 0 && counted < queue.pushed, "{counted} of {}", queue.pushed);
        let elapsed = clock.to_s(result.elapsed_ticks);
        assert!((0.03..1.0).contains(&elapsed), "{elapsed}");
    }

    #[test]
    fn a_completion_of_nothing_voids_the_run() {
        for tag in [Tag(0), Tag(DEPTH), Tag(u16::MAX)] {
            let (mut lane, mut queue, clock) = watched();
            queue.also_reports = Some(tag);
            let window = Window { opens: clock.now(), closes: u64::MAX, ios: 100 };
            let progress = Progress::default();
            let error = lane.drive(&mut queue, window, &Control::new(), &progress).unwrap_err();
            assert!(error.to_string().contains("not in flight"), "{error}");
        }
    }
}
