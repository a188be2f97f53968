//! Lists of devices.

use super::{from_wide, last, wide};
use crate::limits::{ANSWER_BYTES_MAX, DEVICES_MAX};
use crate::{DiskInterface, Volume, Win32Error};
use std::ffi::OsStr;
use std::ptr::{null, null_mut};
use windows_sys::Win32::Devices::DeviceAndDriverInstallation::{
    DIGCF_DEVICEINTERFACE, DIGCF_PRESENT, HDEVINFO, SP_DEVICE_INTERFACE_DATA,
    SP_DEVICE_INTERFACE_DETAIL_DATA_W, SP_DEVINFO_DATA, SPDRP_SERVICE,
    SetupDiDestroyDeviceInfoList, SetupDiEnumDeviceInterfaces, SetupDiGetClassDevsW,
    SetupDiGetDeviceInterfaceDetailW, SetupDiGetDeviceRegistryPropertyW,
};
use windows_sys::Win32::Foundation::{
    ERROR_NO_MORE_FILES, ERROR_NO_MORE_ITEMS, HANDLE, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::Storage::FileSystem::{
    FindFirstVolumeW, FindNextVolumeW, FindVolumeClose, GetVolumePathNamesForVolumeNameW,
};
use windows_sys::Win32::System::Ioctl::GUID_DEVINTERFACE_DISK;

/// Units of a volume's or a service's name, its end included.
const NAME_UNITS: usize = 512;

/// A list of devices, destroyed when dropped.
struct DeviceList(HDEVINFO);

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is this one's, and destroyed once.
        unsafe { SetupDiDestroyDeviceInfoList(self.0) };
    }
}

pub(super) fn disks() -> Result<Vec<DiskInterface>, Win32Error> {
    let flags = DIGCF_PRESENT | DIGCF_DEVICEINTERFACE;
    // SAFETY: the class is a constant; no enumerator and no window are named.
    let list = unsafe { SetupDiGetClassDevsW(&GUID_DEVINTERFACE_DISK, null(), null_mut(), flags) };
    if list == INVALID_HANDLE_VALUE as HDEVINFO {
        return Err(last());
    }
    let list = DeviceList(list);
    let mut found = Vec::new();
    for index in 0..DEVICES_MAX as u32 {
        let mut interface = SP_DEVICE_INTERFACE_DATA {
            cbSize: size_of::<SP_DEVICE_INTERFACE_DATA>() as u32,
            ..Default::default()
        };
        // SAFETY: the list is alive, and the structure says its own size.
        let more = unsafe {
            SetupDiEnumDeviceInterfaces(
                list.0,
                null(),
                &GUID_DEVINTERFACE_DISK,
                index,
                &raw mut interface,
            )
        };
        if more == 0 {
            return match last() {
                Win32Error(ERROR_NO_MORE_ITEMS) => Ok(found),
                error => Err(error),
            };
        }
        found.push(detail(&list, &interface)?);
    }
    Ok(found)
}

