//! VFIO by device node and iommufd (Documentation/userspace-api/iommufd.rst, and "IOMMUFD and
//! vfio_iommu_type1" there; Documentation/driver-api/vfio.rst, "VFIO device cdev").
//!
//! The device's own node is opened, bound to an iommufd, and attached to an I/O address space of
//! its own; there is no group to open, and a sibling with a kernel driver refuses the bind.

use super::group::Opened;
use super::ioctl;
use super::mapping::{IommuMap, MappedSpace};
use crate::PciError;
use crate::opening::Opening;
use nvpoll_mem::{DmaSpace, Pages};
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

const IOMMU: &str = "/dev/iommu";

/// The name of the device's own node, `vfio0`; none where this kernel makes no such nodes.
pub(super) fn node_name(at: &Opening) -> Option<String> {
    let entries = fs::read_dir(at.sysfs().join("vfio-dev")).ok()?;
    entries.flatten().find_map(|entry| entry.file_name().into_string().ok())
}

/// Whether this kernel has what [`open`] needs.
pub(super) fn is_here(at: &Opening) -> bool {
    Path::new(IOMMU).exists() && node_name(at).is_some()
}

/// Opens the device through its own node.
pub(super) fn open(at: &Opening, node: Option<u32>) -> Result<Opened, PciError> {
    let Some(name) = node_name(at) else {
        return at.unusable(
            "this kernel makes no device nodes of VFIO (CONFIG_VFIO_DEVICE_CDEV); use its groups: --iommu type1",
        );
    };
    let device = at.open_node(
        &format!("/dev/vfio/devices/{name}"),
        &[(libc::EBUSY, "another process has it open, or its group")],
    )?;
    let iommufd = at.open_node(IOMMU, &[(libc::ENOENT, "load the module iommufd")])?;
    let bound = ioctl::bind_iommufd(&device, &iommufd);
    let hint = match bound.as_ref().map_err(io::Error::raw_os_error) {
        Err(Some(libc::EPERM)) => {
            "the platform has no interrupt remapping; turn it on in the firmware or, if every device is trusted, set /sys/module/iommufd/parameters/allow_unsafe_interrupts to 1"
        }
        Err(Some(libc::EBUSY | libc::EINVAL)) => {
            "another device of its IOMMU group has a kernel driver, or another process drives it"
        }
        _ => "",
    };
    at.step("VFIO_DEVICE_BIND_IOMMUFD", hint, bound)?;
    let space = at.step("IOMMU_IOAS_ALLOC", "", ioctl::ioas_alloc(&iommufd))?;
    let attached = ioctl::attach_ioas(&device, space);
    at.step("VFIO_DEVICE_ATTACH_IOMMUFD_PT", "", attached)?;
    let dma: Arc<dyn DmaSpace> = Arc::new(MappedSpace::new(AddressSpace { iommufd, space }, node));
    Ok(Opened { device, dma, transport: format!("VFIO device {name}, iommufd") })
}

/// One I/O address space of an iommufd.
#[derive(Debug)]
struct AddressSpace {
    iommufd: File,
    space: u32,
}

impl IommuMap for AddressSpace {
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        ioctl::ioas_iova_ranges(&self.iommufd, self.space).unwrap_or_default()
    }

    fn map(&self, pages: &Pages, iova: u64) -> io::Result<()> {
        ioctl::ioas_map(&self.iommufd, self.space, pages, iova)
    }

    fn unmap(&self, iova: u64, bytes: u64) -> io::Result<u64> {
        ioctl::ioas_unmap(&self.iommufd, self.space, iova, bytes)
    }

    fn no_room(&self) -> &'static str {
        "the IOMMU's address space is full: lower --iodepth, --bs or --numjobs"
    }
}
