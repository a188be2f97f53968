//! fio's JSON (`--output-format=json` and `json+`), as its source writes it: stat.c, json.c.
//!
//! `lat` is held against our latencies, not `clat`, which leaves submission out. `usr_cpu` and `sys_cpu`
//! are the job's own: fio's JSON does not have the machine's.

use super::fio_job::{Job, PercentileSource};
use super::{Input, InputError, InputRow, ROWS_MAX, name};
use crate::measure::{Interval, LITTLES_TOLERANCE, LittlesLaw};
use crate::report::marks::{Mark, MarkKind};
use crate::report::merged::{
    Cpu, Direction, Figures, InFlight, Latency, LatencyKind, SideFigures, SourceKind, Task,
};
use crate::report::model::{Drive, DriveKind, ErrorCount};
use crate::workload::Rw;
use serde_json::{Map, Value};
use std::path::Path;

/// Engines that return from each call with the I/O done: they keep one in flight, whatever `iodepth` is.
const SYNCHRONOUS: [&str; 6] = ["sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"];

/// Options that make a workload another one when they are set, beside those that have a field.
const DISTINCT: [&str; 12] = [
    "bssplit",
    "bsrange",
    "offset",
    "size",
    "fsync",
    "fdatasync",
    "sync",
    "rate_iops",
    "rate",
    "thinktime",
    "random_distribution",
    "verify",
];

/// The document as rows.
///
/// # Errors
/// [`InputError::Fio`], with the job and what is wrong with it.
pub(super) fn convert(document: &Value, path: &Path) -> Result<Input, InputError> {
    let fail = |what: String| InputError::Fio { path: path.to_owned(), what };
    if document.get("client_stats").is_some() {
        let what = "of a client with servers (client_stats); run fio on each machine, and name all files here";
        return Err(fail(what.to_owned()));
    }
    let jobs = document.get("jobs").and_then(Value::as_array);
    let jobs = jobs
        .ok_or_else(|| fail("it has no list of \"jobs\"; fio did not end in order".to_owned()))?;
    if jobs.len() > ROWS_MAX {
        return Err(fail(format!("{} jobs are more than {ROWS_MAX}", jobs.len())));
    }
    let mut input = Input::new(path, SourceKind::Fio);
    for key in ["fio version", "time"] {
        if let Some(text) = document.get(key).and_then(Value::as_str) {
            input.source.facts.insert(key.to_owned(), name(text));
        }
    }
    let empty = Map::new();
    let global = document.get("global options").and_then(Value::as_object).unwrap_or(&empty);
    let mut groups: Vec<Vec<Job>> = Vec::new();
    for value in jobs {
        let job = Job::read(value, global).map_err(&fail)?;
        // Clones by numjobs share name, group and options; with group_reporting they are one entry.
        match groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|first| first.is_clone(&job)))
        {
            Some(group) => group.push(job),
            None => groups.push(vec![job]),
        }
    }
    input.rows = groups.iter().map(|group| row(group).map_err(&fail)).collect::<Result<_, _>>()?;
    mark_concurrent(&groups, &mut input.rows);
    Ok(input)
}

