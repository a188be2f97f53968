//! What is Windows' alone: disks and volumes, their uses, and which of its stacks drives them.

use super::check_available;
use super::subject::{Below, Subject, What};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::workload::Workload;
use nvpoll_engine::{EngineChoice, EngineKind, OpenOptions, Target};
use nvpoll_windows::disk::{self, Disk, Stack};
use nvpoll_windows::{Name, Win32, Win32Error};
use std::path::{Component, Path, PathBuf, Prefix};

/// Windows as it is.
#[derive(Clone, Debug, Default)]
pub struct Host;

impl Host {
    /// This machine.
    pub fn system() -> Self {
        Self
    }
}

/// How drives are taken: not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct TakeOptions {
    /// Means nothing here.
    pub allow_no_iommu: bool,
    /// Likewise.
    pub persistent: bool,
}

/// What stands in when no target was named: the userspace driver, and Windows' engines.
pub const STAND_INS: [EngineKind; 3] = [EngineKind::Soft, EngineKind::Iocp, EngineKind::IoRing];

/// A column's heading: of an engine of Windows' own, which stack of Windows it went through.
pub fn stack_name(choice: &EngineChoice, subjects: &[Subject]) -> String {
    let heading = choice.stack();
    let Some(rest) = heading.strip_prefix("Windows") else { return heading };
    let mut stacks = subjects.iter().map(|subject| subject.below.stack);
    let first = stacks.next().flatten();
    match first.filter(|first| stacks.all(|stack| stack == Some(*first))) {
        Some(stack) => format!("Windows {stack}{rest}"),
        None => format!("Windows{rest} (native or not: cannot be told)"),
    }
}

/// Windows locks what an I/O needs by itself.
///
/// # Errors
/// Never.
pub fn check_memory(
    _host: &Host,
    _kind: EngineKind,
    _workloads: &[Workload],
    _drives: usize,
) -> Result<(), Failure> {
    Ok(())
}

/// Nothing has to be bound.
///
/// # Errors
/// Never.
pub fn check_ready(
    _host: &Host,
    _subject: &Subject,
    _plan: &Plan,
    _kind: EngineKind,
) -> Result<(), Failure> {
    Ok(())
}

/// No engine here takes a drive.
pub(super) fn check_driver(
    _host: &Host,
    _subjects: &[Subject],
    _kind: EngineKind,
    _options: &TakeOptions,
) -> Result<bool, Failure> {
    Ok(true)
}

pub(super) fn best_kernel_engine() -> (EngineKind, String) {
    match check_available(EngineKind::Iocp) {
        Ok(()) => {
            (EngineKind::Iocp, "the target is Windows', and every Windows has this path".to_owned())
        }
        Err(error) => (EngineKind::IoRing, format!("the target is Windows'; {error}")),
    }
}

/// The controller of `subject`, for whoever asks it what it is.
///
/// # Errors
/// For all but soft drives: bad usage, with what to do instead.
pub fn controller(_host: &Host, subject: &Subject) -> Result<Target, Failure> {
    match &subject.what {
        What::Soft(options) => Ok(Target::Soft(options.clone())),
        _ => Err(Failure::usage(format!(
            "{}: identify sends NVMe commands by the userspace driver or Linux's, not on Windows; `nvpoll list` shows what Windows says of its disks, and soft[:options] can be identified",
            subject.name
        ))),
    }
}

/// What `name` means, where it is a disk, a volume or a file.
pub(super) fn resolve(_host: &Host, name: &str) -> Result<Subject, Failure> {
    let path = Path::new(name);
    match Name::of(path) {
        Name::Disk(number) => {
            let device = device(path)?;
            let below = Disk::read(&Win32, number).map(below_of).unwrap_or_default();
            Ok(Subject { name: name.to_owned(), what: device, below })
        }
        Name::Volume(_) => {
            let device = device(path)?;
            Ok(Subject { name: name.to_owned(), what: device, below: below_volume(path) })
        }
        Name::File => file(name, path),
    }
}

/// Size and sector of a disk or volume.
fn device(path: &Path) -> Result<What, Failure> {
    let (size_bytes, sector) =
        disk::size_of(&Win32, path).map_err(|error| not_opened(path, error))?;
    Ok(What::Block { node: path.to_owned(), size_bytes, lba_bytes: sector.unwrap_or(1) })
}

fn not_opened(path: &Path, error: Win32Error) -> Failure {
    let advice = match error {
        Win32Error::ACCESS_DENIED => {
            "Windows lets administrators alone open a disk or a volume; run it from an elevated prompt"
        }
        _ => "`nvpoll list` shows the disks",
    };
    Failure::usage(format!("{}: {error}; {advice}", path.display()))
}

