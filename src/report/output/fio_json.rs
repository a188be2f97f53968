//! fio's JSON, for what reads it: a job a row, with fio's names and units (stat.c of its source).
//!
//! fio's format has no word for "not known". What scripts do arithmetic on is 0 where it was not measured,
//! and the job's `nvpoll` object lists it under `not_measured`. Latency is not split: `clat` is all of
//! `lat`, and `slat` 0.

use crate::measure::Interval;
use crate::report::merged::{
    Block, Direction, Figures, Latency, LatencyKind, Merged, PERCENTILES, RoundFigures,
};
use crate::report::model::SeriesStep;
use crate::workload::units::format_size;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::path::PathBuf;

/// All rows as jobs of one document.
///
/// # Errors
/// When it cannot be put into JSON.
pub(super) fn write(merged: &Merged) -> Result<String, serde_json::Error> {
    let rows =
        merged.blocks.iter().flat_map(|block| block.rows.iter().map(move |row| (block, row)));
    let jobs =
        rows.enumerate().map(|(group, (block, row))| job(merged, block, row, group)).collect();
    text(&document(merged, merged.sources.first().map(|_| 0), jobs))
}

/// A file a row, in a folder a stack: fio-plot takes the jobs of one file for the clones of one job, and
/// compares folders.
///
/// # Errors
/// When it cannot be put into JSON.
pub(super) fn files(merged: &Merged) -> Result<Vec<(PathBuf, String)>, serde_json::Error> {
    let mut files = Vec::new();
    let mut taken = HashSet::new();
    for block in &merged.blocks {
        for row in &block.rows {
            let document = document(merged, Some(row.source), vec![job(merged, block, row, 0)]);
            let (folder, name) = (safe(&row.stack), safe(&block.title));
            let mut path = PathBuf::from(&folder).join(format!("{name}.json"));
            // Two names may be the same once they are safe.
            for number in 2.. {
                if taken.insert(path.clone()) {
                    break;
                }
                path = PathBuf::from(&folder).join(format!("{name}-{number}.json"));
            }
            files.push((path, text(&document)?));
        }
    }
    Ok(files)
}

fn text(document: &Value) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// A name that any file system takes.
fn safe(text: &str) -> String {
    let plain =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "_.".contains(c) { c } else { '-' });
    let mut name: String = plain.collect();
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "stack".to_owned() } else { name.chars().take(100).collect() }
}

fn document(merged: &Merged, source: Option<usize>, jobs: Vec<Value>) -> Value {
    let environment = source.and_then(|index| merged.sources.get(index)?.environment.as_ref());
    let date = environment.map(|environment| environment.date.as_str());
    let time = date.and_then(|date| humantime::parse_rfc3339(date).ok());
    let seconds = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let seconds = seconds.map_or(0, |since| since.as_secs());
    json!({
        "fio version": format!("nvpoll-{}", merged.nvpoll),
        "timestamp": seconds,
        "timestamp_ms": seconds.saturating_mul(1000),
        "time": date.unwrap_or_default(),
        "jobs": jobs,
        "disk_util": [],
    })
}

