//! The soft IOMMU: what the device may touch, and a fault for everything else.

use nvpoll_mem::{DmaSpace, IovaSpace, MemError, PAGE_BYTES, Pages};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where addresses are given out. Above 4 GiB, so that an address cut to 32 bits faults, and in
/// 48 bits, which is what real IOMMUs translate.
const IOVA_RANGE: RangeInclusive<u64> = 1 << 32..=(1 << 48) - 1;
/// Left unmapped behind every mapping, so that running over a buffer's end faults.
const GUARD_BYTES: u64 = PAGE_BYTES as u64;
/// Faults that are kept word for word; later ones are counted alone.
const FAULTS_KEPT: usize = 256;

/// One access of the device outside of what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// First address of the access.
    pub iova: u64,
    /// Bytes that it wanted.
    pub bytes: u64,
    /// The device wanted to write.
    pub write: bool,
    /// What it was after: `data`, `PRP list`, `submission queue`, `completion queue`.
    pub what: &'static str,
}

impl fmt::Display for DmaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.write { "write" } else { "read" };
        write!(
            f,
            "the device wanted to {verb} {} bytes ({}) at {:#x}, which is not mapped",
            self.bytes, self.what, self.iova
        )
    }
}

#[derive(Debug)]
struct Table {
    space: IovaSpace,
    mapped: BTreeMap<u64, Arc<Pages>>,
}

#[derive(Debug, Default)]
struct Faults {
    kept: Vec<DmaFault>,
    count: u64,
}

/// The host's side: maps and unmaps. The device looks through a [`DmaView`].
#[derive(Debug)]
pub(crate) struct SoftIommu {
    // Rises with every change, so that the device's fast path sees by one load that there is none.
    generation: AtomicU64,
    table: Mutex<Table>,
    faults: Mutex<Faults>,
}

impl SoftIommu {
    pub(crate) fn new() -> Self {
        let table = Table { space: IovaSpace::new(vec![IOVA_RANGE]), mapped: BTreeMap::new() };
        Self {
            generation: AtomicU64::new(0),
            table: Mutex::new(table),
            faults: Mutex::new(Faults::default()),
        }
    }

    pub(crate) fn record(&self, fault: DmaFault) {
        let mut faults = lock(&self.faults);
        faults.count += 1;
        if faults.kept.len() < FAULTS_KEPT {
            faults.kept.push(fault);
        }
    }

    pub(crate) fn faults(&self) -> Vec<DmaFault> {
        lock(&self.faults).kept.clone()
    }

    pub(crate) fn fault_count(&self) -> u64 {
        lock(&self.faults).count
    }
}

/// A poisoned lock guards data that is whole at every step here, so it is taken over.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DmaSpace for SoftIommu {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
        let mut table = lock(&self.table);
        let bytes = pages.bytes() as u64 + GUARD_BYTES;
        let iova = table.space.take(bytes, PAGE_BYTES as u64)?;
        table.mapped.insert(iova, Arc::clone(pages));
        self.generation.fetch_add(1, Ordering::Release);
        Ok(iova)
    }

    fn unmap(&self, iova: u64, pages: &Pages) -> bool {
        let mut table = lock(&self.table);
        let same = table.mapped.get(&iova).is_some_and(|mapped| std::ptr::eq(&**mapped, pages));
        if same {
            table.mapped.remove(&iova);
            table.space.give_back(iova);
            self.generation.fetch_add(1, Ordering::Release);
        }
        same
    }
}

/// What one mapping looks like from the device.
struct Mapping {
    start: u64,
    bytes: u64,
    pages: Arc<Pages>,
}

/// The device's own copy of the table: read without a lock, copied anew when the generation moved.
///
/// It keeps the memory alive, so an access that races with `unmap` stays sound. A command that is
/// fetched after `unmap` returned sees the new generation and faults.
#[derive(Default)]
pub(crate) struct DmaView {
    generation: u64,
    mappings: Vec<Mapping>,
}

/// A place in the device's view: which mapping, and the first 4-byte word in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) mapping: usize,
    pub(crate) dword: usize,
}

impl DmaView {
    /// Catches up with the table. The fast path is one load.
    #[inline]
    pub(crate) fn refresh(&mut self, iommu: &SoftIommu) {
        if iommu.generation.load(Ordering::Acquire) != self.generation {
            self.reload(iommu);
        }
    }

