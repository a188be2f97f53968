//! One measurement: an engine, its targets, a workload, from opening to the merged figures.
//!
//! Every lane (one worker on one target) has a thread of its own, pinned, which makes its queue,
//! fills its buffers, and waits. When all are ready they get one window, in ticks of one clock, and
//! the machine's processor time is taken over the same window.
//!
//! # What it does not do
//!
//! It binds no drive and asks nobody's leave: whoever calls it has checked the targets. It prints
//! nothing; live figures go to a callback.

mod aside;
mod control;
mod cpus;
mod drive;
mod extras;
#[cfg_attr(windows, path = "hands_windows.rs")]
mod hands;
mod harness;
mod instruments;
mod layout;
mod many;
mod memory;
mod merge;
mod one_by_one;
mod paced;
mod precondition;
mod session;
mod verify;
mod window;

pub use control::{Control, Progress};
pub use cpus::{CpuList, CpuListError};
pub use drive::Lane;
pub use extras::Extras;
pub use hands::HostHands;
pub use harness::HarnessNs;
pub use many::Many;
pub use memory::Locked;
pub use session::{Column, Hands, Observer, Outcome, run_plan};
pub use verify::Verified;
pub use window::{LaneResult, Window, limits};

use crate::measure::{
    Accounts, Clock, CpuUse, Doorbells, InstrumentsSeen, Recorder, StageRecorder,
};
use crate::workload::{Filler, SyncMode, Workload};
use aside::Watcher;
use instruments::Instrumented;
use layout::{LanePlan, plan_lanes};
use merge::merge;
use nvpoll_engine::{
    Caution, Condition, DoorbellMode, Engine, EngineError, EngineKind, EngineOptions, Geometry,
    OpenOptions, Queue, Quirks, Tag, Target, TransportOptions, Visitor, WriteMode,
};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a measurement takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// I/O before the window opens, in seconds.
    pub ramp_s: f64,
    /// The window, in seconds.
    pub runtime_s: f64,
    /// Instead of a time: I/Os of each worker, after which it ends.
    #[serde(default)]
    pub number_ios: Option<u64>,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// Targets, resolved and checked, each with the namespace that is meant.
    pub targets: &'a [(Target, u32)],
    /// What is done on each.
    pub workload: &'a Workload,
    /// For how long.
    pub timing: Timing,
    /// Processors that the workers are pinned to, in turn.
    pub cpus: &'a CpuList,
    /// How PCI functions are reached.
    pub transport: TransportOptions,
    /// What controllers need, where that was said.
    pub quirks: Option<Quirks>,
    /// How the engine is told to run.
    pub engine: EngineOptions,
    /// The stages of each I/O are timed, where the engine has doorbells.
    pub instruments: bool,
    /// Drives that one worker has a queue on, at least 1.
    pub drives_per_worker: u32,
    /// PCI addresses of the drives, as far as they are known.
    pub addresses: &'a [String],
}

impl Job<'_> {
    /// Whether each I/O has a doorbell write of its own.
    fn is_each(&self) -> bool {
        self.engine.doorbell == Some(DoorbellMode::Each)
    }
}

/// What one measurement saw.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// All lanes' I/Os.
    pub recorder: Recorder,
    /// Scale of the recorder's ticks.
    pub ns_per_tick: f64,
    /// I/Os a second of each target, in the targets' order.
    pub iops_by_target: Vec<f64>,
    /// The lanes' measured windows in seconds, each weighted with its I/Os a second: a lane's closes
    /// with its first look at the clock after the end, and lanes that sleep look at different times. So
    /// I/Os by this are the sum of the lanes' I/Os a second.
    pub elapsed_s: f64,
    /// Mean I/Os in flight, the sum over lanes, counted at each pass.
    pub in_flight_mean: f64,
    /// Passes that found something, and that found nothing.
    pub polls: (u64, u64),
    /// Doorbell writes of the whole run, ramp and drain included, where the engine has doorbells.
    pub doorbells: Option<Doorbells>,
    /// What the instruments saw, where there were any.
    pub instruments: Option<InstrumentsSeen>,
    /// Processor time over the window.
    pub cpu: CpuUse,
    /// Energy, cycles, interrupts, switches and what else went on over the window.
    pub accounts: Accounts,
    /// The state of each target before and after the lanes ran, in the targets' order.
    pub conditions: Vec<[Condition; 2]>,
    /// How the engine ran.
    pub facts: Vec<(String, String)>,
    /// What the engine has to say against the figures.
    pub cautions: Vec<Caution>,
    /// What each target is like, in the targets' order.
    pub geometries: Vec<Geometry>,
    /// A stop was asked for before the window's end.
    pub stopped: bool,
    /// What was checked of the content; `None` where nothing was to be.
    pub verified: Option<Verified>,
}

