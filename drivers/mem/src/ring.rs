//! The two rings of a queue pair, in memory that the device shares.

#![allow(unsafe_code)]

use crate::DmaBuf;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a submission queue entry (64 bytes).
const SQ_WORDS: usize = 8;
/// Words in a completion queue entry (16 bytes).
const CQ_WORDS: usize = 2;
/// Where the phase tag stands in a completion's second word: bit 0 of its last half-word.
const PHASE: u64 = 1 << 48;

/// The host's end of a submission queue: entries are stored at the tail, which then advances.
///
/// It does not know which slots the device has fetched: the caller keeps fewer commands
/// outstanding than the queue has entries, and then the tail never meets the head.
pub struct SubmissionRing {
    // Hot. `first` is the start of `memory`, which holds `entries` entries, and `tail < entries`:
    // `push` relies on all three.
    first: NonNull<AtomicU64>,
    tail: u32,
    entries: u32,
    memory: DmaBuf,
}

// SAFETY: the memory is shared as atomics alone, and `first` points into it.
unsafe impl Send for SubmissionRing {}

impl SubmissionRing {
    /// A ring of `entries` in `memory`, or `None` when it does not fit or has fewer than two.
    pub fn new(memory: DmaBuf, entries: u32) -> Option<Self> {
        let fits = entries as usize <= memory.words().len() / SQ_WORDS;
        let first = NonNull::from(memory.words().first()?);
        (fits && entries >= 2).then_some(Self { first, tail: 0, entries, memory })
    }

    /// Stores an entry at the tail and advances it; the device sees nothing before the doorbell.
    #[inline(always)]
    pub fn push(&mut self, entry: [u64; SQ_WORDS]) {
        let slot = self.tail as usize * SQ_WORDS;
        for (index, word) in entry.into_iter().enumerate() {
            // SAFETY: `tail < entries`, and the memory holds `entries` entries of `SQ_WORDS`.
            unsafe { self.first.add(slot + index).as_ref() }.store(word, Ordering::Relaxed);
        }
        let next = self.tail + 1;
        self.tail = if next == self.entries { 0 } else { next };
    }

    /// What the tail doorbell is to be rung with.
    #[inline(always)]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Entries in the ring.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The ring's address for the device.
    pub fn iova(&self) -> u64 {
        self.memory.iova(0)
    }

    /// The memory, of which a clone is to be kept until the device cannot reach it any more.
    pub fn memory(&self) -> &DmaBuf {
        &self.memory
    }
}

/// The host's end of a completion queue.
///
/// An entry is new when its phase tag is the expected one, which flips each time that the head
/// wraps (§4.6). The memory starts zeroed, so the first pass expects 1.
pub struct CompletionRing {
    // Hot. `first` is the start of `memory`, which holds `entries` entries, and `head < entries`:
    // `word` relies on all three.
    first: NonNull<AtomicU64>,
    phase: u64,
    head: u32,
    entries: u32,
    memory: DmaBuf,
}

// SAFETY: the memory is shared as atomics alone, and `first` points into it.
unsafe impl Send for CompletionRing {}

impl CompletionRing {
    /// A ring of `entries` in `memory`, or `None` when it does not fit or has fewer than two.
    pub fn new(memory: DmaBuf, entries: u32) -> Option<Self> {
        let fits = entries as usize <= memory.words().len() / CQ_WORDS;
        let first = NonNull::from(memory.words().first()?);
        (fits && entries >= 2).then_some(Self { first, phase: PHASE, head: 0, entries, memory })
    }

    /// The entry at the head, if the device has posted it: its upper word (SQ head, SQ identifier,
    /// CID, phase and status), by one acquire load.
    #[inline(always)]
    pub fn peek(&self) -> Option<u64> {
        take_completion(self.word(1), self.phase)
    }

    /// The lower word of the entry at the head (the command's result); after
    /// [`peek`](Self::peek) returned one.
    #[inline(always)]
    pub fn result(&self) -> u64 {
        self.word(0).load(Ordering::Relaxed)
    }

    /// Steps past the entry at the head.
    #[inline(always)]
    pub fn advance(&mut self) {
        let next = self.head + 1;
        let wraps = next == self.entries;
        self.head = if wraps { 0 } else { next };
        self.phase ^= if wraps { PHASE } else { 0 };
    }

    /// What the head doorbell is to be rung with.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Entries in the ring.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The ring's address for the device.
    pub fn iova(&self) -> u64 {
        self.memory.iova(0)
    }

