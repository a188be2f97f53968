//! The NVM commands (§6): read, write, write zeroes, flush; the others are in `optional.rs`.

use crate::device::{Device, Outcome};
use crate::metadata::Action;
use crate::prp::{DataError, Prps, Sgl};
use crate::shared::Shared;
use nvpoll_spec::{FORCE_UNIT_ACCESS, NSID_ALL, NvmOpcode, Status, SubmissionEntry};

/// The one namespace.
pub(crate) const NSID: u32 = 1;

/// PSDT in the flags of an entry, 01b: DPTR is an SGL descriptor (§4.2, Figure 104).
const PSDT_SGL: u8 = 1 << 6;

/// What an I/O command touches.
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Device {
    /// Carries out a command of an I/O queue.
    #[inline]
    pub(crate) fn io_command(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Outcome {
        // Neither fused operations (FUSE) nor metadata by SGLs (PSDT 10b) are supported, as Identify says.
        if !matches!(entry.flags, 0 | PSDT_SGL) {
            return Outcome::invalid(Status::INVALID_FIELD);
        }
        let opcode = NvmOpcode(entry.opcode);
        if self.zones.is_some() {
            return self.zoned_command(shared, entry);
        }
        let is_plain = shared.options.metadata.bytes == 0;
        let outcome = match opcode {
            NvmOpcode::READ if is_plain => self.transfer(shared, entry, false),
            NvmOpcode::WRITE if is_plain => self.transfer(shared, entry, true),
            NvmOpcode::READ => self.transfer_with_metadata(shared, entry, Action::Read),
            NvmOpcode::WRITE => self.transfer_with_metadata(shared, entry, Action::Write),
            NvmOpcode::FLUSH => self.flush(shared, entry),
            NvmOpcode::WRITE_ZEROES => self.write_zeroes(shared, entry),
            NvmOpcode::COMPARE if is_plain => self.compare(shared, entry),
            NvmOpcode::VERIFY if is_plain => self.verify(shared, entry),
            NvmOpcode::VERIFY => self.transfer_with_metadata(shared, entry, Action::Verify),
            NvmOpcode::DATASET_MANAGEMENT => self.dataset_management(shared, entry),
            NvmOpcode::COPY if is_plain => self.copy_blocks(shared, entry),
            _ => Err(Outcome::invalid(Status::INVALID_OPCODE)),
        };
        outcome.err().unwrap_or(Outcome::DONE)
    }

    /// A command on a zoned namespace: what changes its blocks without regard for zones is not there.
    fn zoned_command(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Outcome {
        let outcome = match NvmOpcode(entry.opcode) {
            NvmOpcode::READ => self.zoned_transfer(shared, entry, false),
            NvmOpcode::WRITE => self.zoned_transfer(shared, entry, true),
            NvmOpcode::FLUSH => self.flush(shared, entry),
            _ => return self.zone_command(shared, entry).unwrap_or_else(|failure| failure),
        };
        outcome.err().unwrap_or(Outcome::DONE)
    }

    #[inline]
    pub(crate) fn transfer(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        write: bool,
    ) -> Result<(), Outcome> {
        let range = range(shared, entry)?;
        if shared.options.transfer_bytes_max().is_some_and(|most| range.bytes > most) {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        // The device writes to memory when the host reads from the drive.
        self.reach(shared, entry, range.bytes, !write)?;
        let tallies = &shared.tallies;
        let (view, host) = (&self.view, &mut self.segments);
        if write {
            self.media
                .write(view, host, range.offset, range.bytes)
                .map_err(|status| media_error(shared, status))?;
            tallies.writes.add(1);
            tallies.forced_writes.add((entry.cdw12 & FORCE_UNIT_ACCESS != 0).into());
            tallies.written_bytes.add(range.bytes);
        } else {
            self.media
                .read(view, host, range.offset, range.bytes)
                .map_err(|status| media_error(shared, status))?;
            tallies.reads.add(1);
            tallies.read_bytes.add(range.bytes);
        }
        Ok(())
    }

    /// Resolves a command's data pointer into `self.segments`.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        bytes: u64,
        write: bool,
    ) -> Result<(), Outcome> {
        let (prp1, prp2, page_bytes) = (entry.prp1, entry.prp2, self.page_bytes);
        let resolved = if entry.flags & PSDT_SGL == 0 {
            let prps = Prps { prp1, prp2, bytes, page_bytes, write };
            self.segments.resolve(&self.view, &prps)
        } else {
            let sgl = Sgl { address: prp1, rest: prp2, bytes, write };
            self.segments.resolve_sgl(&self.view, &sgl)
        };
        resolved.map_err(|error| unreachable_data(shared, error))
    }

    fn flush(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<(), Outcome> {
        if entry.nsid != NSID && entry.nsid != NSID_ALL {
            return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        }
        self.media.flush().map_err(|status| media_error(shared, status))?;
        shared.tallies.flushes.add(1);
        Ok(())
    }

    /// Transfers nothing, so MDTS does not bound it (§6.17).
    fn write_zeroes(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<(), Outcome> {
        let range = range(shared, entry)?;
        self.media.zero(range.offset, range.bytes).map_err(|status| media_error(shared, status))?;
        self.zero_metadata(shared, entry, &range)?;
        shared.tallies.write_zeroes.add(1);
        Ok(())
    }
}

/// The bytes that SLBA and NLB name, inside of the namespace.
#[inline]
pub(crate) fn range(shared: &Shared, entry: &SubmissionEntry) -> Result<Range, Outcome> {
    if entry.nsid != NSID {
        return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
    }
    let lba_bytes = u64::from(shared.options.lba_bytes);
    let bytes = (u64::from(entry.blocks_z()) + 1) * lba_bytes;
    let offset = entry.lba().checked_mul(lba_bytes);
    let fits = |offset: &u64| {
        offset.checked_add(bytes).is_some_and(|end| end <= shared.options.size_bytes)
    };
    match offset.filter(fits) {
        Some(offset) => Ok(Range { offset, bytes }),
        None => Err(Outcome::invalid(Status::LBA_OUT_OF_RANGE)),
    }
}

#[cold]
pub(crate) fn unreachable_data(shared: &Shared, error: DataError) -> Outcome {
    match error {
        DataError::Offset | DataError::SglType | DataError::SglLength => {
            Outcome::invalid(error.status())
        }
        DataError::Fault(fault) => {
            shared.iommu.record(fault);
            Outcome::failed(error.status())
        }
    }
}

#[cold]
pub(crate) fn media_error(shared: &Shared, status: Status) -> Outcome {
    shared.tallies.media_errors.add(1);
    Outcome::failed(status)
}
