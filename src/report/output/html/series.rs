//! Second by second: a panel a round, a line a stack in each.

use super::Stacks;
use super::curves::{log_ticks, named, short_time};
use super::points::short_rate;
use super::svg::{Frame, LEFT, RIGHT, WIDTH, c, chart, legend, line, round_up, steps};
use crate::report::figures::{rate, time};
use crate::report::merged::{Block, Figures};
use crate::report::model::SeriesStep;
use maud::{Markup, html};

const FRAME: Frame = Frame { top: 12.0, bottom: 196.0 };
const HEIGHT: f64 = 240.0;

/// Fewer points show nothing that the bars do not.
const STEPS_MIN: usize = 3;

/// Points across a chart; of more, several are drawn as one.
const ACROSS_MAX: usize = 400;

/// Between two panels.
const GAP: f64 = 6.0;

/// Rounds up to which each has its number below it.
const NUMBERS_MAX: usize = 12;

/// A row and its rounds' steps, by round from 1.
struct Drawn<'a> {
    row: &'a Figures,
    rounds: Vec<(u32, Vec<SeriesStep>)>,
}

/// IOPS and the longest latency; nothing where no row has a series.
pub(super) fn charts(index: usize, block: &Block, stacks: &Stacks<'_>) -> Markup {
    let rows: Vec<Drawn<'_>> = block.rows.iter().filter_map(drawn).collect();
    if rows.is_empty() {
        return html! {};
    }
    let panels = Panels::of(&rows);
    let figures: Vec<&Figures> = rows.iter().map(|drawn| drawn.row).collect();
    let legend = legend(&named(&figures, stacks));
    let said = |of: &dyn Fn(&SeriesStep) -> Option<f64>, text: fn(f64) -> String| {
        let words = rows.iter().map(|drawn| range(drawn, of, text));
        words.collect::<Vec<_>>().join("; ")
    };
    let longest = |step: &SeriesStep| step.lat_max_ns.map(|ns| ns as f64).filter(|ns| *ns > 0.0);
    let iops = |step: &SeriesStep| Some(step.iops());
    let id = |what: &str| format!("w{}-{what}-series", index + 1);
    let note = panels.note();
    html! {
        div.cell {
            (chart(&id("iops"), "IOPS, second by second",
                &format!("IOPS in each second of {}: {}.", block.title, said(&iops, rate)),
                HEIGHT, &iops_lines(&rows, &panels, stacks)))
            (legend)
            p.small { (note) }
        }
        @if let Some(lines) = latency_lines(&rows, &panels, stacks, &longest) {
            div.cell {
                (chart(&id("lat-max"), "Longest latency, second by second",
                    &format!("Longest latency in each second of {}: {}.", block.title, said(&longest, time)),
                    HEIGHT, &lines))
                (legend)
                p.small { (note) " Logarithmic." }
            }
        }
    }
}

fn drawn(row: &Figures) -> Option<Drawn<'_>> {
    let of = |round: &crate::report::merged::RoundFigures| {
        Some((round.round, round.series.as_ref()?.steps(round.elapsed_s?)))
    };
    let rounds: Vec<(u32, Vec<SeriesStep>)> = row.rounds.iter().filter_map(of).collect();
    let enough = rounds.iter().any(|(_, steps)| steps.len() >= STEPS_MIN);
    enough.then_some(Drawn { row, rounds })
}

/// Least and most of a row, in words.
fn range(
    drawn: &Drawn<'_>,
    of: &dyn Fn(&SeriesStep) -> Option<f64>,
    text: fn(f64) -> String,
) -> String {
    let values = || drawn.rounds.iter().flat_map(|(_, steps)| steps).filter_map(of);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    match low.is_finite() {
        true => format!("{} from {} to {}", drawn.row.stack, text(low), text(high)),
        false => format!("{} none", drawn.row.stack),
    }
}

/// Where each round is drawn.
struct Panels {
    /// Rounds.
    count: usize,
    /// Seconds of the longest.
    seconds: f64,
    step_s: f64,
    /// Steps that are drawn as one.
    together: usize,
}

