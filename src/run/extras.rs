//! What a lane does beyond keeping its depth full: an open load, think times, sizes that are counted,
//! buffers that are made anew, content that is checked. [`paced`](super::paced) is the loop of all of
//! these; a lane without any has a loop that pays for none.

use super::verify::Verifier;
use crate::workload::{Arrivals, Filler, Generator, Workload};
use nvpoll_engine::{Operation, OperationKind, Queue, Tag};

/// All of it.
pub struct Extras {
    pub(super) arrivals: Option<Arrivals>,
    /// Think time in seconds, and I/Os from one to the next.
    pub(super) think: Option<(f64, u32)>,
    /// Bytes of an operation, of the largest where they differ.
    pub(super) io_bytes: u32,
    /// Bytes of each tag's operation, where they differ.
    sizes: Option<Box<[u32]>>,
    /// Makes each write's buffer.
    filler: Option<(Filler, Vec<u8>)>,
    pub(super) verifier: Option<Verifier>,
}

impl Extras {
    /// What `workload` asks for in the worker with number `stream` among all, which takes its operations
    /// from `generator`; `None` where that is nothing. `run` tells what this run writes from others'.
    pub fn new(workload: &Workload, generator: &Generator, stream: u32, run: u64) -> Option<Self> {
        let arrivals = Arrivals::new(workload, stream);
        let think = (workload.thinktime_us > 0)
            .then(|| (workload.thinktime_us as f64 / 1e6, workload.thinktime_blocks.max(1)));
        let sizes = workload
            .bssplit
            .is_some()
            .then(|| vec![0; workload.iodepth as usize].into_boxed_slice());
        let refills = workload.buffers.refill && workload.rw.writes();
        let filler = refills
            .then(|| (Filler::new(workload.buffers, stream), vec![0; workload.bs_bytes as usize]));
        let verifier = workload.verify.then(|| Verifier::new(workload, generator, run));
        let any = arrivals.is_some()
            || think.is_some()
            || sizes.is_some()
            || filler.is_some()
            || verifier.is_some();
        let io_bytes = workload.bs_bytes;
        any.then_some(Self { arrivals, think, io_bytes, sizes, filler, verifier })
    }

    /// Makes `tag`'s buffer ready; false where the operation has to wait for another one's end.
    pub(super) fn prepare<Q: Queue>(
        &mut self,
        queue: &mut Q,
        tag: Tag,
        operation: &Operation,
    ) -> bool {
        if let Some(verifier) = &mut self.verifier
            && !verifier.prepare(queue, tag, operation)
        {
            return false;
        }
        if let Some(size) = self.sizes.as_mut().and_then(|sizes| sizes.get_mut(tag.index())) {
            *size = operation.bytes;
        }
        if let Some((filler, buffer)) = &mut self.filler
            && operation.kind == OperationKind::Write
            && let Some(bytes) = buffer.get_mut(..operation.bytes as usize)
        {
            filler.fill(bytes);
            queue.fill(tag, bytes);
        }
        true
    }

    /// Bytes of `tag`'s operation, where sizes differ.
    pub(super) fn bytes_of(&self, tag: Tag) -> Option<u32> {
        self.sizes.as_ref()?.get(tag.index()).copied()
    }

    /// Whether it has an eye on what comes back.
    pub(super) const fn verifies(&self) -> bool {
        self.verifier.is_some()
    }
}
