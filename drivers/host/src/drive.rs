//! The drives: what sysfs says of every NVMe function, whichever driver has it.

use std::io;
use std::path::{Path, PathBuf};

use nvpoll_spec::{CLASS_NVME, PciAddress};
use serde::Serialize;

use crate::Host;
use crate::error::{HostError, printable};
use crate::state::Record;
use crate::sysfs;

/// One NVMe drive: one PCI function with class code 010802h, one controller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drive {
    /// Where it is.
    pub address: PciAddress,
    /// PCI vendor.
    pub vendor_id: u16,
    /// PCI device.
    pub device_id: u16,
    /// Model number. Without a kernel driver: what was recorded when the drive was taken, or
    /// `None`; the drive itself can be asked then.
    pub model: Option<String>,
    /// Serial number, as `model`.
    pub serial: Option<String>,
    /// Firmware revision, as `model`.
    pub firmware: Option<String>,
    /// The kernel's name of the controller (`nvme0`), when its nvme driver has it.
    pub controller: Option<String>,
    /// The controller's state in the kernel's words (`live`, `resetting`, `dead` …).
    pub controller_state: Option<String>,
    /// The subsystem's NVMe qualified name.
    pub subsystem_nqn: Option<String>,
    /// Active namespaces that the kernel has attached; empty without its driver.
    pub namespaces: Vec<Namespace>,
    /// NUMA node; `None` when the firmware names none (sysfs says −1).
    pub numa_node: Option<u32>,
    /// IOMMU group; `None` without an IOMMU.
    pub iommu_group: Option<IommuGroup>,
    /// PCIe link as negotiated now.
    pub link_now: Option<Link>,
    /// The best link that the drive can do.
    pub link_max: Option<Link>,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// The only driver that may bind to it, when one was named.
    pub driver_override: Option<String>,
    /// Virtual functions that are enabled on it (SR-IOV).
    pub virtual_functions: u32,
    /// The function that this one is a virtual function of.
    pub physical_function: Option<PciAddress>,
    /// What was recorded when nvpoll took it; `None` when nvpoll has not.
    pub record: Option<Record>,
    /// The kernel's number of its sysfs folder, which another device at the same address does not
    /// have.
    #[serde(skip)]
    pub(crate) inode: u64,
}

/// One namespace as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Namespace {
    /// Namespace identifier.
    pub nsid: u32,
    /// Block node, `/dev/nvme0n1`; `None` when the kernel has none for it (a format that it
    /// does not read, or another command set). The name passes to another drive when controllers
    /// come and go, as they do when drives are taken: ask [`Host::kernel_node`] before opening.
    pub node: Option<PathBuf>,
    /// Generic character node for passthrough, `/dev/ng0n1` (kernel 5.13 and later).
    pub generic: Option<PathBuf>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Logical block in bytes.
    pub lba_bytes: u32,
    /// Metadata a block in bytes; `None` when the kernel does not tell (before 6.8).
    pub metadata_bytes: Option<u32>,
    /// Partitions that the kernel found on it.
    pub partitions: Vec<Partition>,
    /// Names of other controllers through which this machine reaches the same namespace.
    pub other_paths: Vec<String>,
    /// The name below `/sys/class/block`.
    #[serde(skip)]
    pub(crate) block: Option<String>,
    /// Block names of the same namespace on other controllers without kernel multipath.
    #[serde(skip)]
    pub(crate) twins: Vec<String>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// Number in its table.
    pub number: u32,
    /// Block node, `/dev/nvme0n1p1`.
    pub node: PathBuf,
    /// Where it starts on its namespace, in bytes.
    pub start_bytes: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// The functions that an IOMMU cannot tell apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IommuGroup {
    /// Number, as in `/dev/vfio/GROUP`.
    pub id: u32,
    /// The kernel's default for it: `DMA`, `DMA-FQ`, `identity` …
    pub domain: Option<String>,
    /// Its other members.
    pub others: Vec<PciAddress>,
}

/// One PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Rate of one lane in GT/s.
    pub speed_gts: f64,
    /// Lanes.
    pub width: u8,
}

impl Link {
    /// What the link's encoding leaves for packets, one way, in bytes a second: 8b/10b up to
    /// 5 GT/s, 128b/130b up to 32 GT/s, and from 64 GT/s on flits of 236 in 256 bytes.
    pub fn bytes_per_s(&self) -> f64 {
        let share = match self.speed_gts {
            rate if rate <= 5.0 => 8.0 / 10.0,
            rate if rate <= 32.0 => 128.0 / 130.0,
            _ => 236.0 / 256.0,
        };
        self.speed_gts * 1e9 * share * f64::from(self.width) / 8.0
    }
}

