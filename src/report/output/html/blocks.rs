//! A workload's section: what it says, charts, the table, every pair.

use super::bars::{Measure, bars};
use super::figure::{Notes, at, digits_at, fixed_at, gib_at, part_at, rate_at, time_at};
use super::{Stacks, curves, points, sentence, series};
use crate::report::figures::{percent, rate, time};
use crate::report::merged::{
    Block, Figures, Latency, LatencyKind, Merged, Method, PERCENTILES, Pair, SideFigures,
};
use maud::{Markup, html};

/// The bars of a block.
const MEASURES: [Measure; 3] = [
    Measure { id: "iops", title: "IOPS", pointer: "iops/mean", of: |row| row.iops, text: rate },
    Measure {
        id: "lat",
        title: "Mean latency",
        pointer: "lat_ns/mean",
        of: |row| {
            row.lat_ns
                .as_ref()
                .map(|lat_ns| crate::measure::Interval { mean: lat_ns.mean, ci95: None })
        },
        text: time,
    },
    Measure {
        id: "cpu",
        title: "CPU of the whole machine",
        pointer: "cpu/machine_pct/mean",
        of: |row| row.cpu.machine_pct,
        text: |pct| format!("{pct:.2} %"),
    },
];

/// The section.
pub(super) fn block(
    merged: &Merged,
    index: usize,
    block: &Block,
    stacks: &Stacks<'_>,
    notes: &Notes<'_>,
) -> Markup {
    let own = merged.highlights.iter().filter(|highlight| {
        highlight.out_of == 1
            && highlight.workloads == [block.title.clone()]
            && highlight.text.starts_with(&block.workload.words())
    });
    let id = format!("workload-{}", index + 1);
    html! {
        section.workload aria-labelledby=(id) {
            h2 id=(id) { (block.title) }
            ul.said { @for highlight in own { li { (sentence(highlight)) } } }
            div.charts {
                @for measure in &MEASURES { div.cell { (bars(index, block, stacks, measure)) } }
                (points::scatter(index, block, stacks))
                (curves::latency(index, block, stacks))
                (curves::rounds(index, block, stacks))
                (series::charts(index, block, stacks))
            }
            (table(index, block, notes))
            (pairs(index, block))
        }
    }
}

/// A line of the table: its name, and the cell of a row with its place in the JSON.
type Cell = fn(&Figures, &str) -> Option<Markup>;

const LINES: [(&str, Cell); 9] = [
    ("Bandwidth, GiB/s", |row, at| {
        Some(gib_at(row.bw_bytes?.mean, &format!("{at}/bw_bytes/mean")))
    }),
    ("IOPS", |row, at| Some(rate_at(row.iops?.mean, &format!("{at}/iops/mean")))),
    ("95 % interval", |row, at| {
        let [low, high] = row.iops?.ci95?;
        let ends = [
            rate_at(low, &format!("{at}/iops/ci95/0")),
            rate_at(high, &format!("{at}/iops/ci95/1")),
        ];
        let [low, high] = ends;
        Some(html! { (low) " to " (high) })
    }),
    ("Mean latency", |row, at| {
        let lat_ns = row.lat_ns.as_ref()?;
        Some(
            html! { (time_at(lat_ns.mean, &format!("{at}/lat_ns/mean"))) (only_completion(lat_ns.kind)) },
        )
    }),
    ("CPU, whole machine, %", |row, at| {
        Some(fixed_at(row.cpu.machine_pct?.mean, &format!("{at}/cpu/machine_pct/mean")))
    }),
    ("CPU per I/O", |row, at| Some(time_at(row.cpu.ns_per_io?, &format!("{at}/cpu/ns_per_io")))),
    ("Job's own CPU, % of one", |row, at| {
        let (user, sys) = row.cpu.job_user_pct.zip(row.cpu.job_sys_pct)?;
        let user = fixed_at(user, &format!("{at}/cpu/job_user_pct"));
        let sys = fixed_at(sys, &format!("{at}/cpu/job_sys_pct"));
        Some(html! { (user) " user, " (sys) " system" })
    }),
    ("I/Os in flight", |row, at| {
        Some(digits_at(row.in_flight.counted?, &format!("{at}/in_flight/counted")))
    }),
    ("IOPS x latency", |row, at| {
        Some(digits_at(row.in_flight.by_law?, &format!("{at}/in_flight/by_law")))
    }),
];

