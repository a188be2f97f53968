//! An NVMe controller in software, spoken to through registers, doorbells and DMA memory like a
//! real one.
//!
//! It follows the NVM Express Base Specification 1.4, whose sections are cited where a rule is
//! kept. The host brings it up through [`Registers`](nvpoll_mem::Registers), maps memory in
//! [`SoftController::iommu`], and rings [`SoftDoorbell`]s; every access of the device outside of
//! what is mapped is a [`DmaFault`]. With [`SoftOptions::stepped`] the device runs inside the ring,
//! in the caller's thread, which makes tests deterministic; otherwise in a thread of its own, which
//! polls as a device does, at a set latency and rate. [`FaultHooks`] make it err on demand.
//!
//! A stepped device acts on CC when CSTS is read, after the read: a host that does not wait for a
//! change does not get it.
//!
//! Start reading at [`SoftOptions`] and [`SoftController`], then `device.rs` (the loop) and
//! `lifecycle.rs` (the state machine).
//!
//! # What it does not do
//!
//! One namespace of one LBA format; where its blocks have metadata there is neither Compare nor Copy. Where
//! it is zoned, blocks are written by Write and Zone Append alone, all zones are alike, none becomes read
//! only or offline, and a Controller Reset leaves their states.
//! No interrupts (a
//! completion queue may ask for one and never gets it), no SGLs but a data block, no fused commands,
//! no Format to another LBA format, no firmware download, namespace management or reservations. Arbitration is plain round
//! robin, and features that only tune real hardware are kept and given back. Of SMART the counters
//! of data, commands and errors are real, the temperature is a constant, and busy time stays zero.
//!
//! A command's data moves when it is fetched, which is when its doorbell is seen:
//! [`SoftOptions::latency`] delays the completion alone, and commands in flight on the same blocks
//! are carried out in the order of their fetch. It is no model of a drive's caches, channels or
//! garbage collection; a latency and a rate are all that makes it slow, and a rate counts commands
//! whatever their size.
//!
//! Nothing survives the controller but a backing file. A Flush makes that file durable; what was
//! written after the last one is as the system leaves it.

#![forbid(unsafe_code)]

mod admin;
mod controller;
mod copy;
mod device;
mod events;
mod fault;
mod features;
mod format;
mod identify;
mod iommu;
mod lifecycle;
mod media;
mod metadata;
mod nvm;
mod optional;
mod options;
mod pace;
mod prp;
mod queue;
mod shared;
mod thread;
mod zoned;
mod zones;

pub use controller::{SoftController, SoftDoorbell, SoftError};
pub use fault::{FaultAction, FaultHooks, FaultRule};
pub use iommu::DmaFault;
pub use metadata::BlockMetadata;
pub use options::{Backing, OptionError, SoftOptions};
pub use shared::SoftCounters;
pub use zoned::ZonedOptions;
