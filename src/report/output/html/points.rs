//! IOPS against the machine's CPU: up is faster, left is cheaper.

use super::Stacks;
use super::svg::{Frame, WIDTH, c, chart, legend, marker, round_up, steps, x};
use crate::report::figures::rate;
use crate::report::merged::{Block, Figures};
use maud::{Markup, html};

const FRAME: Frame = Frame { top: 12.0, bottom: 216.0 };
const HEIGHT: f64 = 262.0;

/// The chart; nothing where fewer than two rows have both.
pub(super) fn scatter(index: usize, block: &Block, stacks: &Stacks<'_>) -> Markup {
    let rows: Vec<(&Figures, f64, f64)> = block
        .rows
        .iter()
        .filter_map(|row| Some((row, row.cpu.machine_pct?.mean, row.iops?.mean)))
        .collect();
    if rows.len() < 2 {
        return html! {};
    }
    let most = |of: fn(&(&Figures, f64, f64)) -> f64| rows.iter().map(of).fold(0.0, f64::max);
    let (right, x_step) = round_up(most(|(_, cpu, _)| *cpu));
    let (top, y_step) = round_up(most(|(_, _, iops)| *iops));
    let across: Vec<(f64, String)> = steps(top, y_step)
        .into_iter()
        .map(|iops| (FRAME.y(iops, [0.0, top]), short_rate(iops)))
        .collect();
    let below: Vec<(f64, String)> = steps(right, x_step)
        .into_iter()
        .map(|cpu| (x(cpu, [0.0, right]), format!("{}%", plain(cpu))))
        .collect();
    let inside = html! {
        (FRAME.across(&across)) (FRAME.below(&below))
        @for (row, cpu, iops) in &rows {
            (marker(stacks.number(row), x(*cpu, [0.0, right]), FRAME.y(*iops, [0.0, top]), false))
        }
        text.tick x=(c(WIDTH / 2.0)) y=(c(HEIGHT - 4.0)) text-anchor="middle" { "CPU of the whole machine" }
    };
    let said: Vec<String> = rows
        .iter()
        .map(|(row, cpu, iops)| format!("{} {} IOPS at {cpu:.2} % CPU", row.stack, rate(*iops)))
        .collect();
    let description = format!("IOPS against CPU of {}: {}.", block.title, said.join("; "));
    let named: Vec<(usize, &str)> =
        rows.iter().map(|(row, _, _)| (stacks.number(row), row.stack.as_str())).collect();
    let id = format!("w{}-cpu-iops", index + 1);
    html! {
        div.cell {
            (chart(&id, "IOPS against CPU", &description, HEIGHT, &inside))
            (legend(&named))
        }
    }
}

/// `500k`, without digits that a round number does not have.
pub(super) fn short_rate(iops: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (unit, name) = units.into_iter().find(|(unit, _)| iops >= *unit).unwrap_or((1.0, ""));
    format!("{}{name}", plain(iops / unit))
}

/// Two decimals at most, and none that are 0.
fn plain(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
