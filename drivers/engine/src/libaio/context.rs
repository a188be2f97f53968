//! One context of the kernel's asynchronous I/O: its system calls, its control blocks, and the
//! completion ring that it maps into the process (fs/aio.c, linux/aio_abi.h, io_submit(2)).

#![allow(unsafe_code)]

use crate::cookie::GENERATION;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

// Control blocks are composed as little-endian words.
const _: () = assert!(cfg!(target_endian = "little"));

/// Operations (`IOCB_CMD_*`).
pub(super) mod op {
    pub(in super::super) const PREAD: u16 = 0;
    pub(in super::super) const PWRITE: u16 = 1;
    pub(in super::super) const FDSYNC: u16 = 3;
}

/// `struct iocb`: data, key and flags, operation and file, address, bytes, offset, two words unused.
#[derive(Debug)]
#[repr(C)]
struct ControlBlock {
    data: AtomicU64,
    key: AtomicU64,
    operation: AtomicU64,
    address: AtomicU64,
    bytes: AtomicU64,
    offset: AtomicU64,
    unused: [AtomicU64; 2],
}

const _: () = assert!(size_of::<ControlBlock>() == 64);

/// No I/O's cookie: the first one of tag 0 has a generation.
pub(super) const IDLE: u64 = 0;

/// A tag's control block, and what its owner keeps beside it.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Block {
    control: ControlBlock,
    /// What the I/O in flight carries, or [`IDLE`].
    pub(super) cookie: u64,
    /// What the block is prepared for, as its owner has it.
    pub(super) shape: u64,
    /// Address of the tag's buffer.
    buffer: u64,
}

impl Block {
    fn new(tag: u64, address: u64) -> Self {
        let word = AtomicU64::new;
        let control = ControlBlock {
            data: word(tag),
            key: word(0),
            operation: word(0),
            address: word(address),
            bytes: word(0),
            offset: word(0),
            unused: [word(0), word(0)],
        };
        Self { control, cookie: IDLE, shape: 0, buffer: address }
    }

    /// Takes the idle block for an I/O of the next generation; false if it is not idle.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> bool {
        if self.cookie != IDLE {
            return false;
        }
        self.cookie = self.control.data.load(Relaxed) + GENERATION;
        self.control.data.store(self.cookie, Relaxed);
        true
    }

    /// Prepares the block for operation `opcode` of `bytes` on file `fd`.
    pub(super) fn prepare(&self, opcode: u16, fd: i32, bytes: u32) {
        // Operation (16 bits), priority (16, none) and file (32).
        self.control.operation.store(u64::from(opcode) | u64::from(fd as u32) << 32, Relaxed);
        // A flush has no buffer: the kernel refuses one that names any (fs/aio.c, `aio_fsync`).
        self.control.address.store(if bytes == 0 { 0 } else { self.buffer }, Relaxed);
        self.control.bytes.store(bytes.into(), Relaxed);
    }
}

/// Addresses of the blocks that are to be submitted.
#[derive(Debug)]
pub(super) struct Pending {
    addresses: Box<[u64]>,
    /// The place behind the last one.
    next: NonNull<u64>,
}

impl Pending {
    fn new(blocks: usize) -> Self {
        let mut addresses: Box<[u64]> = vec![0; blocks].into();
        Self { next: first_place(&mut addresses), addresses }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        (self.next.addr().get() - self.addresses.as_ptr().addr()) / size_of::<u64>()
    }

    /// Takes the first `taken` away.
    fn remove(&mut self, taken: usize) {
        let left = self.count() - taken;
        self.addresses.copy_within(taken..taken + left, 0);
        // SAFETY: no more are left than there are places.
        self.next = unsafe { first_place(&mut self.addresses).add(left) };
    }

    /// Puts `block`, which has begun and is prepared, behind the others, for `offset`. It will carry
    /// its cookie back.
    ///
    /// # Safety
    /// The block is one of the same context and neither pending nor in flight. Its buffer must stay
    /// valid for the kernel's access to as many bytes as it is prepared for, until its completion
    /// was taken.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, block: &Block, offset: u64) {
        block.control.offset.store(offset, Relaxed);
        let address = std::ptr::from_ref(&block.control).expose_provenance() as u64;
        // SAFETY: there is a place for each block, and the caller says that this one is in none.
        unsafe {
            self.next.write(address);
            self.next = self.next.add(1);
        }
    }
}

