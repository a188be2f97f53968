//! The table as Windows answers it.

#![allow(unsafe_code)]

mod devices;
mod ioring;

pub use ioring::IoRingDll;

use crate::{
    Access, Calls, DiskInterface, Handle, NtStatus, OpenMode, Overlapped, PortEntry, Started,
    Volume, Win32Error,
};
use std::mem::MaybeUninit;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use windows_sys::Win32::Foundation::{
    CloseHandle, GENERIC_READ, GENERIC_WRITE, GetLastError, HANDLE, INVALID_HANDLE_VALUE,
    RtlNtStatusToDosError, WAIT_TIMEOUT,
};
use windows_sys::Win32::Storage::FileSystem::{
    CreateFileW, FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED, FILE_SHARE_READ, FILE_SHARE_WRITE,
    FILE_STORAGE_INFO, FileStorageInfo, FlushFileBuffers, GetFileInformationByHandleEx,
    GetFileSizeEx, OPEN_EXISTING, ReadFile, SetFileCompletionNotificationModes, WriteFile,
};
use windows_sys::Win32::System::IO::{
    CancelIoEx, CreateIoCompletionPort, DeviceIoControl, GetQueuedCompletionStatusEx, OVERLAPPED,
    OVERLAPPED_ENTRY,
};

// The table's structures are Windows' own, so that pointers to one are pointers to the other.
const _: () = {
    assert!(size_of::<Overlapped>() == size_of::<OVERLAPPED>());
    assert!(align_of::<Overlapped>() == align_of::<OVERLAPPED>());
    assert!(
        std::mem::offset_of!(Overlapped, offset) == std::mem::offset_of!(OVERLAPPED, Anonymous)
    );
    assert!(std::mem::offset_of!(Overlapped, event) == std::mem::offset_of!(OVERLAPPED, hEvent));
    assert!(size_of::<PortEntry>() == size_of::<OVERLAPPED_ENTRY>());
    assert!(
        std::mem::offset_of!(PortEntry, overlapped)
            == std::mem::offset_of!(OVERLAPPED_ENTRY, lpOverlapped)
    );
    assert!(
        std::mem::offset_of!(PortEntry, bytes)
            == std::mem::offset_of!(OVERLAPPED_ENTRY, dwNumberOfBytesTransferred)
    );
};

/// `FILE_SKIP_COMPLETION_PORT_ON_SUCCESS` and `FILE_SKIP_SET_EVENT_ON_HANDLE` (winbase.h).
const SKIP_PORT_ON_SUCCESS_AND_EVENT: u8 = 1 | 2;

/// `ERROR_IO_PENDING`.
const PENDING: u32 = Win32Error::IO_PENDING.0;

/// Windows itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Win32;

/// What the last call on this thread failed with.
fn last() -> Win32Error {
    // SAFETY: reads a number of this thread.
    Win32Error(unsafe { GetLastError() })
}

/// `text` as Windows takes it.
fn wide(text: &std::ffi::OsStr) -> Vec<u16> {
    text.encode_wide().chain([0]).collect()
}

/// Up to the first zero.
fn from_wide(text: &[u16]) -> String {
    let end = text.iter().position(|unit| *unit == 0).unwrap_or(text.len());
    String::from_utf16_lossy(text.get(..end).unwrap_or_default())
}

fn raw(handle: Handle) -> HANDLE {
    std::ptr::with_exposed_provenance_mut(handle.0)
}

/// What a handle's call came to: `FALSE` is a failure.
fn done(result: i32) -> Result<(), Win32Error> {
    if result == 0 { Err(last()) } else { Ok(()) }
}

/// The outcome of a call that starts a request.
///
/// # Safety
/// `overlapped` is what the call was given, and valid.
unsafe fn started(result: i32, overlapped: *const Overlapped) -> Started {
    if result != 0 {
        // SAFETY: the call has returned success, so that the request has ended and the structure,
        // valid by the caller's promise, is nobody else's.
        let bytes = unsafe { (*overlapped).internal_high };
        return Started::AtOnce { bytes: u32::try_from(bytes).unwrap_or(u32::MAX) };
    }
    match last() {
        Win32Error(PENDING) => Started::Pending,
        error => Started::Failed(error),
    }
}

impl Calls for Win32 {
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Handle, Win32Error> {
        let name = wide(path.as_os_str());
        let access = match mode.access {
            Access::Query => 0,
            Access::Read => GENERIC_READ,
            Access::ReadWrite => GENERIC_READ | GENERIC_WRITE,
        };
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags =
            flag(mode.overlapped, FILE_FLAG_OVERLAPPED) | flag(mode.direct, FILE_FLAG_NO_BUFFERING);
        let share = FILE_SHARE_READ | FILE_SHARE_WRITE;
        // SAFETY: the name ends with a zero; the other pointers may be null.
        let handle = unsafe {
            CreateFileW(name.as_ptr(), access, share, null(), OPEN_EXISTING, flags, null_mut())
        };
        if handle == INVALID_HANDLE_VALUE {
            return Err(last());
        }
        Ok(Handle(handle.expose_provenance()))
    }

