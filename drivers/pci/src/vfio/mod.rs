//! VFIO, by group and container, with a type 1 IOMMU (Documentation/driver-api/vfio.rst).
//!
//! A function's IOMMU group is opened, put into a container of its own, and the container gets a
//! type 1 IOMMU: from then on the function reaches exactly the memory that is mapped there. The
//! kernel disables bus mastering and resets the function when the last descriptor closes.

mod ioctl;

use crate::{Function, PciError};
use memmap2::MmapOptions;
use nvpoll_mem::{
    DmaSpace, IovaSpace, MappedDoorbell, MappedRegisters, MemError, Pages, RegisterError, Registers,
};
use nvpoll_spec::PciAddress;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use vfio_bindings::bindings::vfio as sys;

const TRANSPORT: &str = "VFIO";
const CONTAINER: &str = "/dev/vfio/vfio";
/// Where IOVAs are taken from when the kernel does not name its ranges: the first 2 GiB, below
/// the interrupt window at fee0_0000h and within any IOMMU's width.
const FALLBACK_RANGE: std::ops::RangeInclusive<u64> = 0x1_0000..=0x7fff_ffff;
/// Offset of the command register in configuration space, and its memory-space, bus-master and
/// interrupt-disable bits.
const PCI_COMMAND: u64 = 4;
const PCI_COMMAND_MEMORY: u16 = 1 << 1;
const PCI_COMMAND_MASTER: u16 = 1 << 2;
const PCI_COMMAND_INTX_DISABLE: u16 = 1 << 10;

/// A PCI function that is bound to vfio-pci.
#[derive(Debug)]
pub struct VfioFunction {
    // Dropped in this order: the mapping, the device (which resets it), then its address space.
    registers: Arc<MappedRegisters>,
    _device: File,
    dma: Arc<dyn DmaSpace>,
    location: String,
    group: u32,
    numa_node: Option<u32>,
}

impl VfioFunction {
    /// Opens the function at `address`, which is bound to vfio-pci already.
    ///
    /// # Errors
    /// With the step that failed, what the kernel said, and what to do.
    pub fn open(address: PciAddress) -> Result<Self, PciError> {
        let at = Opening { address };
        let group_number = at.group_number()?;
        let group = at.open_group(group_number)?;
        let container = at.open_container(&group)?;
        let name = CString::new(address.to_string()).unwrap_or_default();
        let device = at.step("VFIO_GROUP_GET_DEVICE_FD", "", ioctl::device(&group, &name))?;
        at.enable_bus_master(&device)?;
        let registers = at.map_registers(&device)?;
        Ok(Self {
            registers,
            _device: device,
            dma: Arc::new(VfioDma::new(container, group)),
            location: address.to_string(),
            group: group_number,
            numa_node: numa_node(address),
        })
    }
}

impl Function for VfioFunction {
    type Doorbell = MappedDoorbell;

    fn registers(&self) -> &dyn Registers {
        &*self.registers
    }

    fn doorbell(&self, offset: usize) -> Result<MappedDoorbell, RegisterError> {
        self.registers.doorbell(offset)
    }

    fn dma(&self) -> &Arc<dyn DmaSpace> {
        &self.dma
    }

    fn location(&self) -> &str {
        &self.location
    }

    fn transport(&self) -> String {
        format!("VFIO group {}, type 1 IOMMU", self.group)
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }
}

/// The steps of opening, each with its own message.
struct Opening {
    address: PciAddress,
}

impl Opening {
    fn step<T>(&self, what: &str, hint: &str, result: io::Result<T>) -> Result<T, PciError> {
        result.map_err(|source| PciError::Open {
            location: self.address.to_string(),
            transport: TRANSPORT,
            what: what.to_owned(),
            source,
            hint: hint.to_owned(),
        })
    }

