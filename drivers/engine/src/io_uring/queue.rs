//! A worker's ring with its buffers: tags in, completions out.

#![allow(unsafe_code)]

use super::abi::{Entry, FileRef, op};
use super::buffer_stride;
use super::form::{self, Form, Transfer};
use super::ring::Ring;
use super::rings::{Features, Seen, Submitter, explain_unpinned};
use crate::bounds::Bounds;
use crate::cookie::{GENERATION, stray};
use crate::{
    EngineError, Geometry, IoStatus, Operation, OperationKind, Queue, QueueShape, Tag, Wait,
};
use nvpoll_mem::Pages;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times in a row that the kernel may refuse to take I/O for want of memory.
const STARVED_MAX: u32 = 100_000;

/// How long a dropped queue waits for I/O in flight before it gives up its memory instead.
const DROP_WAIT_MAX: Duration = Duration::from_secs(10);

/// Looks at the ring before a queue whose kernel thread submits goes to sleep.
const SPINS_MAX: u32 = 4096;

/// `IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY`, in the entry's flags.
const CANCEL_ANYTHING: u64 = (1 << 0 | 1 << 2) << 32;

/// What belongs to one tag.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Tag and generation: what the entry in flight carries as user data.
    cookie: u64,
    /// Bytes that the I/O in flight is to move.
    bytes: u32,
}

/// A worker's ring. It stays on the thread that made it.
#[derive(Debug)]
pub struct RingQueue<F: Form> {
    ring: Ring<F>,
    form: F,
    slots: Box<[Slot]>,
    bounds: Bounds,
    buffers_address: u64,
    buffer_stride: u64,
    batch: u32,
    /// Something stands in `exceptions` or `misused`.
    has_exception: bool,
    submitter: Submitter,
    // Cold from here on.
    starved: u32,
    exceptions: Vec<(Tag, Exception)>,
    misused: Option<Tag>,
    /// `None` once given up to the kernel.
    buffers: Option<Pages>,
    file: Arc<File>,
    seen: Seen,
}

/// What ends an operation that does not go through the ring.
#[derive(Clone, Copy, Debug)]
enum Exception {
    /// It was refused.
    Rejected,
    /// A flush, on a ring that takes none.
    Flush,
}

/// What a queue is made of beside its ring.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    pub(super) file: &'a Arc<File>,
    pub(super) shape: QueueShape,
    pub(super) geometry: &'a Geometry,
    pub(super) writable: bool,
    /// Buffers and file are not registered.
    pub(super) no_fixed: bool,
    pub(super) batch: u32,
    pub(super) submitter: Submitter,
    pub(super) seen: Seen,
}

impl<F: Form> RingQueue<F> {
    /// `form` is asked for with the file as entries name it, and whether buffers are registered.
    pub(super) fn new(
        mut ring: Ring<F>,
        parts: Parts<'_>,
        form: impl FnOnce(FileRef, bool) -> F,
    ) -> Result<Self, EngineError> {
        let Parts { file, shape, geometry, writable, no_fixed, batch, submitter, seen } = parts;
        let depth = shape.depth as usize;
        let stride = buffer_stride(shape.io_bytes);
        let buffers = Pages::new(depth.saturating_mul(stride))
            .map_err(|error| EngineError::Failed(error.to_string()))?;
        let text = |error: io::Error| error.to_string();
        let as_asked = || Err("as asked for".to_owned());
        let features = Features {
            flags: ring.flags(),
            buffers: match no_fixed {
                true => as_asked(),
                // SAFETY: the queue keeps the buffers for as long as an I/O is in flight; see
                // `drop`.
                false => unsafe { ring.register_buffer(&buffers) }
                    .map_err(|error| explain_unpinned(&error, buffers.bytes())),
            },
            file: if no_fixed { as_asked() } else { ring.register_file(file).map_err(text) },
            ring: ring.register_self().map_err(text),
        };
        let file_ref = match features.file {
            Ok(()) => FileRef::Registered,
            Err(_) => FileRef::Descriptor(file.as_raw_fd()),
        };
        let idle = |tag| Slot { cookie: tag + 2 * GENERATION, bytes: 0 };
        let queue = Self {
            ring,
            form: form(file_ref, features.buffers.is_ok()),
            slots: (0..u64::from(shape.depth)).map(idle).collect(),
            bounds: Bounds::new(geometry, shape.io_bytes, writable),
            buffers_address: buffers.as_ptr().expose_provenance() as u64,
            buffer_stride: stride as u64,
            batch: batch.clamp(1, shape.depth),
            has_exception: false,
            submitter,
            starved: 0,
            exceptions: Vec::with_capacity(depth),
            misused: None,
            buffers: Some(buffers),
            file: Arc::clone(file),
            seen,
        };
        queue.seen.add(features);
        Ok(queue)
    }

