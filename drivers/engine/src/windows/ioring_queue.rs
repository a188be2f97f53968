//! One worker's ring.

#![allow(unsafe_code)]

use super::target::{Seen, WindowsTarget};
use super::{DROP_WAIT_MAX, buffer_stride, failure, moved, wait_ms};
use crate::bounds::Bounds;
use crate::cookie::{GENERATION, stray};
use crate::{
    EngineError, Geometry, IoStatus, Operation, OperationKind, Queue, QueueShape, Tag, Wait,
};
use nvpoll_mem::Pages;
use nvpoll_windows::{
    Calls, HResult, Handle, RingCalls, RingCapabilities, RingCompletion, RingHandle, Win32Error,
};
use std::hint::cold_path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A tag that is not in flight.
const IDLE: u64 = u64::MAX;

/// A lane through a ring of its own.
#[derive(Debug)]
pub struct RingQueue<C: Calls, R: RingCalls> {
    rings: R,
    ring: RingHandle,
    /// Built and not yet submitted.
    built: u32,
    under_way: u32,
    whole_bytes: u32,
    buffer_stride: usize,
    generation: u64,
    bounds: Bounds,
    /// What each tag's request carries: the tag, and a generation above it.
    cookies: Box<[u64]>,
    /// Bytes that each asked for.
    wanted: Box<[u32]>,
    /// Ended without the ring.
    ended: Vec<(Tag, IoStatus)>,
    // Cold from here on.
    /// `None` once given up to Windows.
    buffers: Option<Pages>,
    writable: bool,
    misused: Option<Tag>,
    seen: Arc<Seen>,
    calls: C,
    file: Handle,
}

impl<C: Calls, R: RingCalls> RingQueue<C, R> {
    pub(super) fn new(
        target: &WindowsTarget<C>,
        rings: &R,
        capabilities: RingCapabilities,
        shape: QueueShape,
        geometry: &Geometry,
    ) -> Result<Self, EngineError> {
        let depth = shape.depth as usize;
        let stride = buffer_stride(shape.io_bytes);
        let buffers = Pages::new(depth.saturating_mul(stride))
            .map_err(|error| EngineError::Failed(error.to_string()))?;
        let file = target.handle()?;
        // The registrations want two places.
        let submission = shape.depth.max(2);
        let completion = shape.depth.saturating_mul(2).min(capabilities.completion_max);
        let version = capabilities.version.min(RingCapabilities::WRITES);
        let failed = |what: &str, error| {
            target.calls.close(file);
            EngineError::Failed(format!(
                "engine ioring: {what} failed for worker {}: {error}; lower --iodepth or --bs, or use engine iocp",
                shape.worker
            ))
        };
        let ring = rings
            .create(version, submission, completion)
            .map_err(|error| failed("CreateIoRing", error))?;
        let bytes = u32::try_from(depth.saturating_mul(stride)).unwrap_or(0);
        // SAFETY: the buffers are as long as is said, are accessed as atomics alone, and stay until
        // the ring is closed and all has ended, or for ever; see `drop`.
        let registered = unsafe { rings.register(ring, file, buffers.as_ptr(), bytes) };
        if let Err(error) = registered {
            // What was begun may still name the buffers.
            rings.close(ring);
            std::mem::forget(buffers);
            return Err(failed("registering the file and the buffers", error));
        }
        Ok(Self {
            rings: rings.clone(),
            ring,
            built: 0,
            under_way: 0,
            whole_bytes: shape.io_bytes,
            buffer_stride: stride,
            generation: 0,
            bounds: Bounds::new(geometry, shape.io_bytes, target.writable),
            cookies: vec![IDLE; depth].into(),
            wanted: vec![0; depth].into(),
            ended: Vec::with_capacity(depth),
            buffers: Some(buffers),
            writable: target.writable,
            misused: None,
            seen: Arc::clone(&target.seen),
            calls: target.calls.clone(),
            file,
        })
    }

    /// Builds the request of an operation.
    #[inline(always)]
    fn build(&mut self, tag: Tag, operation: Operation, cookie: u64) -> Result<(), IoStatus> {
        let Operation { kind, offset, bytes } = operation;
        let Self { rings, ring, .. } = self;
        // Below 4 GiB, as the whole buffer is.
        let at = (tag.index() * self.buffer_stride) as u32;
        let user_data = cookie as usize;
        let built = match kind {
            OperationKind::Flush if !self.writable => return Err(IoStatus::OK),
            OperationKind::Flush => rings.flush(*ring, user_data),
            _ if !self.bounds.admits(&operation) => return Err(IoStatus::REJECTED),
            OperationKind::Write => rings.write(*ring, at, bytes, offset, user_data),
            OperationKind::Read => rings.read(*ring, at, bytes, offset, user_data),
        };
        built.map_err(status_of)
    }

