//! Markdown in the published layout: metrics down, stacks across, a block a workload.

use super::csv::{GIB, NS_PER_MS};
use crate::measure::Interval;
use crate::report::figures::{part, percent, significant};
use crate::report::merged::{Block, Figures, Merged};

/// The report.
pub(super) fn write(merged: &Merged) -> String {
    let mut text = String::new();
    if !merged.highlights.is_empty() {
        text += "## Highlights\n\n";
        for highlight in &merged.highlights {
            text += &format!("- {}\n", escape(&highlight.text));
            for caveat in &highlight.caveats {
                text += &format!("  - *But: {}.*\n", escape(caveat));
            }
        }
        text.push('\n');
    }
    let mut notes = Vec::new();
    for block in &merged.blocks {
        text += &format!("## {}\n\n{}\n", escape(&block.title), table(block, &mut notes));
    }
    if !notes.is_empty() {
        text += "## Notes\n\n";
        for (number, note) in (1..).zip(&notes) {
            text += &format!("{number}. {}\n", escape(note));
        }
        text.push('\n');
    }
    text += "## Sources\n\n";
    for source in &merged.sources {
        let label = escape(&source.label);
        text +=
            &format!("- {}: {} `{}`\n", label, source.kind.words(), source.file.replace('`', "'"));
        for mark in &source.marks {
            text += &format!("  - {}\n", escape(&mark.text));
        }
    }
    text
}

/// One metric of a row, in words.
type Cell = fn(&Figures) -> Option<String>;

fn table(block: &Block, notes: &mut Vec<String>) -> String {
    let metrics: [(&str, bool, Cell); 9] = [
        ("Bandwidth (GiB/s)", true, |row| Some(significant(row.bw_bytes?.mean / GIB, 5))),
        ("IOPS", true, |row| Some(thousands(row.iops?.mean))),
        ("IOPS ±", false, |row| plus_minus(row.iops?)),
        ("Mean latency (ms)", true, |row| {
            Some(significant(row.lat_ns.as_ref()?.mean / NS_PER_MS, 4))
        }),
        ("p99 (ms)", false, |row| percentile(row, "p99")),
        ("p99.9 (ms)", false, |row| percentile(row, "p99.9")),
        ("p99.99 (ms)", false, |row| percentile(row, "p99.99")),
        ("CPU, whole machine (%)", true, |row| Some(format!("{:.2}", row.cpu.machine_pct?.mean))),
        ("I/Os in flight", false, |row| {
            row.in_flight.counted.map(|counted| significant(counted, 4))
        }),
    ];
    let mut lines = vec![line("", block.rows.iter().map(|row| escape(&row.stack)))];
    lines.push(format!("| --- |{}", " ---: |".repeat(block.rows.len())));
    for (name, always, cell) in metrics {
        let cells: Vec<Option<String>> = block.rows.iter().map(cell).collect();
        if always || cells.iter().any(Option::is_some) {
            lines.push(line(
                name,
                cells.into_iter().map(|cell| cell.unwrap_or_else(|| "n/a".to_owned())),
            ));
        }
    }
    lines.extend(accounts(block));
    let ratios: Vec<Option<String>> = block.rows.iter().map(|row| ratio(block, row)).collect();
    if ratios.iter().any(Option::is_some) {
        let cells = ratios.into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned()));
        lines.push(line("IOPS against the first", cells));
    }
    let numbers: Vec<String> = block.rows.iter().map(|row| number(row, notes)).collect();
    if numbers.iter().any(|cell| !cell.is_empty()) {
        lines.push(line("Notes", numbers.into_iter()));
    }
    lines.join("\n") + "\n"
}

/// Energy, cycles, interrupts and switches by the I/O: those that any row has.
fn accounts(block: &Block) -> Vec<String> {
    let names = block.account_names().into_iter();
    names
        .map(|(name, unit)| {
            let cells = block.rows.iter().map(|row| {
                let per_io = row.account(name).and_then(|(_, account)| account.per_io);
                per_io
                    .map_or_else(|| "not available here".to_owned(), |value| significant(value, 4))
            });
            let name = if unit.is_empty() { name.to_owned() } else { format!("{name} ({unit})") };
            line(&name, cells)
        })
        .collect()
}

fn line(name: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells.map(|cell| format!(" {cell} |")).collect();
    format!("| {name} |{}", cells.concat())
}

fn plus_minus(iops: Interval) -> Option<String> {
    Some(format!("± {}", percent(iops.half_width()?, iops.mean)))
}

fn percentile(row: &Figures, name: &str) -> Option<String> {
    let percentile = row.lat_ns.as_ref()?.percentile(name)?;
    let few = if percentile.supported == Some(false) { " (few I/Os)" } else { "" };
    Some(format!("{}{few}", significant(percentile.ns / NS_PER_MS, 4)))
}

fn ratio(block: &Block, row: &Figures) -> Option<String> {
    if block.is_first(&row.stack) {
        return Some("first".to_owned());
    }
    let ratio = block.to_first(&row.stack)?.iops?;
    let value = part(ratio.mean);
    Some(match (ratio.ci95, ratio.distinguishable) {
        (Some([low, high]), Some(false)) => {
            format!("not distinguishable ({} to {})", part(low), part(high))
        }
        (Some([low, high]), _) => format!("{value} ({} to {})", part(low), part(high)),
        (None, _) => format!("{value}, no interval"),
    })
}

fn number(row: &Figures, notes: &mut Vec<String>) -> String {
    let mut numbers = Vec::new();
    for mark in &row.marks {
        let known = notes.iter().position(|note| *note == mark.text);
        let index = known.unwrap_or_else(|| {
            notes.push(mark.text.clone());
            notes.len() - 1
        });
        numbers.push(format!("[{}]", index + 1));
    }
    numbers.join(" ")
}

/// `2,636,516`.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text that Markdown takes as it is.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped += "&lt;",
            '&' => escaped += "&amp;",
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}
