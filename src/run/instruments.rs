//! Instruments: a lane's queue with a clock beside it.
//!
//! They stand around the queue, not in it: without `--instruments` the loop is compiled over the bare
//! queue, and nothing of this is there. The clock is read at the first push of a pass, after the doorbell,
//! before each look at the completions and after what a look found; what that costs is measured against
//! the engine that does nothing ([`cost_ns_per_io`]).

use super::control::{Control, Progress};
use super::drive::Lane;
use super::window::Window;
use crate::measure::{Clock, StageRecorder};
use crate::workload::{Generator, Rw, Span, Workload};
use nvpoll_engine::null::Null;
use nvpoll_engine::{
    Engine, EngineError, IoStatus, OpenOptions, Operation, OperationKind, Queue, QueueShape, Tag,
    Target, Wait,
};

/// I/Os of one go of the cost's measurement, and how many goes the least is taken of.
const COST_IOS: u64 = 100_000;
const COST_GOES: u32 = 5;

/// When an I/O was begun and its doorbell written, in ticks.
#[derive(Clone, Copy)]
struct Stamps {
    begun: u64,
    rung: u64,
    /// It moves data: a flush is no I/O of the latencies.
    counts: bool,
}

/// A queue under instruments.
pub(super) struct Instrumented<'a, Q> {
    queue: &'a mut Q,
    clock: Clock,
    window: Window,
    /// Every push writes its doorbell.
    is_each: bool,
    begun: u64,
    /// The last look, or when it ended with nothing left.
    looked: u64,
    /// By tag.
    stamps: Box<[Stamps]>,
    /// Of this pass, with room for every tag.
    pushed: Vec<Tag>,
    done: Vec<Tag>,
    seen: StageRecorder,
}

impl<'a, Q: Queue> Instrumented<'a, Q> {
    /// Around `queue`, of `depth` tags, for the I/Os inside `window`.
    pub fn new(queue: &'a mut Q, depth: u16, window: Window, clock: Clock, is_each: bool) -> Self {
        let depth = usize::from(depth);
        Self {
            queue,
            window,
            is_each,
            begun: 0,
            looked: clock.now(),
            clock,
            stamps: vec![Stamps { begun: 0, rung: 0, counts: false }; depth].into(),
            pushed: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            seen: StageRecorder::default(),
        }
    }

    /// What was seen.
    pub fn into_seen(self) -> StageRecorder {
        self.seen
    }

    /// Counts what one look found, which began at `look`.
    fn count(&mut self, look: u64) {
        let reaped = self.clock.now();
        let Self { stamps, done, looked, window, seen, .. } = self;
        for tag in done.iter() {
            let Some(stamps) = stamps.get(tag.index()) else { continue };
            let counts = stamps.counts && stamps.begun >= window.opens && reaped <= window.closes;
            if !counts {
                continue;
            }
            // Where no look lay between, all that is known is that it came after the doorbell.
            let missing = stamps.rung.max(*looked).min(look);
            seen.record([
                stamps.rung.saturating_sub(stamps.begun),
                missing.saturating_sub(stamps.rung),
                look.saturating_sub(missing),
                reaped.saturating_sub(look),
            ]);
        }
    }
}

/// Adds a tag where there is room, as there is for as many as the lane has.
fn add(tags: &mut Vec<Tag>, tag: Tag) {
    if tags.len() < tags.capacity() {
        tags.push(tag);
    }
}

impl<Q: Queue> Queue for Instrumented<'_, Q> {
    const SLEEPS: bool = Q::SLEEPS;

    fn sleeps(&self) -> bool {
        self.queue.sleeps()
    }

    fn push(&mut self, tag: Tag, operation: Operation) {
        if self.pushed.is_empty() || self.is_each {
            self.begun = self.clock.now();
        }
        self.queue.push(tag, operation);
        let rung = if self.is_each { self.clock.now() } else { 0 };
        let counts = operation.kind != OperationKind::Flush;
        if let Some(stamps) = self.stamps.get_mut(tag.index()) {
            *stamps = Stamps { begun: self.begun, rung, counts };
        }
        add(&mut self.pushed, tag);
    }

    fn kick(&mut self) -> Result<(), EngineError> {
        self.queue.kick()?;
        if self.pushed.is_empty() {
            return Ok(());
        }
        self.seen.record_send(self.pushed.len());
        if !self.is_each {
            let rung = self.clock.now();
            for tag in &self.pushed {
                if let Some(stamps) = self.stamps.get_mut(tag.index()) {
                    stamps.rung = rung;
                }
            }
        }
        self.pushed.clear();
        Ok(())
    }

    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        let look = self.clock.now();
        let done = &mut self.done;
        done.clear();
        let found = self.queue.reap(wait, &mut |tag, status| {
            if status.is_ok() {
                add(done, tag);
            }
            sink(tag, status);
        })?;
        if found > 0 {
            self.count(look);
        }
        self.looked = look;
        Ok(found)
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        self.queue.fill(tag, data);
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        self.queue.copy_out(tag, data);
    }

    fn doorbell_writes(&self) -> Option<u64> {
        self.queue.doorbell_writes()
    }
}

