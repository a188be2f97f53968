//! What nvpoll asks of Windows: the storage calls, behind a table, and what disks, volumes and the
//! machine say of themselves.
//!
//! [`Calls`] is the table: [`Win32`] makes the calls, on Windows; [`Fake`] answers them in memory, on
//! any system, as a test tells it to (success at once, short, failed, out of order). Whoever makes
//! storage calls is generic over the table, so that its logic is tested where there is no Windows.
//! What a device answers comes as bytes and is read in [`disk`], which is plain code.
//!
//! # What it does not do
//!
//! It changes no disk's state: nothing is taken offline, dismounted or locked. It decides nothing
//! about a workload and refuses no write; it says what is so, and that something could not be told.
//! Structures are those of 64-bit Windows.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("OVERLAPPED and the addresses in it are those of 64-bit systems");

mod calls;
pub mod disk;
mod error;
#[cfg(any(test, feature = "fake"))]
mod fake;
pub mod limits;
#[cfg(windows)]
pub mod machine;
mod name;
mod ring;
#[cfg(windows)]
mod win32;

pub use calls::{
    Access, Calls, DiskInterface, Handle, OpenMode, Overlapped, PortEntry, Started, Volume,
};
pub use error::{NtStatus, Win32Error};
#[cfg(any(test, feature = "fake"))]
pub use fake::{Fake, FakeDisk, Outcome};
pub use name::Name;
pub use ring::{HResult, RingCalls, RingCapabilities, RingCompletion, RingHandle};
#[cfg(windows)]
pub use win32::{IoRingDll, Win32};
