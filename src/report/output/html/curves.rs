//! Curves: latency over percentiles, and rounds in their order.

use super::Stacks;
use super::svg::{Frame, LEFT, RIGHT, WIDTH, c, chart, legend, line, marker, x};
use crate::report::figures::{significant, time};
use crate::report::merged::{Block, Figures, PERCENTILES};
use maud::{Markup, html};

const FRAME: Frame = Frame { top: 12.0, bottom: 216.0 };
const HEIGHT: f64 = 244.0;

/// Latency of each stack, from the median to the last percentile, in logarithms both ways.
pub(super) fn latency(index: usize, block: &Block, stacks: &Stacks<'_>) -> Markup {
    let rows: Vec<&Figures> = block.rows.iter().filter(|row| points(row).len() > 1).collect();
    let values = || rows.iter().flat_map(|row| points(row)).map(|(_, ns, _)| ns);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if rows.is_empty() || !(low > 0.0 && high.is_finite()) {
        return html! {};
    }
    let ticks = log_ticks(low, high);
    let ends = [
        low.min(*ticks.first().unwrap_or(&low)).log10(),
        high.max(*ticks.last().unwrap_or(&high)).log10(),
    ];
    let place = |number: usize| x(number as f64, [-0.25, PERCENTILES.len() as f64 - 0.75]);
    let across: Vec<(f64, String)> =
        ticks.iter().map(|ns| (FRAME.y(ns.log10(), ends), short_time(*ns))).collect();
    let names = PERCENTILES.iter().enumerate();
    let below: Vec<(f64, String)> =
        names.map(|(number, (name, _))| (place(number), (*name).to_owned())).collect();
    let inside = html! {
        (FRAME.across(&across)) (FRAME.below(&below))
        @for row in &rows {
            @let of = stacks.number(row);
            @let drawn: Vec<(f64, f64, bool)> = points(row).into_iter()
                .map(|(number, ns, few)| (place(number), FRAME.y(ns.log10(), ends), few)).collect();
            (line(of, &drawn.iter().map(|(x, y, _)| (*x, *y)).collect::<Vec<_>>()))
            @for (x, y, few) in drawn { (marker(of, x, y, few)) }
        }
    };
    let words: Vec<String> = rows.iter().map(|row| said(row)).collect();
    let description = format!("Latency percentiles of {}: {}.", block.title, words.join("; "));
    let id = format!("w{}-latency", index + 1);
    html! {
        div.cell {
            (chart(&id, "Latency percentiles", &description, HEIGHT, &inside))
            (legend(&named(&rows, stacks)))
            p.small { "Logarithmic. Hollow: fewer than ten I/Os lie beyond." }
        }
    }
}

pub(super) fn named<'a>(rows: &[&'a Figures], stacks: &Stacks<'_>) -> Vec<(usize, &'a str)> {
    rows.iter().map(|row| (stacks.number(row), row.stack.as_str())).collect()
}

/// Place among the percentiles, nanoseconds, and whether few I/Os lie beyond.
fn points(row: &Figures) -> Vec<(usize, f64, bool)> {
    let Some(lat_ns) = &row.lat_ns else { return Vec::new() };
    let all = PERCENTILES.iter().enumerate();
    all.filter_map(|(number, (name, _))| {
        let found = lat_ns.percentile(name).filter(|found| found.ns > 0.0)?;
        Some((number, found.ns, found.supported == Some(false)))
    })
    .collect()
}

fn said(row: &Figures) -> String {
    let percentiles = row.lat_ns.iter().flat_map(|lat_ns| &lat_ns.percentiles);
    let words: Vec<String> = percentiles
        .map(|percentile| format!("{} {}", percentile.name, time(percentile.ns)))
        .collect();
    format!("{} {}", row.stack, words.join(", "))
}

/// `20 µs`, without digits that a round number does not have.
pub(super) fn short_time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    let (unit, name) =
        units.into_iter().find(|(unit, _)| ns >= *unit * 0.9999).unwrap_or((1.0, "ns"));
    format!("{:.0} {name}", ns / unit)
}

