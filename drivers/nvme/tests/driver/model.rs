//! What the driver should do, worked out from the specification and not from the driver: which
//! commands an I/O becomes, where their data lies, and what the blocks hold afterwards.

use crate::beside::Beside;
use crate::spy::Log;
use crate::support::*;
use nvpoll_mem::Registers;
use nvpoll_nvme::{DoorbellMode, Io, Rejected};
use nvpoll_soft::{FaultAction, FaultRule, SoftController};
use nvpoll_spec::{ControllerConfiguration, NvmOpcode, SubmissionEntry, reg};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What MDTS is given in by the soft controller's option.
const MDTS_UNIT: u64 = 4096;
/// The driver's own limit on a command's data.
const OWN_BYTES_MAX: u64 = 1 << 20;

/// Blocks of the longest command: MDTS, the driver's own limit, and NLB's sixteen bits.
pub fn command_blocks_max(block_bytes: u32, mdts_log2: u8) -> u32 {
    let mdts = if mdts_log2 == 0 { u64::MAX } else { MDTS_UNIT << mdts_log2 };
    (mdts.min(OWN_BYTES_MAX) / u64::from(block_bytes)).min(65_536) as u32
}

/// The address of a command's data, which has to be contiguous, because each tag's buffer is. It is
/// named by an SGL data block where PSDT is 01b (§4.4), by PRPs where it is 00b.
pub fn data_address(log: &Log, entry: &SubmissionEntry, bytes: u64, page_bytes: u64) -> u64 {
    if entry.flags >> 6 == 1 {
        assert_eq!(entry.prp2, bytes, "the block's length, and type and subtype 0");
        log.find(entry.prp1, bytes as usize);
        return entry.prp1;
    }
    assert_eq!(entry.flags, 0);
    prp_address(log, entry, bytes, page_bytes)
}

/// Walks a command's PRPs as a controller does (§4.3), in pages of CC.MPS.
fn prp_address(log: &Log, entry: &SubmissionEntry, bytes: u64, page_bytes: u64) -> u64 {
    let (prp1, prp2) = (entry.prp1, entry.prp2);
    assert_eq!(prp1 % 4, 0, "PRP1 {prp1:#x}");
    let mut next = prp1 + (bytes.min(page_bytes - prp1 % page_bytes));
    let mut left = bytes - (next - prp1);
    if left == 0 {
        assert_eq!(prp2, 0, "PRP2 where the data ends in PRP1's page");
    } else if left <= page_bytes {
        assert_eq!(prp2, next, "the second page");
    } else {
        let mut at = prp2;
        assert_eq!(at % 8, 0, "the list's address");
        while left > 0 {
            let last_in_page = at % page_bytes == page_bytes - 8;
            let mut page = log.word(at);
            at += 8;
            if last_in_page && left > page_bytes {
                assert_eq!(page % page_bytes, 0, "a pointer to the rest of the list");
                at = page + 8;
                page = log.word(page);
            }
            assert_eq!(page, next, "a page of the list");
            next += left.min(page_bytes);
            left = left.saturating_sub(page_bytes);
        }
    }
    log.find(prp1, bytes as usize);
    prp1
}

/// A tag: what its buffer should hold, where it turned out to be, and what is in flight.
struct Tag {
    buffer: Vec<u8>,
    /// What is in its memory for metadata, block by block.
    metadata: Vec<u8>,
    address: Option<u64>,
    metadata_address: Option<u64>,
    flight: Option<(Io, Vec<u16>)>,
}

/// A queue pair, and beside it what its part of the namespace should hold.
pub struct Model {
    pub pair: Pair,
    pub random: Random,
    /// I/Os that were reported.
    pub reported: u64,
    /// Commands that they took.
    pub commands: u64,
    log: Arc<Log>,
    soft: Arc<SoftController>,
    queue: u16,
    is_each: bool,
    is_sgl: bool,
    blocks: Range<u64>,
    block_bytes: u64,
    io_blocks: u32,
    command_blocks_max: u32,
    /// What the device was told that a memory page is.
    page_bytes: u64,
    image: Vec<u8>,
    beside: Beside,
    /// The metadata that the blocks should have.
    metadata: Vec<u8>,
    tags: Vec<Tag>,
    pushed: VecDeque<u16>,
    outstanding: BTreeSet<u16>,
}

