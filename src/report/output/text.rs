//! The terminal's table of a merged report.

use crate::report::columns::{Block as Lines, Lat, Line, columns, fit, lay_out, wrap};
use crate::report::merged::{Block, Direction, Latency, Merged};
use crate::report::table::{Look, Notes};

/// Highlights shown in the terminal: the broad ones; each workload's own are in the other formats.
const HIGHLIGHTS_MAX: usize = 12;

/// The report.
pub(super) fn write(merged: &Merged, look: Look) -> String {
    let mut text = String::new();
    for source in &merged.sources {
        let partial = if source.complete { "" } else { ", PARTIAL" };
        let line = format!("{}: {} {}{partial}", source.label, source.kind.words(), source.file);
        text += &format!("{}\n", wrap(&line, look.width));
        for mark in &source.marks {
            text += &format!(
                "  {}\n",
                wrap(&mark.text, look.width.map(|width| width.saturating_sub(2)))
                    .replace('\n', "\n  ")
            );
        }
    }
    text += &highlights(merged, look);
    let mut notes = Notes::default();
    let blocks: Vec<Lines> = merged.blocks.iter().map(|block| lines(block, &mut notes)).collect();
    let columns = fit(columns(&blocks), look.width);
    for block in &blocks {
        text += &format!("\n{}\n{}\n", look.bold(&block.title), lay_out(block, &columns));
    }
    if let Some(legend) = legend(merged) {
        text += &format!("\n{}\n", wrap(&legend, look.width));
    }
    text + &notes.render(look)
}

fn highlights(merged: &Merged, look: Look) -> String {
    if merged.highlights.is_empty() {
        return String::new();
    }
    let narrower = look.width.map(|width| width.saturating_sub(4));
    let mut text = format!("\n{}\n", look.bold("Highlights"));
    for highlight in merged.highlights.iter().take(HIGHLIGHTS_MAX) {
        text += &format!("  - {}\n", wrap(&highlight.text, narrower).replace('\n', "\n    "));
        for caveat in &highlight.caveats {
            text += &format!(
                "    {}\n",
                wrap(&format!("but: {caveat}"), narrower).replace('\n', "\n    ")
            );
        }
    }
    if let Some(left) = merged.highlights.len().checked_sub(HIGHLIGHTS_MAX).filter(|left| *left > 0)
    {
        text += &format!("  and {left} more, in the other formats (--output page.html)\n");
    }
    text
}

fn legend(merged: &Merged) -> Option<String> {
    let pairs = || merged.blocks.iter().flat_map(|block| &block.pairs);
    let mut parts = Vec::new();
    if pairs().any(|pair| pair.iops.is_some()) {
        parts.push("vs first: IOPS against the first line's on the same drives.");
    }
    if pairs().any(|pair| pair.iops.is_some_and(|iops| iops.distinguishable == Some(false))) {
        parts.push("= noise: these rounds cannot tell it from the first.");
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

fn lines(block: &Block, notes: &mut Notes) -> Lines {
    let mut lines = Vec::new();
    for row in &block.rows {
        lines.push(Line {
            stack: row.stack.clone(),
            iops: row.iops,
            bw_bytes: row.bw_bytes,
            lat: row.lat_ns.as_ref().map(lat),
            machine_pct: row.cpu.machine_pct.map(|pct| pct.mean),
            ns_per_io: row.cpu.ns_per_io,
            in_flight: row.in_flight.counted,
            accounts: row.accounts.clone(),
            ratio: block.to_first(&row.stack).and_then(|pair| pair.iops),
            is_base: block.is_first(&row.stack),
            is_part: false,
            on: row.target.clone().unwrap_or_default(),
            notes: notes.number(&row.marks),
        });
        lines.extend(row.sides.iter().map(|side| Line {
            stack: format!("  {}", if side.side == Direction::Writes { "writes" } else { "reads" }),
            iops: side.iops,
            bw_bytes: side.bw_bytes,
            lat: side.lat_ns.as_ref().map(lat),
            is_part: true,
            ..Line::default()
        }));
    }
    Lines { title: block.title.clone(), lines }
}

fn lat(lat_ns: &Latency) -> Lat {
    let ns = |name| lat_ns.percentile(name).map(|percentile| percentile.ns);
    Lat { mean: lat_ns.mean, p50: ns("p50"), p99: ns("p99"), p99_9: ns("p99.9") }
}
