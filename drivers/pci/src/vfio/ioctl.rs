//! The system calls of VFIO and iommufd (linux/vfio.h, linux/iommufd.h), each wrapped once and safe
//! to call.
//!
//! What makes them safe: every structure lives on the caller's stack with its true size in `argsz`,
//! and the kernel writes no further than that. Memory that is mapped for a device is the one
//! promise that is not the kernel's: [`map_dma`] and [`ioas_map`] take `Pages`, which are accessed as
//! atomics alone, and whoever maps them keeps them alive until they are unmapped.

#![allow(unsafe_code)]

use iommufd_bindings as iommu;
use libc::{c_int, c_ulong};
use nvpoll_mem::Pages;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use vfio_bindings::bindings::vfio as sys;

/// `_IO(';', 100 + n)`: all VFIO requests are numbered so, without a size.
const fn request(number: c_ulong) -> c_ulong {
    (b';' as c_ulong) << 8 | (100 + number)
}

const GET_API_VERSION: c_ulong = request(0);
const CHECK_EXTENSION: c_ulong = request(1);
const SET_IOMMU: c_ulong = request(2);
const GROUP_GET_STATUS: c_ulong = request(3);
const GROUP_SET_CONTAINER: c_ulong = request(4);
const GROUP_GET_DEVICE_FD: c_ulong = request(6);
const DEVICE_GET_REGION_INFO: c_ulong = request(8);
const DEVICE_GET_IRQ_INFO: c_ulong = request(9);
const DEVICE_SET_IRQS: c_ulong = request(10);
const IOMMU_GET_INFO: c_ulong = request(12);
const IOMMU_MAP_DMA: c_ulong = request(13);
const IOMMU_UNMAP_DMA: c_ulong = request(14);
const DEVICE_BIND_IOMMUFD: c_ulong = request(18);
const DEVICE_ATTACH_IOMMUFD_PT: c_ulong = request(19);

/// iommufd has VFIO's letter, and numbers of its own.
const fn iommufd(command: iommu::_bindgen_ty_1) -> c_ulong {
    (b';' as c_ulong) << 8 | command as c_ulong
}

const IOAS_ALLOC: c_ulong = iommufd(iommu::IOMMUFD_CMD_IOAS_ALLOC);
const IOAS_IOVA_RANGES: c_ulong = iommufd(iommu::IOMMUFD_CMD_IOAS_IOVA_RANGES);
const IOAS_MAP: c_ulong = iommufd(iommu::IOMMUFD_CMD_IOAS_MAP);
const IOAS_UNMAP: c_ulong = iommufd(iommu::IOMMUFD_CMD_IOAS_UNMAP);
/// Most ranges of an I/O address space that are read.
const RANGES_MAX: u32 = 4096;

/// Most bytes of IOMMU information that are read: 4,096 IOVA ranges and more.
const INFO_BYTES_MAX: usize = 64 << 10;

fn size_of_u32<T>() -> u32 {
    size_of::<T>() as u32
}

