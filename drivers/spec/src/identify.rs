//! Identify pages (§5.15.2).

use crate::Version;
use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identify Controller, CNS 01h, 4,096 bytes (§5.15.2.2, Figure 247).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControllerIdentity {
    /// VID: PCI vendor.
    pub vendor: u16,
    /// SSVID: PCI subsystem vendor.
    pub subsystem_vendor: u16,
    /// SN: serial number, ASCII padded with spaces.
    pub serial: [u8; 20],
    /// MN: model number, ASCII padded with spaces.
    pub model: [u8; 40],
    /// FR: firmware revision, ASCII padded with spaces.
    pub firmware: [u8; 8],
    /// RAB: recommended arbitration burst, a power of two.
    pub arbitration_burst_log2: u8,
    /// IEEE: the vendor's OUI.
    pub oui: [u8; 3],
    /// CMIC: multi-path and sharing; bit 1 more than one controller.
    pub multipath: u8,
    /// MDTS: largest transfer, least memory pages shifted left by this; 0 is no limit.
    pub transfer_log2_max: u8,
    /// CNTLID.
    pub controller_id: u16,
    /// VER, as in register VS; 0 before 1.2.
    pub version: u32,
    /// RTD3R: microseconds to resume from D3.
    pub resume_us: u32,
    /// RTD3E: microseconds to enter D3, the bound on a shutdown; 0 is not said.
    pub shutdown_us: u32,
    /// OAES: optional asynchronous events.
    pub async_events: u32,
    /// CTRATT: attributes.
    pub attributes: u32,
    reserved100: [u8; 156],
    /// OACS: optional admin commands; bit 1 Format, bit 3 namespace management.
    pub admin_commands: u16,
    /// ACL: concurrent Aborts, zero-based.
    pub aborts_z: u8,
    /// AERL: outstanding async event requests, zero-based.
    pub async_requests_z: u8,
    /// FRMW: firmware updates.
    pub firmware_updates: u8,
    /// LPA: log page attributes.
    pub log_attributes: u8,
    /// ELPE: error log entries, zero-based.
    pub error_entries_z: u8,
    /// NPSS: power states, zero-based.
    pub power_states_z: u8,
    /// AVSCC: vendor admin command format.
    pub vendor_admin: u8,
    /// APSTA: bit 0, autonomous power state transitions.
    pub autonomous_power: u8,
    /// WCTEMP: warning temperature in kelvin.
    pub warning_kelvin: u16,
    /// CCTEMP: critical temperature in kelvin.
    pub critical_kelvin: u16,
    reserved270: [u8; 242],
    /// SQES: submission entry size, least in bits 3:0, most in bits 7:4, as powers of two.
    pub sq_entry_log2: u8,
    /// CQES: completion entry size, likewise.
    pub cq_entry_log2: u8,
    /// MAXCMD: most outstanding commands; 0 is not said.
    pub commands_max: u16,
    /// NN: highest valid NSID.
    pub namespaces: u32,
    /// ONCS: optional NVM commands; bit 0 Compare, bit 2 Dataset Management, bit 3 Write Zeroes.
    pub nvm_commands: u16,
    /// FUSES: fused operations.
    pub fused: u16,
    /// FNA: format attributes.
    pub format_attributes: u8,
    /// VWC: bit 0, a volatile write cache is there.
    pub write_cache: u8,
    /// AWUN: atomic write unit, zero-based blocks.
    pub atomic_write_z: u16,
    /// AWUPF: atomic write unit at power fail, zero-based blocks.
    pub atomic_power_fail_z: u16,
    /// NVSCC: vendor NVM command format.
    pub vendor_nvm: u8,
    /// NWPC: namespace write protection.
    pub write_protection: u8,
    /// ACWU: atomic compare and write unit, zero-based blocks.
    pub atomic_compare_z: u16,
    /// OCFS: formats of the Copy command's ranges, one bit each (2.0).
    pub copy_formats: u16,
    /// SGLS: scatter gather lists; bits 1:0 say whether they may be used.
    pub sgl: u32,
    reserved540: [u8; 228],
    /// SUBNQN: the subsystem's qualified name, NUL-terminated.
    pub subsystem_nqn: [u8; 256],
    reserved1024: [u8; 1024],
    /// PSD0 to PSD31: power state descriptors, `power_states_z + 1` of them used.
    pub power_states: [PowerStateDescriptor; 32],
    /// Vendor specific.
    pub vendor_specific: [u8; 1024],
}

