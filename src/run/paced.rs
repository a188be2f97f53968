//! The loop of a lane with [`Extras`]: what decides when an I/O is sent, or has an eye on its content.
//!
//! Of an open load, I/Os are due at times of their own, whatever the target does. A latency runs from
//! when its I/O was *due*, not from when it could be sent: a target that stalls delays all that fell
//! due meanwhile, and each of them shows it. (A loop that waits for the answer before it asks again
//! would count the stall once: coordinated omission.) What is due and waits for a free tag is in flight
//! as much as what was sent, so that Little's law holds. The loop then polls, also on engines that
//! could sleep: a sleep would be late for the next arrival.
//!
//! After so many I/Os of a lane with think times all that is in flight completes, and nothing is sent
//! for that long, as fio does it.

use super::control::{Control, Progress};
use super::drive::{Sent, fail, not_in_flight};
use super::extras::Extras;
use super::window::{LaneResult, Pass, limits};
use crate::measure::{Clock, Direction, Recorder};
use crate::workload::{Arrivals, Generator};
use nvpoll_engine::{EngineError, Operation, OperationKind, Queue, Tag, Wait};
use std::time::Duration;

/// What of a lane the loop works on.
pub(super) struct Parts<'a> {
    pub(super) clock: &'a Clock,
    pub(super) generator: &'a mut Generator,
    pub(super) recorder: &'a mut Recorder,
    pub(super) sent: &'a mut [Sent],
    /// A stack of those that are idle: all of them at the start.
    pub(super) tags: &'a mut [Tag],
}

/// Runs `pass` from `now` on, with arrivals and think times from then on.
///
/// # Errors
/// As [`Lane::drive`](super::Lane::drive).
#[inline(never)]
pub(super) fn run<Q: Queue>(
    lane: Parts<'_>,
    queue: &mut Q,
    mut pass: Pass,
    now: u64,
    extras: &mut Extras,
    control: &Control,
    progress: &Progress,
) -> Result<LaneResult, EngineError> {
    let Parts { clock, generator, recorder, sent, tags } = lane;
    let (mut now, mut idle) = (now, tags.len());
    let mut pace = Pace::new(extras, clock, now);
    // An operation whose block is in use.
    let mut held: Option<Operation> = None;
    let io_bytes = extras.io_bytes;
    loop {
        while idle > 0 && pass.left > 0 && pace.is_due(now, idle == tags.len()) {
            let tag = tags.get(idle - 1).copied().ok_or_else(not_in_flight)?;
            let operation = held.take().unwrap_or_else(|| generator.next());
            if !extras.prepare(queue, tag, &operation) {
                held = Some(operation);
                break;
            }
            idle -= 1;
            let slot = sent.get_mut(tag.index()).ok_or_else(not_in_flight)?;
            let due = pace.due_at(now);
            *slot = Sent { ticks: due, offset: operation.offset, kind: operation.kind };
            // From when it was due, or the window opened, it was waiting.
            let waited = now.saturating_sub(due.max(pass.counts_from));
            pass.in_flight_ticks += u128::from(waited);
            queue.push(tag, operation);
            pass.spend_one();
            pace.sent();
        }
        queue.kick()?;
        let in_flight = tags.len() - idle;
        let mut returned = idle;
        let full = idle == 0 || pass.left == 0 || held.is_some();
        let wait = pace.wait(now, in_flight, full);
        if in_flight == 0 && wait != Wait::No && queue.sleeps() {
            std::thread::sleep(pace.rest(now, clock));
        }
        queue.reap(if in_flight == 0 { Wait::No } else { wait }, &mut |tag, status| {
            if let Some(place) = tags.get_mut(returned) {
                *place = tag;
            }
            returned += 1;
            if !status.is_ok() {
                fail(sent, recorder, tag, status);
            }
        })?;
        now = clock.now().max(now);
        pass.advance(now, in_flight);
        for tag in tags.get(idle..returned).ok_or_else(not_in_flight)? {
            let slot = sent.get_mut(tag.index()).ok_or_else(not_in_flight)?;
            let bytes = extras.bytes_of(*tag);
            count(slot, bytes, recorder, pass.counts_from, now);
            if extras.verifies()
                && let Some(verifier) = &mut extras.verifier
            {
                let bytes = bytes.unwrap_or(io_bytes);
                let operation = Operation { kind: slot.kind, offset: slot.offset, bytes };
                verifier.done(queue, *tag, &operation, !slot.has_failed());
            }
            slot.forget();
        }
        match returned - idle {
            0 if in_flight > 0 => pass.empty_polls += 1,
            0 => std::hint::spin_loop(),
            found => {
                pass.useful_polls += 1;
                pass.completed += found as u64;
            }
        }
        idle = returned;
        if now >= pass.alarm {
            progress.publish(pass.completed);
            let stop = control.is_stopped();
            if let Some(result) = pass.ring(now, tags.len() - idle, stop, clock, recorder)? {
                return Ok(result);
            }
        }
    }
}

