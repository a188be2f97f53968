//! The status field of a completion (§4.6.1).

use crate::open::open_enum;
use core::fmt;

open_enum! {
    /// SCT: which table a status code is from (§4.6.1.1).
    pub StatusCodeType: u8 {
        /// Generic command status.
        GENERIC = 0, "generic";
        /// Command specific status.
        COMMAND = 1, "command specific";
        /// Media and data integrity errors.
        MEDIA = 2, "media and data integrity";
        /// Path related status.
        PATH = 3, "path related";
        /// Vendor specific.
        VENDOR = 7, "vendor specific";
    }
}

/// A completion's status without its phase tag: SC in bits 7:0, SCT in 10:8, CRD in 12:11, More in
/// 13, Do Not Retry in 14 (Figure 124). Zero, and only zero in SC and SCT, is success.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Status(pub u16);

impl Status {
    /// Successful completion.
    pub const SUCCESS: Self = Self::new(0, 0x00);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Self = Self::new(0, 0x01);
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Self = Self::new(0, 0x02);
    /// Command ID Conflict.
    pub const CID_CONFLICT: Self = Self::new(0, 0x03);
    /// Data Transfer Error.
    pub const DATA_TRANSFER: Self = Self::new(0, 0x04);
    /// Internal Error.
    pub const INTERNAL: Self = Self::new(0, 0x06);
    /// Command Abort Requested.
    pub const ABORTED: Self = Self::new(0, 0x07);
    /// Command Aborted due to SQ Deletion.
    pub const ABORTED_SQ_DELETED: Self = Self::new(0, 0x08);
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Self = Self::new(0, 0x0b);
    /// Command Sequence Error.
    pub const COMMAND_SEQUENCE: Self = Self::new(0, 0x0c);
    /// Data SGL Length Invalid.
    pub const INVALID_SGL_LENGTH: Self = Self::new(0, 0x0f);
    /// SGL Descriptor Type Invalid.
    pub const INVALID_SGL_TYPE: Self = Self::new(0, 0x11);
    /// PRP Offset Invalid.
    pub const INVALID_PRP_OFFSET: Self = Self::new(0, 0x13);
    /// LBA Out of Range.
    pub const LBA_OUT_OF_RANGE: Self = Self::new(0, 0x80);
    /// Completion Queue Invalid.
    pub const INVALID_CQ: Self = Self::new(1, 0x00);
    /// Invalid Queue Identifier.
    pub const INVALID_QID: Self = Self::new(1, 0x01);
    /// Invalid Queue Size.
    pub const INVALID_QUEUE_SIZE: Self = Self::new(1, 0x02);
    /// Asynchronous Event Request Limit Exceeded.
    pub const ASYNC_EVENT_LIMIT: Self = Self::new(1, 0x05);
    /// Invalid Interrupt Vector.
    pub const INVALID_VECTOR: Self = Self::new(1, 0x08);
    /// Invalid Log Page.
    pub const INVALID_LOG: Self = Self::new(1, 0x09);
    /// Invalid Queue Deletion.
    pub const INVALID_QUEUE_DELETION: Self = Self::new(1, 0x0c);
    /// Feature Identifier Not Saveable.
    pub const FEATURE_NOT_SAVEABLE: Self = Self::new(1, 0x0d);
    /// Invalid Format.
    pub const INVALID_FORMAT: Self = Self::new(1, 0x0a);
    /// Command Size Limit Exceeded (Copy).
    pub const COMMAND_SIZE_LIMIT: Self = Self::new(1, 0x83);
    /// Invalid Protection Information.
    pub const INVALID_PROTECTION: Self = Self::new(1, 0x81);
    /// Zone Boundary Error (Zoned Namespace Command Set 1.1, Figure 23, as the following).
    pub const ZONE_BOUNDARY: Self = Self::new(1, 0xb8);
    /// Zone Is Full.
    pub const ZONE_FULL: Self = Self::new(1, 0xb9);
    /// Zone Invalid Write: not at the write pointer.
    pub const ZONE_INVALID_WRITE: Self = Self::new(1, 0xbc);
    /// Too Many Active Zones.
    pub const ZONE_TOO_MANY_ACTIVE: Self = Self::new(1, 0xbd);
    /// Too Many Open Zones.
    pub const ZONE_TOO_MANY_OPEN: Self = Self::new(1, 0xbe);
    /// Invalid Zone State Transition.
    pub const ZONE_INVALID_TRANSITION: Self = Self::new(1, 0xbf);
    /// Write Fault.
    pub const WRITE_FAULT: Self = Self::new(2, 0x80);
    /// Unrecovered Read Error.
    pub const UNRECOVERED_READ: Self = Self::new(2, 0x81);
    /// End-to-end Guard Check Error.
    pub const GUARD_CHECK: Self = Self::new(2, 0x82);
    /// End-to-end Application Tag Check Error.
    pub const APPLICATION_CHECK: Self = Self::new(2, 0x83);
    /// End-to-end Reference Tag Check Error.
    pub const REFERENCE_CHECK: Self = Self::new(2, 0x84);
    /// Compare Failure.
    pub const COMPARE_FAILURE: Self = Self::new(2, 0x85);

