//! Submission queue entries, opcodes and the codes that stand in them (§4.2, §5, §6).

use crate::open::open_enum;
use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

open_enum! {
    /// Opcode of an admin command (§5, Figure 139).
    pub AdminOpcode: u8 {
        /// Delete I/O Submission Queue (§5.6).
        DELETE_SQ = 0x00, "Delete I/O Submission Queue";
        /// Create I/O Submission Queue (§5.4).
        CREATE_SQ = 0x01, "Create I/O Submission Queue";
        /// Get Log Page (§5.14).
        GET_LOG_PAGE = 0x02, "Get Log Page";
        /// Delete I/O Completion Queue (§5.5).
        DELETE_CQ = 0x04, "Delete I/O Completion Queue";
        /// Create I/O Completion Queue (§5.3).
        CREATE_CQ = 0x05, "Create I/O Completion Queue";
        /// Identify (§5.15).
        IDENTIFY = 0x06, "Identify";
        /// Abort (§5.1).
        ABORT = 0x08, "Abort";
        /// Set Features (§5.21).
        SET_FEATURES = 0x09, "Set Features";
        /// Get Features (§5.13).
        GET_FEATURES = 0x0a, "Get Features";
        /// Asynchronous Event Request (§5.2).
        ASYNC_EVENT = 0x0c, "Asynchronous Event Request";
        /// Doorbell Buffer Config (§5.7).
        DOORBELL_BUFFER_CONFIG = 0x7c, "Doorbell Buffer Config";
        /// Format NVM (§5.23).
        FORMAT = 0x80, "Format NVM";
    }
}

open_enum! {
    /// Opcode of an NVM command (§6, Figure 346).
    pub NvmOpcode: u8 {
        /// Flush (§6.8).
        FLUSH = 0x00, "Flush";
        /// Write (§6.15).
        WRITE = 0x01, "Write";
        /// Read (§6.9).
        READ = 0x02, "Read";
        /// Write Uncorrectable (§6.16).
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        /// Compare (§6.6).
        COMPARE = 0x05, "Compare";
        /// Write Zeroes (§6.17).
        WRITE_ZEROES = 0x08, "Write Zeroes";
        /// Dataset Management (§6.7).
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        /// Verify (§6.14).
        VERIFY = 0x0c, "Verify";
        /// Copy (TP 4065; NVM Command Set 1.0, §3.2.2).
        COPY = 0x19, "Copy";
        /// Zone Management Send (Zoned Namespace Command Set 1.1, §3.4.3).
        ZONE_MANAGEMENT_SEND = 0x79, "Zone Management Send";
        /// Zone Management Receive (Zoned Namespace Command Set 1.1, §3.4.2).
        ZONE_MANAGEMENT_RECEIVE = 0x7a, "Zone Management Receive";
        /// Zone Append (Zoned Namespace Command Set 1.1, §3.4.1).
        ZONE_APPEND = 0x7d, "Zone Append";
    }
}

open_enum! {
    /// Controller or Namespace Structure: which page Identify returns (§5.15.1).
    pub Cns: u8 {
        /// Identify Namespace.
        NAMESPACE = 0x00, "Identify Namespace";
        /// Identify Controller.
        CONTROLLER = 0x01, "Identify Controller";
        /// Active Namespace ID list.
        ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
        /// Namespace Identification Descriptor list.
        DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        /// Identify Namespace of a command set; with CSI 0 the NVM Command Set's (2.0).
        NVM_NAMESPACE = 0x05, "Identify Namespace of the NVM Command Set";
        /// The same of the command set that CSI names: what zones are with CSI 2.
        SET_NAMESPACE = 0x05, "Identify Namespace of a command set";
        /// Identify Controller of the command set that CSI names.
        SET_CONTROLLER = 0x06, "Identify Controller of a command set";
    }
}

