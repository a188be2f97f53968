//! The next operation, in constant time.

use super::rw::Rw;
use super::spec::{Span, Workload};
use nvpoll_engine::{Operation, OperationKind};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A draw of 63 bits is below this with certainty.
const ALWAYS: u64 = 1 << 63;

/// One worker's operations.
///
/// Random: xoshiro256++ and a multiply-shift (the upper half of the 128-bit product of draw and
/// number of blocks), uniform to within 2^-30 up to 2^34 blocks, not just the first 2^32. The lower
/// half of the same product, which tells nothing of the block, decides between read and write, so an
/// operation costs one draw.
///
/// Sequential: each worker has a contiguous share of the range and starts over at its end.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Xoshiro256PlusPlus,
    /// Multiplied with a draw.
    ios: u64,
    /// Added to the product, in bytes.
    offset_bytes: u64,
    /// A draw of 63 bits below it reads; 0 never does, [`ALWAYS`] always.
    reads_below: u64,
    bs_bytes: u32,
    is_random: bool,
    /// Writes from one flush to the next; 0: no flushes.
    fsync: u32,
    writes_to_flush: u32,
    /// The next I/O of a sequential worker, and its share, in I/Os of the range.
    next: u64,
    first: u64,
    end: u64,
}

impl Generator {
    /// The operations of `worker` (from 0) of `workload.numjobs` on a target where the workload
    /// covers `span`. `stream` (from 0) is the worker's number among all workers of all targets:
    /// each has 2^128 draws of the sequence of `workload.seed` to itself.
    pub fn new(workload: &Workload, span: Span, worker: u32, stream: u32) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(workload.seed);
        for _ in 0..stream {
            rng.jump();
        }
        let (first, end) = share(span.ios, worker, workload.numjobs);
        Self {
            rng,
            ios: span.ios,
            offset_bytes: span.offset_bytes,
            reads_below: reads_below(workload),
            bs_bytes: workload.bs_bytes,
            is_random: workload.rw.is_random(),
            fsync: if workload.rw.writes() { workload.fsync } else { 0 },
            writes_to_flush: workload.fsync,
            next: first,
            first,
            end,
        }
    }

    /// The next operation. Of the I/Os of a mixed pattern each is drawn independently.
    #[inline(always)]
    #[expect(clippy::should_implement_trait, reason = "there is always a next one: no Option")]
    pub fn next(&mut self) -> Operation {
        if self.fsync != 0 && self.writes_to_flush == 0 {
            return self.flush();
        }
        let (io, draw) = if self.is_random {
            let product = u128::from(self.rng.next_u64()) * u128::from(self.ios);
            ((product >> 64) as u64, product as u64)
        } else {
            self.next_in_share()
        };
        let is_read = draw >> 1 < self.reads_below;
        if self.fsync != 0 && !is_read {
            self.writes_to_flush = self.writes_to_flush.wrapping_sub(1);
        }
        Operation {
            kind: if is_read { OperationKind::Read } else { OperationKind::Write },
            offset: self.offset_bytes.wrapping_add(io.wrapping_mul(self.bs_bytes.into())),
            bytes: self.bs_bytes,
        }
    }

    #[inline(always)]
    fn next_in_share(&mut self) -> (u64, u64) {
        let io = self.next;
        self.next = io.wrapping_add(1);
        if self.next >= self.end {
            self.next = self.first;
        }
        (io, self.rng.next_u64())
    }

    #[cold]
    fn flush(&mut self) -> Operation {
        self.writes_to_flush = self.fsync;
        Operation { kind: OperationKind::Flush, offset: self.offset_bytes, bytes: 0 }
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

/// Reads' part of 2^63, rounded.
fn reads_below(workload: &Workload) -> u64 {
    match workload.rw {
        Rw::Read | Rw::RandRead => ALWAYS,
        Rw::Write | Rw::RandWrite => 0,
        Rw::Rw | Rw::RandRw => {
            let percent = u128::from(workload.rwmixread.min(100));
            ((u128::from(ALWAYS) * percent + 50) / 100) as u64
        }
    }
}
