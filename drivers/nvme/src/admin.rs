//! The admin queue: one command at a time, each with a deadline.

use crate::limits::{ADMIN_ENTRIES, PAGE_BYTES};
use crate::{NvmeError, ProtocolError, wait};
use nvpoll_mem::{CompletionRing, DmaBuf, Doorbell, SubmissionRing};
use nvpoll_pci::Function;
use nvpoll_spec::{Admin, AsyncEvent, CompletionEntry, SubmissionEntry, reg};
use std::time::{Duration, Instant};

/// How often a waiting admin command looks at CSTS as well.
const HEALTH_EVERY: Duration = Duration::from_millis(10);
/// How long it spins; after that it sleeps between its looks.
const SPIN: Duration = Duration::from_millis(1);

/// The admin submission and completion queue, and one page for the data of admin commands.
///
/// One command is outstanding at a time. A command that times out leaves the queue *dead*: its
/// completion may still come, and its data page may still be written, so neither is used again.
pub(crate) struct AdminQueue<F: Function> {
    submissions: SubmissionRing,
    completions: CompletionRing,
    tail: F::Doorbell,
    head: F::Doorbell,
    data: DmaBuf,
    cid: u16,
    wait_max: Duration,
    dead: bool,
    events: Events,
}

/// The least CID of an Asynchronous Event Request; other commands' are below.
const EVENT_CID: u16 = 0xff00;

/// Requests that the controller holds until it has an event to report.
#[derive(Default)]
struct Events {
    /// One bit for each request that is held.
    held: u16,
    /// Requests that are to be held.
    asked: u16,
    /// Completed requests, no more than are held at a time.
    taken: Vec<CompletionEntry>,
}

impl Events {
    /// Takes a completion if it is a held request's.
    fn take(&mut self, entry: CompletionEntry) -> bool {
        let bit = entry.cid.checked_sub(EVENT_CID).and_then(|index| 1u16.checked_shl(index.into()));
        let Some(bit) = bit.filter(|bit| self.held & bit != 0 && entry.sq_id == 0) else {
            return false;
        };
        self.held &= !bit;
        self.taken.push(entry);
        true
    }
}

impl<F: Function> AdminQueue<F> {
    /// Allocates the queue; the controller does not know of it yet. Commands are waited for no
    /// longer than `wait_max`; memory is in pages of `page_bytes`.
    ///
    /// # Errors
    /// When memory or a doorbell cannot be had.
    pub fn new(
        function: &F,
        stride_bytes: usize,
        page_bytes: usize,
        wait_max: Duration,
    ) -> Result<Self, NvmeError> {
        let memory = |source| NvmeError::Memory { location: function.location().into(), source };
        let register =
            |source| NvmeError::Register { location: function.location().into(), source };
        let too_small = || NvmeError::Limit {
            location: function.location().into(),
            reason: "the admin queue does not fit its memory".into(),
        };
        let entries = u32::from(ADMIN_ENTRIES);
        let buffer = || DmaBuf::aligned(function.dma(), PAGE_BYTES, page_bytes).map_err(memory);
        Ok(Self {
            submissions: SubmissionRing::new(buffer()?, entries).ok_or_else(too_small)?,
            completions: CompletionRing::new(buffer()?, entries).ok_or_else(too_small)?,
            tail: function.doorbell(reg::sq_tail_doorbell(0, stride_bytes)).map_err(register)?,
            head: function.doorbell(reg::cq_head_doorbell(0, stride_bytes)).map_err(register)?,
            data: buffer()?,
            cid: 0,
            wait_max,
            dead: false,
            events: Events::default(),
        })
    }

    /// The two queues' addresses, for ASQ and ACQ.
    pub fn addresses(&self) -> (u64, u64) {
        (self.submissions.iova(), self.completions.iova())
    }

    /// All memory that the controller may reach.
    pub fn memory(&self) -> impl Iterator<Item = &DmaBuf> {
        [self.submissions.memory(), self.completions.memory(), &self.data].into_iter()
    }

    /// Sends `entry`, whose data (if any) goes to or from the data page, and waits for it.
    ///
    /// # Errors
    /// [`NvmeError::Command`] with the controller's status under the name `command`; otherwise the
    /// controller did not answer properly and the queue is dead.
    pub fn submit(
        &mut self,
        function: &F,
        command: &str,
        entry: SubmissionEntry,
        moves_data: bool,
    ) -> Result<CompletionEntry, NvmeError> {
        self.submit_within(function, command, entry, moves_data, self.wait_max)
    }

