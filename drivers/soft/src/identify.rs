//! What the controller says it is (§5.15).

use crate::events::{ERRORS_KEPT, REQUESTS_MAX};
use crate::nvm::NSID;
use crate::optional::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX};
use crate::options::SoftOptions;
use nvpoll_spec::{
    CommandSet, ControllerIdentity, ExtendedLbaFormat, GuardFormat, IDENTIFY_BYTES, LbaFormat,
    NamespaceIdentity, NvmNamespaceIdentity, OptionalAdminCommands, OptionalCommands, Version,
    ZonedNamespaceIdentity,
};
use zerocopy::{FromZeros, IntoBytes};

/// Aborts that may be outstanding, ACL plus one. Each completes at once, so the limit is never met.
const ABORTS: u8 = 4;
/// Firmware revision.
pub(crate) const FIRMWARE: &[u8; 8] = b"1.0     ";
/// Model number, as `list` shows it.
const MODEL: &str = "nvpoll soft controller";
/// Warning and critical composite temperatures in kelvin.
pub(crate) const WARNING_KELVIN: u16 = 343;
const CRITICAL_KELVIN: u16 = 353;

/// Power states: MP in 0.01 W, MXPS and NOPS, ENLAT and EXLAT in microseconds. The last one is
/// non-operational. None of them changes how the device works.
pub(crate) const POWER_STATES: [(u16, u8, u32, u32); 3] =
    [(500, 0, 0, 0), (300, 0, 20, 20), (5, 1 << 1, 1000, 5000)];

/// One page that Identify returns, as the words that are stored in memory.
pub(crate) type Page = [u64; IDENTIFY_BYTES / 8];

/// Sets `field` to `text`, padded with spaces (§1.5).
fn pad<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, char) in field.iter_mut().zip(text.bytes()) {
        *byte = char;
    }
    field
}

fn page_of(structure: &impl IntoBytesPage, page: &mut Page) {
    page.as_mut_bytes().copy_from_slice(structure.bytes());
}

/// A structure of exactly one page.
trait IntoBytesPage {
    fn bytes(&self) -> &[u8];
}

