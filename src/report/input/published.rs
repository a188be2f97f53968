//! Published tables as CSV, in two layouts.
//!
//! One row a figure set: a header of `stack,rw,bs,bw_gib_s,iops,lat_mean_ms,cpu_total_pct` (and `iodepth`,
//! `numjobs` where they are known), then a line for each stack and workload.
//!
//! Metrics down, stacks across: a block for each workload, whose first line has the workload and the
//! stacks, and each further line a metric. This is what `nvpoll report --format csv` writes.

use super::{Input, InputError, InputRow, ROWS_MAX, name};
use crate::measure::Interval;
use crate::report::marks::{Mark, MarkKind};
use crate::report::merged::{
    Cpu, Figures, InFlight, Latency, PERCENTILES, Percentile, SourceKind, Task,
};
use crate::report::output::csv::{GIB, Metric, NOT_KNOWN, NS_PER_MS};
use crate::workload::{Rw, units::parse_size};
use csv::StringRecord;
use std::path::Path;

/// IOPS x block size may differ from the bandwidth by this part: published figures are rounded.
const BANDWIDTH_TOLERANCE: f64 = 0.02;

/// Columns that a table of one row a figure set must have.
const COLUMNS: [&str; 7] =
    ["stack", "rw", "bs", "bw_gib_s", "iops", "lat_mean_ms", "cpu_total_pct"];

/// A complaint, before it is known which file it is about.
struct Fault {
    line: Option<u64>,
    what: String,
}

impl Fault {
    fn at(record: &StringRecord, what: impl Into<String>) -> Self {
        Self { line: record.position().map(csv::Position::line), what: what.into() }
    }
}

/// The table's rows.
///
/// # Errors
/// [`InputError::Table`] with the line, [`InputError::Foreign`] when it is no such table.
pub(super) fn parse(text: &str, path: &Path) -> Result<Input, InputError> {
    let mut input = Input::new(path, SourceKind::Published);
    let records = records(text).map_err(|fault| table(path, fault))?;
    let Some((header, rest)) = records.split_first() else {
        return Err(InputError::Empty { path: path.to_owned() });
    };
    let is_long = header.iter().any(|cell| cell.trim() == "stack");
    let rows = if is_long {
        long(header, rest)
    } else if task_of(header.get(0).unwrap_or_default()).is_ok() && header.len() > 1 {
        blocks(&records)
    } else {
        return Err(InputError::Foreign { path: path.to_owned() });
    };
    input.rows = rows.map_err(|fault| table(path, fault))?;
    for row in &mut input.rows {
        row.figures.marks.extend(bandwidth(&row.task, &row.figures));
    }
    Ok(input)
}

fn table(path: &Path, fault: Fault) -> InputError {
    InputError::Table { path: path.to_owned(), line: fault.line, what: fault.what }
}

/// All lines, of whatever length: which cell is missing is said later, and better.
fn records(text: &str) -> Result<Vec<StringRecord>, Fault> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_reader(text.as_bytes());
    let mut records = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| Fault { line: None, what: error.to_string() })?;
        if records.len() > ROWS_MAX {
            return Err(Fault::at(&record, format!("more than {ROWS_MAX} lines are too many")));
        }
        records.push(record);
    }
    Ok(records)
}

/// A cell by its column, not empty.
fn cell<'a>(record: &'a StringRecord, index: usize, column: &str) -> Result<&'a str, Fault> {
    match record.get(index) {
        None => Err(Fault::at(
            record,
            format!("has no cell for {column}: {} cells are too few", record.len()),
        )),
        Some("") => {
            let what = format!(
                "the cell for {column} is empty; write {NOT_KNOWN} for what was not measured"
            );
            Err(Fault::at(record, what))
        }
        Some(text) => Ok(text),
    }
}