    /// [`submit`](Self::submit), with a bound on the wait of its own.
    ///
    /// # Errors
    /// As of that.
    pub fn submit_within(
        &mut self,
        function: &F,
        command: &str,
        mut entry: SubmissionEntry,
        moves_data: bool,
        wait_max: Duration,
    ) -> Result<CompletionEntry, NvmeError> {
        let location = function.location();
        if self.dead {
            return Err(NvmeError::Limit {
                location: location.into(),
                reason: format!("{command} was not sent: an earlier admin command never completed"),
            });
        }
        self.cid = (self.cid + 1) % EVENT_CID;
        entry.cid = self.cid;
        if moves_data {
            entry.prp1 = self.data.iova(0);
        }
        self.submissions.push(entry.to_words());
        self.tail.ring(self.submissions.tail());
        self.dead = true;
        let completion = self.wait(function, wait_max)?;
        self.dead = false;
        let status = completion.status();
        if status.is_success() {
            return Ok(completion);
        }
        Err(NvmeError::Command { location: location.into(), command: command.into(), status })
    }

    /// Sends Asynchronous Event Requests until the controller holds `count` of them, at most 16.
    ///
    /// # Errors
    /// When the queue is dead.
    pub fn ask_for_events(&mut self, function: &F, count: u16) -> Result<(), NvmeError> {
        if self.dead {
            return Err(NvmeError::Limit {
                location: function.location().into(),
                reason: "an earlier admin command never completed".into(),
            });
        }
        self.events.asked = count.min(16);
        let held = self.events.held;
        for index in (0..self.events.asked).filter(|index| held >> index & 1 == 0) {
            let cid = EVENT_CID + index;
            self.events.held |= 1 << index;
            self.submissions.push(SubmissionEntry { cid, ..Admin::async_event() }.to_words());
        }
        self.tail.ring(self.submissions.tail());
        Ok(())
    }

    /// Takes the events that were reported, and asks for as many again.
    ///
    /// # Errors
    /// When a completion is none of a request that is held, or a request failed: then no more are
    /// sent.
    pub fn take_events(&mut self, function: &F) -> Result<Vec<AsyncEvent>, NvmeError> {
        let location = || function.location().to_owned();
        for _ in 0..self.completions.entries() {
            let Some(upper) = self.completions.peek() else { break };
            let entry = CompletionEntry::from_words([self.completions.result(), upper]);
            self.completions.advance();
            self.head.ring(self.completions.head());
            if !self.events.take(entry) {
                let source = ProtocolError::UnknownCid { qid: 0, cid: entry.cid };
                return Err(NvmeError::Protocol { location: location(), source });
            }
        }
        let taken = std::mem::take(&mut self.events.taken);
        if let Some(failed) = taken.iter().find(|entry| !entry.status().is_success()) {
            let (command, status) = ("Asynchronous Event Request".into(), failed.status());
            return Err(NvmeError::Command { location: location(), command, status });
        }
        if !taken.is_empty() {
            self.ask_for_events(function, self.events.asked)?;
        }
        Ok(taken.iter().map(|entry| AsyncEvent(entry.result)).collect())
    }

    /// Copies `source`, cut at a page's end, into the data page.
    pub fn write_data(&self, source: &[u8]) {
        self.data.write(0, source.get(..PAGE_BYTES).unwrap_or(source));
    }

    /// Copies the data page into `target`.
    pub fn read_data(&self, target: &mut [u8]) {
        self.data.read(0, target);
    }

    /// Zeroes the data page, so that what a controller leaves out reads as zero.
    pub fn clear_data(&self) {
        self.data.clear();
    }

    fn wait(&mut self, function: &F, wait_max: Duration) -> Result<CompletionEntry, NvmeError> {
        const WHAT: &str = "completion of an admin command";
        let location = || function.location().to_owned();
        let start = Instant::now();
        let mut looked = start;
        loop {
            let now = Instant::now();
            if let Some(upper) = self.completions.peek() {
                let entry = CompletionEntry::from_words([self.completions.result(), upper]);
                self.completions.advance();
                self.head.ring(self.completions.head());
                if self.events.take(entry) {
                    continue;
                }
                let source = match entry {
                    CompletionEntry { cid, .. } if cid != self.cid => {
                        ProtocolError::UnknownCid { qid: 0, cid }
                    }
                    CompletionEntry { sq_id: sq_id @ 1.., .. } => {
                        ProtocolError::WrongQueue { qid: 0, sq_id }
                    }
                    _ => return Ok(entry),
                };
                return Err(NvmeError::Protocol { location: location(), source });
            }
            if now - looked >= HEALTH_EVERY {
                looked = now;
                let status = wait::check(function.registers(), function.location(), WHAT, true)?;
                if now - start > wait_max {
                    let (waited, csts) = (now - start, status.into_bits());
                    return Err(NvmeError::Timeout {
                        location: location(),
                        what: WHAT,
                        waited,
                        csts,
                    });
                }
            }
            if now - start < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(wait::PAUSE);
            }
        }
    }
}
