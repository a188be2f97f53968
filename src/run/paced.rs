//! The loop of an open load: I/Os are due at times of their own, whatever the target does.
//!
//! A latency runs from when its I/O was *due*, not from when it could be sent: a target that stalls
//! delays all that fell due meanwhile, and each of them shows it. (A loop that waits for the answer
//! before it asks again would count the stall once: coordinated omission.) What is due and waits for
//! a free tag is in flight as much as what was sent, so that Little's law holds.
//!
//! The loop polls, also on engines that could sleep: a sleep would be late for the next arrival.

use super::control::{Control, Progress};
use super::drive::{Sent, fail, not_in_flight};
use super::window::{LaneResult, Pass};
use crate::measure::{Clock, Recorder};
use crate::workload::{Arrivals, Generator};
use nvpoll_engine::{EngineError, Queue, Tag, Wait};

/// What of a lane the loop works on.
pub(super) struct Parts<'a> {
    pub(super) clock: &'a Clock,
    pub(super) generator: &'a mut Generator,
    pub(super) recorder: &'a mut Recorder,
    pub(super) sent: &'a mut [Sent],
    /// A stack of those that are idle: all of them at the start.
    pub(super) tags: &'a mut [Tag],
}

/// Runs `pass` from `now` on, with `arrivals` from then on.
///
/// # Errors
/// As [`Lane::drive`](super::Lane::drive).
#[inline(never)]
pub(super) fn run<Q: Queue>(
    lane: Parts<'_>,
    queue: &mut Q,
    mut pass: Pass,
    now: u64,
    arrivals: &mut Arrivals,
    control: &Control,
    progress: &Progress,
) -> Result<LaneResult, EngineError> {
    let Parts { clock, generator, recorder, sent, tags } = lane;
    let (mut now, mut idle) = (now, tags.len());
    let ticks_per_s = 1e9 / clock.ns_per_tick();
    let mut due = Due { at: now, part: 0.0 };
    due.wait(arrivals, ticks_per_s);
    loop {
        while idle > 0 && pass.left > 0 && due.at <= now {
            idle -= 1;
            let tag = tags.get(idle).copied().ok_or_else(not_in_flight)?;
            let slot = sent.get_mut(tag.index()).ok_or_else(not_in_flight)?;
            let operation = generator.next();
            *slot = Sent { ticks: due.at, offset: operation.offset, kind: operation.kind };
            // From when it was due, or the window opened, it was waiting.
            let waited = now.saturating_sub(due.at.max(pass.counts_from));
            pass.in_flight_ticks += u128::from(waited);
            queue.push(tag, operation);
            pass.spend_one();
            due.wait(arrivals, ticks_per_s);
        }
        queue.kick()?;
        let in_flight = tags.len() - idle;
        let mut returned = idle;
        queue.reap(Wait::No, &mut |tag, status| {
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
            slot.count(recorder, pass.counts_from, now);
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
            if let Some(result) = pass.ring(now, tags.len() - idle, stop, clock)? {
                return Ok(result);
            }
        }
    }
}

/// When the next I/O is due.
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
    use nvpoll_engine::{
        Engine, IoStatus, OpenOptions, Operation, OperationKind, QueueShape, Target,
    };
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
        let mut lane = Lane::new(clock.clone(), generator, 4).paced(Arrivals::new(&workload, 0));
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
        let mut lane = Lane::new(clock.clone(), generator, 2).paced(Arrivals::new(&workload, 0));
        let window = Window { opens: clock.now(), closes: u64::MAX, ios: 500 };
        let (control, progress) = (Control::new(), Progress::default());
        let result = lane.drive(&mut queue, window, &control, &progress).unwrap();
        let elapsed_s = clock.to_s(result.elapsed_ticks);
        assert!((0.004..1.0).contains(&elapsed_s), "500 at 100,000 a second: {elapsed_s}");
        assert_eq!((lane.into_recorder().count_all(), progress.completed()), (500, 500));
    }
}