    /// The tag of a completion, idle from now on, and how its I/O ended.
    #[inline(always)]
    fn complete(&mut self, completion: &RingCompletion) -> Result<(Tag, IoStatus), EngineError> {
        let cookie = completion.user_data as u64;
        let tag = Tag(cookie as u16);
        match self.cookies.get_mut(tag.index()) {
            Some(slot) if *slot == cookie => *slot = IDLE,
            _ => return Err(stray("ioring", cookie, completion.result.0.into())),
        }
        self.under_way = self.under_way.saturating_sub(1);
        let wanted = self.wanted.get(tag.index()).copied().unwrap_or(0);
        let status = match completion.result.is_success() {
            true => moved(completion.bytes, wanted),
            false => {
                let status = status_of(completion.result);
                self.seen.note_failure(status);
                status
            }
        };
        Ok((tag, status))
    }

    /// Hands over what was built, and waits for one completion at most so long.
    #[inline(always)]
    fn submit(&mut self, wait_for: u32, wait_ms: u32) -> Result<(), EngineError> {
        match self.rings.submit(self.ring, wait_for, wait_ms) {
            Ok(_) | Err(HResult::WAIT_TIMEOUT) => {
                self.under_way += std::mem::take(&mut self.built);
                Ok(())
            }
            Err(error) => Err(submit_failed(error)),
        }
    }

    /// Takes completions until nothing is under way; whether that was reached.
    fn drain(&mut self) -> bool {
        let start = Instant::now();
        while self.under_way > 0 && start.elapsed() < DROP_WAIT_MAX {
            match self.rings.pop(self.ring) {
                Ok(Some(completion)) if self.complete(&completion).is_ok() => {}
                Ok(None) if self.submit(1, 100).is_ok() => {}
                _ => return false,
            }
        }
        self.under_way == 0
    }
}

/// An `HRESULT` as an I/O's status; what is no error number of Windows is an I/O error.
#[cold]
fn status_of(result: HResult) -> IoStatus {
    failure(result.win32().map_or(Win32Error::IO_DEVICE, Win32Error))
}

#[cold]
fn submit_failed(error: HResult) -> EngineError {
    EngineError::Failed(format!(
        "engine ioring: SubmitIoRing failed: {error}; see the system's event log, or use engine iocp"
    ))
}

#[cold]
fn misused(tag: Tag) -> EngineError {
    EngineError::Failed(format!(
        "engine ioring: tag {} was pushed beyond the depth or while in flight; this is a bug of the program, please report it",
        tag.0
    ))
}

impl<C: Calls, R: RingCalls> Queue for RingQueue<C, R> {
    const SLEEPS: bool = true;

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        let index = tag.index();
        if self.cookies.get(index) != Some(&IDLE) {
            cold_path();
            self.misused = Some(tag);
            return;
        }
        // Never all ones, which is no tag in flight.
        self.generation = self.generation.wrapping_add(GENERATION) & (u64::MAX >> 1);
        let cookie = self.generation | u64::from(tag.0);
        let built = self.build(tag, operation, cookie);
        let flushes = operation.kind == OperationKind::Flush;
        match built {
            Ok(()) => {
                self.built += 1;
                if let (Some(slot), Some(wanted)) =
                    (self.cookies.get_mut(index), self.wanted.get_mut(index))
                {
                    (*slot, *wanted) = (cookie, if flushes { 0 } else { operation.bytes });
                }
            }
            Err(status) => {
                cold_path();
                // In flight until it is reported.
                if let Some(slot) = self.cookies.get_mut(index) {
                    *slot = cookie;
                }
                self.ended.push((tag, status));
            }
        }
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        if self.built > 0 { self.submit(0, 0) } else { Ok(()) }
    }

    #[inline(always)]
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        if let Some(tag) = self.misused {
            return Err(misused(tag));
        }
        let mut count = self.ended.len() as u32;
        for &(tag, status) in &self.ended {
            if let Some(slot) = self.cookies.get_mut(tag.index()) {
                *slot = IDLE;
            }
            sink(tag, status);
        }
        self.ended.clear();
        let mut has_waited = count > 0;
        // Each turn but one takes a request that was under way, so that it ends.
        loop {
            let popped = self.rings.pop(self.ring).map_err(submit_failed)?;
            if let Some(completion) = popped {
                let (tag, status) = self.complete(&completion)?;
                sink(tag, status);
                count += 1;
                continue;
            }
            let wait_ms = wait_ms(wait);
            if count > 0 || has_waited || wait_ms == 0 {
                return Ok(count);
            }
            has_waited = true;
            match self.under_way {
                0 => std::thread::sleep(Duration::from_millis(wait_ms.into())),
                _ => self.submit(1, wait_ms)?,
            }
        }
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        let bytes = data.len().min(self.whole_bytes as usize);
        if let (Some(buffers), Some(data)) = (&self.buffers, data.get(..bytes)) {
            buffers.write(tag.index() * self.buffer_stride, data);
        }
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        let bytes = data.len().min(self.whole_bytes as usize);
        if let (Some(buffers), Some(data)) = (&self.buffers, data.get_mut(..bytes)) {
            buffers.read(tag.index() * self.buffer_stride, data);
        }
    }
}

impl<C: Calls, R: RingCalls> Drop for RingQueue<C, R> {
    /// What is under way is awaited. Where an end does not come, Windows keeps the ring and the memory
    /// that it may still write to.
    fn drop(&mut self) {
        if self.under_way > 0 && !self.drain() {
            std::mem::forget(self.buffers.take());
        } else {
            self.rings.close(self.ring);
        }
        self.calls.close(self.file);
    }
}
