//! nvpoll: what does the storage stack cost on this drive?
//!
//! The benchmark: it drives an NVMe drive through the userspace driver and through the kernel's own
//! paths with the same workload code, the same clock and the same statistics, and puts the results
//! side by side. Start reading at [`run::Lane::drive`], the loop that every figure comes from; then
//! [`run::run_plan`], which takes the drives, the rounds and the stacks in turn; then
//! [`report::Report`].
//!
//! # What it does not do
//!
//! It knows the engines only by their trait, the drives only through `nvpoll-host`, and contains no
//! unsafe code.

#![forbid(unsafe_code)]

pub mod cli;
pub mod failure;
pub mod measure;
pub mod plan;
pub mod preflight;
pub mod report;
pub mod run;
pub mod workload;