    #[cold]
    fn reload(&mut self, iommu: &SoftIommu) {
        let table = lock(&iommu.table);
        self.generation = iommu.generation.load(Ordering::Acquire);
        self.mappings.clear();
        self.mappings.extend(table.mapped.iter().map(|(&start, pages)| Mapping {
            start,
            bytes: pages.bytes() as u64,
            pages: Arc::clone(pages),
        }));
    }

    /// Where `bytes` at `iova` lie, if all of them are mapped. `hint` is the mapping that the
    /// caller's last access hit, and is updated.
    #[inline]
    pub(crate) fn find(&self, hint: &mut usize, iova: u64, bytes: u64) -> Option<Place> {
        let holds = |mapping: &Mapping| {
            let offset = iova.wrapping_sub(mapping.start);
            (offset < mapping.bytes && bytes <= mapping.bytes - offset).then_some(offset)
        };
        if let Some(offset) = self.mappings.get(*hint).and_then(holds) {
            return Some(Place { mapping: *hint, dword: (offset / 4) as usize });
        }
        let above = self.mappings.partition_point(|mapping| mapping.start <= iova);
        let index = above.checked_sub(1)?;
        let offset = self.mappings.get(index).and_then(holds)?;
        *hint = index;
        Some(Place { mapping: index, dword: (offset / 4) as usize })
    }

    /// The words of the memory from `place` on, `place` being 8-byte aligned.
    #[inline]
    pub(crate) fn words(&self, place: Place) -> &[AtomicU64] {
        self.memory(place.mapping).get(place.dword / 2..).unwrap_or(&[])
    }

    /// All words of a mapping.
    #[inline]
    pub(crate) fn memory(&self, mapping: usize) -> &[AtomicU64] {
        self.mappings.get(mapping).map_or(&[], |mapping| mapping.pages.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mapped_is_found() {
        let iommu = SoftIommu::new();
        let pages: Vec<_> = (1..=3).map(|n| Arc::new(Pages::new(n * 4096).unwrap())).collect();
        let iovas: Vec<_> = pages.iter().map(|pages| iommu.map(pages).unwrap()).collect();
        let mut view = DmaView::default();
        let mut hint = 0;
        assert_eq!(view.find(&mut hint, iovas[0], 1), None, "before the first refresh");
        view.refresh(&iommu);
        for (pages, &iova) in pages.iter().zip(&iovas) {
            let bytes = pages.bytes() as u64;
            assert!(iova >= 1 << 32 && iova.is_multiple_of(4096));
            assert!(view.find(&mut hint, iova, bytes).is_some());
            assert_eq!(view.find(&mut hint, iova + 8, 8).unwrap().dword, 2);
            assert_eq!(view.find(&mut hint, iova, bytes + 1), None, "over the end");
            assert_eq!(view.find(&mut hint, iova + bytes, 1), None, "the guard page");
            assert_eq!(view.find(&mut hint, iova - 1, 2), None, "before the start");
            assert_eq!(view.find(&mut hint, iova + bytes - 4, u64::MAX), None);
        }
        for iova in [0, 4096, u64::MAX, iovas[0] & 0xffff_ffff] {
            assert_eq!(view.find(&mut hint, iova, 4), None, "{iova:#x}");
        }
    }

    #[test]
    fn unmapping_is_seen_and_only_by_its_own_memory() {
        let iommu = SoftIommu::new();
        let pages = Arc::new(Pages::new(4096).unwrap());
        let other = Pages::new(4096).unwrap();
        let iova = iommu.map(&pages).unwrap();
        let mut view = DmaView::default();
        view.refresh(&iommu);
        assert!(!iommu.unmap(iova, &other), "somebody else's memory");
        assert!(!iommu.unmap(iova + 4096, &pages));
        assert!(iommu.unmap(iova, &pages));
        assert!(!iommu.unmap(iova, &pages), "twice");
        let mut hint = 0;
        assert!(view.find(&mut hint, iova, 8).is_some(), "the copy is as old as its refresh");
        view.refresh(&iommu);
        assert_eq!(view.find(&mut hint, iova, 8), None);
        assert_eq!(Arc::strong_count(&pages), 1, "the view let go of it");
    }
}
