//! What a run measures and how figures are made of it: time, latency, processor use, statistics.
//!
//! Start reading at [`Recorder`], which is all that the hot loop touches besides [`Clock::now`];
//! everything else runs before the first or after the last I/O.
//!
//! # What it does not do
//!
//! It decides nothing about what is run and when: windows, rounds and their order are the run's. It
//! prints nothing. It never makes up a figure: what could not be read is `None`, not 0.

mod accounts;
mod clock;
mod cpu;
mod errors;
mod latency;
mod littles;
mod recorder;
mod series;
mod stages;
mod stats;
mod steady;

pub use accounts::{Accounts, AccountsWindow, Meters};
pub use clock::Clock;
pub use cpu::{CpuUse, CpuWindow};
pub use errors::{ERROR_KINDS_MAX, ErrorKind, ErrorTally, FIRST_OFFSETS_MAX};
pub use latency::{LatencySummary, PERCENTILES, Percentile};
pub use littles::{LITTLES_TOLERANCE, LittlesLaw};
pub use recorder::{Direction, Extent, Recorder, TICKS_MAX};
pub use series::{Point, Series};
pub use stages::{Doorbells, InstrumentsSeen, Stage, StageRecorder};
pub use stats::{
    Interval, Ratio, mean_interval, median, outliers, ratio, ratio_independent, resolution,
};
pub use steady::{Steadiness, WINDOW_ROUNDS};
