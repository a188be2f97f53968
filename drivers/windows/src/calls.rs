//! The table of storage calls, in types that every system has.

#![allow(unsafe_code)]

use crate::{NtStatus, Win32Error};
use std::fmt::Debug;
use std::path::Path;

/// A `HANDLE`. It is closed by [`Calls::close`], not by being dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// `OVERLAPPED` (minwinbase.h): a request's offset on the way down, its outcome on the way up.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Overlapped {
    /// `Internal`: the request's NTSTATUS in the lower half.
    pub internal: usize,
    /// `InternalHigh`: bytes moved.
    pub internal_high: usize,
    /// `Offset` and `OffsetHigh`, which lie as one little-endian number.
    pub offset: u64,
    /// `hEvent`: none.
    pub event: usize,
}

/// `OVERLAPPED_ENTRY` (minwinbase.h): one completion that came out of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PortEntry {
    /// `lpCompletionKey`.
    pub key: usize,
    /// Address of the request's [`Overlapped`]; not to be followed before it was found to be one.
    pub overlapped: usize,
    /// `Internal`: the NTSTATUS.
    pub internal: usize,
    /// `dwNumberOfBytesTransferred`.
    pub bytes: u32,
}

/// What a handle may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Ask questions alone; needs no right on the data.
    Query,
    /// `GENERIC_READ`.
    Read,
    /// `GENERIC_READ` and `GENERIC_WRITE`.
    ReadWrite,
}

/// How a file, disk or volume is opened: an existing one, shared for reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// What the handle may do.
    pub access: Access,
    /// `FILE_FLAG_OVERLAPPED`.
    pub overlapped: bool,
    /// `FILE_FLAG_NO_BUFFERING`.
    pub direct: bool,
}

impl OpenMode {
    /// To ask questions.
    pub const QUERY: Self = Self { access: Access::Query, overlapped: false, direct: false };
    /// To ask questions that want the right to read.
    pub const LOOK: Self = Self { access: Access::Read, overlapped: false, direct: false };
}

/// What came of starting a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// `ERROR_IO_PENDING`: its completion comes out of the port.
    Pending,
    /// The call succeeded at once, and moved so many bytes. With
    /// [`skip_port_on_success`](Calls::skip_port_on_success) that is all; without it a completion
    /// comes out of the port all the same.
    AtOnce {
        /// Bytes moved.
        bytes: u32,
    },
    /// The call failed; nothing comes out of the port.
    Failed(Win32Error),
}

/// A disk's device interface (`GUID_DEVINTERFACE_DISK`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInterface {
    /// Path to open it by.
    pub path: String,
    /// The service of its device node (`SPDRP_SERVICE`): `disk`, `nvmedisk`.
    pub service: Option<String>,
}

/// A volume of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `\\?\Volume{...}`, without a backslash at its end, as it is opened.
    pub name: String,
    /// Where it is mounted: drive letters and folders.
    pub mounts: Vec<String>,
}

/// The storage calls that are made. Each fails with what `GetLastError` says.
#[expect(clippy::missing_errors_doc, reason = "all alike: what GetLastError says")]
pub trait Calls: Clone + Debug + Send + Sync + 'static {
    /// `CreateFileW`, `OPEN_EXISTING`.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Handle, Win32Error>;

    /// `CloseHandle`.
    fn close(&self, handle: Handle);

    /// `GetFileSizeEx`.
    fn file_bytes(&self, file: Handle) -> Result<u64, Win32Error>;

    /// Bytes of a logical sector below an open file (`FileStorageInfo`).
    fn sector_bytes(&self, file: Handle) -> Result<u32, Win32Error>;

    /// `DeviceIoControl` on a handle that is not overlapped; returns the bytes of the answer.
    fn control(
        &self,
        device: Handle,
        code: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Win32Error>;

    /// `CreateIoCompletionPort` alone.
    fn new_port(&self) -> Result<Handle, Win32Error>;

    /// `CreateIoCompletionPort` with both: what completes on `file` comes out of `port`, with `key`.
    fn join(&self, port: Handle, file: Handle, key: usize) -> Result<(), Win32Error>;

    /// `SetFileCompletionNotificationModes`: what succeeds at once does not come out of the port
    /// as well, and no event is set.
    fn skip_port_on_success(&self, file: Handle) -> Result<(), Win32Error>;

    /// `ReadFile`.
    ///
    /// # Safety
    /// `file` is open as overlapped. `buffer` is valid for writes of `bytes`, and `overlapped` is a
    /// request that is not under way; both stay so, and are accessed as atomics or not at all, until
    /// the request has ended.
    unsafe fn read(
        &self,
        file: Handle,
        buffer: *mut u8,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started;

    /// `WriteFile`.
    ///
    /// # Safety
    /// As for [`read`](Self::read), with `buffer` valid for reads.
    unsafe fn write(
        &self,
        file: Handle,
        buffer: *const u8,
        bytes: u32,
        overlapped: *mut Overlapped,
    ) -> Started;

    /// `FlushFileBuffers`, which returns when it is done.
    fn flush(&self, file: Handle) -> Result<(), Win32Error>;

    /// `GetQueuedCompletionStatusEx`: takes completions out of `port`, waiting up to `wait_ms` for
    /// the first; returns how many, 0 when the time is over.
    fn dequeue(
        &self,
        port: Handle,
        entries: &mut [PortEntry],
        wait_ms: u32,
    ) -> Result<usize, Win32Error>;

    /// `CancelIoEx`: asks for an end of all that is under way on `file`; each request still completes.
    fn cancel_all(&self, file: Handle);

    /// `RtlNtStatusToDosError`.
    fn error_of(&self, status: NtStatus) -> Win32Error;

    /// The disks that are present (`SetupDiGetClassDevsW` and what follows).
    fn disks(&self) -> Result<Vec<DiskInterface>, Win32Error>;

    /// The volumes (`FindFirstVolumeW`, `GetVolumePathNamesForVolumeNameW`).
    fn volumes(&self) -> Result<Vec<Volume>, Win32Error>;
}