/// A request whose argument is a plain number.
fn by_value(fd: &File, request: c_ulong, value: c_ulong) -> io::Result<c_int> {
    // SAFETY: these requests read no memory; a bad number is answered with an error.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A request whose argument is a structure that begins with its own size (`argsz` or `size`).
fn by_structure<T>(fd: &impl AsRawFd, request: c_ulong, argument: &mut T) -> io::Result<c_int> {
    // SAFETY: private to this module and called with the structure that belongs to the request;
    // its `argsz` is its size, so the kernel stays within it.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw mut *argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// VFIO_GET_API_VERSION.
pub fn api_version(container: &File) -> io::Result<c_int> {
    by_value(container, GET_API_VERSION, 0)
}

/// VFIO_CHECK_EXTENSION.
pub fn has_extension(container: &File, extension: u32) -> io::Result<bool> {
    by_value(container, CHECK_EXTENSION, extension.into()).map(|answer| answer > 0)
}

/// VFIO_SET_IOMMU.
pub fn set_iommu(container: &File, kind: u32) -> io::Result<()> {
    by_value(container, SET_IOMMU, kind.into()).map(|_| ())
}

/// VFIO_GROUP_GET_STATUS: whether every device of the group is with VFIO or without a driver.
pub fn group_is_viable(group: &File) -> io::Result<bool> {
    let mut status =
        sys::vfio_group_status { argsz: size_of_u32::<sys::vfio_group_status>(), flags: 0 };
    by_structure(group, GROUP_GET_STATUS, &mut status)?;
    Ok(status.flags & sys::VFIO_GROUP_FLAGS_VIABLE != 0)
}

/// VFIO_GROUP_SET_CONTAINER.
pub fn set_container(group: &File, container: &File) -> io::Result<()> {
    let mut fd = container.as_raw_fd();
    by_structure(group, GROUP_SET_CONTAINER, &mut fd).map(|_| ())
}

/// VFIO_GROUP_GET_DEVICE_FD.
pub fn device(group: &File, name: &CStr) -> io::Result<File> {
    // SAFETY: the kernel reads a NUL-terminated name.
    let fd = unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD as _, name.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Where a region of a device stands in its file.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Offset in the device's file.
    pub offset: u64,
    /// Bytes; zero is a region that the device does not have.
    pub bytes: u64,
    /// It can be mapped.
    pub mappable: bool,
}

/// VFIO_DEVICE_GET_REGION_INFO.
pub fn region(device: &File, index: u32) -> io::Result<Region> {
    let mut info = sys::vfio_region_info {
        argsz: size_of_u32::<sys::vfio_region_info>(),
        flags: 0,
        index,
        cap_offset: 0,
        size: 0,
        offset: 0,
    };
    by_structure(device, DEVICE_GET_REGION_INFO, &mut info)?;
    let mappable = info.flags & sys::VFIO_REGION_INFO_FLAG_MMAP != 0;
    Ok(Region { offset: info.offset, bytes: info.size, mappable })
}

/// VFIO_IOMMU_GET_INFO: the IOVA ranges that the IOMMU accepts; empty where the kernel does not
/// say (before 5.4).
pub fn iova_ranges(container: &File) -> io::Result<Vec<RangeInclusive<u64>>> {
    // Words, so that the structure at the start is aligned.
    let mut words = vec![0u64; size_of::<sys::vfio_iommu_type1_info>().div_ceil(8)];
    for _ in 0..2 {
        let bytes = words.len() * 8;
        words[0] = bytes as u64;
        let start = words.as_mut_ptr();
        // SAFETY: the buffer is `argsz` long, the first field, and the kernel stays within it.
        let result = unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_GET_INFO as _, start) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let needed = words[0] as u32 as usize;
        if needed <= bytes || needed > INFO_BYTES_MAX {
            break;
        }
        words = vec![0; needed.div_ceil(8)];
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(parse_iova_ranges(&bytes))
}

/// Walks the capability chain of `struct vfio_iommu_type1_info`, which the kernel wrote.
fn parse_iova_ranges(info: &[u8]) -> Vec<RangeInclusive<u64>> {
    let u32_at = |offset: usize| {
        let bytes = info.get(offset..offset.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let u64_at = |offset: usize| {
        Some(u64::from(u32_at(offset)?) | u64::from(u32_at(offset.checked_add(4)?)?) << 32)
    };
    let has_capabilities = u32_at(4).is_some_and(|flags| flags & sys::VFIO_IOMMU_INFO_CAPS != 0);
    let mut next = if has_capabilities { u32_at(16).unwrap_or(0) as usize } else { 0 };
    // Each capability has a header of eight bytes, so that a chain longer than this is a loop.
    for _ in 0..info.len() / 8 {
        if next == 0 {
            break;
        }
        let identifier = u32_at(next).unwrap_or(0) & 0xffff;
        if identifier == sys::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
            let count = u32_at(next + 8).unwrap_or(0) as usize;
            let range = |index: usize| {
                let at = next + 16 + 16 * index;
                Some(u64_at(at)?..=u64_at(at + 8)?)
            };
            return (0..count.min(info.len() / 16)).map_while(range).collect();
        }
        next = u32_at(next + 4).unwrap_or(0) as usize;
    }
    Vec::new()
}

/// VFIO_IOMMU_MAP_DMA: the device may read and write `pages` at `iova`.
pub fn map_dma(container: &File, pages: &Pages, iova: u64) -> io::Result<()> {
    let mut map = sys::vfio_iommu_type1_dma_map {
        argsz: size_of_u32::<sys::vfio_iommu_type1_dma_map>(),
        flags: sys::VFIO_DMA_MAP_FLAG_READ | sys::VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: pages.as_ptr().addr() as u64,
        iova,
        size: pages.bytes() as u64,
    };
    by_structure(container, IOMMU_MAP_DMA, &mut map).map(|_| ())
}

/// VFIO_IOMMU_UNMAP_DMA; returns the bytes that were unmapped.
pub fn unmap_dma(container: &File, iova: u64, bytes: u64) -> io::Result<u64> {
    let mut unmap = sys::vfio_iommu_type1_dma_unmap {
        argsz: size_of_u32::<sys::vfio_iommu_type1_dma_unmap>(),
        flags: 0,
        iova,
        size: bytes,
        data: sys::__IncompleteArrayField::new(),
    };
    by_structure(container, IOMMU_UNMAP_DMA, &mut unmap)?;
    Ok(unmap.size)
}

/// Interrupts that an index (VFIO_PCI_MSIX_IRQ_INDEX and so on) has, by VFIO_DEVICE_GET_IRQ_INFO.
pub fn interrupts(device: &File, index: u32) -> io::Result<u32> {
    let mut info = sys::vfio_irq_info {
        argsz: size_of_u32::<sys::vfio_irq_info>(),
        index,
        ..Default::default()
    };
    by_structure(device, DEVICE_GET_IRQ_INFO, &mut info)?;
    Ok(info.count)
}

/// VFIO_DEVICE_SET_IRQS: interrupt `n` of `index` signals `events[n]`.
pub fn connect_interrupts(device: &File, index: u32, events: &[RawFd]) -> io::Result<()> {
    // `struct vfio_irq_set` ends in an array of descriptors; both are made of 32-bit words.
    const HEAD_WORDS: usize = size_of::<sys::vfio_irq_set>() / 4;
    let count = u32::try_from(events.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let bytes = (HEAD_WORDS as u32).saturating_add(count).saturating_mul(4);
    let flags = sys::VFIO_IRQ_SET_DATA_EVENTFD | sys::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut words: Vec<u32> = vec![bytes, flags, index, 0, count];
    words.extend(events.iter().map(|event| *event as u32));
    let (device, set) = (device.as_raw_fd(), words.as_mut_ptr());
    // SAFETY: the buffer is `argsz`, its first word, long, and the kernel only reads it.
    let result = unsafe { libc::ioctl(device, DEVICE_SET_IRQS as _, set) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// VFIO_DEVICE_BIND_IOMMUFD.
pub fn bind_iommufd(device: &File, iommufd: &File) -> io::Result<()> {
    let mut bind = sys::vfio_device_bind_iommufd {
        argsz: size_of_u32::<sys::vfio_device_bind_iommufd>(),
        iommufd: iommufd.as_raw_fd(),
        ..Default::default()
    };
    by_structure(device, DEVICE_BIND_IOMMUFD, &mut bind).map(|_| ())
}

/// IOMMU_IOAS_ALLOC: a new address space; returns its number.
pub fn ioas_alloc(iommufd: &File) -> io::Result<u32> {
    let mut alloc = iommu::iommu_ioas_alloc {
        size: size_of_u32::<iommu::iommu_ioas_alloc>(),
        ..Default::default()
    };
    by_structure(iommufd, IOAS_ALLOC, &mut alloc)?;
    Ok(alloc.out_ioas_id)
}

/// VFIO_DEVICE_ATTACH_IOMMUFD_PT: the device's DMA goes through address space `ioas`.
pub fn attach_ioas(device: &File, ioas: u32) -> io::Result<()> {
    let mut attach = sys::vfio_device_attach_iommufd_pt {
        argsz: size_of_u32::<sys::vfio_device_attach_iommufd_pt>(),
        pt_id: ioas,
        ..Default::default()
    };
    by_structure(device, DEVICE_ATTACH_IOMMUFD_PT, &mut attach).map(|_| ())
}

/// IOMMU_IOAS_IOVA_RANGES: the addresses that every device of the address space accepts.
pub fn ioas_iova_ranges(iommufd: &File, ioas: u32) -> io::Result<Vec<RangeInclusive<u64>>> {
    let mut ranges = vec![iommu::iommu_iova_range::default(); 64];
    loop {
        let mut query = iommu::iommu_ioas_iova_ranges {
            size: size_of_u32::<iommu::iommu_ioas_iova_ranges>(),
            ioas_id: ioas,
            num_iovas: u32::try_from(ranges.len()).unwrap_or(RANGES_MAX),
            allowed_iovas: ranges.as_mut_ptr().addr() as u64,
            ..Default::default()
        };
        // SAFETY of the array: the kernel writes at most `num_iovas` entries to it, its length.
        let answer = by_structure(iommufd, IOAS_IOVA_RANGES, &mut query);
        let needed = query.num_iovas as usize;
        match answer {
            Ok(_) => {
                ranges.truncate(needed);
                return Ok(ranges.iter().map(|range| range.start..=range.last).collect());
            }
            Err(error)
                if error.raw_os_error() == Some(libc::EMSGSIZE)
                    && needed > ranges.len()
                    && needed <= RANGES_MAX as usize =>
            {
                ranges.resize(needed, iommu::iommu_iova_range::default());
            }
            Err(error) => return Err(error),
        }
    }
}

/// IOMMU_IOAS_MAP: the devices of the address space may read and write `pages` at `iova`.
pub fn ioas_map(iommufd: &File, ioas: u32, pages: &Pages, iova: u64) -> io::Result<()> {
    let mut map = iommu::iommu_ioas_map {
        size: size_of_u32::<iommu::iommu_ioas_map>(),
        flags: iommu::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA
            | iommu::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE
            | iommu::iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE,
        ioas_id: ioas,
        __reserved: 0,
        user_va: pages.as_ptr().addr() as u64,
        length: pages.bytes() as u64,
        iova,
    };
    by_structure(iommufd, IOAS_MAP, &mut map).map(|_| ())
}

/// IOMMU_IOAS_UNMAP; returns the bytes that were unmapped.
pub fn ioas_unmap(iommufd: &File, ioas: u32, iova: u64, bytes: u64) -> io::Result<u64> {
    let mut unmap = iommu::iommu_ioas_unmap {
        size: size_of_u32::<iommu::iommu_ioas_unmap>(),
        ioas_id: ioas,
        iova,
        length: bytes,
    };
    by_structure(iommufd, IOAS_UNMAP, &mut unmap)?;
    Ok(unmap.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(capabilities: &[u32]) -> Vec<u8> {
        let mut words = vec![0, sys::VFIO_IOMMU_INFO_CAPS, 0, 0, 24, 0];
        words.extend_from_slice(capabilities);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn ranges_are_found_behind_another_capability() {
        let other = [3 | 1 << 16, 40, 65_535, 0];
        let ranges =
            [1 | 1 << 16, 0, 2, 0, 0, 0, 0xfedf_ffff, 0, 0xfef0_0000, 0, 0xffff_ffff, 0x7f];
        let info = info(&[&other[..], &ranges[..]].concat());
        assert_eq!(parse_iova_ranges(&info), [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    }

    #[test]
    fn broken_chains_end() {
        assert!(parse_iova_ranges(&[]).is_empty());
        assert!(parse_iova_ranges(&info(&[3, 24, 0, 0])).is_empty(), "a loop");
        assert!(parse_iova_ranges(&info(&[3, 4000, 0, 0])).is_empty(), "beyond the end");
        assert!(
            parse_iova_ranges(&info(&[1, 0, u32::MAX, 0])).is_empty(),
            "a count without ranges"
        );
    }

    #[test]
    fn the_head_of_an_interrupt_set_is_five_words() {
        assert_eq!(size_of::<sys::vfio_irq_set>(), 20);
        assert_eq!(std::mem::offset_of!(sys::vfio_irq_set, count), 16);
    }

    #[test]
    fn requests_are_those_of_the_header() {
        assert_eq!(GET_API_VERSION, 0x3b64);
        assert_eq!(IOMMU_UNMAP_DMA, 0x3b72);
        assert_eq!(DEVICE_SET_IRQS, 0x3b6e);
        assert_eq!(DEVICE_ATTACH_IOMMUFD_PT, 0x3b77);
        assert_eq!(IOAS_ALLOC, 0x3b81);
        assert_eq!(IOAS_UNMAP, 0x3b86);
    }
}
