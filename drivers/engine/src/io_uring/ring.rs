//! One io_uring: set-up, the mapped rings, the system calls.
//!
//! Written on the kernel's interface itself (linux/io_uring.h, io_uring_setup(2),
//! io_uring_enter(2), io_uring_register(2)) because the hot path patches entries in place and
//! enters by a registered ring descriptor that lives as long as the ring: the `io-uring` crate
//! keeps its ring pointers private, and its registered descriptor is lost with the borrow that
//! registered it.

#![allow(unsafe_code)]

use nvpoll_mem::Pages;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

// Entries are composed as little-endian words.
const _: () = assert!(cfg!(target_endian = "little"));

/// Most entries of a submission ring (io_uring.c, `IORING_MAX_ENTRIES`).
pub(super) const ENTRIES_MAX: u32 = 32_768;

/// Largest registered buffer in bytes (rsrc.c, `io_buffer_validate`).
pub(super) const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// Operations (`enum io_uring_op`).
pub(super) mod op {
    pub(in super::super) const FSYNC: u8 = 3;
    pub(in super::super) const READ_FIXED: u8 = 4;
    pub(in super::super) const WRITE_FIXED: u8 = 5;
    pub(in super::super) const ASYNC_CANCEL: u8 = 14;
    pub(in super::super) const READ: u8 = 22;
    pub(in super::super) const WRITE: u8 = 23;
}

/// Set-up flags (`IORING_SETUP_*`).
pub(super) mod setup {
    pub(in super::super) const CLAMP: u32 = 1 << 4;
    pub(in super::super) const COOP_TASKRUN: u32 = 1 << 8;
    pub(in super::super) const SINGLE_ISSUER: u32 = 1 << 12;
    pub(in super::super) const DEFER_TASKRUN: u32 = 1 << 13;
    pub(in super::super) const NO_SQARRAY: u32 = 1 << 16;
}

const FEAT_SINGLE_MMAP: u32 = 1 << 0;
const FEAT_NODROP: u32 = 1 << 1;
const FEAT_EXT_ARG: u32 = 1 << 8;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;

const REGISTER_BUFFERS: u32 = 0;
const UNREGISTER_BUFFERS: u32 = 1;
const REGISTER_FILES: u32 = 2;
const UNREGISTER_FILES: u32 = 3;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

const SQ_CQ_OVERFLOW: u32 = 1 << 1;

const OFF_SQ_RING: libc::off_t = 0;
const OFF_SQES: libc::off_t = 0x1000_0000;

/// Eight words of a submission entry (`struct io_uring_sqe`).
const ENTRY_WORDS: usize = 8;
/// Two words of a completion entry (`struct io_uring_cqe`).
const COMPLETION_WORDS: usize = 2;

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_address: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    entries: u32,
    flags: u32,
    reserved: u32,
    user_address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq_off: SubmissionOffsets,
    cq_off: CompletionOffsets,
}

/// `struct __kernel_timespec`.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanoseconds: i64,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitArgument {
    signal_mask: u64,
    signal_mask_bytes: u32,
    wait_us_min: u32,
    timeout: u64,
}

/// `struct io_uring_rsrc_update`, as the ring registration takes it.
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

const _: () = assert!(size_of::<Parameters>() == 120);
const _: () = assert!(size_of::<WaitArgument>() == 24);
const _: () = assert!(size_of::<ResourceUpdate>() == 16);

/// One operation as a submission entry has it: the words that differ between entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// Operation, entry flags, priority and file: see [`Entry::head`].
    pub(super) head: u64,
    /// Byte offset in the file.
    pub(super) offset: u64,
    /// Address of the buffer.
    pub(super) address: u64,
    /// Length in bytes, and above it the operation's own flags.
    pub(super) bytes_and_flags: u64,
    /// What the completion carries back.
    pub(super) user_data: u64,
}

impl Entry {
    /// The first word: `opcode` (8 bits), entry flags (8), priority (16, none), `fd` (32).
    pub(super) const fn head(opcode: u8, file: FileRef) -> u64 {
        const FIXED_FILE: u64 = 1 << 0;
        match file {
            FileRef::Registered => opcode as u64 | FIXED_FILE << 8,
            FileRef::Descriptor(fd) => opcode as u64 | (fd as u32 as u64) << 32,
        }
    }
}

