//! The device: its state machine, and the loop that fetches commands and posts completions.
//!
//! Everything here belongs to whoever runs the device, the host's thread or one of its own, and is
//! reached through `&mut`: no lock and no atomic but those of the memory that is shared.

use crate::SoftError;
use crate::admin::Admin;
use crate::events::Event;
use crate::fault::{FaultAction, mode};
use crate::iommu::DmaView;
use crate::media::Media;
use crate::options::SoftOptions;
use crate::pace::Pace;
use crate::prp::Segments;
use crate::queue::{Cq, Pending, Posted, Sq, Unlooked};
use crate::shared::{Shared, UNWRITTEN};
use crate::zones::Zones;
use nvpoll_spec::{ControllerStatus, Status, SubmissionEntry};
use std::sync::atomic::Ordering;

/// Commands that one queue may have fetched in a row before the next queue's turn.
const BURST: u32 = 64;
/// Room for segments that is made at the start; longer transfers make more as they come.
const SEGMENT_BYTES: u64 = 1 << 20;

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) result: u32,
}

impl Outcome {
    pub(crate) const DONE: Self = Self { status: Status::SUCCESS, result: 0 };

    /// Failed, and would fail again: Do Not Retry is set.
    pub(crate) const fn invalid(status: Status) -> Self {
        Self { status: Status(status.0 | 1 << 14), result: 0 }
    }

    /// Failed, and might succeed another time.
    pub(crate) const fn failed(status: Status) -> Self {
        Self { status, result: 0 }
    }

    pub(crate) const fn with(result: u32) -> Self {
        Self { status: Status::SUCCESS, result }
    }
}

/// A completion that a fault rule holds back.
pub(crate) struct Held {
    pub(crate) cq: u16,
    pub(crate) until: Until,
    pub(crate) pending: Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The device's clock reads this.
    Time(u64),
    /// So many completions were posted to the queue.
    Posts(u32),
    /// A test lets it go.
    Release,
}

/// See the module.
pub(crate) struct Device {
    // Hot.
    pub(crate) view: DmaView,
    pub(crate) segments: Segments,
    pub(crate) media: Media,
    /// As `segments`, of metadata that crosses the bus beside the data; and one block with its metadata.
    pub(crate) metadata_segments: Segments,
    pub(crate) block: Vec<u64>,
    pub(crate) zones: Option<Zones>,
    pub(crate) page_bytes: u64,
    pub(crate) sqs: Vec<Option<Box<Sq>>>,
    pub(crate) cqs: Vec<Option<Box<Cq>>>,
    /// The submission queues that exist, in the order of their turns.
    pub(crate) active: Vec<u16>,
    /// The completion queues that exist.
    pub(crate) active_cqs: Vec<u16>,
    pub(crate) running: bool,
    pub(crate) version: u64,
    pace: Pace,
    now_ns: u64,
    pub(crate) held: Vec<Held>,
    // Cold from here on.
    pub(crate) admin: Admin,
    pub(crate) status: ControllerStatus,
    pub(crate) resets: u64,
    /// The pages of shadow doorbells and of their indices, once they were named.
    pub(crate) shadow: Option<(u64, u64)>,
    stray: usize,
}

impl Device {
    pub(crate) fn new(options: &SoftOptions) -> Result<Self, SoftError> {
        let queues = usize::from(options.queues) + 1;
        let transfer = options.transfer_bytes_max().unwrap_or(u64::MAX).min(SEGMENT_BYTES);
        Ok(Self {
            view: DmaView::default(),
            segments: Segments::with_room_for(transfer),
            media: Media::open(options)?,
            metadata_segments: Segments::default(),
            block: vec![0; (options.lba_bytes as usize + usize::from(options.metadata.bytes)) / 8],
            zones: Zones::new(options),
            page_bytes: 4096,
            sqs: (0..queues).map(|_| None).collect(),
            cqs: (0..queues).map(|_| None).collect(),
            active: Vec::with_capacity(queues),
            active_cqs: Vec::with_capacity(queues),
            running: false,
            version: 0,
            pace: Pace::new(options),
            now_ns: 0,
            held: Vec::new(),
            admin: Admin::new(options),
            status: ControllerStatus::new(),
            resets: 0,
            shadow: None,
            stray: 0,
        })
    }

    /// Whether a completion waits for its time, so that a thread has to go on polling. One that
    /// waits for room in its queue does not count: the host may never make any.
    pub(crate) fn is_busy(&self) -> bool {
        let waits = |cq: &u16| {
            let cq = self.cqs.get(usize::from(*cq)).and_then(Option::as_ref);
            let front = cq.and_then(|cq| cq.pending.front());
            front.is_some_and(|pending| pending.due_ns > self.now_ns)
        };
        self.held.iter().any(|held| matches!(held.until, Until::Time(_)))
            || self.active_cqs.iter().any(waits)
    }

