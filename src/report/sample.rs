//! A made-up comparison for the tests: three stacks, two workloads, three rounds.

use super::*;
use crate::measure::{Accounts, CpuUse, Direction, Doorbells, Recorder};
use crate::run::HarnessNs;
use crate::workload::{Rw, Workload};
use nvpoll_engine::IoStatus;
use std::collections::BTreeMap;

/// Ticks of the made-up clock are half a nanosecond.
pub const NS_PER_TICK: f64 = 0.5;

pub fn environment() -> Environment {
    Environment {
        nvpoll: "0.1.0".into(),
        date: "2025-06-01T12:00:00Z".into(),
        command_line: vec!["nvpoll".into(), "compare".into()],
        machine: Machine {
            os: "linux".into(),
            os_name: Some("Debian GNU/Linux 13 (trixie)".into()),
            kernel: Some("6.12.48-amd64".into()),
            arch: "x86_64".into(),
            cpu_model: Some("EPYC 9754".into()),
            processors: Some(256),
            virtual_machine: Some(false),
            ..Machine::default()
        },
        clock: ClockFacts { counter: true, ns_per_tick: NS_PER_TICK, read_cost_ns: 8.25 },
    }
}

pub fn drive(target: &str) -> Drive {
    Drive {
        address: Some("0000:01:00.0".into()),
        model: Some("QEMU NVMe Ctrl".into()),
        serial: Some("S1".into()),
        size_bytes: Some(1 << 40),
        block_bytes: Some(4096),
        ..Drive::new(target, DriveKind::Nvme)
    }
}

/// As a machine shows them whose processor's counters nobody may read.
fn accounts(engine: &str, ios: u64) -> Accounts {
    let per_io = if engine == "vfio" { 0 } else { 1 };
    let why = "/proc/sys/kernel/perf_event_paranoid forbids it; run as root, or set it to 1";
    let names = ["cycles_user", "cycles_kernel", "instructions_user", "instructions_kernel"];
    Accounts {
        package_j: Some(0.25),
        dram_j: Some(0.05),
        interrupts: Some(2_000 + ios * per_io),
        drive_interrupts: Some(ios * per_io),
        context_switches: Some(500 + ios * per_io),
        voluntary_switches: Some(ios * per_io),
        involuntary_switches: Some(3),
        frequency_mhz: Some([3090, 3100]),
        others_busy_s: Some(0.01),
        busiest_other: Some("systemd".into()),
        missing: names.map(|name| (name.to_owned(), why.to_owned())).into(),
        ..Accounts::default()
    }
}

/// A round of `iops` I/Os a second for 2 s with all of `depth` in flight, every hundredth I/O four
/// times as long as the others.
pub fn round(round: u32, workload: &Workload, engine: &str, iops: u64, depth: u64) -> RoundResult {
    let ios = iops * 2;
    // Mean latency by Little's law, spread over 99 short ones and a long one.
    let mean_ticks = (depth * 2_000_000_000 / iops) as f64;
    let short = (mean_ticks / 1.03) as u64;
    let mut recorder = Recorder::new();
    for io in 0..ios {
        let is_write = workload.rw.is_mixed() && io % 4 == 3;
        let direction = if is_write { Direction::Write } else { Direction::Read };
        recorder.record(direction, if io % 100 == 99 { short * 4 } else { short + io % 7 });
        if io == ios / 2 {
            recorder.cut();
        }
    }
    recorder.cut();
    let target = if engine == "vfio" { "0000:01:00.0" } else { "/dev/nvme0n1" };
    let cpu = CpuUse {
        machine_pct: Some(1.5),
        machine_busy_s: Some(7.68),
        user_s: Some(1.25),
        sys_s: Some(0.75),
        ns_per_io: None,
    };
    RoundResult {
        round,
        workload: workload.clone(),
        ran: Ran {
            stack: match engine {
                "vfio" => "userspace vfio".into(),
                _ => format!("Linux {engine}"),
            },
            engine: engine.into(),
            drives: vec![drive(target)],
            facts: BTreeMap::from([("batched submission".into(), "yes".into())]),
        },
        recorder,
        ns_per_tick: NS_PER_TICK,
        elapsed_s: 2.0,
        cpu: cpu.per(ios),
        accounts: Some(accounts(engine, ios)),
        conditions: Vec::new(),
        in_flight_mean: Some(depth as f64),
        polls: (engine == "vfio").then_some(Polls { useful: 1000, empty: 3000 }),
        doorbells: (engine == "vfio").then_some(Doorbells { writes: 500, ios: 1000 }),
        instruments: None,
        harness_ns: Some(HarnessNs {
            batched: 20.0 + f64::from(round),
            one_by_one: 40.0 + f64::from(round),
        }),
        iops_by_drive: Vec::new(),
        complete: true,
        verified: None,
        marks: Vec::new(),
    }
}

