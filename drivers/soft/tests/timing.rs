//! A set latency and a set rate, in real time.
//!
//! A device that is too fast is wrong whatever else the machine does. Whether one is too slow can
//! only be said of a window in which neither its thread nor the host's had to wait for a processor:
//! the scheduler tells, and a window in which one did is void. The schedule itself is tested without
//! a clock, in `pace.rs`.

mod common;

use common::*;
use nvpoll_spec::{NvmOpcode, SubmissionEntry};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Windows that may be void before a test gives up judging.
const WINDOWS: u32 = 6;

/// One test at a time: each has two threads that poll.
static TURN: Mutex<()> = Mutex::new(());

/// What a load saw.
#[derive(Debug)]
struct Seen {
    iops: f64,
    mean: Duration,
    /// Neither thread had to wait for a processor, beyond a fifth of a percent of the window.
    quiet: bool,
}

/// Keeps `depth` flushes in flight for `window`.
fn load(text: &str, depth: usize, window: Duration) -> Seen {
    let mut host = Host::new(text.parse().unwrap());
    let mut pair = host.pair(1, 256);
    let mut sent = vec![Instant::now(); depth];
    let flush = |cid: usize| SubmissionEntry {
        cid: cid as u16,
        ..SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0)
    };
    let before = waited_ns();
    let start = Instant::now();
    for (tag, sent) in sent.iter_mut().enumerate() {
        *sent = start;
        pair.push(flush(tag));
    }
    pair.ring();
    let (mut done, mut sum) = (0u32, Duration::ZERO);
    let mut last = start;
    while last - start < window {
        let mut reaped = 0;
        last = Instant::now();
        while let Some(completion) = pair.take() {
            assert_ok(completion);
            let tag = usize::from(completion.cid);
            sum += last - sent[tag];
            sent[tag] = last;
            pair.push(flush(tag));
            reaped += 1;
        }
        if reaped > 0 {
            done += reaped;
            pair.ring_head();
            pair.ring();
        } else {
            std::hint::spin_loop();
        }
    }
    // While the device's thread is still there to be asked.
    let waited = waited_ns().zip(before).map(|(after, before)| after.saturating_sub(before));
    let quiet = waited.is_some_and(|ns| u128::from(ns) * 500 < (last - start).as_nanos());
    let iops = f64::from(done) / (last - start).as_secs_f64();
    Seen { iops, mean: sum / done.max(1), quiet }
}

/// Nanoseconds that this process's threads were ready to run and did not, where the system says.
fn waited_ns() -> Option<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end in between.
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        sum += text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0u64);
    }
    Some(sum)
}

/// Runs windows until one is quiet, and asks `slow` whether that one was too slow. `fast` has to
/// hold in every window.
fn judge(run: impl Fn() -> Seen, fast: impl Fn(&Seen) -> bool, slow: impl Fn(&Seen) -> bool) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..WINDOWS {
        let seen = run();
        assert!(!fast(&seen), "too fast: {seen:?}");
        if !slow(&seen) {
            return;
        }
        assert!(!seen.quiet, "too slow: {seen:?}, and no thread waited for a processor");
    }
    eprintln!("this machine is too busy to say whether the device is too slow");
}

#[test]
fn latency_bounds_a_shallow_queue() {
    judge(
        || load("latency=200us", 1, Duration::from_millis(300)),
        |seen| seen.mean < Duration::from_micros(200) || seen.iops > 5_000.0,
        |seen| seen.mean > Duration::from_micros(230),
    );
}

#[test]
fn a_rate_bounds_a_deep_queue_and_holds_within_a_percent() {
    judge(
        || load("latency=80us,iops=100k", 64, Duration::from_secs(1)),
        |seen| seen.iops > 101_000.0,
        |seen| seen.iops < 99_000.0,
    );
}

#[test]
fn both_bounds_hold_together() {
    judge(
        || load("latency=100us,iops=100k", 1, Duration::from_millis(200)),
        |seen| seen.iops > 10_000.0 || seen.mean < Duration::from_micros(100),
        |seen| seen.mean > Duration::from_micros(130),
    );
}

/// No admin command waits for the latency: a slow drive is brought up as fast as any.
#[test]
fn admin_commands_are_not_slowed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let mut host = Host::new("latency=20s,iops=1".parse().unwrap());
    host.pair(1, 8);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Processor time of the device's thread, in ticks of 10 ms.
#[cfg(target_os = "linux")]
fn device_ticks() -> u64 {
    let is_device = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.trim() == "nvpoll-soft")
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let tasks: Vec<_> = tasks.filter(is_device).collect();
    assert_eq!(tasks.len(), 1, "one device at a time");
    let stat = std::fs::read_to_string(tasks[0].path().join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// An idle device does not burn a core: enabled it sleeps between its looks, disabled it is parked.
#[cfg(target_os = "linux")]
#[test]
fn an_idle_device_rests() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let spent = |enable: bool| {
        let options: nvpoll_soft::SoftOptions = "size=1M".parse().unwrap();
        let controller = nvpoll_soft::SoftController::start(options).unwrap();
        let host = enable.then(|| Host::over(controller.clone(), enabled(), 8));
        std::thread::sleep(Duration::from_millis(50));
        let before = device_ticks();
        std::thread::sleep(Duration::from_secs(1));
        let spent = device_ticks() - before;
        drop((host, controller));
        spent
    };
    // A core that spins spends a hundred of them in every second. A tick is the whole of a thread that
    // happens to run when it is taken, so that one second may say too much of one that rests.
    let least = |enable: bool, most: u64| {
        let first = spent(enable);
        if first <= most { first } else { first.min(spent(enable)).min(spent(enable)) }
    };
    let (idle, off) = (least(true, 25), least(false, 1));
    assert!(idle <= 25, "enabled and idle, {idle} ticks of a hundred at the least");
    assert!(off <= 1, "disabled, {off} ticks of a hundred at the least");
}

/// The first command after a rest is late by a sleep at most, not by a park.
#[test]
fn a_rested_device_wakes_up() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut host = Host::new("size=1M".parse().unwrap());
    let mut pair = host.pair(1, 8);
    let mut least = Duration::MAX;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(15));
        let start = Instant::now();
        assert_ok(pair.run(SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0)));
        least = least.min(start.elapsed());
    }
    assert!(least < Duration::from_millis(5), "{least:?}");
}
