//! Asynchronous events (§5.2).

use crate::LogId;
use crate::open::open_enum;
use core::fmt;

open_enum! {
    /// Asynchronous Event Type (Figure 146).
    pub AsyncEventType: u8 {
        /// Error status.
        ERROR = 0, "error status";
        /// SMART / health status.
        SMART = 1, "SMART / health status";
        /// Notice.
        NOTICE = 2, "notice";
        /// I/O command set specific status.
        COMMAND_SET = 6, "I/O command set specific status";
        /// Vendor specific.
        VENDOR = 7, "vendor specific";
    }
}

/// Dword 0 of a completed Asynchronous Event Request: type in bits 2:0, information in 15:8, the log
/// page that says more in 23:16 (Figure 146).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent(pub u32);

impl AsyncEvent {
    /// What kind of event it is.
    pub const fn kind(self) -> AsyncEventType {
        AsyncEventType(self.0 as u8 & 7)
    }

    /// Asynchronous Event Information: which one of its kind.
    pub const fn information(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// The log page to read; until then the controller reports no other event of this kind.
    pub const fn log(self) -> LogId {
        LogId((self.0 >> 16) as u8)
    }

    /// The specification's words (Figures 147 to 150), or `None` for an event that is not known here.
    pub const fn name(self) -> Option<&'static str> {
        Some(match (self.kind(), self.information()) {
            (AsyncEventType::ERROR, 0) => "write to an invalid doorbell register",
            (AsyncEventType::ERROR, 1) => "invalid doorbell write value",
            (AsyncEventType::ERROR, 2) => "diagnostic failure",
            (AsyncEventType::ERROR, 3) => "persistent internal error",
            (AsyncEventType::ERROR, 4) => "transient internal error",
            (AsyncEventType::ERROR, 5) => "firmware image load error",
            (AsyncEventType::SMART, 0) => "NVM subsystem reliability",
            (AsyncEventType::SMART, 1) => "temperature threshold",
            (AsyncEventType::SMART, 2) => "spare below threshold",
            (AsyncEventType::NOTICE, 0) => "namespace attribute changed",
            (AsyncEventType::NOTICE, 1) => "firmware activation starting",
            (AsyncEventType::NOTICE, 2) => "telemetry log changed",
            _ => return None,
        })
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, log) = (self.kind(), self.log());
        match self.name() {
            Some(name) => write!(f, "{kind}: {name} ({log} log)"),
            None => write!(f, "{kind}: information {:#04x} ({log} log)", self.information()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn fields_and_words() {
        let event = AsyncEvent(0x0002_0101);
        assert_eq!((event.kind(), event.information()), (AsyncEventType::SMART, 1));
        assert_eq!(event.log(), LogId::SMART);
        assert_eq!(
            event.to_string(),
            "SMART / health status: temperature threshold (SMART / Health Information log)"
        );
        let odd = AsyncEvent(0x00c0_ff07).to_string();
        assert_eq!(odd, "vendor specific: information 0xff (LogId 0xc0 log)");
    }
}
