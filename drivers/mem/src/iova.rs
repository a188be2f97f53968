//! Which I/O virtual addresses are free.

use crate::MemError;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A first-fit allocator over the ranges that an IOMMU accepts.
///
/// Cold: it is asked once a buffer. Address 0 is never given out, so that a forgotten address
/// faults instead of reaching a buffer.
#[derive(Debug)]
pub struct IovaSpace {
    ranges: Vec<RangeInclusive<u64>>,
    used: BTreeMap<u64, u64>,
}

impl IovaSpace {
    /// A space over `ranges` (first and last address), as the IOMMU reports them.
    pub fn new(mut ranges: Vec<RangeInclusive<u64>>) -> Self {
        ranges.sort_by_key(|range| *range.start());
        Self { ranges, used: BTreeMap::new() }
    }

    /// Takes `bytes` aligned to `align`, a power of two.
    ///
    /// # Errors
    /// [`MemError::AddressSpace`] when no gap is large enough.
    pub fn take(&mut self, bytes: u64, align: u64) -> Result<u64, MemError> {
        // Every taken range has a last address.
        let bytes = bytes.max(1);
        let start = self.find(bytes, align.max(1)).ok_or(MemError::AddressSpace { bytes })?;
        self.used.insert(start, bytes);
        Ok(start)
    }

    /// Gives back what [`take`](Self::take) returned.
    pub fn give_back(&mut self, start: u64) {
        self.used.remove(&start);
    }

    fn find(&self, bytes: u64, align: u64) -> Option<u64> {
        for range in &self.ranges {
            let mut start = (*range.start()).max(1).checked_next_multiple_of(align)?;
            while let Some(last) = start.checked_add(bytes - 1).filter(|last| last <= range.end()) {
                match self.used.range(..=last).next_back() {
                    Some((&taken, &length)) if taken + (length - 1) >= start => {
                        start = taken.checked_add(length)?.checked_next_multiple_of(align)?;
                    }
                    _ => return Some(start),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_skips_holes_and_reuses() {
        let mut space = IovaSpace::new(vec![0x9000..=0xffff, 0..=0x3fff]);
        let first = space.take(0x2000, 0x1000).unwrap();
        assert_eq!(first, 0x1000, "address zero is never given out");
        assert_eq!(space.take(0x1000, 0x1000).unwrap(), 0x3000);
        assert_eq!(space.take(0x4000, 0x4000).unwrap(), 0xc000, "aligned in the second range");
        assert_eq!(space.take(0x3000, 0x1000).unwrap(), 0x9000);
        assert!(space.take(0x1000, 0x1000).is_err());
        space.give_back(first);
        assert_eq!(space.take(0x1000, 0x1000).unwrap(), 0x1000);
        assert_eq!(space.take(0x1000, 0x1000).unwrap(), 0x2000);
    }

    #[test]
    fn the_end_of_the_address_space_does_not_wrap() {
        let mut space = IovaSpace::new(vec![u64::MAX - 0xfff..=u64::MAX]);
        assert_eq!(space.take(0x1000, 0x1000).unwrap(), u64::MAX - 0xfff);
        assert!(space.take(1, 1).is_err());
        assert!(IovaSpace::new(vec![]).take(1, 1).is_err());
    }

    #[test]
    fn taking_nothing_takes_an_address() {
        let mut space = IovaSpace::new(vec![8..=9]);
        assert_eq!((space.take(0, 1).unwrap(), space.take(0, 1).unwrap()), (8, 9));
        assert!(space.take(0, 1).is_err());
    }
}
