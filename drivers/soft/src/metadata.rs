//! What a block has beside its data: options, and reads and writes that move it (§8.2, §8.3).
//!
//! The medium keeps metadata behind the last block, and a tuple of protection information inverted: so
//! what was never written, or was deallocated, reads as all ones there, which nobody checks (§8.3.1.5),
//! and as zeroes elsewhere.
//!
//! A command is carried out block by block. One that fails has moved the blocks before the one that
//! failed, which the specification leaves open.

use crate::device::{Device, Outcome};
use crate::nvm::{Range, media_error, range, unreachable_data};
use crate::prp::Sgl;
use crate::shared::Shared;
use nvpoll_spec::{
    CHECK_APPLICATION, CHECK_GUARD, CHECK_REFERENCE, FORCE_UNIT_ACCESS, GuardFormat,
    PROTECTION_ACTION, ProtectionTuple, Status, SubmissionEntry,
};
use zerocopy::IntoBytes;

/// What a soft controller's blocks have beside their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockMetadata {
    /// MS: bytes a block, a multiple of 8; 0 is none.
    pub bytes: u16,
    /// MSET: behind each block's data in the same buffer, not in memory of its own (MPTR).
    pub interleaved: bool,
    /// PI: protection information of type 1, 2 or 3; 0 is none.
    pub protection: u8,
    /// PIL: it is the metadata's first bytes, not its last.
    pub first: bool,
    /// PIF: the guard that it has.
    pub guard: GuardFormat,
}

impl BlockMetadata {
    /// Whether all of it is protection information.
    fn is_tuple_alone(&self) -> bool {
        self.protection != 0 && usize::from(self.bytes) == self.guard.tuple_bytes()
    }

    /// Where the tuple is in a block's metadata.
    fn tuple(&self) -> std::ops::Range<usize> {
        let (all, length) = (usize::from(self.bytes), self.guard.tuple_bytes());
        let start = if self.first { 0 } else { all.saturating_sub(length) };
        start..start + length
    }
}

/// What a command wants done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    Verify,
}

/// What a command says of protection information.
struct Asked {
    format: BlockMetadata,
    /// PRINFO and what else is in CDW12.
    cdw12: u32,
    /// LBAT and LBATM, or ELBAT and ELBATM: the application tag, and its bits that count.
    application: u16,
    mask: u16,
    /// ILBRT or EILBRT: the first block's reference tag.
    reference: u64,
}

impl Asked {
    fn new(format: BlockMetadata, entry: &SubmissionEntry) -> Result<Self, Outcome> {
        let [_, cdw3] = entry.cdw2;
        let high = match format.guard {
            GuardFormat::Bits16 => 0,
            GuardFormat::Bits64 => u64::from(cdw3 & 0xffff) << 32,
        };
        let asked = Self {
            format,
            cdw12: entry.cdw12,
            application: entry.cdw15 as u16,
            mask: (entry.cdw15 >> 16) as u16,
            reference: high | u64::from(entry.cdw14),
        };
        let is_wrong = match format.protection {
            // The reference tag is the block's address (§8.3.1.5).
            1 => asked.reference != entry.lba() & format.guard.reference_mask(),
            3 => true,
            _ => false,
        };
        if is_wrong && asked.has(CHECK_REFERENCE) {
            return Err(Outcome::invalid(Status::INVALID_PROTECTION));
        }
        Ok(asked)
    }

    fn has(&self, bit: u32) -> bool {
        self.format.protection != 0 && self.cdw12 & bit != 0
    }

    /// Bytes of a block's metadata that are the host's to send or to get.
    fn crossing_bytes(&self) -> u64 {
        let is_own = self.format.is_tuple_alone() && self.has(PROTECTION_ACTION);
        if is_own { 0 } else { self.format.bytes.into() }
    }

    /// The reference tag of the command's block number `index`: type 3 does not count.
    fn reference(&self, index: u64) -> u64 {
        let counted = if self.format.protection == 3 { 0 } else { index };
        self.reference.wrapping_add(counted) & self.format.guard.reference_mask()
    }

