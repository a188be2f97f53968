//! Where a command's data lies: the PRP entries of §4.3 or the SGL data block of §4.4, checked and
//! resolved before any of it is touched.

use crate::iommu::{DmaFault, DmaView, Place};
use nvpoll_spec::Status;
use std::sync::atomic::Ordering::Relaxed;

/// Why a command's data cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataError {
    /// An offset in a PRP entry that §4.3 does not allow there.
    Offset,
    /// An SGL descriptor of another type than a data block.
    SglType,
    /// A data block of another length than the data's.
    SglLength,
    /// Memory that the host did not map.
    Fault(DmaFault),
}

impl DataError {
    /// The status that the command completes with.
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Offset => Status::INVALID_PRP_OFFSET,
            Self::SglType => Status::INVALID_SGL_TYPE,
            Self::SglLength => Status::INVALID_SGL_LENGTH,
            Self::Fault(_) => Status::DATA_TRANSFER,
        }
    }
}

/// A run of a command's data in one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    place: Place,
    dwords: usize,
}

/// A command's data pointer, as §4.3 has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prps {
    pub(crate) prp1: u64,
    pub(crate) prp2: u64,
    /// Bytes of data, a multiple of 4.
    pub(crate) bytes: u64,
    /// CC.MPS in bytes.
    pub(crate) page_bytes: u64,
    /// The device is going to write to the host's memory.
    pub(crate) write: bool,
}

/// A command's data pointer where it is an SGL descriptor (§4.4): address, then length, and in the
/// uppermost byte type and subtype.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgl {
    pub(crate) address: u64,
    pub(crate) rest: u64,
    /// Bytes of data, a multiple of 4.
    pub(crate) bytes: u64,
    /// The device is going to write to the host's memory.
    pub(crate) write: bool,
}

/// The segments of one command, reused for the next: no allocation once it has grown to the
/// longest transfer.
#[derive(Default)]
pub(crate) struct Segments {
    list: Vec<Segment>,
    data_hint: usize,
    list_hint: usize,
    // How far `fill_host` and `take_host` have come.
    index: usize,
    done: usize,
}

impl Segments {
    /// Room for a transfer of `bytes` in 4 KiB pages at any offset.
    pub(crate) fn with_room_for(bytes: u64) -> Self {
        let pages = usize::try_from(bytes / 4096).unwrap_or(0) + 1;
        Self { list: Vec::with_capacity(pages), ..Self::default() }
    }

    /// Resolves `prps`. Nothing has been transferred when this fails.
    pub(crate) fn resolve(&mut self, view: &DmaView, prps: &Prps) -> Result<(), DataError> {
        self.list.clear();
        (self.index, self.done) = (0, 0);
        let mask = prps.page_bytes - 1;
        if prps.prp1 & 3 != 0 {
            return Err(DataError::Offset);
        }
        let first = prps.bytes.min(prps.page_bytes - (prps.prp1 & mask));
        self.add(view, prps.write, prps.prp1, first)?;
        let left = prps.bytes - first;
        if left == 0 {
            Ok(())
        } else if left <= prps.page_bytes {
            if prps.prp2 & mask != 0 {
                return Err(DataError::Offset);
            }
            self.add(view, prps.write, prps.prp2, left)
        } else {
            self.walk_list(view, prps, left)
        }
    }

    /// Resolves `sgl`, which is taken where it is a data block (type and subtype 0h) as long as the
    /// data. Nothing has been transferred when this fails.
    pub(crate) fn resolve_sgl(&mut self, view: &DmaView, sgl: &Sgl) -> Result<(), DataError> {
        self.list.clear();
        (self.index, self.done) = (0, 0);
        if sgl.rest >> 56 != 0 {
            return Err(DataError::SglType);
        }
        // Memory is seen in double words here, and so SGLS says (bits 1:0, 10b).
        if sgl.rest & 0xffff_ffff != sgl.bytes || sgl.address & 3 != 0 {
            return Err(DataError::SglLength);
        }
        self.add(view, sgl.write, sgl.address, sgl.bytes)
    }

