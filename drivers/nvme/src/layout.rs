//! The sizes of a queue pair, checked against what the controller and the namespace allow.

use crate::data::Pointers;
use crate::limits::{COMMANDS_MAX, IO_BYTES_MAX};
use crate::{Controller, Namespace, NvmeError, PairOptions, QueuePair, Quirks};
use nvpoll_mem::DmaBuf;
use nvpoll_pci::Function;

/// Most commands outstanding on one queue: one entry of the ring stays free, so that full and
/// empty differ (§4.1.2).
pub(crate) fn commands_max<F: Function>(controller: &Controller<F>) -> u32 {
    if controller.quirks().contains(Quirks::ONE_COMMAND) {
        return 1;
    }
    (controller.capabilities().queue_entries_max() - 1).min(COMMANDS_MAX)
}

/// Blocks that one command carries: CDW12 holds 16 bits, zero-based.
fn piece_blocks_max<F: Function>(controller: &Controller<F>, namespace: &Namespace) -> u32 {
    (controller.command_bytes_max() / namespace.memory_bytes()).clamp(1, 1 << 16)
}

pub(crate) fn pieces_of<F: Function>(
    controller: &Controller<F>,
    namespace: &Namespace,
    bytes: u32,
) -> u32 {
    bytes.div_ceil(namespace.block_bytes).div_ceil(piece_blocks_max(controller, namespace))
}

/// The sizes of a queue pair, checked.
pub(crate) struct Layout {
    pub tags: u16,
    pub pieces_max: u16,
    pub slot_mask: u16,
    pub io_blocks: u32,
    pub piece_blocks: u32,
    /// Bytes of a block in a buffer.
    pub memory_bytes: u32,
    /// Bytes from one tag's buffer to the next.
    pub stride: usize,
    pub entries: u32,
    is_protected: bool,
}

impl Layout {
    pub fn new<F: Function>(
        controller: &Controller<F>,
        namespace: &Namespace,
        options: PairOptions,
    ) -> Result<Self, NvmeError> {
        let PairOptions { depth, io_bytes, .. } = options;
        let block_bytes = namespace.block_bytes;
        if io_bytes == 0 || io_bytes % block_bytes != 0 || io_bytes > IO_BYTES_MAX {
            return Err(controller.limit(format!(
                "I/Os of {io_bytes} bytes were asked for; the size must be a multiple of the block size, {block_bytes}, and at most {IO_BYTES_MAX}"
            )));
        }
        let command_bytes = controller.command_bytes_max();
        let memory_bytes = namespace.memory_bytes();
        if memory_bytes > command_bytes {
            return Err(controller.limit(format!(
                "a block has {memory_bytes} bytes and a command moves at most {command_bytes} (MDTS); not even one block can be read"
            )));
        }
        let depth_max = QueuePair::depth_max(controller, namespace, io_bytes);
        let entries = controller.capabilities().queue_entries_max();
        let pieces = pieces_of(controller, namespace, io_bytes);
        if depth_max == 0 {
            return Err(controller.limit(format!(
                "an I/O of {io_bytes} bytes takes {pieces} commands, more than the controller's queues hold ({entries} entries, CAP.MQES); lower --bs"
            )));
        }
        if depth == 0 || u32::from(depth) > depth_max {
            return Err(controller.limit(format!(
                "a depth of {depth} was asked for; 1 to {depth_max} is possible (the controller's queues have {entries} entries, CAP.MQES, and an I/O of {io_bytes} bytes takes {pieces} commands)"
            )));
        }
        let io_blocks = io_bytes / block_bytes;
        // Not more than the depth's limit, so that neither number leaves 16 bits.
        let pieces_max = pieces as u16;
        let slots = depth * pieces_max;
        Ok(Self {
            tags: depth,
            pieces_max,
            // One bit more than the slots need, where they fill their bits: CID FFFFh, which the
            // error log uses for "no command" (§5.14.1.1), is then never a command's.
            slot_mask: (u32::from(slots) + 1).next_power_of_two().wrapping_sub(1) as u16,
            io_blocks,
            piece_blocks: piece_blocks_max(controller, namespace),
            memory_bytes,
            stride: (io_blocks as usize * memory_bytes as usize)
                .next_multiple_of(controller.page_bytes()),
            entries: u32::from(slots) + 1,
            is_protected: namespace.metadata.is_some(),
        })
    }

    /// Below which logical block an I/O of the full length is one command that needs nothing but its
    /// place and its data, and in the namespace.
    pub fn whole_lbas(&self, namespace: &Namespace) -> u64 {
        match namespace.blocks.checked_sub(self.io_blocks.into()) {
            Some(last) if self.pieces_max == 1 && !self.is_protected => last + 1,
            _ => 0,
        }
    }

    /// DPTR of a full-length I/O in `slot`, where that is one command.
    pub fn pointer(&self, slot: u16, buffers: &DmaBuf, pointers: &Pointers) -> (u64, u64) {
        if self.pieces_max > 1 {
            return (0, 0);
        }
        let bytes = self.io_blocks as usize * self.memory_bytes as usize;
        pointers.words(buffers, self.stride, usize::from(slot), 0, bytes)
    }
}
