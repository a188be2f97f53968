//! What this machine is set to, as far as it bears on driving a drive: the facts behind
//! `nvpoll doctor`.
//!
//! Everything is read from sysfs, procfs and a few files of /etc; no drive is opened and nothing
//! is changed. `None` means that it could not be told, which is not the same as "off".

mod block;
mod memory;
mod modules;
mod processors;
mod rights;
mod user_limits;

pub use self::block::QueueSettings;
pub use self::memory::HugePages;
pub use self::modules::Presence;
pub use self::processors::{IdleState, Processors};
pub(crate) use self::rights::parse_groups;
#[cfg(any(test, feature = "fake"))]
pub(crate) use self::rights::parse_user;
pub use self::rights::{Rights, User};
pub use self::user_limits::{SaidLimit, UserLimits};

use std::path::{Path, PathBuf};

use crate::bind::{Memlock, UserDriver};
use crate::limits;
use crate::sysfs;
use crate::{Host, HostError};

/// The machine's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFacts {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// What this process may do.
    pub rights: Rights,
    /// The IOMMU.
    pub iommu: Iommu,
    /// VFIO.
    pub vfio: Vfio,
    /// Each kernel driver that hands a drive to userspace, and whether it can be had.
    pub drivers: Vec<(UserDriver, Presence)>,
    /// Kernel lockdown.
    pub lockdown: Option<Lockdown>,
    /// This process's limit on locked memory.
    pub memlock: Option<Memlock>,
    /// Huge pages, by NUMA node and size; empty where the kernel has none.
    pub huge_pages: Vec<HugePages>,
    /// io_uring's switch.
    pub io_uring: IoUringSwitch,
    /// The nvme driver's poll queues (its module's parameter).
    pub nvme_poll_queues: Option<u32>,
    /// The processors.
    pub processors: Processors,
}

/// The IOMMU, as the whole machine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iommu {
    /// Groups behind a real IOMMU; `None` without `/sys/kernel/iommu_groups`: a kernel that is
    /// built without IOMMU support.
    pub groups: Option<usize>,
    /// Units, by the kernel's names (`dmar0`, `ivhd0`; Documentation/ABI/testing/sysfs-class-iommu).
    pub units: Vec<String>,
    /// The firmware's table that describes them: `DMAR` (Intel), `IVRS` (AMD), `VIOT`, `IORT`.
    pub firmware_table: Option<String>,
    /// Whether interrupts go through its remapping, by the names of their chips in
    /// /proc/interrupts, which x86 kernels prefix with `IR-` then.
    pub interrupt_remapping: Option<bool>,
}

/// VFIO's nodes and parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vfio {
    /// `/dev/vfio/vfio`, through which a group gets its type 1 IOMMU.
    pub container: Option<NodeAccess>,
    /// `/dev/iommu`: iommufd.
    pub iommufd: Option<NodeAccess>,
    /// Devices of their own under `/dev/vfio/devices`.
    pub cdevs: usize,
    /// `vfio_iommu_type1.allow_unsafe_interrupts`.
    pub allow_unsafe_interrupts: Option<bool>,
    /// `vfio_iommu_type1.dma_entry_limit`: mappings a container.
    pub dma_entry_limit: Option<u64>,
    /// `vfio.enable_unsafe_noiommu_mode`; `None` also where the kernel has no such mode.
    pub noiommu_mode: Option<bool>,
}

/// A node and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAccess {
    /// Where it is.
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether this process may write it, so that it may open it.
    pub usable: bool,
}

impl NodeAccess {
    /// Whether a user may open it for reading and writing, by its bits; lists beyond them
    /// (ACLs) are not looked at.
    pub fn admits(&self, user: &User) -> bool {
        let bits = match (self.uid == user.uid, user.groups.contains(&self.gid)) {
            (true, _) => self.mode >> 6,
            (false, true) => self.mode >> 3,
            (false, false) => self.mode,
        };
        bits & 0o6 == 0o6
    }
}

/// Kernel lockdown (kernel_lockdown(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Off.
    None,
    /// What could change the running kernel is forbidden.
    Integrity,
    /// What could read its secrets as well.
    Confidentiality,
}

impl Lockdown {
    /// Its name in the kernel's words.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
        }
    }

    /// The bracketed word of /sys/kernel/security/lockdown.
    fn parse(text: &str) -> Option<Self> {
        let chosen = bracketed(text)?;
        [Self::None, Self::Integrity, Self::Confidentiality]
            .into_iter()
            .find(|lockdown| lockdown.name() == chosen)
    }
}

/// The word in brackets, with which the kernel marks the one in force of several.
fn bracketed(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// io_uring's switch (Documentation/admin-guide/sysctl/kernel.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoUringSwitch {
    /// `kernel.io_uring_disabled`: 0 for all, 1 for a group and CAP_SYS_ADMIN, 2 for nobody.
    /// `None` before Linux 6.6, which has no switch.
    pub disabled: Option<u32>,
    /// `kernel.io_uring_group`; −1 for none.
    pub group: Option<i64>,
}

const TYPE1: &str = "/sys/module/vfio_iommu_type1/parameters";

impl Host {
    /// The machine's settings, read now.
    pub fn machine(&self) -> MachineFacts {
        let drivers = UserDriver::ALL.map(|driver| (driver, self.driver_presence(driver)));
        MachineFacts {
            kernel: self.kernel_release(),
            rights: self.rights(),
            iommu: self.iommu(),
            vfio: self.vfio(),
            drivers: drivers.to_vec(),
            lockdown: self.lockdown(),
            memlock: self.memlock().ok(),
            huge_pages: self.huge_pages(),
            io_uring: IoUringSwitch {
                disabled: sysfs::number(self.path("/proc/sys/kernel/io_uring_disabled")),
                group: sysfs::number(self.path("/proc/sys/kernel/io_uring_group")),
            },
            nvme_poll_queues: sysfs::number(self.path("/sys/module/nvme/parameters/poll_queues")),
            processors: self.processors(),
        }
    }