    #[cold]
    fn except(&mut self, tag: Tag, what: Exception) {
        self.has_exception = true;
        self.exceptions.push((tag, what));
    }

    #[cold]
    fn misuse(&mut self, tag: Tag) {
        self.has_exception = true;
        self.misused = Some(tag);
    }

    #[cold]
    fn push_flush(&mut self, tag: Tag, user_data: u64) {
        let form = &self.form;
        let mut is_written = false;
        // SAFETY: a flush names no memory; the tag was idle, so the ring has room.
        unsafe { self.ring.push(|words| is_written = form.write_flush(words, user_data)) };
        if !is_written {
            self.ring.take_back();
            self.except(tag, Exception::Flush);
        }
    }

    /// One of those that did not go through the ring since the last time. A flush is made here, by
    /// a call that waits for it: the lane's other I/Os go on below.
    #[cold]
    fn next_exception(&mut self) -> Result<Option<(Tag, IoStatus)>, EngineError> {
        if let Some(tag) = self.misused {
            return Err(EngineError::Failed(format!(
                "tag {} was pushed beyond the depth of {} or while in flight; this is a bug of the \
                 program, please report it",
                tag.0,
                self.slots.len()
            )));
        }
        let Some((tag, what)) = self.exceptions.pop() else {
            self.has_exception = false;
            return Ok(None);
        };
        if let Some(slot) = self.slots.get_mut(tag.index()) {
            slot.cookie += GENERATION;
        }
        let status = match what {
            Exception::Rejected => IoStatus::REJECTED,
            Exception::Flush => match self.file.sync_data() {
                Ok(()) => IoStatus::OK,
                Err(error) => IoStatus::errno(error.raw_os_error().unwrap_or(libc::EIO)),
            },
        };
        Ok(Some((tag, status)))
    }

    /// One system call: submits what is pending, and waits if nothing is there to report (the
    /// kernel does not wait where a completion is ready already).
    ///
    /// The kernel stops at an entry that it finds invalid, having completed it with an error. What
    /// stands behind it stays pending, and goes with the next call.
    #[inline(always)]
    fn enter(&mut self, wait: Wait, has_some: bool) -> Result<(), EngineError> {
        if self.submitter != Submitter::Call {
            return self.enter_for_others(wait, has_some);
        }
        let outstanding = self.ring.pending() + self.ring.in_flight();
        let result = match wait {
            Wait::Upto(limit) if !has_some => {
                self.ring.enter(self.batch.min(outstanding).max(1), Some(limit))
            }
            _ if outstanding == 0 => return Ok(()),
            _ => self.ring.enter(0, None),
        };
        if result.is_err() || self.ring.has_overflowed() {
            return self.trouble(result);
        }
        self.starved = 0;
        Ok(())
    }

    /// The same where a thread or workers of the kernel's send the I/O.
    #[inline(never)]
    fn enter_for_others(&mut self, wait: Wait, has_some: bool) -> Result<(), EngineError> {
        let result = match self.submitter {
            Submitter::Thread => self.enter_with_thread(wait, has_some),
            _ => self.enter_with_workers(wait, has_some),
        };
        if result.is_err() || self.ring.has_overflowed() {
            return self.trouble(result);
        }
        self.starved = 0;
        Ok(())
    }

