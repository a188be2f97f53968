//! Memory with an address for the device.

use crate::{MemError, PAGE_BYTES, Pages};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Whoever maps memory for one device: an IOMMU through VFIO, the soft controller's own, physical
/// addresses through UIO.
pub trait DmaSpace: Send + Sync + fmt::Debug {
    /// Makes `pages` readable and writable for the device and returns the address at which it sees
    /// them, contiguous and aligned to a page.
    ///
    /// # Errors
    /// [`MemError::Map`] with what was seen and what to do.
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError>;

    /// Allocates at least `bytes`, zeroed, and maps them. Where the device sees any memory, this is
    /// [`Pages::new`] and [`map`](Self::map); a space in which only some memory has an address of
    /// its own takes it from there, and may scatter it.
    ///
    /// # Errors
    /// When there is no memory, or the transport refuses the mapping.
    fn allocate(&self, bytes: usize) -> Result<(Arc<Pages>, Iovas), MemError> {
        let pages = Arc::new(Pages::new(bytes)?);
        let iova = self.map(&pages)?;
        Ok((pages, Iovas::contiguous(iova)))
    }

    /// Where the memory is that was allocated here, for the report; `None` where nothing was asked.
    fn placement(&self) -> Option<String> {
        None
    }

    /// Takes the mapping at `iova` away. Returns whether the device has certainly lost it.
    fn unmap(&self, iova: u64, pages: &Pages) -> bool;
}

/// Where the device sees one buffer: at one address, or in chunks of equal size.
#[derive(Clone, Debug)]
pub struct Iovas {
    start: u64,
    /// Addresses of the chunks, the first one included; empty when the buffer is contiguous.
    chunks: Box<[u64]>,
    chunk_log2: u32,
}

impl Iovas {
    /// All at one address.
    pub fn contiguous(start: u64) -> Self {
        Self { start, chunks: Box::default(), chunk_log2: 0 }
    }

    /// In chunks of `1 << chunk_log2` bytes, at least a page each, of which the last may be used in
    /// part. `None` when there is no chunk.
    pub fn scattered(chunks: Vec<u64>, chunk_log2: u32) -> Option<Self> {
        let start = *chunks.first()?;
        let follows = |pair: &[u64]| pair[1].checked_sub(pair[0]) == Some(1 << chunk_log2);
        if chunks.windows(2).all(follows) {
            return Some(Self::contiguous(start));
        }
        Some(Self { start, chunks: chunks.into(), chunk_log2 })
    }

    /// The address of byte `offset`.
    fn at(&self, offset: usize) -> u64 {
        // Beyond the last chunk there is no buffer, and the caller's arithmetic is wrong; the
        // address that it would have had is as good an answer as with one mapping.
        match self.chunks.get(offset >> self.chunk_log2) {
            Some(chunk) => chunk + (offset & ((1 << self.chunk_log2) - 1)) as u64,
            None => self.start + offset as u64,
        }
    }
}

/// Memory at a constant I/O virtual address, for as long as a clone of this lives.
///
/// Drop the last clone only when the device can no longer use it: after its queue was deleted or
/// its controller disabled. `nvpoll-nvme` keeps that order by itself.
#[derive(Clone)]
pub struct DmaBuf(Arc<Part>);

/// What is used of a mapping: all of it, or the part that is aligned.
struct Part {
    pages: Arc<Pages>,
    iovas: Iovas,
    _mapping: Mapping,
}

struct Mapping {
    pages: Arc<Pages>,
    iova: u64,
    space: Arc<dyn DmaSpace>,
}

impl DmaBuf {
    /// Allocates at least `bytes`, zeroed, and maps them for the device behind `space`.
    ///
    /// # Errors
    /// When there is no memory, or the transport refuses the mapping.
    pub fn new(space: &Arc<dyn DmaSpace>, bytes: usize) -> Result<Self, MemError> {
        let (mapping, iovas) = Mapping::new(space, bytes)?;
        Ok(Self(Arc::new(Part { pages: Arc::clone(&mapping.pages), iovas, _mapping: mapping })))
    }

    /// The same at a device address that is a multiple of `align` bytes, a power of two, and in
    /// whole multiples of it. Spaces align to [`PAGE_BYTES`] alone: beyond that more is mapped, and
    /// the part that is aligned is used.
    ///
    /// # Errors
    /// As of [`new`](Self::new), and when the memory is in chunks that are not aligned so.
    pub fn aligned(
        space: &Arc<dyn DmaSpace>,
        bytes: usize,
        align: usize,
    ) -> Result<Self, MemError> {
        if align <= PAGE_BYTES {
            return Self::new(space, bytes);
        }
        let too_large = || MemError::AddressSpace { bytes: bytes as u64 };
        let whole = bytes.max(1).checked_next_multiple_of(align).ok_or_else(too_large)?;
        let asked = whole.checked_add(align - PAGE_BYTES).ok_or_else(too_large)?;
        let (mapping, mut iovas) = Mapping::new(space, asked)?;
        let skew = iovas.start.wrapping_neg() & (align as u64 - 1);
        let chunk_bytes = 1usize << iovas.chunk_log2;
        if !iovas.chunks.is_empty() && (skew != 0 || chunk_bytes < align) {
            let reason = format!(
                "the memory is in chunks of {chunk_bytes} bytes that are not aligned to {align}"
            );
            return Err(MemError::Map { bytes, reason });
        }
        iovas.start += skew;
        let part = Pages::part(&mapping.pages, skew as usize, whole).ok_or_else(too_large)?;
        Ok(Self(Arc::new(Part { pages: Arc::new(part), iovas, _mapping: mapping })))
    }

