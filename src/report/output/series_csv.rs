//! Every round second by second, as CSV: a line a step.

use super::csv::{NS_PER_MS, line, number, workload};
use crate::report::merged::{Block, Figures, Merged, RoundFigures};

const HEADER: [&str; 10] = [
    "workload",
    "stack",
    "round",
    "from_s",
    "length_s",
    "ios",
    "iops",
    "bytes",
    "lat_mean_ms",
    "lat_max_ms",
];

/// All rounds that have a series.
pub(super) fn write(merged: &Merged) -> String {
    let mut text = String::new();
    line(&mut text, HEADER.map(str::to_owned).into_iter());
    for block in &merged.blocks {
        for row in &block.rows {
            row.rounds.iter().for_each(|round| steps(&mut text, block, row, round));
        }
    }
    text
}

fn steps(text: &mut String, block: &Block, row: &Figures, round: &RoundFigures) {
    let steps = round.series.as_ref().zip(round.elapsed_s);
    for step in steps.map(|(series, elapsed_s)| series.all(elapsed_s)).unwrap_or_default() {
        let ms = |ns: Option<f64>| {
            ns.map_or_else(|| super::csv::NOT_KNOWN.to_owned(), |ns| number(ns / NS_PER_MS))
        };
        let iops = step.iops();
        let cells = [
            workload(&block.workload),
            row.stack.clone(),
            round.round.to_string(),
            number(step.from_s),
            number(step.length_s),
            step.ios.to_string(),
            if iops.is_finite() { number(iops) } else { super::csv::NOT_KNOWN.to_owned() },
            step.bytes.to_string(),
            ms(step.lat_mean_ns),
            ms(step.lat_max_ns.map(|ns| ns as f64)),
        ];
        line(text, cells.into_iter());
    }
}
