//! What speaks against a figure, as a word for programs and a sentence for people.

use super::environment::Machine;
use super::figures::significant;
use super::model::{Drive, DriveKind, Row};
use crate::measure::LittlesLaw;
use crate::workload::RateProcess;
use serde::{Deserialize, Serialize};

/// A round shorter than this is marked: processor time comes in ticks of some milliseconds, and a
/// drive's caches and background work take seconds to show.
const ROUND_S_MIN: f64 = 1.0;

/// A row whose mean depth is below this part of the asked one is marked.
const DEPTH_KEPT_MIN: f64 = 0.95;

/// A row further off the asked rate is marked.
const RATE_OFF_MAX: f64 = 0.01;

/// A row is marked when its mean latency is more than this part of a round.
const EDGE_PART_MAX: f64 = 0.01;

/// A row is marked when the workers' processors moved their frequency by more than this part.
const FREQUENCY_MOVED_MAX: f64 = 0.05;

/// A row is marked when other programs kept more of one processor busy than this part.
const OTHERS_BUSY_MAX: f64 = 0.1;

/// A percentile of the table that fewer I/Os than this lie beyond is marked.
const BEYOND_MIN: u64 = 10;

/// Kinds of marks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    /// Something could not be measured at all.
    Failed,
    /// Not everything that was planned was measured.
    Incomplete,
    /// Operations failed.
    Errors,
    /// A block was read that does not hold what was written.
    WrongData,
    /// IOPS, latency and depth contradict each other.
    LittlesLaw,
    /// Fewer I/Os in flight than asked.
    DepthNotKept,
    /// More or less than the rate that was asked for.
    RateMissed,
    /// The rounds still move too much, or in one direction.
    NotSteady,
    /// What was written before the measurement.
    Preconditioned,
    /// Reads of blocks that nobody ever wrote.
    NeverWritten,
    /// Ran on something else than the first row, and is not compared with it.
    DifferentTargets,
    /// A soft controller, not a drive.
    SoftDrive,
    /// A file, not a drive.
    File,
    /// No target at all.
    NullTarget,
    /// Rounds too short.
    ShortRun,
    /// Latencies that are long against a round, so that its edges leave out many I/Os.
    WindowEdges,
    /// A percentile rests on few I/Os.
    FewSamples,
    /// A round far from the others.
    OutlierRound,
    /// Measured in a virtual machine.
    VirtualMachine,
    /// The processors' frequency was free to move.
    Governor,
    /// IOPS, block size and bandwidth contradict each other.
    BandwidthMismatch,
    /// Latency percentiles that leave submission out, or that are missing.
    Percentiles,
    /// Processor use of the job alone.
    JobCpuOnly,
    /// Other jobs ran at the same time.
    Concurrent,
    /// One figure each: no interval.
    NoRounds,
    /// An engine's option was asked for, and the run went without it.
    NotAsAsked,
    /// Through the page cache.
    Buffered,
    /// The kernel cuts each I/O into several requests.
    Split,
    /// The kernel hands each I/O to a thread of its own.
    KernelWorkers,
    /// The drive reported something by itself meanwhile.
    DriveEvent,
    /// Wine stood in for Windows.
    NotWindows,
    /// The stages of each I/O were timed, which costs something.
    Instruments,
    /// Writes below the unit in which the drive writes.
    BelowWriteUnit,
    /// The drive's PCIe link is slower than it could be.
    PcieLink,
    /// The drive was hot.
    DriveHot,
    /// The drive slowed itself down.
    DriveThrottled,
    /// The drive says that it fails.
    DriveWarns,
    /// The workers' processors changed their frequency.
    FrequencyMoved,
    /// Other programs kept processors busy.
    OtherPrograms,
    /// One that another version made.
    #[serde(untagged)]
    Other(String),
}

/// Something that speaks against a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// For programs.
    pub kind: MarkKind,
    /// For people: one sentence.
    pub text: String,
}

