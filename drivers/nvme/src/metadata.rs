//! Metadata and protection information: what a block has beside its data (§8.2, §8.3).
//!
//! Protection information is the controller's work unless the host is told to make it (`protect.rs`): PRACT
//! is set, so the controller makes the guard and the tags as it writes, and checks them as it reads. Where
//! it is all the metadata there is, nothing but data crosses the bus; otherwise the metadata does, beside
//! the data (MPTR) or behind each block in the same buffer.
//!
//! # What it does not do
//!
//! What is in the metadata beside protection information is not looked at: a write sends zeroes, or what an
//! earlier read of the same tag left there.
//! The 32-bit guard and storage tags of NVMe 2.0 are refused (`extended.rs`).

use crate::NvmeError;
use nvpoll_mem::DmaBuf;
use nvpoll_spec::{
    CHECK_GUARD, CHECK_REFERENCE, GuardFormat, NamespaceIdentity, NvmOpcode, PROTECTION_ACTION,
};
use std::fmt;

/// Bytes of protection information (§8.3, Figure 454).
const PROTECTION_BYTES: u16 = 8;

/// Where metadata is while it crosses the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataPlace {
    /// It does not: the controller makes it and strips it.
    Controller,
    /// In memory of its own.
    Separate,
    /// Behind each block's data, in the same buffer.
    Interleaved,
}

impl MetadataPlace {
    fn on_bus(interleaved: bool) -> Self {
        if interleaved { Self::Interleaved } else { Self::Separate }
    }
}

/// What a namespace's blocks have beside their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// MS: bytes a block.
    pub bytes: u16,
    /// Where they are.
    pub place: MetadataPlace,
    /// DPS: protection information of type 1, 2 or 3; 0 is none.
    pub protection: u8,
    /// DPS bit 3: it is the metadata's first bytes, not its last.
    pub first: bool,
    /// How long its guard is.
    pub guard: GuardFormat,
    /// FLBAS bit 4: what crosses the bus stands behind each block's data.
    interleaved: bool,
    /// The host makes and checks it.
    pub by_host: bool,
}

impl Metadata {
    /// What an Identify Namespace page says, or `None` for blocks of data alone.
    ///
    /// # Errors
    /// The reason, where it is not one that the driver moves.
    pub(crate) fn new(page: &NamespaceIdentity, bytes: u16) -> Result<Option<Self>, String> {
        const EXTENDED: u8 = 1 << 4;
        const FIRST: u8 = 1 << 3;
        let protection = page.protection & 7;
        if protection > 3 {
            return Err(format!(
                "has protection information of type {protection}; 1 to 3 are driven"
            ));
        }
        if bytes == 0 && protection == 0 {
            return Ok(None);
        }
        if protection != 0 && bytes < PROTECTION_BYTES {
            return Err(format!(
                "has protection information and {bytes} bytes of metadata, of which it needs {PROTECTION_BYTES}; its Identify page is not valid"
            ));
        }
        if !bytes.is_multiple_of(8) {
            return Err(format!(
                "has {bytes} bytes of metadata a block; multiples of 8 are driven, so choose another LBA format (nvme format erases the drive)"
            ));
        }
        let interleaved = page.format & EXTENDED != 0;
        let place = match protection != 0 && bytes == PROTECTION_BYTES {
            true => MetadataPlace::Controller,
            false => MetadataPlace::on_bus(interleaved),
        };
        let (first, guard) = (page.protection & FIRST != 0, GuardFormat::Bits16);
        Ok(Some(Self { bytes, place, protection, first, guard, interleaved, by_host: false }))
    }

    /// The same with another guard than the usual one.
    ///
    /// # Errors
    /// The reason, where the metadata has no room for it.
    pub(crate) fn with_guard(self, guard: GuardFormat) -> Result<Self, String> {
        let (bytes, tuple) = (usize::from(self.bytes), guard.tuple_bytes());
        if bytes < tuple {
            return Err(format!(
                "has protection information with a {guard} and {bytes} bytes of metadata, of which it needs {tuple}; its Identify page is not valid"
            ));
        }
        let place = match bytes == tuple {
            true => MetadataPlace::Controller,
            false => MetadataPlace::on_bus(self.interleaved),
        };
        Ok(Self { guard, place, ..self })
    }

