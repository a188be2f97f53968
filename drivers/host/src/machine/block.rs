//! A block device's queue (Documentation/ABI/stable/sysfs-block).

use std::path::{Path, PathBuf};

use crate::Host;
use crate::sysfs;

/// What the kernel does with an I/O between a program and the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The block device.
    pub node: PathBuf,
    /// The scheduler in force.
    pub scheduler: Option<String>,
    /// Whether I/Os are counted one by one.
    pub iostats: Option<bool>,
    /// Merging: 0 all, 1 simple ones only, 2 none.
    pub nomerges: Option<u32>,
    /// Where completions run: 0 anywhere, 1 the group of the submitter, 2 its own processor.
    pub rq_affinity: Option<u32>,
    /// Latency that writeback is throttled for, in µs; 0 for off.
    pub wbt_lat_usec: Option<i64>,
    /// Whether the queue may be polled: the driver has poll queues.
    pub io_poll: Option<bool>,
}

impl Host {
    pub(super) fn queue_settings_of(&self, block: &str) -> QueueSettings {
        let dir = self.path("/sys/class/block").join(block);
        // A path below the class is a link; a drive's folder holds it where the class is missing.
        let queue = dir.join("queue");
        let number = |name: &str| sysfs::number::<u32>(queue.join(name));
        QueueSettings {
            node: Path::new("/dev").join(block),
            scheduler: sysfs::value(queue.join("scheduler"))
                .map(|text| super::bracketed(&text).unwrap_or(&text).to_owned()),
            iostats: number("iostats").map(|value| value != 0),
            nomerges: number("nomerges"),
            rq_affinity: number("rq_affinity"),
            wbt_lat_usec: sysfs::number(queue.join("wbt_lat_usec")),
            io_poll: number("io_poll").map(|value| value != 0),
        }
    }
}
