//! What is Windows' alone: disks and volumes, their uses, and which of its stacks drives them.

use super::check_available;
use super::subject::{Below, Subject, What};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::workload::Workload;
use nvpoll_engine::{EngineChoice, EngineKind, OpenOptions, Target};
use nvpoll_windows::disk::{self, Disk, Stack};
use nvpoll_windows::{Calls, Name, Win32, Win32Error};
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

/// A disk's sector where Windows does not say: a multiple of every one in use.
const UNTOLD_SECTOR_BYTES: u32 = 4096;

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
    let lba_bytes = sector.unwrap_or(UNTOLD_SECTOR_BYTES);
    Ok(What::Block { node: path.to_owned(), size_bytes, lba_bytes })
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
/// `destroy_data` names it (a disk by its serial number, a file by the name that was typed). Workloads alone
/// write here.
///
/// # Errors
/// Refused, with the evidence and how to allow it.
pub fn check_writes(
    _host: &Host,
    subjects: &[(EngineKind, &Subject)],
    destroy_data: &[String],
    _opening: &OpenOptions,
    _deed: &str,
) -> Result<(), Failure> {
    subjects.iter().try_for_each(|(_, subject)| may_write(&Win32, subject, destroy_data))
}

/// Whether `subject` may be written, as `calls` have it.
fn may_write<C: Calls>(
    calls: &C,
    subject: &Subject,
    destroy_data: &[String],
) -> Result<(), Failure> {
    let name = &subject.name;
    let (identity, kind, lost) = match &subject.what {
        What::Soft(_) | What::Null | What::File { is_scratch: true, .. } => return Ok(()),
        What::File { .. } => (name.clone(), "name", "what the file holds".to_owned()),
        What::Block { node, .. } => {
            is_unused(calls, name, node)?;
            disk_identity(calls, name, node)?
        }
    };
    if destroy_data.contains(&identity) {
        return Ok(());
    }
    let given = match destroy_data {
        [] => String::new(),
        given => format!(" (--destroy-data {} names another)", given.join(", ")),
    };
    Err(Failure::refused(format!(
        "{name}: this workload writes, and its data would be lost: {lost}; to allow it, name the target by its {kind}: --destroy-data {identity}{given}"
    )))
}

/// What must be named to write a disk, what that is, and what would be lost.
fn disk_identity<C: Calls>(
    calls: &C,
    name: &str,
    node: &Path,
) -> Result<(String, &'static str, String), Failure> {
    let disk = read_disk(calls, name, node)?;
    let lost = disk.contents();
    let serial = disk.serial.ok_or_else(|| {
        Failure::refused(format!(
            "{name}: this workload writes, and Windows does not say the disk's serial number, so that nobody can name it"
        ))
    })?;
    let others = disk::all(calls).map_err(|error| unexamined(name, &error.to_string()))?;
    let twins = others.iter().filter(|other| other.serial.as_deref() == Some(&serial)).count();
    Ok(match twins {
        0 | 1 => (serial, "serial number", lost),
        _ => (name.to_owned(), "name (another disk here has its serial number)", lost),
    })
}

