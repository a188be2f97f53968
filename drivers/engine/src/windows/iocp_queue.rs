//! One worker's handle, port and requests.

#![allow(unsafe_code)]

use super::target::{Seen, WindowsTarget};
use super::{DROP_WAIT_MAX, buffer_stride, failure, moved, wait_ms};
use crate::bounds::Bounds;
use crate::{
    EngineError, Geometry, IoStatus, Operation, OperationKind, Queue, QueueShape, Tag, Wait,
};
use nvpoll_mem::Pages;
use nvpoll_windows::{Calls, Handle, NtStatus, Overlapped, PortEntry, Started, Win32Error};
use std::hint::cold_path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Completions taken out of the port by one call.
const ENTRIES: usize = 64;

/// The words of an OVERLAPPED: outcome, bytes, offset, event.
const WORDS: usize = size_of::<Overlapped>() / size_of::<AtomicU64>();

/// Where a tag's request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere.
    Idle,
    /// Pushed, or ended and not yet reported.
    Here,
    /// Windows has it.
    UnderWay,
}

/// Both of a lane's handles, closed when dropped.
#[derive(Debug)]
struct Handles<C: Calls> {
    calls: C,
    file: Handle,
    port: Handle,
}

impl<C: Calls> Drop for Handles<C> {
    fn drop(&mut self) {
        self.calls.close(self.file);
        self.calls.close(self.port);
    }
}

/// A lane through a port of its own.
#[derive(Debug)]
pub struct PortQueue<C: Calls> {
    handles: Handles<C>,
    /// What succeeds at once does not come out of the port.
    skips: bool,
    under_way: u32,
    whole_bytes: u32,
    buffer_stride: usize,
    bounds: Bounds,
    places: Box<[Place]>,
    /// Bytes that each tag's request asked for.
    wanted: Box<[u32]>,
    pushed: Vec<(Tag, Operation)>,
    /// Ended without the port.
    ended: Vec<(Tag, IoStatus)>,
    entries: Box<[PortEntry; ENTRIES]>,
    /// An OVERLAPPED for each tag, which Windows writes to while its request is under way; `None`
    /// once given up to it, as the buffers.
    requests: Option<Pages>,
    buffers: Option<Pages>,
    // Cold from here on.
    writable: bool,
    misused: Option<Tag>,
    at_once: u64,
    started: u64,
    seen: Arc<Seen>,
}

impl<C: Calls> PortQueue<C> {
    pub(super) fn new(
        target: &WindowsTarget<C>,
        shape: QueueShape,
        geometry: &Geometry,
    ) -> Result<Self, EngineError> {
        let depth = shape.depth as usize;
        let stride = buffer_stride(shape.io_bytes);
        let pages =
            |bytes| Pages::new(bytes).map_err(|error| EngineError::Failed(error.to_string()));
        let buffers = pages(depth.saturating_mul(stride))?;
        let requests = pages(depth * size_of::<Overlapped>())?;
        let calls = target.calls.clone();
        let no_port = |error| {
            EngineError::Failed(format!(
                "engine iocp: no completion port for worker {}: {error}; lower --numjobs",
                shape.worker
            ))
        };
        let file = target.handle()?;
        let port = calls.new_port().inspect_err(|_| calls.close(file)).map_err(no_port)?;
        let handles = Handles { calls, file, port };
        handles.calls.join(port, file, 0).map_err(no_port)?;
        Ok(Self {
            skips: handles.calls.skip_port_on_success(file).is_ok(),
            handles,
            under_way: 0,
            whole_bytes: shape.io_bytes,
            buffer_stride: stride,
            bounds: Bounds::new(geometry, shape.io_bytes, target.writable),
            places: vec![Place::Idle; depth].into(),
            wanted: vec![0; depth].into(),
            pushed: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            entries: Box::new([PortEntry::default(); ENTRIES]),
            requests: Some(requests),
            buffers: Some(buffers),
            writable: target.writable,
            misused: None,
            at_once: 0,
            started: 0,
            seen: Arc::clone(&target.seen),
        })
    }