/// Live figures, some times a second.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Part of ramp and window that has passed, or of the I/Os that are to be done, 0 to 1.
    pub part: f64,
    /// I/Os a second since the last call.
    pub iops: f64,
}

/// From one live figure to the next.
const LIVE_EVERY: Duration = Duration::from_millis(250);

/// Measures `job` with engine `kind`.
///
/// # Errors
/// When a target cannot be opened, the workload does not fit it, or a lane fails; all lanes have
/// ended then.
pub fn measure(
    kind: EngineKind,
    job: &Job<'_>,
    control: &Control,
    live: &mut dyn FnMut(Live),
) -> Result<Measurement, EngineError> {
    kind.with(Measure { job, control, live, watcher: Watcher::new(job) })
}

struct Measure<'a, 'b> {
    job: &'a Job<'a>,
    control: &'a Control,
    live: &'b mut dyn FnMut(Live),
    watcher: Watcher,
}

impl Visitor for Measure<'_, '_> {
    type Output = Result<Measurement, EngineError>;

    fn visit<E: Engine>(self) -> Self::Output {
        let options = |nsid| OpenOptions {
            writable: self.job.workload.rw.writes(),
            writes: write_mode(self.job.workload),
            namespace: nsid,
            transport: self.job.transport,
            unchecked: false,
            quirks: self.job.quirks,
            engine: self.job.engine,
        };
        let open = |(target, nsid): &(Target, u32)| E::open(target, &options(*nsid));
        let engines = self.job.targets.iter().map(open).collect::<Result<Vec<E>, _>>()?;
        let plans = plan_lanes(self.job, &engines)?;
        if const { E::INFO.moves_data } {
            memory::check(&plans)?;
        }
        run_lanes(self.job, &engines, &plans, self.control, self.live, self.watcher)
    }
}

/// What a workload's writes do.
pub fn write_mode(workload: &Workload) -> WriteMode {
    match workload.sync {
        _ if workload.rw.trims() => WriteMode::Deallocate,
        SyncMode::None => WriteMode::Write,
        SyncMode::Dsync => WriteMode::Dsync,
        SyncMode::Sync => WriteMode::Sync,
    }
}

/// What a lane's thread brings back.
struct LaneSeen {
    recorder: Recorder,
    result: LaneResult,
    doorbells: Option<Doorbells>,
    stages: Option<StageRecorder>,
    /// Of several drives, the I/Os that each completed, ramp included.
    completed: Vec<u64>,
    verified: Option<Verified>,
}

impl LaneSeen {
    /// Which part of the I/Os was each drive's.
    fn shares(&self) -> Vec<f64> {
        let all = self.completed.iter().sum::<u64>();
        match all {
            0 => vec![1.0],
            all => self.completed.iter().map(|own| *own as f64 / all as f64).collect(),
        }
    }
}

type LaneOutcome = Result<LaneSeen, EngineError>;

