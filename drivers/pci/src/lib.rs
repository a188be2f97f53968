//! Exclusive use of one NVMe PCI function, whatever carries it.
//!
//! A transport is a [`Function`]: registers, doorbells, and a DMA address space. The driver above
//! is generic over it, so that a doorbell is a plain store on a mapped BAR and a call into the
//! device on the stepped soft controller, without a branch on either.
//!
//! # What it does not do
//!
//! It knows nothing of NVMe beyond the doorbells' place, sends no command, and binds no drive to a
//! driver: `nvpoll-host` does that before a function is opened.

mod function;
mod interrupt;
#[cfg(target_os = "linux")]
mod opening;
mod options;
#[cfg(target_os = "linux")]
mod physical;
pub mod soft;
#[cfg(target_os = "linux")]
pub mod uio;
#[cfg(target_os = "linux")]
pub mod vfio;

pub use function::{Function, PciError};
pub use interrupt::Interrupt;
#[cfg(target_os = "linux")]
pub use opening::driver_of;
pub use options::{IommuInterface, NumaPolicy, TransportOptions, WaitMode};
