//! Whether the buffers of all lanes fit into memory. They are touched as they are made, so that a run
//! which does not fit would end some process of the machine instead of itself. And what of it a
//! device reaches by itself, which is locked.

use super::LanePlan;
use crate::workload::Workload;
use nvpoll_engine::EngineError;

/// Bytes of a page, to which each tag's buffer is rounded up.
const PAGE_BYTES: u64 = 4096;
/// A submission and a completion entry (NVMe Base Specification 2.0, §3.3.3).
const ENTRY_BYTES: (u64, u64) = (64, 16);
/// A controller's own pages: admin submissions, admin completions, one page of data.
const ADMIN_PAGES: u64 = 3;
/// Mappings of one queue pair: buffers, PRP lists, submissions, completions.
const PAIR_MAPPINGS: u64 = 4;

/// What a run of the userspace driver locks in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locked {
    /// All drives' memory together, in bytes. A little more is needed where I/Os are cut into
    /// several commands, which only an open drive tells.
    pub bytes: u64,
    /// Mappings in one drive's address space.
    pub mappings: u64,
}

impl Locked {
    /// Of `workload` on so many drives.
    pub fn of(workload: &Workload, drives: u64) -> Self {
        let pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
        let depth = u64::from(workload.iodepth);
        let buffer = pages(workload.bs_bytes.into());
        // A list entry is 8 bytes a page; one page or two need no list.
        let list = if buffer > 2 * PAGE_BYTES { pages(buffer / PAGE_BYTES * 8) } else { 0 };
        let entries = depth.saturating_add(1);
        let rings = pages(entries * ENTRY_BYTES.0) + pages(entries * ENTRY_BYTES.1);
        let pair = depth.saturating_mul(buffer + list).saturating_add(rings);
        let jobs = u64::from(workload.numjobs);
        let drive = jobs.saturating_mul(pair).saturating_add(ADMIN_PAGES * PAGE_BYTES);
        Self {
            bytes: drive.saturating_mul(drives),
            mappings: jobs.saturating_mul(PAIR_MAPPINGS).saturating_add(ADMIN_PAGES),
        }
    }
}

/// Refuses lanes whose buffers take more than what is available.
///
/// # Errors
/// [`EngineError::Usage`] with what is needed and what there is.
pub(super) fn check(plans: &[LanePlan]) -> Result<(), EngineError> {
    let needed = plans.iter().fold(0_u64, |sum, plan| {
        let each = u64::from(plan.shape.depth) * u64::from(plan.shape.io_bytes);
        let bytes = each.saturating_mul(plan.targets.len() as u64);
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
    use crate::workload::Rw;

    #[test]
    fn what_a_run_locks() {
        let workload =
            |bs, depth, numjobs| Workload { numjobs, ..Workload::new(Rw::RandRead, bs, depth) };
        // A buffer, two rings of a page each, three pages of the controller's own.
        let one = Locked::of(&workload(4096, 1, 1), 1);
        assert_eq!(one, Locked { bytes: 6 * 4096, mappings: 7 });
        assert_eq!(Locked::of(&workload(512, 1, 1), 1), one, "a buffer is a page at least");
        assert_eq!(Locked::of(&workload(4096, 1, 1), 3).bytes, 3 * one.bytes);
        // 64 buffers of 128 KiB with a list page each; 65 entries of 64 bytes are two pages.
        let deep = Locked::of(&workload(128 << 10, 64, 2), 1);
        let pair = 64 * (32 + 1) + 2 + 1;
        assert_eq!(deep, Locked { bytes: (2 * pair + 3) * 4096, mappings: 11 });
    }

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = "MemTotal:       24684092 kB\nMemAvailable:   23000000 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(text), Some(23_000_000 * 1024));
        for text in ["", "MemAvailable: x kB", "MemAvailable: 5", "MemFree: 5 kB"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