/// Starts the lanes, gives them their window, and merges what they saw.
fn run_lanes<E: Engine>(
    job: &Job<'_>,
    engines: &[E],
    plans: &[LanePlan],
    control: &Control,
    live: &mut dyn FnMut(Live),
    mut watcher: Watcher,
) -> Result<Measurement, EngineError> {
    let processors: Vec<usize> = plans.iter().filter_map(|plan| plan.cpu).collect();
    watcher.begin(engines, &processors);
    let clock = Clock::new();
    let run = run_id();
    let progress: Vec<Progress> = plans.iter().map(|_| Progress::default()).collect();
    thread::scope(|scope| {
        let (ready, all_ready) = mpsc::channel();
        let mut starts = Vec::new();
        let mut handles = Vec::new();
        for (plan, progress) in plans.iter().zip(&progress) {
            let (start, go) = mpsc::channel();
            starts.push(start);
            let (ready, clock) = (ready.clone(), clock.clone());
            let engines = engines.get(plan.targets.clone()).unwrap_or_default();
            let world = World { job, run, control, progress };
            handles.push(scope.spawn(move || lane(engines, plan, clock, &ready, &go, &world)));
        }
        drop(ready);
        let all_ready: bool =
            all_ready.iter().take(plans.len()).filter(|ready| *ready).count() == plans.len();
        let mut used = None;
        if all_ready {
            watcher.prepare();
            let window = window(&clock, &job.timing);
            starts.iter().for_each(|start| start.send(window).unwrap_or_default());
            // What was written may still be read back then, which is not measured.
            let is_over = |(handle, progress): (&thread::ScopedJoinHandle<'_, _>, &Progress)| {
                handle.is_finished() || progress.is_over()
            };
            let finished = || handles.iter().zip(&progress).all(is_over);
            let check = || engines.iter().try_for_each(Engine::check);
            let look = Look { finished: &finished, check: &check };
            used = Some(watch(&job.timing, &progress, control, &look, live, &mut watcher));
        }
        // A lane that is still waiting for its window ends when its sender is gone.
        drop(starts);
        let outcomes: Vec<LaneOutcome> = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| Err(panicked())))
            .collect();
        merge(job, engines, plans, outcomes, &clock, watcher.end(engines, used))
    })
}

fn panicked() -> EngineError {
    EngineError::Failed("a worker panicked; please report it with the lines above".to_owned())
}

fn window(clock: &Clock, timing: &Timing) -> Window {
    let now = clock.now();
    match timing.number_ios {
        Some(ios) => Window { opens: now, closes: u64::MAX, ios },
        None => {
            let ticks = |seconds: f64| clock.to_ticks(Duration::from_secs_f64(seconds));
            let opens = now.saturating_add(ticks(timing.ramp_s));
            let closes = opens.saturating_add(ticks(timing.runtime_s));
            Window { opens, closes, ios: u64::MAX }
        }
    }
}

/// Tells what this run writes from what others wrote.
fn run_id() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The lower half of the nanoseconds since then, which suffices until the year 2554.
    now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(48)
}

/// What all lanes of a run share, and one's own progress.
struct World<'a> {
    job: &'a Job<'a>,
    run: u64,
    control: &'a Control,
    progress: &'a Progress,
}

/// A lane's thread.
fn lane<E: Engine>(
    engines: &[E],
    plan: &LanePlan,
    clock: Clock,
    ready: &Sender<bool>,
    go: &Receiver<Window>,
    world: &World<'_>,
) -> LaneOutcome {
    let workload = world.job.workload;
    if let Some(cpu) = plan.cpu {
        cpus::pin(cpu);
    }
    let make = |engine: &E| {
        engine.queue(plan.shape).map(|mut queue| {
            if const { E::INFO.moves_data } && workload.rw.writes() {
                fill(&mut queue, plan, workload);
            }
            queue
        })
    };
    let made: Result<Vec<E::Queue>, EngineError> = engines.iter().map(make).collect();
    let extras = Extras::new(workload, &plan.generator, plan.stream, world.run);
    // Nobody listens any more only when another lane has failed.
    let _ = ready.send(made.is_ok());
    let mut queues = made?;
    let Ok(window) = go.recv() else {
        return Err(EngineError::Failed("another worker could not start".to_owned()));
    };
    let depth = plan.shape.depth.min(u16::MAX.into()) as u16;
    let too_many = || {
        EngineError::Usage(format!(
            "--drives-per-worker: {} x {depth} I/Os in flight are more than one worker keeps (65535); lower it or --iodepth",
            engines.len()
        ))
    };
    let tags = u16::try_from(queues.len() * usize::from(depth)).map_err(|_| too_many())?;
    let lane = Lane::new(clock.clone(), plan.generator.clone(), tags).with(extras);
    if let [queue] = &mut queues[..] {
        return drive_lane::<E, _>(lane, queue, tags, clock, window, world);
    }
    // Compiled for those alone that can share a worker.
    if const { !E::INFO.has_doorbells() } {
        return Err(EngineError::Usage(format!(
            "--drives-per-worker: engine {} has a worker for each drive",
            E::INFO.name
        )));
    }
    let mut many = Many::new(queues, depth).ok_or_else(too_many)?;
    let seen = drive_lane::<E, _>(lane, &mut many, tags, clock, window, world)?;
    Ok(LaneSeen { completed: many.completed().to_vec(), ..seen })
}