    fn unusable<T>(&self, reason: String) -> Result<T, PciError> {
        let location = self.address.to_string();
        Err(PciError::Unusable { location, transport: TRANSPORT, reason })
    }

    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/bus/pci/devices").join(self.address.to_string())
    }

    fn group_number(&self) -> Result<u32, PciError> {
        let driver = link_name(&self.sysfs().join("driver"));
        if driver.as_deref() != Some("vfio-pci") {
            let seen = driver.map_or("no driver".to_owned(), |name| format!("driver {name}"));
            let address = self.address;
            return self.unusable(format!(
                "it has {seen}, not vfio-pci; run `nvpoll bind {address}` first"
            ));
        }
        let group = link_name(&self.sysfs().join("iommu_group"));
        match group.as_deref().map(str::parse) {
            Some(Ok(number)) => Ok(number),
            _ => self.unusable(
                "it has no IOMMU group; turn the IOMMU on in the firmware and with intel_iommu=on or amd_iommu=on on the kernel's command line"
                    .to_owned(),
            ),
        }
    }

    fn open_group(&self, number: u32) -> Result<File, PciError> {
        let path = format!("/dev/vfio/{number}");
        let opened = read_write(&path);
        let hint = match opened.as_ref().map_err(io::Error::raw_os_error) {
            Err(Some(libc::EBUSY)) => "another process has this IOMMU group open",
            Err(Some(libc::EACCES | libc::EPERM)) => {
                "run as root, or have root give you the node (chown)"
            }
            Err(Some(libc::ENOENT)) => {
                "the group has no node: a device of it is not bound to vfio-pci, or runs without an IOMMU"
            }
            _ => "",
        };
        let group = self.step(&format!("opening {path}"), hint, opened)?;
        if self.step("VFIO_GROUP_GET_STATUS", "", ioctl::group_is_viable(&group))? {
            return Ok(group);
        }
        self.unusable(format!(
            "IOMMU group {number} is not viable: another device of the group has a kernel driver; `ls /sys/kernel/iommu_groups/{number}/devices` names them all"
        ))
    }

    fn open_container(&self, group: &File) -> Result<File, PciError> {
        let container = self.step(
            &format!("opening {CONTAINER}"),
            "load the module vfio_iommu_type1 (modprobe vfio_iommu_type1 vfio-pci)",
            read_write(CONTAINER),
        )?;
        let version = self.step("VFIO_GET_API_VERSION", "", ioctl::api_version(&container))?;
        if version != sys::VFIO_API_VERSION as i32 {
            return self.unusable(format!("VFIO has interface version {version}, not 0"));
        }
        let has = |kind| ioctl::has_extension(&container, kind).unwrap_or(false);
        let Some(kind) =
            [sys::VFIO_TYPE1v2_IOMMU, sys::VFIO_TYPE1_IOMMU].into_iter().find(|&kind| has(kind))
        else {
            return self.unusable(
                "VFIO has no type 1 IOMMU here; load the module vfio_iommu_type1".to_owned(),
            );
        };
        let set = ioctl::set_container(group, &container);
        self.step("VFIO_GROUP_SET_CONTAINER", "", set)?;
        let set = ioctl::set_iommu(&container, kind);
        let hint = match set.as_ref().map_err(io::Error::raw_os_error) {
            Err(Some(libc::EPERM)) => {
                "the platform has no interrupt remapping; turn it on in the firmware or, if every device is trusted, set /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts to 1"
            }
            _ => "",
        };
        self.step("VFIO_SET_IOMMU", hint, set)?;
        Ok(container)
    }

    /// Sets memory space and bus master in the command register; without the latter no DMA leaves
    /// the device (PCI Local Bus Specification 3.0, §6.2.2).
    ///
    /// The interrupt pin is disabled: the admin completion queue always interrupts (NVMe 1.4,
    /// §3.1.10), nobody here listens, and VFIO enables the pin when it opens the device
    /// (vfio_pci_core_enable), so that a line which is shared with others would storm.
    fn enable_bus_master(&self, device: &File) -> Result<(), PciError> {
        let region = ioctl::region(device, sys::VFIO_PCI_CONFIG_REGION_INDEX);
        let at = self.step("reading the configuration space's place", "", region)?.offset;
        let mut bytes = [0; 2];
        let read = device.read_exact_at(&mut bytes, at + PCI_COMMAND);
        self.step("reading the PCI command register", "", read)?;
        let command = u16::from_le_bytes(bytes);
        let command = command | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
        let written = device.write_all_at(&command.to_le_bytes(), at + PCI_COMMAND);
        self.step("writing the PCI command register", "", written)
    }

    fn map_registers(&self, device: &File) -> Result<Arc<MappedRegisters>, PciError> {
        let region = ioctl::region(device, sys::VFIO_PCI_BAR0_REGION_INDEX);
        let region = self.step("reading BAR 0's place", "", region)?;
        if region.bytes == 0 || !region.mappable {
            let bytes = region.bytes;
            return self.unusable(format!(
                "BAR 0 has {bytes} bytes and cannot be mapped; an NVMe controller's can"
            ));
        }
        let Ok(bytes) = usize::try_from(region.bytes) else {
            return self.unusable(format!("BAR 0 has {} bytes", region.bytes));
        };
        let map = MmapOptions::new().offset(region.offset).len(bytes).map_raw(device);
        Ok(MappedRegisters::new(self.step("mapping BAR 0", "", map)?))
    }
}

