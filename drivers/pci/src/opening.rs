//! What opening a function takes on every transport of Linux: its place in sysfs, its command
//! register, and messages that say which step failed.

use crate::PciError;
use nvpoll_mem::MappedRegisters;
use nvpoll_spec::PciAddress;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Offset of the command register in configuration space, and its memory-space, bus-master and
/// interrupt-disable bits (PCI Local Bus Specification 3.0, §6.2.2).
const PCI_COMMAND: u64 = 4;
const PCI_COMMAND_MEMORY: u16 = 1 << 1;
const PCI_COMMAND_MASTER: u16 = 1 << 2;
const PCI_COMMAND_INTX_DISABLE: u16 = 1 << 10;

/// The steps of opening one function through one transport, each with its own message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub address: PciAddress,
    pub transport: &'static str,
}

impl Opening {
    /// `result`, or what failed and what to do about it.
    pub fn step<T>(&self, what: &str, hint: &str, result: io::Result<T>) -> Result<T, PciError> {
        result.map_err(|source| PciError::Open {
            location: self.address.to_string(),
            transport: self.transport,
            what: what.to_owned(),
            source,
            hint: hint.to_owned(),
        })
    }

    /// The function is not as this transport needs it.
    pub fn unusable<T>(&self, reason: impl Into<String>) -> Result<T, PciError> {
        let (location, reason) = (self.address.to_string(), reason.into());
        Err(PciError::Unusable { location, transport: self.transport, reason })
    }

    /// The function's folder in sysfs.
    pub fn sysfs(&self) -> PathBuf {
        Path::new("/sys/bus/pci/devices").join(self.address.to_string())
    }

    /// Refuses a function that another driver has, or none.
    pub fn check_driver(&self, wanted: &str) -> Result<(), PciError> {
        let driver = driver_of(self.address);
        if driver.as_deref() == Some(wanted) {
            return Ok(());
        }
        let seen = driver.map_or("no driver".to_owned(), |name| format!("driver {name}"));
        let address = self.address;
        self.unusable(format!(
            "it has {seen}, not {wanted}; run `nvpoll bind {address} --driver {wanted}` first"
        ))
    }

    /// The number of the function's IOMMU group, also of one that vfio made up.
    pub fn group_number(&self) -> Option<u32> {
        link_name(&self.sysfs().join("iommu_group"))?.parse().ok()
    }

    /// Opens a node that root owns, unless it was given to somebody. `hints` say what to do about
    /// other errors.
    pub fn open_node(&self, path: &str, hints: &[(i32, &str)]) -> Result<File, PciError> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let hint = match opened.as_ref().map_err(io::Error::raw_os_error) {
            Err(Some(libc::EACCES | libc::EPERM)) => {
                "run as root, or have root prepare the drive: `nvpoll bind TARGET --user NAME`"
            }
            Err(Some(number)) => {
                hints.iter().find(|(other, _)| *other == number).map_or("", |(_, hint)| hint)
            }
            _ => "",
        };
        self.step(&format!("opening {path}"), hint, opened)
    }

    /// Sets memory space and bus master in the command register; without the latter no DMA leaves
    /// the device. `config` has the configuration space from byte `at` on.
    ///
    /// The interrupt pin is disabled: the admin completion queue always interrupts (NVMe 1.4,
    /// §3.1.10), nobody here listens, and both VFIO and UIO let the pin on, so that a line which is
    /// shared with others would storm.
    pub fn enable_bus_master(&self, config: &File, at: u64) -> Result<(), PciError> {
        let bits = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
        let changed = change_command(config, at, |command| command | bits);
        self.step("setting the PCI command register", "", changed)
    }

    /// Maps `bytes` of BAR 0, which begins at byte `offset` of `file`.
    pub fn map_registers(
        &self,
        file: &File,
        offset: u64,
        bytes: u64,
        hint: &str,
    ) -> Result<Arc<MappedRegisters>, PciError> {
        let Some(length) = usize::try_from(bytes).ok().filter(|&length| length > 0) else {
            return self
                .unusable(format!("BAR 0 has {bytes} bytes; an NVMe controller's has some"));
        };
        let map = memmap2::MmapOptions::new().offset(offset).len(length).map_raw(file);
        Ok(MappedRegisters::new(self.step("mapping BAR 0", hint, map)?))
    }

    /// PCI vendor and device.
    pub fn ids(&self) -> Option<(u16, u16)> {
        let read = |file: &str| {
            let text = fs::read_to_string(self.sysfs().join(file)).ok()?;
            u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
        };
        Some((read("vendor")?, read("device")?))
    }

    /// The NUMA node that the function hangs on; the kernel says -1 where it does not know.
    pub fn numa_node(&self) -> Option<u32> {
        fs::read_to_string(self.sysfs().join("numa_node")).ok()?.trim().parse().ok()
    }
}

/// Clears bus master: from here on the device reaches no memory.
pub(crate) fn disable_bus_master(config: &File, at: u64) -> io::Result<()> {
    change_command(config, at, |command| command & !PCI_COMMAND_MASTER)
}

fn change_command(config: &File, at: u64, change: impl Fn(u16) -> u16) -> io::Result<()> {
    let mut bytes = [0; 2];
    config.read_exact_at(&mut bytes, at + PCI_COMMAND)?;
    let command = change(u16::from_le_bytes(bytes));
    config.write_all_at(&command.to_le_bytes(), at + PCI_COMMAND)
}

/// The name of the driver that has a function.
pub fn driver_of(address: PciAddress) -> Option<String> {
    link_name(&Path::new("/sys/bus/pci/devices").join(address.to_string()).join("driver"))
}

/// The last part of what a link leads to.
pub(crate) fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_command_register_keeps_its_other_bits() {
        let mut config = tempfile::tempfile().unwrap();
        config.write_all(&[0x86, 0x80, 0x45, 0x58, 0x40, 0x01, 0xff, 0xff]).unwrap();
        let opening = Opening { address: "0000:01:00.0".parse().unwrap(), transport: "test" };
        opening.enable_bus_master(&config, 0).unwrap();
        let mut bytes = [0; 8];
        config.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0x86, 0x80, 0x45, 0x58, 0x46, 0x05, 0xff, 0xff]);
        disable_bus_master(&config, 0).unwrap();
        config.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [0x86, 0x80, 0x45, 0x58, 0x42, 0x05, 0xff, 0xff]);
    }
}
