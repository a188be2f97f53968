//! One io_uring: set-up, the mapped rings, the system calls.
//!
//! Written on the kernel's interface itself (linux/io_uring.h, io_uring_setup(2),
//! io_uring_enter(2), io_uring_register(2)) because the hot path patches entries in place and
//! enters by a registered ring descriptor that lives as long as the ring: the `io-uring` crate
//! keeps its ring pointers private, and its registered descriptor is lost with the borrow that
//! registered it.

#![allow(unsafe_code)]

use super::abi::*;
use super::form::Form;
use nvpoll_mem::Pages;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::time::Duration;

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
pub(super) struct Ring<F> {
    /// The first word of each stands [`Form::ENTRY_WORDS`] behind the one before.
    entries: NonNull<AtomicU64>,
    entry_mask: u32,
    completion_mask: u32,
    completions: NonNull<AtomicU64>,
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
    form: PhantomData<F>,
}

/// How a ring is set up, beside its size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setup {
    /// `IORING_SETUP_*`, without those that the form needs.
    pub(super) flags: u32,
    /// How long a submission thread stays awake, in milliseconds; 0 is the kernel's default.
    pub(super) sq_thread_idle_ms: u32,
    /// Its processor, with [`setup::SQ_AFF`].
    pub(super) sq_thread_cpu: u32,
}

