//! A queue pair: the hot path.
//!
//! One thread owns one submission and one completion queue. [`push`](QueuePair::push) stores a
//! command's entry, [`kick`](QueuePair::kick) rings one doorbell for all that were pushed, and
//! [`reap`](QueuePair::reap) takes completions by one acquire load each and rings the other
//! doorbell once.
//!
//! An I/O is named by its *tag*; each command of it by a *slot*. Usually they are the same number.
//! An I/O longer than one command may carry is cut into equal *pieces*, each with a slot of its
//! own, and is reported when the last piece completes. A slot's command identifier carries a
//! generation above the slot's number, so that a completion which comes late or twice names a
//! generation that is not outstanding, and is caught.

mod alone;
mod each;
mod protected;
mod trim;
mod writes;

pub use each::DoorbellMode;
pub use writes::WriteMode;

use crate::controller::NotCreated;
use crate::data::Pointers;
use crate::layout::{Layout, commands_max, pieces_of};
use crate::metadata::MetadataLane;
use crate::shadow::ShadowPair;
use crate::slots::Slots;
use crate::{Controller, Namespace, NvmeError, ProtocolError};
use nvpoll_mem::{CompletionRing, DmaBuf, Doorbell, SubmissionRing};
use nvpoll_pci::{Function, Interrupt};
use nvpoll_spec::{NvmOpcode, Status, reg};
use protected::{IDLE_ENTRIES, Protected, host_protection};
use std::sync::Arc;
use trim::Ranges;

/// The queue pair that is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairOptions {
    /// I/Os in flight at once; their tags are 0 to `depth - 1`.
    pub depth: u16,
    /// Largest I/O in bytes, a multiple of the block size.
    pub io_bytes: u32,
    /// When doorbells are written.
    pub doorbells: DoorbellMode,
    /// Commands name their data by an SGL data block descriptor, not by PRPs.
    pub sgl: bool,
    /// Reads deliver blocks whose protection information is not right, too.
    pub unchecked: bool,
    /// What a write does.
    pub writes: WriteMode,
}

/// One I/O, in the namespace's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Read, Write or Flush.
    pub opcode: NvmOpcode,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks; at least one, and without meaning for Flush.
    pub blocks: u32,
}

/// A completion that was seen and is not taken yet.
#[derive(Clone, Copy, Debug)]
pub struct Posted(u64);

/// An I/O that was not sent, because it does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the I/O is outside the namespace or the queue's shape, or its tag is in flight")]
pub struct Rejected;

/// An I/O that is cut into pieces: how many are outstanding, and the first error among them.
#[derive(Clone, Copy)]
struct Pieces {
    left: u16,
    status: Status,
}

/// One SQ and one CQ, owned by one thread, with a buffer for each tag.
pub struct QueuePair<F: Function> {
    // Hot: read or written for each I/O.
    submissions: SubmissionRing,
    completions: CompletionRing,
    slots: Slots,
    /// An entry that says nothing but its namespace: its first word.
    blank: u64,
    /// An I/O of the full length is one command when it starts below this logical block.
    whole_lbas: u64,
    io_blocks_z: u64,
    /// Blocks of an I/O of the full length.
    io_blocks: u32,
    qid: u16,
    /// A slot is a tag, and doorbells are registers that are rung a batch at a time.
    is_plain: bool,
    rung: u32,
    tail: F::Doorbell,
    head: F::Doorbell,
    /// Doorbell writes so far; counted from the least number on where doorbells are written to memory first,
    /// so that the count says that as well.
    rings: i64,
    // Cold from here on; `pieces` and `owners` are empty where no I/O is cut.
    /// Most commands that an I/O of the full length is cut into.
    pieces_max: u16,
    doorbells: DoorbellMode,
    /// `whole_lbas` where each command has its doorbell; that one is 0 then.
    each_whole_lbas: u64,
    pieces: Box<[Pieces]>,
    /// By slot: the tag that it is a piece of.
    owners: Box<[u16]>,
    tags: u16,
    /// Most blocks that one command carries.
    piece_blocks: u32,
    blocks: u64,
    /// Bytes of a block's data, and of all that is in a buffer for it.
    block_bytes: u32,
    memory_bytes: u32,
    stride: usize,
    buffers: DmaBuf,
    pointers: Pointers,
    metadata: Option<MetadataLane>,
    /// Where the host makes protection information.
    host: Option<Box<Protected>>,
    /// Where writes deallocate.
    ranges: Option<Ranges>,
    writes: WriteMode,
    /// Where doorbells are written to memory first.
    shadow: Option<ShadowPair>,
    controller: Arc<Controller<F>>,
}