impl Model {
    /// Over a new queue pair, the bench's `queue`th, that alone touches `blocks`, which are zero.
    pub fn new(
        bench: &Bench,
        queue: u16,
        (depth, io_blocks): (u16, u32),
        blocks: Range<u64>,
        random: Random,
    ) -> Self {
        let block_bytes = u64::from(bench.namespace.block_bytes);
        let beside = Beside::new(bench.soft.options(), bench.by_host);
        let cc = ControllerConfiguration::from_bits(bench.soft.read32(reg::CC).unwrap());
        let page_bytes = 4096 << cc.page_size();
        let io_bytes = u64::from(io_blocks) * block_bytes;
        // Between blocks' data, and behind the last, nothing is the caller's.
        let whole = io_bytes.next_multiple_of(page_bytes);
        let stride = if beside.between() == 0 { whole } else { io_bytes } as usize;
        let tag = || Tag {
            buffer: vec![0; stride],
            metadata: vec![0; io_blocks as usize * beside.crossing()],
            address: None,
            metadata_address: None,
            flight: None,
        };
        let memory_bytes = bench.namespace.block_bytes + beside.between() as u32;
        let all = (blocks.end - blocks.start) as usize;
        let mdts = bench.soft.options().mdts_log2;
        Self {
            pair: bench.pair(depth, io_blocks),
            random,
            reported: 0,
            commands: 0,
            log: Arc::clone(&bench.log),
            soft: Arc::clone(&bench.soft),
            queue,
            is_each: bench.doorbells == DoorbellMode::Each,
            is_sgl: bench.sgl,
            image: vec![0; ((blocks.end - blocks.start) * block_bytes) as usize],
            blocks,
            block_bytes,
            io_blocks,
            command_blocks_max: command_blocks_max(memory_bytes, mdts),
            page_bytes,
            metadata: beside.unwritten().repeat(all),
            beside,
            tags: (0..depth).map(|_| tag()).collect(),
            pushed: VecDeque::new(),
            outstanding: BTreeSet::new(),
        }
    }