    /// One look at everything. Returns whether there was work.
    pub(crate) fn pass(&mut self, shared: &Shared) -> bool {
        if self.registers(shared) {
            return true;
        }
        if !self.running || self.is_stopped(shared) {
            return false;
        }
        self.view.refresh(&shared.iommu);
        if self.pace.is_timed() || !self.held.is_empty() {
            self.now_ns = self.pace.now_ns();
        }
        let mut worked = false;
        for turn in 0..self.active.len() {
            let Some(&sq) = self.active.get(turn) else { break };
            worked |= self.serve(shared, sq, BURST);
        }
        worked |= self.complete_due(shared);
        if !worked {
            self.look_for_stray(shared);
        }
        worked
    }

    /// A stepped device's turn after doorbell `index` was rung.
    pub(crate) fn rung(&mut self, shared: &Shared, index: usize) {
        if !self.running || self.is_stopped(shared) || self.reset_waits(shared) {
            return;
        }
        self.view.refresh(&shared.iommu);
        let qid = (index / 2) as u16;
        if index.is_multiple_of(2) {
            if self.sqs.get(index / 2).is_some_and(Option::is_some) {
                self.serve(shared, qid, u32::MAX);
            } else {
                self.check_stray(shared, index);
            }
        } else {
            self.check_stray(shared, index);
            self.make_room(shared, qid);
        }
        if !self.held.is_empty() {
            self.complete_due(shared);
        }
    }

    /// Room in a completion queue lets go what waits for it, which lets more be fetched.
    fn make_room(&mut self, shared: &Shared, qid: u16) {
        if self.cq(qid).is_none_or(|cq| cq.pending.is_empty()) {
            return;
        }
        while self.drain(shared, qid) {
            for turn in 0..self.active.len() {
                let Some(&sq) = self.active.get(turn) else { break };
                let queue = self.sqs.get(usize::from(sq)).and_then(Option::as_ref);
                if queue.is_some_and(|sq| sq.cq == qid) {
                    self.serve(shared, sq, u32::MAX);
                }
            }
        }
    }

    /// Lets held completions go, by order of a test.
    pub(crate) fn release(&mut self, shared: &Shared) {
        for held in std::mem::take(&mut self.held) {
            self.complete(shared, held.cq, held.pending);
        }
    }

    fn is_stopped(&mut self, shared: &Shared) -> bool {
        let modes = shared.faults.modes();
        if modes == 0 {
            return false;
        }
        self.is_stopped_by(shared, modes)
    }

    #[cold]
    fn is_stopped_by(&mut self, shared: &Shared, modes: u32) -> bool {
        if modes & mode::VANISHED == 0 && modes & mode::RELEASE != 0 {
            shared.faults.take(mode::RELEASE);
            self.view.refresh(&shared.iommu);
            self.release(shared);
        }
        modes & (mode::VANISHED | mode::HUNG | mode::FATAL) != 0
    }

    /// Aborts a command that waits for its time (§5.1); returns whether there was one.
    pub(crate) fn abort(&mut self, shared: &Shared, sq: u16, cid: u16) -> bool {
        let meant = |pending: &Pending| pending.sq == sq && pending.cid == cid;
        let aborted = Status::ABORTED;
        if let Some(at) = self.held.iter().position(|held| meant(&held.pending)) {
            let mut held = self.held.swap_remove(at);
            held.pending.status = aborted;
            self.complete(shared, held.cq, held.pending);
            return true;
        }
        let queue = self.sqs.get(usize::from(sq)).and_then(Option::as_ref).map(|sq| sq.cq);
        let Some(cq) = queue.and_then(|cq| self.cq(cq)) else { return false };
        let Some(pending) = cq.pending.iter_mut().find(|pending| meant(pending)) else {
            return false;
        };
        // It keeps its place: due times only grow along the queue.
        pending.status = aborted;
        true
    }

    /// A held Asynchronous Event Request is aborted.
    pub(crate) fn complete_aborted_request(&mut self, shared: &Shared, cid: u16) {
        let status = Status::ABORTED;
        let pending = Pending { due_ns: 0, result: 0, sq: 0, cid, status, twist: None };
        self.complete(shared, 0, pending);
    }