/// vfio is some 20 % faster than io_uring; libaio is not to be told from vfio in the first
/// workload and keeps half the depth in the second.
pub fn rounds() -> Vec<RoundResult> {
    let random = Workload::new(Rw::RandRead, 4096, 32);
    let mixed = Workload { rwmixread: 75, numjobs: 2, ..Workload::new(Rw::RandRw, 65_536, 8) };
    let mut rounds = Vec::new();
    for (number, drift) in [(1, 0), (2, 60), (3, -40)] {
        let with = |iops: i64| (iops + drift) as u64;
        rounds.push(round(number, &random, "vfio", with(12_000), 32));
        rounds.push(round(number, &mixed, "vfio", with(6_000), 16));
        rounds.push(round(number, &random, "io_uring", with(10_000), 32));
        rounds.push(round(number, &mixed, "io_uring", with(5_000), 16));
        rounds.push(round(number, &random, "libaio", with(12_000 + 20 * drift), 32));
        rounds.push(round(number, &mixed, "libaio", with(4_000), 8));
    }
    rounds
}

pub fn plan() -> serde_json::Value {
    serde_json::json!({ "rounds": 3 })
}

pub fn report() -> Report {
    Report::assemble(plan(), environment(), &rounds(), true)
}

/// A soft drive beside a scratch file, once each, cut short, with errors.
pub fn poor_report() -> Report {
    let workload = Workload::new(Rw::RandRead, 4096, 1);
    let stand_in = |engine: &str, stack: &str, target: &str, kind| {
        let mut result = round(1, &workload, engine, 400, 1);
        result.ran.stack = stack.into();
        result.ran.drives = vec![Drive::new(target, kind)];
        result.elapsed_s = 0.25;
        result
    };
    let soft = "soft:size=4g,lba=4096,latency=80us,iops=500k";
    let soft = stand_in("soft", "userspace soft", soft, DriveKind::Soft);
    let scratch = "/var/tmp/nvpoll/scratch-of-the-embedded-default.img";
    let mut file = stand_in("psync", "Linux psync", scratch, DriveKind::File);
    file.recorder.record_error(IoStatus::errno(5), 40_960);
    file.complete = false;
    let mut failed = stand_in("io_uring", "Linux io_uring", scratch, DriveKind::File);
    failed.recorder = Recorder::new();
    failed.elapsed_s = 0.0;
    failed.in_flight_mean = None;
    failed.cpu = CpuUse::default();
    failed.accounts = None;
    failed.complete = false;
    failed.marks =
        vec![Mark::new(MarkKind::Failed, "round 1 failed: io_uring is switched off here")];
    Report::assemble(plan(), environment(), &[soft, file, failed], true)
}

/// All keys of `value`, at any depth, but those that the run makes up.
pub fn keys(value: &serde_json::Value, found: &mut Vec<String>) {
    if let Some(list) = value.as_array() {
        list.iter().for_each(|value| keys(value, found));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        found.push(key.clone());
        if !["plan", "facts", "mitigations"].contains(&key.as_str()) {
            keys(value, found);
        }
    }
}
