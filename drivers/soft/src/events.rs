//! Asynchronous events (§5.2) and the error log that they point at (§5.14.1.1).

use nvpoll_spec::{LogId, Status, SubmissionEntry};
use std::collections::VecDeque;

/// Asynchronous Event Requests that may be outstanding: AERL plus one.
pub(crate) const REQUESTS_MAX: usize = 4;
/// Entries of the error log that are kept: ELPE plus one.
pub(crate) const ERRORS_KEPT: usize = 64;
/// Bytes of one entry in the error log (Figure 193).
pub(crate) const ERROR_ENTRY_BYTES: usize = 64;

/// What the host is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Error: a doorbell of a queue that does not exist was written.
    InvalidDoorbellRegister,
    /// Error: a doorbell was written with a value that cannot be.
    InvalidDoorbellValue,
    /// SMART: the temperature crossed its threshold.
    Temperature,
}

impl Event {
    const ALL: [Self; 3] =
        [Self::InvalidDoorbellRegister, Self::InvalidDoorbellValue, Self::Temperature];

    /// Asynchronous Event Type, bits 2:0 of the completion's result.
    const fn kind(self) -> u32 {
        match self {
            Self::InvalidDoorbellRegister | Self::InvalidDoorbellValue => 0,
            Self::Temperature => 1,
        }
    }

    const fn log(self) -> LogId {
        match self {
            Self::InvalidDoorbellRegister | Self::InvalidDoorbellValue => LogId::ERROR,
            Self::Temperature => LogId::SMART,
        }
    }

    /// DW0 of the completion: type, information in 15:8, log page in 23:16 (Figures 147 to 149).
    const fn result(self) -> u32 {
        let information = match self {
            Self::InvalidDoorbellRegister => 0,
            Self::InvalidDoorbellValue | Self::Temperature => 1,
        };
        self.kind() | information << 8 | (self.log().0 as u32) << 16
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The requests that are held, and the events that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Events {
    requests: VecDeque<u16>,
    waiting: u8,
    /// Types that were reported and whose log page was not read yet: they are masked (§5.2).
    masked: u8,
}

impl Events {
    /// Holds a request; `false` when there are too many.
    pub(crate) fn hold(&mut self, cid: u16) -> bool {
        let fits = self.requests.len() < REQUESTS_MAX;
        if fits {
            self.requests.push_back(cid);
        }
        fits
    }

    /// Takes a held request back, for Abort.
    pub(crate) fn take(&mut self, cid: u16) -> bool {
        let at = self.requests.iter().position(|held| *held == cid);
        at.and_then(|at| self.requests.remove(at)).is_some()
    }

    pub(crate) fn raise(&mut self, event: Event) {
        self.waiting |= event.bit();
    }

    /// The log was read with Retain Asynchronous Event cleared: its type may be reported again,
    /// and what waited has been seen.
    pub(crate) fn log_was_read(&mut self, log: LogId) {
        for event in Event::ALL.into_iter().filter(|event| event.log() == log) {
            self.masked &= !(1 << event.kind());
            self.waiting &= !event.bit();
        }
    }

    /// The next event to report: the request's CID and its result.
    pub(crate) fn next(&mut self) -> Option<(u16, u32)> {
        let free =
            |event: &Event| self.waiting & event.bit() != 0 && self.masked & 1 << event.kind() == 0;
        let event = Event::ALL.into_iter().find(free)?;
        let cid = self.requests.pop_front()?;
        self.waiting &= !event.bit();
        self.masked |= 1 << event.kind();
        Some((cid, event.result()))
    }
}

/// One entry of the error log.
#[derive(Clone, Copy, Debug, Default)]
struct ErrorEntry {
    count: u64,
    sq: u16,
    cid: u16,
    status: u16,
    lba: u64,
    nsid: u32,
}

/// The last errors, newest first when read.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    entries: Box<[ErrorEntry; ERRORS_KEPT]>,
    count: u64,
}

impl ErrorLog {
    pub(crate) fn new() -> Self {
        Self { entries: Box::new([ErrorEntry::default(); ERRORS_KEPT]), count: 0 }
    }

    /// Errors over the controller's life.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    fn push(&mut self, entry: ErrorEntry) {
        self.count += 1;
        let place = (self.count - 1) as usize % ERRORS_KEPT;
        self.entries[place] = ErrorEntry { count: self.count, ..entry };
    }

    /// A command failed.
    #[cold]
    pub(crate) fn record(&mut self, sq: u16, entry: &SubmissionEntry, status: Status) {
        let lba = if sq == 0 { 0 } else { entry.lba() };
        let status = status.to_entry(false);
        self.push(ErrorEntry { sq, cid: entry.cid, status, lba, nsid: entry.nsid, count: 0 });
    }

    /// An error that belongs to no command: CID FFFFh (Figure 193).
    pub(crate) fn record_doorbell(&mut self, sq: u16, event: Event) {
        let status = if event == Event::InvalidDoorbellRegister {
            Status::INVALID_QID
        } else {
            Status::INVALID_FIELD
        };
        let status = status.to_entry(false);
        self.push(ErrorEntry { sq, cid: 0xffff, status, ..ErrorEntry::default() });
    }

    /// The `index`th entry from the newest, as the eight words of the log page.
    pub(crate) fn words(&self, index: usize) -> [u64; ERROR_ENTRY_BYTES / 8] {
        let age = index as u64;
        if index >= ERRORS_KEPT || age >= self.count {
            return [0; 8];
        }
        let entry = self.entries[(self.count - 1 - age) as usize % ERRORS_KEPT];
        // Parameter Error Location FFFFh: it is not said which field was wrong.
        let ids = u64::from(entry.sq)
            | u64::from(entry.cid) << 16
            | u64::from(entry.status) << 32
            | 0xffff << 48;
        [entry.count, ids, entry.lba, u64::from(entry.nsid), 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_waits_for_a_request_and_its_type_is_masked_until_the_log_is_read() {
        let mut events = Events::default();
        events.raise(Event::InvalidDoorbellValue);
        assert_eq!(events.next(), None, "no request is held");
        assert!(events.hold(7) && events.hold(8));
        assert_eq!(events.next(), Some((7, 0x0001_0100)));
        events.raise(Event::InvalidDoorbellRegister);
        assert_eq!(events.next(), None, "the error type is masked");
        events.raise(Event::Temperature);
        assert_eq!(events.next(), Some((8, 0x0002_0101)), "another type is not");
        events.log_was_read(LogId::ERROR);
        assert!(events.hold(9));
        assert_eq!(events.next(), None, "what waited was read in the log");
        events.raise(Event::InvalidDoorbellRegister);
        assert_eq!(events.next(), Some((9, 0x0001_0000)));
    }

    #[test]
    fn requests_are_limited_and_can_be_taken_back() {
        let mut events = Events::default();
        assert!((0..4).all(|cid| events.hold(cid)) && !events.hold(4));
        assert!(events.take(2) && !events.take(2));
        assert!(events.hold(4));
    }

    #[test]
    fn the_error_log_keeps_the_newest() {
        let mut log = ErrorLog::new();
        assert_eq!(log.words(0), [0; 8]);
        for cid in 0..70 {
            let entry = SubmissionEntry { cid, nsid: 1, ..SubmissionEntry::default() };
            log.record(3, &entry, Status::LBA_OUT_OF_RANGE);
        }
        assert_eq!(log.words(0)[..2], [70, 0xffff_0100_0045_0003]);
        assert_eq!(log.words(63)[0], 7);
        assert_eq!(log.words(64), [0; 8]);
    }
}
