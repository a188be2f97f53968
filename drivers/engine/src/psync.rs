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
use std::io;
use std::sync::Arc;

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
        Ok(PsyncQueue {
            bounds: Bounds::new(&geometry, shape.io_bytes, self.target.writable),
            file: Arc::clone(&self.target.file),
            buffer,
            state: IDLE,
            tag: Tag(0),
            operation: Operation { kind: OperationKind::Flush, offset: 0, bytes: 0 },
            status: IoStatus::OK,
        })
    }
}

/// Nothing is in flight.
const IDLE: u32 = 0;
/// One was pushed. Each push adds this, so that one too many is no state that `kick` knows.
const PUSHED: u32 = 1;
/// One was executed and is to be reported.
const DONE: u32 = 1 << 16;

/// A lane of one I/O at a time.
#[derive(Debug)]
pub struct PsyncQueue {
    state: u32,
    tag: Tag,
    operation: Operation,
    status: IoStatus,
    bounds: Bounds,
    buffer: Pages,
    file: Arc<File>,
}

impl PsyncQueue {
    #[inline(always)]
    fn execute(&self) -> IoStatus {
        let Operation { kind, offset, bytes } = self.operation;
        if kind == OperationKind::Flush {
            return self.file.sync_data().map_or_else(|error| failure(&error), |()| IoStatus::OK);
        }
        if !self.bounds.admits(&self.operation) {
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

#[cold]
fn failure(error: &io::Error) -> IoStatus {
    IoStatus::errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Nothing is in flight that could complete, so a wait is one for the time alone.
#[cold]
fn pause(wait: Wait) {
    if let Wait::Upto(limit) = wait {
        std::thread::sleep(limit);
    }
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
        self.tag = tag;
        self.operation = operation;
        self.state += PUSHED;
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        match self.state {
            PUSHED => {
                self.status = self.execute();
                self.state = DONE;
                Ok(())
            }
            IDLE | DONE => Ok(()),
            _ => Err(misused()),
        }
    }

    #[inline(always)]
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        if self.state != DONE {
            pause(wait);
            return Ok(0);
        }
        self.state = IDLE;
        sink(self.tag, self.status);
        Ok(1)
    }

    fn fill(&mut self, _tag: Tag, data: &[u8]) {
        self.buffer.write(0, data);
    }

    fn copy_out(&self, _tag: Tag, data: &mut [u8]) {
        self.buffer.read(0, data);
    }
}
