//! How a command names its data: by pages (`prp.rs`), or by one descriptor (`--sgl`).
//!
//! Both take the two words of DPTR, and both are prepared per tag, so that the hot path stores them
//! without asking which they are.

use crate::NvmeError;
use crate::prp::Lists;
use nvpoll_mem::DmaBuf;
use nvpoll_pci::Function;

/// PSDT in CDW0 (§4.2, Figure 104), 01b: DPTR is an SGL descriptor, MPTR an address as ever.
const PSDT_SGL: u64 = 1 << 14;
/// SGLS bits 1:0 of Identify Controller (§5.15.2.2, Figure 247): 00b, commands have no SGLs.
const SGLS_SUPPORT: u32 = 3;

/// What names the data of a queue pair's commands.
#[derive(Debug)]
pub(crate) enum Pointers {
    /// Pages.
    Prp(Lists),
    /// An SGL Data Block descriptor (§4.4, Figure 116): each tag's buffer is in one piece.
    Sgl,
}

impl Pointers {
    /// For `tags` buffers that stand `stride` bytes apart in `buffers`, in pages of `page_bytes`, with
    /// memory from `allocate`.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn prp(
        buffers: &DmaBuf,
        tags: usize,
        stride: usize,
        page_bytes: usize,
        allocate: impl FnOnce(usize) -> Result<DmaBuf, NvmeError>,
    ) -> Result<Self, NvmeError> {
        let memory = match Lists::bytes_per_tag(stride, page_bytes) {
            0 => None,
            bytes => Some(allocate(tags * bytes)?),
        };
        Ok(Self::Prp(Lists::new(memory, buffers, tags, stride, page_bytes)))
    }

    /// Descriptors, where the controller has them and the memory is in one piece.
    ///
    /// # Errors
    /// [`NvmeError::Limit`] otherwise.
    pub fn sgl<F: Function>(
        controller: &crate::Controller<F>,
        buffers: &DmaBuf,
    ) -> Result<Self, NvmeError> {
        let sgls = controller.identity().sgl;
        if sgls & SGLS_SUPPORT == 0 {
            return Err(controller.limit(format!(
                "data was to be named by SGLs, and the controller has none (SGLS is {sgls:#x}); leave out --sgl"
            )));
        }
        if !buffers.is_contiguous() {
            return Err(controller.limit(
                "data was to be named by SGL data blocks, and the buffers are in several pieces of memory without an IOMMU; lower --iodepth or --bs, or leave out --sgl".into(),
            ));
        }
        Ok(Self::Sgl)
    }

    /// What a command's first word has beside opcode, CID and namespace.
    pub fn first_word(&self) -> u64 {
        match self {
            Self::Prp(_) => 0,
            Self::Sgl => PSDT_SGL,
        }
    }

    /// DPTR of a command on `bytes` of `tag`'s buffer from `offset` on, which the caller keeps within it.
    pub fn words(
        &self,
        buffers: &DmaBuf,
        stride: usize,
        tag: usize,
        offset: usize,
        bytes: usize,
    ) -> (u64, u64) {
        match self {
            Self::Prp(lists) => lists.prps(buffers, stride, tag, offset, bytes),
            // Length in bits 31:0; type 0h (data block) and subtype 0h (address) above.
            Self::Sgl => (buffers.iova(tag * stride + offset), bytes as u64),
        }
    }

    /// The memory, of which a clone is to be kept until the device cannot reach it any more.
    pub fn memory(&self) -> Option<&DmaBuf> {
        match self {
            Self::Prp(lists) => lists.memory(),
            Self::Sgl => None,
        }
    }
}