    /// The device's address of byte `offset`. Within a page the addresses follow each other; from
    /// one page to the next only where [`is_contiguous`](Self::is_contiguous) says so.
    pub fn iova(&self, offset: usize) -> u64 {
        self.0.iovas.at(offset)
    }

    /// Whether the device sees the whole buffer at one address, as a queue needs it.
    pub fn is_contiguous(&self) -> bool {
        self.0.iovas.chunks.is_empty()
    }
}

impl Deref for DmaBuf {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.0.pages
    }
}

impl Mapping {
    fn new(space: &Arc<dyn DmaSpace>, bytes: usize) -> Result<(Self, Iovas), MemError> {
        let (pages, iovas) = space.allocate(bytes)?;
        Ok((Self { pages, iova: iovas.start, space: Arc::clone(space) }, iovas))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.space.unmap(self.iova, &self.pages) {
            // The device may still write here: memory that is never reused is the lesser evil.
            std::mem::forget(Arc::clone(&self.pages));
        }
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({:#x} + {:#x})", self.iova(0), self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_addresses_follow_their_chunks() {
        const HUGE: u64 = 1 << 21;
        let iovas = Iovas::scattered(vec![7 * HUGE, 3 * HUGE, 4 * HUGE], 21).unwrap();
        assert_eq!(iovas.at(0), 7 * HUGE);
        assert_eq!(iovas.at(HUGE as usize - 1), 8 * HUGE - 1);
        assert_eq!(iovas.at(HUGE as usize), 3 * HUGE);
        assert_eq!(iovas.at(3 * HUGE as usize - 4096), 5 * HUGE - 4096);
    }

    /// Hands out addresses that are aligned to a page and to no more.
    #[derive(Debug)]
    struct Askew {
        chunked: bool,
        mapped: std::sync::Mutex<Vec<(u64, usize)>>,
    }

    impl DmaSpace for Askew {
        fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
            self.mapped.lock().unwrap().push((0x1_3000, pages.bytes()));
            Ok(0x1_3000)
        }

        fn allocate(&self, bytes: usize) -> Result<(Arc<Pages>, Iovas), MemError> {
            let pages = Arc::new(Pages::new(bytes)?);
            let start = self.map(&pages)?;
            let chunks = (0..bytes as u64 / 4096).map(|chunk| start + chunk * 0x1_0000).collect();
            let scattered = Iovas::scattered(chunks, 12).filter(|_| self.chunked);
            Ok((pages, scattered.unwrap_or(Iovas::contiguous(start))))
        }

        fn unmap(&self, iova: u64, pages: &Pages) -> bool {
            let mut mapped = self.mapped.lock().unwrap();
            let before = mapped.len();
            mapped.retain(|&seen| seen != (iova, pages.bytes()));
            assert_eq!(mapped.len() + 1, before, "{iova:#x} was not mapped so");
            true
        }
    }

    fn askew(chunked: bool) -> (Arc<Askew>, Arc<dyn DmaSpace>) {
        let space = Arc::new(Askew { chunked, mapped: std::sync::Mutex::default() });
        (Arc::clone(&space), space)
    }

    #[test]
    fn memory_is_aligned_as_asked_and_unmapped_as_mapped() {
        let (space, dma) = askew(false);
        for (align, start) in
            [(4096, 0x1_3000), (8192, 0x1_4000), (16_384, 0x1_4000), (65_536, 0x2_0000)]
        {
            for bytes in [1, align, align + 1] {
                let buffer = DmaBuf::aligned(&dma, bytes, align).unwrap();
                assert_eq!(buffer.iova(0), start, "{align}");
                assert_eq!(buffer.bytes(), bytes.next_multiple_of(align), "{align}");
                let whole = buffer.0._mapping.pages.words();
                buffer.words()[0].store(7, std::sync::atomic::Ordering::Relaxed);
                let at = (start - 0x1_3000) as usize / 8;
                assert_eq!(whole[at].load(std::sync::atomic::Ordering::Relaxed), 7, "{align}");
                assert_eq!(space.mapped.lock().unwrap().len(), 1);
            }
            assert_eq!(*space.mapped.lock().unwrap(), [], "{align}");
        }
        assert!(DmaBuf::aligned(&dma, usize::MAX - 4096, 8192).is_err());
    }

    #[test]
    fn chunks_that_are_not_aligned_are_refused() {
        let (space, dma) = askew(true);
        let error = DmaBuf::aligned(&dma, 8192, 8192).unwrap_err().to_string();
        assert!(error.contains("not aligned to 8192"), "{error}");
        assert_eq!(*space.mapped.lock().unwrap(), [], "what was mapped is unmapped");
    }

    #[test]
    fn chunks_that_follow_each_other_are_one() {
        let iovas = Iovas::scattered(vec![1 << 21, 2 << 21], 21).unwrap();
        assert!(iovas.chunks.is_empty());
        assert_eq!(iovas.at(3 << 20), 5 << 20);
        assert!(Iovas::scattered(Vec::new(), 21).is_none());
    }
}
