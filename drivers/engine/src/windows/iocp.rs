//! Completion ports: Windows' asynchronous I/O since it has any.

use super::iocp_queue::PortQueue;
use super::target::WindowsTarget;
use super::{DEPTH_MAX, buffer_stride};
use crate::bounds::check_shape;
use crate::{Caution, Engine, EngineError, EngineInfo, Geometry, OpenOptions, QueueShape, Target};
use nvpoll_windows::Calls;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Most bytes of one lane's buffers.
const BUFFER_BYTES_MAX: usize = 1 << 34;

/// Overlapped reads and writes, completions out of one port a worker.
#[derive(Debug)]
pub struct PortEngine<C: Calls> {
    target: WindowsTarget<C>,
    /// A lane was made whose handle reports through the port what succeeds at once as well.
    reports_all: AtomicBool,
}

impl<C: Calls> PortEngine<C> {
    /// Opens `target` by `calls`.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    pub fn open_by(calls: C, target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        let target = WindowsTarget::open("iocp", calls, target, options)?;
        Ok(Self { target, reports_all: AtomicBool::new(false) })
    }
}

impl<C: Calls + Default> Engine for PortEngine<C> {
    const INFO: EngineInfo = EngineInfo {
        name: "iocp",
        stack: "Windows",
        summary: "Windows' completion ports: overlapped ReadFile and WriteFile past the cache",
        driver: None,
        polls: false,
        moves_data: true,
        depth_max: Some(DEPTH_MAX),
        waits: &[],
        writes: EngineInfo::WRITES,
        options: &[],
    };

    type Queue = PortQueue<C>;

    fn available() -> Result<(), EngineError> {
        let calls = C::default();
        let port = calls.new_port().map_err(|error| {
            EngineError::Unavailable(format!("no completion port can be made: {error}"))
        })?;
        calls.close(port);
        Ok(())
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Self::open_by(C::default(), target, options)
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        let depth_max = BUFFER_BYTES_MAX / buffer_stride(io_bytes);
        Geometry {
            size_bytes: self.target.size_bytes,
            block_bytes: self.target.block_bytes,
            depth_max: u32::try_from(depth_max).map_or(DEPTH_MAX, |depth| depth.min(DEPTH_MAX)),
            queues_max: None,
            numa_node: None,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let skips = match self.reports_all.load(Relaxed) {
            false => "not through the port (FILE_SKIP_COMPLETION_PORT_ON_SUCCESS)",
            true => "through the port as well: Windows refused to skip it",
        };
        let seen = &self.target.seen;
        let mut facts = self.target.facts();
        facts.extend([
            ("success at once", skips.to_owned()),
            (
                "succeeded at once",
                format!("{} of {}", seen.at_once.load(Relaxed), seen.all.load(Relaxed)),
            ),
            ("polled", "no: completions come by interrupt".to_owned()),
        ]);
        facts
    }

    fn cautions(&self) -> Vec<Caution> {
        self.target.cautions()
    }

    fn queue(&self, shape: QueueShape) -> Result<PortQueue<C>, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        let queue = PortQueue::new(&self.target, shape, &geometry)?;
        if !queue.skips() {
            self.reports_all.store(true, Relaxed);
        }
        Ok(queue)
    }
}
