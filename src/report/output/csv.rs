//! CSV in the published layout: metrics down, stacks across, a block a workload.

use crate::report::merged::{Figures, Merged, PERCENTILES, Task};
use crate::workload::units::format_size;

/// Bytes of a GiB.
pub(in crate::report) const GIB: f64 = 1_073_741_824.0;
/// Nanoseconds of a millisecond.
pub(in crate::report) const NS_PER_MS: f64 = 1e6;
/// What stands where nothing was measured.
pub(in crate::report) const NOT_KNOWN: &str = "n/a";

/// A line of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Metric {
    Bandwidth,
    Iops,
    IopsLow,
    IopsHigh,
    LatMean,
    /// By its place in [`PERCENTILES`].
    Percentile(usize),
    CpuMachine,
    InFlight,
}

impl Metric {
    const ALWAYS: [Self; 4] = [Self::Bandwidth, Self::Iops, Self::LatMean, Self::CpuMachine];

    /// All metrics, in the order of a block's lines.
    fn all() -> Vec<Self> {
        let mut all =
            vec![Self::Bandwidth, Self::Iops, Self::IopsLow, Self::IopsHigh, Self::LatMean];
        all.extend((0..PERCENTILES.len()).map(Self::Percentile));
        all.extend([Self::CpuMachine, Self::InFlight]);
        all
    }

    /// What stands at a line's beginning.
    fn name(self) -> String {
        match self {
            Self::Bandwidth => "Bandwidth (GiB/s)".to_owned(),
            Self::Iops => "IOPS".to_owned(),
            Self::IopsLow => "IOPS, 95 % interval from".to_owned(),
            Self::IopsHigh => "IOPS, 95 % interval to".to_owned(),
            Self::LatMean => "Mean latency (ms)".to_owned(),
            Self::Percentile(index) => {
                let name = PERCENTILES.get(index).map_or("", |(name, _)| *name);
                format!("Latency {name} (ms)")
            }
            Self::CpuMachine => "CPU, whole machine (%)".to_owned(),
            Self::InFlight => "I/Os in flight".to_owned(),
        }
    }

    /// The metric of this name.
    pub(in crate::report) fn named(text: &str) -> Option<Self> {
        Self::all().into_iter().find(|metric| metric.name() == text)
    }

    fn value(self, row: &Figures) -> Option<f64> {
        match self {
            Self::Bandwidth => Some(row.bw_bytes?.mean / GIB),
            Self::Iops => Some(row.iops?.mean),
            Self::IopsLow => row.iops?.ci95.map(|[low, _]| low),
            Self::IopsHigh => row.iops?.ci95.map(|[_, high]| high),
            Self::LatMean => Some(row.lat_ns.as_ref()?.mean / NS_PER_MS),
            Self::Percentile(index) => {
                let (name, _) = PERCENTILES.get(index)?;
                Some(row.lat_ns.as_ref()?.percentile(name)?.ns / NS_PER_MS)
            }
            Self::CpuMachine => Some(row.cpu.machine_pct?.mean),
            Self::InFlight => row.in_flight.counted,
        }
    }
}

/// All blocks, an empty line between two.
pub(super) fn write(merged: &Merged) -> String {
    let mut text = String::new();
    for block in &merged.blocks {
        if !text.is_empty() {
            text.push('\n');
        }
        let stacks = block.rows.iter().map(|row| row.stack.clone());
        line(&mut text, std::iter::once(workload(&block.workload)).chain(stacks));
        for metric in Metric::all() {
            let values: Vec<Option<f64>> = block.rows.iter().map(|row| metric.value(row)).collect();
            if !Metric::ALWAYS.contains(&metric) && values.iter().all(Option::is_none) {
                continue;
            }
            let cells =
                values.into_iter().map(|value| value.map_or_else(|| NOT_KNOWN.to_owned(), number));
            line(&mut text, std::iter::once(metric.name()).chain(cells));
        }
    }
    text
}

/// `randread 4k iodepth=32 numjobs=1`, in fio's words; what else there is follows after semicolons.
pub(super) fn workload(task: &Task) -> String {
    let mut text = format!("{} {}", task.rw, format_size(task.bs.into()));
    let options = [
        ("iodepth", task.iodepth),
        ("numjobs", task.numjobs),
        ("rwmixread", task.rwmixread.map(u32::from)),
    ];
    for (key, value) in options {
        text += &value.map_or_else(String::new, |value| format!(" {key}={value}"));
    }
    task.more.iter().for_each(|more| text += &format!("; {more}"));
    text
}

/// Nine decimals at most: an attosecond of latency, a byte of bandwidth.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.9}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(super) fn line(text: &mut String, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.map(|cell| quoted(&cell)).collect();
    *text += &cells.join(",");
    text.push('\n');
}

/// A cell as RFC 4180 has it. One that a spreadsheet would take for a formula gets a space before it.
fn quoted(cell: &str) -> String {
    let is_formula =
        cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err();
    let space = if is_formula { " " } else { "" };
    if is_formula || cell.contains(['"', ',', '\n', '\r', '#']) {
        return format!("\"{space}{}\"", cell.replace('"', "\"\""));
    }
    cell.to_owned()
}
