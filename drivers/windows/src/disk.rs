//! What disks and volumes say of themselves, read from the bytes that they answer.
//!
//! Layouts are those of winioctl.h and ntddstor.h for 64-bit Windows; the codes are asserted against
//! Windows' own where there are any.

use crate::limits::PARTITIONS_MAX;
use crate::{Calls, DiskInterface, Handle, OpenMode, Win32Error};
use std::path::{Path, PathBuf};

const GET_DEVICE_NUMBER: u32 = 0x2d_1080;
const QUERY_PROPERTY: u32 = 0x2d_1400;
const GET_LENGTH: u32 = 0x7_405c;
const GET_GEOMETRY: u32 = 0x7_00a0;
const GET_LAYOUT: u32 = 0x7_0050;
const GET_ATTRIBUTES: u32 = 0x7_00f0;
const GET_EXTENTS: u32 = 0x56_0000;

#[cfg(windows)]
const _: () = {
    use windows_sys::Win32::System::Ioctl as own;
    assert!(GET_DEVICE_NUMBER == own::IOCTL_STORAGE_GET_DEVICE_NUMBER);
    assert!(QUERY_PROPERTY == own::IOCTL_STORAGE_QUERY_PROPERTY);
    assert!(GET_LENGTH == own::IOCTL_DISK_GET_LENGTH_INFO);
    assert!(GET_GEOMETRY == own::IOCTL_DISK_GET_DRIVE_GEOMETRY_EX);
    assert!(GET_LAYOUT == own::IOCTL_DISK_GET_DRIVE_LAYOUT_EX);
    assert!(GET_ATTRIBUTES == own::IOCTL_DISK_GET_DISK_ATTRIBUTES);
};

/// `BusTypeNvme` (ntddstor.h, STORAGE_BUS_TYPE).
const BUS_NVME: u32 = 17;

/// A number of `bytes` at `at`; `None` beyond the end.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let part = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(part.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(part.try_into().ok()?))
}

/// A device that is open to be asked, closed when dropped.
struct Asked<'a, C: Calls> {
    calls: &'a C,
    handle: Handle,
}

impl<'a, C: Calls> Asked<'a, C> {
    fn open(calls: &'a C, path: &Path, mode: OpenMode) -> Result<Self, Win32Error> {
        Ok(Self { calls, handle: calls.open(path, mode)? })
    }

    /// The answer to `code`, of at most `bytes_max`.
    fn ask(&self, code: u32, input: &[u8], bytes_max: usize) -> Result<Vec<u8>, Win32Error> {
        let mut answer = vec![0; bytes_max];
        let bytes = self.calls.control(self.handle, code, input, &mut answer)?;
        answer.truncate(bytes);
        Ok(answer)
    }
}

impl<C: Calls> Drop for Asked<'_, C> {
    fn drop(&mut self) {
        self.calls.close(self.handle);
    }
}

/// An answer that is too short to be what was asked for.
const SHORT_ANSWER: Win32Error = Win32Error::MORE_DATA;

/// Path of disk `number`.
pub fn path_of(number: u32) -> PathBuf {
    PathBuf::from(format!(r"\\.\PhysicalDrive{number}"))
}

/// Size and sector of an open disk or volume, both in bytes; each `None` where it does not say.
///
/// A volume's own size is its length; a disk's geometry also says its size.
pub fn geometry<C: Calls>(
    calls: &C,
    path: &Path,
) -> Result<(Option<u64>, Option<u32>), Win32Error> {
    let device = Asked::open(calls, path, OpenMode::LOOK)?;
    // DISK_GEOMETRY_EX: Geometry.BytesPerSector at 20, DiskSize at 24.
    let geometry = device.ask(GET_GEOMETRY, &[], 4096).ok();
    let sector = geometry.as_deref().and_then(|answer| u32_at(answer, 20));
    let disk_bytes = geometry.as_deref().and_then(|answer| u64_at(answer, 24));
    // GET_LENGTH_INFORMATION: Length at 0.
    let length = device.ask(GET_LENGTH, &[], 8).ok();
    let length = length.and_then(|answer| u64_at(&answer, 0));
    let is_disk = matches!(crate::Name::of(path), crate::Name::Disk(_));
    Ok((length.or(disk_bytes.filter(|_| is_disk)), sector))
}