fn only_completion(kind: LatencyKind) -> Markup {
    html! { @if kind == LatencyKind::Completion { " (clat)" } }
}

fn table(index: usize, block: &Block, notes: &Notes<'_>) -> Markup {
    let cells = |cell: Cell| -> Vec<Option<Markup>> {
        let rows = block.rows.iter().enumerate();
        rows.map(|(row, figures)| cell(figures, &format!("/blocks/{index}/rows/{row}"))).collect()
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Figures of " (block.title) } {
            table {
                thead { tr {
                    td {}
                    @for row in &block.rows { th scope="col" { (row.stack) } }
                } }
                tbody {
                    @for (name, cell) in LINES { (line(name, &cells(cell))) }
                    @for (number, (name, _)) in PERCENTILES.iter().enumerate() { (percentile(index, block, number, name)) }
                    (sides(index, block))
                    (accounts(index, block))
                    (ratio(index, block))
                    @if block.rows.iter().any(|row| row.errors > 0) {
                        (line("Failed operations", &cells(|row, pointer| Some(at(row.errors as f64, &row.errors.to_string(), &format!("{pointer}/errors"))))))
                    }
                    @if block.rows.iter().any(|row| row.target.is_some()) { tr { th scope="row" { "On" } @for row in &block.rows { td { (row.target.as_deref().unwrap_or("–")) } } } }
                    tr { th scope="row" { "Notes" } @for row in &block.rows { td { (notes.links(&row.marks)) } } }
                }
            }
        }
    }
}

/// A line; none where no row has the figure.
fn line(name: &str, cells: &[Option<Markup>]) -> Markup {
    html! {
        @if cells.iter().any(Option::is_some) {
            tr {
                th scope="row" { (name) }
                @for cell in cells { td.f { @match cell { Some(cell) => (cell), None => "n/a" } } }
            }
        }
    }
}

fn percentile(index: usize, block: &Block, number: usize, name: &str) -> Markup {
    let cell = |(row, figures): (usize, &Figures)| {
        let lat_ns = figures.lat_ns.as_ref()?;
        let place = lat_ns.percentiles.iter().position(|percentile| percentile.name == name)?;
        let percentile = lat_ns.percentiles.get(place)?;
        let pointer = format!("/blocks/{index}/rows/{row}/lat_ns/percentiles/{place}");
        Some(html! {
            (time_at(percentile.ns, &format!("{pointer}/ns")))
            @if let Some(beyond) = percentile.beyond {
                @if percentile.supported == Some(false) {
                    " " span.warn { "few: " (at(beyond as f64, &beyond.to_string(), &format!("{pointer}/beyond"))) " beyond" }
                }
            }
        })
    };
    let cells: Vec<Option<Markup>> = block.rows.iter().enumerate().map(cell).collect();
    let name = PERCENTILES.get(number).map_or(name, |(name, _)| name);
    line(&format!("Latency {name}"), &cells)
}

/// Each direction of a mixed pattern.
fn sides(index: usize, block: &Block) -> Markup {
    let most = block.rows.iter().map(|row| row.sides.len()).max().unwrap_or(0);
    let cells = |number: usize,
                 cell: fn(&SideFigures, &str) -> Option<Markup>|
     -> Vec<Option<Markup>> {
        let rows = block.rows.iter().enumerate();
        rows.map(|(row, figures)| {
            cell(figures.sides.get(number)?, &format!("/blocks/{index}/rows/{row}/sides/{number}"))
        })
        .collect()
    };
    html! {
        @for number in 0..most {
            @let name = block.rows.iter().find_map(|row| row.sides.get(number)).map_or("", |side| side.side.words());
            (line(&format!("IOPS, {name}"), &cells(number, |side, at| Some(rate_at(side.iops?.mean, &format!("{at}/iops/mean"))))))
            (line(&format!("Mean latency, {name}"), &cells(number, |side, at| {
                let lat_ns: &Latency = side.lat_ns.as_ref()?;
                Some(html! { (time_at(lat_ns.mean, &format!("{at}/lat_ns/mean"))) (only_completion(lat_ns.kind)) })
            })))
        }
    }
}

