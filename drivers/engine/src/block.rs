//! What the kernel's engines share: a block device or a regular file, opened for direct I/O.

use crate::admin;
use crate::block_queue::{BlockQueue, Completed};
use crate::calls::{self, DirectAlign};
use crate::{Caution, CautionKind, Condition, EngineError, OpenOptions, Target, WriteMode};
use nvpoll_mem::{PAGE_BYTES, Pages};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Smallest block that the Linux block layer knows (linux/blk_types.h, `SECTOR_SIZE`).
const SECTOR_BYTES: u32 = 512;

/// Largest logical block that the Linux block layer takes since 6.15 (linux/blkdev.h,
/// `BLK_MAX_BLOCK_SIZE`); larger alignments from a filesystem are refused.
const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// A target of the kernel's engines, open.
#[derive(Debug)]
pub(crate) struct BlockTarget {
    /// Open with O_DIRECT unless buffered I/O was asked for, and for writing only if that was.
    pub(crate) file: Arc<File>,
    /// Usable bytes, a multiple of `block_bytes`.
    pub(crate) size_bytes: u64,
    /// Logical block, or the file's alignment for direct I/O: a power of two.
    pub(crate) block_bytes: u32,
    /// NUMA node of the device below, where sysfs says.
    pub(crate) numa_node: Option<u32>,
    /// The name that it was opened by.
    path: PathBuf,
    /// A block device, not a file.
    is_device: bool,
    /// Writes were asked for.
    pub(crate) writable: bool,
    /// Through the page cache.
    pub(crate) buffered: bool,
    /// What was opened and how, for the report.
    description: String,
    /// The request queue below, where sysfs says.
    queue: Option<BlockQueue>,
    /// What its device had completed when it was opened.
    completed: Option<Completed>,
    /// Largest I/O of the lanes so far.
    io_bytes: AtomicU32,
}

impl BlockTarget {
    /// Opens `target` for `engine`.
    ///
    /// # Errors
    /// [`EngineError::Usage`] when it is nothing that a kernel engine can drive,
    /// [`EngineError::Failed`] when the kernel refuses what should work.
    pub(crate) fn open(
        engine: &str,
        target: &Target,
        options: &OpenOptions,
    ) -> Result<Self, EngineError> {
        let Target::Path(path) = target else {
            return Err(EngineError::Usage(format!(
                "engine {engine} drives a block device or a file, and {target} is neither; name a \
                 path such as /dev/nvme0n1"
            )));
        };
        let before = std::fs::metadata(path).map_err(|error| open_error(path, options, &error))?;
        check_kind(engine, path, &before)?;
        let file = open_direct(path, &before, options)?;
        // Of the open descriptor, since the name may have come to mean something else.
        let found = file.metadata().map_err(|error| failed(path, "fstat", &error))?;
        check_kind(engine, path, &found)?;
        Self::measure(path, file, &found, options)
    }

    fn measure(
        path: &Path,
        file: File,
        found: &Metadata,
        options: &OpenOptions,
    ) -> Result<Self, EngineError> {
        let (writable, buffered) = (options.writable, options.engine.buffered);
        let is_device = found.file_type().is_block_device();
        let (bytes, block_bytes, what) = if is_device {
            device_geometry(path, &file)?
        } else {
            file_geometry(path, &file, found, buffered)?
        };
        if !block_bytes.is_power_of_two() || block_bytes > BLOCK_BYTES_MAX {
            return Err(EngineError::Usage(format!(
                "{}: direct I/O in units of {block_bytes} bytes is not supported; use a target \
                 with blocks of {SECTOR_BYTES} to {BLOCK_BYTES_MAX} bytes",
                path.display()
            )));
        }
        let block_bytes = block_bytes.max(SECTOR_BYTES);
        let size_bytes = bytes - bytes % u64::from(block_bytes);
        if size_bytes == 0 {
            return Err(EngineError::Usage(format!(
                "{}: {bytes} bytes are less than one block of {block_bytes}; use a larger target, \
                 for a file for instance `fallocate -l 1G {}`",
                path.display(),
                path.display()
            )));
        }
        let device = if is_device { found.rdev() } else { found.dev() };
        let access = if writable { "read-write" } else { "read-only" };
        let how = if buffered { "through the page cache" } else { "O_DIRECT" };
        let how = match options.writes {
            WriteMode::Write | WriteMode::Deallocate => how.to_owned(),
            WriteMode::Dsync => format!("{how}, O_DSYNC"),
            WriteMode::Sync => format!("{how}, O_SYNC"),
        };
        let queue = sysfs_folder(device).and_then(|folder| BlockQueue::below(&folder));
        if is_device && writable && queue.as_ref().is_some_and(BlockQueue::is_zoned) {
            return Err(crate::zoned::writes_refused(&path.display().to_string()));
        }
        Ok(Self {
            file: Arc::new(file),
            size_bytes,
            block_bytes,
            numa_node: numa_node(device),
            path: path.to_owned(),
            is_device,
            writable,
            buffered,
            description: format!("{what}, {how}, {access}"),
            completed: queue.as_ref().and_then(BlockQueue::completed),
            queue,
            io_bytes: AtomicU32::new(0),
        })
    }

