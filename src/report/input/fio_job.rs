//! One entry of fio's list of jobs.

use crate::report::merged::Direction;
use crate::report::merged::{LatencyKind, PERCENTILES, Percentile};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Most bins of one histogram: 64 an octave, 29 octaves (fio's stat.h), with room.
const BINS_MAX: usize = 64 * 64;

/// One entry.
pub(super) struct Job {
    pub jobname: String,
    groupid: u64,
    options: BTreeMap<String, String>,
    /// errno that ended it; 0 for none.
    pub error: i32,
    /// Operations that failed and were passed over (`continue_on_error`).
    pub total_err: u64,
    /// Percent of one processor.
    pub usr_cpu: Option<f64>,
    pub sys_cpu: Option<f64>,
    value: Map<String, Value>,
}

impl Job {
    /// Takes the entry apart. The job's own options go before the global ones.
    ///
    /// # Errors
    /// What is missing, and of which job.
    pub fn read(value: &Value, global: &Map<String, Value>) -> Result<Self, String> {
        let value = value.as_object().ok_or("an entry of its jobs is no object")?;
        let jobname = value.get("jobname").and_then(Value::as_str);
        let jobname = jobname.ok_or("one of its jobs has no \"jobname\"")?.to_owned();
        let own = value.get("job options").and_then(Value::as_object);
        let mut options = BTreeMap::new();
        for (key, value) in global.iter().chain(own.into_iter().flatten()) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            options.insert(canonical(key).to_owned(), text);
        }
        let count = |key| value.get(key).and_then(Value::as_u64);
        Ok(Self {
            jobname,
            groupid: count("groupid").unwrap_or(0),
            options,
            error: value
                .get("error")
                .and_then(Value::as_i64)
                .and_then(|code| i32::try_from(code).ok())
                .unwrap_or(0),
            total_err: count("total_err").unwrap_or(0),
            usr_cpu: value.get("usr_cpu").and_then(Value::as_f64),
            sys_cpu: value.get("sys_cpu").and_then(Value::as_f64),
            value: value.clone(),
        })
    }

    /// An option's value, under fio's usual name.
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Whether both are of one job with numjobs.
    pub fn is_clone(&self, other: &Self) -> bool {
        (&self.jobname, self.groupid, &self.options)
            == (&other.jobname, other.groupid, &other.options)
    }

    /// A number of one direction: `read`, `iops`.
    pub fn number(&self, direction: &str, field: &str) -> Option<f64> {
        self.value.get(direction)?.get(field)?.as_f64().filter(|number| *number >= 0.0)
    }

    /// Bytes a second; old versions have KiB alone.
    pub fn bw_bytes(&self, direction: &str) -> Option<f64> {
        let kib = || Some(self.number(direction, "bw")? * 1024.0);
        self.number(direction, "bw_bytes").or_else(kib)
    }

    /// I/Os of one direction.
    pub fn total_ios(&self, direction: &str) -> Option<u64> {
        self.value.get(direction)?.get("total_ios")?.as_u64()
    }

    /// Seconds that its directions ran, the longest of them.
    pub fn runtime_s(&self, directions: &[(Direction, &str)]) -> Option<f64> {
        let times = directions.iter().filter_map(|(_, key)| self.number(key, "runtime"));
        times.reduce(f64::max).map(|ms| ms / 1e3)
    }

    fn lat(&self, direction: &str, field: &str) -> Option<&Map<String, Value>> {
        self.value.get(direction)?.get(field)?.as_object()
    }

    /// I/Os that a latency is of. Versions before 3 have no count; where there is a mean, all I/Os.
    pub fn lat_count(&self, direction: &str, field: &str) -> u64 {
        let Some(lat) = self.lat(direction, field) else { return 0 };
        match lat.get("N").and_then(Value::as_u64) {
            Some(count) => count,
            None if self.lat_number(direction, field, "mean").is_some_and(|mean| mean > 0.0) => {
                self.total_ios(direction).unwrap_or(0)
            }
            None => 0,
        }
    }

    /// `mean`, `min`, `max` or `stddev` of a latency.
    pub fn lat_number(&self, direction: &str, field: &str, name: &str) -> Option<f64> {
        self.lat(direction, field)?.get(name)?.as_f64().filter(|number| *number >= 0.0)
    }

    /// The times between which a job and its clones ran, in ms; versions before 3.36 do not say.
    pub fn span(jobs: &[Self]) -> Option<(u64, u64)> {
        let start = |job: &Self| job.value.get("job_start").and_then(Value::as_u64);
        let from = jobs.iter().map(start).min().flatten()?;
        let length = |job: &Self| {
            let runtime =
                job.runtime_s(&[(Direction::Reads, "read"), (Direction::Writes, "write")])?;
            Some((runtime * 1e3) as u64)
        };
        let longest = jobs.iter().filter_map(length).max()?;
        Some((from, from.checked_add(longest)?))
    }
}

