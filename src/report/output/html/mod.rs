//! One self-contained page: no network, no script, light and dark, for a screen, a phone and paper.
//!
//! Start reading at [`write`]. Every figure carries its place in the JSON (`data-at`) and its exact value
//! (`data-value`), so that a program can hold the page against the document; tests/report_page.rs does.
//! All text goes through maud, which escapes it.

mod bars;
mod blocks;
mod curves;
mod environment;
mod figure;
mod ladders;
mod points;
mod series;
mod svg;

use super::super::highlights::{Highlight, HighlightKind};
use super::super::merged::{Block, Figures, Merged};
use figure::{Notes, rate_at};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// What the page may load: nothing. A name from a file that got past the escaping could still run nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// Stacks in the order in which they are first met: each keeps its colour and shape on the whole page.
pub(super) struct Stacks<'a> {
    names: Vec<&'a str>,
}

impl<'a> Stacks<'a> {
    fn of(merged: &'a Merged) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for row in merged.blocks.iter().flat_map(|block| &block.rows) {
            if !names.contains(&row.stack.as_str()) {
                names.push(&row.stack);
            }
        }
        Self { names }
    }

    /// Number of a stack, from 0.
    pub(super) fn number(&self, row: &Figures) -> usize {
        self.of_name(&row.stack)
    }

    /// The same by name.
    pub(super) fn of_name(&self, stack: &str) -> usize {
        self.names.iter().position(|name| *name == stack).unwrap_or(0)
    }
}

/// The page.
pub(super) fn write(merged: &Merged) -> String {
    let stacks = Stacks::of(merged);
    let notes = Notes::of(merged);
    let title = title(merged, &stacks);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "nvpoll " (merged.nvpoll) };
                title { (title) }
                // An icon of its own, so that no browser asks a server for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header(merged, &title))
                main {
                    (highlights(merged))
                    (overview(merged, &stacks))
                    @for (index, ladder) in merged.ladders.iter().enumerate() {
                        (ladders::section(index, ladder, &stacks))
                    }
                    @for (index, block) in merged.blocks.iter().enumerate() {
                        (blocks::block(merged, index, block, &stacks, &notes))
                    }
                    (notes.section(merged))
                    (environment::section(merged))
                    (reading())
                }
                footer { p { "Made by nvpoll " (merged.nvpoll) " report, from " (merged.sources.len()) " "
                    (plural(merged.sources.len(), "file")) ". Everything on this page is in the report's JSON ("
                    (merged.schema) ")." } }
            }
        }
    };
    page.into_string() + "\n"
}

/// `file`, `files`.
fn plural(count: usize, word: &str) -> String {
    format!("{word}{}", if count == 1 { "" } else { "s" })
}

fn title(merged: &Merged, stacks: &Stacks<'_>) -> String {
    let (stacks, workloads) = (stacks.names.len(), merged.blocks.len());
    format!(
        "{stacks} storage {}, {workloads} {}",
        plural(stacks, "stack"),
        plural(workloads, "workload")
    )
}

fn header(merged: &Merged, title: &str) -> Markup {
    html! {
        header {
            h1 { (title) }
            ul.sources {
                @for source in &merged.sources {
                    li {
                        strong { (source.label) }
                        " – " (source.kind.words())
                        @if let Some(environment) = &source.environment { ", " (environment.date) }
                        @if !source.complete { ", " span.warn { "partial result" } }
                        @for mark in &source.marks { p.mark { (mark.text) } }
                    }
                }
            }
            nav aria-label="Workloads" {
                @for (index, block) in merged.blocks.iter().enumerate() {
                    a href={ "#workload-" (index + 1) } { (block.title) }
                }
                a href="#notes" { "Notes" }
                a href="#environment" { "Environment" }
            }
        }
    }
}

/// The broad sentences; each workload's own stand in its section.
fn highlights(merged: &Merged) -> Markup {
    let is_broad = |highlight: &&Highlight| {
        use HighlightKind::{Knee, LowestCpu, StackLeads, SystemLeads};
        matches!(highlight.kind, Knee | SystemLeads | StackLeads | LowestCpu)
    };
    let broad: Vec<&Highlight> = merged.highlights.iter().filter(is_broad).collect();
    html! {
        @if !broad.is_empty() {
            section.highlights aria-labelledby="highlights" {
                h2 #highlights { "Highlights" }
                ul { @for highlight in broad { li { (sentence(highlight)) } } }
            }
        }
    }
}

