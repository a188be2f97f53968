//! A lane whose writes deallocate: Dataset Management in a write's place (§6.7), with one range a
//! command. Its lists of ranges are memory of their own, so that buffers keep what they hold.

use super::{QueuePair, Rejected, first_word};
use crate::{Controller, NvmeError};
use nvpoll_mem::DmaBuf;
use nvpoll_pci::Function;
use nvpoll_spec::{DatasetRange, Nvm, NvmOpcode};
use zerocopy::IntoBytes;

/// A range for each tag.
pub(super) struct Ranges(DmaBuf);

impl Ranges {
    /// # Errors
    /// [`NvmeError::Unsupported`] when the controller does not deallocate.
    pub fn new<F: Function>(controller: &Controller<F>, tags: u16) -> Result<Self, NvmeError> {
        if !controller.identity().optional_commands().dataset_management() {
            return Err(controller.unsupported(
                "the controller has no Dataset Management command (ONCS bit 2 is 0), so nothing can be trimmed".into(),
            ));
        }
        controller.buffer(usize::from(tags) * size_of::<DatasetRange>()).map(Self)
    }

    pub fn memory(&self) -> &DmaBuf {
        &self.0
    }

    /// Stores `tag`'s range; returns its address.
    fn set(&mut self, tag: u16, lba: u64, blocks: u32) -> u64 {
        let offset = usize::from(tag) * size_of::<DatasetRange>();
        self.0.write(offset, DatasetRange { attributes: 0, blocks, lba }.as_bytes());
        self.0.iova(offset)
    }
}

impl<F: Function> QueuePair<F> {
    /// Stores the entry that deallocates what a write would have written. It carries no data that MDTS
    /// bounds, so it is never cut. The range lies inside of the namespace.
    pub(super) fn push_trim(&mut self, tag: u16, lba: u64, blocks: u32) -> Result<(), Rejected> {
        let slot = tag.checked_mul(self.pieces_max).ok_or(Rejected)?;
        self.slots.idle(slot).ok_or(Rejected)?;
        if self.pieces_max > 1 {
            self.begin(tag, 1)?;
        }
        let ranges = self.ranges.as_mut().ok_or(Rejected)?;
        let prp1 = ranges.set(tag, lba, blocks);
        let Some(cid) = self.slots.begin(slot) else { return Err(Rejected) };
        let mut words = Nvm::deallocate(0, 0).to_words();
        // Its list is named by PRP1, also where the lane's data is named otherwise.
        words[0] = first_word(NvmOpcode::DATASET_MANAGEMENT, cid, (self.blank >> 32) as u32);
        words[3] = prp1;
        self.submissions.push(words);
        Ok(())
    }
}