    fn guard(&self, data: &[u8], metadata: &[u8]) -> u64 {
        let before = if self.format.first { 0 } else { self.format.tuple().start };
        self.format.guard.guard(data, metadata.get(..before).unwrap_or(&[]))
    }

    /// Makes the protection information of block number `index`.
    fn generate(&self, index: u64, data: &[u8], metadata: &mut [u8]) {
        let (guard, application) = (self.guard(data, metadata), self.application);
        let tuple = ProtectionTuple { guard, application, reference: self.reference(index) };
        tuple.write(self.format.guard, metadata.get_mut(self.format.tuple()).unwrap_or(&mut []));
    }

    /// Checks what PRCHK asks for: guard, application tag, reference tag.
    fn check(&self, index: u64, data: &[u8], metadata: &[u8]) -> Result<(), Outcome> {
        let BlockMetadata { protection, guard, .. } = self.format;
        let bytes = metadata.get(self.format.tuple()).unwrap_or(&[]);
        let Some(tuple) = ProtectionTuple::read(guard, bytes) else {
            return Err(Outcome::failed(Status::INTERNAL));
        };
        if tuple.is_unchecked(protection, guard) {
            return Ok(());
        }
        let wrong = if self.has(CHECK_GUARD) && tuple.guard != self.guard(data, metadata) {
            Status::GUARD_CHECK
        } else if self.has(CHECK_APPLICATION)
            && tuple.application & self.mask != self.application & self.mask
        {
            Status::APPLICATION_CHECK
        } else if self.has(CHECK_REFERENCE) && tuple.reference != self.reference(index) {
            Status::REFERENCE_CHECK
        } else {
            return Ok(());
        };
        Err(Outcome::failed(wrong))
    }
}

impl Device {
    /// Read, Write or Verify of blocks that have metadata.
    pub(crate) fn transfer_with_metadata(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        action: Action,
    ) -> Result<(), Outcome> {
        let range = range(shared, entry)?;
        let asked = Asked::new(shared.options.metadata, entry)?;
        if asked.format.guard == GuardFormat::Bits64
            && !self.admin.features.knows_extended_formats()
        {
            return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        }
        if action != Action::Verify {
            self.reach_both(shared, entry, &asked, action == Action::Read)?;
        }
        let mut block = std::mem::take(&mut self.block);
        let moved = self.move_blocks(shared, &range, &asked, action, &mut block);
        self.block = block;
        moved?;
        let tallies = &shared.tallies;
        match action {
            Action::Read => {
                tallies.reads.add(1);
                tallies.read_bytes.add(range.bytes);
            }
            Action::Write => {
                tallies.writes.add(1);
                tallies.forced_writes.add((entry.cdw12 & FORCE_UNIT_ACCESS != 0).into());
                tallies.written_bytes.add(range.bytes);
            }
            Action::Verify => tallies.verifies.add(1),
        }
        Ok(())
    }