/// A highlight and what speaks against it.
fn sentence(highlight: &Highlight) -> Markup {
    html! {
        span.claim { (highlight.text) }
        @for caveat in &highlight.caveats {
            span.caveat { strong { "But: " } (caveat) "." }
        }
    }
}

/// IOPS of everything, a workload a line.
fn overview(merged: &Merged, stacks: &Stacks<'_>) -> Markup {
    html! {
        @if merged.blocks.len() > 1 {
            section aria-labelledby="overview" {
                h2 #overview { "IOPS at a glance" }
                div.scroll tabindex="0" role="region" aria-labelledby="overview" {
                    table.overview {
                        thead { tr {
                            th scope="col" { "Workload" }
                            @for name in &stacks.names { th scope="col" { (name) } }
                        } }
                        tbody {
                            @for (index, block) in merged.blocks.iter().enumerate() {
                                tr {
                                    th scope="row" { a href={ "#workload-" (index + 1) } { (block.title) } }
                                    @for name in &stacks.names {
                                        @let found = block.rows.iter().position(|row| row.stack == *name);
                                        (overview_cell(index, block, found))
                                    }
                                }
                            }
                        }
                    }
                }
                p.small { "▲ ahead of all others of its line, on the same drives, and to be told from them as far as there are rounds." }
            }
        }
    }
}

fn overview_cell(index: usize, block: &Block, row: Option<usize>) -> Markup {
    let found = row.and_then(|row| Some((row, block.rows.get(row)?)));
    let figure =
        found.and_then(|(row, figures)| Some((row, figures.iops?.mean, leads(block, figures))));
    html! {
        @match figure {
            Some((row, mean, leads)) => {
                td.f.best[leads] {
                    @if leads { span aria-hidden="true" { "▲ " } span.hidden { "leads: " } }
                    (rate_at(mean, &format!("/blocks/{index}/rows/{row}/iops/mean")))
                }
            }
            None => td.f { "–" },
        }
    }
}

/// Whether a row may be compared with all others of its block, is ahead of each, and can be told from it.
fn leads(block: &Block, row: &Figures) -> bool {
    let ahead = |other: &&Figures| {
        block.pairs.iter().any(|pair| {
            let turned = pair.of == row.stack && pair.stack == other.stack;
            let straight = pair.stack == row.stack && pair.of == other.stack;
            let mean = pair.iops.map_or(1.0, |iops| iops.mean);
            let sure = pair.iops.is_some_and(|iops| iops.distinguishable != Some(false));
            sure && ((straight && mean > 1.0) || (turned && mean < 1.0))
        })
    };
    let mut others = block.rows.iter().filter(|other| other.stack != row.stack).peekable();
    others.peek().is_some() && others.all(|other| ahead(&other))
}

fn reading() -> Markup {
    html! {
        section aria-labelledby="reading" {
            h2 #reading { "How to read this" }
            dl.reading {
                dt { "Intervals" }
                dd { "95 % intervals are Student's t over rounds. Where there is none, there was one figure only, and \
                      nothing says how much the next would differ." }
                dt { "Not distinguishable" }
                dd { "The interval of the two stacks' ratio contains 1: these rounds cannot tell them apart. The least \
                      difference that they would have shown stands beside it." }
                dt { "Latency" }
                dd { "From just before submission to the completion seen, unless a note says otherwise. Percentiles are \
                      of all rounds together. Hollow points and the word few: fewer than ten I/Os lie beyond." }
                dt { "Seconds" }
                dd { "A panel a round, in their order; within it each line is what a stack did in each second. The \
                      longest latency is of the I/Os that completed in that second." }
                dt { "Knee" }
                dd { "The depth at which IOPS by mean latency are the greatest (Kleinrock's power). Before it more depth \
                      gives more IOPS than latency, after it more latency than IOPS." }
                dt { "CPU" }
                dd { "The whole machine: interrupts and kernel threads are in it, idle and waiting for I/O are not. A \
                      polling stack keeps a processor busy whatever it does." }
                dt { "Little's law" }
                dd { "IOPS x mean latency is the number of I/Os in flight. A row (†) that breaks this by more than 5 % \
                      has another depth or another latency than it says, and is no fair comparison." }
            }
        }
    }
}