impl<F: Function> QueuePair<F> {
    /// Creates a queue pair on `namespace`.
    ///
    /// # Errors
    /// [`NvmeError::Limit`] when depth or I/O size do not fit the controller; otherwise when
    /// memory or queues have run out or the controller refuses.
    pub fn new(
        controller: &Arc<Controller<F>>,
        namespace: &Namespace,
        options: PairOptions,
    ) -> Result<Self, NvmeError> {
        let layout = Layout::new(controller, namespace, options)?;
        let qid = controller.take_queue_id()?;
        Self::build(controller, namespace, &layout, qid, options).map_err(|not_created| {
            // What the device may still hold is no free identifier.
            if not_created.device_let_go {
                controller.free_queue_id(qid);
            }
            not_created.error
        })
    }

    /// Most I/Os of `io_bytes` that one queue pair keeps in flight, by CAP.MQES and the identifiers.
    pub fn depth_max(controller: &Controller<F>, namespace: &Namespace, io_bytes: u32) -> u32 {
        let pieces = pieces_of(controller, namespace, io_bytes.max(1));
        (commands_max(controller) / pieces).min(u32::from(u16::MAX))
    }

    fn build(
        controller: &Arc<Controller<F>>,
        namespace: &Namespace,
        layout: &Layout,
        qid: u16,
        PairOptions { doorbells, sgl, unchecked, writes, .. }: PairOptions,
    ) -> Result<Self, NotCreated> {
        let Layout { tags, pieces_max, stride, entries, .. } = *layout;
        let buffers = controller.buffer(usize::from(tags) * stride)?;
        let allocate = |bytes| controller.buffer(bytes);
        let pointers = match sgl {
            true => Pointers::sgl(controller, &buffers)?,
            false => {
                let page_bytes = controller.page_bytes();
                Pointers::prp(&buffers, tags.into(), stride, page_bytes, allocate)?
            }
        };
        let metadata = namespace.metadata.map(|metadata| {
            MetadataLane::new(metadata, !unchecked, tags, layout.io_blocks, allocate)
        });
        let metadata = metadata.transpose()?;
        let protection =
            host_protection(namespace, layout, &buffers, metadata.as_ref(), !unchecked);
        let trims = writes == WriteMode::Deallocate;
        let ranges = trims.then(|| Ranges::new(controller, tags)).transpose()?;
        let unfit =
            || controller.limit(format!("a queue of {entries} entries does not fit its memory"));
        let ring = |entry_bytes: usize| controller.buffer(entries as usize * entry_bytes);
        let submissions = SubmissionRing::new(ring(64)?, entries).ok_or_else(unfit)?;
        let completions = CompletionRing::new(ring(16)?, entries).ok_or_else(unfit)?;
        let completions_iova = completions.iova();
        let (completions, host) = match protection {
            None => (completions, None),
            Some(protection) => {
                let idle = CompletionRing::new(
                    controller.buffer(16 * IDLE_ENTRIES as usize)?,
                    IDLE_ENTRIES,
                );
                let host = Box::new(Protected { protection, completions });
                (idle.ok_or_else(unfit)?, Some(host))
            }
        };
        let stride_bytes = controller.capabilities().doorbell_stride_bytes();
        let tail = controller.doorbell(reg::sq_tail_doorbell(qid, stride_bytes))?;
        let head = controller.doorbell(reg::cq_head_doorbell(qid, stride_bytes))?;
        let prps = (0..tags * pieces_max).map(|slot| layout.pointer(slot, &buffers, &pointers));
        let slots = Slots::new(qid, layout.slot_mask, prps);
        let cut = if pieces_max > 1 { tags } else { 0 };
        // Where a write is another one than usual, no I/O goes the short way.
        let is_usual = writes == WriteMode::Write;
        let whole_lbas = if is_usual { layout.whole_lbas(namespace) } else { 0 };
        let is_batch = doorbells == DoorbellMode::Batch;
        let shadow = controller.shadow_pair(qid);
        // The last step that can fail: from here on the device knows the memory, and dropping the
        // pair takes it back.
        let rings = ((entries, submissions.iova()), (entries, completions_iova));
        controller.create_queues(qid, rings.0, rings.1).inspect_err(|not_created| {
            if !not_created.device_let_go {
                controller.retire([submissions.memory(), completions.memory()]);
                controller.retire(host.as_ref().map(|host| host.completions.memory()));
            }
        })?;
        Ok(Self {
            submissions,
            completions,
            slots,
            blank: first_word(NvmOpcode::FLUSH, 0, namespace.nsid) | pointers.first_word(),
            whole_lbas: if is_batch { whole_lbas } else { 0 },
            io_blocks_z: blocks_z(layout.io_blocks),
            io_blocks: layout.io_blocks,
            qid,
            is_plain: is_batch && pieces_max == 1 && shadow.is_none(),
            rung: 0,
            tail,
            head,
            rings: if shadow.is_some() { i64::MIN } else { 0 },
            pieces_max,
            doorbells,
            each_whole_lbas: if is_batch { 0 } else { whole_lbas },
            pieces: vec![Pieces { left: 0, status: Status::SUCCESS }; cut.into()].into(),
            owners: (0..cut).flat_map(|tag| (0..pieces_max).map(move |_| tag)).collect(),
            tags,
            piece_blocks: layout.piece_blocks,
            blocks: namespace.blocks,
            block_bytes: namespace.block_bytes,
            memory_bytes: layout.memory_bytes,
            stride,
            buffers,
            pointers,
            metadata,
            host,
            ranges,
            writes,
            shadow,
            controller: Arc::clone(controller),
        })
    }

