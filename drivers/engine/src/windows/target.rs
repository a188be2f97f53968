//! What both engines open, and how.

use crate::{Caution, CautionKind, EngineError, IoStatus, OpenOptions, Target};
use nvpoll_windows::{Access, Calls, Handle, Name, OpenMode, Win32Error, disk};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Smallest sector that Windows knows.
const SECTOR_BYTES: u32 = 512;
/// Largest sector that is driven.
const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// What is assumed where Windows does not say: a multiple of every sector in use.
const UNTOLD_BLOCK_BYTES: u32 = 4096;

/// A file, disk or volume that can be opened for I/O past the cache.
///
/// Without `FILE_FLAG_WRITE_THROUGH`, which would send each write with forced unit access: the paths
/// of other systems that this one is held against (O_DIRECT) do not.
#[derive(Debug)]
pub(super) struct WindowsTarget<C: Calls> {
    pub calls: C,
    pub path: PathBuf,
    pub name: Name,
    /// Usable bytes, a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Logical sector: `FILE_FLAG_NO_BUFFERING` asks for offsets and lengths in whole ones.
    pub block_bytes: u32,
    pub writable: bool,
    description: String,
    pub seen: Arc<Seen>,
}

/// What the lanes saw, for the report.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Requests that succeeded in the call that started them.
    pub at_once: AtomicU64,
    /// All that were started.
    pub all: AtomicU64,
    /// A write was refused with error 5.
    pub refused: AtomicBool,
}

impl Seen {
    /// Notes how a write ended.
    #[cold]
    pub fn note_failure(&self, status: IoStatus) {
        if status == super::failure(Win32Error::ACCESS_DENIED) {
            self.refused.store(true, Relaxed);
        }
    }
}

/// How lanes open their handles.
pub(super) fn lane_mode(writable: bool) -> OpenMode {
    let access = if writable { Access::ReadWrite } else { Access::Read };
    OpenMode { access, overlapped: true, direct: true }
}

impl<C: Calls> WindowsTarget<C> {
    /// Opens `target` once, to see that it can be, and measures it.
    ///
    /// # Errors
    /// [`EngineError::Usage`] when it is nothing that Windows can drive or lets this user drive,
    /// [`EngineError::Failed`] when it does not say how large it is.
    pub fn open(
        engine: &str,
        calls: C,
        target: &Target,
        options: &OpenOptions,
    ) -> Result<Self, EngineError> {
        let Target::Path(path) = target else {
            return Err(EngineError::Usage(format!(
                r"engine {engine} drives a file, a disk or a volume, and {target} is none; name a path such as \\.\PhysicalDrive1"
            )));
        };
        let name = Name::of(path);
        let file = calls
            .open(path, lane_mode(options.writable))
            .map_err(|error| open_error(path, name, options.writable, error))?;
        let measured = measure(&calls, path, name, file);
        calls.close(file);
        let (bytes, told_block) = measured?;
        let block_bytes = told_block.unwrap_or(UNTOLD_BLOCK_BYTES).max(SECTOR_BYTES);
        if !block_bytes.is_power_of_two() || block_bytes > BLOCK_BYTES_MAX {
            return Err(EngineError::Usage(format!(
                "{}: sectors of {block_bytes} bytes are not supported; use a target with sectors of {SECTOR_BYTES} to {BLOCK_BYTES_MAX} bytes",
                path.display()
            )));
        }
        let size_bytes = bytes - bytes % u64::from(block_bytes);
        if size_bytes == 0 {
            return Err(EngineError::Usage(format!(
                "{}: {bytes} bytes are less than one sector of {block_bytes}; use a larger target",
                path.display()
            )));
        }
        let what = match name {
            Name::Disk(_) => "whole disk",
            Name::Volume(_) => "volume",
            Name::File => "file",
        };
        let told = if told_block.is_some() { "" } else { " (assumed: Windows does not say)" };
        let access = if options.writable { "read-write" } else { "read-only" };
        Ok(Self {
            calls,
            path: path.clone(),
            name,
            size_bytes,
            block_bytes,
            writable: options.writable,
            description: format!(
                "{what} with sectors of {block_bytes} bytes{told}, FILE_FLAG_NO_BUFFERING, {access}"
            ),
            seen: Arc::default(),
        })
    }

