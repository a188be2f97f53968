//! The device: its state machine, and the loop that fetches commands and posts completions.
//!
//! Everything here belongs to whoever runs the device, the host's thread or one of its own, and is
//! reached through `&mut`: no lock and no atomic but those of the memory that is shared.

use crate::SoftError;
use crate::admin::Admin;
use crate::events::Event;
use crate::fault::{FaultAction, mode};
use crate::iommu::{DmaFault, DmaView};
use crate::media::Media;
use crate::options::SoftOptions;
use crate::pace::Pace;
use crate::prp::Segments;
use crate::queue::{Cq, Pending, Posted, Sq};
use crate::shared::{PAGE_SIZE_MAX, Shared, Slot, UNWRITTEN, Written};
use nvpoll_spec::{ControllerStatus, ShutdownStatus, Status, SubmissionEntry};
use std::sync::Arc;
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
struct Held {
    cq: u16,
    until: Until,
    pending: Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Time(u64),
    Posts(u32),
    Release,
}

/// See the module.
pub(crate) struct Device {
    // Hot.
    pub(crate) view: DmaView,
    pub(crate) segments: Segments,
    pub(crate) media: Media,
    pub(crate) page_bytes: u64,
    pub(crate) sqs: Vec<Option<Box<Sq>>>,
    pub(crate) cqs: Vec<Option<Box<Cq>>>,
    /// The submission queues that exist, in the order of their turns.
    active: Vec<u16>,
    /// The completion queues that exist.
    active_cqs: Vec<u16>,
    running: bool,
    version: u64,
    pace: Pace,
    now_ns: u64,
    held: Vec<Held>,
    // Cold from here on.
    pub(crate) admin: Admin,
    status: ControllerStatus,
    resets: u64,
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
            stray: 0,
        })
    }

    /// Whether commands may be outstanding, so that a thread has to go on polling.
    pub(crate) fn is_busy(&self) -> bool {
        let waits = |cq: &Option<Box<Cq>>| cq.as_ref().is_some_and(|cq| !cq.pending.is_empty());
        !self.held.is_empty() || self.cqs.iter().any(waits)
    }

    /// Whether there is nothing to do before a register is written.
    pub(crate) fn is_asleep(&self, shared: &Shared) -> bool {
        !self.running
            && self.version == shared.version.load(Ordering::Acquire)
            && self.status.shutdown() != ShutdownStatus::Occurring
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
            // Room in the queue lets held completions go, which lets commands be fetched.
            while self.drain(shared, qid) {
                let waits = self.active.iter().position(|&sq| {
                    let sq = self.sqs.get(usize::from(sq)).and_then(Option::as_ref);
                    sq.is_some_and(|sq| sq.cq == qid && !sq.is_empty())
                });
                match waits.and_then(|turn| self.active.get(turn).copied()) {
                    Some(sq) if self.serve(shared, sq, u32::MAX) => {}
                    _ => break,
                }
            }
        }
        if !self.held.is_empty() {
            self.complete_due(shared);
        }
    }

    /// Lets held completions go, by order of a test.
    pub(crate) fn release(&mut self, shared: &Shared) {
        for held in std::mem::take(&mut self.held) {
            self.complete(shared, held.cq, held.pending);
        }
    }

    /// Looks for a change of CC and acts upon it; returns whether there was one.
    #[inline]
    pub(crate) fn registers(&mut self, shared: &Shared) -> bool {
        let version = shared.version.load(Ordering::Acquire);
        let occurring = self.status.shutdown() == ShutdownStatus::Occurring;
        let shuts_down = occurring && !shared.faults.is(mode::HANG_SHUTDOWN);
        if version == self.version && !shuts_down || shared.faults.is(mode::VANISHED) {
            return false;
        }
        self.version = version;
        self.configure(shared, occurring);
        shared.set_status(self.status);
        true
    }

    fn reset_waits(&self, shared: &Shared) -> bool {
        self.version != shared.version.load(Ordering::Acquire)
            && shared.written().resets != self.resets
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

    /// The controller's state machine (§3.1.5, §3.1.6, §7.6).
    #[cold]
    fn configure(&mut self, shared: &Shared, occurring: bool) {
        let written = shared.written();
        if written.resets != self.resets {
            self.reset(shared, written.resets);
        }
        if written.cc.enable() && !self.status.ready() && !self.status.fatal() && !self.running {
            self.enable(shared, &written);
        }
        match self.status.shutdown() {
            ShutdownStatus::Normal if matches!(written.cc.shutdown(), 1 | 2) => {
                self.status = self.status.with_shutdown(ShutdownStatus::Occurring);
                self.forget_queues(shared);
            }
            ShutdownStatus::Occurring if occurring && !shared.faults.is(mode::HANG_SHUTDOWN) => {
                // What the backing has not made durable by now it will never.
                if self.media.flush().is_err() {
                    shared.tallies.media_errors.add(1);
                }
                self.status = self.status.with_shutdown(ShutdownStatus::Complete);
            }
            _ => {}
        }
    }

    /// Controller Reset (§7.3.2): queues, features and outstanding commands are gone.
    fn reset(&mut self, shared: &Shared, resets: u64) {
        self.resets = resets;
        self.forget_queues(shared);
        self.admin.reset(&shared.options);
        shared.faults.take(mode::FATAL);
        shared.tallies.resets.add(1);
        let stuck = shared.faults.is(mode::NEVER_DISABLED) && self.status.ready();
        self.status = ControllerStatus::new().with_ready(stuck);
    }

    /// The end: queues are gone, and the host's memory is let go of.
    pub(crate) fn power_off(&mut self, shared: &Shared) {
        self.forget_queues(shared);
        self.view = DmaView::default();
    }

    fn forget_queues(&mut self, shared: &Shared) {
        self.running = false;
        self.active.clear();
        self.active_cqs.clear();
        self.held.clear();
        self.sqs.iter_mut().for_each(|sq| *sq = None);
        self.cqs.iter_mut().for_each(|cq| *cq = None);
        for doorbell in &shared.doorbells {
            doorbell.0.store(UNWRITTEN, Ordering::Release);
        }
    }

    /// The rising edge of CC.EN (§7.6.1). What cannot work is a fatal status.
    fn enable(&mut self, shared: &Shared, written: &Written) {
        let (cc, aqa) = (written.cc, written.aqa);
        let page_bytes = 4096u64 << cc.page_size();
        // Entry sizes may still be zero here: they count when the first I/O queue is created.
        let good = cc.command_set() == 0
            && cc.arbitration() == 0
            && cc.page_size() <= PAGE_SIZE_MAX
            && matches!(cc.sq_entry_log2(), 0 | 6)
            && matches!(cc.cq_entry_log2(), 0 | 4)
            && aqa.sq_entries_z() >= 1
            && aqa.cq_entries_z() >= 1
            && written.asq.is_multiple_of(page_bytes)
            && written.acq.is_multiple_of(page_bytes);
        if !good || shared.faults.is(mode::FATAL) {
            self.status = self.status.with_fatal(true);
            return;
        }
        if shared.faults.is(mode::NEVER_READY) {
            return;
        }
        self.page_bytes = page_bytes;
        self.add_cq(shared, 0, written.acq, u32::from(aqa.cq_entries_z()) + 1);
        self.add_sq(shared, 0, written.asq, u32::from(aqa.sq_entries_z()) + 1, 0);
        self.running = true;
        self.status = self.status.with_ready(true);
    }

    fn slot(shared: &Shared, index: usize) -> Option<Arc<Slot>> {
        shared.doorbells.get(index).map(Arc::clone)
    }

    pub(crate) fn add_cq(&mut self, shared: &Shared, qid: u16, iova: u64, entries: u32) {
        let index = usize::from(qid);
        let doorbell = Self::slot(shared, 2 * index + 1);
        if let (Some(place), Some(doorbell)) = (self.cqs.get_mut(index), doorbell) {
            *place = Some(Box::new(Cq::new(iova, entries, doorbell)));
            self.active_cqs.push(qid);
        }
    }

    pub(crate) fn add_sq(&mut self, shared: &Shared, qid: u16, iova: u64, entries: u32, cq: u16) {
        let index = usize::from(qid);
        let doorbell = Self::slot(shared, 2 * index);
        if let (Some(place), Some(doorbell)) = (self.sqs.get_mut(index), doorbell) {
            *place = Some(Box::new(Sq::new(iova, entries, cq, doorbell)));
            self.active.push(qid);
            if let Some(cq) = self.cq(cq) {
                cq.users += 1;
            }
        }
    }

    /// Takes a submission queue away; what was fetched from it completes as aborted (§5.6).
    pub(crate) fn remove_sq(&mut self, shared: &Shared, qid: u16) {
        let index = usize::from(qid);
        let Some(sq) = self.sqs.get_mut(index).and_then(Option::take) else { return };
        self.active.retain(|other| *other != qid);
        if let Some(doorbell) = shared.doorbells.get(2 * index) {
            doorbell.0.store(UNWRITTEN, Ordering::Release);
        }
        let status = Status::ABORTED_SQ_DELETED;
        let Some(cq) = self.cq(sq.cq) else { return };
        cq.users = cq.users.saturating_sub(1);
        for pending in cq.pending.iter_mut().filter(|pending| pending.sq == qid) {
            (pending.status, pending.due_ns) = (status, 0);
        }
        let (gone, stay) = self.held.drain(..).partition(|held| held.pending.sq == qid);
        self.held = stay;
        let gone: Vec<Held> = gone;
        for mut held in gone {
            held.pending.status = status;
            self.complete(shared, held.cq, held.pending);
        }
        self.drain(shared, sq.cq);
    }

    pub(crate) fn remove_cq(&mut self, shared: &Shared, qid: u16) {
        let index = usize::from(qid);
        if let Some(place) = self.cqs.get_mut(index) {
            *place = None;
        }
        self.active_cqs.retain(|other| *other != qid);
        if let Some(doorbell) = shared.doorbells.get(2 * index + 1) {
            doorbell.0.store(UNWRITTEN, Ordering::Release);
        }
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
        let looked = sq.look();
        if sq.is_empty() && looked.is_ok() {
            return false;
        }
        let cq = sq.cq;
        if looked.is_err() {
            self.refuse_doorbell(shared, qid, Event::InvalidDoorbellValue);
        }
        let mut served = 0;
        while served < burst {
            let Some(entry) = self.fetch(shared, qid, cq) else { break };
            self.carry_out(shared, qid, cq, &entry);
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
        if cq.is_full() && cq.look().is_err() {
            self.refuse_doorbell(shared, qid, Event::InvalidDoorbellValue);
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
    fn drain(&mut self, shared: &Shared, qid: u16) -> bool {
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

    /// A queue's memory is not there: nothing can be told to the host any more but by CSTS.CFS.
    #[cold]
    fn die(&mut self, shared: &Shared, fault: DmaFault) {
        shared.iommu.record(fault);
        self.forget_queues(shared);
        self.status = self.status.with_fatal(true);
        shared.set_status(self.status);
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
        } else if let Some(cq) = self.cq(qid) {
            if cq.look().is_err() {
                self.refuse_doorbell(shared, qid, Event::InvalidDoorbellValue);
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