fn job(merged: &Merged, block: &Block, row: &Figures, group: usize) -> Value {
    let mut unknown = Vec::new();
    let numjobs = workers(block, row);
    let per_job = |of: Option<f64>| of.map(|pct| pct / f64::from(numjobs.unwrap_or(1).max(1)));
    let mut known = |name: &str, value: Option<f64>| {
        if value.is_none() {
            unknown.push(name.to_owned());
        }
        value.unwrap_or(0.0)
    };
    let usr_cpu = known("usr_cpu", per_job(row.cpu.job_user_pct));
    let sys_cpu = known("sys_cpu", per_job(row.cpu.job_sys_pct));
    let ctx = known("ctx", row.context_switches.map(|count| count as f64));
    let elapsed_s = row.elapsed_s.unwrap_or(0.0);
    let [read, write] =
        [Direction::Reads, Direction::Writes].map(|side| direction(block, row, side, &mut unknown));
    for name in
        ["majf", "minf", "latency_ns", "latency_us", "latency_ms", "iodepth_level", "slat_ns"]
    {
        unknown.push(name.to_owned());
    }
    unknown.sort();
    unknown.dedup();
    let trims = block.workload.rw.trims();
    json!({
        "jobname": format!("{}: {}", row.stack, block.title),
        "groupid": group,
        "error": 0,
        "eta": 0,
        "elapsed": elapsed_s.ceil(),
        "job options": options(block, row, numjobs),
        "read": read,
        "write": if trims { empty() } else { write.clone() },
        "trim": if trims { write } else { empty() },
        "sync": { "total_ios": 0, "lat_ns": latency(None) },
        "job_runtime": (elapsed_s * 1e3).round(),
        "usr_cpu": usr_cpu,
        "sys_cpu": sys_cpu,
        "ctx": ctx as u64,
        "majf": 0,
        "minf": 0,
        "iodepth_level": {},
        "iodepth_submit": {},
        "iodepth_complete": {},
        "latency_ns": {},
        "latency_us": {},
        "latency_ms": {},
        "nvpoll": {
            "stack": row.stack,
            "source": merged.source(row).map(|source| source.label.as_str()),
            "not_measured": unknown,
            "machine_pct": row.cpu.machine_pct.map(|pct| pct.mean),
            "in_flight": row.in_flight,
            "accounts": row.accounts,
            "marks": row.marks,
        },
    })
}

/// fio's jobs: ours are a drive each.
fn workers(block: &Block, row: &Figures) -> Option<u32> {
    let drives = u32::try_from(row.drives.len()).unwrap_or(1).max(1);
    let is_fio = row.facts.contains_key("jobname");
    block.workload.numjobs.map(|jobs| if is_fio { jobs } else { jobs.saturating_mul(drives) })
}

/// Options as text, as fio has them. What is not known is left out.
fn options(block: &Block, row: &Figures, numjobs: Option<u32>) -> Map<String, Value> {
    let task = &block.workload;
    let mut options = Map::new();
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            options.insert(key.to_owned(), Value::String(value));
        }
    };
    set("name", Some(row.stack.clone()));
    set("ioengine", row.engine.clone());
    set("filename", row.target.as_ref().map(|target| target.replace(':', "\\:").replace(',', ":")));
    set("rw", Some(task.rw.to_string()));
    set("bs", Some(format_size(task.bs.into())));
    set("iodepth", task.iodepth.map(|depth| depth.to_string()));
    set("numjobs", numjobs.map(|jobs| jobs.to_string()));
    set("rwmixread", task.rwmixread.map(|percent| percent.to_string()));
    options
}

/// What one direction's figures are of.
struct Side<'a> {
    iops: Option<Interval>,
    bw_bytes: Option<Interval>,
    lat_ns: Option<&'a Latency>,
    rounds: &'a [RoundFigures],
    ios: Option<u64>,
}

fn direction(block: &Block, row: &Figures, side: Direction, unknown: &mut Vec<String>) -> Value {
    let of = block.workload.side();
    let own = row.sides.iter().find(|figures| figures.side == side);
    let found = match (of == side, own) {
        (true, _) => Side {
            iops: row.iops,
            bw_bytes: row.bw_bytes,
            lat_ns: row.lat_ns.as_ref(),
            rounds: &row.rounds,
            ios: row.ios,
        },
        // Rounds are not kept by direction.
        (false, Some(own)) => Side {
            iops: own.iops,
            bw_bytes: own.bw_bytes,
            lat_ns: own.lat_ns.as_ref(),
            rounds: &[],
            ios: own.lat_ns.as_ref().and_then(|lat_ns| lat_ns.count),
        },
        (false, None) => return empty(),
    };
    if found.ios.is_none() {
        unknown.extend(["total_ios", "io_bytes"].map(str::to_owned));
    }
    let name = |what: &str, missing: bool| missing.then(|| what.to_owned());
    unknown.extend(name("lat_ns", found.lat_ns.is_none()));
    unknown
        .extend(name("lat_ns.stddev", found.lat_ns.is_none_or(|lat_ns| lat_ns.stddev.is_none())));
    let samples = found.rounds.len().max(seconds(found.rounds).len());
    unknown.extend(name("iops_stddev", samples < 2));
    figures(&found, row.elapsed_s, block.workload.bs)
}

