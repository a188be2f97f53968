//! Page-aligned memory of this process that others may write to.

#![allow(unsafe_code)]

use crate::MemError;
use std::io;
use std::ptr::NonNull;
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
}

// SAFETY: `Pages` owns its mapping and gives access to it as atomics alone.
unsafe impl Send for Pages {}
// SAFETY: as above; atomics are shared freely.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `bytes` of zeroed memory, resident from the start.
    ///
    /// # Errors
    /// [`MemError::Allocate`] when the kernel has none.
    pub fn new(bytes: usize) -> Result<Self, MemError> {
        let error = |source| MemError::Allocate { bytes, source };
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|&rounded| isize::try_from(rounded).is_ok())
            .ok_or_else(|| error(io::ErrorKind::OutOfMemory.into()))?;
        let start = map_anonymous(rounded).map_err(error)?;
        Ok(Self { start, bytes: rounded })
    }

    /// Bytes in this memory, a multiple of [`PAGE_BYTES`].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte's address in this process, for a system call that takes one.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// The whole memory as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `bytes` long, aligned to a page, initialised by the kernel, lives
        // as long as `self`, and is only ever accessed as atomics from this process.
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
        unmap(self.start, self.bytes);
    }
}

/// Base pages alone until a huge page's worth is asked for; from there on huge ones are asked for,
/// which spares the IOMMU's and the processor's TLBs. Populated, so that no I/O waits for a fault.
#[cfg(unix)]
fn map_anonymous(bytes: usize) -> io::Result<NonNull<AtomicU64>> {
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
fn map_anonymous(bytes: usize) -> io::Result<NonNull<AtomicU64>> {
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