    /// A lane will send I/Os of up to `io_bytes`.
    pub(crate) fn note_io_bytes(&self, io_bytes: u32) {
        self.io_bytes.fetch_max(io_bytes, Relaxed);
    }

    /// What was opened and how, and what reached the device, for the report.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("opened", self.description.clone())];
        if let Some(queue) = &self.queue {
            facts.push(("largest request", queue.limits()));
            if let (Some(before), Some(now)) = (self.completed, queue.completed()) {
                let (reads, writes) = (
                    now.reads.saturating_sub(before.reads),
                    now.writes.saturating_sub(before.writes),
                );
                facts.push((
                    "device requests",
                    format!(
                        "{reads} reads and {writes} writes from opening to end, ramp and other \
                         programs included"
                    ),
                ));
            }
        }
        facts
    }

    /// The state of the device, as far as it is one.
    pub(crate) fn condition(&self) -> Condition {
        let Some(queue) = self.queue.as_ref().filter(|_| self.is_device) else {
            return Condition::default();
        };
        // No other driver knows the commands.
        let mut condition = match queue.name().starts_with("nvme") {
            true => match admin::namespace_of(&self.file) {
                Ok(nsid) => admin::condition(&self.path, &self.file, nsid),
                Err(error) => Condition {
                    no_health: Some(format!("{}: {error}", self.path.display())),
                    ..Condition::default()
                },
            },
            false => Condition::default(),
        };
        condition.write_unit_bytes = condition.write_unit_bytes.max(queue.write_unit_bytes());
        condition
    }

    /// What of the target speaks against the figures.
    pub(crate) fn cautions(&self) -> Vec<Caution> {
        let mut cautions = Vec::new();
        if self.buffered {
            let text =
                "through the page cache (--buffered): what memory holds is read from there, \
                        so these are not the drive's figures"
                    .to_owned();
            cautions.push(Caution { kind: CautionKind::Buffered, text });
        }
        let io_bytes = self.io_bytes.load(Relaxed);
        let requests = self.queue.as_ref().map(|queue| (queue, queue.requests_of(io_bytes)));
        if let Some((queue, (least, most))) = requests.filter(|(_, (_, most))| *most > 1) {
            let count =
                if least == most { format!("{least}") } else { format!("{least} to {most}") };
            let text = format!(
                "the kernel cuts each I/O of {io_bytes} bytes into {count} requests of at most {} \
                 (computed)",
                queue.limits()
            );
            cautions.push(Caution { kind: CautionKind::Split, text });
        }
        cautions
    }

    /// Whether completions can be polled for; if not, why, and the remedy.
    pub(crate) fn polls(&self) -> Result<(), String> {
        if self.buffered {
            return Err(
                "what goes through the page cache is not polled; leave --buffered out".into()
            );
        }
        match &self.queue {
            Some(queue) => queue.polls(),
            None => {
                Err("the kernel names no block device below the file; use a block device".into())
            }
        }
    }
}

/// Refuses what is neither a whole block device nor a regular file.
fn check_kind(engine: &str, path: &Path, found: &Metadata) -> Result<(), EngineError> {
    let kind = found.file_type();
    let shown = path.display();
    let reason = if kind.is_block_device() {
        match partition_of(found.rdev()) {
            Some(whole) => format!("is a partition of {whole}; name the whole drive, {whole}"),
            None => return Ok(()),
        }
    } else if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "is a directory; name a block device or a file in it".to_owned()
    } else if kind.is_char_device() {
        match block_node(path) {
            Some(node) => format!(
                "is a generic NVMe character device, which engine {engine} cannot drive; name \
                 the block device of the same namespace, {node}"
            ),
            None => "is a character device; name a block device or a file".to_owned(),
        }
    } else {
        "is a pipe or a socket; name a block device or a file".to_owned()
    };
    Err(EngineError::Usage(format!("{shown} {reason}")))
}

/// `/dev/nvme0n1` for `/dev/ng0n1`.
fn block_node(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let rest = path.file_name()?.to_str()?.strip_prefix("ng")?;
    rest.starts_with(|c: char| c.is_ascii_digit()).then(|| format!("/dev/nvme{rest}"))
}

