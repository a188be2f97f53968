//! The ways to move I/O to a target: one trait for the shared, cold half, one for a worker's lane.
//!
//! An engine is one file and one line in [`kinds`]: help, completions, `doctor` and the contract
//! suite take it from there. Start reading at [`Queue`], then [`null`], which is the whole contract
//! in a screen.
//!
//! # What it does not do
//!
//! It decides nothing about the workload: which offset comes next, when to stop, what to time and
//! what to count is the benchmark's. It binds no drive and refuses no target that is in use; that
//! has happened before [`Engine::open`] is called.

#[cfg(target_os = "linux")]
mod admin;
#[cfg(target_os = "linux")]
mod block;
#[cfg(target_os = "linux")]
mod block_queue;
mod bounds;
#[cfg(target_os = "linux")]
mod calls;
mod condition;
mod controllers;
mod cookie;
mod drive_events;
pub mod format;
pub mod inspect;
#[cfg(target_os = "linux")]
pub mod io_uring;
mod kinds;
#[cfg(target_os = "linux")]
pub mod libaio;
pub mod null;
mod options;
#[cfg(target_os = "linux")]
pub mod psync;
mod status;
pub mod userspace;
mod waiting;
pub mod windows;
mod zoned;

pub use condition::{Condition, Health};
pub use kinds::{EngineKind, UnknownEngine, Visitor};
pub use nvpoll_nvme::{DoorbellMode, FormatWish, ProtectionMode, Quirks, SecureErase, WriteMode};
pub use nvpoll_pci::soft::SoftOptions;
pub use nvpoll_pci::{IommuInterface, NumaPolicy, TransportOptions, WaitMode};
pub use options::{BadEngine, EngineChoice, EngineOption, EngineOptions};
pub use status::IoStatus;

use nvpoll_spec::PciAddress;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What an engine opens, resolved: the benchmark has found out what the user's words mean.
#[derive(Clone, Debug)]
pub enum Target {
    /// A PCI function, bound to a userspace driver.
    Pci(PciAddress),
    /// A block device, a generic NVMe character device or a regular file.
    Path(PathBuf),
    /// A soft controller that the engine starts by itself.
    Soft(SoftOptions),
    /// Nothing at all.
    Null,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
            Self::Soft(options) => options.fmt(f),
            Self::Null => f.write_str("null"),
        }
    }
}

/// How a target is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Writes will be sent. Without it a target is opened so that none can be.
    pub writable: bool,
    /// What a write does; one of the engine's [`EngineInfo::writes`].
    pub writes: WriteMode,
    /// Namespace identifier, for engines that speak NVMe themselves.
    pub namespace: u32,
    /// How a PCI function is reached.
    pub transport: TransportOptions,
    /// What an NVMe controller needs beyond the specification, instead of what is known of it.
    pub quirks: Option<Quirks>,
    /// Blocks are read whose protection information is not right, too: to see what lies on a drive.
    pub unchecked: bool,
    /// How this engine is told to run.
    pub engine: EngineOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            writable: false,
            writes: WriteMode::Write,
            namespace: 1,
            transport: TransportOptions::default(),
            quirks: None,
            unchecked: false,
            engine: EngineOptions::default(),
        }
    }
}

/// What an open target is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Usable bytes, a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Smallest unit that an I/O's offset and length are multiples of.
    pub block_bytes: u32,
    /// Most I/Os that one queue keeps in flight at `io_bytes`.
    pub depth_max: u32,
    /// Most queues, or `None` when nothing limits them.
    pub queues_max: Option<u32>,
    /// NUMA node that the target hangs on, where known.
    pub numa_node: Option<u32>,
}

/// The lane that a worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueShape {
    /// Which of the target's workers asks, from 0.
    pub worker: u32,
    /// I/Os in flight at once: tags 0 to `depth - 1` will be used.
    pub depth: u32,
    /// Largest I/O in bytes; each tag has a buffer of its own of this size.
    pub io_bytes: u32,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Target to buffer.
    Read,
    /// Buffer to target.
    Write,
    /// Make earlier completed writes durable; offset and length mean nothing.
    Flush,
}

/// One operation of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub kind: OperationKind,
    /// First byte on the target, a multiple of [`Geometry::block_bytes`].
    pub offset: u64,
    /// Length in bytes, a multiple of the same, at most [`QueueShape::io_bytes`].
    pub bytes: u32,
}

/// One I/O's identity from push to completion: it indexes the buffer, the time slot, and whatever
/// the engine keeps per I/O. Below the queue's depth, and in flight at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag as an index.
    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Whether [`Queue::reap`] may wait for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look once and return.
    No,
    /// Where the engine sleeps rather than polls: until one completes, at most this long.
    Upto(Duration),
}

/// One way to reach a target: shared by its workers, and cold.
pub trait Engine: Sized + Send + Sync {
    /// Name, summary and limits, for help, `doctor` and the report.
    const INFO: EngineInfo;

    /// A worker's lane.
    type Queue: Queue;

    /// Whether this system has what the engine needs, whatever the target.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] with what is missing and what to do.
    fn available() -> Result<(), EngineError>;

    /// Opens `target`.
    ///
    /// # Errors
    /// When the target is not one that this engine can drive, or does not answer.
    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError>;

    /// What the open target is like, for I/Os of up to `io_bytes`.
    fn geometry(&self, io_bytes: u32) -> Geometry;

