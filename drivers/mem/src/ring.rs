//! The two rings of a queue pair, in memory that the device shares.

#![allow(unsafe_code)]

use crate::DmaBuf;
use std::fmt;
use std::hint::cold_path;
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
    // Hot. `first` is the start of `memory`, which holds `words` words, and `at < words`; both are
    // multiples of `SQ_WORDS`: `push` relies on all of it.
    first: NonNull<AtomicU64>,
    /// The tail, in words.
    at: usize,
    words: usize,
    memory: DmaBuf,
}

// SAFETY: the memory is shared as atomics alone, and `first` points into it.
unsafe impl Send for SubmissionRing {}

impl SubmissionRing {
    /// A ring of `entries` in `memory`, or `None` when it does not fit or has fewer than two.
    pub fn new(memory: DmaBuf, entries: u32) -> Option<Self> {
        let words = words(&memory, entries, SQ_WORDS)?;
        let first = NonNull::from(memory.words().first()?);
        Some(Self { first, at: 0, words, memory })
    }

    /// Stores an entry at the tail and advances it; the device sees nothing before the doorbell.
    #[inline(always)]
    pub fn push(&mut self, entry: [u64; SQ_WORDS]) {
        for (index, word) in entry.into_iter().enumerate() {
            // SAFETY: an entry of `SQ_WORDS` stands at `at`, which is a multiple of them below
            // `words`.
            unsafe { self.first.add(self.at + index).as_ref() }.store(word, Ordering::Relaxed);
        }
        self.at += SQ_WORDS;
        if self.at == self.words {
            cold_path();
            self.at = 0;
        }
    }

    /// What the tail doorbell is to be rung with.
    #[inline(always)]
    pub fn tail(&self) -> u32 {
        (self.at / SQ_WORDS) as u32
    }

    /// Entries in the ring.
    pub fn entries(&self) -> u32 {
        (self.words / SQ_WORDS) as u32
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
    // Hot. `first` is the start of `memory`, which holds `words` words, a multiple of `CQ_WORDS`;
    // `word` relies on it.
    first: NonNull<AtomicU64>,
    head: Head,
    words: usize,
    memory: DmaBuf,
}

/// Where the next completion is expected, and with which phase tag. Made and moved on only by its
/// ring: `at` is a multiple of `CQ_WORDS` and below the ring's `words`.
#[derive(Clone, Copy)]
struct Head {
    /// In words.
    at: usize,
    phase: u64,
}

impl Head {
    /// Past one entry of a ring of `words`. At the wrap it branches rather than selects: the branch
    /// is foreseen, and what would be selected is needed at once for the next load.
    #[inline(always)]
    fn advance(&mut self, words: usize) {
        self.at += CQ_WORDS;
        if self.at == words {
            cold_path();
            *self = Self { at: 0, phase: self.phase ^ PHASE };
        }
    }
}

// SAFETY: the memory is shared as atomics alone, and `first` points into it.
unsafe impl Send for CompletionRing {}

impl CompletionRing {
    /// A ring of `entries` in `memory`, or `None` when it does not fit or has fewer than two.
    pub fn new(memory: DmaBuf, entries: u32) -> Option<Self> {
        let words = words(&memory, entries, CQ_WORDS)?;
        let first = NonNull::from(memory.words().first()?);
        Some(Self { first, head: Head { at: 0, phase: PHASE }, words, memory })
    }

    /// The entry at the head, if the device has posted it: its upper word (SQ head, SQ identifier,
    /// CID, phase and status), by one acquire load.
    #[inline(always)]
    pub fn peek(&self) -> Option<u64> {
        take_completion(self.word(self.head, 1), self.head.phase)
    }

    /// The lower word of the entry at the head (the command's result); after
    /// [`peek`](Self::peek) returned one.
    #[inline(always)]
    pub fn result(&self) -> u64 {
        self.word(self.head, 0).load(Ordering::Relaxed)
    }

    /// Steps past the entry at the head.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.head.advance(self.words);
    }

