//! Which columns the table has, how wide they are, and which go when there is no room.

use super::accounts::Account;
use super::figures::{gib_s, part, percent, rate, significant, time};
use super::model::{LatNs, Percentiles};
use crate::measure::{Interval, Ratio};
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets,
};

/// Between two columns.
const GAP: u16 = 2;

/// What a target is cut to in its column; the notes name it whole.
const ON_WIDTH_MAX: usize = 28;

/// What a target is cut to before any figure is left out.
const ON_WIDTH_NARROW: usize = 16;

/// What names are cut to at last, on a very narrow terminal.
const NAME_WIDTH_MIN: usize = 10;

/// Headings that others ask for.
pub(super) mod name_columns {
    pub const STACK: &str = "stack";
    pub const PLUS_MINUS: &str = "±";
    pub const CPU: &str = "CPU %";
    pub const CPU_PER_IO: &str = "CPU/IO";
    pub const RATIO: &str = "vs first";
    pub const ON: &str = "on";
    pub const NOTES: &str = "notes";
}
use name_columns::*;

/// The lines of one workload.
pub(super) struct Block {
    /// What stands above them.
    pub title: String,
    /// One a stack, and one for each direction of a mixed pattern.
    pub lines: Vec<Line>,
}

/// Latencies that have columns, in nanoseconds.
pub(super) struct Lat {
    pub mean: f64,
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub p99_9: Option<f64>,
}

impl From<&LatNs> for Lat {
    fn from(lat_ns: &LatNs) -> Self {
        let Percentiles { p50, p99, p99_9, .. } = lat_ns.percentiles;
        let ns = |ns: u64| Some(ns as f64);
        Self { mean: lat_ns.mean, p50: ns(p50), p99: ns(p99), p99_9: ns(p99_9) }
    }
}

/// One line of the table, before it is cut into columns.
#[derive(Default)]
pub(super) struct Line {
    pub stack: String,
    pub iops: Option<Interval>,
    pub bw_bytes: Option<Interval>,
    pub lat: Option<Lat>,
    pub machine_pct: Option<f64>,
    pub ns_per_io: Option<f64>,
    pub in_flight: Option<f64>,
    pub accounts: Vec<Account>,
    pub ratio: Option<Ratio>,
    /// The others' ratios are to this one.
    pub is_base: bool,
    /// One direction of the line above.
    pub is_part: bool,
    pub on: String,
    pub notes: Option<String>,
}

impl Line {
    fn rate(&self) -> Option<String> {
        Some(self.iops.map_or_else(|| "failed".to_owned(), |iops| rate(iops.mean)))
    }

    fn latency(&self, of: impl Fn(&Lat) -> Option<f64>) -> Option<String> {
        Some(time(of(self.lat.as_ref()?)?))
    }

    fn plus_minus(&self) -> Option<String> {
        let iops = self.iops?;
        Some(format!("±{}", percent(iops.half_width()?, iops.mean)))
    }

    fn ratio(&self) -> Option<String> {
        let Some(ratio) = self.ratio else {
            return self.is_base.then(|| "first".to_owned());
        };
        let is_noise = ratio.distinguishable == Some(false);
        Some(if is_noise { "= noise".to_owned() } else { part(ratio.mean) })
    }

    fn ratio_interval(&self) -> Option<String> {
        let [low, high] = self.ratio?.ci95?;
        Some(format!("{} to {}", part(low), part(high)))
    }

    /// An account by the I/O, both kinds of it together where it has two.
    fn account(&self, names: &[&str]) -> Option<String> {
        let of = |name: &&str| self.accounts.iter().find(|account| account.name == *name)?.per_io;
        let sum: Option<f64> = names.iter().map(of).sum();
        Some(significant(sum?, 3))
    }

    fn on(&self) -> Option<String> {
        (!self.is_part && !self.on.is_empty()).then(|| self.on.clone())
    }
}

/// A column: its cells, and how soon it goes.
pub(super) struct Column {
    /// What stands above it.
    pub header: &'static str,
    cell: fn(&Line) -> Option<String>,
    /// The least goes first; [`STAYS`] never does.
    keep: u8,
    is_left: bool,
    width: usize,
}

const STAYS: u8 = u8::MAX;

impl Column {
    fn new(header: &'static str, keep: u8, cell: fn(&Line) -> Option<String>) -> Self {
        Self { header, cell, keep, is_left: false, width: 0 }
    }

    fn left(self) -> Self {
        Self { is_left: true, ..self }
    }

    /// What stands in it: a dash for what is not known, nothing where it makes no sense.
    fn text(&self, line: &Line) -> String {
        let makes_no_sense = line.is_part || self.header == NOTES;
        let unknown = if makes_no_sense { "" } else { "-" };
        let text = (self.cell)(line).unwrap_or_else(|| unknown.to_owned());
        cut(&text, self.width)
    }
}

