//! What must hold before anything is changed.

use std::fmt;

use nvpoll_spec::PciAddress;
use serde::Serialize;

use super::{TakeOptions, UserDriver};
use crate::Host;
use crate::drive::Drive;
use crate::error::HostError;
use crate::machine::Presence;
use crate::state::Holder;
use crate::sysfs;

/// A member of a drive's IOMMU group whose driver keeps the group from userspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupBlocker {
    /// Where it is.
    pub address: PciAddress,
    /// PCI class code.
    pub class: u32,
    /// Its driver.
    pub driver: String,
}

impl fmt::Display for GroupBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (class {:06x}) on {}", self.address, self.class, self.driver)
    }
}

fn no_driver(address: PciAddress, driver: UserDriver, why: &str) -> HostError {
    let module = driver.modules().first().unwrap_or(&driver.name()).to_owned();
    HostError::Unsupported {
        address,
        seen: format!("this kernel has no driver {}{why}", driver.name()),
        remedy: format!("load it with `modprobe {module}`, or install the kernel's modules"),
    }
}

/// Drivers that leave the group's DMA to userspace (`driver_managed_dma` in the kernel's source).
fn leaves_dma_alone(driver: &str) -> bool {
    matches!(driver, "pci-stub" | "pcieport") || driver.contains("vfio")
}

const NO_IOMMU: &str =
    "no IOMMU stands in front of it, so it could write all memory of this machine";
const TURN_IOMMU_ON: &str = "turn the IOMMU on (in the firmware, and intel_iommu=on or amd_iommu=on on the kernel's command line)";

pub(super) const NOIOMMU_MODE: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

impl Host {
    /// Members of the drive's IOMMU group that are bound to drivers of the kernel: VFIO does not
    /// open the group while they are.
    pub fn group_blockers(&self, drive: &Drive) -> Vec<GroupBlocker> {
        let others = drive.iommu_group.iter().flat_map(|group| &group.others);
        others
            .filter_map(|&address| {
                let dir = self.device_dir(&address);
                let driver = sysfs::link_name(dir.join("driver"))?;
                let class = sysfs::hex(dir.join("class")).unwrap_or(0);
                (!leaves_dma_alone(&driver)).then_some(GroupBlocker { address, class, driver })
            })
            .collect()
    }

    /// The best driver for a drive on this machine, and why.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] when there is no IOMMU in front of the drive and `options` do not
    /// accept that: each driver lets it write all memory then.
    pub fn choose_driver(
        &self,
        drive: &Drive,
        options: &TakeOptions,
    ) -> Result<(UserDriver, String), HostError> {
        if let Some(group) = drive.iommu_group.as_ref().filter(|_| self.has_iommu(drive)) {
            let why = format!("it is behind the IOMMU, in group {}", group.id);
            return Ok((UserDriver::VfioPci, why));
        }
        if !options.allow_no_iommu {
            return Err(HostError::Unsupported {
                address: drive.address,
                seen: NO_IOMMU.to_owned(),
                remedy: format!(
                    "{TURN_IOMMU_ON}, or accept that with --unsafe-no-iommu, or by naming --driver uio_pci_generic"
                ),
            });
        }
        let vfio = self.path("/sys/module/vfio");
        if vfio.exists() && !self.path(NOIOMMU_MODE).exists() {
            let why = "no IOMMU stands in front of it, and this kernel's vfio has no no-IOMMU mode";
            return Ok((UserDriver::UioPciGeneric, why.to_owned()));
        }
        let why = "no IOMMU stands in front of it, and --unsafe-no-iommu accepts that";
        Ok((UserDriver::VfioPci, why.to_owned()))
    }

    /// Whether vfio made a group up for a device without IOMMU.
    pub(crate) fn is_made_up(&self, group: u32) -> bool {
        let name = self.path(format!("/sys/kernel/iommu_groups/{group}/name"));
        sysfs::value(name).as_deref() == Some("vfio-noiommu")
    }

    /// Whether an IOMMU stands in front of a drive.
    pub fn has_iommu(&self, drive: &Drive) -> bool {
        drive.iommu_group.as_ref().is_some_and(|group| !self.is_made_up(group.id))
    }