/// The table on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionTable {
    /// Master boot record, with so many partitions.
    Mbr(u32),
    /// GUID partition table, with so many partitions.
    Gpt(u32),
    /// None.
    Raw,
}

/// What a disk says of itself. What it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// `N` of `\\.\PhysicalDriveN`.
    pub number: u32,
    /// The service of its device node.
    pub service: Option<String>,
    /// Usable size.
    pub size_bytes: Option<u64>,
    /// Logical sector.
    pub sector_bytes: Option<u32>,
    /// Model.
    pub model: Option<String>,
    /// Serial number: the controller's own where it is an NVMe drive that says it.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// On an NVMe bus.
    pub is_nvme: Option<bool>,
    /// Taken offline, so that Windows mounts nothing on it.
    pub is_offline: Option<bool>,
    /// Set read-only.
    pub is_read_only: Option<bool>,
    /// Partition table.
    pub table: Option<PartitionTable>,
}

/// Which stack of Windows drives a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// nvmedisk.sys: NVMe to the end.
    Native,
    /// disk.sys: by SCSI, and translated.
    NonNative,
}

impl Stack {
    /// By the service of the disk's device node; `None` for another one.
    pub fn of_service(service: &str) -> Option<Self> {
        match service.to_ascii_lowercase().as_str() {
            "nvmedisk" => Some(Self::Native),
            "disk" => Some(Self::NonNative),
            _ => None,
        }
    }
}

impl Disk {
    /// Which stack drives it; `None` where that cannot be told.
    pub fn stack(&self) -> Option<Stack> {
        self.service.as_deref().and_then(Stack::of_service)
    }

    /// Reads disk `number`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn read<C: Calls>(calls: &C, number: u32) -> Result<Self, Win32Error> {
        let path = path_of(number);
        let interfaces = calls.disks().unwrap_or_default();
        let of_number =
            |interface: &&DiskInterface| number_of(calls, Path::new(&interface.path)) == Ok(number);
        let service = interfaces.iter().find(of_number).and_then(|found| found.service.clone());
        let device = Asked::open(calls, &path, OpenMode::QUERY)?;
        let mut disk = Self { number, service, ..Self::default() };
        if let Ok(answer) = device.ask(GET_GEOMETRY, &[], 4096) {
            disk.sector_bytes = u32_at(&answer, 20);
            disk.size_bytes = u64_at(&answer, 24);
        }
        // GET_DISK_ATTRIBUTES: Attributes at 8; bit 0 offline, bit 1 read-only.
        if let Ok(answer) = device.ask(GET_ATTRIBUTES, &[], 16) {
            let attributes = u64_at(&answer, 8);
            disk.is_offline = attributes.map(|bits| bits & 1 != 0);
            disk.is_read_only = attributes.map(|bits| bits & 2 != 0);
        }
        let layout = device.ask(GET_LAYOUT, &[], 48 + 144 * PARTITIONS_MAX);
        disk.table = layout.ok().and_then(|answer| table(&answer));
        if let Ok(answer) = device.ask(QUERY_PROPERTY, &device_query(), 4096) {
            disk.take_descriptor(&answer);
        }
        if let Ok(answer) = device.ask(QUERY_PROPERTY, &identify_query(), 48 + 4096) {
            disk.take_identity(&answer);
        }
        Ok(disk)
    }

    /// STORAGE_DEVICE_DESCRIPTOR: offsets of texts at 12 to 24, the bus at 28.
    fn take_descriptor(&mut self, answer: &[u8]) {
        let text = |at: usize| {
            let start = u32_at(answer, at).filter(|start| *start != 0)? as usize;
            let rest = answer.get(start..)?;
            printable(rest.split(|byte| *byte == 0).next()?)
        };
        let words = [text(12), text(16)].into_iter().flatten().collect::<Vec<_>>();
        self.model = Some(words.join(" ")).filter(|model| !model.is_empty());
        self.firmware = text(20);
        self.serial = text(24);
        self.is_nvme = u32_at(answer, 28).map(|bus| bus == BUS_NVME);
    }

    /// What the controller itself says (Identify Controller, §5.15.2.2, Figure 247):
    /// serial number at 4, model at 24, firmware at 64. Windows' own texts are cut, and its serial
    /// number of an NVMe drive is another identifier, so that no other system's result would match.
    fn take_identity(&mut self, answer: &[u8]) {
        // STORAGE_PROTOCOL_DATA_DESCRIPTOR: the specific data from 8 on, ProtocolDataOffset in it at 16
        // and counted from its start.
        let Some(offset) = u32_at(answer, 8 + 16) else { return };
        let page = answer.get(8..).and_then(|rest| rest.get(offset as usize..));
        let field = |from: usize, bytes: usize| page?.get(from..from + bytes).and_then(printable);
        if let (Some(serial), Some(model)) = (field(4, 20), field(24, 40)) {
            (self.serial, self.model) = (Some(serial), Some(model));
            self.firmware = field(64, 8).or(self.firmware.take());
        }
    }
}

