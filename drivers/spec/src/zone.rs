//! Zoned namespaces (NVM Express Zoned Namespace Command Set Specification 1.1).

use crate::open::open_enum;
use crate::{Admin, Cns, NvmOpcode, SubmissionEntry};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

open_enum! {
    /// CSI: Command Set Identifier (Base Specification 2.0, Figure 274).
    pub CommandSet: u8 {
        /// NVM Command Set.
        NVM = 0, "NVM";
        /// Key Value Command Set.
        KEY_VALUE = 1, "Key Value";
        /// Zoned Namespace Command Set.
        ZONED = 2, "Zoned Namespace";
    }
}

impl CommandSet {
    /// The command set that a Namespace Identification Descriptor list names (descriptor type 4h; Base
    /// Specification 2.0, Figure 277), or `None` where it names none.
    pub fn of_descriptors(mut list: &[u8]) -> Option<Self> {
        while let [kind, length, _, _, rest @ ..] = list {
            let (value, behind) = rest.split_at_checked(usize::from(*length))?;
            match (*kind, *length, value) {
                (_, 0, _) => return None,
                (4, 1, [set]) => return Some(Self(*set)),
                _ => list = behind,
            }
        }
        None
    }
}

open_enum! {
    /// ZS: what a zone is to writes (Figure 37).
    pub ZoneState: u8 {
        /// Nothing is written.
        EMPTY = 0x1, "empty";
        /// Opened by a write.
        IMPLICITLY_OPENED = 0x2, "implicitly opened";
        /// Opened by the host.
        EXPLICITLY_OPENED = 0x3, "explicitly opened";
        /// Written in part, and not open.
        CLOSED = 0x4, "closed";
        /// May be read alone, for ever.
        READ_ONLY = 0xd, "read only";
        /// Written to its end, or finished.
        FULL = 0xe, "full";
        /// Not to be read or written any more.
        OFFLINE = 0xf, "offline";
    }
}

open_enum! {
    /// ZSA: Zone Send Action, what Zone Management Send does (Figure 43).
    pub ZoneAction: u8 {
        /// Close Zone.
        CLOSE = 0x01, "Close Zone";
        /// Finish Zone.
        FINISH = 0x02, "Finish Zone";
        /// Open Zone.
        OPEN = 0x03, "Open Zone";
        /// Reset Zone: what it holds is lost.
        RESET = 0x04, "Reset Zone";
        /// Offline Zone, for ever.
        OFFLINE = 0x05, "Offline Zone";
    }
}

/// LBAFE: what a format has beyond its LBAF (Figure 49).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ZonedLbaFormat {
    /// ZSZE: blocks from a zone's start to the next one's.
    pub zone_blocks: u64,
    /// ZDES: bytes of a zone descriptor extension, in units of 64.
    pub extension_64b: u8,
    reserved9: [u8; 7],
}

/// Identify Namespace of the Zoned Namespace Command Set, CNS 05h with CSI 2, 4,096 bytes (Figure 48).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ZonedNamespaceIdentity {
    /// ZOC: bit 0 a zone's capacity may change, bit 1 zones may be finished by the controller.
    pub characteristics: u16,
    /// OZCS: bit 0 a read may cross zones.
    pub optional: u16,
    /// MAR: most active zones, zero-based; all ones is no limit.
    pub active_max_z: u32,
    /// MOR: most open zones, zero-based; all ones is no limit.
    pub open_max_z: u32,
    /// RRL: seconds after which a zone should be reset; 0 is not said.
    pub reset_limit_s: u32,
    /// FRL: seconds after which an open zone should be finished; 0 is not said.
    pub finish_limit_s: u32,
    reserved20: [u8; 2796],
    /// LBAFE0 onward, by LBA format.
    pub formats: [ZonedLbaFormat; 64],
    /// Vendor specific.
    pub vendor_specific: [u8; 256],
}

const _: () = assert!(size_of::<ZonedNamespaceIdentity>() == 4096);
const _: () = assert!(core::mem::offset_of!(ZonedNamespaceIdentity, formats) == 2816);

impl ZonedNamespaceIdentity {
    /// OZCS bit 0: a read may go beyond the zone that it begins in.
    pub const fn reads_cross_zones(&self) -> bool {
        self.optional & 1 != 0
    }
}

/// Zones from a zero-based limit (MAR, MOR); `None` is no limit.
pub const fn zones_max(zero_based: u32) -> Option<u32> {
    zero_based.checked_add(1)
}

/// One zone, 64 bytes (Figure 37).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ZoneDescriptor {
    /// ZT in bits 3:0; 2 is "sequential write required".
    pub kind: u8,
    /// ZS in bits 7:4.
    pub state_4: u8,
    /// ZA: bit 0 finished by the controller, bits 1 and 2 finish and reset recommended.
    pub attributes: u8,
    /// ZAI.
    pub attributes_information: u8,
    reserved4: u32,
    /// ZCAP: blocks from its start that may be written.
    pub capacity_blocks: u64,
    /// ZSLBA: its first block.
    pub start: u64,
    /// WP: the block that is written next; not valid where the zone is full, read only or offline.
    pub write_pointer: u64,
    reserved32: [u64; 4],
}

const _: () = assert!(size_of::<ZoneDescriptor>() == 64);