/// A figure: not negative, finite; `None` where the table says that it is not known.
fn figure(record: &StringRecord, index: usize, column: &str) -> Result<Option<f64>, Fault> {
    let text = cell(record, index, column)?;
    if text == NOT_KNOWN {
        return Ok(None);
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let what =
        || format!("{column} is \"{}\"; a number without unit or separators is wanted", name(text));
    number.map(Some).ok_or_else(|| Fault::at(record, what()))
}

fn long(header: &StringRecord, rest: &[StringRecord]) -> Result<Vec<InputRow>, Fault> {
    let find = |column: &str| header.iter().position(|cell| cell == column);
    let mut places = [0; COLUMNS.len()];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        let missing = || Fault::at(header, format!("the header has no column {column}"));
        *place = find(column).ok_or_else(missing)?;
    }
    let [stack, rw, bs, bw, iops, lat, cpu] = places;
    let [depth, jobs] = ["iodepth", "numjobs"].map(find);
    let mut rows: Vec<InputRow> = Vec::new();
    for record in rest {
        if record.len() != header.len() {
            let what = format!("has {} cells where the header has {}", record.len(), header.len());
            return Err(Fault::at(record, what));
        }
        let workload = format!("{} {}", cell(record, rw, "rw")?, cell(record, bs, "bs")?);
        let mut task = task_of(&workload).map_err(|what| Fault::at(record, what))?;
        let optional = |place: Option<usize>, column| {
            place.map(|place| whole(record, place, column)).transpose()
        };
        task.iodepth = optional(depth, "iodepth")?;
        task.numjobs = optional(jobs, "numjobs")?;
        let mut figures = Figures::new(&pretty(cell(record, stack, "stack")?));
        figures.bw_bytes = figure(record, bw, "bw_gib_s")?.map(|gib| alone(gib * GIB));
        figures.iops = figure(record, iops, "iops")?.map(alone);
        figures.lat_ns =
            figure(record, lat, "lat_mean_ms")?.map(|ms| Latency::of_mean(ms * NS_PER_MS));
        figures.cpu =
            Cpu { machine_pct: figure(record, cpu, "cpu_total_pct")?.map(alone), ..Cpu::default() };
        add(&mut rows, record, task, figures)?;
    }
    Ok(rows)
}

fn whole(record: &StringRecord, index: usize, column: &str) -> Result<u32, Fault> {
    let text = cell(record, index, column)?;
    let number = text.parse::<u32>().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        Fault::at(record, format!("{column} is \"{}\"; a whole number is wanted", name(text)))
    })
}

/// A row, unless the table has it already.
fn add(
    rows: &mut Vec<InputRow>,
    record: &StringRecord,
    task: Task,
    figures: Figures,
) -> Result<(), Fault> {
    if rows.iter().any(|row| row.task == task && row.figures.stack == figures.stack) {
        let what = format!("{} has {} twice", task.title(), figures.stack);
        return Err(Fault::at(record, what));
    }
    rows.push(InputRow { task, figures });
    Ok(())
}

fn blocks(records: &[StringRecord]) -> Result<Vec<InputRow>, Fault> {
    let mut rows: Vec<InputRow> = Vec::new();
    // The rows from here on are the present block's.
    let mut start = 0;
    for record in records {
        let first = record.get(0).unwrap_or_default();
        if let Some(metric) = Metric::named(first) {
            let block = rows.get_mut(start..).unwrap_or_default();
            if block.len() + 1 != record.len() {
                let what = format!(
                    "has {} figures where the block has {} stacks",
                    record.len() - 1,
                    block.len()
                );
                return Err(Fault::at(record, what));
            }
            for (index, row) in block.iter_mut().enumerate() {
                let column = format!("{first} of {}", row.figures.stack);
                if let Some(value) = figure(record, index + 1, &column)? {
                    set(&mut row.figures, metric, value);
                }
            }
            continue;
        }
        let task = task_of(first).map_err(|what| {
            Fault::at(
                record,
                format!("\"{}\" is neither a metric nor a workload: {what}", name(first)),
            )
        })?;
        start = rows.len();
        for index in 1..record.len() {
            let figures = Figures::new(&pretty(cell(record, index, "a stack")?));
            add(&mut rows, record, task.clone(), figures)?;
        }
    }
    Ok(rows)
}

