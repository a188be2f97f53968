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
//!
//! A lane of one I/O at a time has a loop of its own ([`one_by_one`]), which does the same without
//! the tags' stack and the batch: what a batch prepares once, each of its I/Os would pay for. So has what
//! does more than keep its depth full ([`paced`]).

use super::control::{Control, Progress};
use super::extras::Extras;
use super::one_by_one;
use super::paced;
use super::verify::Verified;
use super::window::{LaneResult, Pass, Window, limits};
use crate::measure::{Clock, Direction, Recorder};
use crate::workload::{Generator, Sink};
use nvpoll_engine::{EngineError, IoStatus, Operation, OperationKind, Queue, Tag, Wait};
use std::hint::cold_path;

/// An I/O in flight.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    /// When, or [`NEVER`] once it is counted or has failed.
    pub(super) ticks: u64,
    pub(super) offset: u64,
    pub(super) kind: OperationKind,
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
    /// What it does beyond keeping its depth full.
    extras: Option<Box<Extras>>,
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
            extras: None,
        }
    }

    /// The same lane, with what it does beyond keeping its depth full.
    pub fn with(self, extras: Option<Extras>) -> Self {
        Self { extras: extras.map(Box::new), ..self }
    }

    /// What was seen.
    pub fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// What was checked of the content; `None` where nothing was to be.
    pub fn verified(&self) -> Option<Verified> {
        Some(self.extras.as_ref()?.verifier.as_ref()?.seen.clone())
    }

    /// Reads back and checks all that was written to be checked, after the window.
    ///
    /// # Errors
    /// When the engine fails or completes nothing for [`limits::STALL`].
    pub fn read_back<Q: Queue>(
        &mut self,
        queue: &mut Q,
        control: &Control,
    ) -> Result<(), EngineError> {
        let depth = self.sent.len().min(u16::MAX.into()) as u16;
        let Self { extras, recorder, .. } = self;
        match extras.as_mut().and_then(|extras| extras.verifier.as_mut()) {
            Some(verifier) => verifier.read_back(queue, depth, control, recorder),
            None => Ok(()),
        }
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
        if let Self { extras: Some(extras), clock, generator, recorder, sent, idle } = self {
            let lane = paced::Parts { clock, generator, recorder, sent, tags: &mut idle.tags };
            return paced::run(lane, queue, pass, now, extras, control, progress);
        }
        if self.sent.len() == 1 && window.ios > 0 {
            let Self { clock, generator, recorder, .. } = self;
            let lane = one_by_one::Parts { clock, generator, recorder };
            return one_by_one::run(lane, queue, pass, now, control, progress);
        }
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
                if let Some(result) =
                    pass.ring(now, self.idle.in_flight(), stop, &self.clock, &mut self.recorder)?
                {
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
            if queue.sleeps() {
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
    pub(super) fn count(&self, recorder: &mut Recorder, counts_from: u64, now: u64) {
        if self.ticks < counts_from {
            return;
        }
        record(recorder, self.kind, now.wrapping_sub(self.ticks));
    }

    /// Whether it has failed, while it is not counted yet.
    pub(super) fn has_failed(&self) -> bool {
        self.ticks == NEVER
    }

    /// It is counted.
    #[inline(always)]
    pub(super) fn forget(&mut self) {
        self.ticks = NEVER;
    }
}

/// Counts an operation that took `latency` ticks.
#[inline(always)]
pub(super) fn record(recorder: &mut Recorder, kind: OperationKind, latency: u64) {
    match kind {
        OperationKind::Read => recorder.record(Direction::Read, latency),
        OperationKind::Write => recorder.record(Direction::Write, latency),
        OperationKind::Flush => {
            cold_path();
            recorder.record_flush(latency);
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
pub(super) fn fail(sent: &mut [Sent], recorder: &mut Recorder, tag: Tag, status: IoStatus) {
    if let Some(sent) = sent.get_mut(tag.index()) {
        recorder.record_error(status, sent.offset);
        sent.ticks = NEVER;
    }
}

#[cold]
pub(super) fn not_in_flight() -> EngineError {
    EngineError::Failed(
        "the engine reported an I/O that is not in flight; the results of this run are void"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Rw, Workload};
    use nvpoll_engine::null::Null;
    use nvpoll_engine::{Engine, OpenOptions, QueueShape, Target};
    use std::time::Duration;

    /// Of one, which has a loop of its own, and of several.
    const DEPTHS: [u16; 2] = [1, 4];

    /// A queue that knows how many I/Os it was given, and what to say that is not so.
    struct Watched<Q, const SLEEPS: bool = false> {
        queue: Q,
        pushed: u64,
        also_reports: Option<Tag>,
        /// Looks that find nothing, from one that finds something to the next, and those left.
        patience: u32,
        left: u32,
        fails: Option<IoStatus>,
    }

    impl<Q: Queue, const SLEEPS: bool> Queue for Watched<Q, SLEEPS> {
        const SLEEPS: bool = SLEEPS;

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
            if self.left > 0 {
                self.left -= 1;
                return Ok(0);
            }
            self.left = self.patience;
            if let Some(tag) = self.also_reports {
                sink(tag, IoStatus::OK);
            }
            let fails = self.fails;
            self.queue.reap(wait, &mut |tag, status| sink(tag, fails.unwrap_or(status)))
        }

        fn fill(&mut self, _: Tag, _: &[u8]) {}

        fn copy_out(&self, _: Tag, _: &mut [u8]) {}
    }

    type WatchedNull<const SLEEPS: bool> = Watched<<Null as Engine>::Queue, SLEEPS>;

    fn watched<const SLEEPS: bool>(depth: u16) -> (Lane, WatchedNull<SLEEPS>, Clock) {
        let workload = Workload::new(Rw::RandRead, 4096, depth.into());
        let null = Null::open(&Target::Null, &OpenOptions::default()).unwrap();
        let geometry = null.geometry(4096);
        let span = workload.span(geometry.size_bytes, geometry.block_bytes).unwrap();
        let shape = QueueShape { worker: 0, depth: depth.into(), io_bytes: 4096 };
        let queue = null.queue(shape).unwrap();
        let clock = Clock::new();
        let lane = Lane::new(clock.clone(), Generator::new(&workload, span, 0, 0), depth);
        let queue =
            Watched { queue, pushed: 0, also_reports: None, patience: 0, left: 0, fails: None };
        (lane, queue, clock)
    }

    /// A run over several alarms, ended by its window, by a number of I/Os and by both.
    #[test]
    fn each_io_counts_once() {
        let three_alarms = limits::ALARM * 3 + Duration::from_millis(3);
        let ends = [(three_alarms, u64::MAX), (three_alarms, 1001), (Duration::MAX, 1)];
        for (depth, (time, ios)) in DEPTHS.into_iter().flat_map(|d| ends.map(|end| (d, end))) {
            let (mut lane, mut queue, clock) = watched::<false>(depth);
            let now = clock.now();
            let closes = now.saturating_add(clock.to_ticks(time));
            let window = Window { opens: now, closes, ios };
            let progress = Progress::default();
            lane.drive(&mut queue, window, &Control::new(), &progress).unwrap();
            assert_eq!(lane.into_recorder().count_all(), queue.pushed, "{depth}: {ios}");
            assert_eq!(progress.completed(), queue.pushed, "{depth}: {ios}");
            assert!(ios == u64::MAX || queue.pushed == ios, "{depth}: {ios}");
        }
    }

    #[test]
    fn a_ramp_and_what_drains_do_not_count() {
        for depth in DEPTHS {
            let (mut lane, mut queue, clock) = watched::<false>(depth);
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
    }

    /// An engine that sleeps and one that does not, each with looks that find nothing.
    /// The latencies' sum, as a part of what was in flight.
    fn kept_full<const SLEEPS: bool>(depth: u16) -> f64 {
        let (mut lane, mut queue, clock) = watched::<SLEEPS>(depth);
        (queue.patience, queue.left) = (100, 100);
        let now = clock.now();
        let after = |ms| now + clock.to_ticks(Duration::from_millis(ms));
        let window = Window { opens: after(25), closes: after(75), ios: u64::MAX };
        let progress = Progress::default();
        let result = lane.drive(&mut queue, window, &Control::new(), &progress).unwrap();
        let recorder = lane.into_recorder();
        let counted = recorder.count_all();
        let looks = counted / u64::from(depth);
        let at = format!("depth {depth}, sleeps: {SLEEPS}, {counted} counted, {result:?}");
        let full = u128::from(result.elapsed_ticks) * u128::from(depth);
        // What was in flight over the window is all of it but for a pass at each edge.
        assert!(result.in_flight_ticks.abs_diff(full) <= full / 20, "{at}");
        assert!(result.useful_polls.abs_diff(looks) <= 2, "{at}");
        assert!(result.empty_polls.abs_diff(looks * 100) <= 300, "{at}");
        assert_eq!(progress.completed(), queue.pushed, "{at}");
        let sum = recorder.latency(None, 1.0).map_or(0.0, |all| all.mean_ns * all.count as f64);
        assert!(sum <= full as f64 * 1.05, "{at}: {sum}");
        sum / full as f64
    }

    #[test]
    fn what_is_in_flight_is_counted_whether_it_is_slept_on_or_polled() {
        for depth in DEPTHS {
            // Little's law, but for the I/Os at the edges, which do not count: on a loaded machine
            // one of them may be most of the window.
            for kept_full in [kept_full::<false>, kept_full::<true>] {
                assert!((0..50).any(|_| kept_full(depth) > 0.8), "at a depth of {depth}");
            }
        }
    }

    #[test]
    fn a_failed_io_has_no_latency_and_a_stop_ends_the_run() {
        for depth in DEPTHS {
            let (mut lane, mut queue, clock) = watched::<false>(depth);
            queue.fails = Some(IoStatus::errno(5));
            let window = Window { opens: clock.now(), closes: u64::MAX, ios: u64::MAX };
            let (control, progress) = (Control::new(), Progress::default());
            control.stop();
            let result = lane.drive(&mut queue, window, &control, &progress).unwrap();
            assert!(result.stopped, "{depth}");
            let recorder = lane.into_recorder();
            assert_eq!((recorder.count_all(), recorder.errors().total()), (0, queue.pushed));
        }
    }

    #[test]
    fn a_completion_of_nothing_voids_the_run() {
        for depth in DEPTHS {
            for tag in [Tag(0), Tag(depth), Tag(u16::MAX)] {
                let (mut lane, mut queue, clock) = watched::<false>(depth);
                queue.also_reports = Some(tag);
                let window = Window { opens: clock.now(), closes: u64::MAX, ios: 100 };
                let progress = Progress::default();
                let error = lane.drive(&mut queue, window, &Control::new(), &progress).unwrap_err();
                assert!(error.to_string().contains("not in flight"), "{error}");
            }
        }
    }

    /// All are sent before the window opens.
    #[test]
    fn a_number_of_ios_that_ends_in_the_ramp_ends_the_run() {
        for depth in DEPTHS {
            let (mut lane, mut queue, clock) = watched::<false>(depth);
            let opens = clock.now() + clock.to_ticks(Duration::from_millis(5));
            let window = Window { opens, closes: u64::MAX, ios: 7 };
            let progress = Progress::default();
            lane.drive(&mut queue, window, &Control::new(), &progress).unwrap();
            assert_eq!((queue.pushed, lane.into_recorder().count_all()), (7, 0), "{depth}");
        }
    }
}