    /// Takes the entries that the device has posted, at most a ringful: each one's upper word, as
    /// [`peek`](Self::peek) has it, goes to `each`. Returns how many were taken.
    ///
    /// # Errors
    /// The first of `each`, with its entry taken.
    #[inline(always)]
    pub fn take<E>(&mut self, each: impl FnMut(u64) -> Result<(), E>) -> Result<u32, E> {
        match self.peek() {
            Some(first) => self.take_from(first, each),
            None => Ok(0),
        }
    }

    /// [`take`](Self::take) after [`peek`](Self::peek) returned `first`, which is not looked at again.
    ///
    /// # Errors
    /// As of [`take`](Self::take).
    #[inline(always)]
    pub fn take_from<E>(
        &mut self,
        first: u64,
        mut each: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<u32, E> {
        // A copy stays in registers, which a field does not beside stores to shared memory.
        let mut head = self.head;
        let mut taken = 0;
        let mut upper = first;
        loop {
            head.advance(self.words);
            taken += 1;
            if let Err(error) = each(upper) {
                self.head = head;
                return Err(error);
            }
            if head.at == self.head.at {
                break;
            }
            match take_completion(self.word(head, 1), head.phase) {
                Some(next) => upper = next,
                None => break,
            }
        }
        self.head = head;
        Ok(taken)
    }

    /// What the head doorbell is to be rung with.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        (self.head.at / CQ_WORDS) as u32
    }

    /// Entries in the ring.
    pub fn entries(&self) -> u32 {
        (self.words / CQ_WORDS) as u32
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
    fn word(&self, head: Head, index: usize) -> &AtomicU64 {
        debug_assert!(index < CQ_WORDS);
        // SAFETY: an entry of `CQ_WORDS` stands at `at`, which is a multiple of them below `words`.
        unsafe { self.first.add(head.at + index).as_ref() }
    }
}

/// Words of a ring of `entries` of `entry_words` each, if it has two at least and `memory` holds it
/// at one address.
fn words(memory: &DmaBuf, entries: u32, entry_words: usize) -> Option<usize> {
    let words = (entries as usize).checked_mul(entry_words)?;
    let holds = words <= memory.words().len() && memory.is_contiguous();
    (entries >= 2 && holds).then_some(words)
}

impl fmt::Debug for SubmissionRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubmissionRing(tail {} of {}, {:?})", self.tail(), self.entries(), self.memory)
    }
}

impl fmt::Debug for CompletionRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionRing(head {} of {}, {:?})", self.head(), self.entries(), self.memory)
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
    ((word ^ phase) & PHASE == 0).then_some(word)
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

    #[test]
    fn taking_all_stops_at_a_ringful_and_at_an_error() {
        let mut ring = CompletionRing::new(memory(), 3).unwrap();
        let post = |ring: &CompletionRing, slot: usize, word: u64| {
            ring.memory.words()[slot * 2 + 1].store(word, Ordering::Release);
        };
        let all = |ring: &mut CompletionRing| {
            let mut seen = Vec::new();
            let taken = ring.take(|word| {
                seen.push(word & !PHASE);
                if word & 7 == 7 { Err(word & !PHASE) } else { Ok(()) }
            });
            (taken, seen)
        };
        assert_eq!(all(&mut ring), (Ok(0), vec![]));
        (0..3).for_each(|slot| post(&ring, slot, PHASE | slot as u64));
        assert_eq!(all(&mut ring), (Ok(3), vec![0, 1, 2]), "across the wrap");
        assert_eq!(ring.head(), 0);
        assert_eq!(all(&mut ring), (Ok(0), vec![]), "the phase flipped");
        post(&ring, 0, 7);
        post(&ring, 1, 1);
        assert_eq!(all(&mut ring), (Err(7), vec![7]));
        assert_eq!(ring.head(), 1, "the entry with the error is taken");
        assert_eq!(all(&mut ring), (Ok(1), vec![1]));
        // A device that posts as fast as the host takes does not keep it for ever.
        (0..2).for_each(|slot| post(&ring, slot, PHASE));
        post(&ring, 2, 2);
        let memory = ring.memory.clone();
        let again = |_| {
            memory.words()[5].store(PHASE, Ordering::Release);
            Ok::<_, ()>(())
        };
        assert_eq!((ring.take(again), ring.head()), (Ok(3), 2));
        assert_eq!(ring.take(|_| Err(())), Err(()), "the fourth is there");
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
