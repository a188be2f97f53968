//! The NVMe driver: a controller brought up by the specification's steps, and queue pairs that one
//! thread each owns and polls.
//!
//! Read it in this order: [`Controller::open`] (how a controller comes up and goes down; its waits are in `registers.rs`), the admin
//! queue in `admin.rs` (one command at a time, every wait bounded), then [`QueuePair`] (the hot
//! path: `push`, `kick`, `reap`), with `slots.rs` (which command a completion ends) and `prp.rs` (how
//! a buffer is told to the device). The rarer commands are in `commands`, for another evening.
//! Everything is generic over the transport, [`nvpoll_pci::Function`], and contains no unsafe code:
//! memory that the device shares is `nvpoll-mem`'s.
//!
//! Sections are cited as in the NVM Express Base Specification 1.4.
//!
//! # What it does not do
//!
//! No scatter gather list of more than one descriptor, no guard of 32 bits, no storage tags, no memory
//! pages larger than 64 KiB (CAP.MPSMIN), no interrupts of the admin queue, no
//! arbitration but round robin, no namespace management, no zone descriptor extensions, no reset while
//! I/O runs. A controller or namespace that needs one of these is refused with the reason, never misread.

#![forbid(unsafe_code)]

mod admin;
mod commands;
mod controller;
mod data;
mod error;
mod extended;
mod layout;
mod metadata;
mod namespace;
mod protect;
mod prp;
mod queue;
mod quirks;
mod registers;
mod shadow;
mod slots;
mod wait;

pub use commands::{Apst, Commands, FormatWish, SecureErase, Zones};
pub use controller::{Controller, Options};
pub use error::{NvmeError, ProtocolError};
pub use metadata::{Metadata, MetadataPlace};
pub use namespace::Namespace;
pub use protect::ProtectionMode;
pub use queue::{DoorbellMode, Io, PairOptions, Posted, QueuePair, Rejected, WriteMode};
pub use quirks::{KnownQuirk, Quirks};

/// The driver's named limits.
pub mod limits {
    use std::time::Duration;

    /// Least memory page (CC.MPS = 0), in bytes; an Identify page and a log page are as long.
    pub const PAGE_BYTES: usize = 4096;
    /// Largest memory page that is used, in bytes: the largest base page of any host.
    pub const PAGE_BYTES_MAX: usize = 65_536;
    /// Longest wait for a command that is sent by itself ([`Commands`](crate::Commands)); a
    /// deallocation of a whole drive takes its time.
    pub const COMMAND_WAIT: Duration = Duration::from_secs(60);
    /// Longest wait for Format NVM, which may erase a whole drive: as nvme-cli's.
    pub const FORMAT_WAIT: Duration = Duration::from_secs(600);
    /// Asynchronous Event Requests that are held by the controller at a time.
    pub const EVENTS_ASKED: u16 = 4;
    /// Entries in each admin queue.
    pub const ADMIN_ENTRIES: u16 = 32;
    /// Longest wait for an admin command, unless [`Options`](crate::Options) say otherwise.
    pub const ADMIN_WAIT: Duration = Duration::from_secs(15);
    /// Shortest bound on a change of CSTS.RDY: some controllers report a CAP.TO of zero.
    pub const READY_WAIT_MIN: Duration = Duration::from_secs(2);
    /// Bound on a shutdown when the controller names none (RTD3E is zero).
    pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);
    /// Longest bound on a shutdown, whatever the controller names.
    pub const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(30);
    /// I/O queue pairs that are asked for.
    pub const QUEUES_ASKED: u16 = 1024;
    /// Most interrupt vectors that are asked for: one for the admin queue, and one a queue pair.
    pub const INTERRUPTS_MAX: u16 = 65;
    /// Largest data transfer of one command, in bytes; see `prp.rs` for why.
    pub const COMMAND_BYTES_MAX: u32 = 1 << 20;
    /// Most commands outstanding on a queue pair: one bit of the CID is left for the generation.
    pub const COMMANDS_MAX: u32 = 0x7fff;
    /// Largest I/O in bytes.
    pub const IO_BYTES_MAX: u32 = 64 << 20;
    /// Most zones of a namespace that are reported.
    pub const ZONES_MAX: u64 = 1 << 20;
    /// Most namespaces that are listed.
    pub const NAMESPACES_MAX: usize = 65_536;
}
