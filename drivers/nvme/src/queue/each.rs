//! `--doorbell each`: a doorbell for every command and every completion, as a driver rings that
//! defers nothing. For study alone; the usual way, a doorbell for all of a pass, is in `queue.rs`
//! and pays nothing for this: it asks no question that it would not ask anyway.

use super::{Pieces, QueuePair, Rejected};
use crate::shadow::ShadowPair;
use crate::{ProtocolError, slots::Slots};
use nvpoll_mem::Doorbell;
use nvpoll_pci::Function;
use nvpoll_spec::{NvmOpcode, Status};
use std::fmt;
use std::str::FromStr;

/// When doorbells are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellMode {
    /// Once for all that a pass sends, and once for all that it takes.
    #[default]
    Batch,
    /// For each I/O that is sent, and for each completion that is taken.
    Each,
}

impl DoorbellMode {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::Batch, Self::Each];

    /// Its name on the command line and in result files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Each => "each",
        }
    }
}

impl fmt::Display for DoorbellMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DoorbellMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no way of ringing doorbells is called \"{name}\"; there are {names}")
        })
    }
}

impl<F: Function> QueuePair<F> {
    /// [`push`](Self::push), and the tail doorbell at once.
    pub(super) fn push_each(
        &mut self,
        tag: u16,
        opcode: NvmOpcode,
        lba: u64,
        blocks: u32,
    ) -> Result<(), Rejected> {
        let is_whole =
            lba < self.each_whole_lbas && blocks == self.io_blocks && opcode != NvmOpcode::FLUSH;
        if is_whole {
            let prps = self.slots.idle(tag).ok_or(Rejected)?;
            self.store(tag, opcode, lba, self.io_blocks_z, prps);
        } else {
            self.push_any(tag, opcode, lba, blocks)?;
        }
        self.kick();
        Ok(())
    }

    /// [`kick`](Self::kick), which has counted a write, where the tail is written to memory first.
    #[cold]
    pub(super) fn kick_shadow(&mut self, tail: u32) {
        if self.shadow.as_mut().is_none_or(|shadow| shadow.publish_tail(tail)) {
            self.tail.ring(tail);
        } else {
            self.rings -= 1;
        }
    }

    /// [`reap`](Self::reap) where a slot is not a tag, or each completion has its doorbell. In line, as
    /// all that has the sink is: what a call gets by reference would have to be in memory.
    #[inline(always)]
    pub(super) fn reap_other(
        &mut self,
        sink: &mut impl FnMut(u16, Status),
    ) -> Result<u32, ProtocolError> {
        let Self { completions, slots, pieces, owners, qid, shadow, head, rings, .. } = self;
        let is_each = self.doorbells == DoorbellMode::Each;
        let mut ring = |value| ring_head(shadow, head, rings, value);
        let mut reported = 0;
        for _ in 0..completions.entries() {
            let Some(upper) = completions.peek() else { break };
            completions.advance();
            if let Some((tag, status)) = end_command(slots, pieces, owners, *qid, upper)? {
                sink(tag, status);
                reported += 1;
            }
            if is_each {
                ring(completions.head());
            }
        }
        if !is_each {
            ring(completions.head());
        }
        Ok(reported)
    }
}

/// Publishes a completion queue's head where it is written first: in memory, in its register.
pub(super) fn ring_head<D: Doorbell>(
    shadow: &mut Option<ShadowPair>,
    head: &D,
    rings: &mut i64,
    value: u32,
) {
    if shadow.as_mut().is_none_or(|shadow| shadow.publish_head(value)) {
        *rings += 1;
        head.ring(value);
    }
}

/// Ends the command that the completion with this upper half names; with the last one of its I/O,
/// the I/O's tag and how it ended.
#[inline(always)]
pub(super) fn end_command(
    slots: &mut Slots,
    pieces: &mut [Pieces],
    owners: &[u16],
    qid: u16,
    upper: u64,
) -> Result<Option<(u16, Status)>, ProtocolError> {
    let Some(slot) = slots.settle(upper) else { return Err(slots.stray(qid, upper)) };
    let tag = owners.get(usize::from(slot)).map_or(slot, |tag| *tag);
    let status = Status::from_entry((upper >> 48) as u16);
    let io = pieces.get_mut(usize::from(tag));
    // Where no I/O is cut there are no pieces, and each command is an I/O.
    let ended = io.map_or(Some(status), |io| io.end_one(status));
    Ok(ended.map(|status| (tag, status)))
}