/// The whole device's node when device number `device` is a partition
/// (Documentation/ABI/stable/sysfs-block: a partition's folder stands in its disk's and has an
/// attribute `partition`).
fn partition_of(device: u64) -> Option<String> {
    let folder = sysfs_folder(device)?;
    folder.join("partition").exists().then_some(())?;
    Some(format!("/dev/{}", folder.parent()?.file_name()?.to_str()?))
}

fn sysfs_folder(device: u64) -> Option<PathBuf> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()
}

/// The node of the nearest ancestor that has one; -1 means that the platform does not say
/// (Documentation/ABI/testing/sysfs-bus-pci, `numa_node`).
fn numa_node(device: u64) -> Option<u32> {
    let folder = sysfs_folder(device)?;
    let text = folder
        .ancestors()
        .take_while(|ancestor| ancestor.starts_with("/sys/devices"))
        .find_map(|ancestor| std::fs::read_to_string(ancestor.join("numa_node")).ok())?;
    text.trim().parse().ok()
}

/// O_EXCL on a block device that will be written refuses one that is mounted or held by LVM, md,
/// dm or another exclusive opener, whole or in part: the last safety net below the caller's checks.
fn open_direct(path: &Path, found: &Metadata, options: &OpenOptions) -> Result<File, EngineError> {
    let exclusive = options.writable && found.file_type().is_block_device();
    let direct = if options.engine.buffered { 0 } else { libc::O_DIRECT };
    let flags = direct | if exclusive { libc::O_EXCL } else { 0 } | sync_flags(options.writes);
    let open = |flags| {
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(options.writable).custom_flags(flags).open(path)
    };
    // A read then leaves the access time alone, which the kernel would look at each time. Only the
    // owner and root may ask for that (open(2)).
    let file = match open(flags | libc::O_NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(flags),
        opened => opened,
    };
    file.map_err(|error| open_error(path, options, &error))
}

/// What has each write wait for the medium (open(2)); fio's `sync` sets the same.
fn sync_flags(writes: WriteMode) -> libc::c_int {
    match writes {
        WriteMode::Write | WriteMode::Deallocate => 0,
        WriteMode::Dsync => libc::O_DSYNC,
        WriteMode::Sync => libc::O_SYNC,
    }
}

fn open_error(path: &Path, options: &OpenOptions, error: &io::Error) -> EngineError {
    let access = if options.writable { "reading and writing" } else { "reading" };
    let advice = match error.raw_os_error() {
        Some(libc::ENOENT) => "check the name; `nvpoll list` shows the drives",
        Some(libc::EACCES | libc::EPERM) => {
            "run as root, or as a member of the group that owns it; a device may also be set \
             read-only (`blockdev --getro`)"
        }
        Some(libc::EBUSY) => {
            "it is mounted, or held by LVM, md, dm or another program (`lsblk` and `fuser -v` show \
             by what); nothing was written"
        }
        Some(libc::EINVAL) => {
            "the filesystem may not support direct I/O (tmpfs did not before Linux 6.6); use a \
             file on ext4 or XFS, or a block device, or accept the page cache with --buffered"
        }
        Some(libc::EROFS) => "the filesystem is mounted read-only; use another",
        Some(libc::ENXIO | libc::ENODEV) => "the device is gone, or has no medium",
        _ => "check the target by `lsblk` and `ls -l`",
    };
    let how = if options.engine.buffered { "" } else { " with O_DIRECT" };
    EngineError::Usage(format!(
        "cannot open {}{how} for {access}: {error}; {advice}",
        path.display()
    ))
}

fn failed(path: &Path, what: &str, error: &io::Error) -> EngineError {
    EngineError::Failed(format!(
        "{}: {what} failed: {error}; see `dmesg` for what the kernel says of it",
        path.display()
    ))
}

fn device_geometry(path: &Path, file: &File) -> Result<(u64, u32, String), EngineError> {
    let bytes = calls::block_device_bytes(file)
        .map_err(|error| failed(path, "asking for its size (BLKGETSIZE64)", &error))?;
    let (logical, physical) = calls::block_device_blocks(file)
        .map_err(|error| failed(path, "asking for its block size (BLKSSZGET)", &error))?;
    Ok((
        bytes,
        logical,
        format!("block device with blocks of {logical} bytes ({physical} physical)"),
    ))
}

