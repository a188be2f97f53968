//! What a drive was before it was taken: one record a drive under `/run/nvpoll`, and one lock.

mod folder;
mod lock;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvpoll_spec::PciAddress;
use serde::{Deserialize, Serialize};

pub(crate) use self::folder::is_driver_name;
pub use self::lock::Hold;
use crate::Host;
use crate::error::HostError;
use crate::sysfs;

/// The version of the record's format that this build writes and reads.
pub(crate) const RECORD_VERSION: u32 = 1;

/// Who keeps a drive away from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Holder {
    /// Handed over until someone gives it back (`nvpoll bind`).
    Persistent,
    /// Taken by a process for as long as it runs (`nvpoll compare`).
    Process {
        /// Process id.
        pid: u32,
        /// Its start, in clock ticks since boot (field 22 of `/proc/PID/stat`): process ids are
        /// used again, the pair is not.
        start_ticks: u64,
        /// Its command name.
        comm: String,
    },
}

/// A namespace as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedNamespace {
    /// Namespace identifier.
    pub nsid: u32,
    /// Block node.
    pub node: Option<PathBuf>,
    /// Generic character node.
    pub generic: Option<PathBuf>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Links below `/dev/disk` that led to it.
    pub aliases: Vec<PathBuf>,
}

/// A drive as it was found, written before the first change to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format.
    pub version: u32,
    /// The drive.
    pub address: PciAddress,
    /// The kernel's number of the device's sysfs folder: a drive plugged in later has another.
    pub sysfs_inode: u64,
    /// The boot during which this was written: the next one starts from scratch.
    pub boot_id: Option<String>,
    /// When, in seconds of Unix time.
    pub taken_unix_s: u64,
    /// Who took it.
    pub holder: Holder,
    /// The driver that it was taken for.
    pub taken_for: String,
    /// The driver that it had, or none.
    pub driver: Option<String>,
    /// The driver override that it had, or none.
    pub driver_override: Option<String>,
    /// Runtime power management as it was (`on` or `auto`).
    pub power_control: Option<String>,
    /// What `enable_unsafe_noiommu_mode` said, when taking the drive changed it.
    pub noiommu_mode: Option<String>,
    /// Model number.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware revision.
    pub firmware: Option<String>,
    /// The kernel's name of the controller.
    pub controller: Option<String>,
    /// Its namespaces.
    pub namespaces: Vec<RecordedNamespace>,
}

impl Record {
    /// Whether it describes the device that is at its address now, in this boot.
    pub(crate) fn is_about(&self, host: &Host) -> bool {
        self.is_of_this_boot(host)
            && host.device_inode(&self.address).ok() == Some(self.sysfs_inode)
    }

    pub(crate) fn is_of_this_boot(&self, host: &Host) -> bool {
        match (&self.boot_id, host.boot_id()) {
            (Some(then), Some(now)) => *then == now,
            _ => true,
        }
    }

    /// `model, serial S` as far as they were known.
    pub fn label(&self) -> String {
        match (&self.model, &self.serial) {
            (Some(model), Some(serial)) => format!("{model}, serial {serial}"),
            (None, Some(serial)) => format!("serial {serial}"),
            (Some(model), None) => model.clone(),
            (None, None) => "unknown model".to_owned(),
        }
    }

    /// The namespace that a name led to when the drive was taken: `Some(None)` for the
    /// controller's own names.
    pub(crate) fn names(&self, path: &Path) -> Option<Option<u32>> {
        if self.controller.as_deref().is_some_and(|name| path == Path::new("/dev").join(name)) {
            return Some(None);
        }
        let is = |node: &Option<PathBuf>| node.as_deref() == Some(path);
        let leads_to = |ns: &&RecordedNamespace| {
            is(&ns.node) || is(&ns.generic) || ns.aliases.iter().any(|alias| alias == path)
        };
        self.namespaces.iter().find(leads_to).map(|ns| Some(ns.nsid))
    }
}

/// A record that somebody has to know of: a drive that a dead process left with a userspace
/// driver, or one that is handed over until it is given back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leftover {
    /// The drive.
    pub address: PciAddress,
    /// Its model and serial number.
    pub drive: String,
    /// Who took it.
    pub holder: Holder,
    /// Whether that process still runs.
    pub alive: bool,
    /// The driver that it has now.
    pub driver_now: Option<String>,
    /// The driver that it had.
    pub driver_found: Option<String>,
    /// The driver that it was taken for.
    pub taken_for: String,
}

impl Leftover {
    /// Whether its process is gone, so that only `nvpoll unbind` gives the drive back.
    pub fn is_orphan(&self) -> bool {
        !self.alive && matches!(self.holder, Holder::Process { .. })
    }