/// Trimmed; `None` where it is empty, or no printable ASCII.
fn printable(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    let plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    (plain && !text.is_empty()).then(|| text.to_owned())
}

/// STORAGE_PROPERTY_QUERY: StorageDeviceProperty (0), PropertyStandardQuery (0).
fn device_query() -> [u8; 12] {
    [0; 12]
}

/// STORAGE_PROPERTY_QUERY of StorageAdapterProtocolSpecificProperty (49), with
/// STORAGE_PROTOCOL_SPECIFIC_DATA from 8 on: ProtocolTypeNvme (3), NVMeDataTypeIdentify (1), CNS 1 (the
/// controller), data of 4096 bytes behind its own 40. The answer has the same form, and the buffer
/// is as long as the answer.
fn identify_query() -> Vec<u8> {
    let mut query = vec![0; 48 + 4096];
    for (at, value) in [(0, 49u32), (8, 3), (12, 1), (16, 1), (24, 40), (28, 4096)] {
        if let Some(place) = query.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
    query
}

/// DRIVE_LAYOUT_INFORMATION_EX: style at 0, entries at 4; each entry of 144 bytes from 48 on, an
/// MBR's with its type at 32 (0 is an unused one), a GPT's always in use.
fn table(answer: &[u8]) -> Option<PartitionTable> {
    let count = u32_at(answer, 4)?;
    match u32_at(answer, 0)? {
        0 => {
            let entries = answer.get(48..).unwrap_or_default().chunks(144);
            let used = entries
                .take(count as usize)
                .filter(|entry| entry.get(32).is_some_and(|kind| *kind != 0));
            Some(PartitionTable::Mbr(used.count() as u32))
        }
        1 => Some(PartitionTable::Gpt(count)),
        2 => Some(PartitionTable::Raw),
        _ => None,
    }
}

/// STORAGE_DEVICE_NUMBER: DeviceType at 0, DeviceNumber at 4.
fn number_of<C: Calls>(calls: &C, path: &Path) -> Result<u32, Win32Error> {
    let answer = Asked::open(calls, path, OpenMode::QUERY)?.ask(GET_DEVICE_NUMBER, &[], 12)?;
    u32_at(&answer, 4).ok_or(SHORT_ANSWER)
}

/// All disks of this machine, by number.
///
/// # Errors
/// When Windows does not list them, or says no number of one.
pub fn all<C: Calls>(calls: &C) -> Result<Vec<Disk>, Win32Error> {
    let mut numbers = calls
        .disks()?
        .iter()
        .map(|interface| number_of(calls, Path::new(&interface.path)))
        .collect::<Result<Vec<_>, _>>()?;
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|number| Disk::read(calls, number)).collect()
}

