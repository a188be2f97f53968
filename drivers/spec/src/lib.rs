//! The NVMe wire types: what stands in registers, queues and Identify pages, byte for byte.
//!
//! Every type is a plain little-endian layout with a golden-bytes test, and every code that a
//! device may send is an *open* newtype, so that a value which this crate does not know survives
//! being read and printed. Sections are cited as in the NVM Express Base Specification 1.4, whose
//! one volume still numbers everything that is used here; later revisions moved the text and kept
//! the layouts. Fields that the specification makes zero-based end in `_z`.
//!
//! # What it does not do
//!
//! It touches no memory and no device, allocates nothing, and checks nothing but sizes: whether a
//! value makes sense is the reader's to judge. Fabrics, management-interface and key-value
//! structures are absent.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("nvpoll reads NVMe structures in place and so runs on little-endian machines only");

#[cfg(test)]
extern crate alloc;

mod address;
mod command;
mod completion;
mod event;
mod identify;
mod log;
mod nvm;
mod open;
mod protection;
mod registers;
mod status;
mod zone;

pub use address::{CLASS_NVME, ParseAddressError, PciAddress};
pub use command::{
    Admin, AdminOpcode, Cns, FeatureId, FormatSettings, LogId, NvmOpcode, SubmissionEntry,
    queue_sizes,
};
pub use completion::CompletionEntry;
pub use event::{AsyncEvent, AsyncEventType};
pub use identify::{
    ControllerIdentity, ExtendedLbaFormat, LbaFormat, NamespaceIdentity, NvmNamespaceIdentity,
    OptionalAdminCommands, OptionalCommands, PowerStateDescriptor, ascii_field,
};
pub use log::{ErrorLogEntry, FirmwareLog, SmartLog};
pub use nvm::{ApstEntry, CopyRange, DatasetRange, FORCE_UNIT_ACCESS, Nvm};
pub use protection::{
    CHECK_APPLICATION, CHECK_GUARD, CHECK_REFERENCE, GuardFormat, PROTECTION_ACTION,
    ProtectionTuple,
};
pub use registers::{
    AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus, ShutdownStatus,
    Version, reg,
};
pub use status::{Status, StatusCodeType};
pub use zone::{
    CommandSet, ZONE_REPORT_HEADER_BYTES, ZoneAction, ZoneDescriptor, ZoneState, Zoned,
    ZonedLbaFormat, ZonedNamespaceIdentity, zones_max,
};

/// The broadcast namespace identifier: a command that names it means every namespace (§6.1.2).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Bytes in one Identify page (§5.15.1).
pub const IDENTIFY_BYTES: usize = 4096;