impl IntoBytesPage for ControllerIdentity {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl IntoBytesPage for NvmNamespaceIdentity {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl IntoBytesPage for ZonedNamespaceIdentity {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl IntoBytesPage for NamespaceIdentity {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Identify Controller.
pub(crate) fn controller(options: &SoftOptions, page: &mut Page) {
    let mut id = ControllerIdentity::new_zeroed();
    // FFFFh is no vendor's: nobody takes this for a real drive's.
    (id.vendor, id.subsystem_vendor) = (0xffff, 0xffff);
    id.serial = pad(&options.serial);
    id.model = pad(MODEL);
    id.firmware = *FIRMWARE;
    // In units of the least memory page (§5.15.2.2); options are checked to leave one.
    id.transfer_log2_max = options.mdts_log2.saturating_sub(options.page_log2_min);
    id.version = Version::new().with_major(1).with_minor(4).into_bits();
    id.shutdown_us = 1_000_000;
    id.aborts_z = ABORTS - 1;
    id.async_requests_z = (REQUESTS_MAX - 1) as u8;
    // One slot, read-only; and Get Log Page takes long lengths and offsets (LPA bit 2).
    id.firmware_updates = 1 | 1 << 1;
    id.log_attributes = 1 << 2;
    id.error_entries_z = (ERRORS_KEPT - 1) as u8;
    id.warning_kelvin = WARNING_KELVIN;
    id.critical_kelvin = CRITICAL_KELVIN;
    (id.sq_entry_log2, id.cq_entry_log2) = (0x66, 0x44);
    id.namespaces = NSID;
    // Neither of the two where they would have to move metadata.
    let is_zoned = options.zoned.is_zoned();
    let copies = options.metadata.bytes == 0 && !is_zoned;
    let admin = OptionalAdminCommands::new().with_format(true).with_doorbell_buffer(options.shadow);
    id.admin_commands = admin.into_bits();
    id.nvm_commands = OptionalCommands::new()
        .with_compare(copies)
        .with_dataset_management(!is_zoned)
        .with_write_zeroes(!is_zoned)
        .with_verify(!is_zoned)
        .with_copy(copies)
        .into_bits();
    // Copy's ranges in format 0.
    id.copy_formats = copies.into();
    // A volatile write cache is there, and Flush takes the broadcast NSID (bits 2:1, 11b).
    id.write_cache = 1 | 3 << 1;
    // SGLs in I/O commands, of double words at their addresses (bits 1:0, 10b); data blocks alone.
    id.sgl = 2;
    for (byte, char) in id.subsystem_nqn.iter_mut().zip(nqn(options).bytes()) {
        *byte = char;
    }
    id.power_states_z = (POWER_STATES.len() - 1) as u8;
    id.autonomous_power = 1;
    for (state, (power_max, flags, entry_us, exit_us)) in
        id.power_states.iter_mut().zip(POWER_STATES)
    {
        (state.power_max, state.flags) = (power_max, flags);
        (state.entry_us, state.exit_us) = (entry_us, exit_us);
    }
    if options.metadata.guard == GuardFormat::Bits64 {
        // Extended LBA formats (CTRATT bit 15).
        id.attributes = 1 << 15;
    }
    page_of(&id, page);
}

/// A name in the form of §7.9 that is made from a UUID, so that no domain is claimed.
fn nqn(options: &SoftOptions) -> String {
    let uuid = format!("{:032x}", u128::from_be_bytes(identifier(options)));
    let part = |range: std::ops::Range<usize>| uuid.get(range).unwrap_or_default().to_owned();
    format!(
        "nqn.2014-08.org.nvmexpress:uuid:{}-{}-{}-{}-{}",
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32)
    )
}

/// Sixteen bytes that follow from the serial number: FNV-1a over it, 128 bits wide.
fn identifier(options: &SoftOptions) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    options.serial.bytes().fold(BASIS, hash).to_be_bytes()
}

/// Identify Namespace.
pub(crate) fn namespace(options: &SoftOptions, page: &mut Page) {
    let mut id = NamespaceIdentity::new_zeroed();
    let blocks = options.size_bytes / u64::from(options.lba_bytes);
    (id.blocks, id.capacity_blocks, id.used_blocks) = (blocks, blocks, blocks);
    // Deallocated blocks, of which there are those never written, read as zeroes.
    id.deallocate = 1;
    id.media_bytes = [options.size_bytes, 0];
    let metadata = &options.metadata;
    if options.zoned.is_zoned() {
        // No Copy, and no metadata.
    } else if metadata.bytes == 0 {
        (id.copy_range_blocks_max, id.copy_blocks_max) = (COPY_RANGE_BLOCKS_MAX, COPY_BLOCKS_MAX);
        id.copy_ranges_z = (COPY_RANGES_MAX - 1) as u8;
    } else {
        // FLBAS bit 4, and what MC, DPC and DPS say of the one format that there is.
        id.format = u8::from(metadata.interleaved) << 4;
        id.metadata = if metadata.interleaved { 1 } else { 1 << 1 };
        if let Some(kind) = metadata.protection.checked_sub(1) {
            id.protection_capabilities = 1 << kind | if metadata.first { 1 << 3 } else { 1 << 4 };
            id.protection = metadata.protection | u8::from(metadata.first) << 3;
        }
    }
    id.nguid = identifier(options);
    let data_log2 = options.lba_bytes.trailing_zeros() as u8;
    if let Some(format) = id.formats.first_mut() {
        *format = LbaFormat { metadata_bytes: metadata.bytes, data_log2, performance: 0 };
    }
    page_of(&id, page);
}

/// Identify Namespace of the NVM Command Set: the guard of the one format.
pub(crate) fn nvm_namespace(options: &SoftOptions, page: &mut Page) {
    let mut id = NvmNamespaceIdentity::new_zeroed();
    if let (GuardFormat::Bits64, Some(format)) = (options.metadata.guard, id.formats.first_mut()) {
        *format = ExtendedLbaFormat(2 << 7);
    }
    page_of(&id, page);
}

/// The active namespaces above `after`.
pub(crate) fn active_namespaces(after: u32, page: &mut Page) {
    page.fill(0);
    if let Some(first) = page.first_mut().filter(|_| after < NSID) {
        *first = NSID.into();
    }
}

/// The namespace's identification descriptors: the NGUID (type 2, 16 bytes) alone (Figure 249).
pub(crate) fn descriptors(options: &SoftOptions, page: &mut Page) {
    page.fill(0);
    let bytes = page.as_mut_bytes();
    for (byte, value) in bytes.iter_mut().zip([2, 16, 0, 0].into_iter().chain(identifier(options)))
    {
        *byte = value;
    }
    // And the command set (type 4, 1 byte), where there is a choice.
    if let Some(set) = bytes.get_mut(20..25).filter(|_| options.zoned.is_zoned()) {
        set.copy_from_slice(&[4, 1, 0, 0, CommandSet::ZONED.0]);
    }
}

/// Identify Namespace of the Zoned Namespace Command Set.
pub(crate) fn zoned_namespace(options: &SoftOptions, page: &mut Page) {
    let mut id = ZonedNamespaceIdentity::new_zeroed();
    // Zero-based, so that no limit, 0, becomes all ones.
    id.active_max_z = options.zoned.active_max.wrapping_sub(1);
    id.open_max_z = options.zoned.open_max.wrapping_sub(1);
    if let Some(format) = id.formats.first_mut() {
        format.zone_blocks = options.zoned.zone_bytes / u64::from(options.lba_bytes);
    }
    page_of(&id, page);
}