    /// The same where the host makes and checks protection information, which then crosses the bus;
    /// `None` where there is none.
    pub(crate) fn protected_by_host(self) -> Option<Self> {
        let place = MetadataPlace::on_bus(self.interleaved);
        (self.protection != 0).then_some(Self { place, by_host: true, ..self })
    }

    /// Bytes that each block adds to the data's buffer.
    pub(crate) fn interleaved_bytes(self) -> u32 {
        if self.place == MetadataPlace::Interleaved { self.bytes.into() } else { 0 }
    }

    /// Bytes that each block needs in memory of its own.
    pub(crate) fn separate_bytes(self) -> usize {
        if self.place == MetadataPlace::Separate { self.bytes.into() } else { 0 }
    }

    /// CDW3 in the upper half of a word, what is added to CDW12, and CDW14, of a read or write from block `lba` on. The reference tag
    /// of types 1 and 2 counts blocks, type 3 has none to check (§8.3.1.5). What the host makes the
    /// controller checks as it writes; what the host checks the controller need not.
    fn words(self, opcode: NvmOpcode, lba: u64, checks: bool) -> (u64, u64, u64) {
        let action = if self.by_host { 0 } else { PROTECTION_ACTION };
        let checks = if self.by_host { opcode == NvmOpcode::WRITE } else { checks };
        let check = |bits: u32| u64::from(action | if checks { bits } else { 0 });
        match self.protection {
            0 => (0, 0, 0),
            3 => (0, check(CHECK_GUARD), 0),
            _ => {
                let reference = lba & self.guard.reference_mask();
                let high = reference >> 32 << 32;
                (high, check(CHECK_GUARD | CHECK_REFERENCE), reference & 0xffff_ffff)
            }
        }
    }
}

impl fmt::Display for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            MetadataPlace::Controller => "made and stripped by the controller",
            MetadataPlace::Separate => "in memory of its own",
            MetadataPlace::Interleaved => "behind each block's data",
        };
        write!(f, "{} bytes a block, {place}", self.bytes)?;
        match self.protection {
            0 => Ok(()),
            kind => {
                let by = if self.by_host { "host" } else { "controller" };
                let guard = match self.guard {
                    GuardFormat::Bits16 => String::new(),
                    other => format!(" with a {other}"),
                };
                write!(f, "; protection information of type {kind}{guard}, by the {by}")
            }
        }
    }
}

/// One queue pair's metadata memory, and what its commands say of it.
#[derive(Debug)]
pub(crate) struct MetadataLane {
    metadata: Metadata,
    /// Protection information is checked as blocks are read.
    checks: bool,
    memory: Option<DmaBuf>,
    /// Bytes from one tag's metadata to the next's: a power of two, so that none crosses a border
    /// at which addresses may jump.
    pub stride: usize,
}

impl MetadataLane {
    /// Memory for `tags` I/Os of `blocks` blocks each, got by `allocate`.
    pub fn new(
        metadata: Metadata,
        checks: bool,
        tags: u16,
        blocks: u32,
        allocate: impl FnOnce(usize) -> Result<DmaBuf, NvmeError>,
    ) -> Result<Self, NvmeError> {
        let stride = (blocks as usize * metadata.separate_bytes()).next_power_of_two();
        let memory = match metadata.place {
            MetadataPlace::Separate => Some(allocate(usize::from(tags) * stride)?),
            _ => None,
        };
        Ok(Self { metadata, checks, memory, stride })
    }