/// All columns that have something to show, as wide as all blocks need them.
pub(super) fn columns(blocks: &[Block]) -> Vec<Column> {
    let mut all = vec![
        Column::new(STACK, STAYS, |line| Some(line.stack.clone())).left(),
        Column::new("IOPS", STAYS, Line::rate),
        Column::new(PLUS_MINUS, 6, Line::plus_minus),
        Column::new("GiB/s", 9, |line| Some(gib_s(line.bw_bytes?.mean))),
        Column::new("mean", 10, |line| line.latency(|lat| Some(lat.mean))),
        Column::new("p50", 1, |line| line.latency(|lat| lat.p50)),
        Column::new("p99", 7, |line| line.latency(|lat| lat.p99)),
        Column::new("p99.9", 4, |line| line.latency(|lat| lat.p99_9)),
        Column::new(CPU, 8, |line| Some(format!("{:.1}", line.machine_pct?))),
        Column::new(CPU_PER_IO, 3, |line| Some(time(line.ns_per_io?))),
        Column::new("in flight", 2, |line| Some(significant(line.in_flight?, 3))),
        Column::new("µJ/IO", 0, |line| line.account(&["Energy per I/O, processors"])),
        Column::new("cycles/IO", 0, |line| {
            line.account(&["Cycles per I/O, user", "Cycles per I/O, kernel"])
        }),
        Column::new("irqs/IO", 0, |line| line.account(&["Interrupts per I/O, machine"])),
        Column::new("switches/IO", 0, |line| line.account(&["Context switches per I/O, machine"])),
        Column::new(RATIO, STAYS, Line::ratio),
        Column::new("95 %", 5, Line::ratio_interval),
        Column::new(ON, 11, Line::on).left(),
        Column::new(NOTES, STAYS, |line| line.notes.clone()).left(),
    ];
    let lines = || blocks.iter().flat_map(|block| &block.lines);
    for column in &mut all {
        let texts = lines().filter_map(|line| (column.cell)(line));
        let widest = texts.map(|text| text.chars().count()).max();
        // Without any text it stays 0 wide, and goes.
        column.width = widest.map_or(0, |width| width.max(column.header.chars().count()));
        if column.header == ON {
            column.width = column.width.min(ON_WIDTH_MAX);
        }
    }
    all.retain(|column| column.width > 0);
    all
}

/// Leaves out what there is no room for, the least important first; names are cut at last.
pub(super) fn fit(mut columns: Vec<Column>, width: Option<usize>) -> Vec<Column> {
    let Some(width) = width else { return columns };
    narrow(&mut columns, ON, ON_WIDTH_NARROW, width);
    while total(&columns) > width {
        let least = columns.iter().enumerate().min_by_key(|(_, column)| column.keep);
        match least {
            Some((index, column)) if column.keep != STAYS => drop(columns.remove(index)),
            _ => break,
        }
    }
    narrow(&mut columns, STACK, NAME_WIDTH_MIN, width);
    columns
}

/// All columns and the gaps between them.
fn total(columns: &[Column]) -> usize {
    let gaps = columns.len().saturating_sub(1) * usize::from(GAP);
    columns.iter().map(|column| column.width).sum::<usize>() + gaps
}

/// Narrows one column as far as the whole exceeds `width`, to no less than `least`.
fn narrow(columns: &mut [Column], header: &str, least: usize, width: usize) {
    let excess = total(columns).saturating_sub(width);
    if let Some(column) = columns.iter_mut().find(|column| column.header == header) {
        let least = column.width.min(least);
        column.width = column.width.saturating_sub(excess).max(least);
    }
}

/// The block as lines of text, without the last newline.
pub(super) fn lay_out(block: &Block, columns: &[Column]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_header(columns.iter().map(|column| column.header));
    for line in &block.lines {
        table.add_row(columns.iter().map(|column| column.text(line)));
    }
    let last = columns.len().saturating_sub(1);
    for (index, column) in columns.iter().enumerate() {
        let Some(cells) = table.column_mut(index) else { continue };
        let gap = if index == last { 0 } else { GAP };
        let width = column.width.try_into().unwrap_or(u16::MAX);
        cells.set_padding((0, gap));
        cells.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width.saturating_add(gap))));
        let side = if column.is_left { CellAlignment::Left } else { CellAlignment::Right };
        cells.set_cell_alignment(side);
    }
    table.trim_fmt()
}

/// `text` in at most `width` characters; what is left out in the middle is `…`, since a target's
/// beginning and end tell it from others.
fn cut(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let head: String = text.chars().take(kept.div_ceil(2)).collect();
    let tail: String = text.chars().skip(count - kept / 2).collect();
    format!("{head}…{tail}")
}

/// `text` broken at spaces into lines of at most `width` characters; a longer word has its own.
pub(super) fn wrap(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_in_the_middle() {
        assert_eq!(cut("/dev/nvme0n1", 12), "/dev/nvme0n1");
        assert_eq!(cut("/dev/nvme0n1", 7), "/de…0n1");
        assert_eq!(cut("µµµµ", 2), "µ…");
        assert_eq!((cut("abc", 1), cut("abc", 0), cut("", 0)), ("…".into(), "…".into(), "".into()));
    }

    #[test]
    fn broken_at_spaces() {
        assert_eq!(wrap("one two three", Some(7)), "one two\nthree");
        assert_eq!(wrap("a verylongword b", Some(4)), "a\nverylongword\nb");
        assert_eq!(wrap("one two", None), "one two");
        assert_eq!(wrap("", Some(5)), "");
    }
}
