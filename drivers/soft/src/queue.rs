//! The device's end of the rings.

use crate::fault::FaultAction;
use crate::iommu::{DmaFault, DmaView};
use crate::shared::Slot;
use nvpoll_spec::{CompletionEntry, Status, SubmissionEntry};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

const SQ_ENTRY_BYTES: u64 = 64;
const CQ_ENTRY_BYTES: u64 = 16;
/// Looks in a row at a shadow doorbell that moves on.
const LOOKS_MAX: u32 = 16;

/// A doorbell value that the specification calls invalid (§5.2, Figure 148).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue;

/// A look at a doorbell that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlooked {
    /// [`InvalidValue`].
    Invalid,
    /// The shadow doorbell is not in the host's memory any more.
    Fault(DmaFault),
}

impl From<InvalidValue> for Unlooked {
    fn from(_: InvalidValue) -> Self {
        Self::Invalid
    }
}

/// Where a queue's doorbell is: a register, and in its place a word in the host's memory.
pub(crate) struct Place {
    register: Arc<Slot>,
    shadow: Option<Shadow>,
}

impl Place {
    pub(crate) fn new(register: Arc<Slot>, shadow: Option<Shadow>) -> Self {
        register.0.store(0, Release);
        Self { register, shadow }
    }

    /// What was rung.
    #[inline]
    fn rung(&mut self, view: &DmaView) -> Result<u32, DmaFault> {
        match &mut self.shadow {
            None => Ok(self.register.0.load(Acquire)),
            Some(shadow) => shadow.value.load(view),
        }
    }

    /// Says how far was looked; whether the doorbell has to be looked at once more.
    #[inline]
    fn looked(&mut self, view: &DmaView, at: u32, entries: u32) -> Result<bool, DmaFault> {
        match &mut self.shadow {
            None => Ok(false),
            Some(shadow) => shadow.tell(view, at, entries),
        }
    }

    /// Whether the host may go a whole round of the queue only when it was looked at meanwhile.
    fn wants_looks(&self) -> bool {
        self.shadow.is_some()
    }

    /// From here on it is in memory.
    pub(crate) fn move_to(&mut self, shadow: Shadow) {
        self.shadow = Some(shadow);
    }
}

/// A doorbell in the host's memory, and the index at which its register is to be written (§7.13).
pub(crate) struct Shadow {
    value: Half,
    event: Half,
    /// The device looks by itself, whatever the host does, and asks for no register.
    polls: bool,
}

impl Shadow {
    /// At `byte` of both pages.
    pub(crate) fn new(pages: (u64, u64), byte: u64, polls: bool) -> Self {
        let half = |page: u64| Half { iova: page + byte / 8 * 8, shift: byte % 8 * 8, hint: 0 };
        Self { value: half(pages.0), event: half(pages.1), polls }
    }

    /// Asks for the register at the next change, or not at all. The host writes its value and reads the
    /// index; this is the other order, so that one of both sees the other's.
    #[cold]
    fn tell(&mut self, view: &DmaView, at: u32, entries: u32) -> Result<bool, DmaFault> {
        // Half a round away: where the host is, be it a little ahead of this look or behind it.
        let away = (at + entries - entries / 2) % entries;
        self.event.store(view, if self.polls { away } else { at })?;
        fence(SeqCst);
        Ok(self.value.load(view)? != at)
    }
}

/// 32 bits of the 64-bit words in which memory is shared.
struct Half {
    iova: u64,
    shift: u64,
    hint: usize,
}

impl Half {
    fn word<'a>(&mut self, view: &'a DmaView, write: bool) -> Result<&'a AtomicU64, DmaFault> {
        let fault = DmaFault { iova: self.iova, bytes: 8, write, what: "shadow doorbells" };
        let place = view.find(&mut self.hint, self.iova, 8).ok_or(fault)?;
        view.words(place).first().ok_or(fault)
    }

    fn load(&mut self, view: &DmaView) -> Result<u32, DmaFault> {
        let shift = self.shift;
        Ok((self.word(view, false)?.load(Acquire) >> shift) as u32)
    }

    /// The device alone writes its indices, in one thread.
    fn store(&mut self, view: &DmaView, value: u32) -> Result<(), DmaFault> {
        let shift = self.shift;
        let word = self.word(view, true)?;
        let others = word.load(Relaxed) & !(0xffff_ffff << shift);
        word.store(others | u64::from(value) << shift, Release);
        Ok(())
    }
}

/// A submission queue.
pub(crate) struct Sq {
    // Hot. `head` and `tail` are below `entries`.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    entries: u32,
    pub(crate) cq: u16,
    iova: u64,
    hint: usize,
    pub(crate) doorbell: Place,
    // Cold from here on: a value that was refused and is still in the register.
    rejected: Option<u32>,
}

impl Sq {
    pub(crate) fn new(iova: u64, entries: u32, cq: u16, doorbell: Place) -> Self {
        Self { head: 0, tail: 0, entries, cq, iova, hint: 0, doorbell, rejected: None }
    }

    /// Looks at the doorbell. A value that is out of range, or that would add more entries than
    /// are free, is refused once and ignored.
    #[inline]
    pub(crate) fn look(&mut self, view: &DmaView) -> Result<(), Unlooked> {
        let rung = self.doorbell.rung(view).map_err(Unlooked::Fault)?;
        if rung == self.tail { Ok(()) } else { self.take(rung, view) }
    }

    /// Accepts what was rung, and again while the host rings in memory meanwhile, but not for ever.
    #[inline]
    fn take(&mut self, mut rung: u32, view: &DmaView) -> Result<(), Unlooked> {
        for _ in 0..LOOKS_MAX {
            self.accept(rung)?;
            if !self.doorbell.looked(view, self.tail, self.entries).map_err(Unlooked::Fault)? {
                break;
            }
            rung = self.doorbell.rung(view).map_err(Unlooked::Fault)?;
        }
        Ok(())
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
    pub(crate) doorbell: Place,
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
    pub(crate) fn new(iova: u64, entries: u32, doorbell: Place) -> Self {
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
    pub(crate) fn look(&mut self, view: &DmaView) -> Result<(), Unlooked> {
        let rung = self.doorbell.rung(view).map_err(Unlooked::Fault)?;
        if rung == self.head {
            return Ok(());
        }
        self.accept(rung)?;
        self.doorbell.looked(view, self.head, self.entries).map(|_| ()).map_err(Unlooked::Fault)
    }

    fn accept(&mut self, rung: u32) -> Result<(), InvalidValue> {
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

    /// Whether the doorbell is to be looked at before a completion is posted.
    #[inline]
    pub(crate) fn wants_a_look(&self) -> bool {
        self.is_full() || self.doorbell.wants_looks()
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
