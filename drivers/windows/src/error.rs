//! Windows' error numbers.

use std::fmt;

/// An error number as `GetLastError` gives it (System Error Codes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Win32Error(pub u32);

impl Win32Error {
    /// A function number that the device does not know.
    pub const INVALID_FUNCTION: Self = Self(1);
    /// No such file or device.
    pub const FILE_NOT_FOUND: Self = Self(2);
    /// No such folder.
    pub const PATH_NOT_FOUND: Self = Self(3);
    /// Windows does not let this user do it, or nobody.
    pub const ACCESS_DENIED: Self = Self(5);
    /// A medium that takes no writes.
    pub const WRITE_PROTECT: Self = Self(19);
    /// Another program has it open, and does not share it.
    pub const SHARING_VIOLATION: Self = Self(32);
    /// Beyond the end.
    pub const HANDLE_EOF: Self = Self(38);
    /// The device does not know such a request.
    pub const NOT_SUPPORTED: Self = Self(50);
    /// Something about the call is not so: with `FILE_FLAG_NO_BUFFERING`, alignment.
    pub const INVALID_PARAMETER: Self = Self(87);
    /// A library without the function.
    pub const PROC_NOT_FOUND: Self = Self(127);
    /// An answer that did not fit.
    pub const MORE_DATA: Self = Self(234);
    /// Cancelled.
    pub const OPERATION_ABORTED: Self = Self(995);
    /// Under way.
    pub const IO_PENDING: Self = Self(997);
    /// The device failed.
    pub const IO_DEVICE: Self = Self(1117);

    /// What it means, in a few words, where it is one of those that storage gives.
    const fn words(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "invalid function",
            2 => "no such file or device",
            3 => "no such folder",
            5 => "access is denied",
            6 => "invalid handle",
            8 | 14 => "no memory",
            19 => "write-protected",
            21 => "the device is not ready",
            23 => "data error (CRC)",
            32 => "another program has it open and does not share it",
            38 => "beyond the end",
            50 => "not supported",
            55 => "the device is gone",
            87 => "invalid parameter",
            112 => "the disk is full",
            121 => "timed out",
            127 => "no such function in the library",
            170 => "in use",
            234 => "more data than asked for",
            433 => "no such device",
            995 => "cancelled",
            1117 => "the device reported an I/O error",
            1167 => "the device is not connected",
            1450 => "no system resources",
            1453 => "no quota",
            1784 => "invalid buffer",
            _ => return None,
        })
    }
}

impl fmt::Display for Win32Error {
    /// `Windows error 5 (access is denied)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "Windows error {} ({words})", self.0),
            None => write!(f, "Windows error {}", self.0),
        }
    }
}

impl fmt::Debug for Win32Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Win32Error {}

/// How the kernel ended a request, in `OVERLAPPED.Internal` ([MS-ERREF] 2.3, NTSTATUS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NtStatus(pub u32);

impl NtStatus {
    /// Done.
    pub const SUCCESS: Self = Self(0);

    /// Whether the two upper bits, the severity, say success or information.
    pub const fn is_success(self) -> bool {
        self.0 < 0x8000_0000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_in_words_where_they_are_known() {
        assert_eq!(Win32Error(5).to_string(), "Windows error 5 (access is denied)");
        assert_eq!(Win32Error(4711).to_string(), "Windows error 4711");
        assert!(NtStatus(0).is_success() && NtStatus(0x4000_0000).is_success());
        assert!(!NtStatus(0x8000_0005).is_success() && !NtStatus(0xc000_0022).is_success());
    }
}
