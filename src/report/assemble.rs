//! From rounds to rows.

use super::drive_state;
use super::environment::Environment;
use super::marks::{self, Mark};
use super::model::{
    Drive, ErrorCount, Flushes, LatNs, Polls, RatioTo, Report, RoundSeries, RoundSummary, Row,
    SCHEMA, Side,
};
use super::stages;
use crate::measure::{
    Accounts, CpuUse, Direction, Doorbells, ErrorTally, InstrumentsSeen, Interval, Recorder,
    Steadiness, mean_interval, ratio, resolution,
};
use crate::run::{HarnessNs, Verified};
use crate::workload::Workload;
use nvpoll_engine::Condition;
use std::collections::BTreeMap;

/// What a round ran on, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Engine and operating system, as a column heading.
    pub stack: String,
    /// Engine's name.
    pub engine: String,
    /// Every drive that it ran on at once.
    pub drives: Vec<Drive>,
    /// How the engine ran, as name and value.
    pub facts: BTreeMap<String, String>,
}

impl Ran {
    /// All targets, joined with commas.
    pub fn target(&self) -> String {
        self.drives.iter().map(|drive| drive.target.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Whether `other` belongs to the same row. Facts may differ from round to round.
    fn is_same_row(&self, other: &Self) -> bool {
        self.stack == other.stack && self.engine == other.engine && self.target() == other.target()
    }
}

/// One workload on one stack, once. Where nothing could be measured, `elapsed_s` is 0, the recorder
/// empty, `complete` false and a mark says why: the row then shows that it is missing.
#[derive(Clone, Debug)]
pub struct RoundResult {
    /// Number of the round, from 1.
    pub round: u32,
    /// What was asked.
    pub workload: Workload,
    /// What it ran on.
    pub ran: Ran,
    /// Everything that its workers recorded, merged.
    pub recorder: Recorder,
    /// Nanoseconds a tick of the recorder's latencies.
    pub ns_per_tick: f64,
    /// Seconds of the measured window, as measured.
    pub elapsed_s: f64,
    /// Processor use in it.
    pub cpu: CpuUse,
    /// What else was used in it; `None` where nothing was measured.
    pub accounts: Option<Accounts>,
    /// The state of each drive before and after it, in the order of `ran.drives`; empty where nothing was
    /// measured.
    pub conditions: Vec<[Condition; 2]>,
    /// I/Os in flight, mean over the window, counted over all workers; `None` when not counted.
    pub in_flight_mean: Option<f64>,
    /// Looks at the completion queue; `None` where the engine does not poll.
    pub polls: Option<Polls>,
    /// Doorbell writes; `None` where the engine has no doorbells.
    pub doorbells: Option<Doorbells>,
    /// What the instruments saw, where there were any.
    pub instruments: Option<InstrumentsSeen>,
    /// What the harness itself takes with this workload, measured in the same round.
    pub harness_ns: Option<HarnessNs<f64>>,
    /// I/Os a second of each drive, in the order of `ran.drives`; empty where nothing was measured.
    pub iops_by_drive: Vec<f64>,
    /// What was checked of the content; `None` where nothing was to be.
    pub verified: Option<Verified>,
    /// Whether it ran to its planned end.
    pub complete: bool,
    /// What the run has to say against it.
    pub marks: Vec<Mark>,
}

impl RoundResult {
    /// Whether there is anything to make a figure of.
    fn is_measured(&self) -> bool {
        self.elapsed_s.is_finite() && self.elapsed_s > 0.0
    }

    /// I/Os a second, of one direction or of both.
    fn iops(&self, direction: Option<Direction>) -> Option<f64> {
        self.is_measured().then(|| count(&self.recorder, direction) as f64 / self.elapsed_s)
    }

    fn bw_bytes(&self, direction: Option<Direction>) -> Option<f64> {
        let iops = self.iops(direction)?;
        match self.workload.bssplit {
            Some(_) => Some(self.recorder.bytes(direction) as f64 / self.elapsed_s),
            None => Some(iops * f64::from(self.workload.bs_bytes)),
        }
    }

    fn series(&self) -> Option<RoundSeries> {
        let bs_bytes = self.workload.bssplit.is_none().then_some(self.workload.bs_bytes);
        RoundSeries::of(&self.recorder, self.ns_per_tick, bs_bytes).filter(|_| self.is_measured())
    }

    fn in_flight_asked(&self) -> f64 {
        f64::from(self.workload.iodepth)
            * f64::from(self.workload.numjobs)
            * self.ran.drives.len() as f64
    }

    fn summary(&self, order: u32) -> RoundSummary {
        RoundSummary {
            round: self.round,
            order,
            complete: self.complete,
            elapsed_s: finite_or_0(self.elapsed_s),
            ios: self.recorder.count_all(),
            iops: self.iops(None),
            bw_bytes: self.bw_bytes(None),
            lat_ns: lat_ns(&self.recorder, None, self.ns_per_tick),
            cpu: finite_cpu(self.cpu),
            in_flight_mean: self.in_flight_mean.filter(|mean| mean.is_finite()),
            errors: self.recorder.errors().total(),
            polls: self.polls,
            iops_by_drive: self.iops_by_drive.iter().map(|iops| finite_or_0(*iops)).collect(),
            series: self.series(),
        }
    }
}

impl Report {
    /// Makes rows of `rounds`, which are in the order in which they ran. The stack that ran first
    /// is the one that the others are compared with. `complete` says whether everything planned was
    /// attempted; rounds and rows that are not complete make the report incomplete, too.
    pub fn assemble(
        plan: serde_json::Value,
        environment: Environment,
        rounds: &[RoundResult],
        complete: bool,
    ) -> Self {
        let mut rows = Vec::new();
        for workload in distinct(rounds, |a, b| a.workload == b.workload) {
            let of_workload = numbered(rounds).filter(|(_, r)| r.workload == workload.workload);
            let of_workload: Vec<_> = of_workload.collect();
            let stacks = distinct(rounds, |a, b| a.ran.is_same_row(&b.ran));
            let block = stacks.into_iter().filter_map(|stack| {
                let own: Vec<_> = of_workload
                    .iter()
                    .copied()
                    .filter(|(_, round)| round.ran.is_same_row(&stack.ran))
                    .collect();
                row(&own)
            });
            rows.extend(compared(block.collect()));
        }
        Self {
            schema: SCHEMA.to_owned(),
            complete: complete && rows.iter().all(|row| row.complete),
            marks: marks::of_machine(&environment.machine),
            environment,
            plan,
            elapsed_s: rows.iter().map(|row| row.elapsed_s).sum(),
            rows,
        }
    }
}

/// A round and its place in the run, from 1.
type Numbered<'a> = (u32, &'a RoundResult);

fn numbered(rounds: &[RoundResult]) -> impl Iterator<Item = Numbered<'_>> {
    (1..).zip(rounds)
}

