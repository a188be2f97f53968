//! The kernel's io_uring interface (linux/io_uring.h), as far as this engine uses it.

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
    pub(in super::super) const URING_CMD: u8 = 46;
}

/// Set-up flags (`IORING_SETUP_*`).
pub(super) mod setup {
    pub(in super::super) const IOPOLL: u32 = 1 << 0;
    pub(in super::super) const SQPOLL: u32 = 1 << 1;
    pub(in super::super) const SQ_AFF: u32 = 1 << 2;
    pub(in super::super) const CLAMP: u32 = 1 << 4;
    pub(in super::super) const COOP_TASKRUN: u32 = 1 << 8;
    pub(in super::super) const SQE128: u32 = 1 << 10;
    pub(in super::super) const CQE32: u32 = 1 << 11;
    pub(in super::super) const SINGLE_ISSUER: u32 = 1 << 12;
    pub(in super::super) const DEFER_TASKRUN: u32 = 1 << 13;
    pub(in super::super) const NO_SQARRAY: u32 = 1 << 16;
    pub(in super::super) const HYBRID_IOPOLL: u32 = 1 << 17;
}

pub(super) const FEAT_SINGLE_MMAP: u32 = 1 << 0;
pub(super) const FEAT_NODROP: u32 = 1 << 1;
pub(super) const FEAT_EXT_ARG: u32 = 1 << 8;

pub(super) const ENTER_GETEVENTS: u32 = 1 << 0;
pub(super) const ENTER_SQ_WAKEUP: u32 = 1 << 1;
pub(super) const ENTER_EXT_ARG: u32 = 1 << 3;
pub(super) const ENTER_REGISTERED_RING: u32 = 1 << 4;

pub(super) const REGISTER_BUFFERS: u32 = 0;
pub(super) const UNREGISTER_BUFFERS: u32 = 1;
pub(super) const REGISTER_FILES: u32 = 2;
pub(super) const UNREGISTER_FILES: u32 = 3;
pub(super) const REGISTER_RING_FDS: u32 = 20;
pub(super) const UNREGISTER_RING_FDS: u32 = 21;

pub(super) const SQ_NEED_WAKEUP: u32 = 1 << 0;
pub(super) const SQ_CQ_OVERFLOW: u32 = 1 << 1;

pub(super) const OFF_SQ_RING: libc::off_t = 0;
pub(super) const OFF_SQES: libc::off_t = 0x1000_0000;

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SubmissionOffsets {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) ring_mask: u32,
    pub(super) ring_entries: u32,
    pub(super) flags: u32,
    pub(super) dropped: u32,
    pub(super) array: u32,
    pub(super) reserved: u32,
    pub(super) user_address: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletionOffsets {
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) ring_mask: u32,
    pub(super) ring_entries: u32,
    pub(super) overflow: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
    pub(super) reserved: u32,
    pub(super) user_address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameters {
    pub(super) sq_entries: u32,
    pub(super) cq_entries: u32,
    pub(super) flags: u32,
    pub(super) sq_thread_cpu: u32,
    pub(super) sq_thread_idle: u32,
    pub(super) features: u32,
    pub(super) wq_fd: u32,
    pub(super) reserved: [u32; 3],
    pub(super) sq_off: SubmissionOffsets,
    pub(super) cq_off: CompletionOffsets,
}

/// `struct __kernel_timespec`.
#[repr(C)]
pub(super) struct KernelTimespec {
    pub(super) seconds: i64,
    pub(super) nanoseconds: i64,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
pub(super) struct WaitArgument {
    pub(super) signal_mask: u64,
    pub(super) signal_mask_bytes: u32,
    pub(super) wait_us_min: u32,
    pub(super) timeout: u64,
}

/// `struct io_uring_rsrc_update`, as the ring registration takes it.
#[repr(C)]
pub(super) struct ResourceUpdate {
    pub(super) offset: u32,
    pub(super) reserved: u32,
    pub(super) data: u64,
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
