//! Controller registers (§3.1).

use bitfield_struct::bitfield;
use core::fmt;

/// Byte offsets of the registers in BAR 0 (§3.1).
pub mod reg {
    /// Controller Capabilities, 64 bits.
    pub const CAP: usize = 0x00;
    /// Version, 32 bits.
    pub const VS: usize = 0x08;
    /// Interrupt Mask Set, 32 bits.
    pub const INTMS: usize = 0x0c;
    /// Interrupt Mask Clear, 32 bits.
    pub const INTMC: usize = 0x10;
    /// Controller Configuration, 32 bits.
    pub const CC: usize = 0x14;
    /// Controller Status, 32 bits.
    pub const CSTS: usize = 0x1c;
    /// Admin Queue Attributes, 32 bits.
    pub const AQA: usize = 0x24;
    /// Admin Submission Queue base address, 64 bits.
    pub const ASQ: usize = 0x28;
    /// Admin Completion Queue base address, 64 bits.
    pub const ACQ: usize = 0x30;
    /// The first doorbell: the Admin Submission Queue's tail.
    pub const DOORBELLS: usize = 0x1000;

    /// Offset of queue `qid`'s Submission Queue Tail doorbell (§3.1.24), `stride_bytes` from
    /// [`Capabilities::doorbell_stride_bytes`](super::Capabilities::doorbell_stride_bytes).
    pub const fn sq_tail_doorbell(qid: u16, stride_bytes: usize) -> usize {
        DOORBELLS + 2 * qid as usize * stride_bytes
    }

    /// Offset of queue `qid`'s Completion Queue Head doorbell (§3.1.25).
    pub const fn cq_head_doorbell(qid: u16, stride_bytes: usize) -> usize {
        DOORBELLS + (2 * qid as usize + 1) * stride_bytes
    }
}

/// CAP: what the controller can do (§3.1.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Capabilities {
    /// MQES: most entries in an I/O queue, zero-based.
    pub mqes_z: u16,
    /// CQR: queues must be physically contiguous.
    pub contiguous_queues: bool,
    /// AMS: arbitration mechanisms beside round robin.
    #[bits(2)]
    pub arbitration: u8,
    #[bits(5)]
    __: u8,
    /// TO: worst-case wait for CSTS.RDY, in units of 500 ms.
    pub timeout_500ms: u8,
    /// DSTRD: doorbell stride, 4 bytes shifted left by this.
    #[bits(4)]
    pub doorbell_stride: u8,
    /// NSSRS: NVM subsystem reset is there.
    pub subsystem_reset: bool,
    /// CSS: command sets; bit 0 NVM, bit 6 others by Identify, bit 7 none but admin.
    pub command_sets: u8,
    /// BPS: boot partitions are there.
    pub boot_partitions: bool,
    #[bits(2)]
    __: u8,
    /// MPSMIN: least memory page, 4 KiB shifted left by this.
    #[bits(4)]
    pub page_size_min: u8,
    /// MPSMAX: largest memory page, 4 KiB shifted left by this.
    #[bits(4)]
    pub page_size_max: u8,
    /// PMRS: a persistent memory region is there.
    pub persistent_memory: bool,
    /// CMBS: a controller memory buffer is there.
    pub controller_memory: bool,
    #[bits(6)]
    __: u8,
}

impl Capabilities {
    /// Most entries that an I/O queue can have, 1 to 65,536.
    pub const fn queue_entries_max(self) -> u32 {
        self.mqes_z() as u32 + 1
    }

    /// Bytes between two doorbells, 4 to 131,072.
    pub const fn doorbell_stride_bytes(self) -> usize {
        4 << self.doorbell_stride()
    }

    /// The specification's bound on a change of CSTS.RDY, in milliseconds.
    pub const fn timeout_ms(self) -> u64 {
        self.timeout_500ms() as u64 * 500
    }

    /// Least and largest memory page in bytes.
    pub const fn page_bytes(self) -> (u64, u64) {
        (4096 << self.page_size_min(), 4096 << self.page_size_max())
    }
}

/// VS: the version that the controller says it follows (§3.1.2).
#[bitfield(u32, debug = false)]
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Tertiary number.
    pub tertiary: u8,
    /// Minor number.
    pub minor: u8,
    /// Major number.
    pub major: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())?;
        if self.tertiary() != 0 { write!(f, ".{}", self.tertiary()) } else { Ok(()) }
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// CC: how the host wants the controller (§3.1.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ControllerConfiguration {
    /// EN: enable.
    pub enable: bool,
    #[bits(3)]
    __: u8,
    /// CSS: selected command set; 0 NVM, 6 all, 7 admin only.
    #[bits(3)]
    pub command_set: u8,
    /// MPS: memory page size, 4 KiB shifted left by this.
    #[bits(4)]
    pub page_size: u8,
    /// AMS: selected arbitration; 0 round robin.
    #[bits(3)]
    pub arbitration: u8,
    /// SHN: shutdown notification; 1 normal, 2 abrupt.
    #[bits(2)]
    pub shutdown: u8,
    /// IOSQES: I/O submission entry size as a power of two; 6 for 64 bytes.
    #[bits(4)]
    pub sq_entry_log2: u8,
    /// IOCQES: I/O completion entry size as a power of two; 4 for 16 bytes.
    #[bits(4)]
    pub cq_entry_log2: u8,
    #[bits(8)]
    __: u8,
}