/// The disks that a volume lies on (VOLUME_DISK_EXTENTS: how many at 0, then 24 bytes each from 8 on,
/// DiskNumber first).
///
/// # Errors
/// When the volume cannot be opened or does not say; a volume on no disk (a network's, an optical
/// drive's) does not.
pub fn disks_of_volume<C: Calls>(calls: &C, volume: &Path) -> Result<Vec<u32>, Win32Error> {
    let device = Asked::open(calls, volume, OpenMode::QUERY)?;
    let answer = device.ask(GET_EXTENTS, &[], 8 + 24 * 256)?;
    let count = u32_at(&answer, 0).ok_or(SHORT_ANSWER)? as usize;
    (0..count)
        .map(|index| u32_at(&answer, 8 + 24 * index).ok_or(SHORT_ANSWER))
        .collect::<Result<Vec<_>, _>>()
}

/// Something that uses a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// A volume on it, and where that is mounted.
    Volume {
        /// Its name.
        name: String,
        /// Drive letters and folders.
        mounts: Vec<String>,
    },
    /// Something that could not be examined counts as a use: what, and why not.
    Unknown(String),
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Volume { name, mounts } if mounts.is_empty() => write!(f, "volume {name}"),
            Self::Volume { mounts, .. } => write!(f, "the volume of {}", mounts.join(", ")),
            Self::Unknown(what) => f.write_str(what),
        }
    }
}

/// What uses `disk`: every volume that has a part on it, and everything that could not be examined.
/// Empty only where Windows said of every volume that it lies elsewhere.
pub fn uses<C: Calls>(calls: &C, disk: &Disk) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut unknown = |what: String| uses.push(Use::Unknown(what));
    if disk.table.is_none() {
        unknown("its partition table could not be read".to_owned());
    }
    if disk.is_offline.is_none() {
        unknown("it does not say whether it is online".to_owned());
    }
    let volumes = match calls.volumes() {
        Ok(volumes) => volumes,
        Err(error) => {
            unknown(format!("the volumes of this machine could not be listed: {error}"));
            return uses;
        }
    };
    for volume in volumes {
        match disks_of_volume(calls, Path::new(&volume.name)) {
            Ok(numbers) if numbers.contains(&disk.number) => {
                uses.push(Use::Volume { name: volume.name, mounts: volume.mounts });
            }
            Ok(_) => {}
            // A volume of a device that has no disk below it, as an optical drive's.
            Err(Win32Error::INVALID_FUNCTION) => {}
            Err(error) => uses.push(Use::Unknown(format!(
                "it could not be told which disk volume {} lies on: {error}",
                volume.name
            ))),
        }
    }
    uses
}

/// Whether `disk` may be written as a whole: nothing uses it, and all of that could be told.
///
/// # Errors
/// One clause: what uses it or could not be told, and what to do.
pub fn check_unused<C: Calls>(calls: &C, disk: &Disk) -> Result<(), String> {
    let number = disk.number;
    let uses = uses(calls, disk);
    let volumes: Vec<_> = uses.iter().filter(|found| matches!(found, Use::Volume { .. })).collect();
    let words = |uses: &[&Use]| uses.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if !volumes.is_empty() {
        return Err(format!(
            "it is in use by {}; take the disk offline with `Set-Disk -Number {number} -IsOffline $true` in an elevated PowerShell, and look once more at what is on it",
            words(&volumes)
        ));
    }
    match uses.as_slice() {
        [] => Ok(()),
        unknown => Err(format!(
            "what uses it could not be examined: {}; it counts as in use",
            words(&unknown.iter().collect::<Vec<_>>())
        )),
    }
}