fn file(name: &str, path: &Path) -> Result<Subject, Failure> {
    let found = std::fs::metadata(path).map_err(|error| {
        Failure::usage(format!(
            r"{name}: {error}; name a file, a disk (\\.\PhysicalDrive1: `nvpoll list` shows them), soft[:options] or null"
        ))
    })?;
    if !found.is_file() {
        return Err(Failure::usage(format!(
            r"{name} is a folder; name a file in it, or the volume as \\.\X:"
        )));
    }
    let what = What::File { path: path.to_owned(), size_bytes: found.len(), is_scratch: false };
    Ok(Subject { name: name.to_owned(), what, below: below_file(path) })
}

/// What is below the file at `path`, by its drive letter.
pub(super) fn below_file(path: &Path) -> Below {
    let real = path.canonicalize().unwrap_or_default();
    let Some(Component::Prefix(prefix)) = real.components().next() else { return Below::default() };
    match prefix.kind() {
        Prefix::Disk(letter) | Prefix::VerbatimDisk(letter) => {
            below_volume(&PathBuf::from(format!(r"\\.\{}:", char::from(letter))))
        }
        _ => Below::default(),
    }
}

/// What is below a volume, where that is one disk.
fn below_volume(path: &Path) -> Below {
    let numbers = disk::disks_of_volume(&Win32, path).unwrap_or_default();
    let [number] = numbers.as_slice() else { return Below::default() };
    Disk::read(&Win32, *number).map(below_of).unwrap_or_default()
}

fn below_of(disk: Disk) -> Below {
    let stack = disk.stack().map(|stack| match stack {
        Stack::Native => "native",
        Stack::NonNative => "non-native",
    });
    Below {
        is_nvme: disk.is_nvme == Some(true),
        model: disk.model,
        serial: disk.serial,
        firmware: disk.firmware,
        stack,
    }
}

/// Checks that every target may be written: nothing uses it, which could be told of everything, and
/// `destroy_data` names it (a disk by its serial number, a file by the name that was typed).
///
/// # Errors
/// Refused, with the evidence and how to allow it.
pub fn check_writes(
    _host: &Host,
    subjects: &[(EngineKind, &Subject)],
    destroy_data: &[String],
    _opening: &OpenOptions,
) -> Result<(), Failure> {
    for (_, subject) in subjects {
        check_unused(subject)?;
        let name = &subject.name;
        let (identity, kind, lost) = match &subject.what {
            What::Soft(_) | What::Null | What::File { is_scratch: true, .. } => continue,
            What::File { .. } => (name.clone(), "name", "what the file holds".to_owned()),
            What::Block { node, .. } => disk_identity(name, node)?,
        };
        if destroy_data.contains(&identity) {
            continue;
        }
        let given = match destroy_data {
            [] => String::new(),
            given => format!(" (--destroy-data {} names another)", given.join(", ")),
        };
        return Err(Failure::refused(format!(
            "{name}: this workload writes, and its data would be lost: {lost}; to allow it, name the target by its {kind}: --destroy-data {identity}{given}"
        )));
    }
    Ok(())
}

/// What must be named to write a disk, what that is, and what would be lost.
fn disk_identity(name: &str, node: &Path) -> Result<(String, &'static str, String), Failure> {
    let disk = read_disk(name, node)?;
    let lost = disk.contents();
    let serial = disk.serial.ok_or_else(|| {
        Failure::refused(format!(
            "{name}: this workload writes, and Windows does not say the disk's serial number, so that nobody can name it"
        ))
    })?;
    let others = disk::all(&Win32).map_err(|error| unexamined(name, &error.to_string()))?;
    let twins = others.iter().filter(|other| other.serial.as_deref() == Some(&serial)).count();
    Ok(match twins {
        0 | 1 => (serial, "serial number", lost),
        _ => (name.to_owned(), "name (another disk here has its serial number)", lost),
    })
}

fn read_disk(name: &str, node: &Path) -> Result<Disk, Failure> {
    match Name::of(node) {
        Name::Disk(number) => {
            Disk::read(&Win32, number).map_err(|error| unexamined(name, &error.to_string()))
        }
        _ => Err(Failure::refused(format!(
            "{name}: this workload writes, and a volume is mounted while Windows has it; write to a file on it, or to the whole disk once it is offline"
        ))),
    }
}

fn unexamined(name: &str, why: &str) -> Failure {
    Failure::refused(format!(
        "{name}: this workload writes, and what uses it could not be examined: {why}; it counts as in use, and is not written"
    ))
}

/// Whether nothing uses a disk that is to be written.
///
/// # Errors
/// Refused, with what does or could not be told.
pub fn check_unused(subject: &Subject) -> Result<(), Failure> {
    let What::Block { node, .. } = &subject.what else { return Ok(()) };
    let name = &subject.name;
    let disk = read_disk(name, node)?;
    if disk.is_read_only == Some(true) {
        return Err(Failure::refused(format!(
            "{name}: Windows has it read-only; `Set-Disk -Number {} -IsReadOnly $false` in an elevated PowerShell",
            disk.number
        )));
    }
    disk::check_unused(&Win32, &disk)
        .map_err(|why| Failure::refused(format!("{name}: this workload writes, and {why}")))
}