    fn close(&self, handle: Handle) {
        // SAFETY: closes a number; one that is no handle fails.
        unsafe { CloseHandle(raw(handle)) };
    }

    fn file_bytes(&self, file: Handle) -> Result<u64, Win32Error> {
        let mut bytes = 0i64;
        // SAFETY: writes 8 bytes through its argument.
        done(unsafe { GetFileSizeEx(raw(file), &raw mut bytes) })?;
        u64::try_from(bytes).map_err(|_| Win32Error::INVALID_PARAMETER)
    }

    fn sector_bytes(&self, file: Handle) -> Result<u32, Win32Error> {
        let mut info = MaybeUninit::<FILE_STORAGE_INFO>::zeroed();
        let bytes = size_of::<FILE_STORAGE_INFO>() as u32;
        // SAFETY: writes the structure of this class, whose size it is told.
        done(unsafe {
            GetFileInformationByHandleEx(
                raw(file),
                FileStorageInfo,
                info.as_mut_ptr().cast(),
                bytes,
            )
        })?;
        // SAFETY: plain numbers, zeroed above.
        Ok(unsafe { info.assume_init() }.LogicalBytesPerSector)
    }

    fn control(
        &self,
        device: Handle,
        code: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Win32Error> {
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| Win32Error::INVALID_PARAMETER);
        let (input_bytes, output_bytes) = (length(input.len())?, length(output.len())?);
        let mut answered = 0;
        // SAFETY: both buffers are as long as is said, and the call returns when it is done, since
        // the handle is not overlapped.
        done(unsafe {
            DeviceIoControl(
                raw(device),
                code,
                input.as_ptr().cast(),
                input_bytes,
                output.as_mut_ptr().cast(),
                output_bytes,
                &raw mut answered,
                null_mut(),
            )
        })?;
        Ok(output.len().min(answered as usize))
    }

    fn new_port(&self) -> Result<Handle, Win32Error> {
        // SAFETY: no file, no port: makes one, for one thread at a time.
        let port = unsafe { CreateIoCompletionPort(INVALID_HANDLE_VALUE, null_mut(), 0, 1) };
        if port.is_null() { Err(last()) } else { Ok(Handle(port.expose_provenance())) }
    }

    fn join(&self, port: Handle, file: Handle, key: usize) -> Result<(), Win32Error> {
        // SAFETY: takes handles and a number.
        let joined = unsafe { CreateIoCompletionPort(raw(file), raw(port), key, 0) };
        if joined.is_null() { Err(last()) } else { Ok(()) }
    }

    fn skip_port_on_success(&self, file: Handle) -> Result<(), Win32Error> {
        // SAFETY: takes a handle and a number.
        done(unsafe {
            SetFileCompletionNotificationModes(raw(file), SKIP_PORT_ON_SUCCESS_AND_EVENT)
        })
    }

    /// # Safety
    /// As the table says.
    #[inline(always)]
    unsafe fn read(
        &self,
        file: Handle,
        buffer: *mut u8,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started {
        // SAFETY: the caller's promise; the structure is Windows' own, as is asserted above.
        unsafe {
            let result = ReadFile(raw(file), buffer, bytes, null_mut(), overlapped.cast());
            started(result, overlapped)
        }
    }

    /// # Safety
    /// As the table says.
    #[inline(always)]
    unsafe fn write(
        &self,
        file: Handle,
        buffer: *const u8,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started {
        // SAFETY: as for `read`.
        unsafe {
            let result = WriteFile(raw(file), buffer, bytes, null_mut(), overlapped.cast());
            started(result, overlapped)
        }
    }

    fn flush(&self, file: Handle) -> Result<(), Win32Error> {
        // SAFETY: takes a handle.
        done(unsafe { FlushFileBuffers(raw(file)) })
    }

    #[inline(always)]
    fn dequeue(
        &self,
        port: Handle,
        entries: &mut [PortEntry],
        wait_ms: u32,
    ) -> Result<usize, Win32Error> {
        let most = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let mut found = 0;
        // SAFETY: writes at most so many entries, which have Windows' own form; not alertable.
        let result = unsafe {
            GetQueuedCompletionStatusEx(
                raw(port),
                entries.as_mut_ptr().cast(),
                most,
                &raw mut found,
                wait_ms,
                0,
            )
        };
        match result {
            0 if last() == Win32Error(WAIT_TIMEOUT) => Ok(0),
            0 => Err(last()),
            _ => Ok(entries.len().min(found as usize)),
        }
    }

    fn cancel_all(&self, file: Handle) {
        // SAFETY: takes a handle; null means all requests on it. That there was none is no failure.
        unsafe { CancelIoEx(raw(file), null()) };
    }

    fn error_of(&self, status: NtStatus) -> Win32Error {
        // SAFETY: takes a number.
        Win32Error(unsafe { RtlNtStatusToDosError(status.0 as i32) })
    }

    fn disks(&self) -> Result<Vec<DiskInterface>, Win32Error> {
        devices::disks()
    }

    fn volumes(&self) -> Result<Vec<Volume>, Win32Error> {
        devices::volumes()
    }
}