/// One row of a job and its clones.
fn row(jobs: &[Job]) -> Result<InputRow, String> {
    let first = jobs.first().ok_or("an empty group of jobs")?;
    let task = task(first)?;
    let directions: &[(Direction, &str)] = match task.side() {
        Direction::Reads => &[(Direction::Reads, "read")],
        Direction::Writes if task.rw.trims() => &[(Direction::Writes, "trim")],
        Direction::Writes => &[(Direction::Writes, "write")],
        Direction::Mixed => &[(Direction::Reads, "read"), (Direction::Writes, "write")],
    };
    let sides: Vec<SideFigures> = directions
        .iter()
        .map(|(side, key)| side_figures(jobs, *side, key))
        .collect::<Result<_, _>>()?;
    let engine = first.option("ioengine").unwrap_or("psync").to_owned();
    let sum = |of: fn(&SideFigures) -> Option<Interval>| {
        let all: Option<f64> = sides.iter().map(|side| Some(of(side)?.mean)).sum();
        all.map(|mean| Interval { mean, ci95: None })
    };
    let errors = jobs.iter().map(|job| job.total_err).sum();
    let stack = format!("fio {}{}", name(&engine), extras(first));
    let drives = drives(first);
    let mut figures = Figures {
        engine: Some(name(&engine)),
        target: (!drives.is_empty()).then(|| {
            drives.iter().map(|drive| drive.target.as_str()).collect::<Vec<_>>().join(",")
        }),
        drives,
        complete: jobs.iter().all(|job| job.error == 0),
        iops: sum(|side| side.iops),
        bw_bytes: sum(|side| side.bw_bytes),
        lat_ns: joined(&sides),
        cpu: Cpu {
            job_user_pct: over_jobs(jobs, &task, |job| job.usr_cpu),
            job_sys_pct: over_jobs(jobs, &task, |job| job.sys_cpu),
            ..Cpu::default()
        },
        in_flight: InFlight { asked: Some(asked(&engine, &task)), ..InFlight::default() },
        errors,
        error_kinds: error_kinds(jobs),
        ios: directions
            .iter()
            .map(|(_, key)| jobs.iter().map(|job| job.total_ios(key)).sum::<Option<u64>>())
            .sum(),
        elapsed_s: jobs.iter().filter_map(|job| job.runtime_s(directions)).reduce(f64::max),
        ..Figures::new(&stack)
    };
    figures.facts.insert("jobname".to_owned(), name(&first.jobname));
    if task.side() == Direction::Mixed {
        figures.sides = sides.clone();
    }
    figures.marks = marks(jobs, &sides, &figures);
    Ok(InputRow { task, figures })
}

/// Ways of an engine that are stacks of their own.
fn extras(job: &Job) -> &'static str {
    let set = |key| job.option(key).is_some_and(|value| value != "0");
    match (set("hipri"), set("sqthread_poll")) {
        (true, _) => " (iopoll)",
        (_, true) => " (sqpoll)",
        _ => "",
    }
}

fn task(job: &Job) -> Result<Task, String> {
    let at = |what: String| format!("job \"{}\": {what}", name(&job.jobname));
    let rw = job.option("rw").unwrap_or("read");
    // An option such as randread:8 says how many offsets a draw gives; it is another pattern.
    let (pattern, modifier) = rw.split_once(':').map_or((rw, None), |(rw, more)| (rw, Some(more)));
    let rw: Rw = pattern.parse().map_err(|error| at(format!("rw={pattern}: {error}")))?;
    let bs = job.option("bs").unwrap_or("4k");
    let nth = |place| bs.split(',').nth(place).filter(|part: &&str| !part.is_empty());
    let own = match rw {
        // One that is not given is that of writes.
        _ if rw.trims() => nth(2).or_else(|| nth(1)),
        _ => nth(usize::from(rw.writes() && !rw.is_mixed())),
    };
    let of = own.or_else(|| bs.split(',').next()).unwrap_or(bs);
    let bytes =
        crate::workload::units::parse_size(of).ok().and_then(|bytes| u32::try_from(bytes).ok());
    let bytes = bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| at(format!("bs={}: no block size", name(bs))))?;
    let count = |key| {
        let text = job.option(key).unwrap_or("1");
        text.parse::<u32>().map_err(|_| at(format!("{key}={}: no whole number", name(text))))
    };
    let mut more: Vec<String> =
        modifier.map(|more| format!("rw=…:{}", name(more))).into_iter().collect();
    more.extend((rw.is_mixed() && bs.contains(',')).then(|| format!("bs={}", name(bs))));
    more.extend(DISTINCT.iter().filter_map(|key| {
        let value = job.option(key).filter(|value| !["", "0", "100%", "random"].contains(value))?;
        Some(format!("{key}={}", name(value)))
    }));
    let mix = || job.option("rwmixread").and_then(|value| value.parse().ok()).unwrap_or(50);
    Ok(Task {
        rwmixread: rw.is_mixed().then(mix),
        iodepth: Some(count("iodepth")?),
        numjobs: Some(count("numjobs")?),
        more,
        ..Task::new(rw, bytes)
    })
}

fn asked(engine: &str, task: &Task) -> f64 {
    let depth = if SYNCHRONOUS.contains(&engine) { 1 } else { task.iodepth.unwrap_or(1) };
    f64::from(depth) * f64::from(task.numjobs.unwrap_or(1))
}

