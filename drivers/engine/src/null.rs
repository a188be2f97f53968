//! The engine that moves nothing: what a run over it costs is the harness's own cost.
//!
//! It keeps the books like the others (tags are held from push to reap and come back in order, an
//! operation outside the target is refused), so that no work of the harness is optimised away for
//! want of somebody who looks at it.

use crate::bounds::{Bounds, check_shape};
use crate::{
    Engine, EngineError, EngineInfo, Geometry, IoStatus, OpenOptions, Operation, OperationKind,
    Queue, QueueShape, Tag, Target, Wait,
};

/// Bytes that the target claims to have: as large as a large drive, so that offsets are 64 bits.
const SIZE_BYTES: u64 = 1 << 44;

/// Most tags that a `u16` names.
const DEPTH_MAX: u32 = 1 << 16;

/// Completes each I/O at once.
#[derive(Debug)]
pub struct Null {
    writable: bool,
}

impl Engine for Null {
    const INFO: EngineInfo = EngineInfo {
        name: "null",
        stack: "null",
        summary: "completes at once and moves nothing: the harness's own cost",
        driver: None,
        polls: false,
        moves_data: false,
        depth_max: None,
        waits: &[],
        writes: EngineInfo::WRITES_AND_TRIMS,
        options: &[],
    };

    type Queue = NullQueue;

    fn available() -> Result<(), EngineError> {
        Ok(())
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        match target {
            Target::Null => Ok(Self { writable: options.writable }),
            other => Err(EngineError::Usage(format!(
                "engine null moves no data and cannot drive {other}; name the target null"
            ))),
        }
    }

    fn geometry(&self, _io_bytes: u32) -> Geometry {
        Geometry {
            size_bytes: SIZE_BYTES,
            block_bytes: 512,
            depth_max: DEPTH_MAX,
            queues_max: None,
            numa_node: None,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("data", "none is moved".to_owned())]
    }

    fn queue(&self, shape: QueueShape) -> Result<NullQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        Ok(NullQueue {
            bounds: Bounds::new(&geometry, shape.io_bytes, self.writable),
            done: vec![(Tag(0), IoStatus::OK); shape.depth as usize].into(),
            count: 0,
        })
    }
}

/// A lane to nowhere: first in, first out.
#[derive(Debug)]
pub struct NullQueue {
    bounds: Bounds,
    done: Box<[(Tag, IoStatus)]>,
    count: usize,
}

impl Queue for NullQueue {
    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        let admitted = operation.kind == OperationKind::Flush || self.bounds.admits(&operation);
        let status = if admitted { IoStatus::OK } else { IoStatus::REJECTED };
        if let Some(place) = self.done.get_mut(self.count) {
            *place = (tag, status);
        }
        self.count += 1;
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    #[inline(always)]
    fn reap(
        &mut self,
        _wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        let Some(done) = self.done.get(..self.count) else { return Err(too_many()) };
        for &(tag, status) in done {
            sink(tag, status);
        }
        Ok(std::mem::take(&mut self.count) as u32)
    }

    fn fill(&mut self, _tag: Tag, _data: &[u8]) {}

    fn copy_out(&self, _tag: Tag, data: &mut [u8]) {
        data.fill(0);
    }
}

#[cold]
fn too_many() -> EngineError {
    EngineError::Failed(
        "engine null: more I/Os were pushed than the queue's depth; this is a bug of the program, \
         please report it"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_back_once_in_the_order_in_which_they_were_pushed() {
        let null = Null::open(&Target::Null, &OpenOptions::default()).unwrap();
        let mut queue = null.queue(QueueShape { worker: 0, depth: 4, io_bytes: 4096 }).unwrap();
        let read = |offset| Operation { kind: OperationKind::Read, offset, bytes: 4096 };
        queue.push(Tag(3), read(0));
        queue.push(Tag(1), read(SIZE_BYTES));
        queue.push(Tag(2), Operation { kind: OperationKind::Flush, offset: 1, bytes: 1 });
        queue.kick().unwrap();
        let mut seen = Vec::new();
        let count = queue.reap(Wait::No, &mut |tag, status| seen.push((tag.0, status))).unwrap();
        assert_eq!(count, 3);
        assert_eq!(seen, [(3, IoStatus::OK), (1, IoStatus::REJECTED), (2, IoStatus::OK)]);
        assert_eq!(queue.reap(Wait::No, &mut |_, _| panic!("a second time")).unwrap(), 0);
    }
}