impl Disk {
    /// What would be lost by writing it, in words.
    pub fn contents(&self) -> String {
        let online = match self.is_offline {
            Some(true) => "offline",
            Some(false) => "online",
            None => "not known to be offline",
        };
        match self.table {
            Some(PartitionTable::Raw) => format!("no partition table is on it ({online})"),
            Some(PartitionTable::Mbr(count)) => {
                format!("an MBR partition table with {count} partitions is on it ({online})")
            }
            Some(PartitionTable::Gpt(count)) => {
                format!("a GPT with {count} partitions is on it ({online})")
            }
            None => format!("its partition table could not be read ({online})"),
        }
    }
}

/// Bytes and sector of a disk or a volume, by asking it, or of a file under a disk's name.
///
/// # Errors
/// When it cannot be opened, or does not say how large it is.
pub fn size_of<C: Calls>(calls: &C, path: &Path) -> Result<(u64, Option<u32>), Win32Error> {
    let (bytes, sector) = geometry(calls, path)?;
    match bytes.filter(|bytes| *bytes > 0) {
        Some(bytes) => Ok((bytes, sector)),
        None => {
            let device = Asked::open(calls, path, OpenMode::LOOK)?;
            Ok((calls.file_bytes(device.handle)?, sector))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fake, FakeDisk, Volume};

    fn disk(number: u32, service: &str) -> FakeDisk {
        FakeDisk {
            path: path_of(number).display().to_string(),
            data: vec![0; 1 << 20],
            sector_bytes: 512,
            number: Some(number),
            service: Some(service.to_owned()),
            serial: format!("S{number}"),
            identify: true,
            attributes: Some(0),
            layout: Some((1, 2)),
            ..FakeDisk::default()
        }
    }

    fn volume(name: &str, extents: Result<Vec<u32>, Win32Error>) -> FakeDisk {
        FakeDisk { path: name.to_owned(), extents: Some(extents), ..FakeDisk::default() }
    }

    fn listed(name: &str, mounts: &[&str]) -> Volume {
        Volume { name: name.to_owned(), mounts: mounts.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn a_disk_says_what_it_is_and_its_service_says_which_stack() {
        let fake = Fake::new(vec![disk(1, "nvmedisk"), disk(0, "Disk"), disk(7, "storahci")]);
        let disks = all(&fake).unwrap();
        let stacks: Vec<_> = disks.iter().map(|disk| (disk.number, disk.stack())).collect();
        let (native, other) = (Some(Stack::Native), Some(Stack::NonNative));
        assert_eq!(stacks, [(0, other), (1, native), (7, None)]);
        let first = &disks[1];
        assert_eq!((first.size_bytes, first.sector_bytes), (Some(1 << 20), Some(512)));
        assert_eq!(first.serial.as_deref(), Some("S1"), "the controller's own");
        assert_eq!(first.model.as_deref(), Some("ACME Fast Drive 1TB"));
        assert_eq!(first.firmware.as_deref(), Some("1.0.7"));
        assert_eq!((first.is_nvme, first.is_offline), (Some(true), Some(false)));
        assert_eq!(first.table, Some(PartitionTable::Gpt(2)));
        assert_eq!(fake.open_handles(), 0, "all were closed");
    }

    #[test]
    fn a_disk_that_answers_little_leaves_the_rest_unknown() {
        let poor = FakeDisk {
            identify: false,
            attributes: None,
            layout: None,
            service: None,
            ..disk(3, "")
        };
        let found = Disk::read(&Fake::new(vec![poor]), 3).unwrap();
        assert_eq!((found.stack(), found.is_offline, found.table), (None, None, None));
        assert_eq!(found.model.as_deref(), Some("NVMe ACME Fast 1TB"));
        assert_eq!(found.serial.as_deref(), Some("0000_0001_0002_0003."), "Windows' own");
        let refuses = FakeDisk { refuses: Some(Win32Error::ACCESS_DENIED), ..disk(4, "disk") };
        assert_eq!(Disk::read(&Fake::new(vec![refuses]), 4), Err(Win32Error::ACCESS_DENIED));
        assert_eq!(Disk::read(&Fake::default(), 5), Err(Win32Error::FILE_NOT_FOUND));
    }

    #[test]
    fn tables_are_told_apart() {
        let of = |layout| {
            let disk = FakeDisk { layout, ..disk(0, "disk") };
            Disk::read(&Fake::new(vec![disk]), 0).unwrap().table
        };
        assert_eq!(of(Some((0, 2))), Some(PartitionTable::Mbr(2)));
        assert_eq!(of(Some((0, 0))), Some(PartitionTable::Mbr(0)));
        assert_eq!(of(Some((2, 0))), Some(PartitionTable::Raw));
        assert_eq!(of(Some((9, 0))), None);
        assert_eq!(table(&[1, 0, 0]), None);
    }

    #[test]
    fn a_volume_on_the_disk_and_all_that_is_not_known_is_a_use() {
        let fake = Fake::new(vec![
            disk(0, "disk"),
            disk(1, "disk"),
            volume(r"\\?\Volume{a}", Ok(vec![0])),
            volume(r"\\?\Volume{b}", Ok(vec![2, 1])),
            volume(r"\\?\Volume{cd}", Err(Win32Error::INVALID_FUNCTION)),
        ]);
        fake.lists(Ok(vec![
            listed(r"\\?\Volume{a}", &[r"C:\"]),
            listed(r"\\?\Volume{b}", &[r"D:\", r"C:\mnt\"]),
            listed(r"\\?\Volume{cd}", &[r"E:\"]),
        ]));
        let of = |number| {
            let found = uses(&fake, &Disk::read(&fake, number).unwrap());
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let refusal = check_unused(&fake, &Disk::read(&fake, 1).unwrap()).unwrap_err();
        assert!(refusal.contains(r"D:\, C:\mnt\"), "{refusal}");
        assert!(refusal.contains("Set-Disk -Number 1 -IsOffline $true"), "{refusal}");
        assert_eq!(of(0), [r"the volume of C:\"]);
        assert_eq!(of(1), [r"the volume of D:\, C:\mnt\"]);
        fake.lists(Err(Win32Error::ACCESS_DENIED));
        assert!(of(0)[0].contains("could not be listed: Windows error 5"), "{:?}", of(0));
        fake.lists(Ok(vec![listed(r"\\?\Volume{gone}", &[])]));
        assert!(of(0)[0].contains("could not be told which disk"), "{:?}", of(0));
    }

    #[test]
    fn a_disk_that_does_not_say_whether_it_is_used_is() {
        let poor = FakeDisk { attributes: None, layout: None, ..disk(3, "disk") };
        let fake = Fake::new(vec![poor]);
        let found = uses(&fake, &Disk::read(&fake, 3).unwrap());
        let refusal = check_unused(&fake, &Disk::read(&fake, 3).unwrap()).unwrap_err();
        assert!(refusal.contains("counts as in use"), "{refusal}");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|found| matches!(found, Use::Unknown(_))));
    }

    #[test]
    fn an_unused_disk_has_no_use() {
        let fake = Fake::new(vec![FakeDisk { layout: Some((2, 0)), ..disk(3, "disk") }]);
        let disk = Disk::read(&fake, 3).unwrap();
        assert_eq!(check_unused(&fake, &disk), Ok(()));
        assert_eq!(disk.contents(), "no partition table is on it (online)");
    }

    #[test]
    fn sizes_of_disks_volumes_and_what_says_none() {
        let volume = FakeDisk {
            path: r"\\.\X:".to_owned(),
            data: vec![0; 4096],
            sector_bytes: 4096,
            ..FakeDisk::default()
        };
        let fake = Fake::new(vec![disk(0, "disk"), volume]);
        let of = |path: &str| geometry(&fake, Path::new(path));
        assert_eq!(of(r"\\.\PhysicalDrive0"), Ok((Some(1 << 20), Some(512))));
        assert_eq!(of(r"\\.\X:"), Ok((Some(4096), Some(4096))));
        assert_eq!(of(r"\\.\Y:"), Err(Win32Error::FILE_NOT_FOUND));
    }
}