    #[inline]
    pub(crate) fn cq(&mut self, qid: u16) -> Option<&mut Cq> {
        self.cqs.get_mut(usize::from(qid))?.as_deref_mut()
    }

    /// Fetches and carries out up to `burst` commands; returns whether there were any.
    #[inline]
    fn serve(&mut self, shared: &Shared, qid: u16, burst: u32) -> bool {
        let Some(sq) = self.sqs.get_mut(usize::from(qid)).and_then(Option::as_deref_mut) else {
            return false;
        };
        let looked = sq.look(&self.view);
        if sq.is_empty() && looked.is_ok() {
            return false;
        }
        let cq = sq.cq;
        // A doorbell that was rung after a reset is none of the queues' from before it.
        if self.reset_waits(shared) {
            return false;
        }
        // After the doorbell: what was unmapped before it was rung has to fault.
        self.view.refresh(&shared.iommu);
        if let Err(why) = looked {
            self.not_looked(shared, qid, why);
        }
        let mut served = 0;
        while served < burst {
            let Some(entry) = self.fetch(shared, qid, cq) else { break };
            self.carry_out(shared, qid, cq, &entry);
            if !self.held.is_empty() {
                self.let_go(shared);
            }
            served += 1;
        }
        served > 0
    }

    #[inline]
    fn fetch(&mut self, shared: &Shared, qid: u16, cq: u16) -> Option<SubmissionEntry> {
        if !self.cqs.get(usize::from(cq))?.as_ref()?.has_room() {
            return None;
        }
        let sq = self.sqs.get_mut(usize::from(qid))?.as_deref_mut()?;
        if sq.is_empty() {
            return None;
        }
        match sq.fetch(&self.view) {
            Ok(entry) => Some(entry),
            Err(fault) => {
                self.die(shared, fault);
                None
            }
        }
    }

    #[inline]
    fn carry_out(&mut self, shared: &Shared, qid: u16, cq: u16, entry: &SubmissionEntry) {
        let action = shared.faults.action(qid, entry);
        let outcome = match action {
            Some(FaultAction::Fail(status)) => Some(Outcome::failed(status)),
            _ if qid == 0 => self.admin_command(shared, entry),
            _ => Some(self.io_command(shared, entry)),
        };
        let Some(outcome) = outcome else { return };
        if !outcome.status.is_success() {
            self.admin.errors.record(qid, entry, outcome.status);
            shared.tallies.failed.add(1);
        }
        let due_ns = if qid == 0 { 0 } else { self.pace.due_ns(self.now_ns) };
        let pending = Pending {
            due_ns,
            result: outcome.result,
            sq: qid,
            cid: entry.cid,
            status: outcome.status,
            twist: action,
        };
        match action {
            None => self.complete(shared, cq, pending),
            Some(action) => self.complete_twisted(shared, cq, pending, action),
        }
    }

    #[cold]
    fn complete_twisted(
        &mut self,
        shared: &Shared,
        cq: u16,
        mut pending: Pending,
        action: FaultAction,
    ) {
        let until = match action {
            FaultAction::Drop => return,
            FaultAction::Twice => {
                self.complete(shared, cq, pending);
                return self.complete(shared, cq, pending);
            }
            FaultAction::Delay(_) if shared.options.stepped => Until::Release,
            FaultAction::Delay(delay) => {
                let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
                Until::Time(self.pace.now_ns().max(pending.due_ns).saturating_add(delay))
            }
            FaultAction::Defer(posts) => Until::Posts(posts),
            _ => return self.complete(shared, cq, pending),
        };
        pending.due_ns = 0;
        self.held.push(Held { cq, until, pending });
    }

    /// Posts a completion, or queues it behind those that wait.
    #[inline]
    pub(crate) fn complete(&mut self, shared: &Shared, qid: u16, pending: Pending) {
        let now_ns = self.now_ns;
        let Some(cq) = self.cq(qid) else { return };
        let waits = pending.due_ns > now_ns || !cq.pending.is_empty();
        let settled = !waits && self.post(shared, qid, &pending);
        if let Some(cq) = self.cq(qid).filter(|_| !settled) {
            cq.pending.push_back(pending);
        }
    }

    /// Writes a completion into its queue; returns whether that is settled.
    #[inline]
    fn post(&mut self, shared: &Shared, qid: u16, pending: &Pending) -> bool {
        let sq = self.sqs.get(usize::from(pending.sq)).and_then(Option::as_ref);
        let sq_head = sq.map_or(0, |sq| sq.head as u16);
        let Some(cq) = self.cqs.get_mut(usize::from(qid)).and_then(Option::as_deref_mut) else {
            return true;
        };
        if cq.wants_a_look()
            && let Err(why) = cq.look(&self.view)
        {
            self.not_looked(shared, qid, why);
            return false;
        }
        match cq.post(&self.view, pending, sq_head) {
            Ok(Posted::Full) => false,
            Ok(Posted::Done) => {
                if !self.held.is_empty() {
                    self.count_posts(qid);
                }
                true
            }
            Err(fault) => {
                self.die(shared, fault);
                true
            }
        }
    }

