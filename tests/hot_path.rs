//! The rules of the hot path: once a lane and its queue are made, `Lane::drive` allocates nothing
//! and, on an engine that polls, makes no system call.
//!
//! Allocations are counted by an allocator that counts. System calls are forbidden by a seccomp
//! filter that kills the process; the soft controller is stepped, so that nobody else's calls are
//! in the way.

#![cfg(target_os = "linux")]

use nvpoll::measure::Clock;
use nvpoll::run::{Control, Lane, Progress, Window};
use nvpoll::workload::{Generator, Rw, Workload};
use nvpoll_engine::null::Null;
use nvpoll_engine::userspace::Soft;
use nvpoll_engine::{
    Engine, EngineError, IoStatus, OpenOptions, Operation, Queue, QueueShape, Tag, Target, Wait,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const IOS: u64 = 100_000;
const DEPTH: u16 = 32;
const BS_BYTES: u32 = 4096;
/// Small, so that every block of the RAM behind it can be written to before.
const RAM: &str = "soft:size=16M,stepped";
const RAM_BYTES: u64 = 16 << 20;
const NOWHERE: &str = "soft:size=64G,backing=null,stepped";

/// A lane with all that its loop needs.
struct Ready<Q> {
    clock: Clock,
    lane: Lane,
    queue: Q,
    control: Control,
    progress: Progress,
}

fn ready<E: Engine>(engine: &E, workload: &Workload) -> Ready<E::Queue> {
    let depth = workload.iodepth;
    let shape = QueueShape { worker: 0, depth, io_bytes: BS_BYTES };
    let geometry = engine.geometry(BS_BYTES);
    let span = workload.span(geometry.size_bytes, geometry.block_bytes).unwrap();
    let clock = Clock::new();
    Ready {
        lane: Lane::new(clock.clone(), Generator::new(workload, span, 0, 0), depth as u16),
        clock,
        queue: engine.queue(shape).unwrap(),
        control: Control::new(),
        progress: Progress::default(),
    }
}

impl<Q: Queue> Ready<Q> {
    fn drive(&mut self, ios: u64) -> bool {
        let window = Window { opens: self.clock.now(), closes: u64::MAX, ios };
        self.lane.drive(&mut self.queue, window, &self.control, &self.progress).is_ok()
    }
}

fn workload(rw: Rw) -> Workload {
    Workload::new(rw, BS_BYTES, DEPTH.into())
}

/// One I/O at a time, which has a loop of its own.
fn one_by_one(rw: Rw) -> Workload {
    Workload::new(rw, BS_BYTES, 1)
}

/// Patterns that take each way through the generator and the loops.
fn workloads() -> Vec<Workload> {
    let of_depth = |workload: fn(Rw) -> Workload| {
        let mut mixed = workload(Rw::RandRw);
        mixed.fsync = 16;
        [workload(Rw::RandRead), workload(Rw::RandWrite), workload(Rw::Read), mixed]
    };
    [of_depth(workload), of_depth(one_by_one)].concat()
}

fn open<E: Engine>(target: &Target, writable: bool) -> E {
    E::open(target, &OpenOptions { writable, ..OpenOptions::default() }).unwrap()
}

fn soft(options: &str) -> Target {
    Target::Soft(options.parse().unwrap())
}

/// Allocations while `workload` runs; and that all its I/Os ended as `fails` says.
fn allocations<E: Engine>(engine: &E, workload: &Workload, fails: bool) -> u64 {
    let mut ready = ready(engine, workload);
    let mut good = false;
    let counted = allocation_counter::measure(|| good = ready.drive(IOS));
    assert!(good, "{}", workload.name);
    let recorder = ready.lane.into_recorder();
    let ended = recorder.count_all() + recorder.flushes().0 + recorder.errors().total();
    assert_eq!(ended, IOS, "{}", workload.name);
    assert_eq!(recorder.errors().total() > 0, fails, "{}", workload.name);
    counted.count_total
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
}

#[test]
fn the_loop_allocates_nothing_on_null() {
    for workload in workloads() {
        let engine: Null = open(&Target::Null, true);
        assert_eq!(allocations(&engine, &workload, false), 0, "{}", workload.name);
    }
}

#[test]
fn the_loop_allocates_nothing_when_every_io_fails() {
    for writes in [workload(Rw::RandWrite), one_by_one(Rw::RandWrite)] {
        let read_only: Null = open(&Target::Null, false);
        assert_eq!(allocations(&read_only, &writes, true), 0);
        let read_only: Soft = open(&soft(NOWHERE), false);
        assert_eq!(allocations(&read_only, &writes, true), 0);
    }
}

#[test]
fn the_loop_allocates_nothing_on_a_soft_drive() {
    for workload in workloads() {
        let engine: Soft = open(&soft(NOWHERE), true);
        assert_eq!(allocations(&engine, &workload, false), 0, "{}", workload.name);
    }
}

#[test]
fn the_loop_allocates_nothing_on_a_soft_drive_in_memory() {
    for random in workloads() {
        let engine: Soft = open(&soft(RAM), true);
        // The soft drive takes memory when a block is first written to.
        assert!(ready(&engine, &workload(Rw::Write)).drive(RAM_BYTES / u64::from(BS_BYTES)));
        assert_eq!(allocations(&engine, &random, false), 0, "{}", random.name);
    }
}

/// Says to a child of these tests what it is to do.
const CHILD: &str = "NVPOLL_TEST_HOT_PATH_CHILD";
const CHILD_MAX: Duration = Duration::from_secs(60);
const RUNNING: u32 = 0;
const DONE: u32 = 1;
const FAILED: u32 = 2;

fn child(what: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child_of_the_tests_above", "--ignored"])
        .env(CHILD, what)
        .output()
        .unwrap()
        .status
}

#[test]
fn the_loop_makes_no_system_call_on_a_soft_drive() {
    for what in ["drive", "drive one by one"] {
        let status = child(what);
        assert!(status.success(), "{what}: {status:?}");
    }
}

#[test]
fn one_system_call_in_the_loop_is_seen() {
    for what in ["call", "call one by one"] {
        let status = child(what);
        assert_eq!(status.signal(), Some(nix::libc::SIGSYS), "{what}: {status:?}");
    }
}

#[test]
fn a_loop_that_fails_is_seen() {
    for what in ["fail", "fail one by one"] {
        let status = child(what);
        assert_eq!(status.code(), Some(1), "{what}: {status:?}");
    }
}

/// Runs the loop in a thread that may not make a single system call: it says by a word in memory
/// that it is done, and spins until this thread, which may, ends the process.
#[test]
#[ignore = "started by the tests above"]
fn the_child_of_the_tests_above() {
    static STATE: AtomicU32 = AtomicU32::new(RUNNING);
    let Ok(what) = std::env::var(CHILD) else { return };
    thread::spawn(move || {
        STATE.store(if drive_filtered(&what) { DONE } else { FAILED }, Ordering::Release);
        loop {
            std::hint::spin_loop();
        }
    });
    let start = Instant::now();
    while STATE.load(Ordering::Acquire) == RUNNING && start.elapsed() < CHILD_MAX {
        thread::sleep(Duration::from_millis(1));
    }
    std::process::exit(i32::from(STATE.load(Ordering::Acquire) != DONE));
}

/// Whether the loop ended well. What it needs is leaked, because to free it may take a call.
fn drive_filtered(what: &str) -> bool {
    let engine: Soft = open(&soft(NOWHERE), false);
    let (what, workload) = match what.strip_suffix(" one by one") {
        Some(what) => (what, one_by_one(Rw::RandRead)),
        None => (what, workload(Rw::RandRead)),
    };
    let Ready { clock, lane, queue, control, progress } = ready(&engine, &workload);
    let meddling = match what {
        "call" => Some(Meddling::Call),
        "fail" => Some(Meddling::Fail),
        _ => None,
    };
    let queue = Meddled { queue, meddling, kicks_before: 1000 };
    let ready = Box::leak(Box::new(Ready { clock, lane, queue, control, progress }));
    std::mem::forget(engine);
    let filter: &BpfProgram = Box::leak(Box::new(no_system_calls()));
    seccompiler::apply_filter(filter).unwrap();
    ready.drive(IOS)
}

/// A filter that kills the process on any call of this thread but `exit_group`.
fn no_system_calls() -> BpfProgram {
    let allowed = BTreeMap::from([(nix::libc::SYS_exit_group, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    SeccompFilter::new(allowed, SeccompAction::KillProcess, SeccompAction::Allow, arch)
        .and_then(BpfProgram::try_from)
        .unwrap()
}

/// What is done in the middle of the loop that may not be done.
enum Meddling {
    Call,
    Fail,
}

/// A queue with something in one of its kicks.
struct Meddled<Q> {
    queue: Q,
    meddling: Option<Meddling>,
    kicks_before: u32,
}

impl<Q: Queue> Queue for Meddled<Q> {
    const SLEEPS: bool = Q::SLEEPS;

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        self.queue.push(tag, operation);
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        self.kicks_before = self.kicks_before.wrapping_sub(1);
        match self.meddling {
            Some(Meddling::Call) if self.kicks_before == 0 => thread::yield_now(),
            Some(Meddling::Fail) if self.kicks_before == 0 => {
                return Err(EngineError::Failed(String::new()));
            }
            _ => {}
        }
        self.queue.kick()
    }

    #[inline(always)]
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        self.queue.reap(wait, sink)
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        self.queue.fill(tag, data);
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        self.queue.copy_out(tag, data);
    }
}