impl Drive {
    /// `model, serial S` for messages; says so where neither is known.
    pub fn label(&self) -> String {
        match (&self.model, &self.serial) {
            (Some(model), Some(serial)) => format!("{model}, serial {serial}"),
            (None, Some(serial)) => format!("serial {serial}"),
            (Some(model), None) => model.clone(),
            (None, None) => format!("PCI {:04x}:{:04x}", self.vendor_id, self.device_id),
        }
    }

    /// One line that tells it from the others: address, kernel name, model, serial.
    pub fn summary(&self) -> String {
        let bound = match (&self.controller, &self.driver) {
            (Some(controller), _) => controller.clone(),
            (None, Some(driver)) => format!("on {driver}"),
            (None, None) => "no driver".to_owned(),
        };
        format!("{} ({bound}, {})", self.address, self.label())
    }
}

impl Host {
    /// Every NVMe drive, by address, whatever driver it has.
    ///
    /// # Errors
    /// When the PCI devices cannot be listed.
    pub fn drives(&self) -> Result<Vec<Drive>, HostError> {
        let dir = self.path("/sys/bus/pci/devices");
        let names = match std::fs::symlink_metadata(self.path("/sys/bus")) {
            Ok(_) => sysfs::names(&dir),
            Err(error) => Err(error), // No sysfs at all is not the same as no drive.
        };
        let names = names.map_err(|error| HostError::io("list", self.outside(&dir), error))?;
        let records = self.records_by_address()?;
        let addresses = names.iter().filter_map(|name| name.parse::<PciAddress>().ok());
        let mut drives: Vec<Drive> = addresses
            .filter(|address| {
                sysfs::hex(self.device_dir(address).join("class")) == Some(CLASS_NVME)
            })
            .map(|address| self.read_drive(address, records.get(&address)))
            .collect();
        drives.sort_by_key(|drive| drive.address);
        Ok(drives)
    }

    /// One drive by its address.
    ///
    /// # Errors
    /// When there is no such function, or it is no NVMe controller.
    pub fn drive(&self, address: PciAddress) -> Result<Drive, HostError> {
        match sysfs::hex(self.device_dir(&address).join("class")) {
            Some(CLASS_NVME) => {
                let record = self.record(address)?;
                Ok(self.read_drive(address, record.as_ref()))
            }
            Some(class) => Err(HostError::Target {
                name: address.to_string(),
                seen: format!("this PCI function has class {class:06x}, not 010802 (NVMe)"),
                remedy: self.choices(),
            }),
            None => Err(HostError::Target {
                name: address.to_string(),
                seen: "there is no PCI function at this address".to_owned(),
                remedy: self.choices(),
            }),
        }
    }

    /// The block node that a namespace of a drive has *now*. Whoever opens a node after a drive
    /// was taken and given back asks for it again: the kernel gives a controller the lowest free
    /// number, so the old name may be another drive's.
    ///
    /// # Errors
    /// When the drive is not there, or the kernel has no block node for that namespace.
    pub fn kernel_node(&self, address: PciAddress, nsid: u32) -> Result<PathBuf, HostError> {
        let drive = self.drive(address)?;
        let namespace = drive.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        namespace.and_then(|namespace| namespace.node.clone()).ok_or_else(|| {
            let driver = drive.driver.as_deref().unwrap_or("no driver");
            HostError::Unsupported {
                address,
                seen: format!("the kernel has no block device for its namespace {nsid}"),
                remedy: format!(
                    "it is on {driver}; `nvpoll list` shows what it has, `nvpoll unbind {address}` \
                     gives a taken drive back"
                ),
            }
        })
    }

    /// The generic character device of the same namespace *now*, which takes NVMe commands: the
    /// kernel numbers it as the block device (`/dev/ng0n1` beside `/dev/nvme0n1`). Whether the
    /// kernel makes one (it does since 5.13) shows when it is opened.
    ///
    /// # Errors
    /// As for [`kernel_node`](Self::kernel_node).
    pub fn generic_node(&self, address: PciAddress, nsid: u32) -> Result<PathBuf, HostError> {
        let node = self.kernel_node(address, nsid)?;
        let name = node.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let generic = name.strip_prefix("nvme").map(|rest| format!("ng{rest}"));
        Ok(generic.map_or(node.clone(), |generic| node.with_file_name(generic)))
    }