/// Files are joined with colons; a colon of a name has a backslash before it.
fn drives(job: &Job) -> Vec<Drive> {
    let list = job.option("filename").unwrap_or_default().replace("\\:", "\u{1}");
    let names = list.split(':').filter(|name| !name.is_empty());
    let drive = |text: &str| {
        let target = name(&text.replace('\u{1}', ":"));
        let kind = if target.starts_with("/dev/") { DriveKind::Block } else { DriveKind::File };
        Drive::new(target, kind)
    };
    names.map(drive).collect()
}

fn side_figures(jobs: &[Job], side: Direction, key: &str) -> Result<SideFigures, String> {
    let total = |of: &dyn Fn(&Job) -> Option<f64>| -> Option<Interval> {
        let mean: Option<f64> = jobs.iter().map(of).sum();
        mean.filter(|mean| mean.is_finite()).map(|mean| Interval { mean, ci95: None })
    };
    let number = |job: &Job, field: &str| {
        let value = job.number(key, field);
        value.ok_or_else(|| {
            format!("job \"{}\": {key} has no number \"{field}\"", name(&job.jobname))
        })
    };
    for job in jobs {
        number(job, "iops")?;
    }
    Ok(SideFigures {
        side,
        iops: total(&|job| job.number(key, "iops")),
        bw_bytes: total(&|job| job.bw_bytes(key)),
        lat_ns: latency(jobs, key),
    })
}

/// All jobs' share of one processor: with group_reporting fio has their mean in one entry.
fn over_jobs(jobs: &[Job], task: &Task, of: impl Fn(&Job) -> Option<f64>) -> Option<f64> {
    let sum: Option<f64> = jobs.iter().map(of).sum();
    let times = if jobs.len() == 1 { task.numjobs.unwrap_or(1) } else { 1 };
    Some(sum? * f64::from(times))
}

/// `lat` of all clones together; where fio counted none, `clat`.
fn latency(jobs: &[Job], key: &str) -> Option<Latency> {
    let (kind, field) = match jobs.iter().all(|job| job.lat_count(key, "lat_ns") > 0) {
        true => (LatencyKind::Total, "lat_ns"),
        false => (LatencyKind::Completion, "clat_ns"),
    };
    let count: u64 = jobs.iter().map(|job| job.lat_count(key, field)).sum();
    if count == 0 {
        return None;
    }
    let each = || jobs.iter().filter(|job| job.lat_count(key, field) > 0);
    let of = |name: &'static str| each().map(move |job| job.lat_number(key, field, name));
    let weighted = |of: &dyn Fn(&Job) -> Option<f64>| -> Option<f64> {
        let sum: Option<f64> =
            each().map(|job| Some(of(job)? * job.lat_count(key, field) as f64)).sum();
        Some(sum? / count as f64)
    };
    let mean = weighted(&|job| job.lat_number(key, field, "mean"))?;
    // Deviations of parts join as their squares, with what the parts' means differ.
    let square = weighted(&|job| {
        let off = job.lat_number(key, field, "mean")? - mean;
        Some(job.lat_number(key, field, "stddev")?.powi(2) + off.powi(2))
    });
    let from = PercentileSource::find(jobs, key);
    Some(Latency {
        kind,
        mean,
        min: of("min").try_fold(f64::INFINITY, |least, value| Some(least.min(value?))),
        max: of("max").try_fold(0.0_f64, |most, value| Some(most.max(value?))),
        stddev: square.map(f64::sqrt),
        count: Some(count),
        percentiles_kind: from.as_ref().map_or(kind, |from| from.kind),
        percentiles: from.map(|from| from.percentiles).unwrap_or_default(),
    })
}

/// Of a mixed pattern both directions: means join by their counts, percentiles do not.
fn joined(sides: &[SideFigures]) -> Option<Latency> {
    if let [one] = sides {
        return one.lat_ns.clone();
    }
    let parts: Vec<&Latency> = sides.iter().filter_map(|side| side.lat_ns.as_ref()).collect();
    let (first, rest) = parts.split_first()?;
    if rest.is_empty() {
        return Some((*first).clone());
    }
    let count: u64 = parts.iter().map(|part| part.count).sum::<Option<u64>>()?;
    let sum: f64 =
        parts.iter().map(|part| Some(part.mean * part.count? as f64)).sum::<Option<f64>>()?;
    let kind = if parts.iter().all(|part| part.kind == first.kind) {
        first.kind
    } else {
        LatencyKind::Completion
    };
    let extreme = |of: fn(&Latency) -> Option<f64>, choose: fn(f64, f64) -> f64| {
        parts.iter().map(|part| of(part)).reduce(|a, b| Some(choose(a?, b?))).flatten()
    };
    Some(Latency {
        kind,
        min: extreme(|part| part.min, f64::min),
        max: extreme(|part| part.max, f64::max),
        count: Some(count),
        ..Latency::of_mean(sum / count as f64)
    })
}

