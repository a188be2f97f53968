//! VFIO by group and container: with a type 1 IOMMU, or without any.
//!
//! A function's IOMMU group is opened, put into a container of its own, and the container gets a
//! type 1 IOMMU: from then on the function reaches exactly the memory that is mapped there. In
//! no-IOMMU mode there is a group that vfio made up, and nothing in front of the memory.

use super::ioctl;
use super::mapping::{IommuMap, MappedSpace};
use crate::PciError;
use crate::opening::Opening;
use crate::physical::PhysicalSpace;
use nvpoll_mem::{DmaSpace, Pages};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use vfio_bindings::bindings::vfio as sys;

const CONTAINER: &str = "/dev/vfio/vfio";

/// A device of a group, and the address space that its DMA goes through.
pub(super) struct Opened {
    pub device: File,
    pub dma: Arc<dyn DmaSpace>,
    pub transport: String,
}

/// Whether vfio made this group up for a device without an IOMMU.
pub(super) fn is_made_up(group: u32) -> bool {
    let name = fs::read_to_string(format!("/sys/kernel/iommu_groups/{group}/name"));
    name.is_ok_and(|name| name.trim() == "vfio-noiommu")
}

/// Opens the device behind a type 1 IOMMU.
pub(super) fn open(at: &Opening, number: u32, node: Option<u32>) -> Result<Opened, PciError> {
    let group = open_group(at, number, &format!("/dev/vfio/{number}"))?;
    let container = open_container(at)?;
    let has = |kind| ioctl::has_extension(&container, kind).unwrap_or(false);
    let Some(kind) =
        [sys::VFIO_TYPE1v2_IOMMU, sys::VFIO_TYPE1_IOMMU].into_iter().find(|&kind| has(kind))
    else {
        return at.unusable("VFIO has no type 1 IOMMU here; load the module vfio_iommu_type1");
    };
    attach(
        at,
        &group,
        &container,
        kind,
        "the platform has no interrupt remapping; turn it on in the firmware or, if every device is trusted, load vfio_iommu_type1 with allow_unsafe_interrupts=1 (or set /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts to 1)",
    )?;
    let device = open_device(at, &group)?;
    let map = Container { container, _group: group };
    let dma: Arc<dyn DmaSpace> = Arc::new(MappedSpace::new(map, node));
    Ok(Opened { device, dma, transport: format!("VFIO group {number}, type 1 IOMMU") })
}

/// Opens the device in no-IOMMU mode.
pub(super) fn open_no_iommu(
    at: &Opening,
    number: u32,
    node: Option<u32>,
) -> Result<Opened, PciError> {
    let group = open_group(at, number, &format!("/dev/vfio/noiommu-{number}"))?;
    let container = open_container(at)?;
    attach(
        at,
        &group,
        &container,
        sys::VFIO_NOIOMMU_IOMMU,
        "no-IOMMU mode needs root (CAP_SYS_RAWIO)",
    )?;
    let space = at.step("opening /proc/self/pagemap", "", PhysicalSpace::new(node))?;
    let device = open_device(at, &group)?;
    let dma = NoIommu { space, _container: container, _group: group };
    let transport =
        format!("VFIO group noiommu-{number}, physical addresses in huge pages, no IOMMU");
    Ok(Opened { device, dma: Arc::new(dma), transport })
}

fn open_group(at: &Opening, number: u32, path: &str) -> Result<File, PciError> {
    let group = at.open_node(
        path,
        &[
            (libc::EBUSY, "another process has this IOMMU group open"),
            (
                libc::ENOENT,
                "the group has no node: a device of it is not bound to vfio-pci, or runs without an IOMMU",
            ),
        ],
    )?;
    if at.step("VFIO_GROUP_GET_STATUS", "", ioctl::group_is_viable(&group))? {
        return Ok(group);
    }
    at.unusable(format!(
        "IOMMU group {number} is not viable: another device of the group has a kernel driver; `ls /sys/kernel/iommu_groups/{number}/devices` names them all"
    ))
}

fn open_container(at: &Opening) -> Result<File, PciError> {
    let container = at.open_node(
        CONTAINER,
        &[(libc::ENOENT, "load the module vfio_iommu_type1 (modprobe vfio_iommu_type1 vfio-pci)")],
    )?;
    let version = at.step("VFIO_GET_API_VERSION", "", ioctl::api_version(&container))?;
    if version != sys::VFIO_API_VERSION as i32 {
        return at.unusable(format!("VFIO has interface version {version}, not 0"));
    }
    Ok(container)
}

fn attach(
    at: &Opening,
    group: &File,
    container: &File,
    kind: u32,
    not_permitted: &str,
) -> Result<(), PciError> {
    at.step("VFIO_GROUP_SET_CONTAINER", "", ioctl::set_container(group, container))?;
    let set = ioctl::set_iommu(container, kind);
    let hint = match set.as_ref().map_err(io::Error::raw_os_error) {
        Err(Some(libc::EPERM)) => not_permitted,
        _ => "",
    };
    at.step("VFIO_SET_IOMMU", hint, set)
}

fn open_device(at: &Opening, group: &File) -> Result<File, PciError> {
    let name = CString::new(at.address.to_string()).unwrap_or_default();
    at.step("VFIO_GROUP_GET_DEVICE_FD", "", ioctl::device(group, &name))
}

/// A container with a type 1 IOMMU.
#[derive(Debug)]
struct Container {
    container: File,
    // The group keeps the container's IOMMU alive.
    _group: File,
}

impl IommuMap for Container {
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        ioctl::iova_ranges(&self.container).unwrap_or_default()
    }

    fn map(&self, pages: &Pages, iova: u64) -> io::Result<()> {
        ioctl::map_dma(&self.container, pages, iova)
    }

    fn unmap(&self, iova: u64, bytes: u64) -> io::Result<u64> {
        ioctl::unmap_dma(&self.container, iova, bytes)
    }

    fn no_room(&self) -> &'static str {
        "the container holds as many mappings as the kernel allows: raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
    }
}

/// Physical memory, with what has to stay open for the device.
#[derive(Debug)]
struct NoIommu {
    space: PhysicalSpace,
    _container: File,
    _group: File,
}

impl DmaSpace for NoIommu {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, nvpoll_mem::MemError> {
        self.space.map(pages)
    }

    fn allocate(
        &self,
        bytes: usize,
    ) -> Result<(Arc<Pages>, nvpoll_mem::Iovas), nvpoll_mem::MemError> {
        self.space.allocate(bytes)
    }

    fn placement(&self) -> Option<String> {
        self.space.placement()
    }

    fn unmap(&self, iova: u64, pages: &Pages) -> bool {
        self.space.unmap(iova, pages)
    }
}