    /// Whether what succeeds at once is reported by the call alone.
    pub(super) fn skips(&self) -> bool {
        self.skips
    }

    /// Ends a request that Windows does not have.
    #[inline(always)]
    fn end(&mut self, tag: Tag, status: IoStatus) {
        if !status.is_ok() {
            self.seen.note_failure(status);
        }
        self.ended.push((tag, status));
    }

    /// Hands one operation to Windows.
    #[inline(always)]
    fn start(&mut self, tag: Tag, operation: Operation) {
        let Operation { kind, offset, bytes } = operation;
        if kind == OperationKind::Flush {
            cold_path();
            let status = self.flush();
            return self.end(tag, status);
        }
        if !self.bounds.admits(&operation) {
            return self.end(tag, IoStatus::REJECTED);
        }
        match self.call(tag, kind, offset, bytes) {
            Started::AtOnce { bytes: done } if self.skips => {
                self.at_once += 1;
                return self.end(tag, moved(done as usize, bytes));
            }
            Started::AtOnce { .. } => self.at_once += 1,
            Started::Pending => {}
            Started::Failed(error) => return self.end(tag, failure(error)),
        }
        self.under_way += 1;
        if let (Some(place), Some(wanted)) =
            (self.places.get_mut(tag.index()), self.wanted.get_mut(tag.index()))
        {
            (*place, *wanted) = (Place::UnderWay, bytes);
        }
    }

    /// The call itself, for an operation that was found to be within the lane's bounds.
    #[inline(always)]
    fn call(&mut self, tag: Tag, kind: OperationKind, offset: u64, bytes: u32) -> Started {
        let Self { handles: Handles { calls, file, .. }, requests, buffers, .. } = self;
        let (Some(requests), Some(buffers)) = (requests, buffers) else {
            return Started::Failed(Win32Error::OPERATION_ABORTED);
        };
        let first = tag.index() * WORDS;
        let Some(words) = requests.words().get(first..first + WORDS) else {
            return Started::Failed(Win32Error::INVALID_PARAMETER);
        };
        for (word, value) in words.iter().zip([0, 0, offset, 0]) {
            word.store(value, Relaxed);
        }
        self.started += 1;
        // SAFETY: the tag is below the depth, since its words are there, and has a buffer of
        // `buffer_stride` bytes, which the bounds hold `bytes` within; it is idle, as `push` saw, so
        // that neither is Windows' yet. Both memories are accessed as atomics alone and stay until
        // the request has ended, or for ever; see `drop`.
        unsafe {
            let request = requests.as_ptr().add(tag.index() * size_of::<Overlapped>());
            let request = request.cast::<Overlapped>();
            let buffer = buffers.as_ptr().add(tag.index() * self.buffer_stride);
            match kind {
                OperationKind::Write => calls.write(*file, buffer, bytes, request),
                _ => calls.read(*file, buffer, bytes, request),
            }
        }
    }

    /// Windows flushes in the call. A handle that may not write has nothing to flush.
    fn flush(&mut self) -> IoStatus {
        if !self.writable {
            return IoStatus::OK;
        }
        self.handles.calls.flush(self.handles.file).map_or_else(failure, |()| IoStatus::OK)
    }

    /// The tag whose request came out of the port, idle from now on, and how it ended.
    #[inline(always)]
    fn complete(&mut self, entry: &PortEntry) -> Result<(Tag, IoStatus), EngineError> {
        let Some(requests) = &self.requests else { return Err(stray(entry)) };
        let distance = entry.overlapped.wrapping_sub(requests.as_ptr().addr());
        let index = distance / size_of::<Overlapped>();
        let (Some(place), true) =
            (self.places.get_mut(index), distance.is_multiple_of(size_of::<Overlapped>()))
        else {
            return Err(stray(entry));
        };
        if *place != Place::UnderWay {
            return Err(stray(entry));
        }
        *place = Place::Idle;
        self.under_way -= 1;
        let word = |at: usize| {
            requests.words().get(index * WORDS + at).map_or(0, |word| word.load(Relaxed))
        };
        // The request's own status, not the call's.
        let status = NtStatus(word(0) as u32);
        let wanted = self.wanted.get(index).copied().unwrap_or(0);
        let status = match status.is_success() {
            true => moved(word(1) as usize, wanted),
            false => {
                let status = failure(self.handles.calls.error_of(status));
                self.seen.note_failure(status);
                status
            }
        };
        Ok((Tag(index as u16), status))
    }

