//! Content that is written to be checked: what each block of a worker holds, and whether it does.
//!
//! A worker has its blocks to itself, and never two operations on one of them at once, so that what a
//! block holds is known at any time. Where I/Os differ in size a block is of the smallest, and an I/O has
//! several: each has a content of its own, and an I/O waits while any of its blocks is in use.

use super::control::Control;
use super::drive::not_in_flight;
use super::window::limits;
use crate::measure::Recorder;
use crate::workload::{Generator, Stamp, Workload};
use nvpoll_engine::{EngineError, IoStatus, Operation, OperationKind, Queue, Tag, Wait};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Instant;

/// Most blocks that are kept account of, over all workers: five bytes each.
pub(super) const BLOCKS_MAX: u64 = 1 << 28;

/// Wrong blocks that are described.
const FIRST_MAX: usize = 4;

/// A bit of a block's generation: a write of it failed, and what it holds is not known.
const UNKNOWN: u32 = 1 << 31;

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Blocks that were read and held against what was written.
    pub checked: u64,
    /// Of them, those that were not it.
    pub wrong: u64,
    /// Blocks that were written and not read back, because a stop was asked for.
    pub not_read: u64,
    /// Which and how: the first wrong ones.
    pub first: Vec<String>,
}

impl Verified {
    /// Adds what another worker checked.
    pub fn merge(&mut self, other: &Self) {
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.not_read += other.not_read;
        let room = FIRST_MAX.saturating_sub(self.first.len());
        self.first.extend(other.first.iter().take(room).cloned());
    }

    /// What is wrong, in words; `None` where nothing is.
    pub fn sentence(&self) -> Option<String> {
        let first = self.first.first()?;
        let Self { checked, wrong, .. } = self;
        Some(format!(
            "wrong data: {wrong} of {checked} blocks that were checked; the first: {first}"
        ))
    }
}

/// One worker's account.
pub(super) struct Verifier {
    run: u64,
    offset_bytes: u64,
    /// Of the smallest I/O, of which all others are multiples.
    block_bytes: u32,
    /// How often each block was written; 0: never by this run.
    generations: Box<[u32]>,
    busy: Box<[bool]>,
    /// Nothing is written: a block must be what some earlier run wrote there.
    only_reads: bool,
    scratch: Vec<u8>,
    pub(super) seen: Verified,
}

impl Verifier {
    /// For the operations of `generator`; `run` tells this run's content from others'.
    pub(super) fn new(workload: &Workload, generator: &Generator, run: u64) -> Self {
        let (offset_bytes, blocks) = generator.stretch();
        // As many as were checked against the limit.
        let blocks = blocks.min(BLOCKS_MAX) as usize;
        Self {
            run,
            offset_bytes,
            block_bytes: workload.unit_bytes().max(1),
            generations: vec![0; blocks].into(),
            busy: vec![false; blocks].into(),
            only_reads: !workload.rw.writes(),
            scratch: vec![0; workload.bs_bytes as usize],
            seen: Verified::default(),
        }
    }