/// Energy, cycles, interrupts and switches by the I/O, and why where there are none.
fn accounts(index: usize, block: &Block) -> Markup {
    let cell = |(row, figures): (usize, &Figures), name: &str| {
        let (place, account) = figures.account(name)?;
        let pointer = format!("/blocks/{index}/rows/{row}/accounts/{place}/per_io");
        Some(match (account.per_io, &account.missing) {
            (Some(per_io), _) => digits_at(per_io, &pointer),
            (None, _) => html! { "not available here" },
        })
    };
    html! {
        @for (name, unit) in block.account_names() {
            @let cells: Vec<_> = block.rows.iter().enumerate().map(|row| cell(row, name)).collect();
            @if unit.is_empty() { (line(name, &cells)) } @else { (line(&format!("{name}, {unit}"), &cells)) }
        }
    }
}

/// IOPS of each row against the first one on the same drives.
fn ratio(index: usize, block: &Block) -> Markup {
    let cell = |row: &Figures| {
        if block.is_first(&row.stack) {
            return Some(html! { "first" });
        }
        let place = block.pairs.iter().position(|pair| pair.stack == row.stack)?;
        let iops = block.pairs.get(place)?.iops?;
        let pointer = format!("/blocks/{index}/pairs/{place}/iops");
        Some(html! {
            (part_at(iops.mean, &format!("{pointer}/mean")))
            @if iops.distinguishable == Some(false) { " " span.warn { "not distinguishable" } }
        })
    };
    let cells: Vec<Option<Markup>> = block.rows.iter().map(cell).collect();
    line("IOPS against the first", &cells)
}

/// Every pair, folded away where it is many.
fn pairs(index: usize, block: &Block) -> Markup {
    html! {
        @if !block.pairs.is_empty() {
            details open[block.pairs.len() <= 3] {
                summary { "Every pair of stacks (" (block.pairs.len()) ")" }
                div.scroll tabindex="0" role="region" aria-label={ "Pairs of " (block.title) } {
                    table.pairs {
                        thead { tr {
                            th scope="col" { "Pair" }
                            th scope="col" { "IOPS, times" }
                            th scope="col" { "95 % interval" }
                            th scope="col" { "Least to be seen" }
                            th scope="col" { "Latency, times" }
                            th scope="col" { "CPU, points" }
                            th scope="col" { "Verdict" }
                        } }
                        tbody { @for (number, pair) in block.pairs.iter().enumerate() {
                            (pair_line(pair, &format!("/blocks/{index}/pairs/{number}")))
                        } }
                    }
                }
            }
        }
    }
}

fn pair_line(pair: &Pair, pointer: &str) -> Markup {
    let ends = pair.iops.and_then(|iops| iops.ci95);
    let least = pair.iops.and_then(|iops| iops.least_detectable);
    html! {
        tr {
            th scope="row" { (pair.stack) " against " (pair.of) }
            td.f { @match pair.iops { Some(iops) => (part_at(iops.mean, &format!("{pointer}/iops/mean"))), None => "n/a" } }
            td.f { @match ends {
                Some([low, high]) => {
                    (part_at(low, &format!("{pointer}/iops/ci95/0"))) " to " (part_at(high, &format!("{pointer}/iops/ci95/1")))
                }
                None => "none",
            } }
            td.f { @match least {
                Some(least) => (at(least, &percent(least, 1.0), &format!("{pointer}/iops/least_detectable"))),
                None => "n/a",
            } }
            td.f { @match pair.lat_mean { Some(lat) => (part_at(lat.mean, &format!("{pointer}/lat_mean/mean"))), None => "n/a" } }
            td.f { @match pair.cpu_points {
                Some(points) => (at(points.mean, &format!("{:+.2}", points.mean), &format!("{pointer}/cpu_points/mean"))),
                None => "n/a",
            } }
            td { (verdict(pair)) }
        }
    }
}

fn verdict(pair: &Pair) -> &'static str {
    match (pair.method, pair.iops.map(|iops| (iops.distinguishable, iops.mean > 1.0))) {
        (_, None) => "nothing to compare",
        (_, Some((Some(false), _))) => "not distinguishable",
        (_, Some((Some(true), true))) => "faster",
        (_, Some((Some(true), false))) => "slower",
        (Method::Single, _) => "one figure each",
        _ => "too few rounds in common",
    }
}
