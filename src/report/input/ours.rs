//! Results of this program.

use super::{Input, InputRow};
use crate::measure::{Accounts, Interval, WINDOW_ROUNDS, mean_interval, outliers};
use crate::report::accounts::{self, not_available};
use crate::report::figures::rate;
use crate::report::marks::{Mark, MarkKind, of_machine};
use crate::report::merged::{
    Cpu, Direction, Figures, InFlight, Latency, LatencyKind, PERCENTILES, Percentile, RoundFigures,
    SideFigures, SourceKind, Task,
};
use crate::report::model::{LatNs, Percentiles, Report, RoundSummary, Row, Side};
use crate::workload::Workload;
use std::collections::BTreeMap;
use std::path::Path;

/// A result as rows of a report.
pub(super) fn convert(report: Report, path: &Path) -> Input {
    let mut input = Input::new(path, SourceKind::Nvpoll);
    input.source.complete = report.complete;
    input.source.marks = report.marks.clone();
    input.source.marks.extend(of_environment(&report));
    input.source.environment = Some(report.environment.clone());
    input.rows = report.rows.iter().map(row).collect();
    input.report = Some(report);
    input
}

/// What the surroundings say against all rows.
fn of_environment(report: &Report) -> Vec<Mark> {
    let mut marks = Vec::new();
    if !report.complete {
        let text = "not everything that was planned was measured; these are the rows there are";
        marks.push(Mark::new(MarkKind::Incomplete, text));
    }
    // Results of versions that did not say it themselves.
    let said = |kind: &MarkKind| report.marks.iter().any(|mark| mark.kind == *kind);
    let machine = of_machine(&report.environment.machine).into_iter();
    marks.extend(machine.filter(|mark| !said(&mark.kind)));
    marks
}

fn row(row: &Row) -> InputRow {
    let sides = [(Direction::Reads, &row.read), (Direction::Writes, &row.write)];
    let mut figures = Figures {
        engine: Some(row.engine.clone()),
        target: Some(row.target.clone()),
        drives: row.drives.clone(),
        complete: row.complete,
        iops: row.iops,
        bw_bytes: row.bw_bytes,
        lat_ns: row.lat_ns.as_ref().map(latency),
        cpu: cpu(row),
        in_flight: InFlight {
            counted: row.in_flight_mean,
            asked: Some(row.in_flight_asked),
            by_law: None,
        },
        rounds: rounds(&row.rounds),
        sides: sides
            .into_iter()
            .filter_map(|(side, of)| Some(side_figures(side, of.as_ref()?)))
            .collect(),
        errors: row.errors,
        error_kinds: row.error_kinds.clone(),
        ios: Some(row.ios),
        elapsed_s: Some(row.elapsed_s),
        polls: row.polls,
        accounts: accounts::of_row(row),
        context_switches: row.accounts.as_ref().and_then(own_switches),
        drive_states: row.drive_states.clone(),
        facts: facts(row),
        marks: row.marks.clone(),
        ..Figures::new(&super::name(&row.stack))
    };
    // What other drives the row ran on stands against the rows of its own file, not of the report.
    figures.marks.retain(|mark| mark.kind != MarkKind::DifferentTargets);
    figures.marks.extend(outlier_mark(&figures.rounds));
    InputRow { task: task(&row.workload), figures }
}

/// This process's context switches of both kinds.
fn own_switches(accounts: &Accounts) -> Option<u64> {
    Some(accounts.voluntary_switches?.saturating_add(accounts.involuntary_switches?))
}

fn side_figures(side: Direction, of: &Side) -> SideFigures {
    SideFigures {
        side,
        iops: of.iops,
        bw_bytes: of.bw_bytes,
        lat_ns: of.lat_ns.as_ref().map(latency),
    }
}

/// The row's mean is over the measured time; its interval is over rounds, like every other.
fn cpu(row: &Row) -> Cpu {
    let complete = row.rounds.iter().filter(|round| round.complete);
    let samples: Option<Vec<f64>> = complete.map(|round| round.cpu.machine_pct).collect();
    let over_rounds = samples.and_then(|samples| mean_interval(&samples));
    let alone = |mean| Interval { mean, ci95: None };
    let job = |seconds: Option<f64>| {
        seconds.filter(|_| row.elapsed_s > 0.0).map(|s| s / row.elapsed_s * 100.0)
    };
    Cpu {
        machine_pct: row.cpu.machine_pct.map(|mean| over_rounds.unwrap_or_else(|| alone(mean))),
        ns_per_io: row.cpu.ns_per_io,
        job_user_pct: job(row.cpu.user_s),
        job_sys_pct: job(row.cpu.sys_s),
    }
}