    /// How this engine runs here, as name and value for the report ("fixed buffers", "yes").
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// What speaks against the figures: what was asked for and is not so, what is not as usual.
    /// Complete once the queues are made.
    fn cautions(&self) -> Vec<Caution> {
        Vec::new()
    }

    /// The state that the drive is in; nothing where the target is none, or is not asked. It costs admin
    /// commands, so it is for the time before and after the lanes run.
    fn condition(&self) -> Condition {
        Condition::default()
    }

    /// One look from outside the lanes, some times a second while they run: whether the target is
    /// still ours to use.
    ///
    /// # Errors
    /// When the run has to end, with the reason: the system wants the drive back.
    fn check(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Makes a lane. Called on the worker's own, already pinned thread, so that what it allocates
    /// is near and a ring that allows one submitter has the right one.
    ///
    /// # Errors
    /// When the shape exceeds [`Geometry`], or memory or queues have run out.
    fn queue(&self, shape: QueueShape) -> Result<Self::Queue, EngineError>;
}

/// One worker's lane to a target. Hot: after it is made there is no allocation, no lock and no
/// formatting in it, and system calls only in [`kick`](Self::kick) and [`reap`](Self::reap) of
/// kernel engines.
pub trait Queue {
    /// Whether [`reap`](Self::reap) sleeps while it waits, rather than look once and return.
    const SLEEPS: bool = false;

    /// The same for this very queue, where that depends on how it was opened.
    #[inline(always)]
    fn sleeps(&self) -> bool {
        Self::SLEEPS
    }

    /// Prepares `operation` under `tag`, which is not in flight. The caller keeps the contract of
    /// [`Tag`] and [`Operation`]; an engine that could do harm otherwise checks it and fails the
    /// I/O with [`IoStatus::REJECTED`] from the next `reap`.
    fn push(&mut self, tag: Tag, operation: Operation);

    /// Hands what was pushed to the target, or leaves that to a `reap` which follows at once.
    ///
    /// # Errors
    /// When the target takes no more I/O; the run ends.
    fn kick(&mut self) -> Result<(), EngineError>;

    /// Reports completions to `sink`, each once, in any order; returns how many.
    ///
    /// # Errors
    /// When the target is gone or broke the protocol; the run ends. An I/O's own failure is not an
    /// error here: the sink gets its status.
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError>;

    /// Fills `tag`'s buffer from byte 0 with `data`; the tag is not in flight.
    fn fill(&mut self, tag: Tag, data: &[u8]);

    /// Copies `tag`'s buffer from byte 0 to `data`; the tag is not in flight.
    fn copy_out(&self, tag: Tag, data: &mut [u8]);

    /// Doorbell registers written so far; `None` where the engine has no doorbells of its own. Cold.
    fn doorbell_writes(&self) -> Option<u64> {
        None
    }
}

/// What is known of an engine without opening anything.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// Name on the command line and in result files.
    pub name: &'static str,
    /// Column heading in a report.
    pub stack: &'static str,
    /// One line for help.
    pub summary: &'static str,
    /// The kernel's driver that hands a drive to this engine; none where it drives what the kernel
    /// has, or no drive at all.
    pub driver: Option<&'static str>,
    /// It polls for completions, so that a busy processor says nothing of the work done.
    pub polls: bool,
    /// It has buffers and something to move them to and from; where not, its figures are the
    /// harness's own cost.
    pub moves_data: bool,
    /// Most I/Os in flight a queue by the engine's nature: 1 for synchronous calls.
    pub depth_max: Option<u32>,
    /// The options that it has.
    pub options: &'static [EngineOption],
    /// The ways of waiting that a user may choose from; none where there is no choice.
    pub waits: &'static [WaitMode],
    /// What it can do in a write's place, writing included.
    pub writes: &'static [WriteMode],
}

/// Something that speaks against an engine's figures, for the row's marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caution {
    /// For programs.
    pub kind: CautionKind,
    /// For people: one sentence, with the remedy where there is one.
    pub text: String,
}

/// Kinds of cautions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CautionKind {
    /// An option was asked for, and the run went without it.
    NotAsAsked,
    /// Through the page cache.
    Buffered,
    /// The kernel cuts each I/O into several requests.
    Split,
    /// The kernel hands each I/O to a thread of its own.
    Workers,
    /// The drive reported something by itself while it was driven.
    DriveEvent,
}

impl EngineInfo {
    /// Whether a drive has to be taken from the kernel for this engine.
    pub const fn takes_drive(&self) -> bool {
        self.driver.is_some()
    }

    /// Whether it writes a drive's doorbells by itself.
    pub const fn has_doorbells(&self) -> bool {
        let mut index = 0;
        while index < self.options.len() {
            if matches!(self.options[index], EngineOption::Doorbell) {
                return true;
            }
            index += 1;
        }
        false
    }
}

impl EngineInfo {
    /// What an engine can that only writes.
    pub const WRITES: &'static [WriteMode] = &[WriteMode::Write];
    /// What an engine can whose writes may be durable, too.
    pub const DURABLE_WRITES: &'static [WriteMode] =
        &[WriteMode::Write, WriteMode::Dsync, WriteMode::Sync];
    /// What an engine can that also deallocates.
    pub const WRITES_AND_TRIMS: &'static [WriteMode] =
        &[WriteMode::Write, WriteMode::Dsync, WriteMode::Sync, WriteMode::Deallocate];
}

/// Why an engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This system lacks something.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked for does not fit the engine or the target.
    #[error("{0}")]
    Usage(String),
    /// The target, or the way to it, failed.
    #[error("{0}")]
    Failed(String),
}