    /// A list: entries up to the page's end, the last of which leads to the next list if there are
    /// more to come. The loop ends because a page holds at least 512 entries and `left` shrinks.
    fn walk_list(&mut self, view: &DmaView, prps: &Prps, mut left: u64) -> Result<(), DataError> {
        let mask = prps.page_bytes - 1;
        let mut at = prps.prp2;
        if at & 7 != 0 {
            return Err(DataError::Offset);
        }
        loop {
            let slots = (prps.page_bytes - (at & mask)) / 8;
            let wanted = left.div_ceil(prps.page_bytes);
            let chained = wanted > slots;
            let read = wanted.min(slots);
            let fault = DmaFault { iova: at, bytes: read * 8, write: false, what: "PRP list" };
            let place =
                view.find(&mut self.list_hint, at, read * 8).ok_or(DataError::Fault(fault))?;
            let entries = view.words(place).iter().take(read as usize);
            let mut next = 0;
            for (index, entry) in entries.enumerate() {
                let entry = entry.load(Relaxed);
                if entry & mask != 0 {
                    return Err(DataError::Offset);
                }
                if chained && index as u64 + 1 == slots {
                    next = entry;
                } else {
                    let bytes = left.min(prps.page_bytes);
                    self.add(view, prps.write, entry, bytes)?;
                    left -= bytes;
                }
            }
            if !chained {
                return Ok(());
            }
            at = next;
        }
    }

    #[inline]
    fn add(&mut self, view: &DmaView, write: bool, iova: u64, bytes: u64) -> Result<(), DataError> {
        let fault = DmaFault { iova, bytes, write, what: "data" };
        let place = view.find(&mut self.data_hint, iova, bytes).ok_or(DataError::Fault(fault))?;
        let dwords = (bytes / 4) as usize;
        match self.list.last_mut() {
            Some(last)
                if last.place.mapping == place.mapping
                    && last.place.dword + last.dwords == place.dword =>
            {
                last.dwords += dwords;
            }
            _ => self.list.push(Segment { place, dwords }),
        }
        Ok(())
    }

    /// The next run of at most `dwords`, stepped past; `None` at the end.
    #[inline]
    fn next(&mut self, dwords: usize) -> Option<(Place, usize)> {
        let segment = self.list.get(self.index)?;
        let run = dwords.min(segment.dwords - self.done);
        let place = Place { dword: segment.place.dword + self.done, ..segment.place };
        self.done += run;
        if self.done == segment.dwords {
            self.index += 1;
            self.done = 0;
        }
        Some((place, run))
    }

    /// Copies all of `local` to the next place in the host's memory.
    #[inline]
    pub(crate) fn fill_host(&mut self, view: &DmaView, local: &[u64], dwords: usize) {
        let mut done = 0;
        while done < dwords {
            let Some((place, run)) = self.next(dwords - done) else { return };
            crate::copy::to_host(view.memory(place.mapping), place.dword, local, done, run);
            done += run;
        }
    }

    /// Zeroes the next `dwords` of the host's memory.
    pub(crate) fn zero_host(&mut self, view: &DmaView, dwords: usize) {
        const ZEROES: [u64; 512] = [0; 512];
        let mut done = 0;
        while done < dwords {
            let part = (dwords - done).min(2 * ZEROES.len());
            self.fill_host(view, &ZEROES, part);
            done += part;
        }
    }

    /// Fills `local` from the next place in the host's memory.
    #[inline]
    pub(crate) fn take_host(&mut self, view: &DmaView, local: &mut [u64], dwords: usize) {
        let mut done = 0;
        while done < dwords {
            let Some((place, run)) = self.next(dwords - done) else { return };
            crate::copy::from_host(view.memory(place.mapping), place.dword, local, done, run);
            done += run;
        }
    }
}