    fn block_of(&self, offset: u64) -> usize {
        let blocks = offset.wrapping_sub(self.offset_bytes) / u64::from(self.block_bytes);
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    fn offset_of(&self, block: usize) -> u64 {
        self.offset_bytes.wrapping_add((block as u64).wrapping_mul(self.block_bytes.into()))
    }

    /// The blocks of an I/O of `bytes` at `offset`; `None` where they are not the worker's.
    fn blocks_of(&self, offset: u64, bytes: u32) -> Option<Range<usize>> {
        let first = self.block_of(offset);
        let count = bytes.div_ceil(self.block_bytes).max(1) as usize;
        let blocks = first..first.checked_add(count)?;
        (blocks.end <= self.busy.len()).then_some(blocks)
    }

    /// Makes `tag`'s buffer ready for `operation`; false: one of its blocks is in use, so it has to wait.
    pub(super) fn prepare<Q: Queue>(
        &mut self,
        queue: &mut Q,
        tag: Tag,
        operation: &Operation,
    ) -> bool {
        if operation.kind == OperationKind::Flush {
            return true;
        }
        let Some(blocks) = self.blocks_of(operation.offset, operation.bytes) else { return true };
        let (Some(busy), Some(generations), Some(content)) = (
            self.busy.get_mut(blocks.clone()),
            self.generations.get_mut(blocks),
            self.scratch.get_mut(..operation.bytes as usize),
        ) else {
            return true;
        };
        if busy.contains(&true) {
            return false;
        }
        busy.fill(true);
        if operation.kind == OperationKind::Write {
            let parts = content.chunks_mut(self.block_bytes as usize).zip(generations);
            for (index, (part, generation)) in (0_u64..).zip(parts) {
                *generation = ((*generation & !UNKNOWN) + 1).min(UNKNOWN - 1);
                let before = index.wrapping_mul(self.block_bytes.into());
                let offset = operation.offset.wrapping_add(before);
                Stamp { offset, generation: u64::from(*generation), run: self.run }.write(part);
            }
        } else {
            // What the buffer held before must not pass for what was read.
            content.fill(0xa5);
        }
        queue.fill(tag, content);
        true
    }

    /// An operation of `tag` is over.
    pub(super) fn done<Q: Queue>(
        &mut self,
        queue: &Q,
        tag: Tag,
        operation: &Operation,
        is_ok: bool,
    ) {
        let Operation { kind, offset, bytes } = *operation;
        if kind == OperationKind::Flush {
            return;
        }
        let Some(blocks) = self.blocks_of(offset, bytes) else { return };
        if let Some(busy) = self.busy.get_mut(blocks.clone()) {
            busy.fill(false);
        }
        match (kind, is_ok) {
            (OperationKind::Write, false) => {
                let written = self.generations.get_mut(blocks).unwrap_or_default();
                written.iter_mut().for_each(|generation| *generation |= UNKNOWN);
            }
            (OperationKind::Read, true) => self.check(queue, tag, blocks, bytes),
            _ => {}
        }
    }

    /// Holds what `tag` read of `blocks` against what they should be.
    fn check<Q: Queue>(&mut self, queue: &Q, tag: Tag, blocks: Range<usize>, bytes: u32) {
        let first_offset = self.offset_of(blocks.start);
        let Self { generations, scratch, only_reads, block_bytes, run, seen, .. } = self;
        let (Some(generations), Some(content)) =
            (generations.get(blocks), scratch.get_mut(..bytes as usize))
        else {
            return;
        };
        let is_known = |generation: u32| (1..UNKNOWN).contains(&generation);
        if !*only_reads && !generations.iter().any(|generation| is_known(*generation)) {
            return;
        }
        queue.copy_out(tag, content);
        let parts = content.chunks(*block_bytes as usize).zip(generations);
        for (index, (part, generation)) in (0_u64..).zip(parts) {
            let offset = first_offset.wrapping_add(index.wrapping_mul((*block_bytes).into()));
            let checked = match (is_known(*generation), *only_reads) {
                (true, _) => {
                    Stamp { offset, generation: (*generation).into(), run: *run }.check(part)
                }
                (false, true) => Stamp::check_any(part, offset),
                (false, false) => continue,
            };
            seen.checked += 1;
            let Err(wrong) = checked else { continue };
            seen.wrong += 1;
            if seen.first.len() < FIRST_MAX {
                let bytes = *block_bytes;
                seen.first.push(format!("the block of {bytes} bytes at byte {offset} {wrong}"));
            }
        }
    }

    /// Reads every block that was written, and checks it. Nothing is in flight before and after.
    ///
    /// # Errors
    /// When the engine fails, or completes nothing for [`limits::STALL`].
    pub(super) fn read_back<Q: Queue>(
        &mut self,
        queue: &mut Q,
        depth: u16,
        control: &Control,
        recorder: &mut Recorder,
    ) -> Result<(), EngineError> {
        let mut idle: Vec<Tag> = (0..depth).map(Tag).collect();
        let mut reads: Vec<u64> = vec![0; depth.into()];
        let mut done: Vec<(Tag, IoStatus)> = Vec::with_capacity(depth.into());
        let (mut block, mut last) = (0, Instant::now());
        loop {
            while let Some(tag) = idle.pop() {
                let Some(next) = self.written_from(block).filter(|_| !control.is_stopped()) else {
                    idle.push(tag);
                    break;
                };
                block = next + 1;
                let offset = self.offset_of(next);
                let read = Operation { kind: OperationKind::Read, offset, bytes: self.block_bytes };
                self.prepare(queue, tag, &read);
                *reads.get_mut(tag.index()).ok_or_else(not_in_flight)? = offset;
                queue.push(tag, read);
            }
            if idle.len() == usize::from(depth) {
                break;
            }
            queue.kick()?;
            queue.reap(Wait::Upto(limits::SLEEP), &mut |tag, status| done.push((tag, status)))?;
            if !done.is_empty() {
                last = Instant::now();
            } else if last.elapsed() > limits::STALL {
                return Err(EngineError::Failed(format!(
                    "reading back what was written: no I/O completed for {:.0} s; the target hangs",
                    limits::STALL.as_secs_f64()
                )));
            }
            for (tag, status) in done.drain(..) {
                let offset = *reads.get(tag.index()).ok_or_else(not_in_flight)?;
                if !status.is_ok() {
                    recorder.record_error(status, offset);
                }
                let read = Operation { kind: OperationKind::Read, offset, bytes: self.block_bytes };
                self.done(queue, tag, &read, status.is_ok());
                idle.push(tag);
            }
        }
        while let Some(next) = self.written_from(block) {
            self.seen.not_read += 1;
            block = next + 1;
        }
        Ok(())
    }

    /// The first block from `block` on whose content is known.
    fn written_from(&self, block: usize) -> Option<usize> {
        let rest = self.generations.get(block..)?;
        rest.iter().position(|generation| (1..UNKNOWN).contains(generation)).map(|at| block + at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Control, Extras, Lane, Progress, Window};
    use super::*;
    use crate::measure::Clock;
    use crate::workload::{Rw, Span};

    const BLOCK: u32 = 1024;
    const BLOCKS: u64 = 64;

    /// What goes wrong in a drive.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        Nothing,
        LosesWrites,
        WritesBeside,
        Damages,
        FailsWrites,
    }

    /// A drive in memory that does every eighth write as its fault says. It completes the last pushed
    /// first, so that order is nobody's to rely on.
    struct Drive {
        data: Vec<u8>,
        buffers: Vec<Vec<u8>>,
        pushed: Vec<(Tag, IoStatus)>,
        fault: Fault,
        writes: u32,
    }

    impl Drive {
        fn new(fault: Fault, depth: usize) -> Self {
            Self {
                data: vec![0; BLOCKS as usize * BLOCK as usize],
                buffers: vec![vec![0; BLOCK as usize * 8]; depth],
                pushed: Vec::new(),
                fault,
                writes: 0,
            }
        }
    }

    impl Queue for Drive {
        fn push(&mut self, tag: Tag, operation: Operation) {
            let bytes = operation.bytes as usize;
            let buffer = &mut self.buffers[tag.index()][..bytes];
            let mut at = operation.offset as usize;
            let mut status = IoStatus::OK;
            if operation.kind == OperationKind::Write {
                self.writes += 1;
                let fault = if self.writes.is_multiple_of(8) { self.fault } else { Fault::Nothing };
                match fault {
                    Fault::WritesBeside => {
                        at = (at + BLOCK as usize) % (self.data.len() - bytes + 1)
                    }
                    Fault::Damages => buffer[600] ^= 4,
                    Fault::FailsWrites => status = IoStatus::SHORT,
                    _ => {}
                }
                if !matches!(fault, Fault::LosesWrites | Fault::FailsWrites) {
                    self.data[at..at + bytes].copy_from_slice(buffer);
                }
            } else {
                buffer.copy_from_slice(&self.data[at..at + bytes]);
            }
            self.pushed.push((tag, status));
        }

        fn kick(&mut self) -> Result<(), EngineError> {
            Ok(())
        }

        fn reap(
            &mut self,
            _: Wait,
            sink: &mut impl FnMut(Tag, IoStatus),
        ) -> Result<u32, EngineError> {
            let count = self.pushed.len() as u32;
            self.pushed.drain(..).rev().for_each(|(tag, status)| sink(tag, status));
            Ok(count)
        }

        fn fill(&mut self, tag: Tag, data: &[u8]) {
            self.buffers[tag.index()][..data.len()].copy_from_slice(data);
        }

        fn copy_out(&self, tag: Tag, data: &mut [u8]) {
            data.copy_from_slice(&self.buffers[tag.index()][..data.len()]);
        }
    }

    fn run_on(drive: &mut Drive, rw: Rw, ios: u64) -> (Verified, Recorder) {
        run_sizes(drive, rw, ios, None)
    }

    /// The same with sizes that differ.
    fn run_sizes(drive: &mut Drive, rw: Rw, ios: u64, split: Option<&str>) -> (Verified, Recorder) {
        let depth = drive.buffers.len() as u16;
        let workload = Workload { verify: true, ..Workload::new(rw, BLOCK, depth.into()) }
            .split(split.map(|split| split.parse().unwrap()));
        workload.check().unwrap();
        let span = Span { offset_bytes: 0, ios: BLOCKS };
        let generator = Generator::new(&workload, span, 0, 0);
        let extras = Extras::new(&workload, &generator, 0, 99);
        let clock = Clock::new();
        let mut lane = Lane::new(clock.clone(), generator, depth).with(extras);
        let window = Window { opens: clock.now(), closes: u64::MAX, ios };
        let control = Control::new();
        lane.drive(drive, window, &control, &Progress::default()).unwrap();
        lane.read_back(drive, &control).unwrap();
        (lane.verified().unwrap(), lane.into_recorder())
    }

    #[test]
    fn a_sound_drive_is_found_sound() {
        for (rw, depth) in
            [(Rw::RandWrite, 1), (Rw::RandWrite, 16), (Rw::RandRw, 8), (Rw::Write, 4)]
        {
            let mut drive = Drive::new(Fault::Nothing, depth);
            let (seen, recorder) = run_on(&mut drive, rw, 500);
            assert_eq!((seen.wrong, seen.not_read, seen.sentence()), (0, 0, None), "{rw}");
            assert!(seen.checked >= 60, "{rw}: {seen:?}");
            assert_eq!(recorder.count_all(), 500, "what is read back does not count");
            // What is there now is checked by a run that knows of no write.
            let (later, _) = run_on(&mut drive, Rw::Read, 64);
            assert_eq!((later.checked, later.wrong), (64, 0), "{rw}");
        }
    }

    #[test]
    fn each_fault_is_found_and_named() {
        for (fault, how) in [
            (Fault::LosesWrites, ["is stale", "holds nothing"]),
            (Fault::WritesBeside, ["holds the content of byte", "is stale"]),
            (Fault::Damages, ["differs in 1 bytes", "the first at byte 600"]),
        ] {
            for rw in [Rw::RandWrite, Rw::RandRw] {
                let (seen, _) = run_on(&mut Drive::new(fault, 4), rw, 400);
                assert!(seen.wrong > 0 && seen.wrong <= seen.checked, "{fault:?}: {seen:?}");
                let said = seen.first.join("; ");
                assert!(how.iter().any(|how| said.contains(how)), "{fault:?}: {said}");
                assert!(seen.first.len() <= FIRST_MAX);
                assert!(seen.sentence().is_some_and(|text| text.contains("at byte")));
            }
        }
        let mut drive = Drive::new(Fault::Nothing, 4);
        let (unwritten, _) = run_on(&mut drive, Rw::RandRead, 10);
        assert_eq!((unwritten.checked, unwritten.wrong), (10, 10), "nobody wrote them");
    }

    #[test]
    fn sizes_may_differ() {
        let split = Some("1k/40:2k/30:8k/30");
        for (rw, depth) in
            [(Rw::RandWrite, 1), (Rw::RandWrite, 16), (Rw::RandRw, 8), (Rw::Write, 4)]
        {
            let mut drive = Drive::new(Fault::Nothing, depth);
            let (seen, recorder) = run_sizes(&mut drive, rw, 500, split);
            assert_eq!((seen.wrong, seen.not_read), (0, 0), "{rw}: {seen:?}");
            assert!(seen.checked >= 60, "{rw}: {seen:?}");
            assert_eq!(recorder.count_all(), 500);
            // A later run that knows of no write finds every block, with other sizes too.
            let (later, _) = run_sizes(&mut drive, Rw::Read, 32, Some("1k/1:2k/99"));
            assert_eq!((later.wrong, later.checked >= 32), (0, true), "{rw}: {later:?}");
        }
        for (fault, how) in [
            (Fault::LosesWrites, ["is stale", "holds nothing"]),
            (Fault::WritesBeside, ["holds the content of byte", "is stale"]),
            (Fault::Damages, ["differs in 1 bytes", "the first at byte 600"]),
        ] {
            let (seen, _) = run_sizes(&mut Drive::new(fault, 4), Rw::RandRw, 400, split);
            assert!(seen.wrong > 0 && seen.wrong < seen.checked, "{fault:?}: {seen:?}");
            let said = seen.first.join("; ");
            assert!(how.iter().any(|how| said.contains(how)), "{fault:?}: {said}");
        }
        let (seen, _) = run_sizes(&mut Drive::new(Fault::FailsWrites, 4), Rw::RandRw, 800, split);
        assert_eq!(seen.wrong, 0, "{seen:?}");
    }

    #[test]
    fn a_block_whose_write_failed_is_not_judged() {
        let (seen, recorder) = run_on(&mut Drive::new(Fault::FailsWrites, 4), Rw::RandRw, 800);
        assert_eq!(seen.wrong, 0, "{seen:?}");
        assert!(recorder.errors().total() > 20);
    }

    #[test]
    fn a_stop_leaves_the_rest_unread_and_says_so() {
        let mut drive = Drive::new(Fault::Nothing, 2);
        let workload = Workload { verify: true, ..Workload::new(Rw::Write, BLOCK, 2) };
        let generator = Generator::new(&workload, Span { offset_bytes: 0, ios: BLOCKS }, 0, 0);
        let extras = Extras::new(&workload, &generator, 0, 1);
        let clock = Clock::new();
        let mut lane = Lane::new(clock.clone(), generator, 2).with(extras);
        let window = Window { opens: clock.now(), closes: u64::MAX, ios: 40 };
        let control = Control::new();
        lane.drive(&mut drive, window, &control, &Progress::default()).unwrap();
        control.stop();
        lane.read_back(&mut drive, &control).unwrap();
        let seen = lane.verified().unwrap();
        assert_eq!((seen.checked, seen.not_read), (0, 40));
    }
}
