//! The merged report's types: rows of any number of files, block by block. Field names are the JSON's;
//! docs/REPORT.md has their meaning.

use super::accounts::Account;
use super::drive_state::DriveState;
use super::environment::Environment;
use super::highlights::Highlight;
use super::knee::Ladder;
use super::marks::Mark;
use super::model::{Drive, ErrorCount, Polls, RoundSeries};
use crate::measure::{Interval, Ratio};
use crate::workload::{Rw, units::format_size};
use serde::Serialize;
use std::collections::BTreeMap;

/// Name and version of the merged report's JSON.
pub const REPORT_SCHEMA: &str = "nvpoll.report/1";

/// Everything that a report shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Merged {
    /// [`REPORT_SCHEMA`].
    pub schema: &'static str,
    /// This program's version.
    pub nvpoll: &'static str,
    /// The files, in the order in which they were named.
    pub sources: Vec<Source>,
    /// What the figures say, in words.
    pub highlights: Vec<Highlight>,
    /// One for each workload.
    pub blocks: Vec<Block>,
    /// Blocks that differ in their depth alone, and where each stack's knee is.
    pub ladders: Vec<Ladder>,
}

/// What kind of file figures are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// A result of this program.
    Nvpoll,
    /// fio's JSON.
    Fio,
    /// A published table.
    Published,
}

impl SourceKind {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Nvpoll => "nvpoll result",
            Self::Fio => "fio result",
            Self::Published => "published table",
        }
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Source {
    /// As it was named.
    pub file: String,
    /// What kind of file.
    pub kind: SourceKind,
    /// What tells it from the others: its machine, or its file name.
    pub label: String,
    /// Whether everything that was planned was measured.
    pub complete: bool,
    /// Where and with what it ran, as far as the file says.
    pub environment: Option<Environment>,
    /// What else the file says of the whole, as name and value.
    pub facts: BTreeMap<String, String>,
    /// The depth that rows which count none are held against.
    pub reference_depth: Option<ReferenceDepth>,
    /// What is to be said of all its rows.
    pub marks: Vec<Mark>,
}

/// A depth that rows are held against by Little's law.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReferenceDepth {
    /// I/Os in flight.
    pub depth: f64,
    /// Whether it was given; else it is the median of the rows that agree.
    pub given: bool,
    /// Rows within the tolerance of it.
    pub agreeing: usize,
    /// Rows that it could be held against.
    pub of: usize,
}

/// One workload and all that ran it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Block {
    /// `randread 4k, depth 32`.
    pub title: String,
    /// What was asked.
    pub workload: Task,
    /// One for each stack.
    pub rows: Vec<Figures>,
    /// Every two rows that may be compared.
    pub pairs: Vec<Pair>,
}

impl Block {
    /// A row against the first one that it may be compared with; `None` for that one itself.
    pub fn to_first(&self, stack: &str) -> Option<&Pair> {
        // Pairs stand in the order of rows, each row's against the first one first.
        self.pairs.iter().find(|pair| pair.stack == stack)
    }

    /// Accounts that any row has, each once: name and unit.
    pub fn account_names(&self) -> Vec<(&'static str, &'static str)> {
        let mut names = Vec::new();
        for account in self.rows.iter().flat_map(|row| &row.accounts) {
            let name = (account.name, account.unit);
            if account.per_io.is_some() && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether others are held against this one.
    pub fn is_first(&self, stack: &str) -> bool {
        let others = self.rows.iter().filter_map(|row| self.to_first(&row.stack));
        self.to_first(stack).is_none() && others.into_iter().any(|pair| pair.of == stack)
    }
}

/// What was asked, as far as a file says. Two rows are of one block when all of it is equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    /// Access pattern.
    pub rw: Rw,
    /// Bytes an I/O.
    pub bs: u32,
    /// Reads of a mixed pattern, in percent.
    pub rwmixread: Option<u8>,
    /// I/Os in flight a worker.
    pub iodepth: Option<u32>,
    /// Workers.
    pub numjobs: Option<u32>,
    /// What else makes it another workload: ranges, flushes, splits.
    pub more: Vec<String>,
}

impl Task {
    /// A pattern and a block size, the rest not known.
    pub const fn new(rw: Rw, bs: u32) -> Self {
        Self { rw, bs, rwmixread: None, iodepth: None, numjobs: None, more: Vec::new() }
    }

    /// `randread 4k, depth 32, 4 workers`.
    pub fn title(&self) -> String {
        let mut parts = vec![self.short()];
        parts.extend(self.iodepth.map(|depth| format!("depth {depth}")));
        parts.extend(self.rwmixread.map(|percent| format!("{percent} % reads")));
        parts.extend(self.numjobs.filter(|jobs| *jobs > 1).map(|jobs| format!("{jobs} workers")));
        parts.extend(self.more.iter().cloned());
        parts.join(", ")
    }

