//! Page-aligned memory of this process that others may write to.

#![allow(unsafe_code)]

use crate::MemError;
#[cfg(target_os = "linux")]
use crate::numa::{is_huge_sized, prefer};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Granularity of [`Pages`]: every size is rounded up to this.
pub const PAGE_BYTES: usize = 4096;

const WORD: usize = size_of::<AtomicU64>();

/// Zeroed, page-aligned, resident memory, seen as atomic words.
///
/// Devices, kernels and other threads may write to it at any time; every access here is an atomic
/// one, so that this is sound. Tearing beyond 8 bytes is the reader's to expect.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<AtomicU64>,
    bytes: usize,
    is_huge: bool,
    /// The mapping that this is a part of; none where it is one of its own.
    whole: Option<Arc<Pages>>,
}

// SAFETY: `Pages` owns its mapping, or keeps the owner, and gives access to it as atomics alone.
unsafe impl Send for Pages {}
// SAFETY: as above; atomics are shared freely.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `bytes` of zeroed memory, resident from the start.
    ///
    /// # Errors
    /// [`MemError::Allocate`] when the kernel has none.
    pub fn new(bytes: usize) -> Result<Self, MemError> {
        Self::base(bytes, None)
    }

    fn base(bytes: usize, node: Option<u32>) -> Result<Self, MemError> {
        let error = |source| MemError::Allocate { bytes, source };
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|&rounded| isize::try_from(rounded).is_ok())
            .ok_or_else(|| error(io::ErrorKind::OutOfMemory.into()))?;
        let start = map_anonymous(rounded, node).map_err(error)?;
        Ok(Self { start, bytes: rounded, is_huge: false, whole: None })
    }

    /// The same on NUMA node `node` as long as that has memory; from 2 MiB on in huge pages of the
    /// system's pool, where it has so many.
    ///
    /// # Errors
    /// [`MemError::Allocate`] when the kernel has none.
    #[cfg(target_os = "linux")]
    pub fn near(bytes: usize, node: Option<u32>) -> Result<Self, MemError> {
        const HUGE_LOG2: u32 = 21;
        if is_huge_sized(bytes)
            && let Ok(pages) = Self::huge(bytes, HUGE_LOG2, node)
        {
            return Ok(pages);
        }
        Self::base(bytes, node)
    }

    /// Maps at least `bytes` of zeroed, resident memory in huge pages of `1 << page_log2` bytes
    /// each, from the system's pool of such pages (Documentation/admin-guide/mm/hugetlbpage.rst):
    /// these alone stay where they are in physical memory. On NUMA node `node` as long as the pool
    /// has pages there.
    ///
    /// # Errors
    /// [`MemError::HugePages`] when the pool has too few.
    #[cfg(target_os = "linux")]
    pub fn huge(bytes: usize, page_log2: u32, node: Option<u32>) -> Result<Self, MemError> {
        let page_bytes = 1usize << page_log2.min(usize::BITS - 2);
        let pages = bytes.max(1).div_ceil(page_bytes);
        let error = |source| MemError::HugePages { pages, page_bytes, source };
        let bytes = pages
            .checked_mul(page_bytes)
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| error(io::ErrorKind::OutOfMemory.into()))?;
        let start = map_huge(bytes, page_log2, node).map_err(error)?;
        Ok(Self { start, bytes, is_huge: true, whole: None })
    }

    /// `bytes` of `whole` from byte `offset` on, both multiples of [`PAGE_BYTES`]; `None` when that
    /// is not within it. Other parts, and `whole` itself, see the same memory.
    pub fn part(whole: &Arc<Self>, offset: usize, bytes: usize) -> Option<Self> {
        let is_aligned = offset.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES);
        let is_within = bytes > 0 && offset.checked_add(bytes)? <= whole.bytes;
        if !is_aligned || !is_within {
            return None;
        }
        // SAFETY: within the mapping, as was just checked, and so no overflow.
        let start = unsafe { whole.start.byte_add(offset) };
        Some(Self { start, bytes, is_huge: whole.is_huge, whole: Some(Arc::clone(whole)) })
    }

    /// Bytes in this memory, a multiple of [`PAGE_BYTES`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is in huge pages of the system's pool.
    pub fn is_huge(&self) -> bool {
        self.is_huge
    }

    /// The first byte's address in this process, for a system call that takes one.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// The whole memory as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `bytes` long from `start` on, aligned to a page, initialised by the
        // kernel, lives as long as `self`, and is only ever accessed as atomics from this process.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / WORD) }
    }

    /// Copies `source` to byte `offset`, a multiple of 8. What does not fit is left out; returns
    /// the bytes copied.
    pub fn write(&self, offset: usize, source: &[u8]) -> usize {
        let words = self.words().get(offset / WORD..).unwrap_or(&[]);
        let mut copied = 0;
        for (word, chunk) in words.iter().zip(source.chunks(WORD)) {
            let mut bytes = match chunk.len() {
                WORD => [0; WORD],
                _ => word.load(Relaxed).to_le_bytes(),
            };
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
            copied += chunk.len();
        }
        copied
    }

    /// Copies from byte `offset`, a multiple of 8, into `target`; returns the bytes copied.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> usize {
        let words = self.words().get(offset / WORD..).unwrap_or(&[]);
        let mut copied = 0;
        for (word, chunk) in words.iter().zip(target.chunks_mut(WORD)) {
            let bytes = word.load(Relaxed).to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
            copied += chunk.len();
        }
        copied
    }

    /// Zeroes the whole memory.
    pub fn clear(&self) {
        for word in self.words() {
            word.store(0, Relaxed);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.whole.is_none() {
            unmap(self.start, self.bytes);
        }
    }
}