    /// A status of code type `sct` (0 to 7) and code `sc`.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self(((sct & 7) as u16) << 8 | sc as u16)
    }

    /// The status in a completion entry's last half-word, whose bit 0 is the phase tag.
    pub const fn from_entry(status_phase: u16) -> Self {
        Self(status_phase >> 1)
    }

    /// The last half-word of a completion entry with this status and `phase`.
    pub const fn to_entry(self, phase: bool) -> u16 {
        self.0 << 1 | phase as u16
    }

    /// The same, found by the host in what a controller completed well. The mark is a bit that no
    /// completion has.
    pub const fn found_by_host(self) -> Self {
        Self(self.0 | 1 << 15)
    }

    /// Whether the host found it, and not the controller.
    pub const fn is_found_by_host(self) -> bool {
        self.0 & 1 << 15 != 0
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// SC: the code within its type.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// SCT: the code's type.
    pub const fn code_type(self) -> StatusCodeType {
        StatusCodeType((self.0 >> 8) as u8 & 7)
    }

    /// DNR: the same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// The specification's words for this code, or `None` when it is not known here.
    pub const fn name(self) -> Option<&'static str> {
        Some(match (self.code_type().0, self.code()) {
            (0, 0x00) => "Successful Completion",
            (0, 0x01) => "Invalid Command Opcode",
            (0, 0x02) => "Invalid Field in Command",
            (0, 0x03) => "Command ID Conflict",
            (0, 0x04) => "Data Transfer Error",
            (0, 0x05) => "Commands Aborted due to Power Loss Notification",
            (0, 0x06) => "Internal Error",
            (0, 0x07) => "Command Abort Requested",
            (0, 0x08) => "Command Aborted due to SQ Deletion",
            (0, 0x0b) => "Invalid Namespace or Format",
            (0, 0x0c) => "Command Sequence Error",
            (0, 0x0d) => "Invalid SGL Segment Descriptor",
            (0, 0x0e) => "Invalid Number of SGL Descriptors",
            (0, 0x0f) => "Data SGL Length Invalid",
            (0, 0x10) => "Metadata SGL Length Invalid",
            (0, 0x11) => "SGL Descriptor Type Invalid",
            (0, 0x12) => "Invalid Use of Controller Memory Buffer",
            (0, 0x13) => "PRP Offset Invalid",
            (0, 0x16) => "SGL Offset Invalid",
            (0, 0x1e) => "SGL Data Block Granularity Invalid",
            (0, 0x20) => "Namespace is Write Protected",
            (0, 0x80) => "LBA Out of Range",
            (0, 0x81) => "Capacity Exceeded",
            (0, 0x82) => "Namespace Not Ready",
            (0, 0x83) => "Reservation Conflict",
            (0, 0x84) => "Format In Progress",
            (1, 0x00) => "Completion Queue Invalid",
            (1, 0x01) => "Invalid Queue Identifier",
            (1, 0x02) => "Invalid Queue Size",
            (1, 0x03) => "Abort Command Limit Exceeded",
            (1, 0x05) => "Asynchronous Event Request Limit Exceeded",
            (1, 0x08) => "Invalid Interrupt Vector",
            (1, 0x09) => "Invalid Log Page",
            (1, 0x0a) => "Invalid Format",
            (1, 0x0c) => "Invalid Queue Deletion",
            (1, 0x0d) => "Feature Identifier Not Saveable",
            (1, 0x80) => "Conflicting Attributes",
            (1, 0x81) => "Invalid Protection Information",
            (1, 0x82) => "Attempted Write to Read Only Range",
            (1, 0x83) => "Command Size Limit Exceeded",
            (1, 0xb8) => "Zone Boundary Error",
            (1, 0xb9) => "Zone Is Full",
            (1, 0xba) => "Zone Is Read Only",
            (1, 0xbb) => "Zone Is Offline",
            (1, 0xbc) => "Zone Invalid Write",
            (1, 0xbd) => "Too Many Active Zones",
            (1, 0xbe) => "Too Many Open Zones",
            (1, 0xbf) => "Invalid Zone State Transition",
            (2, 0x80) => "Write Fault",
            (2, 0x81) => "Unrecovered Read Error",
            (2, 0x82) => "End-to-end Guard Check Error",
            (2, 0x83) => "End-to-end Application Tag Check Error",
            (2, 0x84) => "End-to-end Reference Tag Check Error",
            (2, 0x85) => "Compare Failure",
            (2, 0x86) => "Access Denied",
            (2, 0x87) => "Deallocated or Unwritten Logical Block",
            _ => return None,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sct, sc) = (self.code_type(), self.code());
        match self.name() {
            Some(name) => write!(f, "{name} (SCT {:#x}, SC {sc:#04x})", sct.0)?,
            None => write!(f, "{sct} status SCT {:#x}, SC {sc:#04x}", sct.0)?,
        }
        if self.is_found_by_host() {
            f.write_str(", found by the host")?;
        }
        if self.do_not_retry() { f.write_str(", do not retry") } else { Ok(()) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn fields() {
        let status = Status::from_entry(0x8503);
        assert_eq!(status, Status(0x4281));
        assert_eq!((status.code_type(), status.code()), (StatusCodeType::MEDIA, 0x81));
        assert!(status.do_not_retry() && !status.is_success());
        assert_eq!(status.to_entry(true), 0x8503);
        assert!(Status(0x4000).is_success(), "DNR alone is no error");
    }

    #[test]
    fn codes() {
        for (status, sct, sc, name) in [
            (Status::COMMAND_SEQUENCE, 0, 0x0c, "Command Sequence Error"),
            (Status::ASYNC_EVENT_LIMIT, 1, 0x05, "Asynchronous Event Request Limit Exceeded"),
            (Status::INVALID_VECTOR, 1, 0x08, "Invalid Interrupt Vector"),
            (Status::INVALID_SGL_LENGTH, 0, 0x0f, "Data SGL Length Invalid"),
            (Status::INVALID_SGL_TYPE, 0, 0x11, "SGL Descriptor Type Invalid"),
            (Status::FEATURE_NOT_SAVEABLE, 1, 0x0d, "Feature Identifier Not Saveable"),
        ] {
            assert_eq!((status.code_type().0, status.code(), status.name()), (sct, sc, Some(name)));
        }
    }

    #[test]
    fn words() {
        assert_eq!(
            Status(0x4281).to_string(),
            "Unrecovered Read Error (SCT 0x2, SC 0x81), do not retry"
        );
        assert_eq!(
            Status::GUARD_CHECK.found_by_host().to_string(),
            "End-to-end Guard Check Error (SCT 0x2, SC 0x82), found by the host"
        );
        assert!(!Status::from_entry(0xffff).is_found_by_host(), "no completion says so");
        assert_eq!(Status::new(7, 0xc1).to_string(), "vendor specific status SCT 0x7, SC 0xc1");
        assert_eq!(Status::new(5, 1).to_string(), "StatusCodeType 0x5 status SCT 0x5, SC 0x01");
    }
}