open_enum! {
    /// Feature Identifier (§5.21.1).
    pub FeatureId: u8 {
        /// Arbitration.
        ARBITRATION = 0x01, "Arbitration";
        /// Power Management.
        POWER_MANAGEMENT = 0x02, "Power Management";
        /// Temperature Threshold.
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        /// Error Recovery.
        ERROR_RECOVERY = 0x05, "Error Recovery";
        /// Volatile Write Cache.
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        /// Number of Queues.
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        /// Interrupt Coalescing.
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        /// Interrupt Vector Configuration.
        INTERRUPT_VECTOR = 0x09, "Interrupt Vector Configuration";
        /// Write Atomicity Normal.
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        /// Asynchronous Event Configuration.
        ASYNC_EVENTS = 0x0b, "Asynchronous Event Configuration";
        /// Autonomous Power State Transition.
        AUTONOMOUS_POWER = 0x0c, "Autonomous Power State Transition";
        /// Host Behavior Support (1.4; LBAFEE from 2.0 on).
        HOST_BEHAVIOR = 0x16, "Host Behavior Support";
    }
}

open_enum! {
    /// Log Page Identifier (§5.14.1).
    pub LogId: u8 {
        /// Error Information.
        ERROR = 0x01, "Error Information";
        /// SMART / Health Information.
        SMART = 0x02, "SMART / Health Information";
        /// Firmware Slot Information.
        FIRMWARE = 0x03, "Firmware Slot Information";
        /// Changed Namespace List.
        CHANGED_NAMESPACES = 0x04, "Changed Namespace List";
    }
}

/// One submission queue entry, 64 bytes (§4.2, Figures 104 and 105).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SubmissionEntry {
    /// OPC: an [`AdminOpcode`] or an [`NvmOpcode`], by the queue that it is put in.
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6; zero is unfused with PRPs.
    pub flags: u8,
    /// CID: command identifier, unique among the queue's outstanding commands.
    pub cid: u16,
    /// NSID: namespace, 0 where none is meant.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub cdw2: [u32; 2],
    /// MPTR: metadata's address.
    pub mptr: u64,
    /// PRP1: first page of the data.
    pub prp1: u64,
    /// PRP2: second page, or the PRP list's address.
    pub prp2: u64,
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dword 14.
    pub cdw14: u32,
    /// Command dword 15.
    pub cdw15: u32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);

impl SubmissionEntry {
    /// An NVM command on `blocks` logical blocks from `lba` (SLBA in CDW10 and 11, NLB zero-based
    /// in CDW12; §6.9, §6.15). The data's address and the CID are left zero.
    pub const fn io(opcode: NvmOpcode, nsid: u32, lba: u64, blocks_z: u16) -> Self {
        let mut entry = Self::zeroed(opcode.0, nsid);
        entry.cdw10 = lba as u32;
        entry.cdw11 = (lba >> 32) as u32;
        entry.cdw12 = blocks_z as u32;
        entry
    }

    /// The starting LBA of an NVM command: CDW11 and CDW10.
    pub const fn lba(&self) -> u64 {
        self.cdw10 as u64 | (self.cdw11 as u64) << 32
    }

    /// NLB of an NVM command, zero-based: the low half of CDW12.
    pub const fn blocks_z(&self) -> u16 {
        self.cdw12 as u16
    }

    /// The entry as the eight words that are stored in the queue.
    pub fn to_words(self) -> [u64; 8] {
        zerocopy::transmute!(self)
    }

    /// The entry that eight words from a queue hold.
    pub fn from_words(words: [u64; 8]) -> Self {
        zerocopy::transmute!(words)
    }

    pub(crate) const fn zeroed(opcode: u8, nsid: u32) -> Self {
        Self {
            opcode,
            flags: 0,
            cid: 0,
            nsid,
            cdw2: [0; 2],
            mptr: 0,
            prp1: 0,
            prp2: 0,
            cdw10: 0,
            cdw11: 0,
            cdw12: 0,
            cdw13: 0,
            cdw14: 0,
            cdw15: 0,
        }
    }
}

/// CDW10 of queue creation, and of the Number of Queues feature's halves: two 16-bit fields.
pub const fn queue_sizes(low: u16, high: u16) -> u32 {
    low as u32 | (high as u32) << 16
}

