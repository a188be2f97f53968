//! NVMe commands through io_uring: the kernel's driver without its block layer.
//!
//! The target is a namespace's generic character device (`/dev/ng0n1`). A command carries one
//! transfer, which the kernel neither splits nor merges: one that the drive does not take whole is
//! refused here.

use super::form::Passthrough;
use super::queue::{Parts, RingQueue};
use super::rings::{self, Rings};
use super::{buffer_stride, depth_max};
use crate::admin;
use crate::block_queue::BlockQueue;
use crate::bounds::check_shape;
use crate::options::EngineOption;
use crate::{
    Caution, Condition, Engine, EngineError, EngineInfo, Geometry, OpenOptions, QueueShape, Target,
    WriteMode,
};
use nvpoll_nvme::Namespace;
use nvpoll_spec::ascii_field;
use std::fs::{File, OpenOptions as FileOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The least page that a controller may count its largest transfer in (CAP.MPSMIN of 0); a
/// controller with larger ones takes more than is asked of it.
const CONTROLLER_PAGE_BYTES: u64 = 4096;

/// NVMe passthrough on a namespace's generic device.
#[derive(Debug)]
pub struct IoUringCmd {
    path: PathBuf,
    file: Arc<File>,
    size_bytes: u64,
    block_log2: u8,
    nsid: u32,
    writable: bool,
    writes: WriteMode,
    command_bytes_max: u64,
    numa_node: Option<u32>,
    rings: Rings,
    facts: Vec<(&'static str, String)>,
    /// Of a namespace that is written: its block device, opened exclusively.
    _claim: Option<File>,
}

/// A worker's ring to a namespace.
pub type IoUringCmdQueue = RingQueue<Passthrough>;

impl Engine for IoUringCmd {
    const INFO: EngineInfo = EngineInfo {
        name: "io_uring_cmd",
        stack: "Linux io_uring_cmd",
        summary: "NVMe commands through io_uring, past the block layer, on /dev/ngXnY",
        driver: None,
        polls: false,
        moves_data: true,
        depth_max: Some(super::abi::ENTRIES_MAX),
        waits: &[],
        writes: EngineInfo::DURABLE_WRITES,
        options: &[
            EngineOption::Iopoll,
            EngineOption::HybridIopoll,
            EngineOption::Sqpoll,
            EngineOption::SqpollIdle,
            EngineOption::SqpollCpu,
            EngineOption::NoFixed,
            EngineOption::Batch,
        ],
    };

    type Queue = IoUringCmdQueue;

    fn available() -> Result<(), EngineError> {
        rings::available()?;
        // Entries of twice the size came with 5.19, as passthrough did.
        let rings = Rings::new(crate::EngineOptions::default(), Ok(()), true);
        rings.make::<Passthrough>(1).map(drop).map_err(|error| {
            EngineError::Unavailable(format!("{error}; NVMe passthrough came with Linux 5.19"))
        })
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Self::available()?;
        let Target::Path(path) = target else {
            return Err(wrong(&target.to_string(), "is no path"));
        };
        let shown = path.display().to_string();
        let refused = |error: &dyn std::fmt::Display| {
            EngineError::Usage(format!(
                "cannot open {shown}: {error}; `nvpoll list` shows the drives, and passthrough \
                 needs root or the device's group"
            ))
        };
        let found = std::fs::metadata(path).map_err(|error| refused(&error))?;
        if !found.file_type().is_char_device() {
            return Err(wrong(&shown, "is no character device"));
        }
        let file = FileOptions::new().read(true).write(options.writable).open(path);
        let file = file.map_err(|error| refused(&error))?;
        let nsid = admin::namespace_of(&file)
            .map_err(|_| wrong(&shown, "does not answer as an NVMe namespace"))?;
        Self::identify(path, file, nsid, options)
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        let fits = u64::from(io_bytes) <= self.command_bytes_max;
        Geometry {
            size_bytes: self.size_bytes,
            block_bytes: 1 << self.block_log2,
            depth_max: if fits { depth_max(io_bytes) } else { 0 },
            queues_max: None,
            numa_node: self.numa_node,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.facts.clone();
        facts.extend(self.rings.facts());
        facts
    }

    fn condition(&self) -> Condition {
        admin::condition(&self.path, &self.file, self.nsid)
    }

    fn cautions(&self) -> Vec<Caution> {
        self.rings.cautions()
    }

    fn queue(&self, shape: QueueShape) -> Result<IoUringCmdQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        debug_assert!(buffer_stride(shape.io_bytes) >= shape.io_bytes as usize);
        let parts = Parts {
            file: &self.file,
            shape,
            geometry: &geometry,
            writable: self.writable,
            no_fixed: self.rings.options.no_fixed,
            batch: self.rings.batch(),
            submitter: self.rings.submitter(),
            seen: self.rings.seen.clone(),
        };
        let (blocks, writes) = ((self.nsid, self.block_log2), self.writes);
        RingQueue::new(self.rings.make(shape.depth)?, parts, |file, has_buffers| {
            Passthrough::new(file, has_buffers, blocks, writes)
        })
    }
}

impl IoUringCmd {
    fn identify(
        path: &Path,
        file: File,
        nsid: u32,
        options: &OpenOptions,
    ) -> Result<Self, EngineError> {
        let (controller, page) = admin::identify_namespace(path, &file, nsid)?;
        let shown = path.display().to_string();
        let namespace = Namespace::new(&shown, nsid, &page)
            .map_err(|error| EngineError::Usage(error.to_string()))?;
        if options.writable && admin::is_zoned(path, &file, &controller, nsid) {
            return Err(crate::zoned::writes_refused(&format!("{shown}: namespace {nsid}")));
        }
        if let Some(metadata) = namespace.metadata {
            return Err(EngineError::Usage(format!(
                "{shown}: namespace {nsid} is formatted with {} bytes of metadata a block, which this \
                 engine does not transfer; use another LBA format (`nvpoll format`), or the userspace \
                 driver (engine vfio)",
                metadata.bytes
            )));
        }
        let folder = block_folder(path);
        let claim = match (&folder, options.writable) {
            (Some(folder), true) => Some(claim(path, folder)?),
            _ => None,
        };
        let queue = folder.and_then(|folder| BlockQueue::below(&folder));
        let of_drive = controller.transfer_bytes_max(CONTROLLER_PAGE_BYTES).unwrap_or(u64::MAX);
        let of_kernel =
            queue.as_ref().and_then(BlockQueue::request_bytes_hardware).unwrap_or(u64::MAX);
        let command_bytes_max = of_drive.min(of_kernel);
        let access = match (options.writable, options.writes.is_durable()) {
            (false, _) => "read-only",
            (true, false) => "read-write",
            (true, true) => "read-write, writes with FUA",
        };
        let text = |bytes: &[u8]| match ascii_field(bytes) {
            Ok(text) => text.to_owned(),
            Err(raw) => raw.escape_ascii().to_string(),
        };
        let facts = vec![
            (
                "opened",
                format!(
                    "NVMe generic device, namespace {nsid}, blocks of {} bytes, {access}",
                    namespace.block_bytes
                ),
            ),
            ("model", text(&controller.model)),
            ("serial", text(&controller.serial)),
            ("firmware", text(&controller.firmware)),
            ("command bytes max", command_bytes_max.to_string()),
        ];
        let polls = match &queue {
            Some(queue) => queue.polls(),
            None => Err("its queues are not to be found in /sys".to_owned()),
        };
        Ok(Self {
            path: path.to_owned(),
            size_bytes: namespace.bytes(),
            block_log2: namespace.block_log2,
            nsid,
            writable: options.writable,
            writes: options.writes,
            command_bytes_max,
            numa_node: numa_node(path),
            rings: Rings::new(options.engine, polls, true),
            facts,
            file: Arc::new(file),
            _claim: claim,
        })
    }
}

/// Opens the block device of the same namespace exclusively: the generic one knows no such thing, and
/// the namespace must not be mounted, or be taken by LVM, md or another writer, while it is written.
fn claim(path: &Path, folder: &Path) -> Result<File, EngineError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        EngineError::Usage(format!(
            "{}: {what}: {error}; it is mounted, or held by LVM, md, dm or another program; nothing \
             was written",
            path.display()
        ))
    };
    let node = match folder.file_name() {
        Some(name) => path.with_file_name(name),
        None => return Err(failed("its block device", &"it has no name")),
    };
    let shown = format!("opening its block device {} exclusively", node.display());
    let opened = FileOptions::new().read(true).custom_flags(libc::O_EXCL).open(&node);
    let opened = opened.map_err(|error| failed(&shown, &error))?;
    let found = opened.metadata().map_err(|error| failed(&shown, &error))?.rdev();
    let number = format!("{}:{}", libc::major(found), libc::minor(found));
    let wanted = std::fs::read_to_string(folder.join("dev"));
    let wanted = wanted.map_err(|error| failed("the block device's number", &error))?;
    if number == wanted.trim() {
        return Ok(opened);
    }
    Err(failed(&shown, &format!("it is device {number}, and the namespace's is {}", wanted.trim())))
}