const _: () = assert!(size_of::<ControllerIdentity>() == 4096);
const _: () = assert!(core::mem::offset_of!(ControllerIdentity, admin_commands) == 256);
const _: () = assert!(core::mem::offset_of!(ControllerIdentity, sq_entry_log2) == 512);
const _: () = assert!(core::mem::offset_of!(ControllerIdentity, sgl) == 536);
const _: () = assert!(core::mem::offset_of!(ControllerIdentity, subsystem_nqn) == 768);
const _: () = assert!(core::mem::offset_of!(ControllerIdentity, power_states) == 2048);

impl ControllerIdentity {
    /// MDTS in bytes for a controller whose least memory page is `page_bytes_min`, or `None` when
    /// the controller names no limit.
    pub const fn transfer_bytes_max(&self, page_bytes_min: u64) -> Option<u64> {
        match self.transfer_log2_max {
            0 => None,
            // A shift that leaves 64 bits is no limit that any command could reach.
            log2 if log2 as u32 > page_bytes_min.leading_zeros() => None,
            log2 => Some(page_bytes_min << log2),
        }
    }

    /// ONCS, as flags.
    pub const fn optional_commands(&self) -> OptionalCommands {
        OptionalCommands::from_bits(self.nvm_commands)
    }

    /// OACS, as flags.
    pub const fn optional_admin_commands(&self) -> OptionalAdminCommands {
        OptionalAdminCommands::from_bits(self.admin_commands)
    }

    /// The power states that exist, from state 0 on.
    pub fn power_states(&self) -> &[PowerStateDescriptor] {
        let count = usize::from(self.power_states_z) + 1;
        self.power_states.get(..count).unwrap_or(&self.power_states)
    }

    /// The version that the controller names.
    pub const fn version(&self) -> Version {
        Version::from_bits(self.version)
    }
}

/// ONCS: the optional NVM commands (§5.15.2.2; Verify from 1.4, Copy from 2.0 on).
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct OptionalCommands {
    /// Compare.
    pub compare: bool,
    /// Write Uncorrectable.
    pub write_uncorrectable: bool,
    /// Dataset Management.
    pub dataset_management: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Save and Select of features.
    pub save_select: bool,
    /// Reservations.
    pub reservations: bool,
    /// The Timestamp feature.
    pub timestamp: bool,
    /// Verify.
    pub verify: bool,
    /// Copy.
    pub copy: bool,
    #[bits(7)]
    __: u8,
}

/// OACS: the optional admin commands (§5.15.2.2).
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct OptionalAdminCommands {
    /// Security Send and Receive.
    pub security: bool,
    /// Format NVM.
    pub format: bool,
    /// Firmware Commit and Image Download.
    pub firmware: bool,
    /// Namespace Management and Attachment.
    pub namespace_management: bool,
    /// Device Self-test.
    pub self_test: bool,
    /// Directives.
    pub directives: bool,
    /// NVMe-MI Send and Receive.
    pub management_interface: bool,
    /// Virtualization Management.
    pub virtualization: bool,
    /// Doorbell Buffer Config.
    pub doorbell_buffer: bool,
    /// Get LBA Status.
    pub lba_status: bool,
    #[bits(6)]
    __: u8,
}

