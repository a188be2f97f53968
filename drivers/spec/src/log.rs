//! Log pages (§5.14.1).

use crate::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// SMART / Health Information, log 02h, 512 bytes (§5.14.1.2, Figure 194).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SmartLog {
    /// Critical warning bits: spare 0, temperature 1, reliability 2, read-only 3, backup 4.
    pub critical_warning: u8,
    /// Composite temperature in kelvin, two bytes.
    pub temperature_kelvin: [u8; 2],
    /// Available spare in percent.
    pub available_spare_pct: u8,
    /// Available spare threshold in percent.
    pub spare_threshold_pct: u8,
    /// Estimate of life used in percent; may exceed 100.
    pub used_pct: u8,
    /// Endurance group critical warnings.
    pub endurance_warning: u8,
    reserved7: [u8; 25],
    /// Thousands of 512-byte units read, low and high halves.
    pub data_units_read: [u64; 2],
    /// Thousands of 512-byte units written.
    pub data_units_written: [u64; 2],
    /// Read commands completed.
    pub host_reads: [u64; 2],
    /// Write commands completed.
    pub host_writes: [u64; 2],
    /// Minutes that the controller was busy with I/O.
    pub busy_minutes: [u64; 2],
    /// Power cycles.
    pub power_cycles: [u64; 2],
    /// Hours powered on.
    pub power_on_hours: [u64; 2],
    /// Shutdowns without notice.
    pub unsafe_shutdowns: [u64; 2],
    /// Media and data integrity errors.
    pub media_errors: [u64; 2],
    /// Entries in the error log over the controller's life.
    pub error_log_entries: [u64; 2],
    /// Minutes above the warning temperature.
    pub warning_temperature_minutes: u32,
    /// Minutes above the critical temperature.
    pub critical_temperature_minutes: u32,
    /// Temperature sensors 1 to 8 in kelvin; zero is absent.
    pub sensors_kelvin: [u16; 8],
    /// Transitions to, then seconds in, thermal management 1 and 2.
    pub thermal_management: [u32; 4],
    reserved232: [u8; 280],
}

const _: () = assert!(size_of::<SmartLog>() == 512);
const _: () = assert!(core::mem::offset_of!(SmartLog, data_units_read) == 32);
const _: () = assert!(core::mem::offset_of!(SmartLog, warning_temperature_minutes) == 192);

impl SmartLog {
    /// Composite temperature in degrees Celsius, or `None` when the controller reports none (0 K).
    pub const fn temperature_celsius(&self) -> Option<i32> {
        match u16::from_le_bytes(self.temperature_kelvin) {
            0 => None,
            kelvin => Some(kelvin as i32 - 273),
        }
    }
}

/// One entry of the Error Information log, 01h, 64 bytes (§5.14.1.1, Figure 193); the newest is first.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// The error's number over the controller's life; 0 is an entry that is not used.
    pub count: u64,
    /// SQID of the command.
    pub sq_id: u16,
    /// CID of the command; FFFFh when the error belongs to none.
    pub cid: u16,
    /// The completion's status, with the phase tag in bit 0.
    pub status_phase: u16,
    /// Parameter Error Location: byte in 7:0, bit in 10:8; FFFFh is not said.
    pub location: u16,
    /// First logical block that had the error.
    pub lba: u64,
    /// NSID.
    pub nsid: u32,
    /// A vendor's log page with more, or 0.
    pub vendor_log: u8,
    /// TRTYPE.
    pub transport: u8,
    reserved30: [u8; 2],
    /// What the command says more.
    pub specific: u64,
    /// What the transport says more.
    pub transport_specific: u16,
    reserved42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorLogEntry>() == 64);

impl ErrorLogEntry {
    /// The status that the command completed with.
    pub const fn status(&self) -> Status {
        Status::from_entry(self.status_phase)
    }
}

/// Firmware Slot Information, log 03h, 512 bytes (§5.14.1.3, Figure 195).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FirmwareLog {
    /// AFI: the active slot in bits 2:0, the one of the next reset in 6:4 (0 is not said).
    pub active: u8,
    reserved1: [u8; 7],
    /// FRS1 to FRS7: revisions, ASCII; zeroes in an empty slot.
    pub revisions: [[u8; 8]; 7],
    reserved64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareLog>() == 512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_entry_offsets() {
        let mut bytes = [0u8; 64];
        bytes[0] = 9;
        bytes[8..16].copy_from_slice(&[3, 0, 0x34, 0x12, 0x02, 0x05, 0xff, 0xff]);
        bytes[16] = 80;
        bytes[24] = 1;
        bytes[32] = 7;
        let entry = ErrorLogEntry::read_from_bytes(&bytes).unwrap();
        assert_eq!((entry.count, entry.sq_id, entry.cid), (9, 3, 0x1234));
        assert_eq!(entry.status(), Status::UNRECOVERED_READ);
        assert_eq!((entry.lba, entry.nsid, entry.specific), (80, 1, 7));
    }

    #[test]
    fn golden_offsets() {
        let mut bytes = [0u8; 512];
        bytes[1..3].copy_from_slice(&300u16.to_le_bytes());
        bytes[3] = 100;
        bytes[128] = 17;
        bytes[160] = 2;
        bytes[200..202].copy_from_slice(&310u16.to_le_bytes());
        let log = SmartLog::read_from_bytes(&bytes).unwrap();
        assert_eq!(log.temperature_celsius(), Some(27));
        assert_eq!(log.available_spare_pct, 100);
        assert_eq!(log.power_on_hours, [17, 0]);
        assert_eq!(log.media_errors, [2, 0]);
        assert_eq!(log.sensors_kelvin[0], 310);
    }
}
