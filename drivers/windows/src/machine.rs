//! What Windows says of the machine and of this process.
//!
//! More than 64 processors come in groups (Processor Groups, Win32). Here all are numbered through:
//! those of group 0, then those of group 1.

#![allow(unsafe_code)]

use crate::limits::GROUP_PROCESSORS_MAX;
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::windows::ffi::OsStrExt;
use std::ptr::null_mut;
use windows_sys::Wdk::System::SystemServices::RtlGetVersion;
use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, RRF_RT_REG_DWORD, RRF_RT_REG_SZ, RegGetValueW,
};
use windows_sys::Win32::System::SystemInformation::{
    GROUP_AFFINITY, GlobalMemoryStatusEx, MEMORYSTATUSEX, OSVERSIONINFOW,
};
use windows_sys::Win32::System::Threading::{
    GetActiveProcessorCount, GetActiveProcessorGroupCount, GetCurrentProcess, GetCurrentThread,
    GetProcessAffinityMask, GetProcessGroupAffinity, GetProcessTimes, GetSystemTimes,
    SetThreadGroupAffinity,
};

/// Seconds of a `FILETIME` that counts a span: units of 100 ns.
fn seconds(time: FILETIME) -> f64 {
    let units = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    units as f64 / 1e7
}

/// Time of all processors of all groups since the system started, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SystemTimes {
    /// In user and kernel mode, interrupts included.
    pub busy_s: f64,
    /// The same and idle.
    pub all_s: f64,
}

/// `GetSystemTimes`, whose kernel time holds the idle time as well.
pub fn system_times() -> Option<SystemTimes> {
    let mut times = [FILETIME::default(); 3];
    let [idle, kernel, user] = &mut times;
    // SAFETY: writes three structures.
    if unsafe { GetSystemTimes(idle, kernel, user) } == 0 {
        return None;
    }
    let [idle, kernel, user] = times.map(seconds);
    let all_s = kernel + user;
    Some(SystemTimes { busy_s: (all_s - idle).max(0.0), all_s })
}

/// This process's time in user mode and in the kernel, all threads, in seconds (`GetProcessTimes`).
pub fn process_times() -> Option<(f64, f64)> {
    let mut times = [FILETIME::default(); 4];
    let [created, ended, kernel, user] = &mut times;
    // SAFETY: writes four structures; the handle is this process's own.
    if unsafe { GetProcessTimes(GetCurrentProcess(), created, ended, kernel, user) } == 0 {
        return None;
    }
    let [_, _, kernel, user] = times.map(seconds);
    Some((user, kernel))
}

/// Processors of each group, in the groups' order.
pub fn groups() -> Vec<u32> {
    // SAFETY: both ask for numbers.
    let groups = unsafe { GetActiveProcessorGroupCount() };
    let count = |group: u16| {
        // SAFETY: as above.
        let count = unsafe { GetActiveProcessorCount(group) };
        count.min(GROUP_PROCESSORS_MAX)
    };
    (0..groups).map(count).collect()
}

/// The processors that this process may run on, numbered through. A process that was held to some of
/// its group's is left there; one that was not may use every group.
pub fn processors() -> Vec<usize> {
    let groups = groups();
    let all = 0..groups.iter().map(|count| *count as usize).sum();
    let mut own_groups = [0u16; 64];
    let mut count = own_groups.len() as u16;
    let (mut mask, mut system) = (0usize, 0usize);
    // SAFETY: writes at most `count` numbers; the handle is this process's own.
    let has_groups = unsafe {
        GetProcessGroupAffinity(GetCurrentProcess(), &raw mut count, own_groups.as_mut_ptr())
    } != 0;
    let (own, all_own) = (&raw mut mask, &raw mut system);
    // SAFETY: writes two numbers; the handle is this process's own.
    let asked = unsafe { GetProcessAffinityMask(GetCurrentProcess(), own, all_own) };
    // The mask is 0 where the process has threads in several groups.
    if asked == 0 || mask == 0 || mask == system {
        return all.collect();
    }
    let group = own_groups.first().copied().filter(|_| has_groups && count == 1).unwrap_or(0);
    let before: usize = groups.iter().take(group.into()).map(|count| *count as usize).sum();
    (0..usize::BITS).filter(|bit| mask >> bit & 1 != 0).map(|bit| before + bit as usize).collect()
}

/// Group and number in it of processor `index`, counted through `groups`.
pub fn place(groups: &[u32], index: usize) -> Option<(u16, u32)> {
    let mut rest = u32::try_from(index).ok()?;
    for (group, &count) in (0u16..).zip(groups) {
        if rest < count {
            return Some((group, rest));
        }
        rest -= count;
    }
    None
}

/// Pins the calling thread to processor `index`, numbered through; whether Windows did it.
pub fn pin(index: usize) -> bool {
    let Some((group, number)) = place(&groups(), index) else { return false };
    let Some(mask) = 1usize.checked_shl(number) else { return false };
    let affinity = GROUP_AFFINITY { Mask: mask, Group: group, ..Default::default() };
    // SAFETY: reads the structure; the handle is this thread's own.
    unsafe { SetThreadGroupAffinity(GetCurrentThread(), &raw const affinity, null_mut()) != 0 }
}

