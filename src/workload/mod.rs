//! What is asked of a target: which operations, where, how large, how many at once.
//!
//! Start reading at [`Workload`], the description, then [`Generator`], which turns it into
//! operations, one in constant time, as fast as the loop that asks for them needs, and [`Arrivals`],
//! which says when those of an open load are due.
//!
//! # What it does not do
//!
//! No map of visited blocks is kept, as with fio's `norandommap`: random offsets are independent
//! draws, and a block may come up twice. It holds no data and moves none.

mod arrivals;
mod buffers;
mod composed;
mod distribution;
mod fio;
mod generator;
mod rw;
mod split;
mod stamp;
mod suite;
mod suite_file;
mod sync;
pub mod units;

mod spec;

pub use arrivals::{Arrivals, RateProcess, UnknownRateProcess};
pub use buffers::{Buffers, Filler};
pub use distribution::{BadDistribution, Distribution};
pub use generator::{Consumer, Generator, Sink};
pub use rw::{Rw, UnknownRw};
pub use spec::{BS_BYTES_MAX, IODEPTH_MAX, NUMJOBS_MAX, Span, Workload, WorkloadError};
pub use split::{BadSplit, BsSplit};
pub use stamp::{Stamp, Wrong};
pub use suite::{FileName, Suite, SuiteError, SuiteTiming};
pub use sync::{SyncMode, UnknownSyncMode};
