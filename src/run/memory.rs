//! Whether the buffers of all lanes fit into memory. They are touched as they are made, so that a run
//! which does not fit would end some process of the machine instead of itself.

use super::LanePlan;
use nvpoll_engine::EngineError;

/// Refuses lanes whose buffers take more than what is available.
///
/// # Errors
/// [`EngineError::Usage`] with what is needed and what there is.
pub(super) fn check(plans: &[LanePlan]) -> Result<(), EngineError> {
    let needed = plans.iter().fold(0_u64, |sum, plan| {
        let bytes = u64::from(plan.shape.depth) * u64::from(plan.shape.io_bytes);
        sum.saturating_add(bytes)
    });
    match available() {
        Some(available) if needed > available => Err(EngineError::Usage(format!(
            "the buffers of all I/Os in flight take {:.1} GiB of memory, and {:.1} GiB are available; lower --iodepth, --bs or --numjobs",
            gibibytes(needed),
            gibibytes(available)
        ))),
        _ => Ok(()),
    }
}

fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Bytes that can be had without swapping: `MemAvailable` (proc_meminfo(5)); `None` where the
/// system does not say.
fn available() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = "MemTotal:       24684092 kB\nMemAvailable:   23000000 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(text), Some(23_000_000 * 1024));
        for text in ["", "MemAvailable: x kB", "MemAvailable: 5", "MemFree: 5 kB"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