fn error_kinds(jobs: &[Job]) -> Vec<ErrorCount> {
    let mut kinds: Vec<ErrorCount> = Vec::new();
    for job in jobs.iter().filter(|job| job.error != 0) {
        let status = std::io::Error::from_raw_os_error(job.error).to_string();
        match kinds.iter_mut().find(|kind| kind.status == status) {
            Some(kind) => kind.count = kind.count.saturating_add(1),
            None => kinds.push(ErrorCount { status, count: 1, first_offsets: Vec::new() }),
        }
    }
    kinds
}

fn marks(jobs: &[Job], sides: &[SideFigures], figures: &Figures) -> Vec<Mark> {
    let mut marks = Vec::new();
    let text = "processor use is the job's own, as fio has it: interrupts and kernel threads that work for \
                it are left out";
    marks.push(Mark::new(MarkKind::JobCpuOnly, text));
    if let Some(job) = jobs.iter().find(|job| job.error != 0) {
        let why = std::io::Error::from_raw_os_error(job.error);
        let text = format!("fio ended the job with error {}: {why}", job.error);
        marks.push(Mark::new(MarkKind::Errors, text));
    }
    let latencies = || sides.iter().filter_map(|side| side.lat_ns.as_ref());
    if latencies().any(|lat_ns| lat_ns.kind == LatencyKind::Completion) {
        let text =
            "latency is fio's clat, which leaves submission out: too short to hold against others";
        marks.push(Mark::new(MarkKind::Percentiles, text));
    } else if latencies().any(|lat_ns| {
        lat_ns.percentiles_kind == LatencyKind::Completion && !lat_ns.percentiles.is_empty()
    }) {
        let text = "percentiles are of fio's clat, which leaves submission out, the mean is of lat: give fio \
                    lat_percentiles=1";
        marks.push(Mark::new(MarkKind::Percentiles, text));
    }
    if jobs.len() > 1 && latencies().any(|lat_ns| lat_ns.percentiles.is_empty()) {
        let text = format!(
            "percentiles of {} jobs cannot be joined without their histograms: give fio group_reporting, or \
             the format json+",
            jobs.len()
        );
        marks.push(Mark::new(MarkKind::Percentiles, text));
    }
    marks.extend(law(figures));
    marks
}

/// fio counts no I/Os in flight; what was asked for stands in.
fn law(figures: &Figures) -> Option<Mark> {
    let lat_ns = figures.lat_ns.as_ref().filter(|lat_ns| lat_ns.kind == LatencyKind::Total)?;
    let asked = figures.in_flight.asked?;
    let law = LittlesLaw::check(figures.iops?.mean, lat_ns.mean, asked)?;
    let text = format!(
        "IOPS x mean latency gives {:.1} I/Os in flight where iodepth x numjobs is {asked:.0} ({:+.0} %, more \
         than {:.0} %): the depth was not kept, or the latency is not what it says",
        law.expected,
        law.deviation() * 100.0,
        LITTLES_TOLERANCE * 100.0
    );
    (!law.holds()).then(|| Mark::new(MarkKind::LittlesLaw, text))
}

/// Jobs without `stonewall` run at once: each then has the others' load on it.
fn mark_concurrent(groups: &[Vec<Job>], rows: &mut [InputRow]) {
    let spans: Vec<Option<(u64, u64)>> = groups.iter().map(|group| Job::span(group)).collect();
    for (index, row) in rows.iter_mut().enumerate() {
        let Some(Some((start, end))) = spans.get(index) else { continue };
        let overlaps = spans.iter().enumerate().filter(|(other, _)| *other != index);
        let others = overlaps
            .filter(|(_, span)| span.is_some_and(|(other, until)| other < *end && *start < until))
            .count();
        if others > 0 {
            let text = format!(
                "ran while {others} other jobs of the same file ran: each has the others' load on it; fio's \
                 stonewall runs them one by one"
            );
            row.figures.marks.push(Mark::new(MarkKind::Concurrent, text));
        }
    }
}
