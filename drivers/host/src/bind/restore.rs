//! Giving back: at the end, after a failure, or from the record alone after a crash.

use std::path::PathBuf;

use nvpoll_spec::PciAddress;
use serde::Serialize;

use super::UserDriver;
use super::change::Failed;
use super::checks::NOIOMMU_MODE;
use crate::Host;
use crate::error::{ChangeError, HostError, Refusal};
use crate::limits;
use crate::state::{Hold, Holder, Record, is_driver_name};
use crate::sysfs;

/// How a drive is to be given back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GiveBackOptions {
    /// The driver for a drive that no record tells about. Nothing is done with such a drive
    /// unless this names one.
    pub to: Option<String>,
}

/// What giving back came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was put back.
    Restored,
    /// It was as recorded already.
    AsItWas,
    /// The recorded drive is gone from its address; what is there now, if anything, was left
    /// alone.
    Gone,
    /// The record was of an earlier boot; nothing had to be done.
    EarlierBoot,
    /// No record told of it, and it was given to the driver that was asked for.
    Given,
}

/// A drive given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GivenBack {
    /// The drive.
    pub address: PciAddress,
    /// What was done.
    pub outcome: Outcome,
    /// The driver that it has now.
    pub driver: Option<String>,
    /// Whether every node that it had is there again.
    pub namespaces_back: bool,
    /// Nodes that did not come back in time.
    pub missing: Vec<PathBuf>,
    /// Nodes that came back under another name: before, now. The kernel gives a controller the
    /// lowest free number, so of several drives give back the one with the lowest first.
    pub renamed: Vec<(PathBuf, PathBuf)>,
}

impl GivenBack {
    pub(super) fn nothing(address: PciAddress) -> Self {
        Self {
            address,
            outcome: Outcome::AsItWas,
            driver: None,
            namespaces_back: true,
            missing: Vec::new(),
            renamed: Vec::new(),
        }
    }
}

impl Host {
    /// Gives a drive back as its record says, *no driver* included, and waits for its nodes.
    /// Works from the record alone, so also after a crash, from another process.
    ///
    /// # Errors
    /// [`HostError::Held`] while another process has it; [`HostError::Refused`] while something
    /// still drives it; [`HostError::Target`] when there is no record and no driver was named;
    /// [`HostError::Change`] when a step failed: the record stays, and the next try goes on.
    pub fn give_back(
        &self,
        address: PciAddress,
        options: &GiveBackOptions,
    ) -> Result<GivenBack, HostError> {
        let recorded = self.load_record(address)?;
        if recorded.is_none() {
            return self.give_unrecorded(address, options);
        }
        self.check_may_change(address, "unbind")?;
        let hold = self.hold(address)?;
        // Whoever had the lock may have given it back in the meantime.
        match self.load_record(address)? {
            Some(record) => {
                self.check_holder(&record)?;
                self.give_back_held(&record, hold)
            }
            None => {
                hold.remove();
                let driver = self.current_driver(address);
                Ok(GivenBack { driver, ..GivenBack::nothing(address) })
            }
        }
    }

