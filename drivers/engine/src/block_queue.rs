//! What the kernel's request queue below a target is like: how large a request it takes, whether it
//! can be polled, and how many requests its device has completed (Documentation/ABI/stable/sysfs-block).

use std::path::{Path, PathBuf};

/// The request queue of a block device, as sysfs has it.
#[derive(Clone, Debug)]
pub(crate) struct BlockQueue {
    /// The device's name, `nvme0n1`.
    name: String,
    /// Its folder in sysfs.
    folder: PathBuf,
    /// Most bytes of a request.
    request_bytes_max: Option<u64>,
    /// Most separate pieces of memory in a request.
    segments_max: Option<u64>,
}

/// Requests that a device has completed since the system started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// Bytes of a page of memory: the piece that separate buffers are made of.
const PAGE_BYTES: u64 = 4096;

impl BlockQueue {
    /// The queue of the whole device that `folder`, a device's or a partition's, belongs to.
    pub(crate) fn below(folder: &Path) -> Option<Self> {
        let is_part = folder.join("partition").exists();
        let folder = if is_part { folder.parent()? } else { folder };
        if !folder.join("queue").exists() {
            return None;
        }
        let number = |name: &str| read_number(&folder.join("queue").join(name));
        Some(Self {
            name: folder.file_name()?.to_str()?.to_owned(),
            request_bytes_max: number("max_sectors_kb").map(|kib| kib.saturating_mul(1024)),
            segments_max: number("max_segments").filter(|&most| most > 0),
            folder: folder.to_owned(),
        })
    }

    /// Whether completions of this queue can be polled for; if not, why, and the remedy.
    pub(crate) fn polls(&self) -> Result<(), String> {
        let name = &self.name;
        match read_number(&self.folder.join("queue/io_poll")) {
            Some(0) | None if name.starts_with("nvme") => Err(format!(
                "{name} has no polled queues (queue/io_poll is 0); give it some by \
                 nvme.poll_queues=N on the kernel's command line, or `modprobe -r nvme && modprobe \
                 nvme poll_queues=N`"
            )),
            Some(0) | None => Err(format!(
                "the driver of {name} has no polled queues (queue/io_poll is 0); use an NVMe drive \
                 with nvme.poll_queues=N"
            )),
            Some(_) => Ok(()),
        }
    }

    /// Whether the device has zones that are written in sequence.
    pub(crate) fn is_zoned(&self) -> bool {
        let text = std::fs::read_to_string(self.folder.join("queue/zoned"));
        text.is_ok_and(|text| text.trim() == "host-managed")
    }

    /// The device's name, `nvme0n1`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What a write should not be smaller than, which the NVMe driver takes from NPWG.
    pub(crate) fn write_unit_bytes(&self) -> Option<u64> {
        read_number(&self.folder.join("queue/minimum_io_size"))
    }

    /// Most bytes that the hardware takes in a request.
    pub(crate) fn request_bytes_hardware(&self) -> Option<u64> {
        let kib = read_number(&self.folder.join("queue/max_hw_sectors_kb"))?;
        Some(kib.saturating_mul(1024))
    }

    /// In how many requests an I/O of `io_bytes` reaches the device: at least, and where no two
    /// pages of its buffer lie side by side in memory.
    pub(crate) fn requests_of(&self, io_bytes: u32) -> (u64, u64) {
        let bytes = u64::from(io_bytes);
        let least = self.request_bytes_max.map_or(1, |most| bytes.div_ceil(most.max(512)));
        let pages = bytes.div_ceil(PAGE_BYTES);
        let most = self.segments_max.map_or(1, |segments| pages.div_ceil(segments));
        (least, most.max(least))
    }

    /// The largest request, in words.
    pub(crate) fn limits(&self) -> String {
        let word = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
        format!(
            "{} bytes in at most {} pieces (max_sectors_kb and max_segments of {})",
            word(self.request_bytes_max),
            word(self.segments_max),
            self.name
        )
    }

    /// What the device has completed so far, all programs' requests together.
    pub(crate) fn completed(&self) -> Option<Completed> {
        let text = std::fs::read_to_string(self.folder.join("stat")).ok()?;
        // Fields 1 and 5 (Documentation/block/stat.rst).
        let mut fields = text.split_ascii_whitespace().map(|field| field.parse().ok());
        let reads = fields.next()??;
        let writes = fields.nth(3)??;
        Some(Completed { reads, writes })
    }
}

fn read_number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(folder: &Path, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let device = folder.join(name);
        std::fs::create_dir_all(device.join("queue")).unwrap();
        for (file, text) in files {
            std::fs::write(device.join(file), text).unwrap();
        }
        device
    }

    #[test]
    fn limits_polling_and_counts_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let device = queue(
            folder.path(),
            "nvme0n1",
            &[
                ("queue/io_poll", "0\n"),
                ("queue/max_sectors_kb", "128\n"),
                ("queue/max_segments", "33\n"),
                ("stat", "     11  2 3 4  55 6 7 8 9 10 11\n"),
            ],
        );
        std::fs::create_dir(device.join("nvme0n1p1")).unwrap();
        std::fs::write(device.join("nvme0n1p1/partition"), "1").unwrap();
        let queue = BlockQueue::below(&device.join("nvme0n1p1")).unwrap();
        assert!(queue.polls().unwrap_err().contains("nvme.poll_queues=N"));
        assert_eq!(queue.requests_of(4096), (1, 1));
        assert_eq!(queue.requests_of(128 << 10), (1, 1));
        assert_eq!(queue.requests_of(1 << 20), (8, 8));
        assert_eq!(queue.completed(), Some(Completed { reads: 11, writes: 55 }));
        std::fs::write(device.join("queue/io_poll"), "1\n").unwrap();
        std::fs::write(device.join("queue/max_segments"), "8").unwrap();
        let queue = BlockQueue::below(&device).unwrap();
        assert_eq!((queue.polls(), queue.requests_of(128 << 10)), (Ok(()), (1, 4)));
    }

    #[test]
    fn another_drivers_queue_and_none() {
        let folder = tempfile::tempdir().unwrap();
        let device = queue(folder.path(), "zram0", &[]);
        let queue = BlockQueue::below(&device).unwrap();
        assert!(queue.polls().unwrap_err().contains("driver of zram0"));
        assert_eq!((queue.requests_of(1 << 20), queue.completed()), ((1, 1), None));
        assert!(BlockQueue::below(folder.path()).is_none());
    }
}