/// What the instruments cost an I/O in batches of `batch`, in nanoseconds: the loop on the engine that
/// does nothing, with them and without, in turn, the least of each.
///
/// # Errors
/// None that is to be expected: that engine has no target.
pub(super) fn cost_ns_per_io(clock: &Clock, batch: u16, is_each: bool) -> Result<f64, EngineError> {
    let batch = batch.max(1);
    let null = Null::open(&Target::Null, &OpenOptions::default())?;
    let mut least = [f64::INFINITY; 2];
    for _ in 0..COST_GOES {
        for (least, instruments) in least.iter_mut().zip([false, true]) {
            let shape = QueueShape { worker: 0, depth: batch.into(), io_bytes: 512 };
            let mut queue = null.queue(shape)?;
            let ticks = go(clock, &mut queue, batch, instruments.then_some(is_each))?;
            *least = least.min(clock.to_ns(ticks) / COST_IOS as f64);
        }
    }
    let [without, with] = least;
    Ok((with - without).max(0.0))
}

/// One go over `queue`, with instruments or without, in ticks.
fn go<Q: Queue>(
    clock: &Clock,
    queue: &mut Q,
    depth: u16,
    instruments: Option<bool>,
) -> Result<u64, EngineError> {
    let workload = Workload::new(Rw::RandRead, 512, depth.into());
    let span = Span { offset_bytes: 0, ios: 1 << 20 };
    let window = Window { opens: clock.now(), closes: u64::MAX, ios: COST_IOS };
    let mut lane = Lane::new(clock.clone(), Generator::new(&workload, span, 0, 0), depth);
    let (control, progress) = (Control::new(), Progress::default());
    let result = match instruments {
        None => lane.drive(queue, window, &control, &progress)?,
        Some(is_each) => {
            let mut queue = Instrumented::new(queue, depth, window, clock.clone(), is_each);
            lane.drive(&mut queue, window, &control, &progress)?
        }
    };
    Ok(result.elapsed_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Stage;
    use nvpoll_engine::userspace::Soft;
    use nvpoll_engine::{DoorbellMode, EngineOptions};

    const IOS: u64 = 20_000;

    #[test]
    fn the_stages_are_within_the_latency_and_cover_every_io() {
        for (depth, mode) in
            [(1, DoorbellMode::Batch), (8, DoorbellMode::Batch), (8, DoorbellMode::Each)]
        {
            let engine = EngineOptions { doorbell: Some(mode), ..EngineOptions::default() };
            let target = Target::Soft("soft:size=16M,stepped".parse().unwrap());
            let soft =
                Soft::open(&target, &OpenOptions { engine, ..OpenOptions::default() }).unwrap();
            let shape = QueueShape { worker: 0, depth: u32::from(depth), io_bytes: 4096 };
            let mut queue = soft.queue(shape).unwrap();
            let workload = Workload::new(Rw::RandRead, 4096, shape.depth);
            let span = workload.span(16 << 20, 512).unwrap();
            let clock = Clock::new();
            let mut lane = Lane::new(clock.clone(), Generator::new(&workload, span, 0, 0), depth);
            let window = Window { opens: clock.now(), closes: u64::MAX, ios: IOS };
            let is_each = mode == DoorbellMode::Each;
            let mut queue = Instrumented::new(&mut queue, depth, window, clock.clone(), is_each);
            lane.drive(&mut queue, window, &Control::new(), &Progress::default()).unwrap();
            let writes = queue.doorbell_writes().unwrap();
            let seen = queue.into_seen();
            let whole = lane.into_recorder().latency(None, 1.0).unwrap();
            let stages = Stage::ALL.map(|stage| seen.stage(stage).latency(None, 1.0).unwrap());
            assert!(stages.iter().all(|stage| stage.count == IOS), "{stages:?}");
            let sum: f64 = stages.iter().map(|stage| stage.mean_ns).sum();
            assert!(sum > 0.0 && sum <= whole.mean_ns, "{sum} of {whole:?}");
            assert_eq!(seen.batch_mean(), Some(f64::from(depth)), "{depth}, {mode}");
            let per_batch = if is_each { 2 * u64::from(depth) } else { 2 };
            assert_eq!(writes, IOS / u64::from(depth) * per_batch, "{depth}, {mode}");
        }
    }

    #[test]
    fn the_cost_is_a_time() {
        let cost_ns = cost_ns_per_io(&Clock::new(), 32, false).unwrap();
        assert!((0.0..100_000.0).contains(&cost_ns), "{cost_ns}");
    }
}
