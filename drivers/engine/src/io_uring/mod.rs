//! io_uring: the kernel's block layer by shared rings, one system call a batch.
//!
//! A worker has a ring, one pinned region with a buffer for each tag, and the target as a
//! registered file. Whatever of this the kernel does not give is done without, and said in
//! [`IoUring::facts`](crate::Engine::facts). [`passthrough`] sends NVMe commands by the same rings.

mod abi;
mod form;
pub mod passthrough;
mod queue;
mod ring;
mod rings;

use crate::block::BlockTarget;
use crate::bounds::check_shape;
use crate::calls;
use crate::options::EngineOption;
use crate::{
    Caution, CautionKind, Condition, Engine, EngineError, EngineInfo, Geometry, OpenOptions,
    QueueShape, Target,
};
use abi::{ENTRIES_MAX, REGISTERED_BYTES_MAX};
use form::Plain;
use nvpoll_mem::PAGE_BYTES;
use queue::{Parts, RingQueue};
use rings::Rings;

/// A worker's ring on a block device or a file.
pub type IoUringQueue = RingQueue<Plain>;

/// The kernel's io_uring on a block device or a file.
#[derive(Debug)]
pub struct IoUring {
    target: BlockTarget,
    rings: Rings,
}

impl Engine for IoUring {
    const INFO: EngineInfo = EngineInfo {
        name: "io_uring",
        stack: "Linux io_uring",
        summary: "the kernel's io_uring, batched, with registered buffers and file",
        driver: None,
        polls: false,
        moves_data: true,
        depth_max: Some(ENTRIES_MAX),
        waits: &[],
        writes: EngineInfo::DURABLE_WRITES,
        options: &EngineOption::OF_KERNEL,
    };

    type Queue = IoUringQueue;

    fn available() -> Result<(), EngineError> {
        rings::available()
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Self::available()?;
        let target = BlockTarget::open(Self::INFO.name, target, options)?;
        let takes_nowait = target.buffered
            || calls::takes_nowait(&target.file, target.block_bytes, target.size_bytes);
        let rings = Rings::new(options.engine, target.polls(), takes_nowait);
        Ok(Self { target, rings })
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        Geometry {
            size_bytes: self.target.size_bytes,
            block_bytes: self.target.block_bytes,
            depth_max: depth_max(io_bytes),
            queues_max: None,
            numa_node: self.target.numa_node,
        }
    }

    /// Complete once the queues are made: what a ring runs with is known only then.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = self.target.facts();
        facts.extend(self.rings.facts());
        if self.rings.is_polled() {
            facts.push(("flushes", "by fdatasync: a ring that is polled takes none".to_owned()));
        }
        facts
    }

    fn condition(&self) -> Condition {
        self.target.condition()
    }

    fn cautions(&self) -> Vec<Caution> {
        let mut cautions = self.target.cautions();
        cautions.extend(self.rings.cautions());
        if !self.rings.takes_nowait {
            let text =
                "the target takes no I/O that must not wait (RWF_NOWAIT), so the kernel hands \
                        each to a worker thread of its own (io-wq), whose switches are in the \
                        figures; an NVMe drive takes it"
                    .to_owned();
            cautions.push(Caution { kind: CautionKind::Workers, text });
        }
        cautions
    }

    fn queue(&self, shape: QueueShape) -> Result<IoUringQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        self.target.note_io_bytes(shape.io_bytes);
        let parts = Parts {
            file: &self.target.file,
            shape,
            geometry: &geometry,
            writable: self.target.writable,
            no_fixed: self.rings.options.no_fixed,
            batch: self.rings.batch(),
            submitter: self.rings.submitter(),
            seen: self.rings.seen.clone(),
        };
        let is_polled = self.rings.is_polled();
        RingQueue::new(self.rings.make(shape.depth)?, parts, |file, has_buffers| {
            Plain::new(file, has_buffers, is_polled)
        })
    }
}

/// Most tags whose buffers of `io_bytes` fit into one registered region.
fn depth_max(io_bytes: u32) -> u32 {
    // A ring whose kernel thread submits has two entries for each.
    let most = REGISTERED_BYTES_MAX / buffer_stride(io_bytes);
    u32::try_from(most).map_or(ENTRIES_MAX / 2, |depth| depth.min(ENTRIES_MAX / 2))
}

/// Bytes from one tag's buffer to the next: whole pages, so that no two share one.
fn buffer_stride(io_bytes: u32) -> usize {
    (io_bytes as usize).max(1).next_multiple_of(PAGE_BYTES)
}
