//! IoRing: rings shared with the kernel, since Windows 11 and Windows Server 2022's successors.

use super::ioring_queue::RingQueue;
use super::target::WindowsTarget;
use super::{DEPTH_MAX, buffer_stride};
use crate::bounds::check_shape;
use crate::{Caution, Engine, EngineError, EngineInfo, Geometry, OpenOptions, QueueShape, Target};
use nvpoll_windows::{Calls, HResult, RingCalls, RingCapabilities};

/// Most bytes of one lane's buffers: one registered buffer, whose length is a `u32`.
const BUFFER_BYTES_MAX: usize = (u32::MAX as usize) & !(nvpoll_mem::PAGE_BYTES - 1);

/// Where the functions of IoRing come from.
pub trait RingTable: RingCalls {
    /// Finds them.
    ///
    /// # Errors
    /// The name of the first that is not there.
    fn find() -> Result<Self, &'static str>;
}

#[cfg(windows)]
impl RingTable for nvpoll_windows::IoRingDll {
    fn find() -> Result<Self, &'static str> {
        Self::load()
    }
}

/// A ring a worker, with the file and the buffers registered.
#[derive(Debug)]
pub struct RingEngine<C: Calls, R: RingCalls> {
    target: WindowsTarget<C>,
    rings: R,
    capabilities: RingCapabilities,
}

fn absent(function: &str) -> EngineError {
    EngineError::Unavailable(format!(
        "this Windows has no IoRing ({function} is not in kernelbase.dll); it came with Windows 11 and Windows Server 2025; use engine iocp"
    ))
}

fn failed(what: &str, error: HResult) -> EngineError {
    EngineError::Failed(format!("engine ioring: {what} failed: {error}; use engine iocp"))
}

impl<C: Calls, R: RingCalls> RingEngine<C, R> {
    /// Opens `target` by `calls`, to be driven through `rings`.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    pub fn open_by(
        calls: C,
        rings: R,
        target: &Target,
        options: &OpenOptions,
    ) -> Result<Self, EngineError> {
        let capabilities =
            rings.capabilities().map_err(|error| failed("QueryIoRingCapabilities", error))?;
        if options.writable && capabilities.version < RingCapabilities::WRITES {
            return Err(EngineError::Unavailable(format!(
                "this Windows' IoRing, version {}, reads and does not write; version 3 does; use engine iocp",
                capabilities.version
            )));
        }
        let target = WindowsTarget::open("ioring", calls, target, options)?;
        Ok(Self { target, rings, capabilities })
    }
}

impl<C: Calls + Default, R: RingTable> Engine for RingEngine<C, R> {
    const INFO: EngineInfo = EngineInfo {
        name: "ioring",
        stack: "Windows ioring",
        summary: "Windows' IoRing: batches through a ring, with registered file and buffers",
        driver: None,
        polls: false,
        moves_data: true,
        depth_max: Some(DEPTH_MAX),
        waits: &[],
        writes: EngineInfo::WRITES,
        options: &[],
    };

    type Queue = RingQueue<C, R>;

    fn available() -> Result<(), EngineError> {
        let rings = R::find().map_err(absent)?;
        rings.capabilities().map(drop).map_err(|error| failed("QueryIoRingCapabilities", error))
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Self::open_by(C::default(), R::find().map_err(absent)?, target, options)
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        let by_buffers = BUFFER_BYTES_MAX / buffer_stride(io_bytes);
        let by_buffers = u32::try_from(by_buffers).unwrap_or(DEPTH_MAX);
        let RingCapabilities { submission_max, completion_max, .. } = self.capabilities;
        Geometry {
            size_bytes: self.target.size_bytes,
            block_bytes: self.target.block_bytes,
            depth_max: by_buffers.min(DEPTH_MAX).min(submission_max).min(completion_max),
            queues_max: None,
            numa_node: None,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let RingCapabilities { version, emulated, .. } = self.capabilities;
        let how = if emulated { "emulated by system calls" } else { "shared with the kernel" };
        let mut facts = self.target.facts();
        facts.extend([
            ("ring", format!("version {version}, {how}")),
            ("fixed buffers", "yes".to_owned()),
            ("polled", "no: completions come by interrupt".to_owned()),
        ]);
        facts
    }

    fn cautions(&self) -> Vec<Caution> {
        self.target.cautions()
    }

    fn queue(&self, shape: QueueShape) -> Result<RingQueue<C, R>, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        RingQueue::new(&self.target, &self.rings, self.capabilities, shape, &geometry)
    }
}