/// CSTS: how the controller is (§3.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ControllerStatus {
    /// RDY: ready for commands.
    pub ready: bool,
    /// CFS: controller fatal status.
    pub fatal: bool,
    /// SHST: shutdown status.
    #[bits(2)]
    pub shutdown: ShutdownStatus,
    /// NSSRO: a subsystem reset occurred.
    pub subsystem_reset: bool,
    /// PP: command processing is paused.
    pub paused: bool,
    #[bits(26)]
    __: u32,
}

/// CSTS.SHST (§3.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ShutdownStatus {
    /// No shutdown was asked for.
    Normal = 0,
    /// Shutdown is under way.
    Occurring = 1,
    /// Shutdown is complete.
    Complete = 2,
    /// Reserved by the specification.
    Reserved = 3,
}

impl ShutdownStatus {
    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Normal,
            1 => Self::Occurring,
            2 => Self::Complete,
            _ => Self::Reserved,
        }
    }
}

/// AQA: sizes of the admin queues (§3.1.8).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AdminQueueAttributes {
    /// ASQS: Admin Submission Queue entries, zero-based.
    #[bits(12)]
    pub sq_entries_z: u16,
    #[bits(4)]
    __: u8,
    /// ACQS: Admin Completion Queue entries, zero-based.
    #[bits(12)]
    pub cq_entries_z: u16,
    #[bits(4)]
    __: u8,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn capabilities_of_qemu() {
        // QEMU's nvme device: MQES 2047, CQR, TO 15, command sets NVM, others, none; MPSMAX 4.
        let cap = Capabilities::from_bits(0x0040_1820_0f01_07ff);
        assert_eq!(cap.command_sets(), 0b1100_0001);
        assert_eq!(cap.page_bytes(), (4096, 65_536));
        assert_eq!(cap.queue_entries_max(), 2048);
        assert!(cap.contiguous_queues());
        assert_eq!(cap.timeout_ms(), 7_500);
        assert_eq!(cap.doorbell_stride_bytes(), 4);
        let cap = Capabilities::new()
            .with_doorbell_stride(15)
            .with_page_size_min(1)
            .with_page_size_max(15)
            .with_command_sets(1);
        assert_eq!(cap.doorbell_stride_bytes(), 131_072);
        assert_eq!(cap.page_bytes(), (8192, 4096 << 15));
        assert_eq!(cap.into_bits(), 15 << 32 | 1 << 37 | 1 << 48 | 15 << 52);
    }

    #[test]
    fn configuration_and_attributes_bits() {
        let cc = ControllerConfiguration::new()
            .with_enable(true)
            .with_sq_entry_log2(6)
            .with_cq_entry_log2(4)
            .with_page_size(1)
            .with_shutdown(1);
        assert_eq!(cc.into_bits(), 1 | 1 << 7 | 1 << 14 | 6 << 16 | 4 << 20);
        let aqa = AdminQueueAttributes::new().with_sq_entries_z(31).with_cq_entries_z(63);
        assert_eq!(aqa.into_bits(), 31 | 63 << 16);
        let csts = ControllerStatus::from_bits(0b1001);
        assert!(csts.ready() && !csts.fatal());
        assert_eq!(csts.shutdown(), ShutdownStatus::Complete);
    }

    #[test]
    fn versions_order_and_print() {
        let version = Version::from_bits(0x0001_0400);
        assert_eq!(version.to_string(), "1.4");
        assert_eq!(Version::from_bits(0x0001_0201).to_string(), "1.2.1");
        assert!(Version::from_bits(0x0002_0000) > version);
    }

    #[test]
    fn doorbells_are_interleaved() {
        assert_eq!(reg::sq_tail_doorbell(0, 4), 0x1000);
        assert_eq!(reg::cq_head_doorbell(0, 4), 0x1004);
        assert_eq!(reg::sq_tail_doorbell(3, 8), 0x1000 + 6 * 8);
        assert_eq!(reg::cq_head_doorbell(u16::MAX, 131_072), 0x1000 + 131_071 * 131_072);
    }
}
