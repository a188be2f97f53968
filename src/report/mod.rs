//! What ran, what came of it, and all that is needed to judge it and to run it again.
//!
//! Start reading at [`Report`], the document; [`Report::assemble`] makes it of [`RoundResult`]s,
//! [`table`] prints it for people, [`Report::save`] and [`Report::load`] keep it. docs/RESULT-FORMAT.md
//! describes each field.
//!
//! # What it does not do
//!
//! It measures nothing and drops nothing: every round is in the document, and what speaks against a
//! figure stands beside it as a [`Mark`].

mod accounts;
mod assemble;
mod columns;
mod destination;
mod diff;
mod drive_state;
mod environment;
mod figures;
mod highlights;
mod input;
mod json;
mod knee;
mod marks;
mod merge;
mod merged;
mod model;
mod output;
mod pairs;
#[cfg(test)]
mod sample;
mod series;
mod stages;
pub mod table;

pub use assemble::{Ran, RoundResult};
pub use destination::check_destination;
pub use diff::Diff;
pub use drive_state::DriveState;
pub use environment::{ClockFacts, Environment, Machine};
pub use highlights::{Highlight, HighlightKind};
pub use input::{Input, InputError};
pub use json::{ReportError, write_whole};
pub use marks::{Mark, MarkKind};
pub use merged::Merged;
pub use model::{
    Drive, DriveKind, ErrorCount, Flushes, LatNs, PcieLink, Percentiles, Polls, RatioTo, Report,
    RoundSeries, RoundSummary, Row, SCHEMA, SeriesStep, Side, StageNs, Stages,
};
pub use output::Format;
