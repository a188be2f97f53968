//! Slots: what belongs to each command that can be outstanding, and how a completion finds its own.

use crate::ProtocolError;

/// What [`Slot::outstanding`] holds when no command is. It would be CID FFFFh, which is no slot's.
const IDLE: Name = Name(u32::MAX);

/// A command's name as its completion has it, in bits 47:16 of the entry's upper half: the SQ
/// identifier and, above it, the CID (§4.6). So both are checked by one comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name(u32);

impl Name {
    fn new(qid: u16, cid: u16) -> Self {
        Self(u32::from(cid) << 16 | u32::from(qid))
    }

    #[inline(always)]
    fn of_completion(upper: u64) -> Self {
        Self((upper >> 16) as u32)
    }

    #[inline(always)]
    fn cid(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn qid(self) -> u16 {
        self.0 as u16
    }
}

/// What a command needs that does not change, and who it is.
struct Slot {
    /// PRP1 and PRP2 of a command of the full length.
    prps: (u64, u64),
    /// The outstanding command, or [`IDLE`].
    outstanding: Name,
    next: Name,
}

/// All slots of a queue, and what it takes to find a completion's.
pub(crate) struct Slots {
    all: Box<[Slot]>,
    /// The CID's lower bits, which number the slot.
    mask: u32,
    /// Added to a command's name for the next of the same slot: one in the bits above.
    generation: u32,
}

impl Slots {
    /// One slot for each of `prps`, all idle. CIDs are the slots' numbers below `mask`, which is one
    /// less than a power of two and no slot's number itself; the bits above it count generations.
    pub fn new(qid: u16, mask: u16, prps: impl Iterator<Item = (u64, u64)>) -> Self {
        let name = |slot: usize| Name::new(qid, slot as u16);
        Self {
            all: prps
                .enumerate()
                .map(|(slot, prps)| Slot { prps, outstanding: IDLE, next: name(slot) })
                .collect(),
            mask: mask.into(),
            generation: (u32::from(mask) + 1) << 16,
        }
    }

    /// The PRPs of `slot`, if it exists and is idle.
    #[inline(always)]
    pub fn idle(&self, slot: u16) -> Option<(u64, u64)> {
        let slot = self.all.get(usize::from(slot))?;
        (slot.outstanding == IDLE).then_some(slot.prps)
    }

    /// The CID of `slot`'s command that is outstanding.
    pub fn outstanding(&self, slot: u16) -> Option<u16> {
        let slot = self.all.get(usize::from(slot))?;
        (slot.outstanding != IDLE).then(|| slot.outstanding.cid())
    }

    /// Marks `slot` outstanding; returns its command's CID.
    #[inline(always)]
    pub fn begin(&mut self, slot: u16) -> Option<u16> {
        let slot = self.all.get_mut(usize::from(slot))?;
        slot.outstanding = slot.next;
        Some(slot.next.cid())
    }

    /// The slot whose command ends by the completion with this upper half; it is idle from now on.
    #[inline(always)]
    pub fn settle(&mut self, upper: u64) -> Option<u16> {
        let name = Name::of_completion(upper);
        let index = self.index(name);
        let slot = self.all.get_mut(index)?;
        if slot.outstanding != name {
            return None;
        }
        slot.outstanding = IDLE;
        slot.next = Name(name.0.wrapping_add(self.generation));
        Some(index as u16)
    }

    /// What is wrong with a completion that [`settle`](Self::settle) does not take.
    #[cold]
    pub fn stray(&self, qid: u16, upper: u64) -> ProtocolError {
        let name = Name::of_completion(upper);
        let (cid, sq_id) = (name.cid(), name.qid());
        let slot = self.all.get(self.index(name));
        match slot.filter(|slot| slot.outstanding == Name::new(qid, cid)) {
            Some(_) => ProtocolError::WrongQueue { qid, sq_id },
            None => ProtocolError::UnknownCid { qid, cid },
        }
    }

    #[inline(always)]
    fn index(&self, name: Name) -> usize {
        (name.0 >> 16 & self.mask) as usize
    }
}