    /// Reads to or writes from the whole of `tag`'s buffer, from block `lba` on: an I/O of the full
    /// length, which is the usual one. The device sees nothing before [`kick`](Self::kick).
    ///
    /// # Errors
    /// [`Rejected`] as with [`push`](Self::push).
    #[inline(always)]
    pub fn push_whole(&mut self, tag: u16, opcode: NvmOpcode, lba: u64) -> Result<(), Rejected> {
        if lba >= self.whole_lbas || opcode == NvmOpcode::FLUSH {
            return self.push_other(tag, opcode, lba, self.io_blocks);
        }
        let prps = self.slots.idle(tag).ok_or(Rejected)?;
        self.store(tag, opcode, lba, self.io_blocks_z, prps);
        Ok(())
    }

    /// Stores `io`'s entry under `tag`, whose buffer its data goes to or comes from. The device
    /// sees nothing before [`kick`](Self::kick).
    ///
    /// # Errors
    /// [`Rejected`] when the I/O reaches beyond the namespace or the queue's I/O size, the tag is
    /// not below the depth, or its last I/O is still in flight; nothing was stored then.
    pub fn push(&mut self, tag: u16, io: Io) -> Result<(), Rejected> {
        self.push_other(tag, io.opcode, io.lba, io.blocks)
    }

    /// [`push`](Self::push), with scalars, which the hot path need not put in memory first.
    #[inline(never)]
    fn push_other(
        &mut self,
        tag: u16,
        opcode: NvmOpcode,
        lba: u64,
        blocks: u32,
    ) -> Result<(), Rejected> {
        match self.doorbells {
            DoorbellMode::Batch => self.push_any(tag, opcode, lba, blocks),
            DoorbellMode::Each => self.push_each(tag, opcode, lba, blocks),
        }
    }