impl<F: Form> Ring<F> {
    /// Sets up a ring of at least `entries` entries with set-up flags `flags`; its completion ring
    /// has twice as many.
    ///
    /// # Errors
    /// The kernel's; `Unsupported` when it lacks a timeout on waiting (before Linux 5.11).
    pub(super) fn new(entries: u32, setup: Setup) -> io::Result<Self> {
        let mut parameters = Parameters {
            flags: setup.flags | F::SETUP,
            sq_thread_idle: setup.sq_thread_idle_ms,
            sq_thread_cpu: setup.sq_thread_cpu,
            ..Parameters::default()
        };
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
        let completions_end = cq_off.entries as usize + cq_count * F::COMPLETION_WORDS * 8;
        let rings = Mapping::new(&fd, OFF_SQ_RING, array_end.max(completions_end))?;
        let entries = Mapping::new(&fd, OFF_SQES, sq_count * F::ENTRY_WORDS * 8)?;
        if !sq_entries.is_power_of_two() || !cq_entries.is_power_of_two() {
            return Err(io::Error::other("the kernel made a ring whose size is no power of two"));
        }
        let zero: NonNull<AtomicU64> = entries.values(0, sq_count * F::ENTRY_WORDS)?;
        for word in 0..sq_count * F::ENTRY_WORDS {
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
            entries: zero,
            entry_mask: sq_entries - 1,
            completion_mask: cq_entries - 1,
            completions: rings.values(cq_off.entries, cq_count * F::COMPLETION_WORDS)?,
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
            form: PhantomData,
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

    /// Lets `write` fill the entry behind the last one; [`enter`](Self::enter) publishes it. Words
    /// that `write` leaves alone are zero or an earlier entry's of this place.
    ///
    /// # Safety
    /// The memory that the entry names must stay valid for the kernel's access until its completion
    /// was taken, and the caller has no more entries pending than the ring has.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, write: impl FnOnce(&[AtomicU64])) {
        let index = (self.sq_tail & self.entry_mask) as usize;
        // SAFETY: masked to the ring's size, so within what `values` checked; atomic words.
        write(unsafe {
            std::slice::from_raw_parts(
                self.entries.add(index * F::ENTRY_WORDS).as_ptr(),
                F::ENTRY_WORDS,
            )
        });
        self.sq_tail = self.sq_tail.wrapping_add(1);
    }

    /// Takes the last entry back; the kernel has not looked at it.
    pub(super) fn take_back(&mut self) {
        self.sq_tail = self.sq_tail.wrapping_sub(1);
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
        let pending = self.publish();
        let taken = match limit {
            None => self.call(pending, complete_min, ENTER_GETEVENTS, std::ptr::null(), 0),
            Some(limit) => self.call_waiting(pending, complete_min, 0, limit),
        };
        self.took(taken, pending)
    }

    /// Publishes and submits what is pending, if anything is, and looks for no completion.
    ///
    /// # Errors
    /// The kernel's.
    #[inline(always)]
    pub(super) fn submit(&mut self) -> io::Result<()> {
        match self.publish() {
            0 => Ok(()),
            pending => self.took(self.call(pending, 0, 0, std::ptr::null(), 0), pending),
        }
    }

    /// Shows the kernel what is pending; how many entries that is.
    #[inline(always)]
    fn publish(&mut self) -> u32 {
        // SAFETY: checked by `values`. The release pairs with the kernel's acquire of the tail.
        unsafe { self.sq_tail_shared.as_ref() }.store(self.sq_tail, Release);
        self.pending()
    }

    /// Counts what the kernel took of `pending` entries, if `taken` is no error.
    #[inline(always)]
    fn took(&mut self, taken: libc::c_long, pending: u32) -> io::Result<()> {
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

    /// As [`enter`](Self::enter), where a thread of the kernel's submits: publishes what is pending,
    /// wakes the thread if it sleeps, and makes a system call only for that and to wait.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn enter_with_thread(
        &mut self,
        complete_min: u32,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        let published = self.publish();
        // The thread takes all that is published, sooner or later.
        self.submitted = self.sq_tail;
        // The tail is to be seen before the flag is looked at: the thread sets the flag, then looks
        // at the tail once more (io_uring_setup(2), `IORING_SETUP_SQPOLL`).
        fence(SeqCst);
        // SAFETY: checked by `values`.
        let sleeps = unsafe { self.sq_flags.as_ref() }.load(Relaxed) & SQ_NEED_WAKEUP != 0;
        let wakeup = if sleeps { ENTER_SQ_WAKEUP } else { 0 };
        let result = match limit {
            Some(limit) => self.call_waiting(published, complete_min, wakeup, limit),
            None if sleeps => self.call(published, 0, wakeup, std::ptr::null(), 0),
            None => return Ok(()),
        };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    #[inline(always)]
    fn call_waiting(
        &self,
        submit: u32,
        complete_min: u32,
        flags: u32,
        limit: Duration,
    ) -> libc::c_long {
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
        let flags = flags | ENTER_GETEVENTS | ENTER_EXT_ARG;
        let bytes = size_of::<WaitArgument>();
        self.call(submit, complete_min, flags, &raw const argument, bytes)
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
        let index = (self.cq_head & self.completion_mask) as usize * F::COMPLETION_WORDS;
        // SAFETY: masked to the ring's size, so within what `values` checked.
        let (data, result) = unsafe {
            (self.completions.add(index).as_ref(), self.completions.add(index + 1).as_ref())
        };
        self.cq_head = self.cq_head.wrapping_add(1);
        // The result is the lower half of the second word, the flags the upper.
        (data.load(Relaxed), result.load(Relaxed) as u32 as i32)
    }

    /// Gives the places of the completions taken back to the kernel.
    #[inline(always)]
    pub(super) fn release_taken(&mut self) {
        // SAFETY: checked by `values`. The release orders the reads of the entries before it.
        unsafe { self.cq_head_shared.as_ref() }.store(self.cq_head, Release);
    }

    /// Processor time in nanoseconds that the ring's submission thread has had, where there is one:
    /// the descriptor's fdinfo names the thread, its schedstat says the time, or, in a kernel
    /// without CONFIG_SCHED_INFO, its stat in ticks.
    pub(super) fn thread_ns(&self) -> Option<u64> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd()));
        let info = info.ok()?;
        let thread = info.lines().find_map(|line| line.strip_prefix("SqThread:"))?.trim();
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}"));
        let precise = read("schedstat").ok().and_then(|text| {
            text.split_ascii_whitespace().next()?.parse::<u64>().ok().filter(|&ns| ns > 0)
        });
        precise.or_else(|| {
            // User and system time are fields 14 and 15; the second is a name in parentheses, which
            // may have spaces (proc_pid_stat(5)).
            let text = read("stat").ok()?;
            let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
            let mut ticks = || fields.next()?.parse::<u64>().ok();
            let ticks = ticks()?.checked_add(ticks()?)?;
            let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
            Some(ticks.saturating_mul(1_000_000_000) / u64::try_from(per_second).ok()?.max(1))
        })
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