/// The address space behind a container.
#[derive(Debug)]
struct VfioDma {
    container: File,
    // The group keeps the container's IOMMU alive.
    _group: File,
    space: Mutex<IovaSpace>,
}

impl VfioDma {
    fn new(container: File, group: File) -> Self {
        let ranges = ioctl::iova_ranges(&container).unwrap_or_default();
        let ranges = if ranges.is_empty() { vec![FALLBACK_RANGE] } else { ranges };
        Self { container, _group: group, space: Mutex::new(IovaSpace::new(ranges)) }
    }

    fn explain(&self, pages: &Pages, error: &io::Error) -> String {
        let bytes = pages.bytes();
        match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                let allowed = locked_limit();
                format!(
                    "{error}; locked memory is limited to {allowed} (RLIMIT_MEMLOCK) and {bytes} more bytes are needed: raise it (ulimit -l, or LimitMEMLOCK= of a unit), or run as root"
                )
            }
            Some(libc::ENOSPC) => format!(
                "{error}; the container holds as many mappings as the kernel allows: raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
            ),
            _ => error.to_string(),
        }
    }
}

impl DmaSpace for VfioDma {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
        /// Alignment that lets the IOMMU use its large pages.
        const LARGE: u64 = 2 << 20;
        let bytes = pages.bytes() as u64;
        let align = if bytes >= LARGE { LARGE } else { nvpoll_mem::PAGE_BYTES as u64 };
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = space.take(bytes, align)?;
        if let Err(error) = ioctl::map_dma(&self.container, pages, iova) {
            space.give_back(iova);
            let reason = self.explain(pages, &error);
            return Err(MemError::Map { bytes: pages.bytes(), reason });
        }
        Ok(iova)
    }

    fn unmap(&self, iova: u64, pages: &Pages) -> bool {
        let bytes = pages.bytes() as u64;
        let gone = ioctl::unmap_dma(&self.container, iova, bytes).is_ok_and(|done| done == bytes);
        if gone {
            self.space.lock().unwrap_or_else(PoisonError::into_inner).give_back(iova);
        }
        gone
    }
}

fn read_write(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

fn numa_node(address: PciAddress) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{address}/numa_node");
    // The kernel says -1 where it does not know.
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// RLIMIT_MEMLOCK as the kernel prints it, for a message.
fn locked_limit() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft =
        line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("an unknown number of");
    format!("{soft} bytes")
}
