//! Log pages (§5.14.1).

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

#[cfg(test)]
mod tests {
    use super::*;

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
