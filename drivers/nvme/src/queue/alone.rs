//! One command of any kind, sent by itself and waited for; see `commands`.

use super::QueuePair;
use super::each::ring_head;
use crate::NvmeError;
use crate::wait::PAUSE;
use nvpoll_pci::Function;
use nvpoll_spec::{Status, SubmissionEntry};
use std::time::{Duration, Instant};

/// How often a waiting command looks at CSTS as well, and how long it spins before it sleeps.
const HEALTH_EVERY: Duration = Duration::from_millis(10);
const SPIN: Duration = Duration::from_millis(1);

impl<F: Function> QueuePair<F> {
    /// Sends `entry` under tag 0, which no I/O uses, with `data_bytes` of the tag's buffer as its data;
    /// returns the first two dwords of its completion. The lane's commands are not cut.
    ///
    /// # Errors
    /// [`NvmeError::Command`] with the controller's status under the name `command`. After
    /// [`NvmeError::Timeout`] the command is still outstanding, and no other is sent.
    pub(crate) fn run_alone(
        &mut self,
        command: &str,
        mut entry: SubmissionEntry,
        data_bytes: usize,
        wait_max: Duration,
    ) -> Result<u64, NvmeError> {
        let is_idle = self.pieces_max == 1 && data_bytes <= self.stride;
        let cid = self.slots.idle(0).filter(|_| is_idle).and_then(|_| self.slots.begin(0));
        let Some(cid) = cid else {
            return Err(self.controller.limit(format!(
                "{command} was not sent: an earlier command never completed, or its data does not fit"
            )));
        };
        entry.cid = cid;
        if data_bytes > 0 {
            let pointer = self.pointers.words(&self.buffers, self.stride, 0, 0, data_bytes);
            (entry.prp1, entry.prp2) = pointer;
            entry.flags |= (self.pointers.first_word() >> 8) as u8;
        }
        self.submissions.push(entry.to_words());
        self.kick();
        self.wait_alone(command, wait_max)
    }

    fn wait_alone(&mut self, command: &str, wait_max: Duration) -> Result<u64, NvmeError> {
        let location = || self.controller.location().to_owned();
        let start = Instant::now();
        let mut looked = start;
        loop {
            let now = Instant::now();
            if let Some(upper) = self.completions.peek() {
                let result = self.completions.result();
                self.completions.advance();
                let Self { shadow, head, rings, completions, .. } = self;
                ring_head(shadow, head, rings, completions.head());
                if self.slots.settle(upper).is_none() {
                    let source = self.slots.stray(self.qid, upper);
                    return Err(NvmeError::Protocol { location: location(), source });
                }
                let status = Status::from_entry((upper >> 48) as u16);
                if status.is_success() {
                    return Ok(result);
                }
                let command = command.to_owned();
                return Err(NvmeError::Command { location: location(), command, status });
            }
            if now - looked >= HEALTH_EVERY {
                looked = now;
                self.controller.check()?;
                if now - start > wait_max {
                    return Err(self.controller.timeout("completion of a command", now - start));
                }
            }
            if now - start < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Has the controller abort `tag`'s commands that are outstanding (§5.1). `true` when it says that
    /// all of them were; each still completes, by then with the status Command Abort Requested.
    ///
    /// # Errors
    /// When the controller does not answer, or refuses (too many at a time: ACL).
    pub fn abort(&self, tag: u16) -> Result<bool, NvmeError> {
        let first = tag.saturating_mul(self.pieces_max);
        let mut all = true;
        for slot in first..first.saturating_add(self.pieces_max) {
            if let Some(cid) = self.slots.outstanding(slot) {
                all &= self.controller.abort(self.qid, cid)?;
            }
        }
        Ok(all)
    }
}