    /// A handle for a lane.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn handle(&self) -> Result<Handle, EngineError> {
        self.calls
            .open(&self.path, lane_mode(self.writable))
            .map_err(|error| open_error(&self.path, self.name, self.writable, error))
    }

    /// What was opened and how, for the report.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("opened", self.description.clone()),
            ("write-through", "no: a write is done when the drive says so".to_owned()),
        ]
    }

    /// What speaks against the figures.
    pub fn cautions(&self) -> Vec<Caution> {
        if !self.seen.refused.load(Relaxed) {
            return Vec::new();
        }
        let text = format!("writes were refused: {}", write_refusal(self.name));
        vec![Caution { kind: CautionKind::NotAsAsked, text }]
    }
}

/// Bytes and sector of an open target.
fn measure<C: Calls>(
    calls: &C,
    path: &Path,
    name: Name,
    file: Handle,
) -> Result<(u64, Option<u32>), EngineError> {
    if name == Name::File {
        let bytes = calls.file_bytes(file).map_err(|error| no_size(path, error))?;
        return Ok((bytes, calls.sector_bytes(file).ok()));
    }
    let (bytes, sector) = disk::geometry(calls, path).unwrap_or_default();
    // What answers no question of a disk's may be a file under a disk's name.
    match bytes.filter(|bytes| *bytes > 0) {
        Some(bytes) => Ok((bytes, sector)),
        None => Ok((calls.file_bytes(file).map_err(|error| no_size(path, error))?, sector)),
    }
}

fn no_size(path: &Path, error: Win32Error) -> EngineError {
    EngineError::Failed(format!(
        "{}: it does not say how large it is: {error}; see whether `Get-Disk` in PowerShell does",
        path.display()
    ))
}

fn open_error(path: &Path, name: Name, writable: bool, error: Win32Error) -> EngineError {
    let access = if writable { "reading and writing" } else { "reading" };
    let advice = match (error, name) {
        (Win32Error::FILE_NOT_FOUND | Win32Error::PATH_NOT_FOUND, _) => {
            "check the name; `nvpoll list` shows the disks".to_owned()
        }
        (Win32Error::ACCESS_DENIED, Name::File) => {
            "the user may not, or it is a folder; check its rights (`icacls`)".to_owned()
        }
        (Win32Error::ACCESS_DENIED, _) => {
            "Windows lets administrators alone open a disk or a volume; run it from an elevated prompt"
                .to_owned()
        }
        (Win32Error::SHARING_VIOLATION, _) => {
            "another program has it open and lets nobody else; end that".to_owned()
        }
        (Win32Error::WRITE_PROTECT, _) => {
            "it is read-only; `Set-Disk -Number N -IsReadOnly $false` in PowerShell".to_owned()
        }
        _ => "check the target".to_owned(),
    };
    EngineError::Usage(format!("cannot open {} for {access}: {error}; {advice}", path.display()))
}

/// What error 5 at a write means, and what to do.
pub(super) fn write_refusal(name: Name) -> String {
    let number = match name {
        Name::Disk(number) => number.to_string(),
        _ => "N".to_owned(),
    };
    match name {
        Name::File => "Windows error 5 (access is denied): the file may not be written".to_owned(),
        _ => format!(
            "Windows error 5 (access is denied): Windows refuses raw writes to what a volume lies on while the disk is online; take the disk offline with `Set-Disk -Number {number} -IsOffline $true` in an elevated PowerShell, and online again afterwards"
        ),
    }
}
