//! The state that a drive is in: how hot, whether it slows itself down, in which unit it writes. Read before and
//! after a measurement, never during one.

use nvpoll_spec::{ControllerIdentity, NamespaceIdentity, SmartLog};
use serde::{Deserialize, Serialize};

/// What a drive says of its state at one moment. What it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Temperatures and warnings.
    pub health: Option<Health>,
    /// Why there is no `health`, where there should be.
    pub no_health: Option<String>,
    /// Writes smaller than this make the drive read, change and write: NPWG (§5.15.2.1), or the kernel's
    /// `queue/minimum_io_size`.
    pub write_unit_bytes: Option<u64>,
    /// Logical blocks that hold something (NUSE), and all of them (NSZE).
    pub allocated_blocks: Option<[u64; 2]>,
}

/// Of the SMART / Health log (§5.14.1.2) and Identify Controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Critical warning bits: spare 0, temperature 1, reliability 2, read-only 3, backup 4.
    pub critical_warning: u8,
    /// Composite temperature in degrees Celsius.
    pub temperature_c: Option<i32>,
    /// WCTEMP: from here on the drive may slow down.
    pub warning_c: Option<i32>,
    /// CCTEMP: from here on it may stop.
    pub critical_c: Option<i32>,
    /// Minutes above WCTEMP or CCTEMP over the drive's life.
    pub hot_minutes: u64,
    /// Transitions to light (TMT1) and heavy (TMT2) throttling over the drive's life.
    pub throttle_transitions: u64,
    /// Seconds in them.
    pub throttle_s: u64,
}

impl Health {
    /// From both pages.
    pub fn new(log: &SmartLog, controller: &ControllerIdentity) -> Self {
        let celsius = |kelvin: u16| (kelvin > 0).then(|| i32::from(kelvin) - 273);
        let [light, heavy, light_s, heavy_s] = log.thermal_management.map(u64::from);
        Self {
            critical_warning: log.critical_warning,
            temperature_c: log.temperature_celsius(),
            warning_c: celsius(controller.warning_kelvin),
            critical_c: celsius(controller.critical_kelvin),
            hot_minutes: u64::from(log.warning_temperature_minutes)
                + u64::from(log.critical_temperature_minutes),
            throttle_transitions: light + heavy,
            throttle_s: light_s + heavy_s,
        }
    }
}

/// NSFEAT bit 4: NPWG and its like are valid.
const PREFERRED_VALID: u8 = 1 << 4;

impl Condition {
    /// From a controller's pages; `log` is an error in words where it could not be read.
    pub fn new(
        log: Result<SmartLog, String>,
        controller: &ControllerIdentity,
        namespace: Option<&NamespaceIdentity>,
    ) -> Self {
        let (health, no_health) = match log {
            Ok(log) => (Some(Health::new(&log, controller)), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            health,
            no_health,
            write_unit_bytes: namespace.and_then(write_unit_bytes),
            // A drive that does not keep count says that all blocks are allocated (NUSE = NCAP).
            allocated_blocks: namespace
                .filter(|page| page.blocks > 0 && page.used_blocks <= page.blocks)
                .map(|page| [page.used_blocks, page.blocks]),
        }
    }
}

fn write_unit_bytes(page: &NamespaceIdentity) -> Option<u64> {
    let block_log2 = page.format_in_use()?.data_log2;
    let is_valid = page.features & PREFERRED_VALID != 0 && block_log2 < 32;
    is_valid.then(|| (u64::from(page.write_granularity_z) + 1) << block_log2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, FromZeros};

    fn log(bytes: &[(usize, &[u8])]) -> SmartLog {
        let mut page = [0_u8; 512];
        for (at, value) in bytes {
            page[*at..at + value.len()].copy_from_slice(value);
        }
        SmartLog::read_from_bytes(&page).unwrap()
    }

    #[test]
    fn temperatures_and_throttling_of_the_pages() {
        let log = log(&[
            (0, &[0b10]),
            (1, &350_u16.to_le_bytes()),
            (192, &3_u32.to_le_bytes()),
            (196, &1_u32.to_le_bytes()),
            (216, &5_u32.to_le_bytes()),
            (220, &2_u32.to_le_bytes()),
            (224, &60_u32.to_le_bytes()),
            (228, &7_u32.to_le_bytes()),
        ]);
        let mut controller = ControllerIdentity::new_zeroed();
        controller.warning_kelvin = 343;
        let health = Health::new(&log, &controller);
        assert_eq!(
            (health.temperature_c, health.warning_c, health.critical_c),
            (Some(77), Some(70), None)
        );
        assert_eq!((health.critical_warning, health.hot_minutes), (2, 4));
        assert_eq!((health.throttle_transitions, health.throttle_s), (7, 67));
    }

    #[test]
    fn the_write_unit_and_what_is_allocated() {
        let mut page = NamespaceIdentity::new_zeroed();
        (page.blocks, page.used_blocks) = (1000, 250);
        page.formats[0].data_log2 = 12;
        page.write_granularity_z = 15;
        let of = |page: &NamespaceIdentity| {
            let controller = ControllerIdentity::new_zeroed();
            Condition::new(Err("refused".to_owned()), &controller, Some(page))
        };
        assert_eq!(of(&page).write_unit_bytes, None, "not valid without NSFEAT bit 4");
        page.features = PREFERRED_VALID;
        let condition = of(&page);
        assert_eq!(condition.write_unit_bytes, Some(65_536));
        assert_eq!(condition.allocated_blocks, Some([250, 1000]));
        assert_eq!((condition.health, condition.no_health.as_deref()), (None, Some("refused")));
        page.used_blocks = 1001;
        assert_eq!(of(&page).allocated_blocks, None, "more than there are is nonsense");
    }
}