    /// `this machine has A; B` for the end of a message about a wrong name.
    pub(crate) fn choices(&self) -> String {
        struct All(Vec<String>);
        impl std::fmt::Display for All {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                crate::error::write_list(f, &self.0)
            }
        }
        match self.drives() {
            Ok(drives) if drives.is_empty() => "this machine has no NVMe drive on PCI".to_owned(),
            Ok(drives) => {
                format!("this machine has {}", All(drives.iter().map(Drive::summary).collect()))
            }
            Err(error) => format!("the drives cannot be listed: {error}"),
        }
    }

    /// Whether the device at a drive's address is still the one that was read: nobody has put
    /// another in its place.
    ///
    /// # Errors
    /// [`HostError::Replaced`] when it is another, or none.
    pub fn check_same(&self, drive: &Drive) -> Result<(), HostError> {
        let seen = match self.drive(drive.address) {
            Ok(now) if now.inode == drive.inode && serials_agree(&now, drive) => return Ok(()),
            Ok(now) => format!("{} is there now", now.label()),
            Err(_) => "nothing is there now".to_owned(),
        };
        let (address, was) = (drive.address, drive.label());
        Err(HostError::Replaced { address, was, seen })
    }

    pub(crate) fn device_dir(&self, address: &PciAddress) -> PathBuf {
        self.path("/sys/bus/pci/devices").join(address.to_string())
    }

    fn read_drive(&self, address: PciAddress, record: Option<&Record>) -> Drive {
        let dir = self.device_dir(&address);
        let controller = controller_of(&dir);
        let ctrl_dir = controller.as_ref().map(|name| dir.join("nvme").join(name));
        let of_kernel = |name: &str| sysfs::value(ctrl_dir.as_ref()?.join(name)).and_then(identity);
        // A record of another device that sat here before says nothing about this one.
        let record = record.filter(|record| record.is_about(self)).cloned();
        let recorded = |pick: fn(&Record) -> &Option<String>| pick(record.as_ref()?).clone();
        Drive {
            address,
            vendor_id: sysfs::hex(dir.join("vendor")).unwrap_or_default() as u16,
            device_id: sysfs::hex(dir.join("device")).unwrap_or_default() as u16,
            model: of_kernel("model").or_else(|| recorded(|record| &record.model)),
            serial: of_kernel("serial").or_else(|| recorded(|record| &record.serial)),
            firmware: of_kernel("firmware_rev").or_else(|| recorded(|record| &record.firmware)),
            controller_state: of_kernel("state"),
            subsystem_nqn: of_kernel("subsysnqn"),
            namespaces: controller
                .as_ref()
                .map_or_else(Vec::new, |name| self.namespaces(&dir.join("nvme").join(name), name)),
            controller,
            numa_node: sysfs::number::<i64>(dir.join("numa_node"))
                .and_then(|node| u32::try_from(node).ok()),
            iommu_group: self.iommu_group(address),
            link_now: link(&dir, "current"),
            link_max: link(&dir, "max"),
            driver: sysfs::link_name(dir.join("driver")),
            driver_override: sysfs::value(dir.join("driver_override")),
            virtual_functions: sysfs::number(dir.join("sriov_numvfs")).unwrap_or(0),
            physical_function: sysfs::link_name(dir.join("physfn"))
                .and_then(|name| name.parse().ok()),
            record,
            inode: self.device_inode(&address).unwrap_or(0),
        }
    }

    /// The driver that any PCI function is bound to.
    pub fn driver_of(&self, address: PciAddress) -> Option<String> {
        sysfs::link_name(self.device_dir(&address).join("driver"))
    }

    pub(crate) fn iommu_group(&self, address: PciAddress) -> Option<IommuGroup> {
        let link = self.device_dir(&address).join("iommu_group");
        let id = sysfs::link_name(&link)?.parse().ok()?;
        let mut others: Vec<PciAddress> = sysfs::names_or_none(link.join("devices"))
            .iter()
            .filter_map(|name| name.parse().ok())
            .filter(|&other| other != address)
            .collect();
        others.sort();
        Some(IommuGroup { id, domain: sysfs::value(link.join("type")), others })
    }

    /// The namespaces of a controller. Without kernel multipath the block node hangs below the
    /// controller (`nvme0/nvme0n1`). With it, only a hidden path does (`nvme0/nvme0c0n1`), and the
    /// node that programs use hangs below the subsystem (`nvme-subsys0/nvme0n1`); the first
    /// number is then the subsystem's, which need not be the controller's
    /// (`nvme_mpath_set_disk_name` in drivers/nvme/host/multipath.c).
    fn namespaces(&self, ctrl_dir: &Path, controller: &str) -> Vec<Namespace> {
        let subsystem = self.subsystem_of(controller);
        let mut namespaces: Vec<Namespace> = sysfs::names_or_none(ctrl_dir)
            .iter()
            .filter_map(|name| BlockName::parse(name))
            .filter_map(|name| self.namespace(ctrl_dir, controller, &name, subsystem.as_ref()))
            .collect();
        namespaces.sort_by_key(|namespace| namespace.nsid);
        namespaces
    }

    fn namespace(
        &self,
        ctrl_dir: &Path,
        controller: &str,
        name: &BlockName,
        subsystem: Option<&Subsystem>,
    ) -> Option<Namespace> {
        let own = ctrl_dir.join(&name.text);
        let (parent, block) = match (name.path, subsystem) {
            (Some(_), Some(subsystem)) => (subsystem.dir.as_path(), name.head()),
            (Some(_), None) => return None, // The controller is just going away.
            (None, _) => (ctrl_dir, name.text.clone()),
        };
        let dir = parent.join(&block);
        let nsid = sysfs::number(own.join("nsid")).or_else(|| sysfs::number(dir.join("nsid")))?;
        let generic = format!("ng{}n{}", name.instance, name.namespace);
        let visible = dir.join("dev").exists();
        let other_paths = subsystem.map_or_else(Vec::new, |s| s.other_paths(controller, name));
        let twins = match (subsystem, name.path) {
            (Some(subsystem), None) => subsystem.twins(controller, nsid, &own),
            _ => Vec::new(),
        };
        Some(Namespace {
            nsid,
            node: visible.then(|| devnode(&dir, &block)),
            generic: parent.join(&generic).join("dev").exists().then(|| {
                let dir = parent.join(&generic);
                devnode(&dir, &generic)
            }),
            size_bytes: sectors_bytes(&dir.join("size")),
            lba_bytes: sysfs::number(dir.join("queue/logical_block_size")).unwrap_or(512),
            metadata_bytes: sysfs::number(dir.join("metadata_bytes")),
            partitions: if visible { partitions(&dir, &block) } else { Vec::new() },
            other_paths: other_paths
                .into_iter()
                .chain(twins.iter().map(|(controller, _)| controller.clone()))
                .collect(),
            block: visible.then_some(block),
            twins: twins.into_iter().map(|(_, block)| block).collect(),
        })
    }

    /// The subsystem that a controller belongs to, which holds a link to each of its own.
    fn subsystem_of(&self, controller: &str) -> Option<Subsystem> {
        let class = self.path("/sys/class/nvme-subsystem");
        let dir = sysfs::names_or_none(&class)
            .into_iter()
            .map(|name| class.join(name))
            .find(|dir| dir.join(controller).exists())?;
        let controllers =
            sysfs::names_or_none(&dir).into_iter().filter(|name| is_controller(name)).collect();
        Some(Subsystem { dir, controllers })
    }
}