impl Mark {
    /// A mark.
    pub fn new(kind: MarkKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// What the machine says against a whole result.
pub(super) fn of_machine(machine: &Machine) -> Vec<Mark> {
    let wine = machine.wine.as_ref().map(|version| {
        let text = format!(
            "Wine, not Windows: Wine {version} stood in, whose speed says nothing of Windows'"
        );
        Mark::new(MarkKind::NotWindows, text)
    });
    let virtual_machine = (machine.virtual_machine == Some(true)).then(|| {
        let text = "measured in a virtual machine: its host's other work and its interrupts' way are part \
                    of every figure";
        Mark::new(MarkKind::VirtualMachine, text)
    });
    let governor = machine.governor.as_ref().filter(|governor| *governor != "performance");
    let governor = governor.map(|governor| {
        let text = format!(
            "the frequency governor was {governor}: the processors' speed may have moved with the load"
        );
        Mark::new(MarkKind::Governor, text)
    });
    [wine, virtual_machine, governor].into_iter().flatten().collect()
}

/// What a row's own figures say against it.
pub(super) fn of_row(row: &Row) -> Vec<Mark> {
    [incomplete(row), errors(row), littles_law(row), depth(row), rate(row), short_run(row)]
        .into_iter()
        .chain([few_samples(row), super::stages::mark(row), not_steady(row), window_edges(row)])
        .chain([frequency_moved(row), other_programs(row)])
        .flatten()
        .chain(super::drive_state::marks(row))
        .chain(stand_ins(&row.drives))
        .collect()
}

fn incomplete(row: &Row) -> Option<Mark> {
    let missing = row.rounds.iter().filter(|round| !round.complete).count();
    let any_complete = missing < row.rounds.len();
    let text = match (missing, any_complete) {
        (0, _) => return None,
        // What failed altogether has its own mark.
        _ if row.iops.is_none() => return None,
        (_, true) => format!(
            "{missing} of {} rounds did not run to the end and are left out of means and ratio",
            row.rounds.len()
        ),
        (_, false) => "no round ran to its end; the figures are of what was measured".to_owned(),
    };
    Some(Mark::new(MarkKind::Incomplete, text))
}

fn errors(row: &Row) -> Option<Mark> {
    let first = row.error_kinds.first()?;
    let at = first.first_offsets.first().map(|at| format!(" at byte {at}")).unwrap_or_default();
    let failed = match row.errors {
        1 => "1 operation failed".to_owned(),
        count => format!("{count} operations failed, the first"),
    };
    let text = format!("{failed}{at}: {}; no other figure includes them", first.status);
    Some(Mark::new(MarkKind::Errors, text))
}

fn littles_law(row: &Row) -> Option<Mark> {
    // The law is of a system that comes to rest; a backlog that grows is none, and has its own mark.
    if rate(row).is_some() {
        return None;
    }
    // Flushes are in flight like any I/O.
    let lat_ns = row.lat_ns.as_ref()?;
    let (flushes, flush_ns) = row.flush.map_or((0, 0.0), |flush| (flush.count, flush.mean_ns));
    let all = (lat_ns.count.saturating_add(flushes)) as f64;
    let mean_ns = (lat_ns.mean * lat_ns.count as f64 + flush_ns * flushes as f64) / all;
    let law = LittlesLaw::check(all / row.elapsed_s, mean_ns, row.in_flight_mean?)?;
    let text = format!(
        "IOPS x mean latency gives {:.1} I/Os in flight, but {:.1} were counted ({:+.0} %): \
         the latency or the depth is not what it says",
        law.expected,
        law.counted,
        law.deviation() * 100.0
    );
    (!law.holds()).then(|| Mark::new(MarkKind::LittlesLaw, text))
}

fn depth(row: &Row) -> Option<Mark> {
    // An open load asks for a rate, and the depth is what that takes; think times empty it.
    if row.workload.rate_iops.is_some() || row.workload.thinktime_us > 0 {
        return None;
    }
    let kept = row.in_flight_mean?;
    let asked = row.in_flight_asked;
    let text = format!(
        "kept {kept:.1} I/Os in flight where {asked:.0} were asked; hold its latency against \
         rows of that depth only"
    );
    (kept < asked * DEPTH_KEPT_MIN).then(|| Mark::new(MarkKind::DepthNotKept, text))
}

/// An open load that was not what was asked for.
fn rate(row: &Row) -> Option<Mark> {
    let workers = f64::from(row.workload.numjobs) * row.drives.len() as f64;
    let asked = f64::from(row.workload.rate_iops?) * workers;
    let part = row.iops?.mean / asked - 1.0;
    // Arrivals at random are off by chance: three deviations of their number.
    let by_chance = match row.workload.rate_process {
        RateProcess::Poisson => 3.0 / (asked * row.elapsed_s).sqrt(),
        RateProcess::Linear => 0.0,
    };
    let text = format!(
        "{:+.1} % of the {asked:.0} I/Os a second that were asked for: {}",
        part * 100.0,
        if part < 0.0 {
            "they waited, and their latencies, which run from when they were due, grow with the \
             length of the round"
        } else {
            "a backlog of the ramp was worked off"
        }
    );
    (part.abs() > RATE_OFF_MAX.max(by_chance)).then(|| Mark::new(MarkKind::RateMissed, text))
}

fn short_run(row: &Row) -> Option<Mark> {
    let measured = row.rounds.iter().map(|round| round.elapsed_s).filter(|seconds| *seconds > 0.0);
    let shortest = measured.fold(f64::INFINITY, f64::min);
    let text = format!(
        "rounds of less than {ROUND_S_MIN:.0} s are short: processor time is counted in ticks of \
         some milliseconds, and a drive's caches take seconds to fill"
    );
    (shortest < ROUND_S_MIN).then(|| Mark::new(MarkKind::ShortRun, text))
}

fn not_steady(row: &Row) -> Option<Mark> {
    let seen = row.steady.filter(|seen| !seen.steady)?;
    Some(Mark::new(MarkKind::NotSteady, seen.sentence()))
}

/// What is in flight at a round's edges does not count: of latencies that are long against the round
/// that is a part of the I/Os that is seen.
fn window_edges(row: &Row) -> Option<Mark> {
    // A backlog that grows has its own mark, and its latencies are no time in the drive.
    if rate(row).is_some() {
        return None;
    }
    let measured = row.rounds.iter().filter(|round| round.elapsed_s > 0.0).count();
    let round_ns = row.elapsed_s / measured.max(1) as f64 * 1e9;
    let part = row.lat_ns.as_ref()?.mean / round_ns;
    let text = format!(
        "about {:.0} % of the I/Os are in flight at an edge of their round and are not counted, so that IOPS are \
         that much too low: longer rounds (--runtime) make it less",
        part * 100.0
    );
    (part.is_finite() && part > EDGE_PART_MAX).then(|| Mark::new(MarkKind::WindowEdges, text))
}

fn frequency_moved(row: &Row) -> Option<Mark> {
    let [low, high] = row.accounts.as_ref()?.frequency_mhz?;
    let text = format!(
        "the workers' processors ran at {low} to {high} MHz while this was measured: set the governor to \
         performance, or give them time to warm up (--ramp-time)"
    );
    let moved = f64::from(high) / f64::from(low.max(1)) - 1.0;
    (moved > FREQUENCY_MOVED_MAX).then(|| Mark::new(MarkKind::FrequencyMoved, text))
}

fn other_programs(row: &Row) -> Option<Mark> {
    let accounts = row.accounts.as_ref()?;
    let busy = accounts.others_busy_s? / row.elapsed_s;
    let most = accounts.busiest_other.as_ref();
    let most = most.map_or_else(String::new, |name| format!(" ({name} most of all)"));
    let text = format!(
        "other programs{most} kept {} processors busy while this was measured, and are in the machine's \
         CPU: end them and measure again",
        significant(busy, 2)
    );
    (busy.is_finite() && busy > OTHERS_BUSY_MAX).then(|| Mark::new(MarkKind::OtherPrograms, text))
}

fn few_samples(row: &Row) -> Option<Mark> {
    let beyond = row.lat_ns.as_ref()?.beyond;
    let shown = [("p50", beyond.p50), ("p99", beyond.p99), ("p99.9", beyond.p99_9)];
    let (name, count) = shown.into_iter().find(|(_, count)| *count < BEYOND_MIN)?;
    let text = format!("{name} has only {count} I/Os above it and may differ much next time");
    Some(Mark::new(MarkKind::FewSamples, text))
}

fn stand_ins(drives: &[Drive]) -> impl Iterator<Item = Mark> {
    let has = |kind| drives.iter().find(move |drive| drive.kind == kind);
    let soft = has(DriveKind::Soft).or(has(DriveKind::VfioUser)).map(|drive| {
        let text = format!(
            "{}: a controller in software; the figures are this machine's, no drive's",
            drive.target
        );
        Mark::new(MarkKind::SoftDrive, text)
    });
    let file = has(DriveKind::File).map(|drive| {
        let text = format!("{}: a file, so its filesystem is part of every figure", drive.target);
        Mark::new(MarkKind::File, text)
    });
    let null = has(DriveKind::Null).map(|_| {
        Mark::new(MarkKind::NullTarget, "nothing was read or written: the harness's own cost")
    });
    [soft, file, null].into_iter().flatten()
}

/// Whether two rows ran on the same drives.
pub(super) fn same_drives(row: &Row, other: &Row) -> bool {
    same_drives_of(&row.drives, &other.drives)
}

/// Whether two lists name the same drives, whatever the names.
pub(super) fn same_drives_of(ours: &[Drive], others: &[Drive]) -> bool {
    ours.len() == others.len()
        && ours.iter().all(|drive| others.iter().any(|same| drive.is_same(same)))
}

/// What is to be said of a row that ran on other drives than the first one.
pub(super) fn of_other_drives(row: &Row, first: &Row) -> Mark {
    let text = format!(
        "ran on {}, and {} on {}: two different things, so they are not compared",
        row.target, first.stack, first.target
    );
    Mark::new(MarkKind::DifferentTargets, text)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    /// Kinds of marks of the first row, after `change`.
    fn kinds(change: impl Fn(&mut Row)) -> Vec<MarkKind> {
        let mut row = sample::report().rows.remove(0);
        change(&mut row);
        of_row(&row).into_iter().map(|mark| mark.kind).collect()
    }

    #[test]
    fn a_sound_row_has_none() {
        assert_eq!(kinds(|_| ()), []);
    }

    #[test]
    fn each_fault_has_its_own() {
        assert_eq!(
            kinds(|row| row.in_flight_mean = Some(30.0)),
            [MarkKind::LittlesLaw, MarkKind::DepthNotKept]
        );
        assert_eq!(kinds(|row| row.in_flight_asked = 34.0), [MarkKind::DepthNotKept]);
        assert_eq!(kinds(|row| row.in_flight_asked = 33.0), []);
        assert_eq!(kinds(|row| row.rounds[1].elapsed_s = 0.9), [MarkKind::ShortRun]);
        assert_eq!(kinds(|row| row.rounds[1].complete = false), [MarkKind::Incomplete]);
        let few = |row: &mut Row| row.lat_ns.as_mut().unwrap().beyond.p99_9 = 9;
        assert_eq!(kinds(few), [MarkKind::FewSamples]);
        // A twentieth of the time and of the I/Os: rounds of 0.1 s, and latencies of 3 ms.
        let brief = |row: &mut Row| {
            row.elapsed_s /= 20.0;
            row.lat_ns.as_mut().unwrap().count /= 20;
        };
        assert_eq!(kinds(brief), [MarkKind::WindowEdges]);
        for (kind, mark) in [
            (DriveKind::Soft, MarkKind::SoftDrive),
            (DriveKind::VfioUser, MarkKind::SoftDrive),
            (DriveKind::File, MarkKind::File),
            (DriveKind::Null, MarkKind::NullTarget),
        ] {
            assert_eq!(kinds(|row| row.drives[0].kind = kind), [mark]);
        }
        assert_eq!(kinds(|row| row.drives[0].kind = DriveKind::Block), []);
        let with = |change: fn(&mut crate::measure::Accounts)| {
            kinds(|row| change(row.accounts.as_mut().unwrap()))
        };
        assert_eq!(with(|of| of.frequency_mhz = Some([2000, 2150])), [MarkKind::FrequencyMoved]);
        assert_eq!(with(|of| of.frequency_mhz = Some([2000, 2099])), []);
        assert_eq!(with(|of| of.frequency_mhz = Some([0, 2099])), [MarkKind::FrequencyMoved]);
        // Of 6 s, a tenth of one processor is 0.6 s.
        assert_eq!(with(|of| of.others_busy_s = Some(0.61)), [MarkKind::OtherPrograms]);
        assert_eq!(with(|of| of.others_busy_s = Some(0.59)), []);
        assert_eq!(with(|of| of.others_busy_s = None), []);
        assert_eq!(kinds(|row| row.accounts = None), []);
    }

    #[test]
    fn a_virtual_machine_and_a_governor_are_said_of_the_whole() {
        let mut machine = sample::environment().machine;
        assert_eq!(of_machine(&machine), []);
        machine.virtual_machine = Some(true);
        machine.governor = Some("powersave".to_owned());
        let kinds: Vec<_> = of_machine(&machine).into_iter().map(|mark| mark.kind).collect();
        assert_eq!(kinds, [MarkKind::VirtualMachine, MarkKind::Governor]);
    }

    #[test]
    fn flushes_in_flight_do_not_break_the_law() {
        // A tenth of the time in flight is flushes'.
        let with_flushes = |row: &mut Row| {
            let lat_ns = row.lat_ns.clone().unwrap();
            let mean_ns = lat_ns.mean * lat_ns.count as f64 / 9.0 / 100.0;
            let (min_ns, max_ns) = (mean_ns, mean_ns);
            let flush = super::super::Flushes { count: 100, min_ns, mean_ns, max_ns };
            row.flush = Some(flush);
            row.in_flight_mean = row.in_flight_mean.map(|mean| mean / 0.9);
        };
        assert_eq!(kinds(with_flushes), []);
    }

    #[test]
    fn one_drive_under_two_names_is_one_and_a_stand_in_is_not() {
        let rows = sample::report().rows;
        assert_eq!(
            (rows[0].target.as_str(), rows[1].target.as_str()),
            ("0000:01:00.0", "/dev/nvme0n1")
        );
        assert!(same_drives(&rows[1], &rows[0]));
        let differs = |change: fn(&mut Row)| {
            let mut row = rows[1].clone();
            change(&mut row);
            !same_drives(&row, &rows[0])
        };
        assert!(differs(|row| row.drives[0].address = Some("0000:02:00.0".into())));
        assert!(differs(|row| row.drives = vec![Drive::new("/tmp/x", DriveKind::File)]));
        assert!(differs(|row| row.drives.push(row.drives[0].clone())));
        let by_serial = |row: &mut Row| row.drives[0].address = None;
        assert!(!differs(by_serial), "told by its serial number");
        assert!(differs(|row| {
            row.drives[0].address = None;
            row.drives[0].serial = Some("S2".into());
        }));
    }

    #[test]
    fn kinds_are_kebab_case_words() {
        let json = serde_json::to_string(&Mark::new(MarkKind::LittlesLaw, "x")).unwrap();
        assert_eq!(json, r#"{"kind":"littles-law","text":"x"}"#);
    }
}
