//! What the charts share: frames, axes, shapes that tell stacks apart without colour.

use maud::{Markup, html};

/// Width of every chart in its own units. A phone shows it at some 0.8, a desk at 1.2.
pub(super) const WIDTH: f64 = 440.0;

/// Left edge of a plot with an axis, and its right one.
pub(super) const LEFT: f64 = 64.0;
pub(super) const RIGHT: f64 = WIDTH - 26.0;

/// Colours and shapes; a ninth stack starts over.
pub(super) const KINDS: usize = 8;

/// A chart in its frame: a title above, and in words what it shows for those who do not see it.
pub(super) fn chart(
    id: &str,
    title: &str,
    description: &str,
    height: f64,
    inside: &Markup,
) -> Markup {
    html! {
        figure {
            figcaption { (title) }
            svg.chart viewBox=(format!("0 0 {WIDTH} {height:.0}")) role="img"
                aria-labelledby={ (id) "-t " (id) "-d" } {
                title id={ (id) "-t" } { (title) }
                desc id={ (id) "-d" } { (description) }
                (inside)
            }
        }
    }
}

/// Coordinates to a tenth.
pub(super) fn c(value: f64) -> String {
    format!("{value:.1}")
}

/// A point of stack `number`: its shape and colour; hollow where it rests on little.
pub(super) fn marker(number: usize, x: f64, y: f64, hollow: bool) -> Markup {
    let class = format!("mk c{}{}", number % KINDS, if hollow { " hollow" } else { "" });
    let path = |points: &[(f64, f64)]| {
        let words = points.iter().map(|(dx, dy)| format!("{},{}", c(x + dx), c(y + dy)));
        words.collect::<Vec<_>>().join(" ")
    };
    html! {
        @match number % KINDS {
            0 => circle class=(class) cx=(c(x)) cy=(c(y)) r="4" {},
            1 => rect class=(class) x=(c(x - 3.7)) y=(c(y - 3.7)) width="7.4" height="7.4" {},
            2 => polygon class=(class) points=(path(&[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)])) {},
            3 => polygon class=(class) points=(path(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)])) {},
            4 => polygon class=(class) points=(path(&[(0.0, 4.8), (4.6, -3.6), (-4.6, -3.6)])) {},
            5 => rect class=(class) x=(c(x - 5.0)) y=(c(y - 2.4)) width="10" height="4.8" {},
            6 => ellipse class=(class) cx=(c(x)) cy=(c(y)) rx="2.6" ry="5" {},
            _ => polygon class=(class) points=(path(&[(-4.4, -4.4), (4.4, -1.6), (1.6, 4.4), (-4.4, 1.6)])) {},
        }
    }
}

/// A line through points, in the stack's colour and dashes.
pub(super) fn line(number: usize, points: &[(f64, f64)]) -> Markup {
    let words: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", c(*x), c(*y))).collect();
    html! { polyline class={ "ln c" (number % KINDS) " d" (number % 4) } points=(words.join(" ")) {} }
}

/// Which shape is which stack.
pub(super) fn legend(stacks: &[(usize, &str)]) -> Markup {
    html! {
        ul.legend {
            @for (number, name) in stacks {
                li {
                    svg viewBox="0 0 28 12" width="28" height="12" aria-hidden="true" {
                        (line(*number, &[(1.0, 6.0), (27.0, 6.0)]))
                        (marker(*number, 14.0, 6.0, false))
                    }
                    (name)
                }
            }
        }
    }
}

/// A plot's frame: the heights of its upper and lower edge.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub top: f64,
    pub bottom: f64,
}

impl Frame {
    /// Where `value` of the range lies.
    pub(super) fn y(self, value: f64, [low, high]: [f64; 2]) -> f64 {
        let part = if high > low { (value - low) / (high - low) } else { 0.5 };
        self.bottom - part.clamp(0.0, 1.0) * (self.bottom - self.top)
    }

    /// Lines across, each with its text on the left.
    pub(super) fn across(self, ticks: &[(f64, String)]) -> Markup {
        html! {
            @for (y, text) in ticks {
                line.grid x1=(c(LEFT)) x2=(c(RIGHT)) y1=(c(*y)) y2=(c(*y)) {}
                text.tick x=(c(LEFT - 6.0)) y=(c(*y + 4.0)) text-anchor="end" { (text) }
            }
        }
    }

    /// Words below the lower edge.
    pub(super) fn below(self, ticks: &[(f64, String)]) -> Markup {
        html! {
            @for (x, text) in ticks {
                line.grid x1=(c(*x)) x2=(c(*x)) y1=(c(self.top)) y2=(c(self.bottom)) {}
                text.tick x=(c(*x)) y=(c(self.bottom + 20.0)) text-anchor="middle" { (text) }
            }
        }
    }
}

/// Where `value` of the range lies from left to right.
pub(super) fn x(value: f64, [low, high]: [f64; 2]) -> f64 {
    let part = if high > low { (value - low) / (high - low) } else { 0.5 };
    LEFT + part.clamp(0.0, 1.0) * (RIGHT - LEFT)
}

/// A round number at or above `value`, and the step that cuts it into at most five parts.
pub(super) fn round_up(value: f64) -> (f64, f64) {
    if !(value.is_finite() && value > 0.0) {
        return (1.0, 1.0);
    }
    let magnitude = 10_f64.powf((value / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * magnitude);
    let step = steps.into_iter().find(|step| value / step <= 5.0).unwrap_or(10.0 * magnitude);
    ((value / step).ceil() * step, step)
}

/// All steps from 0 to `top`.
pub(super) fn steps(top: f64, step: f64) -> Vec<f64> {
    let count = if step > 0.0 { (top / step).round().clamp(0.0, 10.0) as u32 } else { 0 };
    (0..=count).map(|number| f64::from(number) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers() {
        for (value, top, step) in [
            (97.0, 100.0, 20.0),
            (2.6e6, 3e6, 1e6),
            (0.3, 0.3, 0.1),
            (1.0, 1.0, 0.2),
            (5.0, 5.0, 1.0),
        ] {
            let (found, found_step) = round_up(value);
            assert!((found - top).abs() < 1e-9 * top, "{value}: {found}, not {top}");
            assert!(
                (found_step / step - 1.0).abs() < 1e-9 || step > 1e5,
                "{value}: step {found_step}"
            );
            assert!(steps(found, found_step).len() <= 6);
        }
        assert_eq!(round_up(f64::NAN), (1.0, 1.0));
        assert_eq!(round_up(0.0), (1.0, 1.0));
    }
}
