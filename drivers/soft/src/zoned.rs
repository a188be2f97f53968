//! The options of a zoned namespace.

use crate::options::{Binary, OptionError, SoftOptions, binary, number};
use std::fmt;

/// Most zones of a namespace.
const ZONES_MAX: u64 = 65_536;
/// A Zone Append's completion here names a block in its first dword alone.
const BLOCKS_MAX: u64 = 1 << 32;

const ZONED_ALLOWED: &str = "it takes a zone's bytes, a multiple of the block that divides size=, with at most 65536 zones and 2^32 blocks, and neither ms= nor backing=file beside it";
const ZCAP_ALLOWED: &str =
    "it takes bytes of a zone that may be written, a multiple of the block up to zoned=";
const LIMIT_ALLOWED: &str =
    "it takes a number of zones from 1 on, beside zoned=, and mor= is not above mar=";

/// What the zones of a soft controller's namespace are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZonedOptions {
    /// Bytes from a zone's start to the next one's; 0 is a namespace without zones.
    pub zone_bytes: u64,
    /// Bytes of a zone that may be written; 0 is all.
    pub capacity_bytes: u64,
    /// Most active zones; 0 is no limit.
    pub active_max: u32,
    /// Most open zones; 0 is no limit.
    pub open_max: u32,
}

impl ZonedOptions {
    /// Names of the options.
    pub(crate) const NAMES: [&str; 4] = ["zoned", "zcap", "mar", "mor"];

    /// Whether the namespace has zones.
    pub(crate) fn is_zoned(&self) -> bool {
        self.zone_bytes != 0
    }

    /// Takes one of the options.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), OptionError> {
        let sized = || binary(value).filter(|bytes| *bytes != 0);
        let counted = || number::<u32>(value).filter(|zones| *zones != 0);
        let error = |allowed: &str| OptionError::new(key, value, allowed);
        match key {
            "zoned" => self.zone_bytes = sized().ok_or_else(|| error(ZONED_ALLOWED))?,
            "zcap" => self.capacity_bytes = sized().ok_or_else(|| error(ZCAP_ALLOWED))?,
            "mar" => self.active_max = counted().ok_or_else(|| error(LIMIT_ALLOWED))?,
            _ => self.open_max = counted().ok_or_else(|| error(LIMIT_ALLOWED))?,
        }
        Ok(())
    }

    /// Checks them among the other options.
    pub(crate) fn validate(&self, options: &SoftOptions) -> Result<(), OptionError> {
        let Self { zone_bytes, capacity_bytes, active_max, open_max } = *self;
        let error = |option: &str, seen: u64, allowed: &str| {
            Err(OptionError::new(option, Binary(seen).to_string(), allowed))
        };
        let lba_bytes = u64::from(options.lba_bytes);
        if !self.is_zoned() {
            return match (capacity_bytes, active_max | open_max) {
                (0, 0) => Ok(()),
                (0, zones) => error("mar, mor", zones.into(), LIMIT_ALLOWED),
                (bytes, _) => error("zcap", bytes, ZCAP_ALLOWED),
            };
        }
        let fits = zone_bytes.is_multiple_of(lba_bytes)
            && options.size_bytes.is_multiple_of(zone_bytes)
            && options.size_bytes / zone_bytes <= ZONES_MAX
            && options.size_bytes / lba_bytes <= BLOCKS_MAX;
        // The states of zones are not kept in a file.
        if !fits || options.metadata.bytes != 0 || options.has_file() {
            return error("zoned", zone_bytes, ZONED_ALLOWED);
        }
        if capacity_bytes > zone_bytes || !capacity_bytes.is_multiple_of(lba_bytes) {
            return error("zcap", capacity_bytes, ZCAP_ALLOWED);
        }
        if active_max != 0 && (open_max == 0 || open_max > active_max) {
            return error("mor", open_max.into(), LIMIT_ALLOWED);
        }
        Ok(())
    }
}

impl fmt::Display for ZonedOptions {
    /// With a comma before each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = [("zoned", self.zone_bytes), ("zcap", self.capacity_bytes)];
        for (name, bytes) in sizes.into_iter().filter(|(_, bytes)| *bytes != 0) {
            write!(f, ",{name}={}", Binary(bytes))?;
        }
        let limits = [("mar", self.active_max), ("mor", self.open_max)];
        for (name, zones) in limits.into_iter().filter(|(_, zones)| *zones != 0) {
            write!(f, ",{name}={zones}")?;
        }
        Ok(())
    }
}
