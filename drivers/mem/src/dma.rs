//! Memory with an address for the device.

use crate::{MemError, Pages};
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

    /// Takes the mapping at `iova` away. Returns whether the device has certainly lost it.
    fn unmap(&self, iova: u64, pages: &Pages) -> bool;
}

/// Memory at a constant I/O virtual address, for as long as a clone of this lives.
///
/// Drop the last clone only when the device can no longer use it: after its queue was deleted or
/// its controller disabled. `nvpoll-nvme` keeps that order by itself.
#[derive(Clone)]
pub struct DmaBuf(Arc<Mapping>);

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
        let pages = Arc::new(Pages::new(bytes)?);
        let iova = space.map(&pages)?;
        Ok(Self(Arc::new(Mapping { pages, iova, space: Arc::clone(space) })))
    }

    /// The device's address of byte `offset`.
    pub fn iova(&self, offset: usize) -> u64 {
        self.0.iova + offset as u64
    }
}

impl Deref for DmaBuf {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.0.pages
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