/// fio's aliases of the options that are looked at.
fn canonical(key: &str) -> &str {
    match key {
        "readwrite" => "rw",
        "blocksize" => "bs",
        "iodepth_batch_submit" => "iodepth_batch",
        key => key,
    }
}

/// Percentiles, and what they are of.
pub(super) struct PercentileSource {
    pub kind: LatencyKind,
    pub percentiles: Vec<Percentile>,
}

impl PercentileSource {
    /// Of `lat`, which `lat_percentiles=1` gives, else of `clat`; of several jobs only from their
    /// histograms.
    pub fn find(jobs: &[Job], direction: &str) -> Option<Self> {
        let kinds = [("lat_ns", LatencyKind::Total), ("clat_ns", LatencyKind::Completion)];
        kinds.into_iter().find_map(|(field, kind)| {
            let from_bins = || from_bins(&joined_bins(jobs, direction, field)?);
            let from_list = || match jobs {
                [one] => from_list(one, direction, field),
                _ => None,
            };
            let percentiles = from_bins().or_else(from_list)?;
            Some(Self { kind, percentiles })
        })
    }
}

/// The histograms of all jobs, added; `None` unless each has one.
fn joined_bins(jobs: &[Job], direction: &str, field: &str) -> Option<BTreeMap<u64, u64>> {
    let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
    for job in jobs {
        let bins = job.lat(direction, field)?.get("bins")?.as_object()?;
        if bins.len() > BINS_MAX {
            return None;
        }
        for (ns, count) in bins {
            let sum = joined.entry(ns.parse().ok()?).or_default();
            *sum = sum.checked_add(count.as_u64()?)?;
        }
    }
    (!joined.is_empty()).then_some(joined)
}

fn from_bins(bins: &BTreeMap<u64, u64>) -> Option<Vec<Percentile>> {
    let total = bins
        .values()
        .try_fold(0_u64, |sum, count| sum.checked_add(*count))
        .filter(|total| *total > 0)?;
    let value = |(name, part): (&'static str, f64)| {
        let rank = rank(part, total);
        let mut below = 0_u64;
        let bin = bins.iter().find(|(_, count)| {
            below = below.saturating_add(**count);
            below >= rank
        });
        bin.map(|(ns, _)| Percentile::new(name, *ns as f64, Some(total - rank)))
    };
    PERCENTILES.into_iter().map(value).collect()
}

/// Place, from 1, of the I/O that a part of `total` lies at or below.
fn rank(part: f64, total: u64) -> u64 {
    ((part * total as f64).ceil() as u64).clamp(1, total)
}

fn from_list(job: &Job, direction: &str, field: &str) -> Option<Vec<Percentile>> {
    let list = job.lat(direction, field)?.get("percentile")?.as_object()?;
    let count = job.lat_count(direction, field);
    let value = |(name, part): (&'static str, f64)| {
        let wanted = part * 100.0;
        let is_it = |key: &&String| key.parse::<f64>().is_ok_and(|key| (key - wanted).abs() < 1e-6);
        let ns = list.get(list.keys().find(is_it)?)?.as_f64()?;
        let beyond = (count > 0).then(|| count - rank(part, count));
        Some(Percentile::new(name, ns, beyond))
    };
    let percentiles: Vec<Percentile> = PERCENTILES.into_iter().filter_map(value).collect();
    (!percentiles.is_empty()).then_some(percentiles)
}