fn figures(side: &Side<'_>, elapsed_s: Option<f64>, bs: u32) -> Value {
    let mean = |of: Option<Interval>| of.map_or(0.0, |interval| interval.mean);
    let (iops, bw_bytes) = (mean(side.iops), mean(side.bw_bytes));
    let ios = side.ios.unwrap_or(0);
    let complete = || side.rounds.iter().filter(|round| round.complete);
    let over = |of: fn(&RoundFigures) -> Option<f64>, mean: f64| {
        let values: Vec<f64> = complete().filter_map(of).collect();
        Spread::of(&values, mean)
    };
    let seconds = seconds(side.rounds);
    let (iops_spread, bw) = match seconds.len() {
        0 | 1 => (
            over(|round| round.iops, iops),
            over(|round| Some(round.bw_bytes? / 1024.0), bw_bytes / 1024.0),
        ),
        _ => (
            Spread::of_steps(&seconds, SeriesStep::iops),
            Spread::of_steps(&seconds, |step| step.bytes as f64 / step.length_s / 1024.0),
        ),
    };
    let io_bytes = ios.saturating_mul(bs.into());
    // What fio calls completion is here the whole; see above.
    let lat = side.lat_ns.filter(|lat_ns| lat_ns.kind == LatencyKind::Total);
    json!({
        "io_bytes": io_bytes,
        "io_kbytes": io_bytes / 1024,
        "bw_bytes": bw_bytes.round(),
        "bw": (bw_bytes / 1024.0).round(),
        "iops": iops,
        "runtime": (elapsed_s.unwrap_or(0.0) * 1e3).round(),
        "total_ios": ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latency(None),
        "clat_ns": latency(side.lat_ns),
        "lat_ns": latency(lat),
        "bw_min": bw.min, "bw_max": bw.max, "bw_agg": 100.0, "bw_mean": bw.mean, "bw_dev": bw.stddev,
        "bw_samples": bw.count,
        "iops_min": iops_spread.min, "iops_max": iops_spread.max, "iops_mean": iops_spread.mean,
        "iops_stddev": iops_spread.stddev, "iops_samples": iops_spread.count,
    })
}

fn empty() -> Value {
    let side = Side { iops: None, bw_bytes: None, lat_ns: None, rounds: &[], ios: None };
    figures(&side, None, 0)
}

/// The seconds of all rounds that ran to their end.
fn seconds(rounds: &[RoundFigures]) -> Vec<SeriesStep> {
    let complete = rounds.iter().filter(|round| round.complete);
    let steps = complete.filter_map(|round| Some(round.series.as_ref()?.steps(round.elapsed_s?)));
    steps.flatten().collect()
}

/// fio samples twice a second; here the samples are the seconds of all rounds, or the rounds where there
/// is no series.
struct Spread {
    min: f64,
    max: f64,
    mean: f64,
    stddev: f64,
    count: usize,
}

impl Spread {
    fn of_steps(steps: &[SeriesStep], figure: impl Fn(&SeriesStep) -> f64) -> Self {
        let values: Vec<f64> = steps.iter().map(figure).collect();
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Self::of(&values, mean)
    }

    fn of(values: &[f64], mean: f64) -> Self {
        let count = values.len();
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let stddev = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        let extreme =
            |choose: fn(f64, f64) -> f64| values.iter().copied().reduce(choose).unwrap_or(mean);
        Self { min: extreme(f64::min), max: extreme(f64::max), mean, stddev, count }
    }
}

fn latency(lat_ns: Option<&Latency>) -> Value {
    let Some(lat_ns) = lat_ns else {
        return json!({ "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 });
    };
    let mut value = json!({
        "min": lat_ns.min.unwrap_or(0.0),
        "max": lat_ns.max.unwrap_or(0.0),
        "mean": lat_ns.mean,
        "stddev": lat_ns.stddev.unwrap_or(0.0),
        "N": lat_ns.count.unwrap_or(0),
    });
    let mut list = Map::new();
    for (name, part) in PERCENTILES {
        if let Some(percentile) = lat_ns.percentile(name) {
            list.insert(format!("{:.6}", part * 100.0), json!(percentile.ns));
        }
    }
    if let Some(fields) = value.as_object_mut().filter(|_| !list.is_empty()) {
        fields.insert("percentile".to_owned(), Value::Object(list));
    }
    value
}