    /// A drive that a running process took is not taken from it.
    fn check_holder(&self, record: &Record) -> Result<(), HostError> {
        match &record.holder {
            // This very process may try again what failed before.
            Holder::Process { pid, comm, .. }
                if *pid != std::process::id() && self.is_alive(&record.holder) =>
            {
                let by = format!("{comm} (pid {pid})");
                Err(HostError::Held { address: record.address, by })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn give_back_held(
        &self,
        record: &Record,
        hold: Hold,
    ) -> Result<GivenBack, HostError> {
        let address = record.address;
        let mut given = GivenBack::nothing(address);
        if !record.is_of_this_boot(self) {
            given.outcome = Outcome::EarlierBoot;
        } else {
            let put_back = match record.is_about(self) {
                true => self.put_back(record, &mut given),
                false => Ok(()),
            };
            match put_back {
                // Asked again: it may have been unplugged in the middle.
                Ok(()) if record.is_about(self) => {}
                Err(error) if !self.vanishes(record) => return Err(error),
                _ => self.forget_gone(record, &mut given)?,
            }
        }
        given.driver = self.current_driver(address);
        self.remove_record(address)?;
        hold.remove();
        Ok(given)
    }

    fn put_back(&self, record: &Record, given: &mut GivenBack) -> Result<(), HostError> {
        let address = record.address;
        if self.current_driver(address) != record.driver {
            self.check_closed(address)?;
            given.outcome = Outcome::Restored;
        }
        let failures = self.restore(record);
        if !failures.is_empty() {
            return Err(change_error(address, failures));
        }
        (given.missing, given.renamed) = self.wait_for_namespaces(record);
        given.namespaces_back = given.missing.is_empty();
        Ok(())
    }

    /// What is left to do for a drive that is not there any more.
    fn forget_gone(&self, record: &Record, given: &mut GivenBack) -> Result<(), HostError> {
        *given = GivenBack { outcome: Outcome::Gone, ..GivenBack::nothing(record.address) };
        // It is the machine's, not the drive's, and would stay on.
        self.restore_noiommu_mode(record)
            .map_err(|failed| change_error(record.address, vec![failed]))
    }

    /// Whether a drive on which a step has failed is being removed: the kernel takes the driver off
    /// first and the device's folder last, and refuses every step in between.
    fn vanishes(&self, record: &Record) -> bool {
        let gone = || (!record.is_about(self)).then_some(());
        self.wait(limits::REMOVAL_MAX, gone).is_some()
    }

    /// The kernel's unbind would wait for whoever has the drive open, this process included.
    fn check_closed(&self, address: PciAddress) -> Result<(), HostError> {
        let drive = self.drive(address)?;
        let bound_to_user = drive.driver.as_deref().and_then(UserDriver::from_name).is_some();
        let uses = if bound_to_user { self.userspace_users(&drive)? } else { Vec::new() };
        if uses.is_empty() {
            return Ok(());
        }
        let refusal = Refusal { address, drive: drive.label(), uses };
        Err(HostError::Refused(Box::new(refusal)))
    }

    /// Puts back everything that a record tells, as far as it can, and returns what failed. What
    /// is already as recorded is not touched, so it can be called again.
    pub(super) fn restore(&self, record: &Record) -> Vec<Failed> {
        let address = record.address;
        let mut failures = Vec::new();
        if self.current_driver(address) != record.driver {
            failures.extend(self.restore_driver(record).err());
        }
        failures.extend(self.set_override(address, record.driver_override.as_deref()).err());
        failures.extend(self.restore_power(record).err());
        failures.extend(self.restore_noiommu_mode(record).err());
        failures
    }

    fn restore_driver(&self, record: &Record) -> Result<(), Failed> {
        let address = record.address;
        self.unbind(address)?;
        let Some(driver) = &record.driver else { return Ok(()) };
        if !self.path("/sys/bus/pci/drivers").join(driver).exists() {
            // Its module may have been unloaded meanwhile; if not, the probe will tell.
            let _ = self.kernel.load_module(driver);
        }
        self.set_override(address, Some(driver))?;
        self.probe(address, driver)
    }

    fn restore_power(&self, record: &Record) -> Result<(), Failed> {
        let path = self.device_dir(&record.address).join("power/control");
        self.restore_setting(&path, record.power_control.as_deref(), "runtime power management")
    }

    /// Unless another drive still needs it.
    fn restore_noiommu_mode(&self, record: &Record) -> Result<(), Failed> {
        let needed = self.records_by_address().is_ok_and(|records| {
            let mut others = records.values().filter(|other| other.address != record.address);
            others.any(|other| {
                let group = self.iommu_group(other.address);
                group.is_some_and(|group| self.is_made_up(group.id))
            })
        });
        if needed {
            return Ok(());
        }
        let mode = record.noiommu_mode.as_deref();
        self.restore_setting(&self.path(NOIOMMU_MODE), mode, "vfio's no-IOMMU mode")
    }

    fn restore_setting(
        &self,
        path: &std::path::Path,
        was: Option<&str>,
        name: &str,
    ) -> Result<(), Failed> {
        match was {
            Some(was) if sysfs::value(path).as_deref() != Some(was) => {
                let step = format!("setting {name} to {was} again");
                self.kernel.write(path, was).map_err(|error| {
                    Failed::new(step, error.to_string(), &format!("write it to {}", path.display()))
                })
            }
            _ => Ok(()),
        }
    }

    /// After a failure while taking: what was put back, and what was not.
    pub(super) fn roll_back(&self, record: &Record, failed: Failed) -> HostError {
        let failures = self.restore(record);
        if !failures.is_empty() && self.vanishes(record) {
            let mut given = GivenBack::nothing(record.address);
            let forgotten = self.forget_gone(record, &mut given);
            return match forgotten.and_then(|()| self.remove_record(record.address)) {
                Ok(()) => HostError::Replaced {
                    address: record.address,
                    was: record.label(),
                    seen: format!("it was unplugged while it was taken: {failed}"),
                },
                Err(error) => error,
            };
        }
        let mut not_restored: Vec<String> = failures.iter().map(ToString::to_string).collect();
        if failures.is_empty() {
            let (missing, _) = self.wait_for_namespaces(record);
            let lost = missing.iter().map(|node| format!("{} did not come back", node.display()));
            not_restored.extend(lost);
            if let Err(error) = self.remove_record(record.address) {
                not_restored.push(error.to_string());
            }
        }
        let Failed { step, seen, remedy } = failed;
        let address = record.address;
        HostError::Change(Box::new(ChangeError { address, step, seen, remedy, not_restored }))
    }

    fn wait_for_namespaces(&self, record: &Record) -> (Vec<PathBuf>, Vec<(PathBuf, PathBuf)>) {
        let look = || {
            let drive = self.drive(record.address).ok();
            let seen = drive.map(|drive| self.compare_namespaces(record, &drive));
            // Of a drive that is gone nothing comes back.
            seen.or_else(|| (!record.is_about(self)).then(Default::default))
        };
        let back = self
            .wait(limits::NAMESPACES_BACK_MAX, || look().filter(|(missing, _)| missing.is_empty()));
        back.or_else(look).unwrap_or_default()
    }

    /// A drive that somebody else, or a crash before the record, left without the kernel's driver.
    fn give_unrecorded(
        &self,
        address: PciAddress,
        options: &GiveBackOptions,
    ) -> Result<GivenBack, HostError> {
        let drive = self.drive(address)?;
        let now = drive.driver.clone().unwrap_or_else(|| "no driver".to_owned());
        let to = match &options.to {
            Some(to) if is_driver_name(to) => to.clone(),
            _ => {
                return Err(HostError::Target {
                    name: address.to_string(),
                    seen: format!("nvpoll has not taken this drive (it is on {now})"),
                    remedy: format!(
                        "to give it to the kernel all the same: nvpoll unbind {address} --to nvme"
                    ),
                });
            }
        };
        self.check_may_change(address, "unbind")?;
        let hold = self.hold(address)?;
        let result = self.give_unrecorded_to(&drive, &to);
        hold.remove();
        result
    }

    fn give_unrecorded_to(&self, drive: &crate::Drive, to: &str) -> Result<GivenBack, HostError> {
        let address = drive.address;
        let mut given = GivenBack::nothing(address);
        given.driver = Some(to.to_owned());
        if drive.driver.as_deref() == Some(to) {
            return Ok(given);
        }
        let is_ours = |driver: &str| UserDriver::from_name(driver).is_some();
        if let Some(driver) = drive.driver.as_deref().filter(|driver| !is_ours(driver)) {
            return Err(HostError::Unsupported {
                address,
                seen: format!("it is on {driver}, which is no driver for userspace"),
                remedy: "unbind it there by that driver's own means".to_owned(),
            });
        }
        self.check_closed(address)?;
        let steps = || {
            self.unbind(address)?;
            self.set_override(address, Some(to))?;
            self.probe(address, to)
        };
        let mut failures: Vec<Failed> = steps().err().into_iter().collect();
        failures.extend(self.set_override(address, None).err());
        if !failures.is_empty() {
            return Err(change_error(address, failures));
        }
        // No record says what to wait for; the kernel's own driver shows something in the end.
        let shown = || self.drive(address).ok().filter(|drive| !drive.namespaces.is_empty());
        given.namespaces_back =
            to != "nvme" || self.wait(limits::NAMESPACES_BACK_MAX, shown).is_some();
        given.outcome = Outcome::Given;
        Ok(given)
    }
}

fn change_error(address: PciAddress, failures: Vec<Failed>) -> HostError {
    let not_restored = failures.iter().map(ToString::to_string).collect();
    let remedy = failures.into_iter().next().map_or_else(String::new, |failed| failed.remedy);
    HostError::Change(Box::new(ChangeError {
        address,
        step: "giving it back".to_owned(),
        seen: "a step did not work".to_owned(),
        remedy,
        not_restored,
    }))
}