/// Decades, with 2 and 5 between them where there are few; the outermost enclose the range.
pub(super) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let few = to - from <= 3;
    let factors: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> = (from..=to.min(from + 20))
        .flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)))
        .collect();
    let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len().saturating_sub(1));
    all.get(first..=last).map(<[f64]>::to_vec).unwrap_or_default()
}

/// Least range of the rounds' chart, in percent either way.
const SPREAD_MIN: f64 = 2.0;

/// IOPS of each round against the mean of its row: which is steady, which drifts, which round is odd.
pub(super) fn rounds(index: usize, block: &Block, stacks: &Stacks<'_>) -> Markup {
    let rows: Vec<&Figures> = block.rows.iter().filter(|row| deviations(row).len() > 1).collect();
    if rows.is_empty() {
        return html! {};
    }
    let all = || rows.iter().flat_map(|row| deviations(row));
    let most = all().map(|(_, off, _)| off.abs()).fold(SPREAD_MIN, f64::max) * 1.1;
    let last = all().map(|(round, _, _)| round).max().unwrap_or(1);
    let place = |round: u32| x(f64::from(round), [0.7, f64::from(last) + 0.3]);
    let ends = [-most, most];
    let tick = |off: f64| (FRAME.y(off, ends), format!("{}%", signed(off)));
    let across: Vec<(f64, String)> =
        [-most / 1.1, -most / 2.2, 0.0, most / 2.2, most / 1.1].into_iter().map(tick).collect();
    // A number a round while there is room for them.
    let step = usize::try_from(last).unwrap_or(1).div_ceil(12).max(1);
    let below: Vec<(f64, String)> =
        (1..=last).step_by(step).map(|round| (place(round), round.to_string())).collect();
    let inside = html! {
        (FRAME.across(&across)) (FRAME.below(&below))
        line.zero x1=(c(LEFT)) x2=(c(RIGHT)) y1=(c(FRAME.y(0.0, ends))) y2=(c(FRAME.y(0.0, ends))) {}
        @for row in &rows {
            @let of = stacks.number(row);
            @let drawn: Vec<(f64, f64, bool)> = deviations(row).into_iter()
                .map(|(round, off, outside)| (place(round), FRAME.y(off, ends), outside)).collect();
            (line(of, &drawn.iter().map(|(x, y, _)| (*x, *y)).collect::<Vec<_>>()))
            @for (x, y, outside) in drawn {
                @if outside { circle.ring cx=(c(x)) cy=(c(y)) r="9" {} }
                (marker(of, x, y, false))
            }
        }
        text.tick x=(c(WIDTH / 2.0)) y=(c(HEIGHT + 13.0)) text-anchor="middle" { "round" }
    };
    let widest = |row: &&Figures| {
        let off = deviations(row).iter().map(|(_, off, _)| off.abs()).fold(0.0, f64::max);
        format!("{} within {off:.1} % of its mean", row.stack)
    };
    let words: Vec<String> = rows.iter().map(widest).collect();
    let description = format!("IOPS of each round of {}: {}.", block.title, words.join("; "));
    let id = format!("w{}-rounds", index + 1);
    html! {
        div.cell {
            (chart(&id, "Rounds: IOPS against the row's own mean", &description, HEIGHT + 20.0, &inside))
            (legend(&named(&rows, stacks)))
            @if all().any(|(_, _, outside)| outside) { p.small { "Ringed: far from the other rounds; in every figure all the same." } }
        }
    }
}

fn signed(off: f64) -> String {
    if off == 0.0 {
        "0 ".to_owned()
    } else {
        format!("{}{} ", if off < 0.0 { "−" } else { "+" }, significant(off.abs(), 2))
    }
}

/// Round, percent off the mean, and whether it lies outside.
fn deviations(row: &Figures) -> Vec<(u32, f64, bool)> {
    let Some(mean) = row.iops.map(|iops| iops.mean).filter(|mean| *mean > 0.0) else {
        return Vec::new();
    };
    let complete = row.rounds.iter().filter(|round| round.complete);
    complete
        .filter_map(|round| Some((round.round, (round.iops? / mean - 1.0) * 100.0, round.outlier)))
        .collect()
}
