//! Ladders of depths: latency over IOPS, with the knee of each stack.

use super::Stacks;
use super::curves::{log_ticks, short_time};
use super::figure::{at, rate_at, time_at};
use super::points::short_rate;
use super::svg::{Frame, LEFT, RIGHT, WIDTH, c, chart, legend, line, marker, round_up, steps, x};
use crate::report::figures::{rate, time};
use crate::report::knee::{Climb, Ladder, Rung};
use maud::{Markup, html};

const FRAME: Frame = Frame { top: 14.0, bottom: 250.0 };
const HEIGHT: f64 = 296.0;

/// The section.
pub(super) fn section(index: usize, ladder: &Ladder, stacks: &Stacks<'_>) -> Markup {
    let id = format!("ladder-{}", index + 1);
    html! {
        section.workload aria-labelledby=(id) {
            h2 id=(id) { (ladder.title) ": the ladder of depths" }
            div.charts { (curve(index, ladder, stacks)) }
            (table(index, ladder))
        }
    }
}

fn curve(index: usize, ladder: &Ladder, stacks: &Stacks<'_>) -> Markup {
    let climbs: Vec<&Climb> = ladder.stacks.iter().filter(|climb| climb.points.len() > 1).collect();
    let points = || climbs.iter().flat_map(|climb| &climb.points);
    let values = || points().map(|point| point.lat_mean_ns);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if climbs.is_empty() || !(low > 0.0 && high.is_finite()) {
        return html! {};
    }
    let (right, step) = round_up(points().map(|point| point.iops).fold(0.0, f64::max));
    let ticks = log_ticks(low, high);
    let ends = [
        low.min(*ticks.first().unwrap_or(&low)).log10(),
        high.max(*ticks.last().unwrap_or(&high)).log10(),
    ];
    let across: Vec<(f64, String)> =
        ticks.iter().map(|ns| (FRAME.y(ns.log10(), ends), short_time(*ns))).collect();
    let below: Vec<(f64, String)> = steps(right, step)
        .into_iter()
        .map(|iops| (x(iops, [0.0, right]), short_rate(iops)))
        .collect();
    let place =
        |point: &Rung| (x(point.iops, [0.0, right]), FRAME.y(point.lat_mean_ns.log10(), ends));
    let mut labels = Labels::default();
    let inside = html! {
        (FRAME.across(&across)) (FRAME.below(&below))
        @for climb in &climbs {
            @let of = stacks.of_name(&climb.stack);
            (line(of, &climb.points.iter().map(place).collect::<Vec<_>>()))
            @for point in &climb.points {
                @let (px, py) = place(point);
                @if climb.knee.is_some_and(|knee| knee.depth == point.depth) {
                    circle.ring cx=(c(px)) cy=(c(py)) r="9" {}
                }
                (marker(of, px, py, false))
            }
        }
        @for climb in &climbs { @for point in &climb.points { (labels.put(place(point), point.depth)) } }
        text.tick x=(c(WIDTH / 2.0)) y=(c(HEIGHT - 4.0)) text-anchor="middle" { "IOPS" }
    };
    let said: Vec<String> = climbs.iter().map(|climb| said(climb)).collect();
    let description = format!("Mean latency over IOPS of {}: {}.", ladder.title, said.join("; "));
    let named: Vec<(usize, &str)> =
        climbs.iter().map(|climb| (stacks.of_name(&climb.stack), climb.stack.as_str())).collect();
    html! {
        div.cell {
            (chart(&format!("ladder-{}-curve", index + 1), "Mean latency over IOPS", &description, HEIGHT, &inside))
            (legend(&named))
            p.small { "Numbers are depths, as far as there is room. Ringed: the knee. Latency is logarithmic." }
        }
    }
}

fn said(climb: &Climb) -> String {
    let points = climb.points.iter().map(|point| {
        format!("depth {} {} IOPS at {}", point.depth, rate(point.iops), time(point.lat_mean_ns))
    });
    format!("{} {}", climb.stack, points.collect::<Vec<_>>().join(", "))
}

/// Boxes that are taken, so that no number lies on another.
#[derive(Default)]
struct Labels {
    taken: Vec<[f64; 4]>,
}

impl Labels {
    /// A number beside a point, where there is room.
    fn put(&mut self, (px, py): (f64, f64), depth: u32) -> Markup {
        let text = depth.to_string();
        let (width, height) = (text.len() as f64 * 8.0 + 2.0, 15.0);
        // To the right and left of it, above and below: the middle of the number.
        let places = [
            (px + 9.0 + width / 2.0, py + 11.0),
            (px - 9.0 - width / 2.0, py - 7.0),
            (px, py - 16.0),
            (px, py + 18.0),
        ];
        let free = places.into_iter().find_map(|(x, y)| {
            let own = [x - width / 2.0, y - height / 2.0, x + width / 2.0, y + height / 2.0];
            let inside =
                own[0] > LEFT && own[2] < RIGHT + 24.0 && own[1] > 0.0 && own[3] < FRAME.bottom;
            let apart = self.taken.iter().all(|other| {
                own[2] < other[0] || other[2] < own[0] || own[3] < other[1] || other[3] < own[1]
            });
            (inside && apart).then_some((x, y, own))
        });
        let Some((x, y, own)) = free else { return html! {} };
        self.taken.push(own);
        html! { text.tick x=(c(x)) y=(c(y + 4.5)) text-anchor="middle" { (text) } }
    }
}

fn table(index: usize, ladder: &Ladder) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Knees of " (ladder.title) } {
            table.pairs {
                thead { tr {
                    th scope="col" { "Stack" }
                    th scope="col" { "Knee at depth" }
                    th scope="col" { "IOPS there" }
                    th scope="col" { "Mean latency there" }
                    th scope="col" { "In words" }
                } }
                tbody { @for (number, climb) in ladder.stacks.iter().enumerate() {
                    (row(climb, &format!("/ladders/{index}/stacks/{number}/knee")))
                } }
            }
        }
    }
}

fn row(climb: &Climb, pointer: &str) -> Markup {
    let depth =
        |depth: u32, name: &str| at(depth.into(), &depth.to_string(), &format!("{pointer}/{name}"));
    let words = climb.text.strip_prefix(&format!("{}: ", climb.stack)).unwrap_or(&climb.text);
    html! {
        tr {
            th scope="row" { (climb.stack) }
            @match climb.knee {
                Some(knee) => {
                    td.f {
                        (depth(knee.depth, "depth"))
                        @if knee.between[0] != knee.between[1] {
                            " (" (depth(knee.between[0], "between/0")) " to " (depth(knee.between[1], "between/1")) ")"
                        }
                    }
                    td.f { (rate_at(knee.iops, &format!("{pointer}/iops"))) }
                    td.f { (time_at(knee.lat_mean_ns, &format!("{pointer}/lat_mean_ns"))) }
                }
                None => { td.f { "none" } td.f { "n/a" } td.f { "n/a" } }
            }
            td { (words) }
        }
    }
}
