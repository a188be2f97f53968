//! The next operation, in constant time.

use super::composed::Composed;
use super::distribution::Distribution;
use super::spec::{Span, Workload};
use nvpoll_engine::{Operation, OperationKind, Tag};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoroshiro128PlusPlus;
use std::ops::ControlFlow;

/// How the next operation comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Reads anywhere.
    RandomReads,
    /// Writes anywhere.
    RandomWrites,
    /// Reads in ascending order.
    SequentialReads,
    /// Writes in ascending order.
    SequentialWrites,
    /// All others: both directions, flushes in between, sizes that differ, places that do.
    Composed,
}

/// Who takes what a [`Generator`] assigns. A trait and no closure, because only a function with a
/// name can be inlined for certain.
pub trait Sink {
    /// Takes `tag`'s next operation.
    fn take(&mut self, tag: Tag, operation: Operation);
}

/// Who takes operations one after the other from [`Generator::stream`].
pub trait Consumer {
    /// Takes the next operation, and says whether there is to be another.
    fn consume(&mut self, operation: Operation) -> ControlFlow<()>;
}

/// One worker's operations.
///
/// Random: xoroshiro128++ and a multiply-shift (the upper half of the 128-bit product of draw and
/// number of blocks), uniform to within 2^-30 up to 2^34 blocks, not just the first 2^32. The lower
/// half of the same product, which tells nothing of the block, decides between read and write, so an
/// operation costs one draw.
///
/// Sequential: each worker has a contiguous share of the range and starts over at its end.
#[derive(Clone, Debug)]
pub struct Generator {
    mode: Mode,
    plain: Plain,
    composed: Composed,
}

/// What a plain pattern needs: small enough to be held in registers.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) bs_bytes: u32,
    pub(super) rng: Xoroshiro128PlusPlus,
    /// Multiplied with a draw.
    pub(super) ios: u64,
    /// Added to the product, in bytes.
    pub(super) offset_bytes: u64,
    /// The next I/O of a sequential worker, and its share, in I/Os of the range.
    pub(super) next: u64,
    pub(super) first: u64,
    pub(super) end: u64,
}

impl Generator {
    /// The operations of `worker` (from 0) of `workload.numjobs` on a target where the workload
    /// covers `span`. `stream` (from 0) is the worker's number among all workers of all targets:
    /// each has 2^64 draws of the sequence of `workload.seed` to itself.
    pub fn new(workload: &Workload, span: Span, worker: u32, stream: u32) -> Self {
        let mut rng = Xoroshiro128PlusPlus::seed_from_u64(workload.seed);
        for _ in 0..stream {
            rng.jump();
        }
        let (first, end) = match workload.has_own_ranges() {
            true => (0, span.ios),
            false => share(span.ios, worker, workload.numjobs),
        };
        // The content of a block that several workers write at once would be nobody's to know.
        let own = workload.verify && !workload.has_own_ranges();
        let (skipped, ios) = if own { (first, end - first) } else { (0, span.ios) };
        let (first, end) = (first - skipped, end - skipped);
        let unit_bytes = workload.unit_bytes();
        let rw = workload.rw;
        let is_plain =
            !rw.is_mixed() && workload.bssplit.is_none() && !(rw.writes() && workload.fsync != 0);
        let is_plain =
            is_plain && (!rw.is_random() || workload.random_distribution == Distribution::Random);
        let mode = match (rw.is_random(), rw.writes()) {
            _ if !is_plain => Mode::Composed,
            (true, true) => Mode::RandomWrites,
            (true, false) => Mode::RandomReads,
            (false, true) => Mode::SequentialWrites,
            (false, false) => Mode::SequentialReads,
        };
        let offset_bytes = skipped.wrapping_mul(unit_bytes.into()).wrapping_add(span.offset_bytes);
        Self {
            mode,
            plain: Plain { bs_bytes: unit_bytes, rng, ios, offset_bytes, next: first, first, end },
            composed: Composed::new(workload, ios),
        }
    }

    /// The stretch that this worker's random operations are in, or a sequential worker's share: its
    /// first byte, and how many units of the smallest I/O it holds.
    pub fn stretch(&self) -> (u64, u64) {
        let Plain { offset_bytes, ios, .. } = self.plain;
        (offset_bytes, ios)
    }

