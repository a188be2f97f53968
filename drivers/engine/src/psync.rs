//! Synchronous direct I/O: one `pread64` or `pwrite64` an I/O, one I/O in flight.

use crate::block::BlockTarget;
use crate::bounds::{Bounds, check_shape};
use crate::calls;
use crate::{
    Engine, EngineError, EngineInfo, Geometry, IoStatus, OpenOptions, Operation, OperationKind,
    Queue, QueueShape, Tag, Target, Wait,
};
use nvpoll_mem::Pages;
use std::fs::File;
use std::hint::cold_path;
use std::io;

/// The kernel's synchronous calls.
#[derive(Debug)]
pub struct Psync {
    target: BlockTarget,
}

impl Engine for Psync {
    const INFO: EngineInfo = EngineInfo {
        name: "psync",
        stack: "Linux psync",
        summary: "the kernel's synchronous calls, pread and pwrite, one I/O in flight",
        driver: None,
        polls: false,
        depth_max: Some(1),
    };

    type Queue = PsyncQueue;

    fn available() -> Result<(), EngineError> {
        Ok(())
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Ok(Self { target: BlockTarget::open(Self::INFO.name, target, options)? })
    }

    fn geometry(&self, _io_bytes: u32) -> Geometry {
        Geometry {
            size_bytes: self.target.size_bytes,
            block_bytes: self.target.block_bytes,
            depth_max: 1,
            queues_max: None,
            numa_node: self.target.numa_node,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            self.target.fact(),
            ("calls", "pread64, pwrite64, fdatasync".to_owned()),
            ("polled", "no: the call sleeps until the interrupt".to_owned()),
        ]
    }

    fn queue(&self, shape: QueueShape) -> Result<PsyncQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        let buffer = Pages::new(shape.io_bytes as usize)
            .map_err(|error| EngineError::Failed(error.to_string()))?;
        let file = self.target.file.try_clone().map_err(|error| {
            EngineError::Failed(format!(
                "engine psync: no descriptor for worker {}: {error}; raise the limit with \
                 `ulimit -n`, or lower --numjobs",
                shape.worker
            ))
        })?;
        Ok(PsyncQueue {
            bounds: Bounds::new(&geometry, shape.io_bytes, self.target.writable),
            file,
            buffer,
            pending: Pending::Nothing,
            offset: 0,
            bytes: 0,
        })
    }
}

/// The lane's only tag.
const TAG: Tag = Tag(0);

/// What the next `reap` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// Nothing was pushed.
    Nothing,
    /// An operation of this kind.
    One(OperationKind),
    /// A second one was pushed before the first was reported, or one under a tag beyond the depth.
    TooMany,
}

/// A lane of one I/O at a time.
#[derive(Debug)]
pub struct PsyncQueue {
    pending: Pending,
    bytes: u32,
    offset: u64,
    bounds: Bounds,
    buffer: Pages,
    /// A descriptor of its own: one pointer less to follow than a shared one.
    file: File,
}

impl PsyncQueue {
    #[inline(always)]
    fn execute(&self, kind: OperationKind) -> IoStatus {
        let Self { offset, bytes, .. } = *self;
        if kind == OperationKind::Flush {
            return self.file.sync_data().map_or_else(|error| failure(&error), |()| IoStatus::OK);
        }
        if !self.bounds.admits(&Operation { kind, offset, bytes }) {
            return IoStatus::REJECTED;
        }
        let moved = match kind {
            OperationKind::Write => calls::write_at(&self.file, &self.buffer, 0, bytes, offset),
            _ => calls::read_at(&self.file, &self.buffer, 0, bytes, offset),
        };
        match moved {
            Ok(moved) if moved == bytes as usize => IoStatus::OK,
            Ok(_) => IoStatus::SHORT,
            Err(error) => failure(&error),
        }
    }
}

impl PsyncQueue {
    /// Nothing is in flight that could complete, so a wait is one for the time alone.
    #[cold]
    fn nothing_to_do(&self, wait: Wait) -> Result<u32, EngineError> {
        if self.pending == Pending::TooMany {
            return Err(misused());
        }
        if let Wait::Upto(limit) = wait {
            std::thread::sleep(limit);
        }
        Ok(0)
    }
}

#[cold]
fn failure(error: &io::Error) -> IoStatus {
    IoStatus::errno(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cold]
fn misused() -> EngineError {
    EngineError::Failed(
        "engine psync: a second I/O was pushed before the first was reported; this is a bug of the \
         program, please report it"
            .to_owned(),
    )
}

impl Queue for PsyncQueue {
    const SLEEPS: bool = true;

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        let Operation { kind, offset, bytes } = operation;
        if self.pending != Pending::Nothing || tag != TAG {
            cold_path();
            self.pending = Pending::TooMany;
            return;
        }
        self.pending = Pending::One(kind);
        (self.offset, self.bytes) = (offset, bytes);
    }

    /// Leaves the call to `reap`, which reports what came of it.
    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    #[inline(always)]
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        let Pending::One(kind) = self.pending else { return self.nothing_to_do(wait) };
        self.pending = Pending::Nothing;
        sink(TAG, self.execute(kind));
        Ok(1)
    }

    fn fill(&mut self, _tag: Tag, data: &[u8]) {
        self.buffer.write(0, data);
    }

    fn copy_out(&self, _tag: Tag, data: &mut [u8]) {
        self.buffer.read(0, data);
    }
}
