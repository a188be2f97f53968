//! Bars: a stack a line, its name and figure above the bar, its interval on it.

use super::Stacks;
use super::figure::exact;
use super::svg::{KINDS, WIDTH, c, chart};
use crate::measure::Interval;
use crate::report::figures::percent;
use crate::report::marks::MarkKind;
use crate::report::merged::{Block, Figures};
use maud::{Markup, html};

/// Height of a line, and of the bar in it.
const LINE: f64 = 42.0;
const BAR: f64 = 15.0;

/// What is drawn, and how it is said.
pub(super) struct Measure {
    /// Tells this chart from others of its block.
    pub id: &'static str,
    pub title: &'static str,
    /// Place of the mean in a row of the JSON.
    pub pointer: &'static str,
    pub of: fn(&Figures) -> Option<Interval>,
    pub text: fn(f64) -> String,
}

/// The chart; nothing where no row has the figure.
pub(super) fn bars(index: usize, block: &Block, stacks: &Stacks<'_>, measure: &Measure) -> Markup {
    let rows: Vec<(usize, &Figures, Interval)> = block
        .rows
        .iter()
        .enumerate()
        .filter_map(|(number, row)| Some((number, row, (measure.of)(row)?)))
        .collect();
    let high = |interval: &Interval| {
        interval.ci95.map_or(interval.mean, |[_, high]| high.max(interval.mean))
    };
    let most = rows.iter().map(|(_, _, interval)| high(interval)).fold(0.0, f64::max);
    if rows.is_empty() || most <= 0.0 {
        return html! {};
    }
    let scale = |value: f64| (value / most).clamp(0.0, 1.0) * (WIDTH - 2.0);
    let inside = html! {
        @for (line, (number, row, interval)) in rows.iter().enumerate() {
            @let y = line as f64 * LINE;
            @let pointer = format!("/blocks/{index}/rows/{number}/{}", measure.pointer);
            (one(y, stacks.number(row), row, *interval, &pointer, measure, &scale))
        }
    };
    let words: Vec<String> =
        rows.iter().map(|(_, row, interval)| words(row, *interval, measure)).collect();
    let description = format!("{} of {}: {}.", measure.title, block.title, words.join("; "));
    let id = format!("w{}-{}", index + 1, measure.id);
    chart(&id, measure.title, &description, rows.len() as f64 * LINE, &inside)
}

fn words(row: &Figures, interval: Interval, measure: &Measure) -> String {
    let ends = interval.ci95.map_or_else(String::new, |[low, high]| {
        format!(", 95 % interval {} to {}", (measure.text)(low), (measure.text)(high))
    });
    format!("{} {}{ends}", row.stack, (measure.text)(interval.mean))
}

fn one(
    y: f64,
    colour: usize,
    row: &Figures,
    interval: Interval,
    pointer: &str,
    measure: &Measure,
    scale: &dyn Fn(f64) -> f64,
) -> Markup {
    let refuted = row.marks.iter().any(|mark| mark.kind == MarkKind::LittlesLaw);
    let middle = y + 20.0 + BAR / 2.0;
    html! {
        text.name x="0" y=(c(y + 14.0)) { (row.stack) @if refuted { " †" } }
        text.value x=(c(WIDTH)) y=(c(y + 14.0)) text-anchor="end" {
            tspan data-value=(exact(interval.mean)) data-at=(pointer) { ((measure.text)(interval.mean)) }
            @if let Some(half) = interval.half_width() { tspan.pm { " ±" (percent(half, interval.mean)) } }
        }
        rect class={ "bar c" (colour % KINDS) } x="0" y=(c(y + 20.0)) width=(c(scale(interval.mean).max(1.0)))
            height=(c(BAR)) rx="2" {}
        @if let Some([low, high]) = interval.ci95 {
            g.whisker {
                line x1=(c(scale(low))) x2=(c(scale(high))) y1=(c(middle)) y2=(c(middle)) {}
                @for end in [low, high] {
                    line x1=(c(scale(end))) x2=(c(scale(end))) y1=(c(middle - 5.0)) y2=(c(middle + 5.0)) {}
                }
            }
        }
    }
}
