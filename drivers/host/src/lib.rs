//! The NVMe drives that this machine has, what uses them, and how one is taken from the kernel
//! and given back as it was.
//!
//! [`Host`] is the way in:
//!
//! | question | answer |
//! | --- | --- |
//! | which drives are there | [`Host::drives`] |
//! | what does this name mean | [`Host::resolve`] |
//! | what uses this drive | [`Host::uses`], [`Host::group_blockers`] |
//! | what lies on it | [`Host::signatures`], [`signature::scan`] |
//! | hand it to a userspace driver | [`Host::take`] |
//! | give it back | [`Taken::give_back`], [`Host::give_back`] |
//! | what did a crash leave behind | [`Host::leftovers`] |
//! | how is the machine set | [`Host::machine`] |
//! | let a user drive it | [`Host::give_to`] |
//!
//! Facts come from sysfs and procfs (`Documentation/ABI` in the kernel's source) and are read
//! anew for each question. Everything is read below a root, so that the tests put a folder in
//! place of the machine, and what changes the machine goes through the [`Kernel`] trait, so that
//! they can put a kernel beside it which fails at any step.
//!
//! # What it does not do
//!
//! It sends no NVMe command and opens no NVMe device for I/O; block nodes are opened for reading
//! only, to see what lies on them. It does not know what a drive bound to a userspace driver
//! holds: whoever drives it can pass a reader to [`signature::scan`]. It does not see processes
//! outside its own PID namespace (then it says that it could not examine them), an NVMe target
//! of another host that shares the drive's subsystem, or a user in a crashed kernel module. It
//! sets no limits (memlock, huge pages), loads no firmware, resets nothing, and changes no other
//! device of an IOMMU group. It knows Linux alone: Windows' disks are `nvpoll-windows`'s.

#![forbid(unsafe_code)]

pub mod limits;
pub mod signature;

#[cfg(target_os = "linux")]
mod bind;
#[cfg(target_os = "linux")]
mod drive;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
pub mod machine;
#[cfg(target_os = "linux")]
mod state;
#[cfg(target_os = "linux")]
mod sysfs;
#[cfg(target_os = "linux")]
mod target;
mod user_driver;
#[cfg(target_os = "linux")]
mod uses;

#[cfg(target_os = "linux")]
mod host;

#[cfg(all(target_os = "linux", any(test, feature = "fake")))]
pub mod fake;

pub use self::user_driver::UserDriver;
#[cfg(target_os = "linux")]
pub use self::{
    bind::{GiveBackOptions, GivenBack, GroupBlocker, Memlock, Outcome, TakeOptions, Taken},
    drive::{Drive, IommuGroup, Link, Namespace, Partition},
    error::{ChangeError, ErrorKind, HostError, Refusal},
    host::Host,
    kernel::{Claim, DevId, Kernel, Node},
    state::{Hold, Holder, Leftover, Record, RecordedNamespace},
    target::Target,
    uses::{NodeSignatures, Survey, Use, UseKind, Who},
};

#[cfg(all(test, target_os = "linux"))]
mod tests;