impl Panels {
    fn of(rows: &[Drawn<'_>]) -> Self {
        let rounds = || rows.iter().flat_map(|drawn| &drawn.rounds);
        let steps = || rounds().flat_map(|(_, steps)| steps);
        let count = rounds().map(|(round, _)| *round as usize).max().unwrap_or(1).max(1);
        let most = rounds().map(|(_, steps)| steps.len()).max().unwrap_or(1);
        Self {
            count,
            seconds: steps().map(|step| step.from_s + step.length_s).fold(1.0, f64::max),
            step_s: steps().map(|step| step.length_s).fold(0.0, f64::max),
            together: most.saturating_mul(count).div_ceil(ACROSS_MAX).max(1),
        }
    }

    fn width(&self) -> f64 {
        let gaps = GAP * (self.count - 1) as f64;
        ((RIGHT - LEFT - gaps) / self.count as f64).max(1.0)
    }

    fn left(&self, round: usize) -> f64 {
        LEFT + round as f64 * (RIGHT - LEFT + GAP) / self.count as f64
    }

    /// Where `second` of `round` (from 1) lies.
    fn x(&self, round: u32, second: f64) -> f64 {
        let part = (second / self.seconds).clamp(0.0, 1.0);
        self.left((round as usize).saturating_sub(1)) + part * self.width()
    }

    fn note(&self) -> String {
        let each = self.step_s * self.together as f64;
        let point = if each > 1.5 { format!(", a point is {each:.0} s") } else { String::new() };
        match self.count {
            1 => format!("One round of {:.0} s{point}.", self.seconds),
            count => format!("{count} rounds of {:.0} s side by side{point}.", self.seconds),
        }
    }

    fn below(&self) -> Markup {
        let every = self.count.div_ceil(NUMBERS_MAX);
        let (top, step) = round_up(self.seconds);
        let y = FRAME.bottom + 18.0;
        html! {
            @for round in 0..self.count {
                rect.panel x=(c(self.left(round))) y=(c(FRAME.top)) width=(c(self.width())) height=(c(FRAME.bottom - FRAME.top)) {}
                @if self.count > 1 && round % every == 0 {
                    text.tick x=(c(self.left(round) + self.width() / 2.0)) y=(c(y)) text-anchor="middle" { (round + 1) }
                }
            }
            @if self.count == 1 {
                @for second in steps(top, step).into_iter().filter(|second| *second <= self.seconds * 1.001) {
                    text.tick x=(c(self.x(1, second))) y=(c(y)) text-anchor="middle" { (second.round()) }
                }
            }
            text.tick x=(c(WIDTH / 2.0)) y=(c(HEIGHT - 8.0)) text-anchor="middle" {
                @if self.count > 1 { "round" } @else { "seconds" }
            }
        }
    }

    /// A round's points: of steps that are drawn as one, what `join` makes of them.
    fn points(
        &self,
        steps: &[SeriesStep],
        join: impl Fn(&[SeriesStep]) -> Option<f64>,
    ) -> Vec<(f64, f64)> {
        let point = |steps: &[SeriesStep]| {
            let (first, last) = (steps.first()?, steps.last()?);
            let middle = f64::midpoint(first.from_s, last.from_s + last.length_s);
            Some((middle, join(steps)?))
        };
        steps.chunks(self.together).filter_map(point).collect()
    }
}

fn iops_lines(rows: &[Drawn<'_>], panels: &Panels, stacks: &Stacks<'_>) -> Markup {
    let all = || rows.iter().flat_map(|drawn| &drawn.rounds).flat_map(|(_, steps)| steps);
    let (top, step) = round_up(all().map(SeriesStep::iops).fold(0.0, f64::max));
    let across: Vec<(f64, String)> = steps(top, step)
        .into_iter()
        .map(|iops| (FRAME.y(iops, [0.0, top]), short_rate(iops)))
        .collect();
    let rate = |steps: &[SeriesStep]| {
        let (ios, seconds) = steps
            .iter()
            .fold((0.0, 0.0), |(ios, s), step| (ios + step.ios as f64, s + step.length_s));
        Some(ios / seconds)
    };
    html! {
        (FRAME.across(&across)) (panels.below())
        @for drawn in rows {
            @for (round, steps) in &drawn.rounds {
                @let points: Vec<(f64, f64)> = panels.points(steps, rate).into_iter()
                    .map(|(second, iops)| (panels.x(*round, second), FRAME.y(iops, [0.0, top]))).collect();
                (line(stacks.number(drawn.row), &points))
            }
        }
    }
}

/// `None` where there is no latency to draw.
fn latency_lines(
    rows: &[Drawn<'_>],
    panels: &Panels,
    stacks: &Stacks<'_>,
    longest: &dyn Fn(&SeriesStep) -> Option<f64>,
) -> Option<Markup> {
    let steps = || rows.iter().flat_map(|drawn| &drawn.rounds).flat_map(|(_, steps)| steps);
    let values = || steps().filter_map(longest);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if !(low.is_finite() && high > 0.0) {
        return None;
    }
    let ticks = log_ticks(low, high);
    let ends = [
        low.min(*ticks.first().unwrap_or(&low)).log10(),
        high.max(*ticks.last().unwrap_or(&high)).log10(),
    ];
    let across: Vec<(f64, String)> =
        ticks.iter().map(|ns| (FRAME.y(ns.log10(), ends), short_time(*ns))).collect();
    let most = |steps: &[SeriesStep]| steps.iter().filter_map(longest).reduce(f64::max);
    Some(html! {
        (FRAME.across(&across)) (panels.below())
        @for drawn in rows {
            @for (round, steps) in &drawn.rounds {
                @let points: Vec<(f64, f64)> = panels.points(steps, most).into_iter()
                    .map(|(second, ns)| (panels.x(*round, second), FRAME.y(ns.log10(), ends))).collect();
                (line(stacks.number(drawn.row), &points))
            }
        }
    })
}