/// Bytes of this kernel's base pages, in which it counts in `/proc`; a multiple of [`PAGE_BYTES`] on
/// the machines that have NVMe drives.
#[cfg(unix)]
pub fn kernel_page_bytes() -> usize {
    // SAFETY: asks for a constant of the running system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0).unwrap_or(PAGE_BYTES)
}

/// Windows' on the machines that it runs on here.
#[cfg(not(unix))]
pub fn kernel_page_bytes() -> usize {
    PAGE_BYTES
}

/// Base pages alone until a huge page's worth is asked for; from there on huge ones are asked for,
/// which spares the IOMMU's and the processor's TLBs. Populated, so that no I/O waits for a fault.
#[cfg(unix)]
fn map_anonymous(bytes: usize, node: Option<u32>) -> io::Result<NonNull<AtomicU64>> {
    const HUGE_BYTES: usize = 2 << 20;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no other.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    #[cfg(target_os = "linux")]
    if let Some(node) = node {
        prefer(start, bytes, node);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = node;
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_BYTES {
        // SAFETY: advice on the mapping that was just made; a refusal changes nothing.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    }
    let first = NonNull::new(start.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
    for page in 0..bytes / PAGE_BYTES {
        // SAFETY: within the mapping, aligned, and not yet shared with anybody.
        unsafe { first.byte_add(page * PAGE_BYTES).as_ref() }.store(0, Relaxed);
    }
    Ok(first)
}

/// Huge pages from the pool. Each is faulted in by a call that can fail, since a first touch that
/// finds the pool empty (a limit of the control group is enough for that) kills the process.
#[cfg(target_os = "linux")]
fn map_huge(bytes: usize, page_log2: u32, node: Option<u32>) -> io::Result<NonNull<AtomicU64>> {
    let size = (page_log2 as libc::c_int) << libc::MAP_HUGE_SHIFT;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no other.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let first = NonNull::new(start.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
    if let Some(node) = node {
        prefer(start, bytes, node);
    }
    // SAFETY: both are advice on the mapping that was just made, which nobody else knows yet. A
    // child of this process does not get it, so that a fork never moves a page.
    let populated = unsafe {
        libc::madvise(start, bytes, libc::MADV_DONTFORK);
        libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE)
    };
    if populated != 0 {
        let error = io::Error::last_os_error();
        unmap(first, bytes);
        return Err(error);
    }
    Ok(first)
}

#[cfg(unix)]
fn unmap(start: NonNull<AtomicU64>, bytes: usize) {
    // SAFETY: exactly the mapping that `map_anonymous` made; nothing borrows it any more.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(unix))]
fn layout(bytes: usize) -> io::Result<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes, PAGE_BYTES)
        .map_err(|_| io::ErrorKind::OutOfMemory.into())
}

#[cfg(not(unix))]
fn map_anonymous(bytes: usize, _: Option<u32>) -> io::Result<NonNull<AtomicU64>> {
    // SAFETY: the layout's size is not zero: it is a multiple of a page, at least one.
    let start = unsafe { std::alloc::alloc_zeroed(layout(bytes)?) };
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(not(unix))]
fn unmap(start: NonNull<AtomicU64>, bytes: usize) {
    if let Ok(layout) = layout(bytes) {
        // SAFETY: allocated by `map_anonymous` with this very layout.
        unsafe { std::alloc::dealloc(start.as_ptr().cast(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_and_start_zeroed() {
        let pages = Pages::new(1).unwrap();
        assert_eq!(pages.bytes(), PAGE_BYTES);
        assert_eq!(pages.as_ptr().addr() % PAGE_BYTES, 0);
        assert!(pages.words().iter().all(|word| word.load(Relaxed) == 0));
        assert!(Pages::new(usize::MAX).is_err());
    }

    #[test]
    fn a_part_is_within_its_whole_and_keeps_it() {
        let whole = Arc::new(Pages::new(4 * PAGE_BYTES).unwrap());
        for (offset, bytes) in
            [(1, 4096), (0, 4095), (0, 0), (4096, 4 * 4096), (usize::MAX & !4095, 4096)]
        {
            assert!(Pages::part(&whole, offset, bytes).is_none(), "{offset} {bytes}");
        }
        let part = Pages::part(&whole, PAGE_BYTES, 2 * PAGE_BYTES).unwrap();
        part.words()[0].store(7, Relaxed);
        assert_eq!(whole.words()[PAGE_BYTES / 8].load(Relaxed), 7);
        drop(whole);
        assert_eq!((part.words()[0].load(Relaxed), part.bytes()), (7, 2 * PAGE_BYTES));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn huge_pages_come_from_the_pool_or_say_so() {
        match Pages::huge(1, 21, None) {
            Ok(pages) => {
                assert_eq!((pages.bytes(), pages.as_ptr().addr() % (2 << 20)), (2 << 20, 0))
            }
            Err(error) => assert!(error.to_string().contains("1 huge page of 2 MiB"), "{error}"),
        }
        let error = Pages::huge(1 << 50, 21, Some(0)).unwrap_err().to_string();
        assert!(error.contains("536870912 huge pages of 2 MiB"), "{error}");
        assert!(Pages::huge(usize::MAX, 21, None).is_err());
    }

    #[test]
    fn bytes_round_trip_at_any_length() {
        let pages = Pages::new(2 * PAGE_BYTES).unwrap();
        for length in [0, 1, 7, 8, 9, 4096] {
            let source: Vec<u8> = (0..length).map(|i| i as u8 ^ 0x5a).collect();
            pages.write(0, &[0xff; 4200]);
            assert_eq!(pages.write(16, &source), length);
            let mut target = vec![0; length + 1];
            assert_eq!(pages.read(16, &mut target), length + 1);
            assert_eq!(&target[..length], source);
            assert_eq!(target[length], 0xff, "the byte after the copy was touched");
        }
        assert_eq!(pages.write(2 * PAGE_BYTES - 8, &[1; 64]), 8, "cut at the end");
        assert_eq!(pages.write(usize::MAX, &[1]), 0);
    }
}
