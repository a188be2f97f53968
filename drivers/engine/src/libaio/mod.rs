//! Linux's older asynchronous calls, io_submit and io_getevents, without a library in between.
//!
//! Completions are read from the ring that the kernel maps into the process, where its header is
//! one that we know, so that a pass that finds some makes one system call.

#![allow(unsafe_code)]

mod context;

use crate::block::BlockTarget;
use crate::bounds::{Bounds, check_shape};
use crate::cookie::stray;
use crate::options::EngineOption;
use crate::{
    Caution, Condition, Engine, EngineError, EngineInfo, EngineOptions, Geometry, IoStatus,
    OpenOptions, Operation, OperationKind, Queue, QueueShape, Tag, Target, Wait,
};
use context::{Block, Context, Event, IDLE, op};
use nvpoll_mem::{PAGE_BYTES, Pages};
use std::fs::File;
use std::hint::cold_path;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Most tags that a `u16` names.
const DEPTH_MAX: u32 = 1 << 16;

/// Most bytes of one lane's buffers.
const BUFFER_BYTES_MAX: usize = 1 << 34;

/// Times in a row that the kernel may refuse to take I/O for want of resources.
const STARVED_MAX: u32 = 100_000;

/// How long a dropped queue waits for I/O in flight before it gives up its memory instead.
const DROP_WAIT_MAX: Duration = Duration::from_secs(10);

/// Where completions are read, as the queues made so far do.
const READS_RING: u8 = 1;
const READS_BY_CALL: u8 = 2;

/// The kernel's asynchronous calls on a block device or a file.
#[derive(Debug)]
pub struct Libaio {
    target: BlockTarget,
    options: EngineOptions,
    /// [`READS_RING`], [`READS_BY_CALL`], both or none yet.
    reads: AtomicU8,
}

impl Engine for Libaio {
    const INFO: EngineInfo = EngineInfo {
        name: "libaio",
        stack: "Linux libaio",
        summary: "the kernel's older asynchronous calls, io_submit and io_getevents",
        driver: None,
        polls: false,
        moves_data: true,
        depth_max: Some(DEPTH_MAX),
        waits: &[],
        writes: EngineInfo::DURABLE_WRITES,
        options: &[EngineOption::Batch, EngineOption::Buffered],
    };

    type Queue = LibaioQueue;

    fn available() -> Result<(), EngineError> {
        let mut context = Context::new([0].into_iter()).map_err(|error| explain(&error))?;
        context.end();
        Ok(())
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Self::available()?;
        let target = BlockTarget::open(Self::INFO.name, target, options)?;
        Ok(Self { target, options: options.engine, reads: AtomicU8::new(0) })
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        let depth_max = BUFFER_BYTES_MAX / buffer_stride(io_bytes);
        Geometry {
            size_bytes: self.target.size_bytes,
            block_bytes: self.target.block_bytes,
            depth_max: u32::try_from(depth_max).map_or(DEPTH_MAX, |depth| depth.min(DEPTH_MAX)),
            queues_max: None,
            numa_node: self.target.numa_node,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let reads = match self.reads.load(Relaxed) {
            READS_RING => "read from the mapped ring; io_getevents only to wait",
            READS_BY_CALL => "by io_getevents: the kernel's ring is not of the known form",
            0 => "not known before a queue is made",
            _ => "some by io_getevents, some read from the mapped ring",
        };
        let mut facts = self.target.facts();
        facts.extend([
            ("completions", reads.to_owned()),
            ("polled", "no: completions come by interrupt".to_owned()),
        ]);
        facts
    }

    fn condition(&self) -> Condition {
        self.target.condition()
    }

    fn cautions(&self) -> Vec<Caution> {
        self.target.cautions()
    }

    fn queue(&self, shape: QueueShape) -> Result<LibaioQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        self.target.note_io_bytes(shape.io_bytes);
        let queue = LibaioQueue::new(&self.target, shape, &geometry, self.options)?;
        let how = if queue.context.reads_ring() { READS_RING } else { READS_BY_CALL };
        self.reads.fetch_or(how, Relaxed);
        Ok(queue)
    }
}