impl<F> Ring<F> {
    fn register<T>(&self, opcode: u32, argument: *const T, count: u32) -> io::Result<i64> {
        // SAFETY: each caller passes an argument of the kind and number that `opcode` reads or
        // writes, alive for the call.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_register, self.fd.as_raw_fd(), opcode, argument, count)
        };
        checked(result)
    }
}

impl<F> Drop for Ring<F> {
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

#[cfg(test)]
mod tests {
    use super::super::form::{Plain, store};
    use super::*;

    const NOP: u8 = 0;

    /// What older kernels leave of the set-up flags, down to none.
    const SETS: [u32; 5] = [
        0,
        setup::COOP_TASKRUN,
        setup::COOP_TASKRUN | setup::SINGLE_ISSUER,
        setup::COOP_TASKRUN | setup::SINGLE_ISSUER | setup::DEFER_TASKRUN,
        setup::COOP_TASKRUN
            | setup::SINGLE_ISSUER
            | setup::DEFER_TASKRUN
            | setup::NO_SQARRAY
            | setup::CLAMP,
    ];

    fn ring(flags: u32) -> Option<Ring<Plain>> {
        Ring::new(4, Setup { flags, ..Setup::default() })
            .map_err(|error| eprintln!("not tested with {flags:#x}: {error}"))
            .ok()
    }

    fn push(ring: &mut Ring<Plain>, user_data: u64) {
        let head = Entry::head(NOP, FileRef::Descriptor(-1));
        let entry = Entry { head, user_data, ..Entry::default() };
        // SAFETY: it names no memory, and the tests below keep within the ring's four entries.
        unsafe { ring.push(|words| store(words, &entry)) };
    }

    #[test]
    fn entries_come_back_in_order_past_the_rings_end_with_any_flags() {
        for mut ring in SETS.into_iter().filter_map(ring) {
            let (mut pushed, mut taken) = (0u64, 0);
            for batch in (1..=4).cycle().take(40) {
                for _ in 0..batch {
                    push(&mut ring, pushed | 0x5eed << 32);
                    pushed += 1;
                }
                assert_eq!((ring.pending(), ring.in_flight()), (batch, 0));
                ring.enter(batch, Some(Duration::from_secs(10))).unwrap();
                assert_eq!((ring.pending(), ring.ready()), (0, batch), "{:#x}", ring.flags());
                for _ in 0..batch {
                    assert_eq!(ring.take(), (taken | 0x5eed << 32, 0), "{:#x}", ring.flags());
                    taken += 1;
                }
                ring.release_taken();
                assert!(!ring.has_overflowed());
            }
        }
    }

    #[test]
    fn what_is_taken_back_is_never_seen_by_the_kernel() {
        for mut ring in SETS.into_iter().filter_map(ring) {
            push(&mut ring, 1);
            ring.discard_pending();
            push(&mut ring, 2);
            ring.enter(1, Some(Duration::from_secs(10))).unwrap();
            assert_eq!((ring.ready(), ring.take()), (1, (2, 0)));
            ring.release_taken();
            ring.enter(0, None).unwrap();
            assert_eq!(ring.ready(), 0);
        }
    }

    #[test]
    fn completions_without_room_are_noticed() {
        let Some(mut ring) = ring(SETS[4]) else { return };
        // The completion ring has eight places; nobody takes any.
        for batch in 0..3 {
            for entry in 0..4 {
                push(&mut ring, 4 * batch + entry);
            }
            // The third has no room; the kernel may say so by an error as well.
            let _ = ring.enter(0, None);
        }
        assert!(ring.has_overflowed());
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        let Some(mut ring) = ring(SETS[4]) else { return };
        let start = std::time::Instant::now();
        ring.enter(1, Some(Duration::from_millis(30))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(ring.ready(), 0);
    }
}
