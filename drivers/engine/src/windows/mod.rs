//! Windows' own ways to a file, a disk or a volume: completion ports and rings.
//!
//! Both are generic over the table of calls in `nvpoll-windows`, so that their logic is tested on every
//! system against a fake, and on Windows against Windows.

mod iocp;
mod iocp_queue;
mod ioring;
mod ioring_queue;
mod target;
#[cfg(test)]
mod tests;

pub use iocp::PortEngine;
pub use iocp_queue::PortQueue;
pub use ioring::{RingEngine, RingTable};
pub use ioring_queue::RingQueue;

/// Completion ports of this Windows.
#[cfg(windows)]
pub type Iocp = PortEngine<nvpoll_windows::Win32>;

/// Rings of this Windows, where it has them.
#[cfg(windows)]
pub type IoRing = RingEngine<nvpoll_windows::Win32, nvpoll_windows::IoRingDll>;

/// Most tags that a `u16` names.
const DEPTH_MAX: u32 = 1 << 16;

/// How long a dropped queue waits for I/O in flight before it gives up its memory instead.
const DROP_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// Bytes from one tag's buffer to the next: whole pages, so that no two share one.
fn buffer_stride(io_bytes: u32) -> usize {
    (io_bytes as usize).max(1).next_multiple_of(nvpoll_mem::PAGE_BYTES)
}

/// Whole milliseconds within `limit`, which is how Windows waits; what is shorter is not waited for.
fn wait_ms(wait: crate::Wait) -> u32 {
    match wait {
        crate::Wait::No => 0,
        // The largest number means for ever.
        crate::Wait::Upto(limit) => {
            u32::try_from(limit.as_millis()).map_or(u32::MAX - 1, |ms| ms.min(u32::MAX - 1))
        }
    }
}

/// How a request ended that Windows calls a success.
#[inline(always)]
fn moved(bytes: usize, wanted: u32) -> crate::IoStatus {
    if bytes == wanted as usize { crate::IoStatus::OK } else { crate::IoStatus::SHORT }
}

/// An error of Windows as an I/O's status.
#[cold]
fn failure(error: nvpoll_windows::Win32Error) -> crate::IoStatus {
    crate::IoStatus::errno(i32::try_from(error.0).unwrap_or(i32::MAX))
}