/// Bytes from one tag's buffer to the next: whole pages, so that no two share one.
fn buffer_stride(io_bytes: u32) -> usize {
    (io_bytes as usize).max(1).next_multiple_of(PAGE_BYTES)
}

/// Why there is no context, and what to do.
fn explain(error: &io::Error) -> EngineError {
    let number = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel was built without CONFIG_AIO, or a seccomp filter hides it".to_owned()
        }
        Some(libc::EPERM) => {
            "a security policy forbids it, often a container's seccomp filter; allow io_setup, \
             io_submit, io_getevents and io_destroy there, or run outside"
                .to_owned()
        }
        Some(libc::EAGAIN) => format!(
            "{} of the system's {} requests are in use (fs.aio-nr of fs.aio-max-nr); raise it by \
             `sysctl fs.aio-max-nr=1048576`, or lower --iodepth or --numjobs",
            number("aio-nr"),
            number("aio-max-nr")
        ),
        Some(libc::ENOMEM) => "no memory for its ring; lower --iodepth".to_owned(),
        _ => "see io_setup(2)".to_owned(),
    };
    EngineError::Unavailable(format!("libaio cannot be set up: {error}: {reason}"))
}

/// What a block is prepared for: a transfer as long as the lane's buffers, in bits 31:0, which way
/// above them. What is not so is prepared anew each time, and leaves [`NOT_PREPARED`].
const fn shape(kind: OperationKind, bytes: u32) -> u64 {
    let way = match kind {
        OperationKind::Read => 1,
        OperationKind::Write => 2,
        OperationKind::Flush => 3,
    };
    way << 32 | bytes as u64
}

/// The direction of no transfer; the bytes are kept, to be held against the result.
const NOT_PREPARED: u64 = 1 << 63;

/// The result of an operation that was refused here.
const REJECTED: i64 = i64::MIN;

/// Where completions are taken from.
#[derive(Clone, Copy)]
enum Source {
    /// The mapped ring.
    Ring,
    /// The system call, which took so many.
    Call(usize),
    /// What was refused here.
    Refused,
}

/// A worker's context with its buffers.
#[derive(Debug)]
pub struct LibaioQueue {
    context: Context,
    whole_offset_max: u64,
    block_mask: u64,
    batch: u32,
    /// Something stands in `refused` or `misused`.
    has_exception: bool,
    // Cold from here on.
    bounds: Bounds,
    whole_bytes: u32,
    starved: u32,
    refused: Vec<Event>,
    misused: Option<Tag>,
    buffer_stride: usize,
    /// `None` once given up to the kernel.
    buffers: Option<Pages>,
    file: Arc<File>,
}

impl LibaioQueue {
    fn new(
        target: &BlockTarget,
        shape: QueueShape,
        geometry: &Geometry,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let depth = shape.depth as usize;
        let stride = buffer_stride(shape.io_bytes);
        let buffers = Pages::new(depth.saturating_mul(stride))
            .map_err(|error| EngineError::Failed(error.to_string()))?;
        let first = buffers.as_ptr().expose_provenance() as u64;
        let addresses = (0..u64::from(shape.depth)).map(|tag| first + tag * stride as u64);
        let context = Context::new(addresses).map_err(|error| explain(&error))?;
        Ok(Self {
            context,
            bounds: Bounds::new(geometry, shape.io_bytes, target.writable),
            whole_bytes: shape.io_bytes,
            whole_offset_max: geometry.size_bytes - u64::from(shape.io_bytes),
            block_mask: u64::from(geometry.block_bytes) - 1,
            batch: options.batch.unwrap_or(1).clamp(1, shape.depth),
            has_exception: false,
            starved: 0,
            refused: Vec::with_capacity(depth),
            misused: None,
            buffer_stride: stride,
            buffers: Some(buffers),
            file: Arc::clone(&target.file),
        })
    }

