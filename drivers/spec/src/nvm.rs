//! The rarer NVM commands, and the structures that they take from memory (§6; Copy as in the NVM
//! Command Set Specification 1.0, §3.2.2).

use crate::{NvmOpcode, SubmissionEntry};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// FUA in CDW12 of Read, Write and their like: not done before it is on the medium (§6.15).
pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// DEAC in CDW12 of Write Zeroes: deallocate as well (§6.17).
const DEALLOCATE_TOO: u32 = 1 << 25;
/// AD in CDW11 of Dataset Management: deallocate (§6.7).
const DEALLOCATE: u32 = 1 << 2;

/// One range of Dataset Management, 16 bytes (Figure 367).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DatasetRange {
    /// Context attributes; only hints.
    pub attributes: u32,
    /// Length in logical blocks, not zero-based.
    pub blocks: u32,
    /// First logical block.
    pub lba: u64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16);

/// One source range of Copy in descriptor format 0, 32 bytes (Figure 39).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CopyRange {
    reserved0: u64,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks, zero-based.
    pub blocks_z: u16,
    reserved18: [u8; 6],
    /// Expected reference, application and mask of protection information.
    pub protection: [u16; 4],
}

const _: () = assert!(size_of::<CopyRange>() == 32);
const _: () = assert!(core::mem::offset_of!(CopyRange, blocks_z) == 16);

impl CopyRange {
    /// A range without protection information.
    pub const fn new(lba: u64, blocks_z: u16) -> Self {
        Self { reserved0: 0, lba, blocks_z, reserved18: [0; 6], protection: [0; 4] }
    }
}

/// Builders for the rarer NVM commands; data addresses and CID are left zero.
pub struct Nvm;

impl Nvm {
    /// Write Zeroes (§6.17); with `deallocate` the blocks should be deallocated too.
    pub const fn write_zeroes(
        nsid: u32,
        lba: u64,
        blocks_z: u16,
        deallocate: bool,
    ) -> SubmissionEntry {
        let mut entry = SubmissionEntry::io(NvmOpcode::WRITE_ZEROES, nsid, lba, blocks_z);
        if deallocate {
            entry.cdw12 |= DEALLOCATE_TOO;
        }
        entry
    }

    /// Dataset Management that deallocates (§6.7): the data is `ranges_z + 1` [`DatasetRange`]s.
    pub const fn deallocate(nsid: u32, ranges_z: u8) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(NvmOpcode::DATASET_MANAGEMENT.0, nsid);
        entry.cdw10 = ranges_z as u32;
        entry.cdw11 = DEALLOCATE;
        entry
    }

    /// Whether a Dataset Management command deallocates.
    pub const fn deallocates(entry: &SubmissionEntry) -> bool {
        entry.cdw11 & DEALLOCATE != 0
    }

    /// Copy to `lba` on, in descriptor format 0: the data is `ranges_z + 1` [`CopyRange`]s.
    pub const fn copy(nsid: u32, lba: u64, ranges_z: u8) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(NvmOpcode::COPY.0, nsid);
        entry.cdw10 = lba as u32;
        entry.cdw11 = (lba >> 32) as u32;
        entry.cdw12 = ranges_z as u32;
        entry
    }
}

/// One entry of the Autonomous Power State Transition table, 8 bytes (§5.21.1.12, Figure 277).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct ApstEntry(pub u64);

impl ApstEntry {
    /// A transition to non-operational state `state` after `idle_ms` (24 bits) without I/O.
    pub const fn new(state: u8, idle_ms: u32) -> Self {
        Self((state as u64 & 0x1f) << 3 | (idle_ms as u64 & 0xff_ffff) << 8)
    }

    /// ITPS: the state to go to.
    pub const fn state(self) -> u8 {
        (self.0 >> 3) as u8 & 0x1f
    }

    /// ITPT: milliseconds without I/O before that; 0 is no transition.
    pub const fn idle_ms(self) -> u32 {
        (self.0 >> 8) as u32 & 0xff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let range = DatasetRange { attributes: 0, blocks: 0x0102_0304, lba: 0x1122 };
        assert_eq!(range.as_bytes(), [0, 0, 0, 0, 4, 3, 2, 1, 0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        let copy = CopyRange::new(0x0a0b, 0x1234);
        assert_eq!(copy.as_bytes()[8..18], [0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 0x34, 0x12]);
        assert!(copy.as_bytes()[18..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn dwords() {
        let zeroes = Nvm::write_zeroes(1, 1 << 33, 7, true);
        assert_eq!((zeroes.opcode, zeroes.lba(), zeroes.cdw12), (8, 1 << 33, 7 | 1 << 25));
        let trim = Nvm::deallocate(2, 3);
        assert_eq!((trim.opcode, trim.nsid, trim.cdw10, trim.cdw11), (9, 2, 3, 4));
        let copy = Nvm::copy(1, 1 << 32 | 5, 2);
        assert_eq!((copy.opcode, copy.cdw10, copy.cdw11, copy.cdw12), (0x19, 5, 1, 2));
        let entry = ApstEntry::new(4, 100);
        assert_eq!((entry.0, entry.state(), entry.idle_ms()), (0x6420, 4, 100));
    }
}
