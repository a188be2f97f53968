//! The device's life: enabled, reset, shut down, dead, and the queues that come and go with it.

use crate::device::{Device, Held};
use crate::fault::mode;
use crate::iommu::{DmaFault, DmaView};
use crate::queue::{Cq, Place, Shadow, Sq};
use crate::shared::{Shared, UNWRITTEN, Written};
use nvpoll_spec::{ControllerStatus, ShutdownStatus, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Device {
    /// Whether there is nothing to do before a register is written.
    pub(crate) fn is_asleep(&self, shared: &Shared) -> bool {
        !self.running
            && self.version == shared.version.load(Ordering::Acquire)
            && self.status.shutdown() != ShutdownStatus::Occurring
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

    pub(crate) fn reset_waits(&self, shared: &Shared) -> bool {
        self.version != shared.version.load(Ordering::Acquire)
            && shared.written().resets != self.resets
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

    /// Queues and commands are gone, and the host's memory is let go of: all that a reset, a
    /// shutdown, a fatal error and the end have in common.
    pub(crate) fn forget_queues(&mut self, shared: &Shared) {
        self.running = false;
        self.view = DmaView::default();
        self.active.clear();
        self.active_cqs.clear();
        self.held.clear();
        self.shadow = None;
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
        let pages = shared.options.page_log2_min..=shared.options.page_log2_max;
        // Entry sizes may still be zero here: they count when the first I/O queue is created.
        let good = cc.command_set() == if shared.options.zoned.is_zoned() { 6 } else { 0 }
            && cc.arbitration() == 0
            && pages.contains(&cc.page_size())
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
        self.status = ControllerStatus::new().with_ready(true);
    }

    fn place(&self, shared: &Shared, index: usize) -> Option<Place> {
        let register = shared.doorbells.get(index).map(Arc::clone)?;
        Some(Place::new(register, self.shadow(shared, index)))
    }

    /// Where doorbell `index` is in memory, if it is there; the admin queue's are not (§7.13).
    fn shadow(&self, shared: &Shared, index: usize) -> Option<Shadow> {
        let byte = (index * shared.capabilities.doorbell_stride_bytes()) as u64;
        let is_there = index >= 2 && byte < self.page_bytes;
        Some(Shadow::new(self.shadow.filter(|_| is_there)?, byte, !shared.options.stepped))
    }

    /// Doorbell Buffer Config (§5.7): for the I/O queues that are there, and for those that will be.
    pub(crate) fn use_shadow_doorbells(&mut self, shared: &Shared, pages: (u64, u64)) {
        self.shadow = Some(pages);
        for qid in 1..self.sqs.len() {
            let (tail, head) = (self.shadow(shared, 2 * qid), self.shadow(shared, 2 * qid + 1));
            if let (Some(sq), Some(tail)) = (self.sqs.get_mut(qid).and_then(Option::as_mut), tail) {
                sq.doorbell.move_to(tail);
            }
            if let (Some(cq), Some(head)) = (self.cqs.get_mut(qid).and_then(Option::as_mut), head) {
                cq.doorbell.move_to(head);
            }
        }
    }

    pub(crate) fn add_cq(&mut self, shared: &Shared, qid: u16, iova: u64, entries: u32) {
        let index = usize::from(qid);
        let doorbell = self.place(shared, 2 * index + 1);
        if let (Some(place), Some(doorbell)) = (self.cqs.get_mut(index), doorbell) {
            *place = Some(Box::new(Cq::new(iova, entries, doorbell)));
            self.active_cqs.push(qid);
        }
    }

    pub(crate) fn add_sq(&mut self, shared: &Shared, qid: u16, iova: u64, entries: u32, cq: u16) {
        let index = usize::from(qid);
        let doorbell = self.place(shared, 2 * index);
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

    /// A queue's memory is not there: nothing can be told to the host any more but by CSTS.CFS.
    #[cold]
    pub(crate) fn die(&mut self, shared: &Shared, fault: DmaFault) {
        shared.iommu.record(fault);
        self.forget_queues(shared);
        self.status = self.status.with_fatal(true);
        shared.set_status(self.status);
    }
}