fn file_geometry(
    path: &Path,
    file: &File,
    found: &Metadata,
    buffered: bool,
) -> Result<(u64, u32, String), EngineError> {
    let refused = || {
        EngineError::Usage(format!(
            "{} takes no direct I/O, as its filesystem says; use a file on ext4 or XFS without \
             encryption or compression, or a block device, or accept the page cache with --buffered",
            path.display()
        ))
    };
    let align = match buffered {
        true => DirectAlign::Bytes(SECTOR_BYTES),
        false => calls::direct_align(file).unwrap_or(DirectAlign::Unknown),
    };
    let block_bytes = match align {
        DirectAlign::Bytes(bytes) => bytes,
        DirectAlign::Refused => return Err(refused()),
        DirectAlign::Unknown => probe_alignment(path, file)?.ok_or_else(refused)?,
    };
    // st_blocks counts 512-byte units whatever the filesystem's block is (stat(2)).
    let allocated = found.blocks().saturating_mul(512);
    let holes = if allocated < found.len() {
        let percent = u128::from(allocated) * 100 / u128::from(found.len().max(1));
        format!(", {percent} % of it allocated (a hole is read without the disk)")
    } else {
        String::new()
    };
    Ok((found.len(), block_bytes, format!("file in units of {block_bytes} bytes{holes}")))
}

/// The smallest length that a direct read at offset 0 takes, where statx does not say: before
/// Linux 6.1, or on a filesystem that has not learnt to.
fn probe_alignment(path: &Path, file: &File) -> Result<Option<u32>, EngineError> {
    let pages = Pages::new(PAGE_BYTES).map_err(|error| EngineError::Failed(error.to_string()))?;
    let mut bytes = SECTOR_BYTES;
    while bytes as usize <= pages.bytes() {
        match calls::read_at(file, &pages, 0, bytes, 0) {
            Ok(_) => return Ok(Some(bytes)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => bytes *= 2,
            Err(error) => return Err(failed(path, "a first read", &error)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder beside the test's program: more likely on a disk than the usual one for temporary
    /// files, which may be a tmpfs.
    fn on_disk() -> tempfile::TempDir {
        let program = std::env::current_exe().unwrap();
        tempfile::tempdir_in(program.parent().unwrap()).unwrap()
    }

    fn open(path: &str) -> Result<BlockTarget, EngineError> {
        BlockTarget::open("test", &Target::Path(path.into()), &OpenOptions::default())
    }

    #[test]
    fn what_is_no_block_device_or_file_is_refused_with_what_it_is() {
        for (path, word) in [
            ("/nonexistent/drive", "No such file"),
            ("/tmp", "is a directory"),
            ("/dev/null", "is a character device"),
        ] {
            let error = open(path).unwrap_err();
            assert!(matches!(error, EngineError::Usage(_)), "{error:?}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn durable_writes_are_asked_of_the_kernel() {
        use nix::fcntl::{FcntlArg, fcntl};
        let folder = on_disk();
        let path = folder.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        for (writes, flags, word) in [
            (WriteMode::Write, 0, "O_DIRECT,"),
            (WriteMode::Dsync, libc::O_DSYNC, "O_DIRECT, O_DSYNC,"),
            (WriteMode::Sync, libc::O_SYNC, "O_DIRECT, O_SYNC,"),
        ] {
            let options = OpenOptions { writable: true, writes, ..OpenOptions::default() };
            let target = BlockTarget::open("test", &Target::Path(path.clone()), &options).unwrap();
            // O_SYNC has O_DSYNC's bit and one more.
            let found = fcntl(&target.file, FcntlArg::F_GETFL).unwrap() & libc::O_SYNC;
            assert_eq!(found, flags, "{writes:?}");
            let facts = target.facts();
            assert!(facts.iter().any(|(_, fact)| fact.contains(word)), "{facts:?}");
        }
    }

    #[test]
    fn a_generic_device_is_named_by_its_block_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ng2n1");
        File::create(&path).unwrap();
        assert_eq!(block_node(&path).as_deref(), Some("/dev/nvme2n1"));
        assert_eq!(block_node(Path::new("/dev/null")), None);
    }

    #[test]
    fn a_file_has_its_size_rounded_down_and_an_empty_one_is_refused() {
        let folder = on_disk();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let shown = path.to_str().unwrap();
        assert!(open(shown).unwrap_err().to_string().contains("less than one block"));
        file.set_len((1 << 20) + 700).unwrap();
        let target = open(shown).unwrap();
        assert!(target.size_bytes >= 1 << 20);
        assert_eq!(target.size_bytes % u64::from(target.block_bytes), 0);
        assert!(target.description.contains("0 % of it allocated"), "{target:?}");
        assert!(target.description.contains("read-only"));
    }

    #[test]
    fn probing_agrees_with_what_statx_says() {
        let folder = on_disk();
        let path = folder.path().join("file");
        std::fs::write(&path, [1; 8192]).unwrap();
        let target = open(path.to_str().unwrap()).unwrap();
        let probed = probe_alignment(&path, &target.file).unwrap();
        assert_eq!(probed.map(|bytes| bytes.max(SECTOR_BYTES)), Some(target.block_bytes));
    }
}
