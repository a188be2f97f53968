//! Taking a drive from the kernel and giving it back as it was.
//!
//! The order of a take, so that a crash between any two steps can be repaired from the record:
//! lock, check, record, override, unbind, probe, read back, override as it was, wait for the node.

mod change;
mod checks;
mod restore;

use std::io::ErrorKind::AlreadyExists;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvpoll_spec::PciAddress;
use serde::Serialize;

pub use self::checks::GroupBlocker;
pub use self::restore::{GiveBackOptions, GivenBack, Outcome};
use crate::Host;
use crate::drive::Drive;
use crate::error::{HostError, Refusal};
use crate::kernel::Claim;
use crate::limits;
use crate::state::{Hold, Holder, RECORD_VERSION, Record, RecordedNamespace};
use crate::sysfs;
pub use crate::user_driver::UserDriver;
use crate::uses::UseKind;

/// How a drive is to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeOptions {
    /// Take it although no IOMMU keeps it from writing any memory of the machine. Sets
    /// `enable_unsafe_noiommu_mode` of the vfio module until the drive is given back.
    pub allow_no_iommu: bool,
    /// Take it although another controller of this machine leads to the same namespaces.
    pub allow_shared: bool,
    /// Leave it taken when this process ends, until someone gives it back.
    pub persistent: bool,
}

/// The limit on locked memory, in bytes; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// In force.
    pub soft: Option<u64>,
    /// As high as the process may raise it.
    pub hard: Option<u64>,
}

/// A drive that this process has taken.
///
/// Dropped without [`Taken::give_back`], it is given back all the same unless it was taken to
/// stay; when that fails, the record stays and [`Host::leftovers`] tells the next command. Close
/// everything that drives it first: the kernel waits for that.
#[derive(Debug)]
#[must_use = "dropping it gives the drive back"]
pub struct Taken {
    host: Host,
    /// The drive as it was found.
    found: Box<Drive>,
    /// Its record.
    record: Record,
    driver: UserDriver,
    /// Its group's number, under vfio-pci.
    group: Option<u32>,
    nodes: Vec<PathBuf>,
    hold: Option<Hold>,
}

impl Taken {
    /// Where the drive is.
    pub fn address(&self) -> PciAddress {
        self.record.address
    }

    /// The drive as it was found, with the kernel's names for it.
    pub fn found(&self) -> &Drive {
        &self.found
    }

    /// The driver that it has now.
    pub fn driver(&self) -> UserDriver {
        self.driver
    }

    /// Its IOMMU group's number; without an IOMMU that of the group vfio made up.
    pub fn group(&self) -> Option<u32> {
        self.group
    }

    /// The nodes through which it can be driven: `/dev/vfio/12` or `/dev/vfio/noiommu-0`, then
    /// `/dev/vfio/devices/vfio0` where the kernel has it; `/dev/uio0`.
    pub fn nodes(&self) -> &[PathBuf] {
        &self.nodes
    }

    /// Gives the drive back as it was found.
    ///
    /// # Errors
    /// Those of [`Host::give_back`].
    pub fn give_back(mut self) -> Result<GivenBack, HostError> {
        let Some(hold) = self.hold.take() else { return Ok(GivenBack::nothing(self.address())) };
        self.host.give_back_held(&self.record, hold)
    }

    /// Leaves the drive where it is, and lets go of its lock: what was taken to stay.
    fn leave(&mut self) {
        self.hold = None;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        match self.record.holder {
            Holder::Persistent => self.leave(),
            Holder::Process { .. } => {
                if let Some(hold) = self.hold.take() {
                    // An error leaves the record, which is what tells of it.
                    let _ = self.host.give_back_held(&self.record, hold);
                }
            }
        }
    }
}

impl Host {
    /// Takes a drive from the kernel for a userspace driver. Close what this process has open on
    /// it first: that does not count as use here, but it keeps the controller's number busy, and
    /// the drive comes back under another name.
    ///
    /// # Errors
    /// [`HostError::Refused`] with the evidence when anything uses the drive or could not be
    /// examined; [`HostError::Held`] and [`HostError::AlreadyTaken`] when nvpoll has it already;
    /// [`HostError::Unsupported`] when the machine lacks what the driver needs. All of these
    /// before anything is changed. [`HostError::Change`] when a step failed: it says what was put
    /// back and what could not be.
    pub fn take(
        &self,
        drive: &Drive,
        driver: UserDriver,
        options: &TakeOptions,
    ) -> Result<Taken, HostError> {
        self.check_may_change(drive.address, "bind")?;
        let hold = self.hold(drive.address)?;
        self.take_held(drive.address, driver, options, hold).map_err(|(error, hold)| {
            // Without a record the lock file is of no use any more.
            if let (Ok(None), Some(hold)) = (self.load_record(drive.address), hold) {
                hold.remove();
            }
            error
        })
    }