/// One power state, 32 bytes (Figure 248).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PowerStateDescriptor {
    /// MP: most power, in 0.01 W, or 0.0001 W when bit 0 of `flags` is set.
    pub power_max: u16,
    reserved2: u8,
    /// MXPS in bit 0, NOPS (non-operational) in bit 1.
    pub flags: u8,
    /// ENLAT: microseconds to enter.
    pub entry_us: u32,
    /// EXLAT: microseconds to leave.
    pub exit_us: u32,
    rest: [u8; 20],
}

const _: () = assert!(size_of::<PowerStateDescriptor>() == 32);

impl PowerStateDescriptor {
    /// MP in microwatts; 0 is not said.
    pub const fn power_uw_max(&self) -> u32 {
        let unit_uw = if self.flags & 1 == 0 { 10_000 } else { 100 };
        self.power_max as u32 * unit_uw
    }

    /// NOPS: no I/O is processed in this state.
    pub const fn is_non_operational(&self) -> bool {
        self.flags & 1 << 1 != 0
    }
}

/// LBAF: one LBA format (Figure 246).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: metadata bytes per block.
    pub metadata_bytes: u16,
    /// LBADS: block size as a power of two; below 9 the format is not available.
    pub data_log2: u8,
    /// RP: relative performance in bits 1:0, 0 is best.
    pub performance: u8,
}

/// Identify Namespace, CNS 00h, 4,096 bytes (§5.15.2.1, Figure 245).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NamespaceIdentity {
    /// NSZE: size in blocks; 0 is an inactive namespace.
    pub blocks: u64,
    /// NCAP: blocks that may be allocated at once.
    pub capacity_blocks: u64,
    /// NUSE: blocks that are allocated.
    pub used_blocks: u64,
    /// NSFEAT: bit 0 thin provisioning, bit 2 deallocated error, bit 4 NPWG and its like are valid.
    pub features: u8,
    /// NLBAF: number of LBA formats, zero-based.
    pub formats_z: u8,
    /// FLBAS: format in use in bits 3:0 (and 6:5 from 2.0), metadata at the data's end in bit 4.
    pub format: u8,
    /// MC: metadata capabilities.
    pub metadata: u8,
    /// DPC: protection capabilities.
    pub protection_capabilities: u8,
    /// DPS: protection in use; type in bits 2:0.
    pub protection: u8,
    /// NMIC: bit 0, shared between controllers.
    pub sharing: u8,
    /// RESCAP: reservations.
    pub reservations: u8,
    /// FPI: format progress.
    pub format_progress: u8,
    /// DLFEAT: what deallocated blocks read as.
    pub deallocate: u8,
    /// NAWUN, NAWUPF, NACWU: atomic units, zero-based blocks.
    pub atomic_z: [u16; 3],
    /// NABSN, NABO, NABSPF: atomic boundaries.
    pub atomic_boundary: [u16; 3],
    /// NOIOB: optimal I/O boundary in blocks; 0 is none.
    pub optimal_boundary: u16,
    /// NVMCAP: bytes of media, low and high halves.
    pub media_bytes: [u64; 2],
    /// NPWG: preferred write granularity, zero-based blocks.
    pub write_granularity_z: u16,
    /// NPWA: preferred write alignment, zero-based blocks.
    pub write_alignment_z: u16,
    /// NPDG: preferred deallocate granularity, zero-based blocks.
    pub deallocate_granularity_z: u16,
    /// NPDA: preferred deallocate alignment, zero-based blocks.
    pub deallocate_alignment_z: u16,
    /// NOWS: optimal write size, zero-based blocks.
    pub optimal_write_z: u16,
    /// MSSRL: most blocks in one source range of a Copy (2.0).
    pub copy_range_blocks_max: u16,
    /// MCL: most blocks that one Copy moves.
    pub copy_blocks_max: u32,
    /// MSRC: most source ranges of a Copy, zero-based.
    pub copy_ranges_z: u8,
    reserved81: [u8; 23],
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF0 onward: 16 formats up to 1.4, 64 from 2.0 on.
    pub formats: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor_specific: [u8; 3712],
}

