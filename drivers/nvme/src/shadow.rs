//! Shadow doorbells (§5.7, §7.13): doorbells in host memory, which a controller in software reads by itself.
//!
//! A write to a register of such a controller leaves the virtual machine; one to memory does not. The
//! register is written only where the controller asks for it: it says up to which value it will look by
//! itself (EventIdx).

use crate::NvmeError;
use nvpoll_mem::{DmaBuf, PAGE_BYTES, order_stores_before_doorbell};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

/// A controller's shadow doorbells: both pages have the doorbells' own layout, the admin queue's unused.
#[derive(Debug)]
pub(crate) struct ShadowPages {
    values: DmaBuf,
    events: DmaBuf,
    stride_bytes: usize,
}

impl ShadowPages {
    /// Of doorbells `stride_bytes` apart; `page` makes a memory page of the controller.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new(
        stride_bytes: usize,
        page: impl Fn() -> Result<DmaBuf, NvmeError>,
    ) -> Result<Self, NvmeError> {
        Ok(Self { values: page()?, events: page()?, stride_bytes })
    }

    /// The addresses of both, for the command that names them.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.values.iova(0), self.events.iova(0))
    }

    /// Both pages, which the device may reach until it is disabled.
    pub(crate) fn memory(&self) -> [&DmaBuf; 2] {
        [&self.values, &self.events]
    }

    /// Most queue pairs that have a place in a page, the admin queue left out.
    pub(crate) fn queues_max(&self) -> usize {
        (PAGE_BYTES / (2 * self.stride_bytes)).saturating_sub(1)
    }

    /// The doorbells of queue pair `qid`, at zero: to be made before its queues are created. `None` where
    /// the page has no place for them.
    pub(crate) fn pair(&self, qid: u16) -> Option<ShadowPair> {
        if qid == 0 || usize::from(qid) > self.queues_max() {
            return None;
        }
        let place = |index: usize| {
            let byte = index * self.stride_bytes;
            Shadow { word: byte / 8, shift: (byte % 8 * 8) as u32, value: 0 }
        };
        let (tail, head) = (place(2 * usize::from(qid)), place(2 * usize::from(qid) + 1));
        for buffer in self.memory() {
            for word in [tail.word, head.word] {
                buffer.words().get(word)?.store(0, Relaxed);
            }
        }
        Some(ShadowPair { tail, head, values: self.values.clone(), events: self.events.clone() })
    }
}

/// Where a doorbell stands in both pages, and what was written last.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    /// The 64-bit word that it is in. At a stride of 4 bytes both of a pair share one, whose halves the
    /// pair's owner stores together: nobody else writes them.
    word: usize,
    /// Bits above the word's start.
    shift: u32,
    value: u32,
}

/// Both shadow doorbells of a queue pair.
#[derive(Debug)]
pub(crate) struct ShadowPair {
    tail: Shadow,
    head: Shadow,
    values: DmaBuf,
    events: DmaBuf,
}

impl ShadowPair {
    /// Publishes the submission queue's tail; whether its register has to be written as well.
    #[inline(never)]
    pub(crate) fn publish_tail(&mut self, value: u32) -> bool {
        let before = std::mem::replace(&mut self.tail.value, value);
        self.publish(self.tail, before)
    }

    /// Publishes the completion queue's head, likewise.
    pub(crate) fn publish_head(&mut self, value: u32) -> bool {
        let before = std::mem::replace(&mut self.head.value, value);
        self.publish(self.head, before)
    }

    fn publish(&self, shadow: Shadow, before: u32) -> bool {
        let mine = [self.tail, self.head].into_iter().filter(|other| other.word == shadow.word);
        let word = mine.fold(0, |word, other| word | u64::from(other.value) << other.shift);
        let value = self.values.words().get(shadow.word);
        let (Some(value), Some(event)) = (value, self.events.words().get(shadow.word)) else {
            return true;
        };
        order_stores_before_doorbell();
        value.store(word, Release);
        // The controller writes its index and looks at the value then: one of both sees the other's.
        fence(SeqCst);
        let event = (event.load(Relaxed) >> shadow.shift) as u16;
        is_past(event, before as u16, shadow.value as u16)
    }
}

/// Whether a doorbell that went from `before` to `now` has gone past `event` (§7.13); all of them wrap.
fn is_past(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_goes_past_an_index_once() {
        for (event, before, now, past) in [
            (0, 0, 1, true),
            (0, 1, 2, false),
            (4, 3, 5, true),
            (5, 3, 5, false),
            (3, 3, 4, true),
            (2, 3, 4, false),
            (65535, 0, 1, false),
            (65535, 65535, 0, true),
            (65535, 65530, 3, true),
        ] {
            assert_eq!(is_past(event, before, now), past, "{event}: {before} to {now}");
        }
    }
}