/// How an entry names its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRef {
    /// The one file that was registered.
    Registered,
    /// An open descriptor.
    Descriptor(i32),
}

/// A mapping of a ring's descriptor.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, offset: libc::off_t, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no other.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// The address of `count` values of type `T` at byte `offset`, checked against the mapping.
    fn values<T>(&self, offset: u32, count: usize) -> io::Result<NonNull<T>> {
        let offset = offset as usize;
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        match end {
            Some(end) if end <= self.bytes && offset.is_multiple_of(align_of::<T>()) => {
                // SAFETY: `offset` lies in the mapping.
                Ok(unsafe { self.start.add(offset) }.cast())
            }
            _ => Err(io::Error::other("the kernel put a ring outside its mapping")),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// An io_uring and its mapped rings, used by one thread.
#[derive(Debug)]
pub(super) struct Ring {
    entries: NonNull<[AtomicU64; ENTRY_WORDS]>,
    entry_mask: u32,
    completion_mask: u32,
    completions: NonNull<[AtomicU64; COMPLETION_WORDS]>,
    sq_tail_shared: NonNull<AtomicU32>,
    sq_flags: NonNull<AtomicU32>,
    cq_head_shared: NonNull<AtomicU32>,
    cq_tail_shared: NonNull<AtomicU32>,
    /// Entries written, as the kernel will see it.
    sq_tail: u32,
    /// Entries that the kernel took.
    submitted: u32,
    /// Completions that were taken.
    cq_head: u32,
    enter_fd: i32,
    enter_flags: u32,
    // Cold from here on.
    has_buffers: bool,
    has_file: bool,
    flags: u32,
    _rings: Mapping,
    _entries: Mapping,
    fd: OwnedFd,
}

impl Ring {
    /// Sets up a ring of at least `entries` entries with set-up flags `flags`; its completion ring
    /// has twice as many.
    ///
    /// # Errors
    /// The kernel's; `Unsupported` when it lacks a timeout on waiting (before Linux 5.11).
    pub(super) fn new(entries: u32, flags: u32) -> io::Result<Self> {
        let mut parameters = Parameters { flags, ..Parameters::default() };
        // SAFETY: the kernel reads and fills the structure that is passed.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut parameters) };
        let fd = i32::try_from(checked(fd)?).map_err(io::Error::other)?;
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let needed = FEAT_SINGLE_MMAP | FEAT_NODROP | FEAT_EXT_ARG;
        if parameters.features & needed != needed {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Self::map(fd, &parameters)
    }

    fn map(fd: OwnedFd, parameters: &Parameters) -> io::Result<Self> {
        let Parameters { sq_entries, cq_entries, flags, sq_off, cq_off, .. } = *parameters;
        let (sq_count, cq_count) = (sq_entries as usize, cq_entries as usize);
        let has_array = flags & setup::NO_SQARRAY == 0;
        let array_end =
            if has_array { sq_off.array as usize + sq_count * size_of::<u32>() } else { 0 };
        let completions_end = cq_off.entries as usize + cq_count * COMPLETION_WORDS * 8;
        let rings = Mapping::new(&fd, OFF_SQ_RING, array_end.max(completions_end))?;
        let entries = Mapping::new(&fd, OFF_SQES, sq_count * ENTRY_WORDS * 8)?;
        if !sq_entries.is_power_of_two() || !cq_entries.is_power_of_two() {
            return Err(io::Error::other("the kernel made a ring whose size is no power of two"));
        }
        let zero: NonNull<AtomicU64> = entries.values(0, sq_count * ENTRY_WORDS)?;
        for word in 0..sq_count * ENTRY_WORDS {
            // SAFETY: `values` checked that so many values lie in the mapping.
            unsafe { zero.add(word).as_ref() }.store(0, Relaxed);
        }
        if has_array {
            let array: NonNull<AtomicU32> = rings.values(sq_off.array, sq_count)?;
            for index in 0..sq_entries {
                // SAFETY: `values` checked that `sq_count` values lie in the mapping.
                unsafe { array.add(index as usize).as_ref() }.store(index, Relaxed);
            }
        }
        Ok(Self {
            entries: entries.values(0, sq_count)?,
            entry_mask: sq_entries - 1,
            completion_mask: cq_entries - 1,
            completions: rings.values(cq_off.entries, cq_count)?,
            sq_tail_shared: rings.values(sq_off.tail, 1)?,
            sq_flags: rings.values(sq_off.flags, 1)?,
            cq_head_shared: rings.values(cq_off.head, 1)?,
            cq_tail_shared: rings.values(cq_off.tail, 1)?,
            sq_tail: 0,
            submitted: 0,
            cq_head: 0,
            enter_fd: fd.as_raw_fd(),
            enter_flags: 0,
            has_buffers: false,
            has_file: false,
            flags,
            _rings: rings,
            _entries: entries,
            fd,
        })
    }

    /// The set-up flags that are in force.
    pub(super) fn flags(&self) -> u32 {
        self.flags
    }

    /// Entries that were written and not yet taken by the kernel.
    #[inline(always)]
    pub(super) fn pending(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.submitted)
    }

    /// I/Os that the kernel took and whose completion was not taken yet. Each entry has exactly one
    /// completion.
    #[inline(always)]
    pub(super) fn in_flight(&self) -> u32 {
        self.submitted.wrapping_sub(self.cq_head)
    }

    /// Whether a completion had to wait outside the ring for want of room.
    #[inline(always)]
    pub(super) fn has_overflowed(&self) -> bool {
        // SAFETY: checked by `values` to lie in the mapping, which lives as long as `self`.
        unsafe { self.sq_flags.as_ref() }.load(Relaxed) & SQ_CQ_OVERFLOW != 0
    }

    /// Writes an entry behind the last one; [`enter`](Self::enter) publishes it. Words that this
    /// engine leaves at zero (buffer index 0, no personality) are never touched.
    ///
    /// # Safety
    /// The memory that the entry names must stay valid for the kernel's access until its completion
    /// was taken, and the caller has no more entries pending than the ring has.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, entry: &Entry) {
        let index = (self.sq_tail & self.entry_mask) as usize;
        // SAFETY: masked to the ring's size, so within what `values` checked.
        let words = unsafe { self.entries.add(index).as_ref() };
        words[0].store(entry.head, Relaxed);
        words[1].store(entry.offset, Relaxed);
        words[2].store(entry.address, Relaxed);
        words[3].store(entry.bytes_and_flags, Relaxed);
        words[4].store(entry.user_data, Relaxed);
        self.sq_tail = self.sq_tail.wrapping_add(1);
    }

    /// Takes back what is pending; the kernel has not looked at it.
    pub(super) fn discard_pending(&mut self) {
        self.sq_tail = self.submitted;
    }

    /// Publishes and submits what is pending, and waits for `complete_min` completions, at most for
    /// `limit` where there is one. Deferred completion work is done in any case.
    ///
    /// A signal or the end of the time is no error: the completions say what happened.
    ///
    /// # Errors
    /// The kernel's.
    #[inline(always)]
    pub(super) fn enter(&mut self, complete_min: u32, limit: Option<Duration>) -> io::Result<()> {
        let pending = self.pending();
        // SAFETY: checked by `values`. The release pairs with the kernel's acquire of the tail.
        unsafe { self.sq_tail_shared.as_ref() }.store(self.sq_tail, Release);
        let taken = match limit {
            None => self.call(pending, complete_min, ENTER_GETEVENTS, std::ptr::null(), 0),
            Some(limit) => {
                let timeout = KernelTimespec {
                    seconds: limit.as_secs().cast_signed(),
                    nanoseconds: i64::from(limit.subsec_nanos()),
                };
                let argument = WaitArgument {
                    signal_mask: 0,
                    signal_mask_bytes: 0,
                    wait_us_min: 0,
                    timeout: (&raw const timeout).expose_provenance() as u64,
                };
                let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
                let bytes = size_of::<WaitArgument>();
                self.call(pending, complete_min, flags, &raw const argument, bytes)
            }
        };
        if taken >= 0 {
            // The kernel takes no more than it was given.
            self.submitted = self.submitted.wrapping_add((taken as u32).min(pending));
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    #[inline(always)]
    fn call(
        &self,
        submit: u32,
        complete_min: u32,
        flags: u32,
        argument: *const WaitArgument,
        argument_bytes: usize,
    ) -> libc::c_long {
        // SAFETY: the argument, where there is one, is valid for the call's duration; what the
        // entries name is kept valid by the contract of `push`.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.enter_fd,
                submit,
                complete_min,
                flags | self.enter_flags,
                argument,
                argument_bytes,
            )
        }
    }

    /// Completions that are there to take.
    #[inline(always)]
    pub(super) fn ready(&self) -> u32 {
        // SAFETY: checked by `values`. The acquire pairs with the kernel's release of the tail, so
        // that the entries before it are seen whole.
        let tail = unsafe { self.cq_tail_shared.as_ref() }.load(Acquire);
        tail.wrapping_sub(self.cq_head).min(self.completion_mask.wrapping_add(1))
    }

    /// Takes the next completion's user data and result; `ready` said that there is one.
    #[inline(always)]
    pub(super) fn take(&mut self) -> (u64, i32) {
        let index = (self.cq_head & self.completion_mask) as usize;
        // SAFETY: masked to the ring's size, so within what `values` checked.
        let words = unsafe { self.completions.add(index).as_ref() };
        self.cq_head = self.cq_head.wrapping_add(1);
        // The result is the lower half of the second word, the flags the upper.
        (words[0].load(Relaxed), words[1].load(Relaxed) as u32 as i32)
    }

    /// Gives the places of the completions taken back to the kernel.
    #[inline(always)]
    pub(super) fn release_taken(&mut self) {
        // SAFETY: checked by `values`. The release orders the reads of the entries before it.
        unsafe { self.cq_head_shared.as_ref() }.store(self.cq_head, Release);
    }

    fn register<T>(&self, opcode: u32, argument: *const T, count: u32) -> io::Result<i64> {
        // SAFETY: each caller passes an argument of the kind and number that `opcode` reads or
        // writes, alive for the call.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_register, self.fd.as_raw_fd(), opcode, argument, count)
        };
        checked(result)
    }

    /// Pins `buffer` as registered buffer 0.
    ///
    /// # Errors
    /// The kernel's; `ENOMEM` when it exceeds what this user may lock.
    ///
    /// # Safety
    /// `buffer` must outlive the ring, or the I/O in flight on it.
    pub(super) unsafe fn register_buffer(&mut self, buffer: &Pages) -> io::Result<()> {
        let range = libc::iovec { iov_base: buffer.as_ptr().cast(), iov_len: buffer.bytes() };
        self.register(REGISTER_BUFFERS, &raw const range, 1)?;
        self.has_buffers = true;
        Ok(())
    }

    /// Makes `file` registered file 0. The ring holds it open until it is dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn register_file(&mut self, file: &File) -> io::Result<()> {
        let fd: i32 = file.as_raw_fd();
        self.register(REGISTER_FILES, &raw const fd, 1)?;
        self.has_file = true;
        Ok(())
    }

    /// Registers the ring's own descriptor with this thread, which spares a look-up at each enter.
    ///
    /// # Errors
    /// The kernel's; `EINVAL` before Linux 5.18.
    pub(super) fn register_self(&mut self) -> io::Result<()> {
        const ANY_PLACE: u32 = u32::MAX;
        let data = self.fd.as_raw_fd() as u32 as u64;
        let mut update = ResourceUpdate { offset: ANY_PLACE, reserved: 0, data };
        self.register(REGISTER_RING_FDS, &raw mut update, 1)?;
        self.enter_fd = update.offset.cast_signed();
        self.enter_flags = ENTER_REGISTERED_RING;
        Ok(())
    }
}

impl Drop for Ring {
    /// The kernel tears a ring down later, in a worker. What others wait for is given back before:
    /// the pinned memory (it counts against the user's limit) and the file (an exclusive opener is
    /// refused as long as it is held). A refusal leaves it to the tear-down.
    fn drop(&mut self) {
        if self.has_buffers {
            let _ = self.register(UNREGISTER_BUFFERS, std::ptr::null::<u8>(), 0);
        }
        if self.has_file {
            let _ = self.register(UNREGISTER_FILES, std::ptr::null::<u8>(), 0);
        }
        if self.enter_flags & ENTER_REGISTERED_RING != 0 {
            let update = ResourceUpdate { offset: self.enter_fd as u32, reserved: 0, data: 0 };
            let _ = self.register(UNREGISTER_RING_FDS, &raw const update, 1);
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