    /// Resolves DPTR and, where metadata crosses the bus beside the data, MPTR: one address, at which
    /// all of it is (§4.2, Figure 104).
    fn reach_both(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        asked: &Asked,
        write: bool,
    ) -> Result<(), Outcome> {
        let blocks = u64::from(entry.blocks_z()) + 1;
        let (interleaved, separate) = match asked.format.interleaved {
            true => (asked.crossing_bytes(), 0),
            false => (0, asked.crossing_bytes()),
        };
        let bytes = blocks * (u64::from(shared.options.lba_bytes) + interleaved);
        if shared.options.transfer_bytes_max().is_some_and(|most| bytes > most) {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        self.reach(shared, entry, bytes, write)?;
        if separate == 0 {
            return Ok(());
        }
        if entry.mptr & 3 != 0 {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        let bytes = blocks * separate;
        let sgl = Sgl { address: entry.mptr, rest: bytes, bytes, write };
        let resolved = self.metadata_segments.resolve_sgl(&self.view, &sgl);
        resolved.map_err(|error| unreachable_data(shared, error))
    }

    fn move_blocks(
        &mut self,
        shared: &Shared,
        range: &Range,
        asked: &Asked,
        action: Action,
        block: &mut [u64],
    ) -> Result<(), Outcome> {
        let lba_bytes = u64::from(shared.options.lba_bytes);
        let (data, metadata) = block.split_at_mut((lba_bytes / 8) as usize);
        let is_crossing = asked.crossing_bytes() > 0;
        let media = |status| media_error(shared, status);
        for index in 0..range.bytes / lba_bytes {
            let at = range.offset + index * lba_bytes;
            let beside = metadata_offset(shared, at / lba_bytes);
            if action == Action::Write {
                self.segments.take_host(&self.view, data, 2 * data.len());
                metadata.fill(0);
                if is_crossing {
                    let segments = match asked.format.interleaved {
                        true => &mut self.segments,
                        false => &mut self.metadata_segments,
                    };
                    segments.take_host(&self.view, metadata, 2 * metadata.len());
                }
                if asked.has(PROTECTION_ACTION) {
                    asked.generate(index, data.as_bytes(), metadata.as_mut_bytes());
                } else if asked.format.protection != 0 {
                    asked.check(index, data.as_bytes(), metadata.as_bytes())?;
                }
                invert(&asked.format, metadata);
                self.media.put(at, data).map_err(media)?;
                self.media.put(beside, metadata).map_err(media)?;
                continue;
            }
            self.media.get(at, data).map_err(media)?;
            self.media.get(beside, metadata).map_err(media)?;
            invert(&asked.format, metadata);
            if asked.format.protection != 0 {
                asked.check(index, data.as_bytes(), metadata.as_bytes())?;
            }
            if action == Action::Read {
                self.segments.fill_host(&self.view, data, 2 * data.len());
                if is_crossing {
                    let segments = match asked.format.interleaved {
                        true => &mut self.segments,
                        false => &mut self.metadata_segments,
                    };
                    segments.fill_host(&self.view, metadata, 2 * metadata.len());
                }
            }
        }
        Ok(())
    }

    /// What is beside the data of blocks that are deallocated: zeroes, and a tuple of all ones.
    pub(crate) fn forget_metadata(&mut self, shared: &Shared, range: &Range) -> Result<(), Status> {
        let each = u64::from(shared.options.metadata.bytes);
        if each == 0 {
            return Ok(());
        }
        let lba_bytes = u64::from(shared.options.lba_bytes);
        let start = metadata_offset(shared, range.offset / lba_bytes);
        self.media.zero(start, range.bytes / lba_bytes * each)
    }

    /// What is beside the data of Write Zeroes' blocks (§6.17): zeroes, and with PRACT protection
    /// information as a write would have it made.
    pub(crate) fn zero_metadata(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        range: &Range,
    ) -> Result<(), Outcome> {
        let asked = Asked::new(shared.options.metadata, entry)?;
        let media = |status| media_error(shared, status);
        if asked.format.protection == 0 {
            return self.forget_metadata(shared, range).map_err(media);
        }
        let mut block = std::mem::take(&mut self.block);
        block.fill(0);
        let lba_bytes = u64::from(shared.options.lba_bytes);
        let (data, metadata) = block.split_at_mut((lba_bytes / 8) as usize);
        let mut done = Ok(());
        for index in 0..range.bytes / lba_bytes {
            metadata.fill(0);
            if asked.has(PROTECTION_ACTION) {
                asked.generate(index, data.as_bytes(), metadata.as_mut_bytes());
            }
            invert(&asked.format, metadata);
            let at = metadata_offset(shared, range.offset / lba_bytes + index);
            done = done.and_then(|()| self.media.put(at, metadata));
        }
        self.block = block;
        done.map_err(media)
    }
}

/// Where a block's metadata is on the medium.
fn metadata_offset(shared: &Shared, lba: u64) -> u64 {
    shared.options.size_bytes + lba * u64::from(shared.options.metadata.bytes)
}

/// Inverts the tuple in a block's metadata.
fn invert(format: &BlockMetadata, metadata: &mut [u64]) {
    if format.protection != 0 {
        for byte in metadata.as_mut_bytes().get_mut(format.tuple()).unwrap_or(&mut []) {
            *byte = !*byte;
        }
    }
}
