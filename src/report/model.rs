//! The document's types. Field names are the JSON's; docs/RESULT-FORMAT.md has their meaning.

use super::drive_state::DriveState;
use super::environment::Environment;
use super::marks::Mark;
use crate::measure::{Accounts, CpuUse, Interval, LatencySummary, Steadiness};
use crate::run::{HarnessNs, Verified};
use crate::workload::Workload;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name and version of the format. The number changes when a reader of the old one would
/// misunderstand the new one; added fields do not change it.
pub const SCHEMA: &str = "nvpoll.result/1";

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Whether everything that was planned was measured.
    pub complete: bool,
    /// Where and with what it ran.
    pub environment: Environment,
    /// What was to run, as the run's plan has it: enough to run it again.
    pub plan: serde_json::Value,
    /// Seconds measured, over all rows and rounds.
    pub elapsed_s: f64,
    /// One for each workload and stack.
    pub rows: Vec<Row>,
    /// What is to be said of the whole.
    #[serde(default)]
    pub marks: Vec<Mark>,
}

/// One workload on one stack, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Engine and operating system, as a column heading: `Linux io_uring`.
    pub stack: String,
    /// Engine's name: `io_uring`.
    pub engine: String,
    /// What it ran on, as named by the user; several are joined with commas.
    pub target: String,
    /// The same, one for each drive.
    pub drives: Vec<Drive>,
    /// What was asked of it.
    pub workload: Workload,
    /// Whether every planned round was measured to its end.
    pub complete: bool,
    /// Every round, in the order in which they ran.
    pub rounds: Vec<RoundSummary>,
    /// I/Os a second. `None` when nothing was measured.
    pub iops: Option<Interval>,
    /// Bytes a second.
    pub bw_bytes: Option<Interval>,
    /// Latencies of all rounds together. `None` when no I/O completed.
    pub lat_ns: Option<LatNs>,
    /// Processor use.
    pub cpu: CpuUse,
    /// Energy, cycles, interrupts, switches, and what else went on; `None` in results before they were
    /// there and where nothing was measured.
    #[serde(default)]
    pub accounts: Option<Accounts>,
    /// I/Os in flight, mean over the measured time.
    pub in_flight_mean: Option<f64>,
    /// I/Os in flight that the workload asks for, over all workers and drives.
    pub in_flight_asked: f64,
    /// Operations that failed.
    pub errors: u64,
    /// The same by status.
    #[serde(default)]
    pub error_kinds: Vec<ErrorCount>,
    /// IOPS against those of the first stack on the same drives; `None` in that stack's own row.
    pub ratio: Option<RatioTo>,
    /// How the engine ran ("fixed buffers": "yes").
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
    /// I/Os measured.
    pub ios: u64,
    /// Seconds measured.
    pub elapsed_s: f64,
    /// Looks at the completion queue; `None` where the engine does not poll.
    pub polls: Option<Polls>,
    /// Doorbell writes an I/O, of both doorbells together; `None` where the engine has none.
    #[serde(default)]
    pub doorbell_writes_per_io: Option<f64>,
    /// What the harness itself takes for an I/O of this workload, measured in the same rounds; `None` in
    /// results before it was there, and where nothing was measured.
    #[serde(default)]
    pub harness_ns_per_io: Option<HarnessNs<Interval>>,
    /// Where the time of an I/O went; `None` without instruments.
    #[serde(default)]
    pub stages: Option<Stages>,
    /// IOPS of each drive, in the order of `drives`; empty for one drive, whose are the row's.
    #[serde(default)]
    pub iops_by_drive: Vec<Interval>,
    /// Reads alone, of a mixed pattern.
    pub read: Option<Side>,
    /// Writes alone, of a mixed pattern.
    pub write: Option<Side>,
    /// Flushes, where there were any.
    pub flush: Option<Flushes>,
    /// Whether the last rounds were steady; `None` where there are too few to say.
    #[serde(default)]
    pub steady: Option<Steadiness>,
    /// What was checked of the content; `None` where nothing was to be.
    #[serde(default)]
    pub verified: Option<Verified>,
    /// The state of each drive over the rounds; empty in results before it was there, and where nothing is
    /// known.
    #[serde(default)]
    pub drive_states: Vec<DriveState>,
    /// What speaks against the figures above.
    pub marks: Vec<Mark>,
}

