//! Physical Region Pages: how a command names its data (§4.3).
//!
//! PRP1 is the data's first page, with an offset. A transfer that touches two pages names the
//! second in PRP2; one that touches more puts a *list* of the second and all later pages in memory
//! and the list's address in PRP2, which may point into the middle of a page.
//!
//! Every tag has one buffer for its life, so its lists are written once, when the queue is made. The
//! specification gives the last entry of a page of the list two meanings (a page, or a pointer to
//! more of the list), depending on how long the transfer is. To need only the first meaning, the
//! lists are of 512 entries and *overlap*: list `k` names the buffer's pages from `256 k` on, 512 of
//! them, and a command whose first page is `f` uses list `f / 256`. A command of up to 257 pages
//! then ends within its list, wherever it starts; that is the reason for
//! [`COMMAND_BYTES_MAX`](crate::limits::COMMAND_BYTES_MAX).
//!
//! A page is as large as CC.MPS says. A list stays 4 KiB long: where pages are larger, several lists
//! share one, and none reaches beyond its end.

use crate::limits::PAGE_BYTES;
use nvpoll_mem::DmaBuf;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a list, the smallest memory page.
const LIST_BYTES: usize = PAGE_BYTES;
/// Entries in a list.
const ENTRIES: usize = LIST_BYTES / 8;
/// Buffer pages from one list to the next.
const STEP: usize = ENTRIES / 2;

/// The PRP lists of one queue pair's buffers.
#[derive(Debug)]
pub(crate) struct Lists {
    /// `None` when no transfer touches three pages.
    memory: Option<DmaBuf>,
    list_bytes_per_tag: usize,
    /// Bytes of a page, as a power of two.
    page_log2: u32,
}

impl Lists {
    /// Bytes of lists that a tag with `buffer_bytes` of buffer needs, with pages of `page_bytes`.
    pub fn bytes_per_tag(buffer_bytes: usize, page_bytes: usize) -> usize {
        let pages = buffer_bytes.div_ceil(page_bytes);
        if pages <= 2 { 0 } else { pages.div_ceil(STEP) * LIST_BYTES }
    }

    /// Writes the lists of `tags` buffers that stand `stride` bytes apart in `buffers`, in pages of
    /// `page_bytes`, a power of two that divides both. `memory` has
    /// [`bytes_per_tag`](Self::bytes_per_tag) for each, or is `None` when that is zero.
    pub fn new(
        memory: Option<DmaBuf>,
        buffers: &DmaBuf,
        tags: usize,
        stride: usize,
        page_bytes: usize,
    ) -> Self {
        let list_bytes_per_tag = Self::bytes_per_tag(stride, page_bytes);
        let lists = Self { memory, list_bytes_per_tag, page_log2: page_bytes.trailing_zeros() };
        let Some(memory) = &lists.memory else { return lists };
        let pages = stride / page_bytes;
        let words = memory.words();
        for tag in 0..tags {
            for list in 0..list_bytes_per_tag / LIST_BYTES {
                let first_word = (tag * list_bytes_per_tag + list * LIST_BYTES) / 8;
                let first_page = list * STEP;
                let named = (pages - first_page).min(ENTRIES);
                for (entry, word) in words[first_word..][..named].iter().enumerate() {
                    let page = first_page + entry;
                    word.store(buffers.iova(tag * stride + page * page_bytes), Relaxed);
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
        let first = offset >> self.page_log2;
        let last = (offset + bytes.max(1) - 1) >> self.page_log2;
        let second = || buffers.iova(tag * stride + ((first + 1) << self.page_log2));
        let prp2 = match (last - first, &self.memory) {
            (0, _) => 0,
            (1, _) | (_, None) => second(),
            (_, Some(memory)) => {
                let list = first / STEP;
                let entry = first + 1 - list * STEP;
                memory.iova(tag * self.list_bytes_per_tag + list * LIST_BYTES + entry * 8)
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
    fn walk(
        space: &Space,
        (prp1, prp2): (u64, u64),
        bytes: usize,
        page_bytes: usize,
    ) -> Vec<(u64, usize)> {
        let page = page_bytes as u64;
        let first = bytes.min((page - prp1 % page) as usize);
        let mut pieces = vec![(prp1, first)];
        let mut left = bytes - first;
        if left == 0 {
            assert_eq!(prp2, 0);
        } else if left <= page_bytes {
            assert_eq!(prp2 % page, 0, "a second page with an offset");
            pieces.push((prp2, left));
        } else {
            let mut at = prp2;
            while left > 0 {
                let mut entry = space.word(at);
                if at % page == page - 8 && left > page_bytes {
                    at = entry;
                    entry = space.word(at);
                }
                assert_eq!(entry % page, 0, "a list entry with an offset");
                pieces.push((entry, left.min(page_bytes)));
                left = left.saturating_sub(page_bytes);
                at += 8;
            }
        }
        pieces
    }

    proptest! {
        #[test]
        fn every_transfer_names_its_own_bytes_in_order(
            page_log2 in 12u32..=16, pages in 1usize..1100, tag in 0usize..3, start in 0usize..2_000_000, length in 1usize..=COMMAND_BYTES_MAX as usize / 512,
        ) {
            // A buffer of the same length in pages of every size.
            let page_bytes = 1 << page_log2;
            let stride = (pages * 4096).next_multiple_of(page_bytes);
            let offset = start * 512 % stride;
            let bytes = (length * 512).min(stride - offset);
            let space = Arc::new(Space::default());
            let dma: Arc<dyn DmaSpace> = space.clone();
            let buffers = DmaBuf::aligned(&dma, 3 * stride, page_bytes).unwrap();
            let memory = match Lists::bytes_per_tag(stride, page_bytes) {
                0 => None,
                bytes => Some(DmaBuf::aligned(&dma, 3 * bytes, page_bytes).unwrap()),
            };
            let lists = Lists::new(memory, &buffers, 3, stride, page_bytes);
            let prps = lists.prps(&buffers, stride, tag, offset, bytes);
            let mut expected = buffers.iova(tag * stride + offset);
            for (address, piece) in walk(&space, prps, bytes, page_bytes) {
                prop_assert_eq!(address, expected);
                expected += piece as u64;
            }
            prop_assert_eq!(expected, buffers.iova(tag * stride + offset + bytes));
        }
    }
}