    /// Stores the entries of any I/O.
    fn push_any(
        &mut self,
        tag: u16,
        opcode: NvmOpcode,
        lba: u64,
        blocks: u32,
    ) -> Result<(), Rejected> {
        if opcode == NvmOpcode::FLUSH {
            return self.push_flush(tag);
        }
        let inside = blocks.wrapping_sub(1) < self.io_blocks
            && lba.checked_add(u64::from(blocks)).is_some_and(|end| end <= self.blocks);
        if !inside {
            return Err(Rejected);
        }
        if self.ranges.is_some() && opcode == NvmOpcode::WRITE {
            return self.push_trim(tag, lba, blocks);
        }
        if self.pieces_max > 1 {
            return self.push_pieces(tag, Io { opcode, lba, blocks });
        }
        self.slots.idle(tag).ok_or(Rejected)?;
        self.store_part(tag, Io { opcode, lba, blocks }, tag, 0);
        Ok(())
    }

    /// Rings the tail doorbell once for all that was pushed since the last time.
    #[inline(always)]
    pub fn kick(&mut self) {
        let tail = self.submissions.tail();
        if tail != self.rung {
            self.rung = tail;
            self.rings += 1;
            if self.rings < 0 {
                return self.kick_shadow(tail);
            }
            self.tail.ring(tail);
        }
    }

    /// Doorbell writes so far, of both doorbells together.
    pub fn doorbell_writes(&self) -> u64 {
        (self.rings & i64::MAX).unsigned_abs()
    }

    /// Whether a completion is there to [`reap`](Self::reap).
    #[inline(always)]
    pub fn has_completion(&self) -> bool {
        let completions = self.host.as_ref().map_or(&self.completions, |host| &host.completions);
        completions.peek().is_some()
    }

    /// The completion that is next to [`reap_from`](Self::reap_from), if it is there: the shortest look.
    #[inline(always)]
    pub fn peek(&self) -> Option<Posted> {
        self.completions.peek().map(Posted)
    }

    /// Takes the completions that are there, at most a queue's worth, and reports each I/O that
    /// they complete with its tag; then rings the head doorbell once. Returns the I/Os reported.
    ///
    /// # Errors
    /// [`ProtocolError`] when a completion names no outstanding command: the run is void.
    #[inline(always)]
    pub fn reap(&mut self, sink: &mut impl FnMut(u16, Status)) -> Result<u32, ProtocolError> {
        match self.peek() {
            Some(first) => self.reap_from(first, sink),
            None => self.reap_protected(sink),
        }
    }

    /// [`reap`](Self::reap) after [`peek`](Self::peek) saw `first`, which is not looked at again.
    ///
    /// # Errors
    /// As of [`reap`](Self::reap).
    #[inline(always)]
    pub fn reap_from(
        &mut self,
        Posted(first): Posted,
        sink: &mut impl FnMut(u16, Status),
    ) -> Result<u32, ProtocolError> {
        if !self.is_plain {
            return self.reap_other(sink);
        }
        let Self { completions, slots, qid, .. } = self;
        let taken = completions.take_from(first, |upper| {
            let Some(tag) = slots.settle(upper) else { return Err(slots.stray(*qid, upper)) };
            sink(tag, Status::from_entry((upper >> 48) as u16));
            Ok(())
        })?;
        self.rings += 1;
        self.head.ring(completions.head());
        Ok(taken)
    }

    /// Most commands that one I/O of the full length is cut into.
    pub fn pieces_max(&self) -> u16 {
        self.pieces_max
    }

    /// Copies `data` to the start of `tag`'s buffer, cut at the buffer's end.
    pub fn fill(&mut self, tag: u16, data: &[u8]) {
        for (offset, part) in self.blocks_of(tag).zip(data.chunks(self.part_bytes())) {
            self.buffers.write(offset, part);
        }
    }

