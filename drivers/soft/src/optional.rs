//! The optional NVM commands: Compare, Verify, Dataset Management, Copy.

use crate::device::{Device, Outcome};
use crate::nvm::{NSID, Range, media_error, range};
use crate::shared::Shared;
use nvpoll_spec::{CopyRange, DatasetRange, Nvm, Status, SubmissionEntry};
use zerocopy::IntoBytes;

/// Ranges of one Dataset Management command: NR is eight bits, zero-based (§6.7).
const DATASET_RANGES_MAX: usize = 256;
/// Copy: most source ranges (MSRC plus one), blocks in one of them (MSSRL) and in all (MCL).
pub(crate) const COPY_RANGES_MAX: usize = 16;
pub(crate) const COPY_RANGE_BLOCKS_MAX: u16 = 1024;
pub(crate) const COPY_BLOCKS_MAX: u32 = 4096;
/// Bytes that are looked at in one go.
const PART_BYTES: u64 = 64 << 10;

impl Device {
    /// Compare (§6.6): the host's data with the medium's.
    pub(crate) fn compare(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<(), Outcome> {
        let range = range(shared, entry)?;
        if shared.options.transfer_bytes_max().is_some_and(|most| range.bytes > most) {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        self.reach(shared, entry, range.bytes, false)?;
        let (mut kept, mut sent) = (part(), part());
        for (offset, words) in parts(&range) {
            let (kept, sent) = (slice(&mut kept, words), slice(&mut sent, words));
            self.media.get(offset, kept).map_err(|status| media_error(shared, status))?;
            self.segments.take_host(&self.view, sent, 2 * words);
            if kept != sent {
                return Err(Outcome::failed(Status::COMPARE_FAILURE));
            }
        }
        shared.tallies.compares.add(1);
        Ok(())
    }

    /// Verify (§6.14): reads, and hands nothing to the host; so MDTS does not bound it.
    pub(crate) fn verify(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<(), Outcome> {
        let range = range(shared, entry)?;
        let mut kept = part();
        for (offset, words) in parts(&range) {
            let read = self.media.get(offset, slice(&mut kept, words));
            read.map_err(|status| media_error(shared, status))?;
        }
        shared.tallies.verifies.add(1);
        Ok(())
    }

    /// Dataset Management (§6.7). Deallocated blocks read as zeroes; other hints do nothing.
    pub(crate) fn dataset_management(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<(), Outcome> {
        if entry.nsid != NSID {
            return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        }
        let count = usize::from(entry.cdw10 as u8) + 1;
        let mut ranges = [DatasetRange::default(); DATASET_RANGES_MAX];
        let taken = ranges.get_mut(..count).unwrap_or(&mut []);
        let mut words = [0u64; 2 * DATASET_RANGES_MAX];
        self.take(shared, entry, slice(&mut words, 2 * count))?;
        taken.as_mut_bytes().copy_from_slice(slice(&mut words, 2 * count).as_bytes());
        if !Nvm::deallocates(entry) {
            return Ok(());
        }
        let lba_bytes = u64::from(shared.options.lba_bytes);
        let blocks = shared.options.size_bytes / lba_bytes;
        // All are checked before any is carried out.
        let inside = |range: &DatasetRange| {
            range.lba.checked_add(range.blocks.into()).is_some_and(|end| end <= blocks)
        };
        if !taken.iter().all(inside) {
            return Err(Outcome::invalid(Status::LBA_OUT_OF_RANGE));
        }
        for range in taken {
            let (offset, bytes) = (range.lba * lba_bytes, u64::from(range.blocks) * lba_bytes);
            let done = self.media.zero(offset, bytes);
            let done = done.and_then(|()| self.forget_metadata(shared, &Range { offset, bytes }));
            done.map_err(|status| media_error(shared, status))?;
            shared.tallies.trimmed_bytes.add(bytes);
        }
        shared.tallies.trims.add(1);
        Ok(())
    }

    /// Copy in descriptor format 0, without protection information. Overlapping ranges are copied
    /// one after another, in order.
    pub(crate) fn copy_blocks(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<(), Outcome> {
        if entry.nsid != NSID {
            return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        }
        let count = usize::from(entry.cdw12 as u8) + 1;
        if entry.cdw12 >> 8 & 0xf != 0 {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        let mut words = [0u64; 4 * COPY_RANGES_MAX];
        let mut ranges = [CopyRange::default(); COPY_RANGES_MAX];
        let Some(taken) = ranges.get_mut(..count) else {
            return Err(Outcome::invalid(Status::COMMAND_SIZE_LIMIT));
        };
        self.take(shared, entry, slice(&mut words, 4 * count))?;
        taken.as_mut_bytes().copy_from_slice(slice(&mut words, 4 * count).as_bytes());
        let length = |range: &CopyRange| u32::from(range.blocks_z) + 1;
        let total: u32 = taken.iter().map(length).sum();
        let too_long = |range: &CopyRange| length(range) > COPY_RANGE_BLOCKS_MAX.into();
        if total > COPY_BLOCKS_MAX || taken.iter().any(too_long) {
            return Err(Outcome::invalid(Status::COMMAND_SIZE_LIMIT));
        }
        let stretch = |lba: u64, blocks: u32| stretch(shared, lba, blocks);
        stretch(entry.lba(), total)?;
        for range in taken.iter() {
            stretch(range.lba, length(range))?;
        }
        let (mut target, mut buffer) = (entry.lba(), part());
        for range in taken.iter() {
            let blocks = length(range);
            let (from, to) = (stretch(range.lba, blocks)?, stretch(target, blocks)?);
            for ((from, words), (to, _)) in parts(&from).zip(parts(&to)) {
                let buffer = slice(&mut buffer, words);
                let copied = self.media.get(from, buffer).and_then(|()| self.media.put(to, buffer));
                copied.map_err(|status| media_error(shared, status))?;
            }
            target += u64::from(blocks);
        }
        shared.tallies.copies.add(1);
        Ok(())
    }

    /// The command's data, all of it.
    fn take(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        words: &mut [u64],
    ) -> Result<(), Outcome> {
        self.reach(shared, entry, 8 * words.len() as u64, false)?;
        self.segments.take_host(&self.view, words, 2 * words.len());
        Ok(())
    }
}

/// `blocks` from `lba` on, inside of the namespace.
fn stretch(shared: &Shared, lba: u64, blocks: u32) -> Result<Range, Outcome> {
    let lba_bytes = u64::from(shared.options.lba_bytes);
    let bytes = u64::from(blocks) * lba_bytes;
    let offset = lba.checked_mul(lba_bytes).filter(|offset| {
        offset.checked_add(bytes).is_some_and(|end| end <= shared.options.size_bytes)
    });
    let offset = offset.ok_or(Outcome::invalid(Status::LBA_OUT_OF_RANGE))?;
    Ok(Range { offset, bytes })
}

fn part() -> Vec<u64> {
    vec![0; PART_BYTES as usize / 8]
}

fn slice(words: &mut [u64], count: usize) -> &mut [u64] {
    words.get_mut(..count).unwrap_or(&mut [])
}

/// A range in parts: the offset of each and its length in words.
fn parts(range: &Range) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (offset, bytes) = (range.offset, range.bytes);
    (0..bytes.div_ceil(PART_BYTES)).map(move |index| {
        let done = index * PART_BYTES;
        (offset + done, ((bytes - done).min(PART_BYTES) / 8) as usize)
    })
}