    /// What was pushed under `tag` ends with `result`, which the next `reap` finds.
    #[cold]
    fn refuse(&mut self, tag: usize, result: i64) {
        self.has_exception = true;
        if let Some(block) = self.context.blocks.get(tag) {
            self.refused.push(Event::new(block.cookie, result));
        }
    }

    #[cold]
    fn misuse(&mut self, tag: Tag) {
        self.has_exception = true;
        self.misused = Some(tag);
    }

    /// Pushes what the tag's block, which has begun, is not prepared for.
    #[cold]
    #[inline(never)]
    fn push_other(&mut self, tag: Tag, kind: OperationKind, offset: u64, bytes: u32) {
        let Some(block) = self.context.blocks.get_mut(tag.index()) else { return };
        let fd = self.file.as_raw_fd();
        let opcode = match kind {
            OperationKind::Read => op::PREAD,
            OperationKind::Write => op::PWRITE,
            OperationKind::Flush => {
                block.prepare(op::FDSYNC, fd, 0);
                block.shape = NOT_PREPARED;
                // SAFETY: the block is this context's, its tag was idle; a flush names no bytes.
                return unsafe { self.context.pending.push(block, 0) };
            }
        };
        if !self.bounds.admits(&Operation { kind, offset, bytes }) {
            return self.refuse(tag.index(), REJECTED);
        }
        block.prepare(opcode, fd, bytes);
        let is_whole = bytes == self.whole_bytes;
        block.shape = if is_whole { shape(kind, bytes) } else { NOT_PREPARED | u64::from(bytes) };
        // SAFETY: the block is this context's, and its tag was idle. The length is within its
        // buffer, which stays until the completion was taken; see `drop`.
        unsafe { self.context.pending.push(block, offset) };
    }

    /// Where to look for completions when there is something to report that the kernel did not
    /// complete, or less than a batch is in the ring.
    #[cold]
    #[inline(never)]
    fn source(&mut self, wait: Wait, ready: u32) -> Result<Source, EngineError> {
        if let Some(tag) = self.misused {
            return Err(failed(
                &format!("tag {} was pushed beyond the depth or while in flight", tag.0),
                "this is a bug of the program, please report it",
            ));
        }
        if std::mem::take(&mut self.has_exception) {
            return Ok(Source::Refused);
        }
        let least = self.batch.min(self.context.in_flight()).max(1);
        let limit = match wait {
            Wait::Upto(limit) if ready < least => limit,
            _ if self.context.reads_ring() => return Ok(Source::Ring),
            // Only the call shows what there is.
            _ => Duration::ZERO,
        };
        let found = self.context.wait(least, limit).map_err(|error| {
            failed(&format!("io_getevents failed: {error}"), "see `dmesg` for what the kernel says")
        })?;
        Ok(Source::Call(found))
    }

    /// The kernel took nothing. Short of resources it is asked again; an entry that it finds
    /// invalid fails alone.
    #[cold]
    fn not_submitted(&mut self, error: &io::Error) -> Result<(), EngineError> {
        if error.raw_os_error() == Some(libc::EAGAIN) {
            self.starved += 1;
            if self.starved <= STARVED_MAX {
                return Ok(());
            }
            let seen = format!("io_submit failed {} times in a row: {error}", self.starved);
            return Err(failed(&seen, "see `dmesg` for what the kernel says"));
        }
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if let Some(tag) = self.context.discard_first() {
            self.refuse(tag, -i64::from(errno));
        }
        Ok(())
    }
}