    #[cold]
    fn count_posts(&mut self, qid: u16) {
        for held in self.held.iter_mut().filter(|held| held.cq == qid) {
            if let Until::Posts(left) = &mut held.until {
                *left = left.saturating_sub(1);
            }
        }
    }

    /// Posts what is due in one queue; returns whether anything was.
    #[inline]
    pub(crate) fn drain(&mut self, shared: &Shared, qid: u16) -> bool {
        let mut worked = false;
        loop {
            let now_ns = self.now_ns;
            let Some(cq) = self.cq(qid) else { break };
            let Some(pending) = cq.pending.front().copied() else { break };
            if pending.due_ns > now_ns || !self.post(shared, qid, &pending) {
                break;
            }
            worked = true;
            if let Some(cq) = self.cq(qid) {
                cq.pending.pop_front();
            }
        }
        worked
    }

    fn complete_due(&mut self, shared: &Shared) -> bool {
        let mut worked = false;
        for turn in 0..self.active_cqs.len() {
            let Some(&cq) = self.active_cqs.get(turn) else { break };
            worked |= self.drain(shared, cq);
        }
        worked | self.let_go(shared)
    }

    /// Completes what was held back and may go now; returns whether there was any.
    fn let_go(&mut self, shared: &Shared) -> bool {
        let mut worked = false;
        while !self.held.is_empty() {
            let now_ns = self.now_ns;
            let due = |held: &Held| match held.until {
                Until::Time(due_ns) => due_ns <= now_ns,
                Until::Posts(left) => left == 0,
                Until::Release => false,
            };
            let Some(at) = self.held.iter().position(due) else { break };
            let held = self.held.remove(at);
            self.complete(shared, held.cq, held.pending);
            worked = true;
        }
        worked
    }

    /// Looks at one more doorbell of those that nothing else looks at.
    fn look_for_stray(&mut self, shared: &Shared) {
        self.stray = if self.stray + 1 < shared.doorbells.len() { self.stray + 1 } else { 0 };
        self.check_stray(shared, self.stray);
    }

    /// A write to a doorbell of a queue that does not exist, or a completion queue's head that
    /// cannot be.
    fn check_stray(&mut self, shared: &Shared, index: usize) {
        let qid = (index / 2) as u16;
        let exists = if index.is_multiple_of(2) {
            self.sqs.get(index / 2).is_some_and(Option::is_some)
        } else if let Some(cq) = self.cqs.get_mut(index / 2).and_then(Option::as_deref_mut) {
            if let Err(why) = cq.look(&self.view) {
                self.not_looked(shared, qid, why);
            }
            true
        } else {
            false
        };
        let Some(doorbell) = shared.doorbells.get(index).filter(|_| !exists) else { return };
        if doorbell.0.load(Ordering::Acquire) != UNWRITTEN {
            doorbell.0.store(UNWRITTEN, Ordering::Release);
            self.refuse_doorbell(shared, qid, Event::InvalidDoorbellRegister);
        }
    }

    #[cold]
    fn not_looked(&mut self, shared: &Shared, qid: u16, why: Unlooked) {
        match why {
            Unlooked::Invalid => self.refuse_doorbell(shared, qid, Event::InvalidDoorbellValue),
            Unlooked::Fault(fault) => self.die(shared, fault),
        }
    }

    #[cold]
    fn refuse_doorbell(&mut self, shared: &Shared, qid: u16, event: Event) {
        shared.tallies.invalid_doorbells.add(1);
        self.admin.errors.record_doorbell(qid, event);
        self.raise(shared, event);
    }

    /// Tells the host of an event, now or with its next Asynchronous Event Request (§5.2).
    pub(crate) fn raise(&mut self, shared: &Shared, event: Event) {
        self.admin.events.raise(event);
        self.deliver_events(shared);
    }

    pub(crate) fn deliver_events(&mut self, shared: &Shared) {
        while let Some((cid, result)) = self.admin.events.next() {
            let status = Status::SUCCESS;
            let pending = Pending { due_ns: 0, result, sq: 0, cid, status, twist: None };
            self.complete(shared, 0, pending);
        }
    }
}