fn first_place(addresses: &mut [u64]) -> NonNull<u64> {
    NonNull::from(addresses).cast()
}

/// `struct io_event`: data, the block's address, result and a second one.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Event([AtomicU64; 4]);

impl Event {
    pub(super) fn new(data: u64, result: i64) -> Self {
        let word = AtomicU64::new;
        Self([word(data), word(0), word(result.cast_unsigned()), word(0)])
    }

    /// What the block's `data` was.
    #[inline(always)]
    pub(super) fn data(&self) -> u64 {
        self.0[0].load(Relaxed)
    }

    /// Bytes moved, or a negative error number.
    #[inline(always)]
    pub(super) fn result(&self) -> i64 {
        self.0[2].load(Relaxed).cast_signed()
    }
}

/// `struct aio_ring`: the head is the reader's, the tail the kernel's.
#[derive(Debug)]
#[repr(C)]
struct Header {
    id: u32,
    events: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_bytes: u32,
}

/// `AIO_RING_MAGIC`.
const MAGIC: u32 = 0xa10a_10a1;

/// The mapped completion ring, where its header is one that we know.
#[derive(Debug)]
struct Ring {
    header: NonNull<Header>,
    first: NonNull<Event>,
    events: u32,
}

impl Ring {
    /// # Safety
    /// `id` is that of a context of this process, which stays for as long as the ring is used.
    unsafe fn find(id: u64) -> Option<Self> {
        let header = NonNull::new(std::ptr::with_exposed_provenance_mut::<Header>(id as usize))?;
        // SAFETY: a context's identifier is the address of its ring, which starts with the header
        // in every kernel so far; a length that is not ours is looked at before anything else.
        let found = unsafe { header.as_ref() };
        let is_known = found.magic == MAGIC
            && found.incompatible == 0
            && found.header_bytes as usize == size_of::<Header>()
            && found.events > 0;
        if !is_known {
            return None;
        }
        // SAFETY: the events follow the header in the same mapping.
        let first = unsafe { header.add(1) }.cast();
        Some(Self { header, first, events: found.events })
    }
}

/// Where completions are taken from.
#[derive(Debug)]
pub(super) struct Completions {
    ring: Option<Ring>,
    /// What the system call fills where the ring is not read.
    taken: Box<[Event]>,
}

impl Completions {
    /// Completions that are there to take from the ring, up to its end and from its start on.
    #[inline(always)]
    pub(super) fn ready(&self) -> (&[Event], &[Event]) {
        let Some(ring) = &self.ring else { return (&[], &[]) };
        // SAFETY: the ring's mapping lives as long as the context.
        let header = unsafe { ring.header.as_ref() };
        let head = header.head.load(Relaxed);
        // The acquire pairs with the kernel's barrier before it moves the tail, so that the events
        // before it are seen whole.
        let tail = header.tail.load(Acquire);
        let (end, wrapped) = if tail >= head { (tail, 0) } else { (ring.events, tail) };
        if end > ring.events {
            // A place outside the ring is not the kernel's.
            return (&[], &[]);
        }
        // SAFETY: both stretches lie within the ring's number of events, which are atomic words in a
        // mapping that lives as long as the context.
        unsafe {
            let first = ring.first.add(head as usize).as_ptr();
            (
                std::slice::from_raw_parts(first, (end - head) as usize),
                std::slice::from_raw_parts(ring.first.as_ptr(), wrapped as usize),
            )
        }
    }

    /// The first `count` completions that [`Context::wait`] took.
    pub(super) fn events(&self, count: usize) -> &[Event] {
        self.taken.get(..count).unwrap_or(&[])
    }
}

/// A context with its control blocks, used by one thread.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) blocks: Box<[Block]>,
    pub(super) pending: Pending,
    pub(super) completions: Completions,
    /// Blocks that the kernel took and whose completion was not taken yet.
    in_flight: u32,
    // Cold from here on.
    id: u64,
    has_ended: bool,
}