    /// `steps` times something at random, then the check of everything.
    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.random.below(16) {
                0..10 => self.push_some(),
                10..12 => self.push_what_is_rejected(),
                12..15 => self.reap(),
                _ => self.kick(),
            }
        }
        self.drain();
        self.read_all();
        for tag in 0..self.tags.len() {
            self.check_buffer(tag as u16);
        }
    }

    fn idle(&self) -> Vec<u16> {
        let idle = |tag: &u16| self.tags[usize::from(*tag)].flight.is_none();
        (0..self.tags.len() as u16).filter(idle).collect()
    }

    fn push_some(&mut self) {
        for _ in 0..=self.random.below(4) {
            let idle = self.idle();
            if idle.is_empty() {
                return self.wait_for_one();
            }
            let tag = idle[self.random.below(idle.len() as u64) as usize];
            let opcode = match self.random.below(20) {
                0 => NvmOpcode::FLUSH,
                1..10 => NvmOpcode::READ,
                _ => NvmOpcode::WRITE,
            };
            let io = self.random_io(opcode);
            if self.is_free(&io) {
                self.push(tag, io);
            }
        }
    }

    /// Half of them of the full length, the others shorter.
    fn random_io(&mut self, opcode: NvmOpcode) -> Io {
        let all = self.blocks.end - self.blocks.start;
        let blocks = match self.random.below(4) {
            0 => 1 + self.random.below(self.io_blocks.into()),
            1 => 1,
            _ => self.io_blocks.into(),
        };
        let blocks = blocks.min(all);
        let lba = self.blocks.start + self.random.below(all - blocks + 1);
        Io { opcode, lba, blocks: blocks as u32 }
    }

    /// Whether nothing in flight would race with `io`: the outcome would be the device's to choose.
    fn is_free(&self, io: &Io) -> bool {
        let touches = |other: &Io| {
            let both_read = io.opcode == NvmOpcode::READ && other.opcode == NvmOpcode::READ;
            let flush = io.opcode == NvmOpcode::FLUSH || other.opcode == NvmOpcode::FLUSH;
            let apart = io.lba + u64::from(io.blocks) <= other.lba
                || other.lba + u64::from(other.blocks) <= io.lba;
            !both_read && !flush && !apart
        };
        !self.tags.iter().any(|tag| tag.flight.as_ref().is_some_and(|(other, _)| touches(other)))
    }

    fn place(&self, io: &Io) -> Range<usize> {
        let start = (io.lba - self.blocks.start) * self.block_bytes;
        start as usize..(start + u64::from(io.blocks) * self.block_bytes) as usize
    }

    /// Pushes an I/O that has to be taken.
    fn push(&mut self, tag: u16, io: Io) {
        let place = self.place(&io);
        let state = &mut self.tags[usize::from(tag)];
        let length = place.len();
        if io.opcode == NvmOpcode::WRITE {
            self.random.fill(&mut state.buffer[..length]);
            self.pair.fill(tag, &state.buffer[..length]);
            self.image[place].copy_from_slice(&state.buffer[..length]);
            self.write_metadata(tag, &io);
        } else if io.opcode == NvmOpcode::READ {
            // What the read leaves alone has to keep this.
            self.random.fill(&mut state.buffer);
            self.pair.fill(tag, &state.buffer);
            state.buffer[..length].copy_from_slice(&self.image[place]);
            let (each, start) = (self.beside.crossing(), (io.lba - self.blocks.start) as usize);
            let bytes = io.blocks as usize * each;
            let from = &self.metadata[start * each..][..bytes];
            state.metadata[..bytes].copy_from_slice(from);
        }
        let state = &mut self.tags[usize::from(tag)];
        state.flight = Some((io, Vec::new()));
        let whole = io.blocks == self.io_blocks && !self.random.one_in(4);
        let pushed = match whole {
            true => self.pair.push_whole(tag, io.opcode, io.lba),
            false => self.pair.push(tag, io),
        };
        assert_eq!(pushed, Ok(()), "tag {tag}, {io:?}");
        self.pushed.push_back(tag);
        if self.is_each {
            // The device has it by now, and may have completed it.
            self.check_sent();
        }
    }

    /// What a write leaves beside its blocks: what the tag's memory holds, and in it the tuples.
    fn write_metadata(&mut self, tag: u16, io: &Io) {
        let (beside, each) = (self.beside, self.beside.bytes());
        if each == 0 {
            return;
        }
        for index in 0..io.blocks as usize {
            let lba = io.lba + index as u64;
            let at = (lba - self.blocks.start) as usize;
            let metadata = &mut self.metadata[at * each..][..each];
            let data = &self.image[at * beside.block_bytes..][..beside.block_bytes];
            if beside.crossing() == 0 {
                metadata.fill(0);
                beside.protect(data, metadata, lba);
                continue;
            }
            let memory = &mut self.tags[usize::from(tag)].metadata[index * each..][..each];
            metadata.copy_from_slice(memory);
            beside.protect(data, metadata, lba);
            if beside.by_host {
                memory.copy_from_slice(metadata);
            }
        }
    }

    /// None of these may leave a trace: the next commands that the device sees are compared.
    fn push_what_is_rejected(&mut self) {
        let depth = self.tags.len() as u16;
        let end = self.blocks.end;
        let good = self.random_io(NvmOpcode::WRITE);
        let idle = self.idle();
        let busy: Vec<u16> = (0..depth).filter(|tag| !idle.contains(tag)).collect();
        let pick = |random: &mut Random, tags: &[u16]| {
            (!tags.is_empty()).then(|| tags[random.below(tags.len() as u64) as usize])
        };
        let busy = pick(&mut self.random, &busy);
        let idle = pick(&mut self.random, &idle);
        let mut tries = vec![(depth, good), (u16::MAX, good), (depth, FLUSH), (u16::MAX, FLUSH)];
        if let Some(tag) = busy {
            tries.extend([(tag, good), (tag, read(good.lba, 1)), (tag, FLUSH)]);
        }
        // Only the last part of the namespace ends where the namespace does.
        let is_last = self.soft.options().size_bytes == end * self.block_bytes;
        if let Some(tag) = idle {
            tries.extend([
                (tag, write(self.blocks.start, 0)),
                (tag, write(self.blocks.start, self.io_blocks + 1)),
                (tag, read(u64::MAX, 1)),
                (tag, read(u64::MAX - 1, self.io_blocks)),
                (tag, write(self.blocks.start, u32::MAX)),
            ]);
            if is_last {
                tries.extend([(tag, read(end, 1)), (tag, write(end - 1, 2.max(self.io_blocks)))]);
            }
        }
        for (tag, io) in tries {
            assert_eq!(self.pair.push(tag, io), Err(Rejected), "tag {tag}, {io:?}");
            // Of the full length, it may be one that fits.
            let all = self.soft.options().size_bytes / self.block_bytes;
            let end = io.lba.checked_add(self.io_blocks.into());
            let fits = idle == Some(tag) && end.is_some_and(|end| end <= all);
            if !fits {
                let pushed = self.pair.push_whole(tag, io.opcode, io.lba);
                assert_eq!(pushed, Err(Rejected), "tag {tag}, whole, {io:?}");
            }
        }
    }

    /// Lets the device hold some of the next completions back, so that they come in another order.
    fn disturb(&mut self) {
        for _ in 0..self.random.below(3) {
            let action = if self.soft.options().stepped {
                FaultAction::Defer(self.random.below(6) as u32)
            } else {
                FaultAction::Delay(Duration::from_micros(self.random.below(100)))
            };
            let nth = 1 + self.random.below(8);
            self.soft.faults().add(FaultRule::all(action).on_queue(self.queue).only_nth(nth));
        }
    }

    fn kick(&mut self) {
        self.disturb();
        self.pair.kick();
        self.check_sent();
    }

    fn check_sent(&mut self) {
        let mut sent: VecDeque<_> = self.log.take_commands(self.queue).into();
        while let Some(tag) = self.pushed.pop_front() {
            self.check_commands(tag, &mut sent);
        }
        assert!(sent.is_empty(), "commands that nobody pushed: {sent:x?}");
    }

    /// Takes the commands of `tag`'s I/O from the front of what was sent.
    fn check_commands(&mut self, tag: u16, sent: &mut VecDeque<SubmissionEntry>) {
        let state = &mut self.tags[usize::from(tag)];
        let (io, cids) = state.flight.as_mut().unwrap();
        let is_flush = io.opcode == NvmOpcode::FLUSH;
        let count = if is_flush { 1 } else { io.blocks.div_ceil(self.command_blocks_max) };
        let each = io.blocks / count;
        let mut done = 0;
        for _ in 0..count {
            let entry = sent.pop_front().expect("a command that was pushed is not sent");
            self.commands += 1;
            assert_ne!(entry.cid, 0xffff, "a CID that means no command");
            assert!(self.outstanding.insert(entry.cid), "CID {:#x} is outstanding", entry.cid);
            cids.push(entry.cid);
            assert_eq!((entry.opcode, entry.nsid), (io.opcode.0, 1));
            let reserved = [entry.cdw2[0], entry.cdw2[1], entry.cdw13, entry.cdw15];
            let flags = if self.is_sgl && !is_flush { 0x40 } else { 0 };
            let high = if is_flush { 0 } else { self.beside.high(entry.lba()) };
            assert_eq!((reserved, entry.flags), ([0, high, 0, 0], flags));
            if is_flush {
                assert_eq!((entry.prp1, entry.prp2), (0, 0));
                assert_eq!((entry.cdw10, entry.cdw11, entry.cdw12), (0, 0, 0));
                assert_eq!((entry.mptr, entry.cdw14), (0, 0));
                continue;
            }
            let (protection, reference) = self.beside.words(io.opcode, entry.lba());
            assert_eq!(entry.cdw12 & !0xffff, protection, "FUA, limited retry, protection");
            assert_eq!(entry.cdw14, reference, "the reference tag");
            let blocks = u32::from(entry.blocks_z()) + 1;
            assert!((each..=each + 1).contains(&blocks), "{blocks} of {io:?} in {count}");
            assert!(blocks <= self.command_blocks_max);
            assert_eq!(entry.lba(), io.lba + u64::from(done));
            let memory_bytes = self.block_bytes + self.beside.between() as u64;
            let bytes = u64::from(blocks) * memory_bytes;
            let address = data_address(&self.log, &entry, bytes, self.page_bytes)
                - u64::from(done) * memory_bytes;
            assert_eq!(*state.address.get_or_insert(address), address, "the tag's own buffer");
            let each = self.beside.separate() as u64;
            let address = if each == 0 {
                entry.mptr
            } else {
                self.log.find(entry.mptr, blocks as usize * each as usize);
                entry.mptr - u64::from(done) * each
            };
            assert_eq!(address % 4, 0, "MPTR {:#x}", entry.mptr);
            assert_eq!(address == 0, each == 0, "MPTR where there is metadata beside the data");
            let known = *state.metadata_address.get_or_insert(address);
            assert_eq!(known, address, "the tag's own metadata");
            done += blocks;
        }
        assert!(is_flush || done == io.blocks, "{done} of {io:?} in {count}");
    }

    fn reap(&mut self) {
        let reaped = reap(&mut self.pair);
        for &(tag, status) in &reaped {
            assert!(status.is_success(), "tag {tag}: {status}");
            let flight = self.tags[usize::from(tag)].flight.take();
            let (_, cids) = flight.unwrap_or_else(|| panic!("tag {tag} is reported twice"));
            assert!(!cids.is_empty(), "tag {tag} is reported before it was sent");
            for cid in cids {
                self.outstanding.remove(&cid);
            }
            self.check_buffer(tag);
            self.reported += 1;
        }
        if reaped.is_empty() {
            // A device with a thread of its own may be waiting for this processor.
            std::thread::yield_now();
            if self.random.one_in(4) {
                self.soft.release_held();
            }
        }
    }

    fn check_buffer(&mut self, tag: u16) {
        let expected = &self.tags[usize::from(tag)].buffer;
        let mut found = vec![0; expected.len()];
        self.pair.copy_out(tag, &mut found);
        if found != *expected {
            let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap();
            panic!(
                "tag {tag}: byte {at} of its buffer is {:#x}, not {:#x}",
                found[at], expected[at]
            );
        }
        self.check_metadata(tag);
    }

    /// The tag's memory for metadata, as the device left it.
    fn check_metadata(&self, tag: u16) {
        let state = &self.tags[usize::from(tag)];
        let each = self.beside.crossing();
        let addresses = (state.address, state.metadata_address);
        let (Some(address), Some(metadata_address), true) = (addresses.0, addresses.1, each > 0)
        else {
            return;
        };
        for (index, expected) in state.metadata.chunks_exact(each).enumerate() {
            let at = if self.beside.format.interleaved {
                let step = self.block_bytes + each as u64;
                address + index as u64 * step + self.block_bytes
            } else {
                metadata_address + (index * each) as u64
            };
            let words = (0..each as u64 / 8).map(|word| self.log.word(at + 8 * word));
            let found: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            assert!(found == expected, "tag {tag}, metadata {index}: {found:x?}, {expected:x?}");
        }
    }

    /// Reaps until `done`, which takes an end.
    fn reap_until(&mut self, done: impl Fn(&Self) -> bool) {
        self.kick();
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "only these tags are idle: {:?}", self.idle());
            self.reap();
        }
    }

    fn wait_for_one(&mut self) {
        let before = self.reported;
        self.reap_until(|model| model.reported > before);
    }

    fn drain(&mut self) {
        self.reap_until(|model| model.tags.iter().all(|tag| tag.flight.is_none()));
    }

    /// Reads all blocks.
    fn read_all(&mut self) {
        let mut lba = self.blocks.start;
        while lba < self.blocks.end {
            let blocks = u64::from(self.io_blocks).min(self.blocks.end - lba) as u32;
            self.push(0, read(lba, blocks));
            self.drain();
            lba += u64::from(blocks);
        }
    }
}