impl ZoneDescriptor {
    /// A zone that has to be written in sequence (ZT 2).
    pub const fn sequential(
        state: ZoneState,
        start: u64,
        capacity_blocks: u64,
        write_pointer: u64,
    ) -> Self {
        Self {
            kind: 2,
            state_4: state.0 << 4,
            attributes: 0,
            attributes_information: 0,
            reserved4: 0,
            capacity_blocks,
            start,
            write_pointer,
            reserved32: [0; 4],
        }
    }

    /// ZS.
    pub const fn state(&self) -> ZoneState {
        ZoneState(self.state_4 >> 4)
    }
}

/// Bytes of a zone report before its first descriptor; NZ, a count of 64 bits, stands first (Figure 36).
pub const ZONE_REPORT_HEADER_BYTES: usize = 64;

/// Builders for the commands of zoned namespaces; data addresses and CID are left zero.
pub struct Zoned;

impl Zoned {
    /// Identify with a command set in CDW11 (Base Specification 2.0, §5.17).
    pub const fn identify(cns: Cns, set: CommandSet, nsid: u32) -> SubmissionEntry {
        let mut entry = Admin::identify(cns, nsid);
        entry.cdw11 = (set.0 as u32) << 24;
        entry
    }

    /// Zone Management Receive that reports zones in any state from the one of `lba` on (§3.4.2): as many as
    /// `bytes` hold, which NZ then counts (partial report).
    pub const fn report(nsid: u32, lba: u64, bytes: u32) -> SubmissionEntry {
        let mut entry = Self::at(NvmOpcode::ZONE_MANAGEMENT_RECEIVE, nsid, lba);
        entry.cdw12 = (bytes / 4).saturating_sub(1);
        entry.cdw13 = 1 << 16;
        entry
    }

    /// Zone Management Send on the zone that begins at `start` (§3.4.3).
    pub const fn manage(nsid: u32, start: u64, action: ZoneAction) -> SubmissionEntry {
        let mut entry = Self::at(NvmOpcode::ZONE_MANAGEMENT_SEND, nsid, start);
        entry.cdw13 = action.0 as u32;
        entry
    }

    /// Zone Management Send on all zones that the action concerns (Select All).
    pub const fn manage_all(nsid: u32, action: ZoneAction) -> SubmissionEntry {
        let mut entry = Self::manage(nsid, 0, action);
        entry.cdw13 |= 1 << 8;
        entry
    }

    /// Zone Append to the zone that begins at `start` (§3.4.1). Where the data went is in the completion's
    /// first two dwords.
    pub const fn append(nsid: u32, start: u64, blocks_z: u16) -> SubmissionEntry {
        SubmissionEntry::io(NvmOpcode::ZONE_APPEND, nsid, start, blocks_z)
    }

    const fn at(opcode: NvmOpcode, nsid: u32, lba: u64) -> SubmissionEntry {
        SubmissionEntry::io(opcode, nsid, lba, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let zone = ZoneDescriptor::sequential(ZoneState::FULL, 0x0102, 0x0a0b, 0x0304);
        let bytes = zone.as_bytes();
        assert_eq!(bytes[..8], [2, 0xe0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[8], bytes[9], bytes[16], bytes[17]), (0x0b, 0x0a, 2, 1));
        assert_eq!((bytes[24], bytes[25], zone.state()), (4, 3, ZoneState::FULL));
        let mut page = [0_u8; 4096];
        page[2] = 1;
        page[4..12].copy_from_slice(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        page[2816 + 16 + 1] = 0x10;
        page[2816 + 16 + 8] = 2;
        let page = ZonedNamespaceIdentity::read_from_bytes(&page).unwrap();
        assert!(page.reads_cross_zones());
        assert_eq!((zones_max(page.active_max_z), zones_max(page.open_max_z)), (Some(2), None));
        assert_eq!((page.formats[1].zone_blocks, page.formats[1].extension_64b), (0x1000, 2));
    }

    #[test]
    fn dwords() {
        let identify = Zoned::identify(Cns::SET_NAMESPACE, CommandSet::ZONED, 3);
        assert_eq!((identify.nsid, identify.cdw10, identify.cdw11), (3, 5, 2 << 24));
        let report = Zoned::report(1, 1 << 32 | 7, 4096);
        assert_eq!((report.opcode, report.cdw10, report.cdw11), (0x7a, 7, 1));
        assert_eq!((report.cdw12, report.cdw13), (1023, 1 << 16));
        let reset = Zoned::manage(1, 1 << 33, ZoneAction::RESET);
        assert_eq!((reset.opcode, reset.lba(), reset.cdw12, reset.cdw13), (0x79, 1 << 33, 0, 4));
        assert_eq!(Zoned::manage_all(1, ZoneAction::FINISH).cdw13, 0x102);
        let append = Zoned::append(1, 4096, 7);
        assert_eq!((append.opcode, append.lba(), append.cdw12), (0x7d, 4096, 7));
    }

    #[test]
    fn the_command_set_stands_among_other_descriptors() {
        let mut list = [0_u8; 64];
        list[..2].copy_from_slice(&[3, 16]);
        assert_eq!(CommandSet::of_descriptors(&list), None, "the UUID alone");
        list[20..25].copy_from_slice(&[4, 1, 0, 0, 2]);
        assert_eq!(CommandSet::of_descriptors(&list), Some(CommandSet::ZONED));
        list[1] = 255;
        assert_eq!(CommandSet::of_descriptors(&list), None, "a length past the list's end");
        assert_eq!(CommandSet::of_descriptors(&[4, 1, 0]), None);
    }
}