    /// Leaves what is pending to the kernel's thread, looks for completions a while, and sleeps
    /// then.
    fn enter_with_thread(&mut self, wait: Wait, has_some: bool) -> io::Result<()> {
        let mut result = self.ring.enter_with_thread(0, None);
        if let (Ok(()), Wait::Upto(limit), false) = (&result, wait, has_some) {
            let least = self.batch.min(self.ring.in_flight()).max(1);
            let mut spins = SPINS_MAX;
            while self.ring.ready() < least && spins > 0 {
                std::hint::spin_loop();
                spins -= 1;
            }
            if spins == 0 {
                result = self.ring.enter_with_thread(least, Some(limit));
            }
        }
        result
    }

    /// Submits, and waits by a call of its own: a worker that completes an I/O wakes a waiting call
    /// at once, before it takes the next, so that on a processor that they share each few I/Os cost
    /// two switches. Given the processor, it does all that it can first. Where the workers have
    /// another one, or the device is slow, that is over at once.
    fn enter_with_workers(&mut self, wait: Wait, has_some: bool) -> io::Result<()> {
        let outstanding = self.ring.pending() + self.ring.in_flight();
        match wait {
            _ if outstanding == 0 && (has_some || wait == Wait::No) => Ok(()),
            Wait::Upto(limit) if !has_some => {
                let least = self.batch.min(outstanding).max(1);
                self.ring.submit()?;
                if self.ring.ready() < least {
                    std::thread::yield_now();
                }
                // Completions are posted on the way back from a system call.
                match self.ring.ready() < least {
                    true => self.ring.enter(least, Some(limit)),
                    false => Ok(()),
                }
            }
            _ => self.ring.enter(0, None),
        }
    }

    /// A kernel that is short of memory is asked again by the next pass, so often.
    #[cold]
    fn trouble(&mut self, result: io::Result<()>) -> Result<(), EngineError> {
        let error = match result {
            Ok(()) => {
                return Err(failed::<F>("the completion ring has overflowed", "this is a bug"));
            }
            Err(error) => error,
        };
        self.starved += 1;
        let is_shortage = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY));
        if is_shortage && self.starved <= STARVED_MAX {
            return Ok(());
        }
        let times = self.starved;
        let seen = format!("io_uring_enter failed {times} times in a row: {error}");
        Err(failed::<F>(&seen, "see `dmesg` for what the kernel says"))
    }

    /// The tag of a completion, idle from now on, and how its I/O ended.
    #[inline(always)]
    fn complete(&mut self, user_data: u64, result: i32) -> Option<(Tag, IoStatus)> {
        let tag = Tag(user_data as u16);
        let slot = self.slots.get_mut(tag.index()).filter(|slot| slot.cookie == user_data)?;
        slot.cookie = user_data + GENERATION;
        Some((tag, F::status(result, slot.bytes)))
    }
}

