//! An address space that an IOMMU translates, whoever fills its tables.

use nvpoll_mem::{DmaSpace, IovaSpace, Iovas, MemError, PAGE_BYTES, Pages, Placement};
use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

/// Where IOVAs are taken from when the kernel does not name its ranges: the first 2 GiB, below
/// the interrupt window at fee0_0000h and within any IOMMU's width.
const FALLBACK_RANGE: RangeInclusive<u64> = 0x1_0000..=0x7fff_ffff;

/// The kernel's tables of one address space.
pub(super) trait IommuMap: fmt::Debug + Send + Sync {
    /// Addresses that the IOMMU accepts; empty where the kernel does not say.
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>>;
    /// The device may read and write `pages` at `iova`.
    fn map(&self, pages: &Pages, iova: u64) -> io::Result<()>;
    /// Takes a mapping away; returns its bytes.
    fn unmap(&self, iova: u64, bytes: u64) -> io::Result<u64>;
    /// What ENOSPC means here, and what to do.
    fn no_room(&self) -> &'static str;
}

/// A DMA address space over the kernel's tables.
#[derive(Debug)]
pub(super) struct MappedSpace<M> {
    map: M,
    free: Mutex<IovaSpace>,
    placement: Placement,
}

impl<M: IommuMap> MappedSpace<M> {
    /// Over `map`, its memory near `node`, where that is wanted.
    pub fn new(map: M, node: Option<u32>) -> Self {
        let ranges = map.iova_ranges();
        let ranges = if ranges.is_empty() { vec![FALLBACK_RANGE] } else { ranges };
        Self { map, free: Mutex::new(IovaSpace::new(ranges)), placement: Placement::new(node) }
    }

    fn explain(&self, pages: &Pages, error: &io::Error) -> String {
        let bytes = pages.bytes();
        match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                let allowed = locked_limit();
                format!(
                    "{error}; locked memory is limited to {allowed} (RLIMIT_MEMLOCK) and {bytes} more bytes are needed: raise it (ulimit -l, or LimitMEMLOCK= of a unit), or run as root"
                )
            }
            Some(libc::ENOSPC) => format!("{error}; {}", self.map.no_room()),
            _ => error.to_string(),
        }
    }
}

impl<M: IommuMap> DmaSpace for MappedSpace<M> {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
        /// Alignment that lets the IOMMU use its large pages.
        const LARGE: u64 = 2 << 20;
        let bytes = pages.bytes() as u64;
        let align = if bytes >= LARGE { LARGE } else { PAGE_BYTES as u64 };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = free.take(bytes, align)?;
        if let Err(error) = self.map.map(pages, iova) {
            free.give_back(iova);
            let reason = self.explain(pages, &error);
            return Err(MemError::Map { bytes: pages.bytes(), reason });
        }
        Ok(iova)
    }

    fn allocate(&self, bytes: usize) -> Result<(Arc<Pages>, Iovas), MemError> {
        let pages = Arc::new(Pages::near(bytes, self.placement.wanted())?);
        let iova = self.map(&pages)?;
        self.placement.note(&pages);
        Ok((pages, Iovas::contiguous(iova)))
    }

    fn placement(&self) -> Option<String> {
        Some(self.placement.to_string())
    }

    fn unmap(&self, iova: u64, pages: &Pages) -> bool {
        let bytes = pages.bytes() as u64;
        let gone = self.map.unmap(iova, bytes).is_ok_and(|done| done == bytes);
        if gone {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(iova);
        }
        gone
    }
}

/// RLIMIT_MEMLOCK as the kernel prints it, for a message.
fn locked_limit() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft =
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("an unknown number of");
    format!("{soft} bytes")
}