    /// `randread 4k`.
    pub fn short(&self) -> String {
        format!("{} {}", self.rw, format_size(self.bs.into()))
    }

    /// `random 4k reads at depth 32`.
    pub fn words(&self) -> String {
        let order = if self.rw.is_random() { "random" } else { "sequential" };
        let depth = self.iodepth.map_or_else(String::new, |depth| format!(" at depth {depth}"));
        format!("{order} {} {}{depth}", format_size(self.bs.into()), self.side().words())
    }

    /// Which of the three kinds it is.
    pub const fn side(&self) -> Direction {
        match (self.rw.is_mixed(), self.rw.writes()) {
            (true, _) => Direction::Mixed,
            (false, true) => Direction::Writes,
            (false, false) => Direction::Reads,
        }
    }
}

/// Kinds of workloads that highlights count apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Nothing but reads.
    Reads,
    /// Nothing but writes.
    Writes,
    /// Both.
    Mixed,
}

impl Direction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Reads, Self::Writes, Self::Mixed];

    /// `reads`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Mixed => "reads and writes",
        }
    }

    /// As in "3 of 4 read workloads".
    pub const fn adjective(self) -> &'static str {
        match self {
            Self::Reads => "read",
            Self::Writes => "write",
            Self::Mixed => "mixed",
        }
    }
}

/// One workload on one stack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Column heading, once only in its block.
    pub stack: String,
    /// As the file has it.
    pub stack_in_file: String,
    /// Number of the file, from 0.
    pub source: usize,
    /// Engine's name.
    pub engine: Option<String>,
    /// What it ran on.
    pub target: Option<String>,
    /// The same drive by drive.
    pub drives: Vec<Drive>,
    /// Whether it ran to its end.
    pub complete: bool,
    /// I/Os a second.
    pub iops: Option<Interval>,
    /// Bytes a second.
    pub bw_bytes: Option<Interval>,
    /// Latencies, from just before submission unless `kind` says otherwise.
    pub lat_ns: Option<Latency>,
    /// Processor use.
    pub cpu: Cpu,
    /// I/Os in flight.
    pub in_flight: InFlight,
    /// Every round.
    pub rounds: Vec<RoundFigures>,
    /// Each direction of a mixed pattern.
    pub sides: Vec<SideFigures>,
    /// Operations that failed.
    pub errors: u64,
    /// The same by status.
    pub error_kinds: Vec<ErrorCount>,
    /// I/Os behind the figures.
    pub ios: Option<u64>,
    /// Seconds behind the figures.
    pub elapsed_s: Option<f64>,
    /// Looks at the completion queue.
    pub polls: Option<Polls>,
    /// Energy, cycles, interrupts and switches by the I/O; empty where the file has none.
    pub accounts: Vec<Account>,
    /// The job's own context switches, of both kinds.
    pub context_switches: Option<u64>,
    /// The state of each drive.
    pub drive_states: Vec<DriveState>,
    /// How the engine ran.
    pub facts: BTreeMap<String, String>,
    /// What speaks against the figures.
    pub marks: Vec<Mark>,
}

impl Figures {
    /// A row of which nothing but its name is known.
    pub fn new(stack: &str) -> Self {
        Self {
            stack: stack.to_owned(),
            stack_in_file: stack.to_owned(),
            source: 0,
            engine: None,
            target: None,
            drives: Vec::new(),
            complete: true,
            iops: None,
            bw_bytes: None,
            lat_ns: None,
            cpu: Cpu::default(),
            in_flight: InFlight::default(),
            rounds: Vec::new(),
            sides: Vec::new(),
            errors: 0,
            error_kinds: Vec::new(),
            ios: None,
            elapsed_s: None,
            polls: None,
            accounts: Vec::new(),
            context_switches: None,
            drive_states: Vec::new(),
            facts: BTreeMap::new(),
            marks: Vec::new(),
        }
    }

    /// The account of this name, and its place.
    pub fn account(&self, name: &str) -> Option<(usize, &Account)> {
        self.accounts.iter().enumerate().find(|(_, account)| account.name == name)
    }

    /// I/Os in flight by Little's law: IOPS x mean latency.
    pub fn by_law(&self) -> Option<f64> {
        let lat_ns = self.lat_ns.as_ref().filter(|lat_ns| lat_ns.kind == LatencyKind::Total)?;
        Some(self.iops?.mean * lat_ns.mean / 1e9).filter(|law| law.is_finite() && *law > 0.0)
    }