impl<F: Form> Queue for RingQueue<F> {
    const SLEEPS: bool = true;

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        let Some(slot) = self.slots.get_mut(tag.index()) else { return self.misuse(tag) };
        // Odd generations are in flight, even ones idle: a completion of an idle or an earlier I/O
        // matches no cookie.
        let user_data = slot.cookie + GENERATION;
        if user_data & GENERATION == 0 {
            return self.misuse(tag);
        }
        let Operation { kind, offset, bytes } = operation;
        *slot = Slot { cookie: user_data, bytes };
        if kind == OperationKind::Flush {
            slot.bytes = 0;
            return self.push_flush(tag, user_data);
        }
        if !self.bounds.admits(&operation) {
            return self.except(tag, Exception::Rejected);
        }
        let transfer = Transfer {
            is_write: form::is_write(kind),
            offset,
            address: self.buffers_address + self.buffer_stride * u64::from(tag.0),
            bytes,
            user_data,
        };
        let form = &self.form;
        // SAFETY: the tag is below the depth and the length within the tag's buffer, which stays
        // until the completion was taken; the tag was idle, so the ring has room.
        unsafe { self.ring.push(|words| form.write(words, &transfer)) };
    }

    /// Leaves the system call to `reap`, which waits by the same one.
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
        let mut count = 0;
        if self.has_exception {
            while let Some((tag, status)) = self.next_exception()? {
                sink(tag, status);
                count += 1;
            }
        }
        if self.ring.pending() != 0 || self.ring.ready() < self.batch {
            self.enter(wait, count != 0)?;
        }
        let ready = self.ring.ready();
        for _ in 0..ready {
            let (user_data, result) = self.ring.take();
            let Some((tag, status)) = self.complete(user_data, result) else {
                self.ring.release_taken();
                return Err(stray(F::ENGINE, user_data, result.into()));
            };
            sink(tag, status);
        }
        self.ring.release_taken();
        Ok(count + ready)
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        let stride = self.buffer_stride as usize;
        if let Some(buffers) = &self.buffers
            && tag.index() < self.slots.len()
        {
            buffers.write(tag.index() * stride, data.get(..stride).unwrap_or(data));
        }
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        let stride = self.buffer_stride as usize;
        if let Some(buffers) = &self.buffers
            && tag.index() < self.slots.len()
        {
            let bytes = data.len().min(stride);
            buffers.read(tag.index() * stride, &mut data[..bytes]);
        }
    }
}

impl<F: Form> Drop for RingQueue<F> {
    /// The kernel may write to the buffers of I/O in flight: it is waited for, or else they are
    /// never given back.
    fn drop(&mut self) {
        if self.submitter == Submitter::Thread {
            self.seen.add_thread_ns(self.ring.thread_ns());
        }
        if !self.quiesce() {
            std::mem::forget(self.buffers.take());
        }
    }
}

impl<F: Form> RingQueue<F> {
    /// Cancels what has not started and waits for the rest; whether nothing is left.
    fn quiesce(&mut self) -> bool {
        if self.ring.in_flight() == 0 {
            return true;
        }
        let deadline = Instant::now() + DROP_WAIT_MAX;
        self.ring.discard_pending();
        let cancel = Entry {
            head: Entry::head(op::ASYNC_CANCEL, FileRef::Descriptor(-1)),
            bytes_and_flags: CANCEL_ANYTHING,
            user_data: u64::MAX,
            ..Entry::default()
        };
        // SAFETY: it names no memory, and nothing else is pending.
        unsafe { self.ring.push(|words| form::store(words, &cancel)) };
        while self.ring.pending() != 0 || self.ring.in_flight() != 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let entered = match self.submitter == Submitter::Thread {
                true => self.ring.enter_with_thread(1, Some(left)),
                false => self.ring.enter(1, Some(left)),
            };
            if left.is_zero() || entered.is_err() {
                return false;
            }
            for _ in 0..self.ring.ready() {
                self.ring.take();
            }
            self.ring.release_taken();
        }
        true
    }
}

