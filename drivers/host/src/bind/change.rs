//! The steps of a driver change, each read back.

use std::io;
use std::path::PathBuf;

use nvpoll_spec::PciAddress;

use super::UserDriver;
use super::checks::NOIOMMU_MODE;
use crate::Host;
use crate::drive::Drive;
use crate::kernel::Claim;
use crate::limits;
use crate::state::Record;
use crate::sysfs;

/// A step that failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) step: String,
    pub(super) seen: String,
    pub(super) remedy: String,
}

impl Failed {
    pub(super) fn new(step: impl Into<String>, seen: impl Into<String>, remedy: &str) -> Self {
        Self { step: step.into(), seen: seen.into(), remedy: remedy.to_owned() }
    }

    fn write(step: String, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => "run it as root",
            io::ErrorKind::ReadOnlyFilesystem => {
                "/sys is read-only here; run it outside the container, or with --privileged"
            }
            io::ErrorKind::ResourceBusy => "see which driver holds it, and the kernel's log",
            io::ErrorKind::TimedOut => {
                "the device does not answer; the kernel's log says more, and a reboot may be needed"
            }
            _ => "the kernel's log (dmesg) may say why",
        };
        Self::new(step, error.to_string(), remedy)
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.step, self.seen)
    }
}

impl Host {
    /// From the found driver to the wanted one. The claims keep others from mounting the drive
    /// until its nodes are gone. Returns the group and the nodes.
    pub(super) fn hand_over(
        &self,
        record: &Record,
        driver: UserDriver,
        claims: Vec<Claim>,
    ) -> Result<(Option<u32>, Vec<PathBuf>), Failed> {
        let address = record.address;
        if record.noiommu_mode.is_some() {
            self.set(&self.path(NOIOMMU_MODE), "Y", "turning vfio's no-IOMMU mode on")?;
        }
        if self.current_driver(address).as_deref() != Some(driver.name()) {
            // The override first: from the unbind on, nobody else's probe may take the drive.
            self.set_override(address, Some(driver.name()))?;
            let unbound = self.unbind(address);
            drop(claims);
            unbound?;
            self.probe(address, driver.name())?;
            self.set_override(address, record.driver_override.as_deref())?;
        }
        self.nodes_of(address, driver)
    }

    pub(super) fn current_driver(&self, address: PciAddress) -> Option<String> {
        sysfs::link_name(self.device_dir(&address).join("driver"))
    }

    fn set(&self, path: &std::path::Path, text: &str, step: &str) -> Result<(), Failed> {
        self.kernel.write(path, text).map_err(|error| Failed::write(step.to_owned(), &error))
    }

    /// Writes the override and reads it back. A single newline clears it (`driver_set_override`
    /// in drivers/base/driver.c).
    pub(super) fn set_override(
        &self,
        address: PciAddress,
        driver: Option<&str>,
    ) -> Result<(), Failed> {
        let path = self.device_dir(&address).join("driver_override");
        if sysfs::value(&path).as_deref() == driver {
            return Ok(());
        }
        let step = match driver {
            Some(driver) => format!("setting driver_override to {driver}"),
            None => "clearing driver_override".to_owned(),
        };
        let text = driver.map_or_else(|| "\n".to_owned(), |driver| format!("{driver}\n"));
        self.set(&path, &text, &step)?;
        match sysfs::value(&path) {
            now if now.as_deref() == driver => Ok(()),
            now => {
                let seen = format!("it reads {} afterwards", now.as_deref().unwrap_or("(null)"));
                Err(Failed::new(
                    step,
                    seen,
                    "see whether another tool sets it (driverctl, libvirt)",
                ))
            }
        }
    }

    /// Takes the current driver off; fine when there is none.
    pub(super) fn unbind(&self, address: PciAddress) -> Result<(), Failed> {
        let Some(driver) = self.current_driver(address) else { return Ok(()) };
        let step = format!("unbinding it from {driver}");
        let path = self.device_dir(&address).join("driver/unbind");
        let written = self.kernel.write(&path, &address.to_string());
        let gone = || self.current_driver(address).is_none().then_some(());
        match written {
            // Somebody else was quicker.
            Err(error) if gone().is_none() => Err(Failed::write(step, &error)),
            _ => self.wait(limits::DRIVER_CHANGE_MAX, gone).ok_or_else(|| {
                let seconds = limits::DRIVER_CHANGE_MAX.as_secs();
                let seen = format!("the driver is still there after {seconds} s");
                Failed::new(step, seen, "the kernel's log (dmesg) may say why")
            }),
        }
    }

