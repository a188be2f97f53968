//! The table of IoRing's functions, in types that every system has.

#![allow(unsafe_code)]

use crate::Handle;
use std::fmt::{self, Debug};

/// An `HIORING`. It is closed by [`RingCalls::close`], not by being dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingHandle(pub usize);

/// An `HRESULT`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HResult(pub i32);

impl HResult {
    /// Done.
    pub const OK: Self = Self(0);
    /// The submission queue is full (`IORING_E_SUBMISSION_QUEUE_FULL`, winerror.h).
    pub const QUEUE_FULL: Self = Self(0x8046_0002_u32 as i32);
    /// The time is over, and all was handed over: `IORING_E_WAIT_TIMEOUT`, which is
    /// `HRESULT_FROM_WIN32(ERROR_TIMEOUT)`.
    pub const WAIT_TIMEOUT: Self = Self(0x8007_05b4_u32 as i32);

    /// Whether it is a success: the sign bit is clear.
    pub const fn is_success(self) -> bool {
        self.0 >= 0
    }

    /// The number that `GetLastError` would have, where this is one of those (`FACILITY_WIN32`).
    pub const fn win32(self) -> Option<u32> {
        let bits = self.0 as u32;
        if bits >> 16 == 0x8007 { Some(bits & 0xffff) } else { None }
    }
}

impl fmt::Display for HResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.win32() {
            Some(code) => fmt::Display::fmt(&crate::Win32Error(code), f),
            None => write!(f, "HRESULT {:#010x}", self.0 as u32),
        }
    }
}

impl Debug for HResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What this Windows' rings can do (`IORING_CAPABILITIES`, ioringapi.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCapabilities {
    /// `MaxVersion`: 1 reads, 300 (version 3) also writes and flushes.
    pub version: u32,
    /// `MaxSubmissionQueueSize`.
    pub submission_max: u32,
    /// `MaxCompletionQueueSize`.
    pub completion_max: u32,
    /// `IORING_FEATURE_UM_EMULATION`: by system calls under the surface, not by a ring.
    pub emulated: bool,
}

impl RingCapabilities {
    /// The first version that writes and flushes (`IORING_VERSION_3`).
    pub const WRITES: u32 = 300;
}

/// One completion (`IORING_CQE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCompletion {
    /// As it was given with the request.
    pub user_data: usize,
    /// How it ended.
    pub result: HResult,
    /// Bytes moved.
    pub bytes: usize,
}

/// The functions of IoRing that are used. Each fails with its own `HRESULT`.
///
/// One file and one buffer are registered, and every request names both by their index.
#[expect(clippy::missing_errors_doc, reason = "all alike: the function's own HRESULT")]
pub trait RingCalls: Clone + Debug + Send + Sync + 'static {
    /// `QueryIoRingCapabilities`.
    fn capabilities(&self) -> Result<RingCapabilities, HResult>;

    /// `CreateIoRing` with queues of at least these lengths.
    fn create(&self, version: u32, submission: u32, completion: u32)
    -> Result<RingHandle, HResult>;

    /// `CloseIoRing`, which waits for nothing.
    fn close(&self, ring: RingHandle);

    /// `BuildIoRingRegisterFileHandles` and `BuildIoRingRegisterBuffers` of one each, which get
    /// index 0, handed over and waited for. The ring holds nothing else yet.
    ///
    /// # Safety
    /// `bytes` from `address` on stay valid for reads and writes, and are accessed as atomics or not
    /// at all, until the ring is closed and all its requests have ended.
    unsafe fn register(
        &self,
        ring: RingHandle,
        file: Handle,
        address: *mut u8,
        bytes: u32,
    ) -> Result<(), HResult>;

    /// `BuildIoRingReadFile`: into the buffer from byte `at` on, from the file's byte `offset` on.
    /// Windows holds the range against the registered buffer.
    fn read(
        &self,
        ring: RingHandle,
        at: u32,
        bytes: u32,
        offset: u64,
        user_data: usize,
    ) -> Result<(), HResult>;

    /// `BuildIoRingWriteFile`, likewise.
    fn write(
        &self,
        ring: RingHandle,
        at: u32,
        bytes: u32,
        offset: u64,
        user_data: usize,
    ) -> Result<(), HResult>;

    /// `BuildIoRingFlushFile`: data and metadata, and the device's cache.
    fn flush(&self, ring: RingHandle, user_data: usize) -> Result<(), HResult>;

    /// `SubmitIoRing`: hands over what was built, and waits until `wait_for` have completed, for at
    /// most `wait_ms`; returns how many were handed over.
    fn submit(&self, ring: RingHandle, wait_for: u32, wait_ms: u32) -> Result<u32, HResult>;

    /// `PopIoRingCompletion`; `None` when there is none.
    fn pop(&self, ring: RingHandle) -> Result<Option<RingCompletion>, HResult>;
}