/// The first round of each kind, in order of appearance.
fn distinct(
    rounds: &[RoundResult],
    same: impl Fn(&RoundResult, &RoundResult) -> bool,
) -> Vec<&RoundResult> {
    let mut found: Vec<&RoundResult> = Vec::new();
    for round in rounds {
        if !found.iter().any(|other| same(other, round)) {
            found.push(round);
        }
    }
    found
}

/// Rows of one workload, each with its ratio to the first row that ran on the same drives: a ratio
/// between different ones would be one of drives as much as of stacks.
fn compared(mut block: Vec<Row>) -> Vec<Row> {
    for index in 1..block.len() {
        let (before, rest) = block.split_at_mut(index);
        let (Some(row), Some(first)) = (rest.first_mut(), before.first()) else { break };
        match before.iter().find(|other| marks::same_drives(row, other)) {
            Some(base) => row.ratio = ratio_to(row, base),
            None => row.marks.push(marks::of_other_drives(row, first)),
        }
    }
    block
}

/// IOPS of `row` against `first`, over the rounds that both have to the end.
fn ratio_to(row: &Row, first: &Row) -> Option<RatioTo> {
    let (ours, base): (Vec<f64>, Vec<f64>) = row
        .rounds
        .iter()
        .filter_map(|our| {
            let base = first.rounds.iter().find(|base| base.round == our.round)?;
            (our.complete && base.complete).then_some((our.iops?, base.iops?))
        })
        .unzip();
    let certain = |row: &Row| {
        let rounds = row.rounds.iter().filter(|round| round.complete).count();
        resolution(row.in_flight_mean?, row.ios as f64, rounds)
    };
    let part = certain(row).into_iter().chain(certain(first)).fold(0.0, f64::max);
    Some(RatioTo { of: first.stack.clone(), ratio: ratio(&ours, &base)?.resolved_to(part) })
}