struct Subsystem {
    dir: PathBuf,
    controllers: Vec<String>,
}

impl Subsystem {
    fn others<'a>(&'a self, controller: &'a str) -> impl Iterator<Item = &'a String> {
        self.controllers.iter().filter(move |name| *name != controller)
    }

    /// Other controllers with a hidden path to the same multipath head.
    fn other_paths(&self, controller: &str, name: &BlockName) -> Vec<String> {
        if name.path.is_none() {
            return Vec::new();
        }
        let leads_there = |other: &&String| {
            sysfs::names_or_none(self.dir.join(other))
                .iter()
                .filter_map(|name| BlockName::parse(name))
                .any(|path| path.path.is_some() && path.head() == name.head())
        };
        self.others(controller).filter(leads_there).cloned().collect()
    }

    /// Other controllers' own block devices of the same namespace: the same identifier and the
    /// same worldwide name within one subsystem.
    fn twins(&self, controller: &str, nsid: u32, own: &Path) -> Vec<(String, String)> {
        let wwid = sysfs::value(own.join("wwid"));
        let mut twins = Vec::new();
        for other in self.others(controller) {
            let dir = self.dir.join(other);
            for name in sysfs::names_or_none(&dir) {
                let same = BlockName::parse(&name).is_some_and(|name| name.path.is_none())
                    && sysfs::number(dir.join(&name).join("nsid")) == Some(nsid)
                    && sysfs::value(dir.join(&name).join("wwid")) == wwid;
                if same {
                    twins.push((other.clone(), name));
                }
            }
        }
        twins
    }
}

/// A namespace's block name taken apart: `nvme0n1`, or `nvme0c1n1` for one path of several.
#[derive(Debug, PartialEq, Eq)]
struct BlockName {
    text: String,
    instance: u32,
    path: Option<u32>,
    namespace: u32,
}