fn wrong(what: &str, why: &str) -> EngineError {
    EngineError::Usage(format!(
        "{what} {why}; engine io_uring_cmd drives an NVMe drive, or its namespace's generic device \
         such as /dev/ng0n1"
    ))
}

/// The device's folder in sysfs.
fn generic_folder(path: &Path) -> Option<PathBuf> {
    let name = path.canonicalize().ok()?.file_name()?.to_owned();
    Path::new("/sys/class/nvme-generic").join(name).canonicalize().ok()
}

/// The folder of the block device of the same namespace: `nvme0n1` beside `ng0n1`.
fn block_folder(path: &Path) -> Option<PathBuf> {
    let folder = generic_folder(path)?;
    let name = folder.file_name()?.to_str()?.strip_prefix("ng")?;
    // In the controller's folder, or above the generic device's own class folder.
    folder
        .ancestors()
        .skip(1)
        .take(2)
        .map(|parent| parent.join(format!("nvme{name}")))
        .find(|block| block.exists())
}

fn numa_node(path: &Path) -> Option<u32> {
    let folder = generic_folder(path)?;
    let text = folder
        .ancestors()
        .take_while(|ancestor| ancestor.starts_with("/sys/devices"))
        .find_map(|ancestor| std::fs::read_to_string(ancestor.join("numa_node")).ok())?;
    text.trim().parse().ok()
}