    /// Takes completions out of the port until nothing is under way; whether that was reached.
    fn drain(&mut self) -> bool {
        let start = Instant::now();
        while self.under_way > 0 && start.elapsed() < DROP_WAIT_MAX {
            let Handles { calls, port, .. } = &self.handles;
            let Ok(found) = calls.dequeue(*port, self.entries.as_mut_slice(), 100) else {
                return false;
            };
            for index in 0..found {
                let entry = self.entries.get(index).copied().unwrap_or_default();
                if self.complete(&entry).is_err() {
                    return false;
                }
            }
        }
        self.under_way == 0
    }
}

#[cold]
fn stray(entry: &PortEntry) -> EngineError {
    EngineError::Failed(format!(
        "engine iocp: a completion of {} bytes, status {:#010x}, matches no I/O in flight (late, doubled or foreign); the figures of this run cannot be trusted",
        entry.bytes, entry.internal
    ))
}

#[cold]
fn misused(tag: Tag) -> EngineError {
    EngineError::Failed(format!(
        "engine iocp: tag {} was pushed beyond the depth or while in flight; this is a bug of the program, please report it",
        tag.0
    ))
}

impl<C: Calls> Queue for PortQueue<C> {
    const SLEEPS: bool = true;

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        match self.places.get_mut(tag.index()) {
            Some(place @ Place::Idle) => {
                *place = Place::Here;
                self.pushed.push((tag, operation));
            }
            _ => {
                cold_path();
                self.misused = Some(tag);
            }
        }
    }

    /// One call an I/O: Windows has none for several.
    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        for index in 0..self.pushed.len() {
            if let Some(&(tag, operation)) = self.pushed.get(index) {
                self.start(tag, operation);
            }
        }
        self.pushed.clear();
        Ok(())
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
            if let Some(place) = self.places.get_mut(tag.index()) {
                *place = Place::Idle;
            }
            sink(tag, status);
        }
        self.ended.clear();
        let mut wait_ms = if count > 0 { 0 } else { wait_ms(wait) };
        if self.under_way == 0 && wait_ms == 0 {
            return Ok(count);
        }
        loop {
            let Handles { calls, port, .. } = &self.handles;
            let found = calls.dequeue(*port, self.entries.as_mut_slice(), wait_ms).map_err(gone)?;
            for index in 0..found {
                let Some(&entry) = self.entries.get(index) else { break };
                let (tag, status) = self.complete(&entry)?;
                sink(tag, status);
            }
            count += found as u32;
            // Each round takes requests that were under way, so that it ends.
            if found < ENTRIES {
                return Ok(count);
            }
            wait_ms = 0;
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

#[cold]
fn gone(error: Win32Error) -> EngineError {
    EngineError::Failed(format!(
        "engine iocp: GetQueuedCompletionStatusEx failed: {error}; see the system's event log"
    ))
}

impl<C: Calls> Drop for PortQueue<C> {
    /// What is under way is cancelled and awaited. Where an end does not come, Windows keeps the memory
    /// that it may still write to.
    fn drop(&mut self) {
        self.seen.at_once.fetch_add(self.at_once, Relaxed);
        self.seen.all.fetch_add(self.started, Relaxed);
        if self.under_way > 0 {
            self.handles.calls.cancel_all(self.handles.file);
            if !self.drain() {
                std::mem::forget((self.requests.take(), self.buffers.take()));
            }
        }
    }
}