/// One row of its rounds; `None` without any.
fn row(rounds: &[Numbered<'_>]) -> Option<Row> {
    let (_, first) = *rounds.first()?;
    let merged = Merged::new(rounds)?;
    // Of all rounds, those too that are in no mean.
    let mut errors = ErrorTally::default();
    rounds.iter().for_each(|(_, round)| errors.merge(round.recorder.errors()));
    let mixed = |direction| first.workload.rw.is_mixed().then(|| merged.side(direction)).flatten();
    let mut row = Row {
        stack: first.ran.stack.clone(),
        engine: first.ran.engine.clone(),
        target: first.ran.target(),
        drives: first.ran.drives.clone(),
        workload: first.workload.clone(),
        complete: rounds.iter().all(|(_, round)| round.complete),
        rounds: rounds.iter().map(|(order, round)| round.summary(*order)).collect(),
        iops: merged.interval(|round| round.iops(None)),
        bw_bytes: merged.interval(|round| round.bw_bytes(None)),
        lat_ns: lat_ns(&merged.recorder, None, merged.ns_per_tick),
        cpu: merged.cpu(),
        accounts: merged.accounts(),
        drive_states: drive_state::of(&merged.rounds),
        in_flight_mean: merged.weighted(|round| round.in_flight_mean),
        in_flight_asked: first.in_flight_asked(),
        steady: merged.steadiness(),
        verified: verified(rounds),
        errors: errors.total(),
        error_kinds: error_kinds(&errors),
        ratio: None,
        facts: rounds.last().map(|(_, round)| round.ran.facts.clone()).unwrap_or_default(),
        ios: merged.recorder.count_all(),
        elapsed_s: merged.elapsed_s,
        polls: merged.polls(),
        doorbell_writes_per_io: merged.doorbell_writes_per_io(),
        harness_ns_per_io: merged.harness(),
        stages: stages::of(&merged.rounds, lat_ns(&merged.recorder, None, merged.ns_per_tick)),
        iops_by_drive: merged.by_drive(first.ran.drives.len()),
        read: mixed(Direction::Read),
        write: mixed(Direction::Write),
        flush: flushes(&merged.recorder, merged.ns_per_tick),
        marks: Vec::new(),
    };
    for mark in rounds.iter().flat_map(|(_, round)| &round.marks) {
        if !row.marks.contains(mark) {
            row.marks.push(mark.clone());
        }
    }
    let own = marks::of_row(&row);
    row.marks.extend(own);
    Some(row)
}

/// What was checked in all rounds.
fn verified(rounds: &[Numbered<'_>]) -> Option<Verified> {
    let mut checked = rounds.iter().filter_map(|(_, round)| round.verified.as_ref());
    let mut sum = checked.next()?.clone();
    checked.for_each(|more| sum.merge(more));
    Some(sum)
}

/// The rounds that a row's figures are of: the complete ones, or all when none is.
struct Merged<'a> {
    rounds: Vec<&'a RoundResult>,
    recorder: Recorder,
    ns_per_tick: f64,
    elapsed_s: f64,
}

impl<'a> Merged<'a> {
    fn new(rounds: &[Numbered<'a>]) -> Option<Self> {
        let any_complete = rounds.iter().any(|(_, round)| round.complete);
        let used = rounds.iter().map(|(_, round)| *round);
        let used: Vec<_> = used.filter(|round| round.complete || !any_complete).collect();
        let mut recorder = Recorder::new();
        used.iter().for_each(|round| recorder.merge(&round.recorder));
        let ns_per_tick = used.first()?.ns_per_tick;
        let measured = used.iter().filter(|round| round.is_measured());
        let elapsed_s = measured.map(|round| round.elapsed_s).sum();
        Some(Self { rounds: used, recorder, ns_per_tick, elapsed_s })
    }

    /// Mean and interval of a figure over rounds; `None` when a round lacks it.
    fn interval(&self, figure: impl Fn(&RoundResult) -> Option<f64>) -> Option<Interval> {
        let samples: Option<Vec<f64>> = self.rounds.iter().map(|round| figure(round)).collect();
        mean_interval(&samples?)
    }

    /// Whether the last rounds' I/Os a second are steady.
    fn steadiness(&self) -> Option<Steadiness> {
        let iops: Option<Vec<f64>> = self.rounds.iter().map(|round| round.iops(None)).collect();
        Steadiness::of(&iops?)
    }

    /// Mean of a figure over the measured time; `None` when a round lacks it.
    fn weighted(&self, figure: impl Fn(&RoundResult) -> Option<f64>) -> Option<f64> {
        let sum = self.sum(|round| Some(figure(round)? * round.elapsed_s))?;
        Some(sum / self.elapsed_s).filter(|mean| mean.is_finite())
    }

    fn sum(&self, figure: impl Fn(&RoundResult) -> Option<f64>) -> Option<f64> {
        let sum: Option<f64> = self.rounds.iter().map(|round| figure(round)).sum();
        sum.filter(|sum| sum.is_finite())
    }

    fn cpu(&self) -> CpuUse {
        CpuUse {
            machine_pct: self.weighted(|round| round.cpu.machine_pct),
            machine_busy_s: self.sum(|round| round.cpu.machine_busy_s),
            user_s: self.sum(|round| round.cpu.user_s),
            sys_s: self.sum(|round| round.cpu.sys_s),
            ns_per_io: None,
        }
        .per(self.recorder.count_all())
    }

    fn accounts(&self) -> Option<Accounts> {
        let all: Option<Vec<&Accounts>> =
            self.rounds.iter().map(|round| round.accounts.as_ref()).collect();
        Accounts::sum(all?.into_iter())
    }

    fn polls(&self) -> Option<Polls> {
        let polls: Option<Vec<Polls>> = self.rounds.iter().map(|round| round.polls).collect();
        Some(polls?.iter().fold(Polls { useful: 0, empty: 0 }, |sum, polls| Polls {
            useful: sum.useful.saturating_add(polls.useful),
            empty: sum.empty.saturating_add(polls.empty),
        }))
    }

    fn doorbell_writes_per_io(&self) -> Option<f64> {
        let writes = self.sum(|round| Some(round.doorbells?.writes as f64))?;
        let ios = self.sum(|round| Some(round.doorbells?.ios as f64))?;
        Some(writes / ios).filter(|per_io| per_io.is_finite())
    }

    fn harness(&self) -> Option<HarnessNs<Interval>> {
        Some(HarnessNs {
            batched: self.interval(|round| Some(round.harness_ns?.batched))?,
            one_by_one: self.interval(|round| Some(round.harness_ns?.one_by_one))?,
        })
    }

    /// IOPS of each of several drives, where each round has them.
    fn by_drive(&self, drives: usize) -> Vec<Interval> {
        if drives < 2 {
            return Vec::new();
        }
        let of = |drive: usize| self.interval(|round| round.iops_by_drive.get(drive).copied());
        (0..drives).map(of).collect::<Option<_>>().unwrap_or_default()
    }

    fn side(&self, direction: Direction) -> Option<Side> {
        let ios = self.recorder.count(direction);
        (ios > 0).then(|| Side {
            ios,
            iops: self.interval(|round| round.iops(Some(direction))),
            bw_bytes: self.interval(|round| round.bw_bytes(Some(direction))),
            lat_ns: lat_ns(&self.recorder, Some(direction), self.ns_per_tick),
        })
    }
}

fn count(recorder: &Recorder, direction: Option<Direction>) -> u64 {
    direction.map_or_else(|| recorder.count_all(), |direction| recorder.count(direction))
}

fn lat_ns(recorder: &Recorder, direction: Option<Direction>, ns_per_tick: f64) -> Option<LatNs> {
    recorder.latency(direction, ns_per_tick).as_ref().map(LatNs::from)
}

fn error_kinds(errors: &ErrorTally) -> Vec<ErrorCount> {
    let named = errors.kinds().iter().map(|kind| ErrorCount {
        status: kind.status.to_string(),
        count: kind.count,
        first_offsets: kind.offsets().to_vec(),
    });
    let rest = (errors.unnamed() > 0).then(|| ErrorCount {
        status: "other statuses".to_owned(),
        count: errors.unnamed(),
        first_offsets: Vec::new(),
    });
    named.chain(rest).collect()
}

fn flushes(recorder: &Recorder, ns_per_tick: f64) -> Option<Flushes> {
    let (count, extent) = recorder.flushes();
    let (min, max) = extent.min_max_ticks()?;
    let to_ns = |ticks: u64| ticks as f64 * ns_per_tick;
    let mean_ns = to_ns(extent.sum_ticks()) / count as f64;
    Some(Flushes { count, min_ns: to_ns(min), mean_ns, max_ns: to_ns(max) })
}

/// JSON has no word for what is no number.
fn finite_or_0(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

fn finite_cpu(cpu: CpuUse) -> CpuUse {
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    CpuUse {
        machine_pct: finite(cpu.machine_pct),
        machine_busy_s: finite(cpu.machine_busy_s),
        user_s: finite(cpu.user_s),
        sys_s: finite(cpu.sys_s),
        ns_per_io: finite(cpu.ns_per_io),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MarkKind, sample};
    use super::*;
    use crate::workload::Rw;
    use nvpoll_engine::IoStatus;

    fn assemble(rounds: &[RoundResult]) -> Report {
        Report::assemble(sample::plan(), sample::environment(), rounds, true)
    }

    fn plain() -> Workload {
        Workload::new(Rw::RandRead, 4096, 32)
    }

    #[test]
    fn a_result_of_wine_says_so() {
        let mut environment = sample::environment();
        assert_eq!(Report::assemble(sample::plan(), environment.clone(), &[], true).marks, []);
        environment.machine.wine = Some("8.0".into());
        let report = Report::assemble(sample::plan(), environment, &[], true);
        assert_eq!(report.marks[0].kind, MarkKind::NotWindows);
        assert!(report.marks[0].text.starts_with("Wine, not Windows"));
    }

    #[test]
    fn rows_by_workload_then_stack_in_the_order_of_appearance() {
        let report = sample::report();
        let names: Vec<_> =
            report.rows.iter().map(|row| format!("{} {}", row.workload.rw, row.engine)).collect();
        assert_eq!(
            names.join(", "),
            "randread vfio, randread io_uring, randread libaio, \
             randrw vfio, randrw io_uring, randrw libaio"
        );
        let orders: Vec<_> = report.rows[1].rounds.iter().map(|r| (r.round, r.order)).collect();
        assert_eq!(orders, [(1, 3), (2, 9), (3, 15)]);
        assert!(report.complete);
    }

    #[test]
    fn means_are_over_rounds_and_percentiles_over_all_ios() {
        let row = &sample::report().rows[0];
        let mean = row.iops.unwrap().mean;
        assert!((mean - (12_000.0 + 12_060.0 + 11_960.0) / 3.0).abs() < 1e-6, "{mean}");
        assert!((row.bw_bytes.unwrap().mean - mean * 4096.0).abs() < 1e-3);
        let rounds = || row.rounds.iter().map(|round| round.lat_ns.as_ref().unwrap());
        let latency = row.lat_ns.as_ref().unwrap();
        assert_eq!(latency.count, rounds().map(|lat_ns| lat_ns.count).sum::<u64>());
        assert_eq!(latency.min, rounds().map(|lat_ns| lat_ns.min).min().unwrap());
        assert_eq!(latency.max, rounds().map(|lat_ns| lat_ns.max).max().unwrap());
        assert_eq!((row.ios, row.elapsed_s), (latency.count, 6.0));
        assert_eq!(row.cpu.user_s, Some(3.75));
        let busy_ns = 3.0 * 7.68e9;
        assert!((row.cpu.ns_per_io.unwrap() - busy_ns / row.ios as f64).abs() < 1e-6);
        assert_eq!(row.polls, Some(Polls { useful: 3000, empty: 9000 }));
    }

    #[test]
    fn percentiles_are_no_means_of_percentiles() {
        let mut rounds = vec![sample::round(1, &plain(), "vfio", 1000, 32)];
        rounds.push(sample::round(2, &plain(), "vfio", 1000, 32));
        rounds[1].recorder = Recorder::new();
        for _ in 0..2000 {
            rounds[1].recorder.record(Direction::Read, 1_000_000_000);
        }
        let row = &assemble(&rounds).rows[0];
        // Half of all took half a second: the 90th percentile is that, not half of it.
        let p90 = row.lat_ns.as_ref().unwrap().percentiles.p90;
        assert!((495_000_000..=500_000_000).contains(&p90), "{p90}");
    }

    #[test]
    fn ratios_are_to_the_first_stack_of_the_same_workload() {
        let report = sample::report();
        assert!(report.rows[0].ratio.is_none() && report.rows[3].ratio.is_none());
        let ratio = report.rows[4].ratio.as_ref().unwrap();
        assert_eq!(ratio.of, "userspace vfio");
        assert!((ratio.ratio.mean - 5.0 / 6.0).abs() < 0.002);
        assert_eq!(ratio.ratio.distinguishable, Some(true));
        let noise = report.rows[2].ratio.as_ref().unwrap();
        assert_eq!(noise.ratio.distinguishable, Some(false));
    }

    #[test]
    fn rounds_are_paired_by_their_number() {
        let mut rounds = Vec::new();
        for (number, base, ours) in [(1, 1000, 2000), (2, 3000, 6000), (3, 2000, 4000)] {
            rounds.push(sample::round(number, &plain(), "vfio", base, 32));
            rounds.push(sample::round(number, &plain(), "io_uring", ours, 32));
        }
        // Nothing in flight at an edge: what is left is the pairs' spread.
        rounds.iter_mut().for_each(|round| round.in_flight_mean = None);
        // Every second round in reverse, and one that the base lacks.
        rounds.swap(2, 3);
        rounds.push(sample::round(4, &plain(), "io_uring", 100, 32));
        let ratio = assemble(&rounds).rows[1].ratio.clone().unwrap().ratio;
        assert!((ratio.mean - 2.0).abs() < 1e-9, "{ratio:?}");
        assert!(ratio.ci95.is_some_and(|[low, high]| high - low < 1e-9), "{ratio:?}");
    }

    #[test]
    fn what_did_not_end_is_in_no_mean_but_in_the_report() {
        let mut rounds = vec![sample::round(1, &plain(), "vfio", 1000, 32)];
        let mut cut = sample::round(2, &plain(), "vfio", 500, 32);
        cut.complete = false;
        cut.recorder.record_error(IoStatus::SHORT, 4096);
        rounds.push(cut);
        let report = assemble(&rounds);
        let row = &report.rows[0];
        assert_eq!((row.rounds.len(), row.complete, report.complete), (2, false, false));
        assert_eq!((row.iops.unwrap().mean, row.ios, row.elapsed_s), (1000.0, 2000, 2.0));
        assert_eq!((row.errors, row.rounds[1].errors), (1, 1), "no error is lost");
        assert_eq!(row.error_kinds[0].first_offsets, [4096]);
        let kinds: Vec<_> = row.marks.iter().map(|mark| mark.kind.clone()).collect();
        assert!(kinds.contains(&MarkKind::Incomplete) && kinds.contains(&MarkKind::Errors));
        // Alone, it is better than nothing.
        let alone = assemble(&rounds[1..]);
        assert_eq!(alone.rows[0].iops.unwrap().mean, 500.0);
    }

    #[test]
    fn a_round_that_failed_altogether_spoils_no_figure() {
        let report = sample::poor_report();
        let failed = &report.rows[2];
        assert_eq!((failed.iops, &failed.lat_ns, &failed.ratio), (None, &None, &None));
        assert_eq!((failed.ios, failed.elapsed_s, failed.errors), (0, 0.0, 0));
        assert!(failed.marks.iter().any(|mark| mark.kind == MarkKind::Failed));
    }

    #[test]
    fn directions_apart_in_a_mix_alone() {
        let report = sample::report();
        assert!(report.rows[0].read.is_none() && report.rows[0].write.is_none());
        let (reads, writes) = (report.rows[3].read.clone(), report.rows[3].write.clone());
        let (reads, writes) = (reads.unwrap(), writes.unwrap());
        assert_eq!(reads.ios + writes.ios, report.rows[3].ios);
        let sum = reads.iops.unwrap().mean + writes.iops.unwrap().mean;
        assert!((sum - report.rows[3].iops.unwrap().mean).abs() < 1e-6);
    }

    #[test]
    fn what_is_missing_in_one_round_is_missing_in_the_row() {
        let mut rounds = sample::rounds();
        rounds[6].cpu = CpuUse::default();
        rounds[6].in_flight_mean = None;
        rounds[6].polls = None;
        let row = &assemble(&rounds).rows[0];
        assert_eq!((row.cpu, row.in_flight_mean, row.polls), (CpuUse::default(), None, None));
        assert!(row.iops.is_some());
    }

    #[test]
    fn no_number_that_json_lacks() {
        let mut rounds = vec![sample::round(1, &plain(), "vfio", 1000, 32)];
        rounds[0].elapsed_s = f64::NAN;
        rounds[0].in_flight_mean = Some(f64::INFINITY);
        rounds[0].cpu.machine_pct = Some(f64::NAN);
        rounds[0].ns_per_tick = f64::NAN;
        let report = assemble(&rounds);
        let text = report.to_json().unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }

    #[test]
    fn nothing_measured_is_an_empty_report() {
        assert_eq!(assemble(&[]).rows, []);
    }

    #[test]
    fn marks_of_rounds_appear_once() {
        let mut rounds = sample::rounds();
        for round in &mut rounds {
            round.marks.push(Mark::new(MarkKind::Other("hot".into()), "the drive was hot"));
        }
        let report = assemble(&rounds);
        let hot = |mark: &&Mark| mark.text == "the drive was hot";
        assert!(report.rows.iter().all(|row| row.marks.iter().filter(hot).count() == 1));
    }
}