const _: () = assert!(size_of::<NamespaceIdentity>() == 4096);
const _: () = assert!(core::mem::offset_of!(NamespaceIdentity, optimal_boundary) == 46);
const _: () = assert!(core::mem::offset_of!(NamespaceIdentity, copy_blocks_max) == 76);
const _: () = assert!(core::mem::offset_of!(NamespaceIdentity, nguid) == 104);
const _: () = assert!(core::mem::offset_of!(NamespaceIdentity, formats) == 128);

impl NamespaceIdentity {
    /// The LBA format in use, or `None` when FLBAS names one beyond those that exist.
    pub fn format_in_use(&self) -> Option<LbaFormat> {
        self.formats.get(self.format_index()?).copied()
    }

    /// The index of that format.
    pub fn format_index(&self) -> Option<usize> {
        let low = self.format & 0xf;
        // Bits 6:5 extend the index only where more than 16 formats exist (2.0, NLBAF).
        let index = if self.formats_z > 15 { low | (self.format >> 5 & 3) << 4 } else { low };
        (index <= self.formats_z).then_some(index.into())
    }
}

/// ELBAF: what a format has beyond its LBAF (NVM Command Set Specification 1.0, Figure 101).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct ExtendedLbaFormat(pub u32);

impl ExtendedLbaFormat {
    /// STS: bits of the storage tag.
    pub const fn storage_tag_bits(self) -> u8 {
        self.0 as u8 & 0x7f
    }

    /// PIF: 0 is the 16-bit guard, 1 the 32-bit guard, 2 the 64-bit guard.
    pub const fn guard_format(self) -> u8 {
        (self.0 >> 7) as u8 & 3
    }
}

/// Identify Namespace of the NVM Command Set, CNS 05h, CSI 0, 4,096 bytes (NVM Command Set
/// Specification 1.0, Figure 100).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NvmNamespaceIdentity {
    /// LBSTM: bits of the storage tag that are checked.
    pub storage_tag_mask: u64,
    /// PIC: capabilities of protection information.
    pub protection_capabilities: u8,
    reserved9: [u8; 3],
    /// ELBAF0 onward.
    pub formats: [ExtendedLbaFormat; 64],
    rest: [u8; 3828],
}

const _: () = assert!(size_of::<NvmNamespaceIdentity>() == 4096);
const _: () = assert!(core::mem::offset_of!(NvmNamespaceIdentity, formats) == 12);

impl NvmNamespaceIdentity {
    /// What the format with this index has.
    pub fn format(&self, index: usize) -> Option<ExtendedLbaFormat> {
        self.formats.get(index).copied()
    }
}