    /// Gives each of `tags` its operation, and both to `sink`. Of the I/Os of a mixed pattern each
    /// is drawn independently.
    ///
    /// The pattern is looked up here, so that a loop of one direction has nothing left to decide.
    #[inline(always)]
    pub fn assign(&mut self, tags: impl Iterator<Item = Tag>, sink: &mut impl Sink) {
        use OperationKind::{Read, Write};
        match self.mode {
            Mode::RandomReads => self.plain.one_way(Read, Plain::anywhere, tags, sink),
            Mode::RandomWrites => self.plain.one_way(Write, Plain::anywhere, tags, sink),
            Mode::SequentialReads => self.plain.one_way(Read, Plain::next_in_share, tags, sink),
            Mode::SequentialWrites => self.plain.one_way(Write, Plain::next_in_share, tags, sink),
            Mode::Composed => {
                for tag in tags {
                    sink.take(tag, self.composed.next(&mut self.plain));
                }
            }
        }
    }

    /// Gives `consumer` one operation after the other until it has enough: the same ones that
    /// [`assign`](Self::assign) gives, for a loop that has one at a time.
    #[inline(always)]
    pub fn stream(&mut self, consumer: &mut impl Consumer) {
        use OperationKind::{Read, Write};
        match self.mode {
            Mode::RandomReads => self.plain.stream(Read, Plain::anywhere, consumer),
            Mode::RandomWrites => self.plain.stream(Write, Plain::anywhere, consumer),
            Mode::SequentialReads => self.plain.stream(Read, Plain::next_in_share, consumer),
            Mode::SequentialWrites => self.plain.stream(Write, Plain::next_in_share, consumer),
            Mode::Composed => loop {
                if consumer.consume(self.composed.next(&mut self.plain)).is_break() {
                    break;
                }
            },
        }
    }

    /// The next operation, for who wants one at a time.
    #[expect(clippy::should_implement_trait, reason = "there is always a next one: no Option")]
    pub fn next(&mut self) -> Operation {
        struct Kept(Operation);
        impl Sink for Kept {
            fn take(&mut self, _: Tag, operation: Operation) {
                self.0 = operation;
            }
        }
        let mut kept = Kept(self.plain.operation(OperationKind::Flush, 0));
        self.assign(std::iter::once(Tag(0)), &mut kept);
        kept.0
    }
}

impl Plain {
    /// The loop, with a `kind` that is a constant in each of its copies, and on a copy of the state,
    /// which stays in registers.
    #[inline(always)]
    fn one_way(
        &mut self,
        kind: OperationKind,
        io: impl Fn(&mut Self) -> u64,
        tags: impl Iterator<Item = Tag>,
        sink: &mut impl Sink,
    ) {
        let mut state = self.clone();
        for tag in tags {
            let io = io(&mut state);
            sink.take(tag, state.operation(kind, io));
        }
        (self.rng, self.next) = (state.rng, state.next);
    }

    /// As [`one_way`](Self::one_way).
    #[inline(always)]
    fn stream(
        &mut self,
        kind: OperationKind,
        io: impl Fn(&mut Self) -> u64,
        consumer: &mut impl Consumer,
    ) {
        let mut state = self.clone();
        loop {
            let io = io(&mut state);
            if consumer.consume(state.operation(kind, io)).is_break() {
                break;
            }
        }
        (self.rng, self.next) = (state.rng, state.next);
    }

    #[inline(always)]
    pub(super) fn operation(&self, kind: OperationKind, io: u64) -> Operation {
        let offset = self.offset_bytes.wrapping_add(io.wrapping_mul(self.bs_bytes.into()));
        Operation { kind, offset, bytes: self.bs_bytes }
    }

    /// An I/O of the range, and 64 bits that have nothing to do with it.
    #[inline(always)]
    pub(super) fn draw(&mut self) -> (u64, u64) {
        let product = u128::from(self.rng.next_u64()) * u128::from(self.ios);
        ((product >> 64) as u64, product as u64)
    }

    #[inline(always)]
    fn anywhere(&mut self) -> u64 {
        self.draw().0
    }

    #[inline(always)]
    pub(super) fn next_in_share(&mut self) -> u64 {
        let io = self.next;
        let next = io.wrapping_add(1);
        self.next = if next < self.end { next } else { self.first };
        io
    }
}

/// First and end of `worker`'s share of `ios`, which differ by one I/O at most between workers; with
/// fewer I/Os than workers some have one together.
fn share(ios: u64, worker: u32, workers: u32) -> (u64, u64) {
    let workers = u128::from(workers.max(1));
    let edge = |worker: u128| (u128::from(ios) * worker.min(workers) / workers) as u64;
    let first = edge(worker.into()).min(ios.saturating_sub(1));
    (first, edge(u128::from(worker) + 1).max(first.saturating_add(1)))
}

#[cfg(test)]
mod tests;