    pub(crate) fn kernel_release(&self) -> Option<String> {
        sysfs::value(self.path("/proc/sys/kernel/osrelease"))
    }

    /// A kernel whose list of security modules is without lockdown has none.
    fn lockdown(&self) -> Option<Lockdown> {
        let security = self.path("/sys/kernel/security");
        let modules = sysfs::value(security.join("lsm"));
        match (sysfs::text(security.join("lockdown")), modules) {
            (Some(text), _) => Lockdown::parse(&text),
            (None, Some(modules)) if modules.split(',').all(|name| name != "lockdown") => {
                Some(Lockdown::None)
            }
            (None, _) => None,
        }
    }

    fn iommu(&self) -> Iommu {
        let groups = sysfs::names(self.path("/sys/kernel/iommu_groups")).ok();
        let is_real = |name: &&String| name.parse().is_ok_and(|id| !self.is_made_up(id));
        let there = self.path("/sys/kernel/iommu_groups").is_dir();
        let tables = self.path("/sys/firmware/acpi/tables");
        let table = ["DMAR", "IVRS", "VIOT", "IORT"].into_iter();
        Iommu {
            groups: groups.filter(|_| there).map(|names| names.iter().filter(is_real).count()),
            units: sysfs::names_or_none(self.path("/sys/class/iommu")),
            firmware_table: table
                .map(str::to_owned)
                .find(|name| std::fs::symlink_metadata(tables.join(name)).is_ok()),
            interrupt_remapping: sysfs::read(
                &self.path("/proc/interrupts"),
                limits::PROC_FILE_BYTES_MAX,
            )
            .ok()
            .and_then(|bytes| remaps_interrupts(&String::from_utf8_lossy(&bytes))),
        }
    }

    fn vfio(&self) -> Vfio {
        let parameter = |name: &str| sysfs::value(self.path(TYPE1).join(name));
        let noiommu = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        Vfio {
            container: self.node_access(Path::new("/dev/vfio/vfio")),
            iommufd: self.node_access(Path::new("/dev/iommu")),
            cdevs: sysfs::names_or_none(self.path("/dev/vfio/devices")).len(),
            allow_unsafe_interrupts: parameter("allow_unsafe_interrupts")
                .and_then(|text| switch(&text)),
            dma_entry_limit: parameter("dma_entry_limit").and_then(|text| text.parse().ok()),
            noiommu_mode: sysfs::value(self.path(noiommu)).and_then(|text| switch(&text)),
        }
    }

    /// A node's permissions; `None` when it is not there.
    pub fn node_access(&self, path: &Path) -> Option<NodeAccess> {
        use std::os::unix::fs::MetadataExt;
        let real = self.path(path);
        let meta = std::fs::metadata(&real).ok()?;
        Some(NodeAccess {
            path: path.to_owned(),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            usable: self.kernel.may_write(&real).is_ok(),
        })
    }

    /// Whether this process may change the drivers of PCI devices.
    ///
    /// # Errors
    /// [`HostError::Unsupported`] with what is lacking: another user than root, or a read-only
    /// /sys.
    pub(crate) fn check_may_change(
        &self,
        address: nvpoll_spec::PciAddress,
        command: &str,
    ) -> Result<(), HostError> {
        let path = self.path("/sys/bus/pci/drivers_probe");
        let Err(error) = self.kernel.may_write(&path) else { return Ok(()) };
        let (seen, remedy) = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                let whom = self.rights().uid.map_or("another".to_owned(), |uid| uid.to_string());
                (
                    format!("changing a drive's driver needs root, and this is user {whom}"),
                    format!("run it as root: sudo nvpoll {command} {address}"),
                )
            }
            std::io::ErrorKind::ReadOnlyFilesystem => (
                "/sys is read-only here, so no driver can be changed".to_owned(),
                "run it outside the container, or with --privileged".to_owned(),
            ),
            // What is not there at all shows in the steps themselves.
            _ => return Ok(()),
        };
        Err(HostError::Unsupported { address, seen, remedy })
    }

    /// Settings of the block devices that a drive's namespaces have now.
    pub fn queue_settings(&self, drive: &crate::Drive) -> Vec<QueueSettings> {
        let blocks = drive.namespaces.iter().filter_map(|ns| ns.block.clone());
        blocks.map(|block| self.queue_settings_of(&block)).collect()
    }

    /// Whether this process may read a block device or a file that a target led to.
    ///
    /// # Errors
    /// What the system answers, with the path.
    pub fn check_readable(&self, path: &Path) -> Result<(), HostError> {
        let real = self.target_path(&path.to_string_lossy());
        self.kernel.may_read(&real).map_err(|error| HostError::io("read", path, error))
    }
}

/// A boolean module parameter, which the kernel prints as `Y` or `N`.
fn switch(text: &str) -> Option<bool> {
    match text {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    }
}

/// Whether message-signalled interrupts are remapped: their chips are then called `IR-PCI-MSI…`
/// (arch/x86/kernel/apic and drivers/iommu), `PCI-MSI…` otherwise. Without such an interrupt
/// nothing can be told.
fn remaps_interrupts(interrupts: &str) -> Option<bool> {
    let has = |prefix: &str| interrupts.split_whitespace().any(|word| word.starts_with(prefix));
    match (has("IR-PCI-MSI") || has("IR-IO-APIC"), has("PCI-MSI")) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests;