    /// Refuses a drive that nvpoll has already.
    pub(super) fn check_not_taken(&self, drive: &Drive) -> Result<(), HostError> {
        let address = drive.address;
        let Some(record) = self.load_record(address)? else { return Ok(()) };
        if !record.is_about(self) {
            // Another boot's, or about a drive that has been unplugged: it binds nobody.
            return self.remove_record(address);
        }
        let (seen, remedy) = match &record.holder {
            Holder::Persistent => (
                format!("it is handed over to {} already", record.taken_for),
                format!("use it there, or give it back first: nvpoll unbind {address}"),
            ),
            Holder::Process { pid, comm, .. } if self.is_alive(&record.holder) => (
                format!("{comm} (pid {pid}) has taken it"),
                "wait until that ends, or end it".to_owned(),
            ),
            Holder::Process { pid, comm, .. } => (
                format!("{comm} (pid {pid}) took it and is gone without giving it back"),
                format!("give it back first: nvpoll unbind {address}"),
            ),
        };
        Err(HostError::AlreadyTaken { address, seen, remedy })
    }

    /// Refuses what cannot work on this machine.
    pub(super) fn check_machine(
        &self,
        drive: &Drive,
        driver: UserDriver,
        options: &TakeOptions,
    ) -> Result<(), HostError> {
        match driver {
            UserDriver::VfioPci => self.check_vfio(drive, options),
            UserDriver::UioPciGeneric => self.check_uio(drive),
        }
    }

    fn check_vfio(&self, drive: &Drive, options: &TakeOptions) -> Result<(), HostError> {
        let address = drive.address;
        let unsupported = |seen: String, remedy: &str| {
            Err(HostError::Unsupported { address, seen, remedy: remedy.to_owned() })
        };
        if !self.has_iommu(drive) {
            if !options.allow_no_iommu {
                return unsupported(
                    NO_IOMMU.to_owned(),
                    &format!("{TURN_IOMMU_ON}, or accept that with --unsafe-no-iommu"),
                );
            }
            return Ok(());
        }
        let blockers = self.group_blockers(drive);
        if !blockers.is_empty() {
            let group = drive.iommu_group.as_ref().map_or(0, |group| group.id);
            let list: Vec<String> = blockers.iter().map(ToString::to_string).collect();
            return unsupported(
                format!("its IOMMU group {group} holds devices in use: {}", list.join(", ")),
                "unbind those as well, or move the drive to a slot with a group of its own",
            );
        }
        Ok(())
    }

    fn check_uio(&self, drive: &Drive) -> Result<(), HostError> {
        let domain = drive.iommu_group.as_ref().and_then(|group| group.domain.as_deref());
        match domain {
            // A translated domain that nobody maps into faults on every address.
            Some(domain) if domain.starts_with("DMA") => Err(HostError::Unsupported {
                address: drive.address,
                seen: format!(
                    "it is behind the IOMMU (domain {domain}), which uio_pci_generic cannot map"
                ),
                remedy: "use vfio-pci, or boot with iommu=pt".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// What to put back later when a take has to turn vfio's no-IOMMU mode on.
    pub(super) fn noiommu_mode_to_change(
        &self,
        drive: &Drive,
        driver: UserDriver,
        options: &TakeOptions,
    ) -> Option<String> {
        let wanted =
            driver == UserDriver::VfioPci && options.allow_no_iommu && !self.has_iommu(drive);
        let now = sysfs::value(self.path(NOIOMMU_MODE));
        now.filter(|now| wanted && now != "Y" && now != "1")
    }

    /// Refuses a driver that this kernel has not and cannot load.
    pub(super) fn check_had(&self, drive: &Drive, driver: UserDriver) -> Result<(), HostError> {
        match self.driver_presence(driver) {
            Presence::Missing(why) => Err(no_driver(drive.address, driver, &format!(" ({why})"))),
            Presence::There | Presence::Loadable | Presence::NotKnown => Ok(()),
        }
    }

    /// Loads a driver's modules and sees to it that the driver is there.
    pub(super) fn load_driver(&self, drive: &Drive, driver: UserDriver) -> Result<(), HostError> {
        let folder = self.path("/sys/bus/pci/drivers").join(driver.name());
        let mut failed = None;
        for module in driver.modules() {
            // A part that is built into the kernel has no module to load, so what counts is
            // whether the driver is there afterwards.
            if let Err(error) = self.load_unless_there(&folder, driver, module) {
                failed.get_or_insert(error);
            }
        }
        if folder.exists() {
            return Ok(());
        }
        let why = failed.map_or_else(String::new, |error| format!(" ({error})"));
        Err(no_driver(drive.address, driver, &why))
    }

    fn load_unless_there(
        &self,
        folder: &std::path::Path,
        driver: UserDriver,
        module: &str,
    ) -> std::io::Result<()> {
        let underscored = module.replace('-', "_");
        let is_driver = underscored == driver.name().replace('-', "_");
        let loaded = self.path("/sys/module").join(underscored).exists();
        if loaded || (is_driver && folder.exists()) {
            return Ok(());
        }
        self.kernel.load_module(module)
    }
}