fn read_disk<C: Calls>(calls: &C, name: &str, node: &Path) -> Result<Disk, Failure> {
    match Name::of(node) {
        Name::Disk(number) => {
            Disk::read(calls, number).map_err(|error| unexamined(name, &error.to_string()))
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

/// Looks once more at what is about to be written: nothing uses it, and it is still the disk that was
/// looked at. A number of a disk that was pulled goes to the next one that is plugged in.
///
/// # Errors
/// Refused, with what uses it, could not be told, or is there instead.
pub fn check_unused(subject: &Subject) -> Result<(), Failure> {
    look_again(&Win32, subject)
}

fn look_again<C: Calls>(calls: &C, subject: &Subject) -> Result<(), Failure> {
    let What::Block { node, .. } = &subject.what else { return Ok(()) };
    let name = &subject.name;
    is_unused(calls, name, node)?;
    let now = read_disk(calls, name, node)?.serial;
    if now == subject.below.serial {
        return Ok(());
    }
    let words = |serial: &Option<String>| serial.clone().unwrap_or_else(|| "none".to_owned());
    Err(Failure::refused(format!(
        "{name} is another disk now: its serial number is {}, and was {} when it was looked at; nothing was written to it; look at `nvpoll list` and start again",
        words(&now),
        words(&subject.below.serial)
    )))
}

fn is_unused<C: Calls>(calls: &C, name: &str, node: &Path) -> Result<(), Failure> {
    let disk = read_disk(calls, name, node)?;
    if disk.is_read_only == Some(true) {
        return Err(Failure::refused(format!(
            "{name}: Windows has it read-only; `Set-Disk -Number {} -IsReadOnly $false` in an elevated PowerShell",
            disk.number
        )));
    }
    disk::check_unused(calls, &disk)
        .map_err(|why| Failure::refused(format!("{name}: this workload writes, and {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_windows::{Fake, FakeDisk, Volume};

    fn disk(number: u32, serial: &str) -> FakeDisk {
        FakeDisk {
            path: disk::path_of(number).display().to_string(),
            data: vec![0; 1 << 20],
            sector_bytes: 512,
            number: Some(number),
            service: Some("nvmedisk".to_owned()),
            serial: serial.to_owned(),
            identify: true,
            attributes: Some(1),
            layout: Some((1, 3)),
            ..FakeDisk::default()
        }
    }

    fn block(path: &str) -> Subject {
        let what = What::Block { node: path.into(), size_bytes: 1 << 20, lba_bytes: 512 };
        Subject::new(path, what)
    }

    fn refusal(fake: &Fake, path: &str, given: &[&str]) -> Option<String> {
        let given: Vec<String> = given.iter().map(ToString::to_string).collect();
        may_write(fake, &block(path), &given).err().map(|failure| {
            assert_eq!(failure.exit_status(), 3, "{failure}");
            failure.text
        })
    }

    const FIRST: &str = r"\\.\PhysicalDrive1";

    #[test]
    fn an_unused_disk_is_written_when_its_serial_number_is_named_and_only_then() {
        let fake = Fake::new(vec![disk(1, "S1"), disk(2, "S10")]);
        let text = refusal(&fake, FIRST, &[]).unwrap();
        assert!(text.contains("--destroy-data S1") && text.contains("a GPT with 3"), "{text}");
        assert!(text.contains("(offline)"), "{text}");
        let text = refusal(&fake, FIRST, &["S10", FIRST]).unwrap();
        assert!(text.contains("names another"), "{text}");
        assert_eq!(refusal(&fake, FIRST, &["S1"]), None);
        let twins = Fake::new(vec![disk(1, "S1"), disk(2, "S1")]);
        let text = refusal(&twins, FIRST, &["S1"]).unwrap();
        assert!(text.contains("another disk here"), "{text}");
        assert_eq!(refusal(&twins, FIRST, &[FIRST]), None);
    }

    #[test]
    fn no_flag_lets_a_disk_be_written_that_is_used_or_could_not_be_examined() {
        let volume = |extents| FakeDisk {
            path: r"\\?\Volume{a}".to_owned(),
            extents: Some(extents),
            ..FakeDisk::default()
        };
        let listed =
            || Ok(vec![Volume { name: r"\\?\Volume{a}".into(), mounts: vec![r"D:\".into()] }]);
        let used = Fake::new(vec![disk(1, "S1"), volume(Ok(vec![1]))]);
        used.lists(listed());
        let text = refusal(&used, FIRST, &["S1"]).unwrap();
        assert!(text.contains(r"the volume of D:\") && text.contains("IsOffline $true"), "{text}");
        let unknown = Fake::new(vec![disk(1, "S1"), volume(Err(Win32Error::ACCESS_DENIED))]);
        unknown.lists(listed());
        let text = refusal(&unknown, FIRST, &["S1"]).unwrap();
        assert!(text.contains("counts as in use"), "{text}");
        let silent = Fake::new(vec![FakeDisk { attributes: None, ..disk(1, "S1") }]);
        assert!(refusal(&silent, FIRST, &["S1"]).unwrap().contains("counts as in use"));
        let locked = Fake::new(vec![FakeDisk { attributes: Some(3), ..disk(1, "S1") }]);
        assert!(refusal(&locked, FIRST, &["S1"]).unwrap().contains("IsReadOnly $false"));
        let text = refusal(&used, r"\\.\D:", &[r"\\.\D:"]).unwrap();
        assert!(text.contains("a volume is mounted"), "{text}");
        assert!(refusal(&Fake::default(), FIRST, &["S1"]).unwrap().contains("counts as in use"));
    }

    #[test]
    fn what_was_looked_at_is_looked_at_again_before_it_is_written() {
        let offline = disk(1, "S1");
        let seen = Below { serial: Some("S1".to_owned()), ..Below::default() };
        let subject = Subject { below: seen, ..block(FIRST) };
        look_again(&Fake::new(vec![offline.clone()]), &subject).unwrap();
        let refused = |disk: FakeDisk| {
            let failure = look_again(&Fake::new(vec![disk]), &subject).unwrap_err();
            assert_eq!(failure.exit_status(), 3, "{failure}");
            failure.text
        };
        let text = refused(disk(1, "S2"));
        assert!(text.contains("is S2, and was S1"), "{text}");
        // One that does not answer for its controller any more has Windows' own identifier.
        let text = refused(FakeDisk { identify: false, ..offline.clone() });
        assert!(text.contains(", and was S1"), "{text}");
        let text = refused(FakeDisk { attributes: Some(3), ..offline });
        assert!(text.contains("IsReadOnly $false"), "{text}");
    }

    #[test]
    fn a_column_says_which_stack_or_that_it_cannot_be_told() {
        let on = |stack| Subject { below: Below { stack, ..Below::default() }, ..block(FIRST) };
        let name = |kind: EngineKind, subjects: &[Subject]| stack_name(&kind.into(), subjects);
        let (native, other) = (on(Some("native")), on(Some("non-native")));
        assert_eq!(name(EngineKind::Iocp, std::slice::from_ref(&native)), "Windows native");
        assert_eq!(name(EngineKind::Iocp, std::slice::from_ref(&other)), "Windows non-native");
        assert_eq!(
            name(EngineKind::IoRing, std::slice::from_ref(&native)),
            "Windows native ioring"
        );
        let untold = "Windows (native or not: cannot be told)";
        assert_eq!(name(EngineKind::Iocp, &[native, other]), untold);
        assert_eq!(name(EngineKind::Iocp, &[on(None)]), untold);
        assert_eq!(name(EngineKind::Soft, &[on(None)]), "userspace soft");
    }

    #[test]
    fn a_disk_is_described_as_it_says() {
        let fake = Fake::new(vec![disk(1, "S1")]);
        let below = below_of(Disk::read(&fake, 1).unwrap());
        assert_eq!((below.stack, below.is_nvme), (Some("native"), true));
        let drive = Subject { below, ..block(FIRST) }.report_drive();
        assert_eq!(drive.serial.as_deref(), Some("S1"));
        assert_eq!(drive.kind, crate::report::DriveKind::Nvme);
    }
}