/// Counts what completed, and its bytes where they differ.
fn count(slot: &Sent, bytes: Option<u32>, recorder: &mut Recorder, counts_from: u64, now: u64) {
    slot.count(recorder, counts_from, now);
    let Some(bytes) = bytes.filter(|_| slot.ticks >= counts_from) else { return };
    match slot.kind {
        OperationKind::Read => recorder.add_bytes(Direction::Read, bytes),
        OperationKind::Write => recorder.add_bytes(Direction::Write, bytes),
        OperationKind::Flush => {}
    }
}

/// When the next I/O may be sent.
enum Pace {
    /// When a tag is idle.
    Full,
    /// When it is due.
    Open { arrivals: Arrivals, ticks_per_s: f64, due: Due },
    /// After a think time.
    Thinking { ticks: u64, every: u32, left: u32, until: u64 },
}

impl Pace {
    fn new(extras: &Extras, clock: &Clock, now: u64) -> Self {
        let ticks_per_s = 1e9 / clock.ns_per_tick();
        if let Some(arrivals) = &extras.arrivals {
            let mut arrivals = arrivals.clone();
            let mut due = Due { at: now, part: 0.0 };
            due.wait(&mut arrivals, ticks_per_s);
            return Self::Open { arrivals, ticks_per_s, due };
        }
        match extras.think {
            // Saturates.
            Some((seconds, every)) => Self::Thinking {
                ticks: (seconds * ticks_per_s) as u64,
                every,
                left: every,
                until: 0,
            },
            None => Self::Full,
        }
    }

    /// Whether an I/O may be sent now; `quiet`: none is in flight.
    fn is_due(&mut self, now: u64, quiet: bool) -> bool {
        match self {
            Self::Full => true,
            Self::Open { due, .. } => due.at <= now,
            Self::Thinking { ticks, every, left, until } => {
                if *left == 0 && quiet {
                    (*left, *until) = (*every, now.saturating_add(*ticks));
                }
                *left > 0 && now >= *until
            }
        }
    }

    /// When the I/O that is sent now was due.
    fn due_at(&self, now: u64) -> u64 {
        match self {
            Self::Open { due, .. } => due.at,
            _ => now,
        }
    }

    fn sent(&mut self) {
        match self {
            Self::Full => {}
            Self::Open { arrivals, ticks_per_s, due } => due.wait(arrivals, *ticks_per_s),
            Self::Thinking { left, .. } => *left = left.saturating_sub(1),
        }
    }

    /// Whether an engine that sleeps may sleep now.
    fn wait(&self, now: u64, in_flight: usize, full: bool) -> Wait {
        let sleeps = match self {
            Self::Open { .. } => false,
            Self::Full => in_flight > 0 && full,
            Self::Thinking { left, until, .. } => match in_flight {
                0 => now < *until,
                _ => full || *left == 0,
            },
        };
        if sleeps { Wait::Upto(limits::SLEEP) } else { Wait::No }
    }

    /// What is left of a think time, for who sleeps it.
    fn rest(&self, now: u64, clock: &Clock) -> Duration {
        let Self::Thinking { until, .. } = self else { return Duration::ZERO };
        let seconds = clock.to_s(until.saturating_sub(now));
        Duration::try_from_secs_f64(seconds).unwrap_or(limits::SLEEP).min(limits::SLEEP)
    }
}

/// When the next I/O of an open load is due.
struct Due {
    at: u64,
    /// Of a tick, so that a rate is kept however many I/Os there are.
    part: f64,
}