/// One round of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundSummary {
    /// Number of the round, from 1.
    pub round: u32,
    /// Place in the whole run's order, from 1: rounds of different stacks are interleaved.
    pub order: u32,
    /// Whether it ran to its planned end.
    pub complete: bool,
    /// Seconds measured.
    pub elapsed_s: f64,
    /// I/Os that were submitted and completed in them.
    pub ios: u64,
    /// I/Os a second.
    pub iops: Option<f64>,
    /// Bytes a second.
    pub bw_bytes: Option<f64>,
    /// Latencies.
    pub lat_ns: Option<LatNs>,
    /// Processor use.
    pub cpu: CpuUse,
    /// I/Os in flight, mean over the measured time.
    pub in_flight_mean: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// Looks at the completion queue.
    pub polls: Option<Polls>,
    /// I/Os a second of each drive; empty where nothing was measured.
    #[serde(default)]
    pub iops_by_drive: Vec<f64>,
    /// The same second by second; `None` in results before it was there, and where nothing was measured.
    #[serde(default)]
    pub series: Option<RoundSeries>,
}

/// A round, step by step: one value of each list a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundSeries {
    /// Seconds of a step. The last one may be shorter: it ends with the round's `elapsed_s`.
    pub step_s: f64,
    /// I/Os, all workers' and drives' together.
    pub ios: Vec<u64>,
    /// Their bytes.
    pub bytes: Vec<u64>,
    /// Their mean latency in nanoseconds; `None` where there were none.
    pub lat_mean_ns: Vec<Option<f64>>,
    /// The longest of them, likewise.
    pub lat_max_ns: Vec<Option<u64>>,
}

/// One step of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesStep {
    /// When it began, in seconds from the window's opening.
    pub from_s: f64,
    /// How long it was, in seconds.
    pub length_s: f64,
    /// I/Os.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their mean latency in nanoseconds.
    pub lat_mean_ns: Option<f64>,
    /// The longest of them.
    pub lat_max_ns: Option<u64>,
}

impl SeriesStep {
    /// I/Os a second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.length_s
    }
}

impl RoundSeries {
    /// Every step of a round of `elapsed_s`.
    pub fn all(&self, elapsed_s: f64) -> Vec<SeriesStep> {
        let last = self.ios.len().saturating_sub(1);
        let step = |(index, ios): (usize, &u64)| {
            let from_s = index as f64 * self.step_s;
            let length_s = if index == last { (elapsed_s - from_s).max(0.0) } else { self.step_s };
            SeriesStep {
                from_s,
                length_s,
                ios: *ios,
                bytes: self.bytes.get(index).copied().unwrap_or(0),
                lat_mean_ns: self.lat_mean_ns.get(index).copied().flatten(),
                lat_max_ns: self.lat_max_ns.get(index).copied().flatten(),
            }
        };
        self.ios.iter().enumerate().map(step).collect()
    }

    /// Those that are long enough to make a rate of: half of `step_s` at least, which all are but maybe
    /// the last.
    pub fn steps(&self, elapsed_s: f64) -> Vec<SeriesStep> {
        let mut steps = self.all(elapsed_s);
        steps.retain(|step| step.length_s > 0.0 && step.length_s >= self.step_s / 2.0);
        steps
    }
}

/// A drive, or what stood in for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// As named by the user.
    pub target: String,
    /// What it is.
    pub kind: DriveKind,
    /// PCI address, where it has one.
    pub address: Option<String>,
    /// Model, as Identify Controller has it.
    pub model: Option<String>,
    /// Serial number, likewise.
    pub serial: Option<String>,
    /// Firmware revision, likewise.
    pub firmware: Option<String>,
    /// Usable size.
    pub size_bytes: Option<u64>,
    /// Logical block size.
    pub block_bytes: Option<u32>,
    /// NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// Its PCIe link; `None` where it has none, or the system does not say.
    #[serde(default)]
    pub link: Option<PcieLink>,
}

/// A PCIe link, as it was negotiated and as the drive could have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Rate of a lane in millions of transfers a second: 8000 for generation 3.
    pub mt_s: u32,
    /// Lanes.
    pub lanes: u8,
    /// The highest rate of the drive.
    pub mt_s_max: u32,
    /// The most lanes of the drive.
    pub lanes_max: u8,
}

impl Drive {
    /// A drive of which nothing but name and kind is known.
    pub fn new(target: impl Into<String>, kind: DriveKind) -> Self {
        Self {
            target: target.into(),
            kind,
            address: None,
            model: None,
            serial: None,
            firmware: None,
            size_bytes: None,
            block_bytes: None,
            numa_node: None,
            link: None,
        }
    }