    fn take_held(
        &self,
        address: PciAddress,
        driver: UserDriver,
        options: &TakeOptions,
        hold: Hold,
    ) -> Result<Taken, (HostError, Option<Hold>)> {
        let prepared = (|| {
            // What the caller holds may be old by now.
            let drive = self.drive(address)?;
            self.check_not_taken(&drive)?;
            self.check_machine(&drive, driver, options)?;
            let claims = self.check_unused(&drive, options)?;
            self.load_driver(&drive, driver)?;
            let record = self.new_record(&drive, driver, options);
            self.store_record(&record).map_err(|error| match error {
                // Another process was quicker; its record says more than the file system does.
                HostError::Io { ref source, .. } if source.kind() == AlreadyExists => {
                    self.check_not_taken(&drive).err().unwrap_or(error)
                }
                _ => error,
            })?;
            Ok((drive, claims, record))
        })();
        let (drive, claims, record) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Err((error, Some(hold))),
        };
        match self.hand_over(&record, driver, claims) {
            Ok((group, nodes)) => Ok(Taken {
                host: self.clone(),
                found: Box::new(drive),
                record,
                driver,
                group,
                nodes,
                hold: Some(hold),
            }),
            Err(failed) => Err((self.roll_back(&record, failed), Some(hold))),
        }
    }

    /// Whether [`Host::take`] would be refused, without touching or locking anything.
    ///
    /// # Errors
    /// Those of [`Host::take`] that come before its first change, but for the lock and for a
    /// module that is installed and will not load.
    pub fn may_take(
        &self,
        drive: &Drive,
        driver: UserDriver,
        options: &TakeOptions,
    ) -> Result<(), HostError> {
        let drive = self.drive(drive.address)?;
        self.check_not_taken(&drive)?;
        self.check_machine(&drive, driver, options)?;
        self.check_may_change(drive.address, "bind")?;
        self.check_had(&drive, driver)?;
        self.check_unused(&drive, options).map(drop)
    }

    /// Refuses a drive that anything uses.
    fn check_unused(&self, drive: &Drive, options: &TakeOptions) -> Result<Vec<Claim>, HostError> {
        let found = self.without_visitors(|survey| {
            let (mut uses, claims) = survey.uses_and_claims(drive);
            if options.allow_shared {
                uses.retain(|found| found.kind != UseKind::SharedNamespace);
            }
            (uses, claims)
        })?;
        found.map_err(|uses| {
            let refusal = Refusal { address: drive.address, drive: drive.label(), uses };
            HostError::Refused(Box::new(refusal))
        })
    }

    fn new_record(&self, drive: &Drive, driver: UserDriver, options: &TakeOptions) -> Record {
        let dir = self.device_dir(&drive.address);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Record {
            version: RECORD_VERSION,
            address: drive.address,
            sysfs_inode: self.device_inode(&drive.address).unwrap_or(0),
            boot_id: self.boot_id(),
            taken_unix_s: since_epoch.unwrap_or(Duration::ZERO).as_secs(),
            holder: if options.persistent { Holder::Persistent } else { self.this_process() },
            taken_for: driver.name().to_owned(),
            driver: drive.driver.clone(),
            driver_override: drive.driver_override.clone(),
            power_control: sysfs::value(dir.join("power/control")),
            noiommu_mode: self.noiommu_mode_to_change(drive, driver, options),
            model: drive.model.clone(),
            serial: drive.serial.clone(),
            firmware: drive.firmware.clone(),
            controller: drive.controller.clone(),
            namespaces: self.recorded_namespaces(drive),
        }
    }

    fn recorded_namespaces(&self, drive: &Drive) -> Vec<RecordedNamespace> {
        let mut left = limits::ALIASES_MAX;
        let record = |namespace: &crate::Namespace| {
            let mut aliases = namespace.node.as_ref().map_or_else(Vec::new, |n| self.aliases(n));
            aliases.truncate(left);
            left -= aliases.len();
            RecordedNamespace {
                nsid: namespace.nsid,
                node: namespace.node.clone(),
                generic: namespace.generic.clone(),
                size_bytes: namespace.size_bytes,
                aliases,
            }
        };
        drive.namespaces.iter().map(record).collect()
    }

    /// The links below `/dev/disk` (by-id, by-path …) that lead to a node.
    fn aliases(&self, node: &std::path::Path) -> Vec<PathBuf> {
        let target = sysfs::canonical(&self.path(node));
        let disk = self.path("/dev/disk");
        let mut aliases = Vec::new();
        for kind in sysfs::names_or_none(&disk) {
            for name in sysfs::names_or_none(disk.join(&kind)) {
                let link = disk.join(&kind).join(name);
                if sysfs::canonical(&link) == target {
                    aliases.push(self.outside(&link));
                }
            }
        }
        aliases
    }

    /// Gives the nodes of a taken drive, and its lock, to a user, so that nvpoll runs without
    /// root. The nodes vanish with the driver, and their ownership with them. Returns what was
    /// given.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] under uio_pci_generic and without an IOMMU, which only root may
    /// use; [`HostError::Io`] when a node cannot be given.
    pub fn set_owner(&self, taken: &Taken, uid: u32, gid: u32) -> Result<Vec<PathBuf>, HostError> {
        let hold = taken.hold.as_ref();
        self.set_owner_of(taken.address(), taken.driver, &taken.nodes, hold, uid, gid)
    }

    /// Gives the nodes of a drive that is handed over already (`nvpoll bind`) to a user, as
    /// [`Host::set_owner`] does.
    ///
    /// # Errors
    /// [`HostError::Held`] while a process has the drive; [`HostError::AlreadyTaken`] when a
    /// process took it for itself, or a crash left it; [`HostError::Target`] when nvpoll has not
    /// taken it; those of [`Host::set_owner`].
    pub fn give_to(
        &self,
        address: PciAddress,
        uid: u32,
        gid: u32,
    ) -> Result<Vec<PathBuf>, HostError> {
        self.check_may_change(address, "bind --user")?;
        let hold = self.hold(address)?;
        let drive = self.drive(address)?;
        let handed_over = |record: &&Record| record.holder == Holder::Persistent;
        let Some(record) = drive.record.as_ref().filter(handed_over) else {
            let error = self.check_not_taken(&drive).err().unwrap_or_else(|| HostError::Target {
                name: address.to_string(),
                seen: "nvpoll has not taken this drive".to_owned(),
                remedy: format!("take it first: nvpoll bind {address}"),
            });
            return Err(error);
        };
        let driver = drive.driver.as_deref().and_then(UserDriver::from_name);
        let nodes = self.user_nodes(&drive);
        let (Some(driver), false) = (driver, nodes.is_empty()) else {
            let now = drive.driver.as_deref().unwrap_or("no driver");
            return Err(HostError::AlreadyTaken {
                address,
                seen: format!("it was taken for {} and is on {now} now", record.taken_for),
                remedy: format!("give it back first: nvpoll unbind {address}"),
            });
        };
        self.set_owner_of(address, driver, &nodes, Some(&hold), uid, gid)
    }

    /// Whether a user can drive a drive through the nodes that a driver makes for it, once he has
    /// them.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] under uio_pci_generic and without an IOMMU, for all but root:
    /// raw addresses of memory and VFIO's no-IOMMU mode take capabilities, not nodes.
    pub fn check_may_own(
        &self,
        drive: &Drive,
        driver: UserDriver,
        uid: u32,
    ) -> Result<(), HostError> {
        if uid == 0 || (driver == UserDriver::VfioPci && self.has_iommu(drive)) {
            return Ok(());
        }
        Err(HostError::Unsupported {
            address: drive.address,
            seen: "without an IOMMU only root may drive it".to_owned(),
            remedy: "turn the IOMMU on (intel_iommu=on or amd_iommu=on) and use vfio-pci"
                .to_owned(),
        })
    }

    fn set_owner_of(
        &self,
        address: PciAddress,
        driver: UserDriver,
        nodes: &[PathBuf],
        hold: Option<&Hold>,
        uid: u32,
        gid: u32,
    ) -> Result<Vec<PathBuf>, HostError> {
        self.check_may_own(&self.drive(address)?, driver, uid)?;
        let lock = hold.map(|hold| self.outside(hold.path()));
        let given: Vec<PathBuf> = nodes.iter().cloned().chain(lock).collect();
        for node in &given {
            self.kernel
                .chown(&self.path(node), uid, gid)
                .map_err(|error| HostError::io("change the owner of", node, error))?;
        }
        Ok(given)
    }

    /// This process's limit on locked memory, which DMA buffers count against under VFIO.
    ///
    /// # Errors
    /// When `/proc` does not tell.
    pub fn memlock(&self) -> Result<Memlock, HostError> {
        let path = format!("/proc/{}/limits", std::process::id());
        let text = sysfs::text(self.path(&path)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        let mut words = line.unwrap_or_default().split_whitespace();
        let mut next = || match words.next()? {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        };
        match (next(), next()) {
            (Some(soft), Some(hard)) => Ok(Memlock { soft, hard }),
            _ => {
                let error = std::io::Error::other("there is no line for locked memory");
                Err(HostError::io("read", path, error))
            }
        }
    }
}
