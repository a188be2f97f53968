//! How one I/O ended, in four bytes.

use nvpoll_spec::Status;
use std::fmt;

const KIND_SHIFT: u32 = 24;
const NVME: u32 = 1;
const ERRNO: u32 = 2;
const SHORT: u32 = 3;
const OTHER: u32 = 4;

/// An I/O's outcome: success, an NVMe status, an operating system's error number, or a transfer
/// that was shorter than asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoStatus(u32);

impl IoStatus {
    /// All bytes were moved.
    pub const OK: Self = Self(0);
    /// Fewer bytes were moved than asked.
    pub const SHORT: Self = Self(SHORT << KIND_SHIFT);
    /// The engine refused the operation as outside its target or shape.
    pub const REJECTED: Self = Self(OTHER << KIND_SHIFT | 1);

    /// From a completion's status; a success is [`OK`](Self::OK).
    #[inline(always)]
    pub const fn nvme(status: Status) -> Self {
        if status.is_success() { Self::OK } else { Self(NVME << KIND_SHIFT | status.0 as u32) }
    }

    /// From a positive error number.
    pub const fn errno(errno: i32) -> Self {
        Self(ERRNO << KIND_SHIFT | (errno as u32 & 0xff_ffff))
    }

    /// Whether all bytes were moved.
    #[inline(always)]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// The NVMe status, where this is one.
    pub const fn as_nvme(self) -> Option<Status> {
        if self.0 >> KIND_SHIFT == NVME { Some(Status(self.0 as u16)) } else { None }
    }

    /// The operating system's error number, where this is one.
    pub const fn as_errno(self) -> Option<i32> {
        if self.0 >> KIND_SHIFT == ERRNO { Some((self.0 & 0xff_ffff) as i32) } else { None }
    }
}

impl fmt::Display for IoStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_nvme(), self.as_errno()) {
            (Some(status), _) => status.fmt(f),
            (_, Some(errno)) => std::io::Error::from_raw_os_error(errno).fmt(f),
            _ => f.write_str(match *self {
                Self::OK => "success",
                Self::SHORT => "short transfer",
                Self::REJECTED => "refused by the engine: outside the target or the queue's shape",
                _ => "unknown outcome",
            }),
        }
    }
}

impl fmt::Debug for IoStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_do_not_mix() {
        assert!(IoStatus::nvme(Status::SUCCESS).is_ok());
        assert!(IoStatus::nvme(Status(0x4000)).is_ok(), "DNR alone is no error");
        let media = IoStatus::nvme(Status(0x4281));
        assert_eq!((media.as_nvme(), media.as_errno()), (Some(Status(0x4281)), None));
        let eio = IoStatus::errno(5);
        assert_eq!((eio.as_nvme(), eio.as_errno()), (None, Some(5)));
        assert!(!IoStatus::SHORT.is_ok() && IoStatus::SHORT.as_errno().is_none());
        assert!(media.to_string().contains("Unrecovered Read Error"));
    }
}