    /// Lets the named driver, which the override points to, take the device.
    pub(super) fn probe(&self, address: PciAddress, driver: &str) -> Result<(), Failed> {
        let step = format!("binding it to {driver}");
        let arrived = || self.current_driver(address).filter(|now| now == driver).map(drop);
        let path = self.path("/sys/bus/pci/drivers_probe");
        let probed = self.kernel.write(&path, &address.to_string());
        if arrived().is_some() {
            return Ok(());
        }
        // drivers_probe keeps the reason of a refusal to itself; the driver's own bind tells it.
        let path = self.path("/sys/bus/pci/drivers").join(driver).join("bind");
        let bound = self.kernel.write(&path, &address.to_string());
        if self.wait(limits::DRIVER_CHANGE_MAX, arrived).is_some() {
            return Ok(());
        }
        let seconds = limits::DRIVER_CHANGE_MAX.as_secs();
        match (probed, bound, self.current_driver(address)) {
            (_, _, Some(other)) => {
                Err(Failed::new(step, format!("{other} has it instead"), "end what bound it there"))
            }
            (_, Err(error), None) | (Err(error), Ok(()), None) => Err(Failed::write(step, &error)),
            (Ok(()), Ok(()), None) => {
                let seen = format!("it has no driver after {seconds} s");
                Err(Failed::new(step, seen, "the kernel's log (dmesg) may say why"))
            }
        }
    }

    /// Waits for the nodes that a userspace driver's device has.
    fn nodes_of(
        &self,
        address: PciAddress,
        driver: UserDriver,
    ) -> Result<(Option<u32>, Vec<PathBuf>), Failed> {
        let seconds = limits::NODE_APPEARS_MAX.as_secs();
        let found = self.wait(limits::NODE_APPEARS_MAX, || match driver {
            UserDriver::VfioPci => self.vfio_node_names(address),
            UserDriver::UioPciGeneric => self.uio_node_names(address),
        });
        found.ok_or_else(|| {
            let wanted = match driver {
                UserDriver::VfioPci => "/dev/vfio",
                UserDriver::UioPciGeneric => "/dev/uio",
            };
            let step = format!("waiting for its node under {wanted}");
            let seen = format!("there is none after {seconds} s");
            Failed::new(step, seen, "see that /dev is a devtmpfs, or that udev runs")
        })
    }

    /// The nodes through which a drive can be driven that is on a userspace driver already; none
    /// on any other. In the order of [`Taken::nodes`](crate::Taken::nodes).
    pub fn user_nodes(&self, drive: &Drive) -> Vec<PathBuf> {
        let found = match drive.driver.as_deref().and_then(UserDriver::from_name) {
            Some(UserDriver::VfioPci) => self.vfio_node_names(drive.address),
            Some(UserDriver::UioPciGeneric) => self.uio_node_names(drive.address),
            None => None,
        };
        found.map(|(_, nodes)| nodes).unwrap_or_default()
    }

    fn vfio_node_names(&self, address: PciAddress) -> Option<(Option<u32>, Vec<PathBuf>)> {
        let group = self.iommu_group(address)?.id;
        let prefix = if self.is_made_up(group) { "noiommu-" } else { "" };
        let node = PathBuf::from(format!("/dev/vfio/{prefix}{group}"));
        let cdevs = sysfs::names_or_none(self.device_dir(&address).join("vfio-dev"));
        let cdev = cdevs.first().map(|name| PathBuf::from("/dev/vfio/devices").join(name));
        // A kernel without groups (VFIO_GROUP off) has the device's own node only.
        let there = |node: &PathBuf| self.path(node).exists();
        let nodes: Vec<PathBuf> = [Some(node), cdev].into_iter().flatten().filter(there).collect();
        (!nodes.is_empty()).then_some((Some(group), nodes))
    }

    fn uio_node_names(&self, address: PciAddress) -> Option<(Option<u32>, Vec<PathBuf>)> {
        let names = sysfs::names_or_none(self.device_dir(&address).join("uio"));
        let node = PathBuf::from("/dev").join(names.first()?);
        self.path(&node).exists().then_some((None, vec![node]))
    }

    /// Whether the kernel shows every recorded namespace of a drive again, with its node.
    /// Returns those that are missing and those that have another name.
    pub(super) fn compare_namespaces(
        &self,
        record: &Record,
        drive: &Drive,
    ) -> (Vec<PathBuf>, Vec<(PathBuf, PathBuf)>) {
        let mut missing = Vec::new();
        let mut renamed = Vec::new();
        for was in &record.namespaces {
            let is = drive.namespaces.iter().find(|namespace| namespace.nsid == was.nsid);
            let pairs = [
                (&was.node, is.and_then(|is| is.node.as_ref())),
                (&was.generic, is.and_then(|is| is.generic.as_ref())),
            ];
            for (was, is) in pairs {
                match (was, is.filter(|node| self.path(node).exists())) {
                    (None, _) => {}
                    (Some(was), None) => missing.push(was.clone()),
                    (Some(was), Some(is)) if was != is => renamed.push((was.clone(), is.clone())),
                    (Some(_), Some(_)) => {}
                }
            }
        }
        (missing, renamed)
    }
}
