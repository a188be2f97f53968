//! Physical Region Pages: how a command names its data (§4.3).
//!
//! PRP1 is the data's first page, with an offset. A transfer that touches two pages names the
//! second in PRP2; one that touches more puts a *list* of the second and all later pages in memory
//! and the list's address in PRP2, which may point into the middle of a page.
//!
//! Every tag has one buffer for its life, so its lists are written once, when the queue is made. A
//! list page holds 512 entries, and the specification gives the last one two meanings (a page, or
//! a pointer to more of the list), depending on how long the transfer is. To need only the first
//! meaning, the lists *overlap*: list page `k` names the buffer's pages from `256 k` on, 512 of
//! them, and a command whose first page is `f` uses list page `f / 256`. A command of up to 257
//! pages then ends within its list page, wherever it starts; that is the reason for
//! [`COMMAND_BYTES_MAX`](crate::limits::COMMAND_BYTES_MAX).

use crate::limits::PAGE_BYTES;
use nvpoll_mem::DmaBuf;
use std::sync::atomic::Ordering::Relaxed;

/// Entries in a list page.
const ENTRIES: usize = PAGE_BYTES / 8;
/// Buffer pages from one list page to the next.
const STEP: usize = ENTRIES / 2;

/// The PRP lists of one queue pair's buffers.
#[derive(Debug)]
pub(crate) struct Lists {
    /// `None` when no transfer touches three pages.
    memory: Option<DmaBuf>,
    list_bytes_per_tag: usize,
}

impl Lists {
    /// Bytes of list pages that a tag with `buffer_bytes` of buffer needs.
    pub fn bytes_per_tag(buffer_bytes: usize) -> usize {
        let pages = buffer_bytes.div_ceil(PAGE_BYTES);
        if pages <= 2 { 0 } else { pages.div_ceil(STEP) * PAGE_BYTES }
    }

    /// Writes the lists of `tags` buffers that stand `stride` bytes apart in `buffers`. `memory`
    /// has [`bytes_per_tag`](Self::bytes_per_tag) for each, or is `None` when that is zero.
    pub fn new(memory: Option<DmaBuf>, buffers: &DmaBuf, tags: usize, stride: usize) -> Self {
        let list_bytes_per_tag = Self::bytes_per_tag(stride);
        let lists = Self { memory, list_bytes_per_tag };
        let Some(memory) = &lists.memory else { return lists };
        let pages = stride / PAGE_BYTES;
        let words = memory.words();
        for tag in 0..tags {
            for list in 0..list_bytes_per_tag / PAGE_BYTES {
                let first_word = (tag * list_bytes_per_tag + list * PAGE_BYTES) / 8;
                let first_page = list * STEP;
                let named = (pages - first_page).min(ENTRIES);
                for (entry, word) in words[first_word..][..named].iter().enumerate() {
                    let page = first_page + entry;
                    word.store(buffers.iova(tag * stride + page * PAGE_BYTES), Relaxed);
                }
            }
        }
        lists
    }

    /// PRP1 and PRP2 of a command on `bytes` of `tag`'s buffer from `offset` on.
    ///
    /// The caller keeps `offset + bytes` within the buffer and `bytes` within one command.
    pub fn prps(
        &self,
        buffers: &DmaBuf,
        stride: usize,
        tag: usize,
        offset: usize,
        bytes: usize,
    ) -> (u64, u64) {
        let prp1 = buffers.iova(tag * stride + offset);
        let first = offset / PAGE_BYTES;
        let last = (offset + bytes.max(1) - 1) / PAGE_BYTES;
        let second = || buffers.iova(tag * stride + (first + 1) * PAGE_BYTES);
        let prp2 = match (last - first, &self.memory) {
            (0, _) => 0,
            (1, _) | (_, None) => second(),
            (_, Some(memory)) => {
                let list = first / STEP;
                let entry = first + 1 - list * STEP;
                memory.iova(tag * self.list_bytes_per_tag + list * PAGE_BYTES + entry * 8)
            }
        };
        (prp1, prp2)
    }

    /// The memory, of which a clone is to be kept until the device cannot reach it any more.
    pub fn memory(&self) -> Option<&DmaBuf> {
        self.memory.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::COMMAND_BYTES_MAX;
    use nvpoll_mem::{DmaSpace, MemError, Pages};
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex};

    /// Numbers mappings so that an address tells its buffer and offset.
    #[derive(Debug, Default)]
    struct Space(Mutex<Vec<Arc<Pages>>>);

    impl DmaSpace for Space {
        fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
            let mut all = self.0.lock().unwrap();
            all.push(Arc::clone(pages));
            Ok((all.len() as u64) << 40)
        }
        fn unmap(&self, _: u64, _: &Pages) -> bool {
            true
        }
    }

    impl Space {
        fn word(&self, iova: u64) -> u64 {
            let all = self.0.lock().unwrap();
            let offset = (iova & ((1 << 40) - 1)) as usize;
            assert_eq!(offset % 8, 0, "a list pointer that is not a multiple of eight");
            all[(iova >> 40) as usize - 1].words()[offset / 8].load(Relaxed)
        }
    }

    /// What a controller reads, written after §4.3 alone: the pieces of memory of a transfer.
    fn walk(space: &Space, prp1: u64, prp2: u64, bytes: usize) -> Vec<(u64, usize)> {
        let page = PAGE_BYTES as u64;
        let first = bytes.min((page - prp1 % page) as usize);
        let mut pieces = vec![(prp1, first)];
        let mut left = bytes - first;
        if left == 0 {
            assert_eq!(prp2, 0);
        } else if left <= PAGE_BYTES {
            pieces.push((prp2, left));
        } else {
            let mut at = prp2;
            while left > 0 {
                let mut entry = space.word(at);
                if at % page == page - 8 && left > PAGE_BYTES {
                    at = entry;
                    entry = space.word(at);
                }
                assert_eq!(entry % page, 0, "a list entry with an offset");
                pieces.push((entry, left.min(PAGE_BYTES)));
                left = left.saturating_sub(PAGE_BYTES);
                at += 8;
            }
        }
        pieces
    }

    proptest! {
        #[test]
        fn every_transfer_names_its_own_bytes_in_order(
            pages in 1usize..1100, tag in 0usize..3, start in 0usize..2_000_000, length in 1usize..=COMMAND_BYTES_MAX as usize / 512,
        ) {
            let stride = pages * PAGE_BYTES;
            let offset = start * 512 % stride;
            let bytes = (length * 512).min(stride - offset);
            let space = Arc::new(Space::default());
            let dma: Arc<dyn DmaSpace> = space.clone();
            let buffers = DmaBuf::new(&dma, 3 * stride).unwrap();
            let memory = match Lists::bytes_per_tag(stride) {
                0 => None,
                bytes => Some(DmaBuf::new(&dma, 3 * bytes).unwrap()),
            };
            let lists = Lists::new(memory, &buffers, 3, stride);
            let (prp1, prp2) = lists.prps(&buffers, stride, tag, offset, bytes);
            let mut expected = buffers.iova(tag * stride + offset);
            for (address, piece) in walk(&space, prp1, prp2, bytes) {
                prop_assert_eq!(address, expected);
                expected += piece as u64;
            }
            prop_assert_eq!(expected, buffers.iova(tag * stride + offset + bytes));
        }
    }
}