/// Path and service of one interface.
fn detail(
    list: &DeviceList,
    interface: &SP_DEVICE_INTERFACE_DATA,
) -> Result<DiskInterface, Win32Error> {
    let mut needed = 0;
    // SAFETY: asks for the size alone; a null buffer of no bytes is allowed then.
    unsafe {
        SetupDiGetDeviceInterfaceDetailW(
            list.0,
            interface,
            null_mut(),
            0,
            &raw mut needed,
            null_mut(),
        )
    };
    let bytes = (needed as usize).max(size_of::<SP_DEVICE_INTERFACE_DETAIL_DATA_W>());
    if bytes > ANSWER_BYTES_MAX {
        return Err(Win32Error::MORE_DATA);
    }
    // As words, so that the structure at its start is aligned.
    let mut buffer = vec![0u32; bytes.div_ceil(4)];
    let start = buffer.as_mut_ptr().cast::<SP_DEVICE_INTERFACE_DETAIL_DATA_W>();
    let mut device =
        SP_DEVINFO_DATA { cbSize: size_of::<SP_DEVINFO_DATA>() as u32, ..Default::default() };
    // SAFETY: the buffer is at least as long as the structure, whose first field says the size of
    // its fixed part; both structures are valid for writes of what the call is told.
    let result = unsafe {
        (*start).cbSize = size_of::<SP_DEVICE_INTERFACE_DETAIL_DATA_W>() as u32;
        SetupDiGetDeviceInterfaceDetailW(
            list.0,
            interface,
            start,
            bytes as u32,
            null_mut(),
            &raw mut device,
        )
    };
    if result == 0 {
        return Err(last());
    }
    // The path begins behind `cbSize`.
    let units: Vec<u16> =
        buffer.iter().skip(1).flat_map(|word| [*word as u16, (*word >> 16) as u16]).collect();
    Ok(DiskInterface { path: from_wide(&units), service: service(list, &device) })
}

/// The service of a device node; `None` where it has none, or Windows does not say.
fn service(list: &DeviceList, device: &SP_DEVINFO_DATA) -> Option<String> {
    let mut name = [0u16; NAME_UNITS];
    // SAFETY: the buffer is as long as is said.
    let result = unsafe {
        SetupDiGetDeviceRegistryPropertyW(
            list.0,
            device,
            SPDRP_SERVICE,
            null_mut(),
            name.as_mut_ptr().cast(),
            size_of_val(&name) as u32,
            null_mut(),
        )
    };
    (result != 0).then(|| from_wide(&name)).filter(|name| !name.is_empty())
}

/// A search for volumes, closed when dropped.
struct VolumeSearch(HANDLE);

impl Drop for VolumeSearch {
    fn drop(&mut self) {
        // SAFETY: the search is this one's, and closed once.
        unsafe { FindVolumeClose(self.0) };
    }
}

pub(super) fn volumes() -> Result<Vec<Volume>, Win32Error> {
    let mut name = [0u16; NAME_UNITS];
    // SAFETY: the buffer is as long as is said.
    let search = unsafe { FindFirstVolumeW(name.as_mut_ptr(), NAME_UNITS as u32) };
    if search == INVALID_HANDLE_VALUE {
        return match last() {
            Win32Error(ERROR_NO_MORE_FILES) => Ok(Vec::new()),
            error => Err(error),
        };
    }
    let search = VolumeSearch(search);
    let mut found = Vec::new();
    for _ in 0..DEVICES_MAX {
        let text = from_wide(&name);
        let mounts = mounts(&text)?;
        found.push(Volume { name: text.trim_end_matches('\\').to_owned(), mounts });
        // SAFETY: the search is alive, and the buffer as long as is said.
        if unsafe { FindNextVolumeW(search.0, name.as_mut_ptr(), NAME_UNITS as u32) } == 0 {
            return match last() {
                Win32Error(ERROR_NO_MORE_FILES) => Ok(found),
                error => Err(error),
            };
        }
    }
    Err(Win32Error::MORE_DATA)
}

/// Where the volume of this name (with its backslash) is mounted.
fn mounts(volume: &str) -> Result<Vec<String>, Win32Error> {
    let name = wide(OsStr::new(volume));
    let mut units = vec![0u16; ANSWER_BYTES_MAX / 2];
    let mut used = 0;
    // SAFETY: the name ends with a zero, and the buffer is as long as is said.
    let result = unsafe {
        GetVolumePathNamesForVolumeNameW(
            name.as_ptr(),
            units.as_mut_ptr(),
            units.len() as u32,
            &raw mut used,
        )
    };
    if result == 0 {
        return Err(last());
    }
    let words = units.split(|unit| *unit == 0).take_while(|word| !word.is_empty());
    Ok(words.map(String::from_utf16_lossy).collect())
}
