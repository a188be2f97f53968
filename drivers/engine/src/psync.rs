//! Synchronous direct I/O: one `pread64` or `pwrite64` an I/O, one I/O in flight.

use crate::block::BlockTarget;
use crate::bounds::{Bounds, check_shape};
use crate::calls;
use crate::options::EngineOption;
use crate::{
    Caution, CautionKind, Condition, Engine, EngineError, EngineInfo, Geometry, IoStatus,
    OpenOptions, Operation, OperationKind, Queue, QueueShape, Tag, Target, Wait,
};
use nvpoll_mem::Pages;
use std::fs::File;
use std::hint::cold_path;
use std::io;

/// The kernel's synchronous calls.
#[derive(Debug)]
pub struct Psync {
    target: BlockTarget,
    /// Polling was asked for.
    hipri: bool,
}

impl Engine for Psync {
    const INFO: EngineInfo = EngineInfo {
        name: "psync",
        stack: "Linux psync",
        summary: "the kernel's synchronous calls, pread and pwrite, one I/O in flight",
        driver: None,
        polls: false,
        moves_data: true,
        depth_max: Some(1),
        waits: &[],
        writes: EngineInfo::DURABLE_WRITES,
        options: &[EngineOption::Iopoll, EngineOption::Buffered],
    };

    type Queue = PsyncQueue;

    fn available() -> Result<(), EngineError> {
        Ok(())
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        let target = BlockTarget::open(Self::INFO.name, target, options)?;
        Ok(Self { target, hipri: options.engine.iopoll })
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
        let (calls, polled) = match (self.hipri, self.polls()) {
            (false, _) => (
                "pread64, pwrite64, fdatasync",
                "no: the call sleeps until the interrupt".to_owned(),
            ),
            (true, Ok(())) => {
                ("preadv2 and pwritev2 with RWF_HIPRI, fdatasync", "yes: by the call".to_owned())
            }
            (true, Err(reason)) => {
                ("preadv2 and pwritev2 with RWF_HIPRI, fdatasync", format!("not polled: {reason}"))
            }
        };
        let mut facts = self.target.facts();
        facts.extend([("calls", calls.to_owned()), ("polled", polled)]);
        facts
    }

    fn condition(&self) -> Condition {
        self.target.condition()
    }

    fn cautions(&self) -> Vec<Caution> {
        let mut cautions = self.target.cautions();
        if self.hipri
            && let Err(reason) = self.polls()
        {
            let text = format!("not polled: {reason}");
            cautions.push(Caution { kind: CautionKind::NotAsAsked, text });
        }
        cautions
    }

    fn queue(&self, shape: QueueShape) -> Result<PsyncQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        self.target.note_io_bytes(shape.io_bytes);
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
            hipri: self.hipri,
            buffer,
            pending: Pending::Nothing,
            offset: 0,
            bytes: 0,
        })
    }
}

impl Psync {
    /// Whether a call with `RWF_HIPRI` polls here; if not, why, and the remedy.
    fn polls(&self) -> Result<(), String> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        self.target.polls()?;
        match ignores_hipri(release.trim()) {
            false => Ok(()),
            true => Err(format!(
                "Linux ignores RWF_HIPRI in synchronous calls since 5.19, and this is {}; use \
                 engine io_uring:iopoll",
                release.trim()
            )),
        }
    }
}

/// Whether the kernel of this release leaves a synchronous call's `RWF_HIPRI` out ("block: ignore
/// RWF_HIPRI hint for sync dio"). One that cannot be read is taken for a new one.
fn ignores_hipri(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 19),
        _ => true,
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
    hipri: bool,
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
        if self.hipri {
            let writes = kind == OperationKind::Write;
            return outcome(
                calls::move_polled(writes, &self.file, &self.buffer, bytes, offset),
                bytes,
            );
        }
        let moved = match kind {
            OperationKind::Write => calls::write_at(&self.file, &self.buffer, 0, bytes, offset),
            _ => calls::read_at(&self.file, &self.buffer, 0, bytes, offset),
        };
        outcome(moved, bytes)
    }
}

#[inline(always)]
fn outcome(moved: io::Result<usize>, bytes: u32) -> IoStatus {
    match moved {
        Ok(moved) if moved == bytes as usize => IoStatus::OK,
        Ok(_) => IoStatus::SHORT,
        Err(error) => failure(&error),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_told_apart() {
        for (release, ignores) in [
            ("5.18.19", false),
            ("4.19.0-27-amd64", false),
            ("5.19.0", true),
            ("6.12.48+deb13-amd64", true),
            ("7.0-rc1", true),
            ("", true),
        ] {
            assert_eq!(ignores_hipri(release), ignores, "{release}");
        }
    }
}