/// The tag of a completion, idle from now on, and how its I/O ended.
#[inline(always)]
fn complete(blocks: &mut [Block], event: &Event) -> Result<(Tag, IoStatus), EngineError> {
    let (data, result) = (event.data(), event.result());
    let tag = Tag(data as u16);
    match blocks.get_mut(tag.index()) {
        Some(block) if block.cookie == data => {
            block.cookie = IDLE;
            // No error number is the length of a transfer in blocks.
            let is_whole = result as u32 == block.shape as u32;
            Ok((tag, if is_whole { IoStatus::OK } else { failure(result) }))
        }
        _ => Err(stray("libaio", data, result)),
    }
}

impl Queue for LibaioQueue {
    const SLEEPS: bool = true;

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        let Some(block) = self.context.blocks.get_mut(tag.index()) else {
            return self.misuse(tag);
        };
        if !block.begin() {
            return self.misuse(tag);
        }
        let Operation { kind, offset, bytes } = operation;
        if block.shape != shape(kind, bytes) {
            return self.push_other(tag, kind, offset, bytes);
        }
        if offset > self.whole_offset_max || offset & self.block_mask != 0 {
            return self.push_other(tag, kind, offset, bytes);
        }
        // SAFETY: the block is this context's, and its tag was idle. It is prepared for a transfer
        // of the length of its buffer, which stays until the completion was taken; see `drop`.
        unsafe { self.context.pending.push(block, offset) };
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        if self.context.has_pending() {
            match self.context.submit() {
                Ok(()) => self.starved = 0,
                Err(error) => return self.not_submitted(&error),
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        let (first, second) = self.context.completions.ready();
        let ready = (first.len() + second.len()) as u32;
        let mut source = Source::Ring;
        if ready < self.batch || self.has_exception {
            cold_path();
            source = self.source(wait, ready)?;
        }
        let (mut stretch, mut rest) = match source {
            Source::Ring => self.context.completions.ready(),
            Source::Call(found) => (self.context.completions.events(found), [].as_slice()),
            Source::Refused => (self.refused.as_slice(), [].as_slice()),
        };
        let count = (stretch.len() + rest.len()) as u32;
        let blocks = &mut *self.context.blocks;
        loop {
            for event in stretch {
                let (tag, status) = complete(blocks, event)?;
                sink(tag, status);
            }
            if rest.is_empty() {
                break;
            }
            stretch = std::mem::take(&mut rest);
        }
        match source {
            Source::Ring => self.context.release(count),
            Source::Call(_) => {}
            Source::Refused => self.refused.clear(),
        }
        Ok(count)
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        if let (Some(buffers), Some(_)) = (&self.buffers, self.context.blocks.get(tag.index())) {
            let stride = self.buffer_stride;
            buffers.write(tag.index() * stride, data.get(..stride).unwrap_or(data));
        }
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        if let (Some(buffers), Some(_)) = (&self.buffers, self.context.blocks.get(tag.index())) {
            let bytes = data.len().min(self.buffer_stride);
            buffers.read(tag.index() * self.buffer_stride, &mut data[..bytes]);
        }
    }
}

impl Drop for LibaioQueue {
    /// The kernel may write to the buffers of I/O in flight: it is waited for, or else buffers and
    /// context are never given back.
    fn drop(&mut self) {
        let deadline = Instant::now() + DROP_WAIT_MAX;
        while self.context.in_flight() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.context.wait(1, left).is_err() {
                std::mem::forget(self.buffers.take());
                return;
            }
        }
        self.context.end();
    }
}

/// Statuses other than success: the kernel gives the bytes moved, or a negative error number.
#[cold]
fn failure(result: i64) -> IoStatus {
    match result {
        REJECTED => IoStatus::REJECTED,
        0.. => IoStatus::SHORT,
        _ => IoStatus::errno(i32::try_from(result.wrapping_neg()).unwrap_or(libc::EIO)),
    }
}

fn failed(seen: &str, advice: &str) -> EngineError {
    EngineError::Failed(format!("engine libaio: {seen}; {advice}"))
}