impl BlockName {
    fn parse(text: &str) -> Option<Self> {
        let (front, namespace) = text.strip_prefix("nvme")?.split_once('n')?;
        let (instance, path) = match front.split_once('c') {
            Some((instance, path)) => (instance, Some(digits(path)?)),
            None => (front, None),
        };
        let (instance, namespace) = (digits(instance)?, digits(namespace)?);
        Some(Self { text: text.to_owned(), instance, path, namespace })
    }

    fn head(&self) -> String {
        format!("nvme{}n{}", self.instance, self.namespace)
    }
}

/// A number without sign or blank.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").and_then(digits).is_some()
}

/// The controller below a PCI function's folder: `nvme/nvme0`.
pub(crate) fn controller_of(dir: &Path) -> Option<String> {
    sysfs::names_or_none(dir.join("nvme")).into_iter().find(|name| is_controller(name))
}

/// A device's node, by the name that the kernel gave devtmpfs (`DEVNAME` in uevent).
pub(crate) fn devnode(dir: &Path, name: &str) -> PathBuf {
    let uevent = sysfs::text(dir.join("uevent")).unwrap_or_default();
    let devname = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    // The block layer writes a slash in a name as '!'.
    Path::new("/dev").join(devname.map_or_else(|| name.replace('!', "/"), str::to_owned))
}

/// `size` and `start` count sectors of 512 bytes whatever the logical block is.
pub(crate) fn sectors_bytes(path: &Path) -> u64 {
    sysfs::number::<u64>(path).unwrap_or(0).saturating_mul(512)
}

/// The partitions below a block device's folder.
pub(crate) fn partitions(dir: &Path, block: &str) -> Vec<Partition> {
    let mut partitions: Vec<Partition> = partition_names(dir, block)
        .iter()
        .filter_map(|name| {
            let dir = dir.join(name);
            Some(Partition {
                number: sysfs::number(dir.join("partition"))?,
                node: devnode(&dir, name),
                start_bytes: sectors_bytes(&dir.join("start")),
                size_bytes: sectors_bytes(&dir.join("size")),
            })
        })
        .collect();
    partitions.sort_by_key(|partition| partition.number);
    partitions
}

pub(crate) fn partition_names(dir: &Path, block: &str) -> Vec<String> {
    sysfs::names_or_none(dir)
        .into_iter()
        .filter(|name| name.starts_with(block) && dir.join(name).join("partition").exists())
        .collect()
}

/// `current_link_speed` is written `16.0 GT/s PCIe`, or `Unknown` without a link.
fn link(dir: &Path, which: &str) -> Option<Link> {
    let speed = sysfs::text(dir.join(format!("{which}_link_speed")))?;
    let speed_gts: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let width: u8 = sysfs::number(dir.join(format!("{which}_link_width")))?;
    // 0 without a link; all-ones from a function in D3cold. PCIe has at most 32 lanes.
    let sane = (1..=32).contains(&width) && speed_gts > 0.0;
    sane.then_some(Link { speed_gts, width })
}

/// A string of the controller's own, which may hold anything; all blanks is no name.
fn identity(text: String) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| printable(text))
}

impl Host {
    /// The inode of a device's folder: another device at the same address has another one.
    pub(crate) fn device_inode(&self, address: &PciAddress) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(std::fs::metadata(self.device_dir(address))?.ino())
    }
}

/// Whether two readings may be of one drive; one that is not known says nothing.
fn serials_agree(now: &Drive, then: &Drive) -> bool {
    match (&now.serial, &then.serial) {
        (Some(now), Some(then)) => now == then,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_names_are_taken_apart() {
        let name = BlockName::parse("nvme0c12n3").unwrap();
        assert_eq!((name.instance, name.path, name.namespace), (0, Some(12), 3));
        assert_eq!(name.head(), "nvme0n3");
        assert_eq!(BlockName::parse("nvme7n1").unwrap().path, None);
        for other in ["nvme0", "ng0n1", "nvme0n1p1", "nvmen1", "nvme0c", "nvme0cn1", "nvme+0n1"] {
            assert_eq!(BlockName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_link_knows_what_it_carries() {
        let bytes_per_s = Link { speed_gts: 16.0, width: 4 }.bytes_per_s();
        assert!((bytes_per_s - 7.877e9).abs() < 1e7, "{bytes_per_s}");
        let bytes_per_s = Link { speed_gts: 2.5, width: 1 }.bytes_per_s();
        assert!((bytes_per_s - 250e6).abs() < 1.0, "{bytes_per_s}");
    }
}