    /// The memory, of which a clone is to be kept until the device cannot reach it any more.
    pub fn memory(&self) -> &DmaBuf {
        &self.memory
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < CQ_WORDS);
        // SAFETY: `head < entries`, and the memory holds `entries` entries of `CQ_WORDS`.
        unsafe { self.first.add(self.head as usize * CQ_WORDS + index).as_ref() }
    }
}

impl fmt::Debug for SubmissionRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubmissionRing(tail {} of {}, {:?})", self.tail, self.entries, self.memory)
    }
}

impl fmt::Debug for CompletionRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionRing(head {} of {}, {:?})", self.head, self.entries, self.memory)
    }
}

/// An atomic 64-bit word; a trait so that loom can put its own in place.
pub trait Word {
    /// Loads the word.
    fn load(&self, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
}

/// The completion protocol's read: the word that holds the phase tag, if the tag says that the
/// entry is new.
///
/// The acquire pairs with the device's ordered writes: the tag is the last thing that it writes,
/// so whoever sees the tag sees the entry's other half and the data as well.
#[inline(always)]
pub fn take_completion<W: Word>(upper: &W, phase: u64) -> Option<u64> {
    let word = upper.load(Ordering::Acquire);
    (word & PHASE == phase).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DmaSpace, MemError, Pages};
    use loom::sync::atomic::AtomicU64 as LoomU64;
    use std::sync::Arc;

    impl Word for LoomU64 {
        fn load(&self, order: Ordering) -> u64 {
            LoomU64::load(self, order)
        }
    }

    #[derive(Debug)]
    struct Identity;

    impl DmaSpace for Identity {
        fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
            Ok(pages.as_ptr().addr() as u64)
        }
        fn unmap(&self, _: u64, _: &Pages) -> bool {
            true
        }
    }

    fn memory() -> DmaBuf {
        DmaBuf::new(&(Arc::new(Identity) as Arc<dyn DmaSpace>), 4096).unwrap()
    }

    #[test]
    fn sizes_are_checked() {
        assert!(SubmissionRing::new(memory(), 65).is_none());
        assert!(SubmissionRing::new(memory(), 64).is_some());
        assert!(CompletionRing::new(memory(), 257).is_none());
        assert!(CompletionRing::new(memory(), 1).is_none());
    }

    #[test]
    fn submission_wraps() {
        let mut ring = SubmissionRing::new(memory(), 3).unwrap();
        for value in 0..7 {
            let slot = ring.tail() as usize;
            ring.push([value; 8]);
            assert!(
                ring.memory.words()[slot * 8..][..8]
                    .iter()
                    .all(|word| word.load(Ordering::Relaxed) == value)
            );
        }
        assert_eq!(ring.tail(), 1);
    }

    #[test]
    fn completion_phase_flips_at_the_wrap() {
        let mut ring = CompletionRing::new(memory(), 3).unwrap();
        let mut phase = PHASE;
        for index in 0..10u64 {
            assert_eq!(ring.peek(), None, "entry {index} before it was posted");
            let slot = (index % 3) as usize * 2;
            ring.memory.words()[slot].store(index, Ordering::Relaxed);
            ring.memory.words()[slot + 1].store(phase | index, Ordering::Release);
            assert_eq!(ring.peek(), Some(phase | index));
            assert_eq!(ring.result(), index);
            ring.advance();
            phase ^= if index % 3 == 2 { PHASE } else { 0 };
        }
    }

    /// Every interleaving that the memory model allows: whoever sees the phase tag sees the data.
    #[test]
    fn loom_phase_tag_publishes_the_entry() {
        loom::model(|| {
            let entry = Arc::new((LoomU64::new(0), LoomU64::new(0), LoomU64::new(0)));
            let device = {
                let entry = Arc::clone(&entry);
                loom::thread::spawn(move || {
                    let (data, lower, upper) = &*entry;
                    data.store(1, Ordering::Relaxed);
                    lower.store(2, Ordering::Relaxed);
                    upper.store(PHASE | 3, Ordering::Release);
                })
            };
            let (data, lower, upper) = &*entry;
            if let Some(word) = take_completion(upper, PHASE) {
                assert_eq!(word, PHASE | 3);
                assert_eq!(lower.load(Ordering::Relaxed), 2, "the result came after the tag");
                assert_eq!(data.load(Ordering::Relaxed), 1, "the data came after the tag");
            }
            device.join().unwrap();
        });
    }
}