    /// Copies the start of `tag`'s buffer to `data`, cut at the buffer's end.
    pub fn copy_out(&self, tag: u16, data: &mut [u8]) {
        for (offset, part) in self.blocks_of(tag).zip(data.chunks_mut(self.part_bytes())) {
            self.buffers.read(offset, part);
        }
    }

    /// Bytes of data that stand in one piece in a buffer: all, unless metadata comes in between.
    fn part_bytes(&self) -> usize {
        let is_whole = self.memory_bytes == self.block_bytes;
        if is_whole { self.stride } else { self.block_bytes as usize }
    }

    /// Where each such piece of `tag`'s buffer begins.
    fn blocks_of(&self, tag: u16) -> impl Iterator<Item = usize> + use<F> {
        let is_whole = self.memory_bytes == self.block_bytes;
        let step = if is_whole { self.stride } else { self.memory_bytes as usize };
        let parts = if is_whole { 1 } else { self.io_blocks as usize };
        let (exists, start) = (tag < self.tags, usize::from(tag) * self.stride);
        (0..parts).take_while(move |_| exists).map(move |part| start + part * step)
    }

    /// One look at the controller's health, for a caller that has polled in vain for long.
    ///
    /// # Errors
    /// When the device is gone or reports a fatal error.
    #[cold]
    pub fn check(&self) -> Result<(), NvmeError> {
        self.controller.check()
    }

    /// What to sleep on until a completion comes, where the controller was opened for that.
    pub fn interrupt(&self) -> Option<&Interrupt> {
        self.controller.interrupt(self.qid)
    }

    /// Where the controller is, for messages.
    pub fn location(&self) -> &str {
        self.controller.location()
    }

    /// Marks `slot` outstanding and stores its entry. The slot is one of this queue's.
    #[inline(always)]
    fn store(&mut self, slot: u16, opcode: NvmOpcode, lba: u64, blocks_z: u64, prps: (u64, u64)) {
        let Some(cid) = self.slots.begin(slot) else { return };
        let (prp1, prp2) = prps;
        let words = [self.blank | first_word(opcode, cid, 0), 0, 0, prp1, prp2, lba, blocks_z, 0];
        debug_assert_eq!(words, {
            let nsid = (self.blank >> 32) as u32;
            let io = nvpoll_spec::SubmissionEntry::io(opcode, nsid, lba, blocks_z as u16);
            let flags = (self.blank >> 8) as u8;
            let cdw12 = io.cdw12 | self.writes.cdw12(opcode);
            nvpoll_spec::SubmissionEntry { flags, cid, prp1, prp2, cdw12, ..io }.to_words()
        });
        self.submissions.push(words);
    }

    /// A flush has no data, no range, and is never cut.
    #[cold]
    fn push_flush(&mut self, tag: u16) -> Result<(), Rejected> {
        let slot = tag.checked_mul(self.pieces_max).ok_or(Rejected)?;
        if self.pieces_max > 1 {
            self.begin(tag, 1)?;
        } else {
            self.slots.idle(slot).ok_or(Rejected)?;
        }
        let Some(cid) = self.slots.begin(slot) else { return Err(Rejected) };
        let nsid = (self.blank >> 32) as u32;
        self.submissions.push([first_word(NvmOpcode::FLUSH, cid, nsid), 0, 0, 0, 0, 0, 0, 0]);
        Ok(())
    }

    /// Cuts an I/O into as few pieces as carry it, of lengths that differ by at most one block.
    fn push_pieces(&mut self, tag: u16, io: Io) -> Result<(), Rejected> {
        let first = tag.checked_mul(self.pieces_max).ok_or(Rejected)?;
        let count = io.blocks.div_ceil(self.piece_blocks);
        self.begin(tag, count as u16)?;
        let (each, longer) = (io.blocks / count, io.blocks % count);
        let mut done = 0;
        for piece in 0..count {
            let blocks = each + u32::from(piece < longer);
            let part = Io { opcode: io.opcode, lba: io.lba + u64::from(done), blocks };
            self.store_part(first + piece as u16, part, tag, done);
            done += blocks;
        }
        Ok(())
    }