    /// Whether it was to be handed over, or given back again, and that did not come to its end:
    /// `nvpoll bind` was killed at it, or works at it now.
    pub fn is_unfinished(&self) -> bool {
        self.holder == Holder::Persistent && self.driver_now.as_ref() != Some(&self.taken_for)
    }
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let none = "no driver";
        let now = self.driver_now.as_deref().unwrap_or(none);
        let found = self.driver_found.as_deref().unwrap_or(none);
        let Self { address, drive, .. } = self;
        match &self.holder {
            Holder::Persistent if self.is_unfinished() => {
                write!(
                    f,
                    "{address} ({drive}) is on {now}, between {found} and {}: ",
                    self.taken_for
                )?;
                write!(f, "unless a `bind` or `unbind` works at it now, it was interrupted, and ")?;
                write!(f, "`nvpoll unbind {address}` gives the drive back")
            }
            Holder::Persistent => {
                write!(f, "{address} ({drive}) is handed over to {now}, was on {found}; ")?;
                write!(f, "`nvpoll unbind {address}` gives it back")
            }
            Holder::Process { pid, comm, .. } if self.alive => {
                write!(f, "{address} ({drive}) is in the hands of {comm} (pid {pid})")
            }
            Holder::Process { pid, comm, .. } => {
                write!(
                    f,
                    "{address} ({drive}) was left on {now} by {comm} (pid {pid}), which is "
                )?;
                write!(f, "gone; it was on {found}: `nvpoll unbind {address}` gives it back")
            }
        }
    }
}

impl Host {
    /// The record of one drive, when it is taken.
    ///
    /// # Errors
    /// When the record is there and cannot be read or trusted.
    pub fn record(&self, address: PciAddress) -> Result<Option<Record>, HostError> {
        self.load_record(address)
    }

    /// The records of all drives that are taken.
    ///
    /// # Errors
    /// When one is there and cannot be read or trusted.
    pub fn records(&self) -> Result<Vec<Record>, HostError> {
        Ok(self.records_by_address()?.into_values().collect())
    }

    /// What is recorded as taken: by whom, whether they still run, and what has the drive now.
    /// Records of an earlier boot are left out; nothing of what they say holds any more.
    ///
    /// # Errors
    /// When a record cannot be read or trusted.
    pub fn leftovers(&self) -> Result<Vec<Leftover>, HostError> {
        self.leftovers_one_by_one()?.into_iter().collect()
    }

    /// The same, so that a record which cannot be trusted does not hide the others.
    ///
    /// # Errors
    /// When the folder cannot be read or trusted.
    pub fn leftovers_one_by_one(&self) -> Result<Vec<Result<Leftover, HostError>>, HostError> {
        let records = self.recorded_addresses()?.into_iter().map(|address| self.record(address));
        let leftover = |record: Result<Option<Record>, HostError>| match record {
            Ok(Some(record)) if record.is_of_this_boot(self) => Some(Ok(self.leftover(record))),
            // It may be removed between the listing and the reading.
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        Ok(records.filter_map(leftover).collect())
    }

    fn leftover(&self, record: Record) -> Leftover {
        Leftover {
            address: record.address,
            drive: record.label(),
            alive: self.is_alive(&record.holder),
            driver_now: sysfs::link_name(self.device_dir(&record.address).join("driver")),
            driver_found: record.driver,
            taken_for: record.taken_for,
            holder: record.holder,
        }
    }

    pub(crate) fn records_by_address(&self) -> Result<BTreeMap<PciAddress, Record>, HostError> {
        let mut records = BTreeMap::new();
        for address in self.recorded_addresses()? {
            // It may be removed between the listing and the reading.
            if let Some(record) = self.load_record(address)? {
                records.insert(address, record);
            }
        }
        Ok(records)
    }

    /// Whether a record's process still runs.
    pub(crate) fn is_alive(&self, holder: &Holder) -> bool {
        match holder {
            Holder::Persistent => false,
            Holder::Process { pid, start_ticks, .. } => {
                self.start_ticks(*pid) == Some(*start_ticks)
            }
        }
    }

    /// This process as a holder.
    pub(crate) fn this_process(&self) -> Holder {
        let pid = std::process::id();
        Holder::Process {
            pid,
            start_ticks: self.start_ticks(pid).unwrap_or(0),
            comm: self.comm(pid).unwrap_or_else(|| "nvpoll".to_owned()),
        }
    }

    /// When a process started, in clock ticks since boot.
    fn start_ticks(&self, pid: u32) -> Option<u64> {
        let stat = sysfs::text(self.path(format!("/proc/{pid}/stat")))?;
        // The name in parentheses may hold anything, so count from the last one: state is field
        // 3, the start field 22 (proc_pid_stat(5)).
        stat.rsplit_once(')')?.1.split_whitespace().nth(22 - 3)?.parse().ok()
    }

    /// A process's command name.
    pub(crate) fn comm(&self, pid: u32) -> Option<String> {
        sysfs::text(self.path(format!("/proc/{pid}/comm")))
    }

    pub(crate) fn boot_id(&self) -> Option<String> {
        sysfs::value(self.path("/proc/sys/kernel/random/boot_id"))
    }
}
