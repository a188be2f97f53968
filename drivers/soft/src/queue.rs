//! The device's end of the rings.

use crate::fault::FaultAction;
use crate::iommu::{DmaFault, DmaView};
use crate::shared::Slot;
use nvpoll_spec::{CompletionEntry, Status, SubmissionEntry};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const SQ_ENTRY_BYTES: u64 = 64;
const CQ_ENTRY_BYTES: u64 = 16;

/// A doorbell value that the specification calls invalid (§5.2, Figure 148).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue;

/// A submission queue.
pub(crate) struct Sq {
    // Hot. `head` and `tail` are below `entries`.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    entries: u32,
    pub(crate) cq: u16,
    iova: u64,
    hint: usize,
    doorbell: Arc<Slot>,
    // Cold from here on: a value that was refused and is still in the register.
    rejected: Option<u32>,
}

impl Sq {
    pub(crate) fn new(iova: u64, entries: u32, cq: u16, doorbell: Arc<Slot>) -> Self {
        doorbell.0.store(0, Release);
        Self { head: 0, tail: 0, entries, cq, iova, hint: 0, doorbell, rejected: None }
    }

    /// Looks at the doorbell. A value that is out of range, or that would add more entries than
    /// are free, is refused once and ignored.
    #[inline]
    pub(crate) fn look(&mut self) -> Result<(), InvalidValue> {
        let rung = self.doorbell.0.load(Acquire);
        if rung == self.tail { Ok(()) } else { self.accept(rung) }
    }

    #[inline]
    fn accept(&mut self, rung: u32) -> Result<(), InvalidValue> {
        let ahead =
            |from: u32, to: u32| if to >= from { to - from } else { to + self.entries - from };
        // `tail` never passes `head` again: at most `entries - 1` are queued.
        if rung < self.entries
            && ahead(self.tail, rung) < self.entries - ahead(self.head, self.tail)
        {
            self.tail = rung;
            self.rejected = None;
            return Ok(());
        }
        if self.rejected == Some(rung) {
            return Ok(());
        }
        self.rejected = Some(rung);
        Err(InvalidValue)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Takes the entry at the head.
    #[inline]
    pub(crate) fn fetch(&mut self, view: &DmaView) -> Result<SubmissionEntry, DmaFault> {
        let iova = self.iova.wrapping_add(u64::from(self.head) * SQ_ENTRY_BYTES);
        let bytes = SQ_ENTRY_BYTES;
        let fault = DmaFault { iova, bytes, write: false, what: "submission queue" };
        let place = view.find(&mut self.hint, iova, bytes).ok_or(fault)?;
        let words: &[_; 8] = view.words(place).first_chunk().ok_or(fault)?;
        let entry = SubmissionEntry::from_words(std::array::from_fn(|n| words[n].load(Relaxed)));
        let next = self.head + 1;
        self.head = if next == self.entries { 0 } else { next };
        Ok(entry)
    }
}

/// A completion on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// When, on the device's clock; 0 is at once.
    pub(crate) due_ns: u64,
    pub(crate) result: u32,
    pub(crate) sq: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    /// What a fault rule makes of it.
    pub(crate) twist: Option<FaultAction>,
}

/// A completion queue.
pub(crate) struct Cq {
    // Hot. `head` and `tail` are below `entries`.
    phase: bool,
    head: u32,
    tail: u32,
    entries: u32,
    iova: u64,
    hint: usize,
    doorbell: Arc<Slot>,
    /// Completions that are not due yet, or for which there is no room; in the order of their due
    /// times, because those only grow.
    pub(crate) pending: VecDeque<Pending>,
    // Cold from here on.
    rejected: Option<u32>,
    /// Submission queues that complete to this one.
    pub(crate) users: u32,
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Done,
    Full,
}

impl Cq {
    pub(crate) fn new(iova: u64, entries: u32, doorbell: Arc<Slot>) -> Self {
        doorbell.0.store(0, Release);
        let pending = VecDeque::with_capacity(entries as usize);
        Self {
            phase: true,
            head: 0,
            tail: 0,
            entries,
            iova,
            hint: 0,
            doorbell,
            pending,
            rejected: None,
            users: 0,
        }
    }

    /// Whether another command may be fetched for this queue: its completion has a place to wait.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < self.entries as usize
    }

    #[inline]
    fn next(&self) -> u32 {
        let next = self.tail + 1;
        if next == self.entries { 0 } else { next }
    }

    /// Looks at the doorbell. A value that is out of range, or past what was posted, is refused
    /// once and ignored.
    pub(crate) fn look(&mut self) -> Result<(), InvalidValue> {
        let rung = self.doorbell.0.load(Acquire);
        if rung == self.head {
            return Ok(());
        }
        let ahead =
            |from: u32, to: u32| if to >= from { to - from } else { to + self.entries - from };
        if rung < self.entries && ahead(self.head, rung) <= ahead(self.head, self.tail) {
            self.head = rung;
            self.rejected = None;
            return Ok(());
        }
        if self.rejected == Some(rung) {
            return Ok(());
        }
        self.rejected = Some(rung);
        Err(InvalidValue)
    }

    /// Whether there is no free slot, as far as the doorbell was looked at.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.next() == self.head
    }

    /// Writes a completion to the tail, whose phase tag is the last thing that is stored.
    #[inline]
    pub(crate) fn post(
        &mut self,
        view: &DmaView,
        pending: &Pending,
        sq_head: u16,
    ) -> Result<Posted, DmaFault> {
        if self.is_full() {
            return Ok(Posted::Full);
        }
        let iova = self.iova.wrapping_add(u64::from(self.tail) * CQ_ENTRY_BYTES);
        let bytes = CQ_ENTRY_BYTES;
        let fault = DmaFault { iova, bytes, write: true, what: "completion queue" };
        let place = view.find(&mut self.hint, iova, bytes).ok_or(fault)?;
        let words: &[_; 2] = view.words(place).first_chunk().ok_or(fault)?;
        let mut entry = CompletionEntry {
            result: pending.result,
            dw1: 0,
            sq_head,
            sq_id: pending.sq,
            cid: pending.cid,
            status_phase: pending.status.to_entry(self.phase),
        };
        match pending.twist {
            None => {}
            Some(FaultAction::WrongCid(cid)) => entry.cid = cid,
            Some(FaultAction::WrongSqId(sq)) => entry.sq_id = sq,
            Some(FaultAction::WrongSqHead(head)) => entry.sq_head = head,
            Some(FaultAction::StalePhase) => entry.status_phase ^= 1,
            Some(_) => {}
        }
        let [lower, upper] = entry.to_words();
        words[0].store(lower, Relaxed);
        words[1].store(upper, Release);
        self.tail = self.next();
        self.phase ^= self.tail == 0;
        Ok(Posted::Done)
    }
}