    /// The system or driver that the stack belongs to: its first word.
    pub fn family(&self) -> &str {
        let own = &self.stack_in_file;
        own.split([' ', '-', '(']).next().filter(|word| !word.is_empty()).unwrap_or(own)
    }
}

/// Between which moments a latency was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyKind {
    /// From just before submission to the completion; fio's `lat`.
    Total,
    /// From after the submission; fio's `clat`.
    Completion,
}

/// Latencies in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// What mean, extremes and standard deviation are of.
    pub kind: LatencyKind,
    /// Mean.
    pub mean: f64,
    /// Shortest.
    pub min: Option<f64>,
    /// Longest.
    pub max: Option<f64>,
    /// Standard deviation.
    pub stddev: Option<f64>,
    /// I/Os that they are of.
    pub count: Option<u64>,
    /// What the percentiles are of.
    pub percentiles_kind: LatencyKind,
    /// In ascending order.
    pub percentiles: Vec<Percentile>,
}

impl Latency {
    /// A mean alone.
    pub const fn of_mean(mean: f64) -> Self {
        Self {
            kind: LatencyKind::Total,
            mean,
            min: None,
            max: None,
            stddev: None,
            count: None,
            percentiles_kind: LatencyKind::Total,
            percentiles: Vec::new(),
        }
    }

    /// The percentile of this name.
    pub fn percentile(&self, name: &str) -> Option<&Percentile> {
        self.percentiles.iter().find(|percentile| percentile.name == name)
    }
}

/// Names of the percentiles that reports show, and which part lies below each.
pub const PERCENTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.99999),
];

/// One percentile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// `p99.9`.
    pub name: &'static str,
    /// Nanoseconds.
    pub ns: f64,
    /// I/Os that rank above it, where the file says.
    pub beyond: Option<u64>,
    /// Whether enough do for it to say something of the next run; `None`: not known.
    pub supported: Option<bool>,
}

impl Percentile {
    /// I/Os that must rank above a percentile for it to be supported.
    pub const BEYOND_MIN: u64 = 10;

    /// A percentile, and whether it is supported.
    pub fn new(name: &'static str, ns: f64, beyond: Option<u64>) -> Self {
        let supported = beyond.map(|beyond| beyond >= Self::BEYOND_MIN);
        Self { name, ns, beyond, supported }
    }
}

/// Processor use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// Of the whole machine, in percent of all processors.
    pub machine_pct: Option<Interval>,
    /// The machine's busy nanoseconds by the I/Os counted.
    pub ns_per_io: Option<f64>,
    /// The job's own time in user mode, in percent of one processor: fio's `usr_cpu`, all jobs together.
    pub job_user_pct: Option<f64>,
    /// The same in the kernel: fio's `sys_cpu`.
    pub job_sys_pct: Option<f64>,
}

/// I/Os in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct InFlight {
    /// Counted by the program that measured.
    pub counted: Option<f64>,
    /// Asked for.
    pub asked: Option<f64>,
    /// IOPS x mean latency.
    pub by_law: Option<f64>,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundFigures {
    /// Number, from 1.
    pub round: u32,
    /// Place in its run, from 1.
    pub order: u32,
    /// Whether it ran to its end; others are in no mean.
    pub complete: bool,
    /// Whether it lies far from the others. It is in every mean all the same.
    pub outlier: bool,
    /// I/Os a second.
    pub iops: Option<f64>,
    /// Bytes a second.
    pub bw_bytes: Option<f64>,
    /// Mean latency in nanoseconds.
    pub lat_mean_ns: Option<f64>,
    /// Of the whole machine, in percent.
    pub machine_pct: Option<f64>,
    /// Seconds measured.
    pub elapsed_s: Option<f64>,
    /// The same second by second.
    pub series: Option<RoundSeries>,
}

/// One direction of a mixed pattern.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideFigures {
    /// `reads` or `writes`.
    pub side: Direction,
    /// I/Os a second.
    pub iops: Option<Interval>,
    /// Bytes a second.
    pub bw_bytes: Option<Interval>,
    /// Latencies.
    pub lat_ns: Option<Latency>,
}

/// How two rows were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Round by round.
    Paired,
    /// Two runs of their own.
    Independent,
    /// One figure each: no interval.
    Single,
}

/// Two rows of a block that ran on the same drives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Which is compared.
    pub stack: String,
    /// With which.
    pub of: String,
    /// How.
    pub method: Method,
    /// Rounds of each that went into it.
    pub rounds: [usize; 2],
    /// IOPS of `stack` by those of `of`.
    pub iops: Option<Ratio>,
    /// Mean latency, likewise.
    pub lat_mean: Option<Ratio>,
    /// The machine's CPU of `stack` less that of `of`, in percentage points.
    pub cpu_points: Option<Interval>,
    /// The same in words.
    pub text: String,
}