/// CDW10 of Format NVM (§5.23, Figure 328; LBAFU from 2.0 on).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FormatSettings {
    /// LBAF: the format's index, bits 3:0 of it.
    #[bits(4)]
    pub format_low: u8,
    /// MSET: metadata crosses the bus behind each block's data.
    pub metadata_interleaved: bool,
    /// PI: type of protection information, 0 to 3; 0 is none.
    #[bits(3)]
    pub protection: u8,
    /// PIL: protection information is the metadata's first bytes, not its last.
    pub protection_first: bool,
    /// SES: 0 no secure erase, 1 of user data, 2 cryptographic.
    #[bits(3)]
    pub secure_erase: u8,
    /// LBAFU: bits 5:4 of the format's index.
    #[bits(2)]
    pub format_high: u8,
    #[bits(18)]
    __: u32,
}

impl FormatSettings {
    /// The format with this index, 0 to 63.
    pub const fn with_format(self, index: u8) -> Self {
        self.with_format_low(index & 0xf).with_format_high(index >> 4 & 3)
    }

    /// The format's index.
    pub const fn format(self) -> u8 {
        self.format_low() | self.format_high() << 4
    }
}

/// Builders for the admin commands that nvpoll sends; data addresses and CID are left zero.
pub struct Admin;

impl Admin {
    /// Identify (§5.15): `cns` in CDW10.
    pub const fn identify(cns: Cns, nsid: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::IDENTIFY.0, nsid);
        entry.cdw10 = cns.0 as u32;
        entry
    }

    /// Get Log Page (§5.14) of `bytes` from the log's start, NUMDL zero-based in dwords.
    pub const fn get_log(log: LogId, nsid: u32, bytes: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::GET_LOG_PAGE.0, nsid);
        let dwords_z = (bytes / 4).saturating_sub(1);
        entry.cdw10 = log.0 as u32 | (dwords_z & 0xffff) << 16;
        entry.cdw11 = dwords_z >> 16;
        entry
    }

    /// Get Features (§5.13): the current value.
    pub const fn get_feature(feature: FeatureId, nsid: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::GET_FEATURES.0, nsid);
        entry.cdw10 = feature.0 as u32;
        entry
    }

    /// Set Features (§5.21): not saved across power cycles.
    pub const fn set_feature(feature: FeatureId, value: u32) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::SET_FEATURES.0, 0);
        entry.cdw10 = feature.0 as u32;
        entry.cdw11 = value;
        entry
    }

    /// Asynchronous Event Request (§5.2): completes when there is an event.
    pub const fn async_event() -> SubmissionEntry {
        SubmissionEntry::zeroed(AdminOpcode::ASYNC_EVENT.0, 0)
    }

    /// Abort (§5.1) of command `cid` of submission queue `sq`.
    pub const fn abort(sq: u16, cid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::ABORT.0, 0);
        entry.cdw10 = queue_sizes(sq, cid);
        entry
    }

    /// Doorbell Buffer Config (§5.7): the pages of the shadow doorbells and of the values at which a
    /// doorbell itself is to be written.
    pub const fn doorbell_buffer_config(shadow: u64, event_index: u64) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::DOORBELL_BUFFER_CONFIG.0, 0);
        entry.prp1 = shadow;
        entry.prp2 = event_index;
        entry
    }

    /// Create I/O Completion Queue (§5.3): contiguous, polled (no interrupt).
    pub const fn create_cq(qid: u16, entries_z: u16, address: u64) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::CREATE_CQ.0, 0);
        entry.prp1 = address;
        entry.cdw10 = queue_sizes(qid, entries_z);
        entry.cdw11 = 1;
        entry
    }

    /// [`create_cq`](Self::create_cq), with an interrupt by `vector` (IEN and IV in CDW11).
    pub const fn create_cq_interrupting(
        qid: u16,
        entries_z: u16,
        address: u64,
        vector: u16,
    ) -> SubmissionEntry {
        let mut entry = Self::create_cq(qid, entries_z, address);
        entry.cdw11 |= 1 << 1 | (vector as u32) << 16;
        entry
    }

    /// Create I/O Submission Queue (§5.4): contiguous, completing to `cq`.
    pub const fn create_sq(qid: u16, entries_z: u16, address: u64, cq: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::CREATE_SQ.0, 0);
        entry.prp1 = address;
        entry.cdw10 = queue_sizes(qid, entries_z);
        entry.cdw11 = 1 | (cq as u32) << 16;
        entry
    }

    /// Delete I/O Submission Queue (§5.6).
    pub const fn delete_sq(qid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::DELETE_SQ.0, 0);
        entry.cdw10 = qid as u32;
        entry
    }

    /// Format NVM (§5.23): what is on the namespace is lost.
    pub const fn format(nsid: u32, settings: FormatSettings) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::FORMAT.0, nsid);
        entry.cdw10 = settings.into_bits();
        entry
    }

    /// Delete I/O Completion Queue (§5.5).
    pub const fn delete_cq(qid: u16) -> SubmissionEntry {
        let mut entry = SubmissionEntry::zeroed(AdminOpcode::DELETE_CQ.0, 0);
        entry.cdw10 = qid as u32;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden bytes: a read of 8 blocks at LBA 0x1_2345_6789 of namespace 3.
    #[test]
    fn read_entry_bytes() {
        let mut entry = SubmissionEntry::io(NvmOpcode::READ, 3, 0x1_2345_6789, 7);
        entry.cid = 0xbeef;
        entry.prp1 = 0x1000_0000_2000;
        entry.prp2 = 0x3000;
        let mut bytes = [0u8; 64];
        bytes[0] = 0x02;
        bytes[2..4].copy_from_slice(&[0xef, 0xbe]);
        bytes[4] = 3;
        bytes[24..32].copy_from_slice(&0x1000_0000_2000u64.to_le_bytes());
        bytes[32..40].copy_from_slice(&0x3000u64.to_le_bytes());
        bytes[40..48].copy_from_slice(&[0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0]);
        bytes[48] = 7;
        assert_eq!(entry.as_bytes(), bytes);
        assert_eq!((entry.lba(), entry.blocks_z()), (0x1_2345_6789, 7));
        assert_eq!(SubmissionEntry::from_words(entry.to_words()), entry);
    }

    #[test]
    fn queue_creation_dwords() {
        let cq = Admin::create_cq(2, 255, 0x8000);
        assert_eq!((cq.opcode, cq.prp1, cq.cdw10, cq.cdw11), (5, 0x8000, 0x00ff_0002, 1));
        let interrupting = Admin::create_cq_interrupting(2, 255, 0x8000, 5);
        assert_eq!((interrupting.cdw10, interrupting.cdw11), (cq.cdw10, 3 | 5 << 16));
        let sq = Admin::create_sq(2, 255, 0x9000, 2);
        assert_eq!((sq.opcode, sq.prp1, sq.cdw10, sq.cdw11), (1, 0x9000, 0x00ff_0002, 0x0002_0001));
        assert_eq!(Admin::delete_sq(9).cdw10, 9);
        assert_eq!(Admin::delete_cq(9).opcode, 4);
    }

    #[test]
    fn format_settings() {
        let settings = FormatSettings::new()
            .with_format(0x25)
            .with_metadata_interleaved(true)
            .with_protection(3)
            .with_protection_first(true)
            .with_secure_erase(2);
        let entry = Admin::format(7, settings);
        assert_eq!((entry.opcode, entry.nsid), (0x80, 7));
        assert_eq!(entry.cdw10, 5 | 1 << 4 | 3 << 5 | 1 << 8 | 2 << 9 | 2 << 12);
        assert_eq!(FormatSettings::from_bits(entry.cdw10).format(), 0x25);
    }

    #[test]
    fn log_length_is_zero_based_dwords() {
        let log = Admin::get_log(LogId::SMART, crate::NSID_ALL, 512);
        assert_eq!((log.cdw10, log.cdw11), (127 << 16 | 2, 0));
        let log = Admin::get_log(LogId::ERROR, crate::NSID_ALL, 4 * 0x2_0001);
        assert_eq!((log.cdw10, log.cdw11), (1, 2));
    }
}