/// Bytes of memory (`GlobalMemoryStatusEx`).
pub fn memory_bytes() -> Option<u64> {
    let mut status =
        MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the structure says its own size.
    (unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0).then_some(status.ullTotalPhys)
}

/// Version and build, as `10.0.26100` (`RtlGetVersion`, which tells no program what it wants to hear).
pub fn version() -> String {
    let mut info = OSVERSIONINFOW {
        dwOSVersionInfoSize: size_of::<OSVERSIONINFOW>() as u32,
        ..Default::default()
    };
    // SAFETY: the structure says its own size; the call cannot fail.
    unsafe { RtlGetVersion(&raw mut info) };
    format!("{}.{}.{}", info.dwMajorVersion, info.dwMinorVersion, info.dwBuildNumber)
}

fn wide(text: &str) -> Vec<u16> {
    OsStr::new(text).encode_wide().chain([0]).collect()
}

/// A number below `HKEY_LOCAL_MACHINE`.
pub fn registry_number(key: &str, name: &str) -> Option<u32> {
    let (key, name) = (wide(key), wide(name));
    let (mut value, mut bytes) = (0u32, size_of::<u32>() as u32);
    // SAFETY: the names end with a zero, and the buffer is as long as is said.
    let result = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            name.as_ptr(),
            RRF_RT_REG_DWORD,
            null_mut(),
            (&raw mut value).cast(),
            &raw mut bytes,
        )
    };
    (result == 0).then_some(value)
}

/// A text below `HKEY_LOCAL_MACHINE`, where it is not empty.
pub fn registry_text(key: &str, name: &str) -> Option<String> {
    let (key, name) = (wide(key), wide(name));
    let mut value = [0u16; 256];
    let mut bytes = size_of_val(&value) as u32;
    // SAFETY: as above.
    let result = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            key.as_ptr(),
            name.as_ptr(),
            RRF_RT_REG_SZ,
            null_mut(),
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let end = value.iter().position(|unit| *unit == 0).unwrap_or(value.len());
    let text = String::from_utf16_lossy(value.get(..end).unwrap_or_default()).trim().to_owned();
    (result == 0 && !text.is_empty()).then_some(text)
}

/// Wine's version where this is Wine, which has a function in ntdll.dll that Windows does not.
pub fn wine_version() -> Option<String> {
    let library = wide("ntdll.dll");
    // SAFETY: the name ends with a zero, and every process has this library.
    let library = unsafe { GetModuleHandleW(library.as_ptr()) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded, and the name ends with a zero.
    let found = unsafe { GetProcAddress(library, c"wine_get_version".as_ptr().cast()) }?;
    // SAFETY: Wine documents the function of this name as `const char *(void)`, cdecl.
    let text = unsafe {
        let version: extern "C" fn() -> MaybeUninit<*const std::ffi::c_char> =
            std::mem::transmute(found);
        version().assume_init()
    };
    if text.is_null() {
        return None;
    }
    // SAFETY: a constant text of the library's, which ends with a zero.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_numbered_through_the_groups() {
        assert_eq!(place(&[64, 36], 0), Some((0, 0)));
        assert_eq!(place(&[64, 36], 63), Some((0, 63)));
        assert_eq!(place(&[64, 36], 64), Some((1, 0)));
        assert_eq!(place(&[64, 36], 99), Some((1, 35)));
        assert_eq!(place(&[64, 36], 100), None);
        assert_eq!(place(&[], 0), None);
    }

    #[test]
    fn a_thread_is_pinned_to_each_processor_that_is_there_and_to_no_other() {
        let all = processors();
        assert!(!all.is_empty());
        for cpu in all {
            assert!(pin(cpu), "{cpu}");
        }
        assert!(!pin(100_000));
    }

    #[test]
    fn times_move_on() {
        let (system, (user, kernel)) = (system_times().unwrap(), process_times().unwrap());
        let start = std::time::Instant::now();
        while process_times().is_some_and(|(u, k)| u + k < user + kernel + 0.05) {
            assert!(start.elapsed().as_secs() < 60);
            std::hint::spin_loop();
        }
        let now = system_times().unwrap();
        assert!(
            now.busy_s > system.busy_s && now.all_s - system.all_s >= now.busy_s - system.busy_s
        );
    }

    #[test]
    fn the_machine_says_something() {
        assert!(memory_bytes().unwrap() > 1 << 20);
        assert!(version().starts_with("10.0."), "{}", version());
        assert_eq!(registry_number(r"SOFTWARE\nvpoll\is not there", "x"), None);
        let build =
            registry_text(r"SOFTWARE\Microsoft\Windows NT\CurrentVersion", "CurrentBuild").unwrap();
        assert!(version().ends_with(&build), "{build} {}", version());
    }
}