impl Context {
    /// A context with a block for each of `addresses`, which are the buffers of tags 0 and so on; its
    /// cookie is its tag to begin with.
    ///
    /// # Errors
    /// The kernel's; `EAGAIN` when fs.aio-max-nr is reached, `ENOSYS` where it has none.
    pub(super) fn new(addresses: impl Iterator<Item = u64>) -> io::Result<Self> {
        let blocks: Box<[Block]> =
            (0..).zip(addresses).map(|(tag, address)| Block::new(tag, address)).collect();
        let mut id = 0u64;
        // SAFETY: the kernel writes the identifier to the word that is passed, which is zero.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, blocks.len(), &raw mut id) };
        checked(made)?;
        Ok(Self {
            pending: Pending::new(blocks.len()),
            completions: Completions {
                // SAFETY: the context was just made, and is destroyed with `self`.
                ring: unsafe { Ring::find(id) },
                taken: blocks.iter().map(|_| Event::default()).collect(),
            },
            in_flight: 0,
            id,
            has_ended: false,
            blocks,
        })
    }

    /// Whether completions are read from the mapped ring.
    pub(super) fn reads_ring(&self) -> bool {
        self.completions.ring.is_some()
    }

    #[inline(always)]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    #[inline(always)]
    pub(super) fn has_pending(&self) -> bool {
        self.pending.count() != 0
    }

    /// Submits what is pending, as much of it as the kernel takes.
    ///
    /// # Errors
    /// The kernel's, of the first block, when it took none.
    #[inline(always)]
    pub(super) fn submit(&mut self) -> io::Result<()> {
        let count = self.pending.count();
        // SAFETY: the addresses are those of blocks of `self`, which the kernel reads (and writes a
        // key of its own into) during the call; the buffers are valid by the contract of `push`.
        let taken = unsafe {
            libc::syscall(libc::SYS_io_submit, self.id, count, self.pending.addresses.as_mut_ptr())
        };
        if taken != count as libc::c_long {
            return self.submitted_less(taken);
        }
        self.in_flight += taken as u32;
        self.pending.next = first_place(&mut self.pending.addresses);
        Ok(())
    }

    #[cold]
    fn submitted_less(&mut self, result: libc::c_long) -> io::Result<()> {
        let taken = usize::try_from(result).unwrap_or(0).min(self.pending.count());
        self.in_flight += taken as u32;
        let result = checked(result).map(drop);
        self.pending.remove(taken);
        result
    }

    /// Takes the first pending block back; its tag.
    pub(super) fn discard_first(&mut self) -> Option<usize> {
        let count = self.pending.count();
        let address = *self.pending.addresses.get(..count)?.first()?;
        self.pending.remove(1);
        let first = self.blocks.as_ptr().addr() as u64;
        Some((address.wrapping_sub(first) / size_of::<Block>() as u64) as usize)
    }

    /// Gives the places of the first `count` completions back to the kernel.
    #[inline(always)]
    pub(super) fn release(&mut self, count: u32) {
        self.in_flight = self.in_flight.wrapping_sub(count);
        let Some(ring) = &self.completions.ring else { return };
        // SAFETY: as in `ready`.
        let head_shared = unsafe { &ring.header.as_ref().head };
        let head = head_shared.load(Relaxed).wrapping_add(count);
        let head = if head >= ring.events { head.wrapping_sub(ring.events) } else { head };
        // The release orders the reads of the events before it. Nobody else moves the head: the
        // system call that does is made by this thread.
        head_shared.store(head, Release);
    }

    /// The system call: waits for `least` completions, at most for `limit`, and takes all that are
    /// there to [`Completions::events`]. A signal is no error.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn wait(&mut self, least: u32, limit: Duration) -> io::Result<usize> {
        let most = self.completions.taken.len();
        let mut time = libc::timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: the kernel fills at most as many events as there is room for.
        let found = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                u64::from(least).min(most as u64),
                most,
                self.completions.taken.as_mut_ptr(),
                &raw mut time,
            )
        };
        match checked(found) {
            Ok(found) => {
                self.in_flight = self.in_flight.wrapping_sub(found as u32);
                Ok(found as usize)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Ends the context. The kernel waits for what is in flight; the caller sees to it that nothing
    /// is.
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.completions.ring = None;
            // SAFETY: the context is this one's own, and nothing reads its ring any more.
            unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
        }
    }
}

fn checked(result: libc::c_long) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
