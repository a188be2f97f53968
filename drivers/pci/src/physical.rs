//! Memory for a device that no IOMMU stands in front of: it sees physical addresses.
//!
//! Ordinary memory of a process moves between physical pages whenever the kernel likes, locked or
//! not. Huge pages from the system's pool stay, so all memory comes from there, and its addresses
//! from `/proc/self/pagemap` (Documentation/admin-guide/mm/pagemap.rst). Small buffers share huge
//! pages; a large one has its own, which need not follow each other.
//!
//! What it does not do: nothing keeps the device from any other memory of the machine. A wrong
//! address in a command overwrites whatever lies there.

use nvpoll_mem::{DmaSpace, IovaSpace, Iovas, MemError, PAGE_BYTES, Pages, Placement};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// Huge pages of 2 MiB: those that every machine of the kinds that nvpoll runs on can have.
const HUGE_LOG2: u32 = 21;
const HUGE_BYTES: usize = 1 << HUGE_LOG2;
/// Buffers up to this share a huge page.
const SHARED_BYTES_MAX: usize = HUGE_BYTES / 2;

/// In a pagemap entry: the page is in memory, and the bits of its frame number.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Physical memory, as a device without an IOMMU sees it.
#[derive(Debug)]
pub(crate) struct PhysicalSpace {
    pagemap: File,
    shared: Mutex<Vec<Shared>>,
    placement: Placement,
}

/// A huge page that small buffers share.
#[derive(Debug)]
struct Shared {
    pages: Arc<Pages>,
    start: u64,
    free: IovaSpace,
}

impl PhysicalSpace {
    /// Looks whether the kernel tells this process physical addresses at all. Memory comes from near
    /// `node`, where that is wanted.
    ///
    /// # Errors
    /// When `/proc/self/pagemap` cannot be opened. Whether it hides the addresses shows at the first
    /// buffer.
    pub fn new(node: Option<u32>) -> io::Result<Self> {
        let pagemap = File::open("/proc/self/pagemap")?;
        Ok(Self { pagemap, shared: Mutex::default(), placement: Placement::new(node) })
    }

    /// The physical address of a huge page's first byte.
    fn address(&self, virtual_address: usize) -> Result<u64, MemError> {
        let unusable = |reason: String| MemError::Map { bytes: HUGE_BYTES, reason };
        let kernel_page_bytes = nvpoll_mem::kernel_page_bytes();
        let mut entry = [0; 8];
        let at = (virtual_address / kernel_page_bytes) as u64 * 8;
        let read = self.pagemap.read_exact_at(&mut entry, at);
        read.map_err(|error| unusable(format!("reading /proc/self/pagemap: {error}")))?;
        physical(u64::from_le_bytes(entry), kernel_page_bytes as u64).map_err(unusable)
    }

    fn allocate_own(&self, bytes: usize) -> Result<(Arc<Pages>, Iovas), MemError> {
        let pages = Arc::new(Pages::huge(bytes, HUGE_LOG2, self.placement.wanted())?);
        self.placement.note(&pages);
        let first = pages.as_ptr().addr();
        let chunks = (0..pages.bytes()).step_by(HUGE_BYTES).map(|at| self.address(first + at));
        let chunks = chunks.collect::<Result<Vec<u64>, _>>()?;
        let none = || MemError::Map { bytes, reason: "the buffer has no page".to_owned() };
        let iovas = Iovas::scattered(chunks, HUGE_LOG2).ok_or_else(none)?;
        Ok((pages, iovas))
    }

    fn allocate_shared(&self, bytes: usize) -> Result<(Arc<Pages>, Iovas), MemError> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.iter_mut().find_map(|shared| shared.take(bytes)) {
            return Ok(found);
        }
        let pages = Arc::new(Pages::huge(HUGE_BYTES, HUGE_LOG2, self.placement.wanted())?);
        self.placement.note(&pages);
        let start = self.address(pages.as_ptr().addr())?;
        let last = start + (HUGE_BYTES as u64 - 1);
        let mut shared = Shared { pages, start, free: IovaSpace::new(vec![start..=last]) };
        let taken = shared.take(bytes);
        all.push(shared);
        taken.ok_or(MemError::AddressSpace { bytes: bytes as u64 })
    }
}