    /// CDW3 in the upper half of a word, MPTR, and what is added to CDW12 and CDW14, of a command on block `first` of `tag`'s I/O,
    /// which goes to or comes from `lba`.
    pub fn words(&self, opcode: NvmOpcode, tag: u16, first: u32, lba: u64) -> [u64; 4] {
        let offset =
            usize::from(tag) * self.stride + first as usize * self.metadata.separate_bytes();
        let mptr = self.memory.as_ref().map_or(0, |memory| memory.iova(offset));
        let (cdw3, cdw12, cdw14) = self.metadata.words(opcode, lba, self.checks);
        [cdw3, mptr, cdw12, cdw14]
    }

    /// The memory, of which a clone is to be kept until the device cannot reach it any more.
    pub fn memory(&self) -> Option<&DmaBuf> {
        self.memory.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn page(extended: bool, protection: u8) -> NamespaceIdentity {
        let mut page = NamespaceIdentity::new_zeroed();
        page.format = u8::from(extended) << 4;
        page.protection = protection;
        page
    }

    #[test]
    fn what_crosses_the_bus() {
        let place = |extended, protection, bytes| {
            Metadata::new(&page(extended, protection), bytes).map(|found| found.map(|m| m.place))
        };
        assert_eq!(place(false, 0, 0), Ok(None));
        assert_eq!(place(false, 0, 8), Ok(Some(MetadataPlace::Separate)));
        assert_eq!(place(true, 0, 64), Ok(Some(MetadataPlace::Interleaved)));
        for protection in 1..=3 {
            assert_eq!(place(true, protection, 8), Ok(Some(MetadataPlace::Controller)));
            assert_eq!(place(false, protection, 16), Ok(Some(MetadataPlace::Separate)));
        }
        assert!(place(false, 0, 4).unwrap_err().contains("multiples of 8"));
        assert!(place(false, 1, 0).unwrap_err().contains("not valid"));
        assert!(place(false, 5, 8).unwrap_err().contains("type 5"));
        // DPS bit 3 says where in the metadata it stands, and is no type.
        assert_eq!(place(false, 9, 8), Ok(Some(MetadataPlace::Controller)));
    }

    #[test]
    fn commands_say_who_protects_and_which_reference() {
        let lba = 0x12_3456_789a;
        let words = |protection| {
            let metadata = Metadata::new(&page(false, protection), 8).unwrap().unwrap();
            metadata.words(NvmOpcode::READ, lba, true)
        };
        // PRINFO 1101b: PRACT, guard, reference; 1100b: PRACT, guard.
        assert_eq!(words(1), (0, 0b1101 << 26, 0x3456_789a));
        assert_eq!(words(2), (0, 0b1101 << 26, 0x3456_789a));
        assert_eq!(words(3), (0, 0b1100 << 26, 0));
        assert_eq!(words(0), (0, 0, 0));
        let one = Metadata::new(&page(false, 1), 8).unwrap().unwrap();
        assert_eq!(one.words(NvmOpcode::READ, lba, false), (0, 1 << 29, 0x3456_789a));
        // By the host: 0101b on a write, nothing on a read.
        let host = one.protected_by_host().unwrap();
        assert_eq!(host.place, MetadataPlace::Separate);
        assert_eq!(host.words(NvmOpcode::WRITE, lba, true), (0, 0b0101 << 26, 0x3456_789a));
        assert_eq!(host.words(NvmOpcode::READ, lba, true).1, 0);
        // The reference tag's upper 16 bits are in CDW3.
        let long = Metadata::new(&page(true, 1), 16).unwrap().unwrap();
        let long = long.with_guard(GuardFormat::Bits64).unwrap();
        assert_eq!(long.place, MetadataPlace::Controller);
        let high = 0xabcd_1234_5678_9abc;
        let words = long.words(NvmOpcode::READ, high, true);
        assert_eq!(words, (0x1234 << 32, 0b1101 << 26, 0x5678_9abc));
        assert!(one.with_guard(GuardFormat::Bits64).unwrap_err().contains("needs 16"));
        let none = Metadata::new(&page(false, 0), 8).unwrap().unwrap();
        assert_eq!(none.protected_by_host(), None);
    }
}