fn failed<F: Form>(seen: &str, advice: &str) -> EngineError {
    EngineError::Failed(format!("engine {}: {seen}; {advice}", F::ENGINE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io_uring::{IoUring, IoUringQueue};
    use crate::{Engine, OpenOptions, Target};
    use nvpoll_mem::PAGE_BYTES;

    /// A queue of two on a file of 16 pages; `None` where this system has no io_uring.
    fn queue() -> Option<(tempfile::TempDir, IoUringQueue)> {
        if let Err(reason) = IoUring::available() {
            eprintln!("not tested: {reason}");
            return None;
        }
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 16 * PAGE_BYTES]).unwrap();
        let engine = IoUring::open(&Target::Path(path), &OpenOptions::default()).unwrap();
        let queue = engine.queue(QueueShape { worker: 0, depth: 2, io_bytes: 4096 }).unwrap();
        Some((folder, queue))
    }

    const READ: Operation = Operation { kind: OperationKind::Read, offset: 0, bytes: 4096 };

    fn finish(queue: &mut IoUringQueue, count: u32) -> Vec<(u16, IoStatus)> {
        let (mut seen, mut done) = (Vec::new(), 0);
        for _ in 0..100 {
            let wait = Wait::Upto(Duration::from_millis(100));
            done += queue.reap(wait, &mut |tag, status| seen.push((tag.0, status))).unwrap();
            if done >= count {
                break;
            }
        }
        seen.sort_unstable();
        seen
    }

    #[test]
    fn a_completion_matches_only_the_io_in_flight() {
        let Some((_folder, mut queue)) = queue() else { return };
        assert_eq!(queue.complete(0, 0), None, "an entry of zeroes");
        assert_eq!(queue.complete(5, 0), None, "a tag beyond the depth");
        assert_eq!(queue.complete(u64::MAX, 0), None);
        queue.push(Tag(0), READ);
        let cookie = queue.slots[0].cookie;
        assert_eq!(queue.complete(cookie - 2 * GENERATION, 4096), None, "the time before");
        assert_eq!(finish(&mut queue, 1), [(0, IoStatus::OK)]);
        assert_eq!(queue.complete(cookie, 4096), None, "a second time");
        queue.push(Tag(0), READ);
        assert_eq!(queue.complete(cookie, 4096), None, "a second time, after the next push");
        assert_eq!(finish(&mut queue, 1), [(0, IoStatus::OK)]);
    }

    #[test]
    fn pushing_a_tag_that_is_in_flight_fails_the_run() {
        for tag in [Tag(0), Tag(2)] {
            let Some((_folder, mut queue)) = queue() else { return };
            queue.push(Tag(0), READ);
            queue.push(tag, READ);
            let error = queue.reap(Wait::No, &mut |_, _| ()).unwrap_err();
            assert!(error.to_string().contains(&format!("tag {}", tag.0)), "{error}");
        }
    }

    #[test]
    fn an_entry_that_the_kernel_refuses_does_not_hold_up_those_behind_it() {
        let Some((_folder, mut queue)) = queue() else { return };
        queue.slots[1].cookie += GENERATION;
        let bad = Entry {
            head: Entry::head(0xff, FileRef::Registered),
            user_data: queue.slots[1].cookie,
            ..Entry::default()
        };
        // SAFETY: the entry names no memory, and the ring is empty.
        unsafe { queue.ring.push(|words| form::store(words, &bad)) };
        queue.push(Tag(0), READ);
        let seen = finish(&mut queue, 2);
        assert_eq!(seen, [(0, IoStatus::OK), (1, IoStatus::errno(libc::EINVAL))]);
    }

    #[test]
    fn io_that_never_ends_is_not_waited_for_too_long() {
        let Some((_folder, mut queue)) = queue() else { return };
        let (reader, _writer) = std::io::pipe().unwrap();
        queue.slots[1].cookie += GENERATION;
        let endless = Entry {
            head: Entry::head(op::READ, FileRef::Descriptor(reader.as_raw_fd())),
            offset: u64::MAX,
            address: queue.buffers_address + queue.buffer_stride,
            bytes_and_flags: 4096,
            user_data: queue.slots[1].cookie,
        };
        // SAFETY: the address is that of the second tag's buffer, and the ring is empty.
        unsafe { queue.ring.push(|words| form::store(words, &endless)) };
        let start = Instant::now();
        for wait in [Wait::No, Wait::Upto(Duration::from_millis(50)), Wait::No] {
            assert_eq!(queue.reap(wait, &mut |_, _| panic!("it ended")).unwrap(), 0);
        }
        assert!(start.elapsed() >= Duration::from_millis(50));
        assert_eq!(queue.ring.in_flight(), 1);
        drop(queue);
        assert!(start.elapsed() < DROP_WAIT_MAX / 2, "the drop did not cancel it");
    }
}