fn set(figures: &mut Figures, metric: Metric, value: f64) {
    let ends = |interval: &mut Option<Interval>, index: usize| {
        if let Some(interval) = interval {
            let ends = interval.ci95.get_or_insert([interval.mean; 2]);
            if let Some(end) = ends.get_mut(index) {
                *end = value;
            }
        }
    };
    match metric {
        Metric::Bandwidth => figures.bw_bytes = Some(alone(value * GIB)),
        Metric::Iops => figures.iops = Some(alone(value)),
        Metric::IopsLow => ends(&mut figures.iops, 0),
        Metric::IopsHigh => ends(&mut figures.iops, 1),
        Metric::LatMean => figures.lat_ns = Some(Latency::of_mean(value * NS_PER_MS)),
        Metric::Percentile(index) => {
            let named = PERCENTILES.get(index).map(|(name, _)| *name);
            if let Some((lat_ns, name)) = figures.lat_ns.as_mut().zip(named) {
                lat_ns.percentiles.push(Percentile::new(name, value * NS_PER_MS, None));
            }
        }
        Metric::CpuMachine => figures.cpu.machine_pct = Some(alone(value)),
        Metric::InFlight => {
            figures.in_flight = InFlight { counted: Some(value), ..figures.in_flight }
        }
    }
}

const fn alone(mean: f64) -> Interval {
    Interval { mean, ci95: None }
}

/// `randread 4k iodepth=32 numjobs=4`, and what else makes it another workload as it is.
fn task_of(text: &str) -> Result<Task, String> {
    let mut parts = text.split("; ");
    let mut words = parts.next().unwrap_or_default().split_ascii_whitespace();
    let rw: Rw = words.next().unwrap_or_default().parse().map_err(|error| format!("{error}"))?;
    let bs = words.next().ok_or("it has no block size")?;
    let bytes = parse_size(bs).map_err(|error| error.to_string())?;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    let mut task = Task::new(rw, bytes.ok_or_else(|| format!("{bs} is no block size"))?);
    for word in words {
        let number = |value: &str| value.parse().map_err(|_| format!("{word} has no whole number"));
        match word.split_once('=') {
            Some(("iodepth", value)) => task.iodepth = Some(number(value)?),
            Some(("numjobs", value)) => task.numjobs = Some(number(value)?),
            Some(("rwmixread", value)) => {
                task.rwmixread = Some(
                    u8::try_from(number(value)?).map_err(|_| format!("{word} is no percentage"))?,
                );
            }
            _ => return Err(format!("\"{word}\" is no option of a workload here")),
        }
    }
    task.more = parts.map(name).collect();
    Ok(task)
}

/// Names as they are written here: `linux-io_uring` is `Linux io_uring`.
fn pretty(text: &str) -> String {
    let text = name(text);
    let systems =
        [("linux", "Linux"), ("windows", "Windows"), ("freebsd", "FreeBSD"), ("macos", "macOS")];
    let known = systems.into_iter().find_map(|(plain, system)| {
        let rest = text.strip_prefix(plain)?.strip_prefix('-')?;
        Some(format!("{system} {rest}"))
    });
    known.unwrap_or(text)
}

/// Whether the table agrees with itself.
fn bandwidth(task: &Task, figures: &Figures) -> Option<Mark> {
    let (iops, bytes) = (figures.iops?.mean, figures.bw_bytes?.mean);
    let expected = iops * f64::from(task.bs);
    let off = bytes / expected - 1.0;
    let text = format!(
        "IOPS x block size is {:.3} GiB/s, but the table has {:.3} ({:+.0} %): one of them is not what it says",
        expected / GIB,
        bytes / GIB,
        off * 100.0
    );
    (off.is_finite() && off.abs() > BANDWIDTH_TOLERANCE)
        .then(|| Mark::new(MarkKind::BandwidthMismatch, text))
}