fn latency(lat_ns: &LatNs) -> Latency {
    let in_order = |of: &Percentiles| [of.p50, of.p90, of.p99, of.p99_9, of.p99_99, of.p99_999];
    let values = in_order(&lat_ns.percentiles).into_iter().zip(in_order(&lat_ns.beyond));
    let percentiles = PERCENTILES.iter().zip(values);
    Latency {
        kind: LatencyKind::Total,
        mean: lat_ns.mean,
        min: Some(lat_ns.min as f64),
        max: Some(lat_ns.max as f64),
        stddev: lat_ns.stddev,
        count: Some(lat_ns.count),
        percentiles_kind: LatencyKind::Total,
        percentiles: percentiles
            .map(|((name, _), (ns, beyond))| Percentile::new(name, ns as f64, Some(beyond)))
            .collect(),
    }
}

fn rounds(rounds: &[RoundSummary]) -> Vec<RoundFigures> {
    let complete: Vec<&RoundSummary> = rounds.iter().filter(|round| round.complete).collect();
    let values: Option<Vec<f64>> = complete.iter().map(|round| round.iops).collect();
    let outside = outliers(&values.unwrap_or_default());
    let is_outside = |order| {
        complete.iter().zip(&outside).any(|(round, outside)| round.order == order && *outside)
    };
    let figures = |round: &RoundSummary| RoundFigures {
        round: round.round,
        order: round.order,
        complete: round.complete,
        outlier: is_outside(round.order),
        iops: round.iops,
        bw_bytes: round.bw_bytes,
        lat_mean_ns: round.lat_ns.as_ref().map(|lat_ns| lat_ns.mean),
        machine_pct: round.cpu.machine_pct,
        elapsed_s: Some(round.elapsed_s),
        series: round.series.clone(),
    };
    rounds.iter().map(figures).collect()
}

fn outlier_mark(rounds: &[RoundFigures]) -> Option<Mark> {
    let outside: Vec<String> = rounds
        .iter()
        .filter(|round| round.outlier)
        .filter_map(|round| Some(format!("{} ({} IOPS)", round.round, rate(round.iops?))))
        .collect();
    let word = if outside.len() == 1 { "round" } else { "rounds" };
    let verb = if outside.len() == 1 { "lies" } else { "lie" };
    let text = format!(
        "{word} {} {verb} far from the others; no round is left out for that, so mean and interval hold it",
        outside.join(", ")
    );
    (!outside.is_empty()).then(|| Mark::new(MarkKind::OutlierRound, text))
}

/// How the engine ran, and whether the rounds were steady.
fn facts(row: &Row) -> BTreeMap<String, String> {
    let text = match (row.steady, row.rounds.len()) {
        (Some(seen), _) => seen.sentence(),
        (None, rounds) => {
            format!("not known: it takes {WINDOW_ROUNDS} rounds, and here are {rounds}")
        }
    };
    let mut facts = row.facts.clone();
    facts.entry("steady state".to_owned()).or_insert(text);
    let missing = not_available(row.accounts.iter());
    if !missing.is_empty() {
        facts.insert("not available here".to_owned(), missing.join("; "));
    }
    for (index, state) in row.drive_states.iter().enumerate() {
        let name = match row.drive_states.len() {
            1 => "temperature".to_owned(),
            _ => format!("temperature, drive {}", index + 1),
        };
        facts.extend(state.temperatures().map(|text| (name, text)));
    }
    facts
}

/// The workload, and in words what makes it another than a plain one.
fn task(workload: &Workload) -> Task {
    let plain = Workload::new(workload.rw, workload.bs_bytes, workload.iodepth)
        .split(workload.bssplit.clone());
    let mut more = Vec::new();
    if workload.name != plain.name {
        more.push(super::name(&workload.name));
    }
    if workload.fsync > 0 && workload.rw.writes() {
        more.push(format!("a flush every {} writes", workload.fsync));
    }
    more.extend(workload.bssplit.as_ref().map(|split| format!("sizes {split}")));
    more.extend(workload.peculiarities());
    if workload.offset != plain.offset {
        more.push(format!("from {}", workload.offset));
    }
    more.extend(workload.size.map(|size| format!("over {size}")));
    Task {
        rwmixread: workload.rw.is_mixed().then_some(workload.rwmixread),
        iodepth: Some(workload.iodepth),
        numjobs: Some(workload.numjobs),
        more,
        ..Task::new(workload.rw, workload.bs_bytes)
    }
}