/// Runs a lane over its queue, with instruments or without.
fn drive_lane<E: Engine, Q: Queue>(
    mut lane: Lane,
    queue: &mut Q,
    depth: u16,
    clock: Clock,
    window: Window,
    World { job, control, progress, .. }: &World<'_>,
) -> LaneOutcome {
    let (result, stages) = if const { E::INFO.has_doorbells() } && job.instruments {
        let is_each = job.is_each();
        let mut queue = Instrumented::new(queue, depth, window, clock, is_each);
        let result = lane.drive(&mut queue, window, control, progress)?;
        (result, Some(queue.into_seen()))
    } else {
        (lane.drive(queue, window, control, progress)?, None)
    };
    progress.end();
    let of_run = |writes| Doorbells { writes, ios: progress.completed() };
    let doorbells = queue.doorbell_writes().map(of_run);
    lane.read_back(queue, control)?;
    let (completed, verified) = (Vec::new(), lane.verified());
    Ok(LaneSeen { recorder: lane.into_recorder(), result, doorbells, stages, completed, verified })
}

/// Fills each tag's buffer with bytes of its own.
fn fill<Q: Queue>(queue: &mut Q, plan: &LanePlan, workload: &Workload) {
    let mut bytes = vec![0; plan.shape.io_bytes as usize];
    let mut filler = Filler::new(workload.buffers, plan.stream);
    for tag in 0..plan.shape.depth.min(u16::MAX.into()) as u16 {
        filler.fill(&mut bytes);
        queue.fill(Tag(tag), &bytes);
    }
}

/// What is looked at while a window is open.
struct Look<'a> {
    /// All lanes have ended.
    finished: &'a dyn Fn() -> bool,
    /// The targets are still ours to use.
    check: &'a dyn Fn() -> Result<(), EngineError>,
}

/// Watches a window from outside: live figures, and the machine's processor time over it. A target
/// that is not ours to use any more ends the run in good order.
fn watch(
    timing: &Timing,
    progress: &[Progress],
    control: &Control,
    look: &Look<'_>,
    live: &mut dyn FnMut(Live),
    watcher: &mut Watcher,
) -> (CpuUse, Accounts) {
    let by_count = timing.number_ios.is_some();
    let start = Instant::now();
    let ramp = Duration::from_secs_f64(if by_count { 0.0 } else { timing.ramp_s });
    let whole = ramp + Duration::from_secs_f64(timing.runtime_s);
    watcher.open();
    let mut opened = ramp.is_zero();
    let mut last = (start, 0);
    while !(look.finished)() && !control.is_stopped() && (by_count || start.elapsed() < whole) {
        let elapsed = start.elapsed();
        if !opened && elapsed >= ramp {
            watcher.open();
            opened = true;
        }
        if !opened {
            watcher.approach(ramp.saturating_sub(elapsed));
        }
        if last.0.elapsed() >= LIVE_EVERY {
            let completed = progress.iter().map(Progress::completed).sum::<u64>();
            let iops = completed.saturating_sub(last.1) as f64 / last.0.elapsed().as_secs_f64();
            last = (Instant::now(), completed);
            if let Err(reason) = (look.check)() {
                control.stop_because(reason.to_string());
            }
            let part = match timing.number_ios {
                Some(ios) => completed as f64 / (ios as f64 * progress.len() as f64),
                None => elapsed.as_secs_f64() / whole.as_secs_f64(),
            };
            watcher.look();
            live(Live { part: part.min(1.0), iops });
        }
        let to_edge = if opened { whole } else { ramp }.saturating_sub(elapsed);
        let pause = if by_count { Duration::from_millis(1) } else { to_edge };
        thread::sleep(pause.clamp(Duration::from_micros(100), Duration::from_millis(20)));
    }
    watcher.close()
}