/// An ASCII field as text: cut at the first NUL, without the spaces that pad it. Bytes that are not
/// printable ASCII are left to the caller, who gets `Err` with the trimmed bytes.
pub fn ascii_field(bytes: &[u8]) -> Result<&str, &[u8]> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let trimmed = bytes[..end].trim_ascii();
    if trimmed.iter().all(|byte| (0x20..0x7f).contains(byte)) {
        core::str::from_utf8(trimmed).map_err(|_| trimmed)
    } else {
        Err(trimmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_golden_offsets() {
        let mut page = [0u8; 4096];
        page[4..24].copy_from_slice(b"S4EVNF0M123456      ");
        page[24..33].copy_from_slice(b"Example 1");
        page[77] = 5;
        page[78..80].copy_from_slice(&7u16.to_le_bytes());
        page[80..84].copy_from_slice(&0x0001_0400u32.to_le_bytes());
        page[88..92].copy_from_slice(&8_000_000u32.to_le_bytes());
        page[263] = 4;
        page[512] = 0x66;
        page[516..520].copy_from_slice(&256u32.to_le_bytes());
        page[525] = 1;
        page[2048..2050].copy_from_slice(&850u16.to_le_bytes());
        let id = ControllerIdentity::read_from_bytes(&page).unwrap();
        assert_eq!(ascii_field(&id.serial), Ok("S4EVNF0M123456"));
        assert_eq!(ascii_field(&id.model), Ok("Example 1"));
        assert_eq!(id.transfer_bytes_max(4096), Some(131_072));
        assert_eq!(id.controller_id, 7);
        assert_eq!(id.version().minor(), 4);
        assert_eq!(id.shutdown_us, 8_000_000);
        assert_eq!((id.power_states_z, id.sq_entry_log2, id.namespaces), (4, 0x66, 256));
        assert_eq!(id.write_cache, 1);
        assert_eq!(id.power_states[0].power_max, 850);
        assert_eq!((id.power_states().len(), id.power_states[0].power_uw_max()), (5, 8_500_000));
        page[520..522].copy_from_slice(&0x0105u16.to_le_bytes());
        page[256..258].copy_from_slice(&0x0002u16.to_le_bytes());
        (page[263], page[2051]) = (255, 3);
        let id = ControllerIdentity::read_from_bytes(&page).unwrap();
        let commands = id.optional_commands();
        assert!(commands.compare() && commands.dataset_management() && commands.copy());
        assert!(!commands.verify() && !commands.write_zeroes());
        assert!(id.optional_admin_commands().format());
        assert_eq!(id.power_states().len(), 32, "no more than the page has");
        assert_eq!(id.power_states[0].power_uw_max(), 85_000);
        assert!(id.power_states[0].is_non_operational());
    }

    #[test]
    fn transfer_limit_never_overflows() {
        let mut id = ControllerIdentity::read_from_bytes(&[0u8; 4096]).unwrap();
        assert_eq!(id.transfer_bytes_max(4096), None);
        for log2 in 1..=255 {
            id.transfer_log2_max = log2;
            let bytes = id.transfer_bytes_max(4096);
            assert_eq!(bytes, (log2 < 52).then(|| 4096u64 << log2), "MDTS {log2}");
        }
    }

    #[test]
    fn namespace_golden_offsets() {
        let mut page = [0u8; 4096];
        page[0..8].copy_from_slice(&0x10000u64.to_le_bytes());
        page[25] = 1;
        page[26] = 1;
        page[130] = 9;
        page[132..136].copy_from_slice(&[8, 0, 12, 0]);
        let mut id = NamespaceIdentity::read_from_bytes(&page).unwrap();
        assert_eq!(id.blocks, 0x10000);
        let format = LbaFormat { metadata_bytes: 8, data_log2: 12, performance: 0 };
        assert_eq!(id.format_in_use(), Some(format));
        id.format = 2;
        assert_eq!(id.format_in_use(), None, "a format that does not exist");
        id.formats_z = 255;
        id.format = 0x6f;
        assert_eq!(
            id.format_in_use(),
            Some(LbaFormat { metadata_bytes: 0, data_log2: 0, performance: 0 })
        );
    }

    #[test]
    fn extended_formats() {
        let mut page = [0u8; 4096];
        page[16..20].copy_from_slice(&(2u32 << 7 | 5).to_le_bytes());
        let id = NvmNamespaceIdentity::read_from_bytes(&page).unwrap();
        let format = id.format(1).unwrap();
        assert_eq!((format.guard_format(), format.storage_tag_bits()), (2, 5));
        assert_eq!(id.format(0), Some(ExtendedLbaFormat(0)));
        assert_eq!(id.format(64), None);
    }

    #[test]
    fn text_fields_survive_odd_bytes() {
        assert_eq!(ascii_field(b"  a b \0junk"), Ok("a b"));
        assert_eq!(ascii_field(b""), Ok(""));
        assert_eq!(ascii_field(b"x\xff "), Err(&b"x\xff"[..]));
        assert_eq!(ascii_field(b"x\x1b[31m"), Err(&b"x\x1b[31m"[..]));
    }
}