impl Due {
    /// Goes on by one gap.
    fn wait(&mut self, arrivals: &mut Arrivals, ticks_per_s: f64) {
        let ticks = arrivals.gap_s() * ticks_per_s + self.part;
        // Saturates, and is never negative.
        let whole = ticks as u64;
        self.part = ticks - whole as f64;
        self.at = self.at.saturating_add(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Control, Lane, Progress, Window};
    use super::*;
    use crate::workload::{RateProcess, Rw, Workload};
    use nvpoll_engine::null::Null;
    use nvpoll_engine::{Engine, IoStatus, OpenOptions, QueueShape, Target};
    use std::time::{Duration, Instant};

    /// A device that answers at once, but for one stall.
    struct Stalls {
        queue: <Null as Engine>::Queue,
        from: Instant,
        stall: std::ops::Range<Duration>,
        pushed: u64,
    }

    impl Queue for Stalls {
        fn push(&mut self, tag: Tag, operation: Operation) {
            assert_eq!(operation.kind, OperationKind::Read);
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
            if self.stall.contains(&self.from.elapsed()) {
                return Ok(0);
            }
            self.queue.reap(wait, sink)
        }

        fn fill(&mut self, _: Tag, _: &[u8]) {}

        fn copy_out(&self, _: Tag, _: &mut [u8]) {}
    }

    /// A second of 10,000 I/Os at depth 4, on a device that stalls for 200 ms of it.
    fn with_a_stall(rate: Option<u32>, process: RateProcess) -> (Recorder, LaneResult, Clock, u64) {
        let mut workload = Workload::new(Rw::RandRead, 4096, 4);
        (workload.rate_iops, workload.rate_process) = (rate, process);
        let null = Null::open(&Target::Null, &OpenOptions::default()).unwrap();
        let geometry = null.geometry(4096);
        let span = workload.span(geometry.size_bytes, geometry.block_bytes).unwrap();
        let queue = null.queue(QueueShape { worker: 0, depth: 4, io_bytes: 4096 }).unwrap();
        let clock = Clock::new();
        let generator = Generator::new(&workload, span, 0, 0);
        let extras = Extras::new(&workload, &generator, 0, 0);
        let mut lane = Lane::new(clock.clone(), generator, 4).with(extras);
        let ms = Duration::from_millis;
        let mut queue = Stalls { queue, from: Instant::now(), stall: ms(300)..ms(500), pushed: 0 };
        let now = clock.now();
        let window = Window { opens: now, closes: now + clock.to_ticks(ms(1000)), ios: u64::MAX };
        let (control, progress) = (Control::new(), Progress::default());
        let result = lane.drive(&mut queue, window, &control, &progress).unwrap();
        (lane.into_recorder(), result, clock, queue.pushed)
    }

    #[test]
    fn a_stall_shows_in_all_that_fell_due_meanwhile() {
        for process in [RateProcess::Linear, RateProcess::Poisson] {
            let (recorder, result, clock, _) = with_a_stall(Some(10_000), process);
            let latency = recorder.latency(None, clock.ns_per_tick()).unwrap();
            // 2,000 of 10,000 fell due in the stall, and had from 0 to 200 ms to wait: one of ten
            // waited 100 ms or more.
            let p90 = latency.percentiles[1].ns;
            assert!((60_000_000..250_000_000).contains(&p90), "{process:?}: {p90} ns");
            assert!((9_000..=11_000).contains(&latency.count), "{process:?}: {}", latency.count);
            // Little's law, with those that wait for a tag in flight as well.
            let sum = latency.mean_ns * latency.count as f64 / clock.ns_per_tick();
            let part = sum / result.in_flight_ticks as f64;
            assert!((0.9..1.1).contains(&part), "{process:?}: {part}");
        }
    }

    /// The same device, asked as fast as it answers: the stall is one I/O of each tag.
    #[test]
    fn a_closed_loop_would_hide_it() {
        let (recorder, _, clock, _) = with_a_stall(None, RateProcess::Linear);
        let latency = recorder.latency(None, clock.ns_per_tick()).unwrap();
        assert!(latency.percentiles[2].ns < 60_000_000, "p99: {}", latency.percentiles[2].ns);
    }

    #[test]
    fn a_number_of_ios_ends_an_open_load_too() {
        let mut workload = Workload::new(Rw::RandRead, 4096, 2);
        workload.rate_iops = Some(100_000);
        let null = Null::open(&Target::Null, &OpenOptions::default()).unwrap();
        let geometry = null.geometry(4096);
        let span = workload.span(geometry.size_bytes, geometry.block_bytes).unwrap();
        let mut queue = null.queue(QueueShape { worker: 0, depth: 2, io_bytes: 4096 }).unwrap();
        let clock = Clock::new();
        let generator = Generator::new(&workload, span, 0, 0);
        let extras = Extras::new(&workload, &generator, 0, 0);
        let mut lane = Lane::new(clock.clone(), generator, 2).with(extras);
        let window = Window { opens: clock.now(), closes: u64::MAX, ios: 500 };
        let (control, progress) = (Control::new(), Progress::default());
        let result = lane.drive(&mut queue, window, &control, &progress).unwrap();
        let elapsed_s = clock.to_s(result.elapsed_ticks);
        assert!((0.004..1.0).contains(&elapsed_s), "500 at 100,000 a second: {elapsed_s}");
        assert_eq!((lane.into_recorder().count_all(), progress.completed()), (500, 500));
    }
}