impl Shared {
    /// A zeroed part of this page, where it has room.
    fn take(&mut self, bytes: usize) -> Option<(Arc<Pages>, Iovas)> {
        let address = self.free.take(bytes as u64, PAGE_BYTES as u64).ok()?;
        let offset = usize::try_from(address - self.start).ok()?;
        let Some(part) = Pages::part(&self.pages, offset, bytes) else {
            self.free.give_back(address);
            return None;
        };
        part.clear();
        Some((Arc::new(part), Iovas::contiguous(address)))
    }
}

/// What a pagemap entry says of a huge page's first page.
fn physical(entry: u64, kernel_page_bytes: u64) -> Result<u64, String> {
    let frame = entry & FRAME;
    if entry & PRESENT == 0 {
        return Err(format!("/proc/self/pagemap says {entry:#x}: the page is not in memory"));
    }
    if frame == 0 {
        return Err(
            "the kernel hides physical addresses from this process (/proc/self/pagemap); run as root (CAP_SYS_ADMIN)"
                .to_owned(),
        );
    }
    match frame.checked_mul(kernel_page_bytes) {
        Some(address) if address.is_multiple_of(HUGE_BYTES as u64) => Ok(address),
        _ => Err(format!("/proc/self/pagemap says {entry:#x}: not the start of a huge page")),
    }
}

impl DmaSpace for PhysicalSpace {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
        Err(MemError::Map {
            bytes: pages.bytes(),
            reason: "without an IOMMU a device reaches huge pages alone, and this memory is not from there"
                .to_owned(),
        })
    }

    fn allocate(&self, bytes: usize) -> Result<(Arc<Pages>, Iovas), MemError> {
        let whole_pages = bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        match whole_pages {
            Some(bytes) if bytes <= SHARED_BYTES_MAX => self.allocate_shared(bytes),
            _ => self.allocate_own(bytes),
        }
    }

    fn placement(&self) -> Option<String> {
        Some(self.placement.to_string())
    }

    /// There is no table to take it from. The caller has disabled the controller, or deleted the
    /// queue that named the memory: that is all that keeps the device away.
    fn unmap(&self, iova: u64, _pages: &Pages) -> bool {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let within = |shared: &&mut Shared| {
            iova.checked_sub(shared.start).is_some_and(|offset| offset < HUGE_BYTES as u64)
        };
        if let Some(shared) = all.iter_mut().find(within) {
            shared.free.give_back(iova);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_mem::DmaBuf;

    #[test]
    fn a_hidden_or_foreign_frame_is_no_address() {
        let at = 0x12_3456_0000u64 >> 12 & !511;
        assert_eq!(physical(PRESENT | at, 4096), Ok(at << 12));
        assert!(physical(PRESENT, 4096).unwrap_err().contains("run as root"));
        assert!(physical(at, 4096).unwrap_err().contains("not in memory"));
        assert!(physical(PRESENT | at | 1, 4096).unwrap_err().contains("not the start"));
        assert!(physical(PRESENT | FRAME, 1 << 16).unwrap_err().contains("not the start"));
    }

    /// Left out, and said, where there is no pool of huge pages or no right to see addresses; the lab
    /// has both, and holds the engines on this memory to their contract.
    #[test]
    fn buffers_share_huge_pages_and_large_ones_have_their_own() {
        let space: Arc<dyn DmaSpace> = Arc::new(PhysicalSpace::new(Some(0)).unwrap());
        let first = match DmaBuf::new(&space, 4096) {
            Ok(first) => first,
            Err(error) => return println!("left out: {error}"),
        };
        let second = DmaBuf::new(&space, 100).unwrap();
        assert_eq!(second.iova(0), first.iova(0) + 4096);
        let at = second.iova(0);
        second.words()[0].store(9, std::sync::atomic::Ordering::Relaxed);
        drop(second);
        let third = DmaBuf::new(&space, 4096).unwrap();
        assert_eq!(third.iova(0), at, "what was freed is used again");
        assert_eq!(third.words()[0].load(std::sync::atomic::Ordering::Relaxed), 0, "and zeroed");
        let large = DmaBuf::new(&space, 3 * HUGE_BYTES - 4096).unwrap();
        for page in 0..3 {
            assert!(large.iova(page * HUGE_BYTES).is_multiple_of(HUGE_BYTES as u64));
        }
    }
}