    /// Whether both are the same piece of hardware, whatever the name each was reached by.
    pub fn is_same(&self, other: &Self) -> bool {
        let equal = |ours: &Option<String>, theirs: &Option<String>| {
            ours.as_ref().zip(theirs.as_ref()).map(|(ours, theirs)| ours == theirs)
        };
        equal(&self.address, &other.address)
            .or_else(|| {
                let serial = equal(&self.serial, &other.serial)?;
                Some(serial && equal(&self.model, &other.model).unwrap_or(true))
            })
            .unwrap_or(self.kind == other.kind && self.target == other.target)
    }
}

/// What a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriveKind {
    /// An NVMe drive.
    Nvme,
    /// A block device that is no NVMe drive, or not known to be one.
    Block,
    /// A file.
    File,
    /// A soft controller in this process.
    Soft,
    /// A soft controller behind a socket.
    VfioUser,
    /// Nothing: the harness's own cost.
    Null,
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Latencies in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatNs {
    /// I/Os that they are of.
    pub count: u64,
    /// Shortest.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Longest.
    pub max: u64,
    /// Standard deviation over I/Os; results before it was there have none.
    #[serde(default)]
    pub stddev: Option<f64>,
    /// Percentiles.
    #[serde(flatten)]
    pub percentiles: Percentiles,
    /// I/Os that rank above each percentile.
    pub beyond: Percentiles,
}

/// One value for each percentile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the percentile that its name says")]
pub struct Percentiles {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    #[serde(rename = "p99.99")]
    pub p99_99: u64,
    #[serde(rename = "p99.999")]
    pub p99_999: u64,
}

impl From<[u64; 6]> for Percentiles {
    fn from([p50, p90, p99, p99_9, p99_99, p99_999]: [u64; 6]) -> Self {
        Self { p50, p90, p99, p99_9, p99_99, p99_999 }
    }
}

impl From<&LatencySummary> for LatNs {
    fn from(summary: &LatencySummary) -> Self {
        Self {
            count: summary.count,
            min: summary.min_ns,
            mean: summary.mean_ns,
            max: summary.max_ns,
            stddev: Some(summary.stddev_ns).filter(|stddev| stddev.is_finite()),
            percentiles: summary.percentiles.map(|percentile| percentile.ns).into(),
            beyond: summary.percentiles.map(|percentile| percentile.beyond).into(),
        }
    }
}

/// Failures of one status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// In words.
    pub status: String,
    /// How many.
    pub count: u64,
    /// Byte offsets of the first of them.
    pub first_offsets: Vec<u64>,
}

/// IOPS against those of the first stack on the same drives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioTo {
    /// The first stack.
    pub of: String,
    /// The ratio, its interval, and whether it can be told from 1.
    #[serde(flatten)]
    pub ratio: crate::measure::Ratio,
}

/// Looks at the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polls {
    /// That found something.
    pub useful: u64,
    /// That found nothing.
    pub empty: u64,
}

/// Where the time of an I/O went, by instruments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// I/Os that were timed.
    pub ios: u64,
    /// From the first entry of a batch until its doorbell was written.
    pub build_ns: StageNs,
    /// From there to the last look that found the completion missing.
    pub device_ns: StageNs,
    /// From there to the look that found it.
    pub detect_ns: StageNs,
    /// From there until the whole batch was taken.
    pub reap_ns: StageNs,
    /// The rest of the mean latency: the loop's own work between the stages.
    pub loop_ns_mean: f64,
    /// I/Os that a pass sent, on the mean.
    pub batch_mean: f64,
    /// What the instruments cost an I/O, measured on this machine in such batches.
    pub cost_ns_per_io: f64,
}

/// One stage, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageNs {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99 % took at most this long.
    pub p99: u64,
    /// Longest.
    pub max: u64,
}

/// One direction of a mixed pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// I/Os measured.
    pub ios: u64,
    /// I/Os a second.
    pub iops: Option<Interval>,
    /// Bytes a second.
    pub bw_bytes: Option<Interval>,
    /// Latencies.
    pub lat_ns: Option<LatNs>,
}

/// Flushes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flushes {
    /// How many.
    pub count: u64,
    /// Shortest, in nanoseconds.
    pub min_ns: f64,
    /// Mean, in nanoseconds.
    pub mean_ns: f64,
    /// Longest, in nanoseconds.
    pub max_ns: f64,
}
