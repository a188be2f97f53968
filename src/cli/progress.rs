//! Progress on stderr: live figures where it is a terminal, nothing but warnings where it is not.

use super::out::tell;
use crate::plan::Plan;
use crate::report::RoundResult;
use crate::run::{Live, Observer};
use crate::workload::Workload;
use indicatif::{ProgressBar, ProgressStyle};
use nvpoll_engine::EngineChoice;
use std::time::Duration;

/// What is called after each round with all results so far.
pub type OnRound<'a> = Box<dyn FnMut(&[RoundResult]) + 'a>;

/// A line on stderr that follows a session.
pub struct Progress<'a> {
    bar: ProgressBar,
    on_round: OnRound<'a>,
    /// Progress of one measurement in the bar's units.
    unit: u64,
    done: u64,
}

impl<'a> Progress<'a> {
    /// A line for `plan`; hidden by itself where stderr is no terminal.
    pub fn new(plan: &Plan, on_round: OnRound<'a>) -> Self {
        const UNIT: u64 = 1000;
        let bar = ProgressBar::new(plan.measurements() * UNIT);
        let style = ProgressStyle::with_template("[{elapsed}] {wide_bar} {percent}% {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, on_round, unit: UNIT, done: 0 }
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress<'_> {
    fn begins(&mut self, number: u64, round: u32, engine: EngineChoice, workload: &Workload) {
        self.done = (number - 1) * self.unit;
        self.bar.set_position(self.done);
        self.bar.set_message(format!("round {round}  {engine}  {}", workload.name));
    }

    fn live(&mut self, live: Live) {
        self.bar.set_position(self.done + (live.part * self.unit as f64) as u64);
        let message = self.bar.message();
        let stem = message.split("  now ").next().unwrap_or_default();
        self.bar.set_message(format!("{stem}  now {:.0} IOPS", live.iops));
    }

    fn doing(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn warn(&mut self, text: &str) {
        self.bar.suspend(|| tell!("nvpoll: warning: {text}"));
    }

    fn round_done(&mut self, results: &[RoundResult]) {
        (self.on_round)(results);
    }
}
