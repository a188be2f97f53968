//! `/run/nvpoll`: made by root, written by root, believed only then.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nvpoll_spec::PciAddress;

use super::{RECORD_VERSION, Record};
use crate::Host;
use crate::error::HostError;
use crate::limits;
use crate::sysfs;

const FOLDER: &str = "/run/nvpoll";
const FOLDER_MODE: u32 = 0o755;
const RECORD_MODE: u32 = 0o644;

impl Host {
    /// The state folder, below the root.
    pub(crate) fn state_folder(&self) -> PathBuf {
        self.path(FOLDER)
    }

    pub(crate) fn record_path(&self, address: PciAddress) -> PathBuf {
        self.state_folder().join(format!("{address}.json"))
    }

    /// Whether the folder is there, after a look at whose it is.
    pub(crate) fn check_state_folder(&self) -> Result<bool, HostError> {
        let path = self.state_folder();
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(HostError::io("read", self.outside(&path), error)),
        };
        let seen = if meta.is_symlink() {
            Some("this is a symbolic link".to_owned())
        } else if !meta.is_dir() {
            Some("this is no directory".to_owned())
        } else {
            distrust(&meta)
        };
        match seen {
            None => Ok(true),
            Some(seen) => Err(HostError::State {
                path: self.outside(&path),
                seen: format!("{seen}, so the records in it may be forged"),
                remedy: "look at what is in it, then remove it as root".to_owned(),
            }),
        }
    }

    /// Makes the folder where it is not there.
    pub(crate) fn make_state_folder(&self) -> Result<PathBuf, HostError> {
        let path = self.state_folder();
        if !self.check_state_folder()? {
            match DirBuilder::new().mode(FOLDER_MODE).create(&path) {
                // The umask may have taken bits that others need to read the records.
                Ok(()) => fs::set_permissions(&path, fs::Permissions::from_mode(FOLDER_MODE))
                    .map_err(|error| HostError::io("make", self.outside(&path), error))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(HostError::io("make", self.outside(&path), error)),
            }
            self.check_state_folder()?;
        }
        Ok(path)
    }

    /// Writes a new record so that a crash leaves all of it or none: a new file, fsync, a link
    /// under its name, fsync of the folder. Fails with `AlreadyExists` when there is one: of two
    /// processes that take a drive at once, one writes the record and the other learns of it.
    pub(crate) fn store_record(&self, record: &Record) -> Result<(), HostError> {
        let folder = self.make_state_folder()?;
        let path = self.record_path(record.address);
        let fresh = folder.join(format!("{}.json.{}", record.address, std::process::id()));
        let result = serde_json::to_vec_pretty(record)
            .map_err(io::Error::from)
            .and_then(|text| write_new(&fresh, &text))
            .and_then(|()| fs::hard_link(&fresh, &path));
        let _ = fs::remove_file(&fresh);
        result
            .and_then(|()| File::open(&folder)?.sync_all())
            .map_err(|error| HostError::io("write", self.outside(&path), error))
    }

    /// Removes a record; that there is none is fine.
    pub(crate) fn remove_record(&self, address: PciAddress) -> Result<(), HostError> {
        let path = self.record_path(address);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(HostError::io("remove", self.outside(&path), error))
            }
            _ => Ok(()),
        }
    }

    /// Reads a record; `None` when there is none.
    pub(crate) fn load_record(&self, address: PciAddress) -> Result<Option<Record>, HostError> {
        let path = self.record_path(address);
        if !self.check_state_folder()? {
            return Ok(None);
        }
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(HostError::io("read", self.outside(&path), error)),
        };
        let seen = if meta.is_file() { distrust(&meta) } else { Some("this is no file".into()) };
        let record = match seen {
            Some(seen) => Err(seen),
            None => parse(&path, address),
        };
        record.map(Some).map_err(|seen| HostError::State {
            path: self.outside(&path),
            seen,
            remedy: format!(
                "look at {address} under /sys/bus/pci/devices, set its driver by hand if it is \
                 not as it should be, then remove this file"
            ),
        })
    }

    /// The addresses that have a record.
    pub(crate) fn recorded_addresses(&self) -> Result<Vec<PciAddress>, HostError> {
        if !self.check_state_folder()? {
            return Ok(Vec::new());
        }
        let path = self.state_folder();
        let names = sysfs::names(&path)
            .map_err(|error| HostError::io("list", self.outside(&path), error))?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }
}

/// Why a file's owner and mode do not do; `None` when only root (or this very user) writes it.
fn distrust(meta: &fs::Metadata) -> Option<String> {
    let own = nix::unistd::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        Some(format!("this belongs to user {}", meta.uid()))
    } else if meta.mode() & 0o022 != 0 {
        Some(format!("others may write this (mode {:o})", meta.mode() & 0o7777))
    } else {
        None
    }
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    // A half-written one of a crash is in the way; it was never renamed, so it means nothing.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(RECORD_MODE)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    file.set_permissions(fs::Permissions::from_mode(RECORD_MODE))?;
    file.write_all(text)?;
    file.sync_all()
}

/// A record's text, checked: what it says is written to sysfs later.
fn parse(path: &Path, address: PciAddress) -> Result<Record, String> {
    let text = sysfs::read(path, limits::RECORD_BYTES_MAX).map_err(|error| error.to_string())?;
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } =
        serde_json::from_slice(&text).map_err(|error| format!("this is no record: {error}"))?;
    if version != RECORD_VERSION {
        return Err(format!("this is a record of version {version}, not {RECORD_VERSION}"));
    }
    let record: Record =
        serde_json::from_slice(&text).map_err(|error| format!("this is no record: {error}"))?;
    if record.address != address {
        return Err(format!("this is a record of {}", record.address));
    }
    let drivers = [&record.driver, &record.driver_override, &Some(record.taken_for.clone())];
    if let Some(name) = drivers.into_iter().flatten().find(|name| !is_driver_name(name)) {
        return Err(format!("{name:?} in it is no driver's name"));
    }
    let words = [&record.power_control, &record.noiommu_mode];
    if let Some(word) = words.into_iter().flatten().find(|word| !is_driver_name(word)) {
        return Err(format!("{word:?} in it is no setting"));
    }
    Ok(record)
}

/// Names that the kernel gives drivers; no slash, so that one is a single folder.
pub(crate) fn is_driver_name(name: &str) -> bool {
    let fits = (1..=64).contains(&name.len()) && name != "." && name != "..";
    fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+ ".contains(&byte))
}
