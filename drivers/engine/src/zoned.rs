//! Targets with zones: what is refused on them, whichever engine it is.

use crate::EngineError;
use nvpoll_nvme::Zones;

/// A zoned target is not written by a workload: a write lands at a zone's write pointer alone, and a full zone
/// takes none before it is reset.
pub(crate) fn writes_refused(target: &str) -> EngineError {
    EngineError::Usage(format!(
        "{target} is zoned: it takes a write at a zone's write pointer alone, and the workloads write anywhere, so \
         that most would fail; only reads are driven there (--rw read, randread)"
    ))
}

/// I/Os of `io_bytes`, at multiples of that, must not go from one zone into the next where reads may not.
pub(crate) fn check_reads(
    target: &str,
    zones: &Zones,
    block_bytes: u32,
    io_bytes: u32,
) -> Result<(), EngineError> {
    let zone_bytes = u128::from(zones.zone_blocks) * u128::from(block_bytes);
    if zones.reads_cross || zone_bytes.is_multiple_of(io_bytes.into()) {
        return Ok(());
    }
    Err(EngineError::Usage(format!(
        "{target} has zones of {zone_bytes} bytes, and a read may not go from one into the next (OZCS bit 0 is 0); \
         choose a --bs that divides this, {io_bytes} does not"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_would_cross_are_refused() {
        let mut zones = Zones {
            zone_blocks: 2048,
            count: 4,
            active_max: None,
            open_max: None,
            append_bytes_max: None,
            reads_cross: false,
        };
        assert!(check_reads("D0", &zones, 512, 65_536).is_ok());
        let why = check_reads("D0", &zones, 512, 12_288).unwrap_err().to_string();
        assert!(why.contains("zones of 1048576 bytes") && why.contains("12288"), "{why}");
        assert!(check_reads("D0", &zones, 512, 2 << 20).is_err(), "more than a zone");
        zones.reads_cross = true;
        assert!(check_reads("D0", &zones, 512, 12_288).is_ok());
    }
}
