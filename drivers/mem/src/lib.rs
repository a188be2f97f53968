//! Memory that a device shares: DMA buffers, queue rings, mapped registers, doorbells.
//!
//! This is the unsafe floor of the driver. A device writes to DMA memory whenever it likes, so
//! that memory is never seen through `&[u8]` or `&mut T`: it is touched as atomic 64-bit words
//! alone, which is sound whatever the other side does. Registers are touched by volatile accesses
//! of the width that the specification names. The two barriers of the queue protocol stand here
//! and nowhere else: the release in [`Doorbell::ring`], the acquire in [`CompletionRing::peek`].
//!
//! Start reading at [`DmaBuf`], then [`SubmissionRing`] and [`CompletionRing`].
//!
//! # What it does not do
//!
//! It knows no transport (who maps memory for a device implements [`DmaSpace`]) and no command:
//! of NVMe it knows the size of a queue entry and where the phase tag stands.

mod dma;
mod iova;
mod mapped;
mod numa;
mod pages;
mod registers;
mod ring;
#[cfg(target_os = "linux")]
mod vanished;

pub use dma::{DmaBuf, DmaSpace, Iovas};
pub use iova::IovaSpace;
pub use mapped::{MappedDoorbell, MappedRegisters};
pub use numa::Placement;
pub use pages::kernel_page_bytes;
pub use pages::{PAGE_BYTES, Pages};
pub use registers::{Doorbell, RegisterError, Registers, order_stores_before_doorbell};
pub use ring::{CompletionRing, SubmissionRing, Word, take_completion};

/// What can go wrong with memory for a device.
#[derive(Debug, thiserror::Error)]
pub enum MemError {
    /// The kernel gave no memory.
    #[error(
        "no memory for a DMA buffer of {bytes} bytes: {source}; free memory or lower --iodepth, --bs or --numjobs"
    )]
    Allocate {
        /// What was asked for.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The pool of huge pages has too few.
    #[error(
        "the system has not {pages} huge page{} of {} MiB left ({source}); reserve some (`echo 64 > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages`), or lower --iodepth, --bs or --numjobs",
        if *pages == 1 { "" } else { "s" },
        page_bytes >> 20,
        page_bytes >> 10
    )]
    HugePages {
        /// How many were asked for.
        pages: usize,
        /// Of how many bytes each.
        page_bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The transport refused to map memory.
    #[error("cannot map {bytes} bytes for the device: {reason}")]
    Map {
        /// What was asked for.
        bytes: usize,
        /// What was seen and what to do.
        reason: String,
    },
    /// No free range of I/O virtual addresses is left.
    #[error(
        "no free range of {bytes} bytes in the device's I/O address space; lower --iodepth or --bs"
    )]
    AddressSpace {
        /// What was asked for.
        bytes: u64,
    },
}