    /// Takes `tag` for an I/O of `count` pieces. It is in flight until the last piece of its I/O
    /// completed, although the slots of the others are idle by then.
    fn begin(&mut self, tag: u16, count: u16) -> Result<(), Rejected> {
        let pieces = self.pieces.get_mut(usize::from(tag)).ok_or(Rejected)?;
        if pieces.left != 0 {
            return Err(Rejected);
        }
        *pieces = Pieces { left: count, status: Status::SUCCESS };
        Ok(())
    }

    /// Stores the entry of any part of an I/O: its data begins with block `first` of `tag`'s buffer.
    fn store_part(&mut self, slot: u16, part: Io, tag: u16, first: u32) {
        let Io { opcode, lba, blocks } = part;
        let offset = first as usize * self.memory_bytes as usize;
        let bytes = blocks as usize * self.memory_bytes as usize;
        let prps = self.pointers.words(&self.buffers, self.stride, usize::from(tag), offset, bytes);
        let length = blocks_z(blocks) | u64::from(self.writes.cdw12(opcode));
        let Some(metadata) = &self.metadata else {
            return self.store(slot, opcode, lba, length, prps);
        };
        let [cdw3, mptr, cdw12, cdw14] = metadata.words(opcode, tag, first, lba);
        let Some(cid) = self.slots.begin(slot) else { return };
        match &mut self.host {
            Some(host) if opcode == NvmOpcode::WRITE => {
                host.protection.protect(tag, first, lba, blocks)
            }
            Some(host) => host.protection.begin_read(tag, first, lba, blocks),
            None => {}
        }
        let (start, length) = (self.blank | first_word(opcode, cid, 0), length | cdw12);
        self.submissions.push([start, cdw3, mptr, prps.0, prps.1, lba, length, cdw14]);
    }
}

impl Pieces {
    /// Counts a piece down; with the last one the I/O has ended, by the first error among all.
    fn end_one(&mut self, status: Status) -> Option<Status> {
        if self.status.is_success() {
            self.status = status;
        }
        self.left = self.left.saturating_sub(1);
        (self.left == 0).then_some(self.status)
    }
}

/// NLB in CDW12 (§6.9): zero-based, and 16 bits are enough for any command.
fn blocks_z(blocks: u32) -> u64 {
    u64::from(blocks.wrapping_sub(1) as u16)
}

/// The first word of an I/O command's entry (§4.2, Figure 104): opcode, no flags, CID, namespace.
#[inline(always)]
fn first_word(opcode: NvmOpcode, cid: u16, nsid: u32) -> u64 {
    u64::from(nsid) << 32 | u64::from(cid) << 16 | u64::from(opcode.0)
}

impl<F: Function> Drop for QueuePair<F> {
    fn drop(&mut self) {
        let deleted = self.controller.delete_queues(self.qid);
        let Err(error) = deleted else {
            return self.controller.free_queue_id(self.qid);
        };
        // The device may still reach this memory: it is kept until the device is disabled, and the
        // identifier stays taken.
        tracing::warn!("taking back queue pair {}: {error}", self.qid);
        self.controller.retire([&self.buffers, self.submissions.memory()]);
        self.controller.retire([self.completions.memory()]);
        self.controller.retire(self.host.as_ref().map(|host| host.completions.memory()));
        self.controller.retire(self.pointers.memory());
        self.controller.retire(self.metadata.as_ref().and_then(MetadataLane::memory));
        self.controller.retire(self.ranges.as_ref().map(Ranges::memory));
    }
}

impl<F: Function> std::fmt::Debug for QueuePair<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (qid, tags) = (self.qid, self.tags);
        write!(f, "QueuePair({qid} of {}, {tags} tags)", self.controller.location())
    }
}
