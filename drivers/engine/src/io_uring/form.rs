//! What goes into the ring: a form is how an I/O is written as a submission entry, and how its
//! completion's result is read.

use super::abi::{Entry, FileRef, op, setup};
use crate::{IoStatus, OperationKind, WriteMode};
use nvpoll_spec::NvmOpcode;
use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// One transfer, as the queue hands it over.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Memory to file.
    pub is_write: bool,
    /// Byte offset in the file.
    pub offset: u64,
    /// Address of the buffer.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// What the completion carries back.
    pub user_data: u64,
}

/// How I/O is written and read back.
pub trait Form: Debug {
    /// The engine that uses this form, for messages.
    const ENGINE: &'static str;
    /// Words of a submission entry: 8, or 16 with `IORING_SETUP_SQE128`.
    const ENTRY_WORDS: usize;
    /// Words of a completion entry: 2, or 4 with `IORING_SETUP_CQE32`.
    const COMPLETION_WORDS: usize;
    /// Set-up flags that the sizes need.
    const SETUP: u32;

    /// Writes a transfer to an entry, whose other words are zero or an earlier one's.
    fn write(&self, words: &[AtomicU64], transfer: &Transfer);

    /// Writes a flush; false where the form has none that the ring takes.
    fn write_flush(&self, words: &[AtomicU64], user_data: u64) -> bool;

    /// How a transfer of `bytes` ended.
    fn status(result: i32, bytes: u32) -> IoStatus;
}

/// Stores the words that all operations have.
#[inline(always)]
pub(super) fn store(words: &[AtomicU64], entry: &Entry) {
    let Entry { head, offset, address, bytes_and_flags, user_data } = *entry;
    let values = [head, offset, address, bytes_and_flags, user_data];
    for (word, value) in words.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

/// Reads and writes of a block device or a file.
#[derive(Debug)]
pub struct Plain {
    read_head: u64,
    write_head: u64,
    /// `None` on a ring that is polled, which takes no flush.
    flush_head: Option<u64>,
}

/// `IORING_FSYNC_DATASYNC`, in the entry's flags.
const DATASYNC: u64 = 1 << 32;

impl Plain {
    pub(super) fn new(file: FileRef, has_buffers: bool, is_polled: bool) -> Self {
        let (read, write) = match has_buffers {
            true => (op::READ_FIXED, op::WRITE_FIXED),
            false => (op::READ, op::WRITE),
        };
        Self {
            read_head: Entry::head(read, file),
            write_head: Entry::head(write, file),
            flush_head: (!is_polled).then(|| Entry::head(op::FSYNC, file)),
        }
    }
}

impl Form for Plain {
    const ENGINE: &'static str = "io_uring";
    const ENTRY_WORDS: usize = 8;
    const COMPLETION_WORDS: usize = 2;
    const SETUP: u32 = 0;

    #[inline(always)]
    fn write(&self, words: &[AtomicU64], transfer: &Transfer) {
        let entry = Entry {
            head: if transfer.is_write { self.write_head } else { self.read_head },
            offset: transfer.offset,
            address: transfer.address,
            bytes_and_flags: u64::from(transfer.bytes),
            user_data: transfer.user_data,
        };
        store(words, &entry);
    }

    fn write_flush(&self, words: &[AtomicU64], user_data: u64) -> bool {
        let Some(head) = self.flush_head else { return false };
        store(words, &Entry { head, bytes_and_flags: DATASYNC, user_data, ..Entry::default() });
        true
    }

    /// The kernel gives the bytes moved, or a negative error number.
    #[inline(always)]
    fn status(result: i32, bytes: u32) -> IoStatus {
        if result as u32 == bytes { IoStatus::OK } else { failure(result) }
    }
}

#[cold]
pub(super) fn failure(result: i32) -> IoStatus {
    if result < 0 { IoStatus::errno(result.wrapping_neg()) } else { IoStatus::SHORT }
}

/// NVMe commands, passed through to the drive (linux/nvme_ioctl.h, `NVME_URING_CMD_IO`).
#[derive(Debug)]
pub struct Passthrough {
    head: u64,
    /// Above the length: `IORING_URING_CMD_FIXED` or nothing.
    flags: u64,
    nsid: u32,
    block_log2: u8,
    /// CDW12 of a write beside its length: FUA or nothing.
    write_cdw12: u32,
}

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
const NVME_URING_CMD_IO: u64 = 0xc048_4e80;
/// `IORING_URING_CMD_FIXED`, in the entry's flags.
const URING_CMD_FIXED: u64 = 1 << 32;

impl Passthrough {
    pub(super) fn new(
        file: FileRef,
        has_buffers: bool,
        (nsid, block_log2): (u32, u8),
        writes: WriteMode,
    ) -> Self {
        let flags = if has_buffers { URING_CMD_FIXED } else { 0 };
        let write_cdw12 = writes.cdw12(NvmOpcode::WRITE);
        Self { head: Entry::head(op::URING_CMD, file), flags, nsid, block_log2, write_cdw12 }
    }

    /// The command behind the entry's first six words (`struct nvme_uring_cmd`).
    #[inline(always)]
    fn store(
        &self,
        words: &[AtomicU64],
        (opcode, flags): (NvmOpcode, u64),
        user_data: u64,
        (address, bytes): (u64, u32),
        (lba, cdw12): (u64, u32),
    ) {
        let entry = Entry {
            head: self.head,
            offset: NVME_URING_CMD_IO,
            address: 0,
            bytes_and_flags: flags,
            user_data,
        };
        store(words, &entry);
        // Opcode and namespace, CDW2 and 3, metadata, address, lengths of metadata and data, CDW10
        // and 11 (SLBA), CDW12 (NLB, zero-based) and 13, CDW14 and 15, time-out (none).
        let command = [
            u64::from(opcode.0) | u64::from(self.nsid) << 32,
            0,
            0,
            address,
            u64::from(bytes) << 32,
            lba,
            u64::from(cdw12),
            0,
            0,
        ];
        for (word, value) in words.iter().skip(6).zip(command) {
            word.store(value, Relaxed);
        }
    }
}

impl Form for Passthrough {
    const ENGINE: &'static str = "io_uring_cmd";
    const ENTRY_WORDS: usize = 16;
    const COMPLETION_WORDS: usize = 4;
    const SETUP: u32 = setup::SQE128 | setup::CQE32;

    #[inline(always)]
    fn write(&self, words: &[AtomicU64], transfer: &Transfer) {
        let Transfer { is_write, offset, address, bytes, user_data } = *transfer;
        let (opcode, more) =
            if is_write { (NvmOpcode::WRITE, self.write_cdw12) } else { (NvmOpcode::READ, 0) };
        // Of whole blocks, of which there is at least one: the queue has checked it.
        let blocks_z = (bytes >> self.block_log2).wrapping_sub(1);
        let place = (offset >> self.block_log2, blocks_z | more);
        self.store(words, (opcode, self.flags), user_data, (address, bytes), place);
    }

    fn write_flush(&self, words: &[AtomicU64], user_data: u64) -> bool {
        self.store(words, (NvmOpcode::FLUSH, 0), user_data, (0, 0), (0, 0));
        true
    }

    /// The command's status, or a negative error number where it was not sent.
    #[inline(always)]
    fn status(result: i32, _: u32) -> IoStatus {
        if result == 0 { IoStatus::OK } else { passthrough_failure(result) }
    }
}

#[cold]
fn passthrough_failure(result: i32) -> IoStatus {
    match u16::try_from(result) {
        Ok(status) => IoStatus::nvme(nvpoll_spec::Status(status)),
        Err(_) => IoStatus::errno(result.wrapping_neg()),
    }
}

/// Which operation a transfer is.
#[inline(always)]
pub(super) fn is_write(kind: OperationKind) -> bool {
    kind == OperationKind::Write
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_spec::Status;

    fn words<const N: usize>(write: impl FnOnce(&[AtomicU64])) -> [u64; N] {
        let words = [const { AtomicU64::new(0) }; N];
        write(&words);
        words.map(AtomicU64::into_inner)
    }

    const TRANSFER: Transfer = Transfer {
        is_write: false,
        offset: 0x1_0000_3000,
        address: 0x7f00_1234_5000,
        bytes: 0x2000,
        user_data: 0x5eed,
    };

    /// linux/io_uring.h, `struct io_uring_sqe`, by its offsets.
    #[test]
    fn a_read_has_its_fields_where_the_kernel_looks() {
        let plain = Plain::new(FileRef::Descriptor(9), false, false);
        let entry = words::<8>(|words| plain.write(words, &TRANSFER));
        assert_eq!(entry[0], 22 | 9 << 32);
        assert_eq!(entry[1..5], [0x1_0000_3000, 0x7f00_1234_5000, 0x2000, 0x5eed]);
        assert_eq!(entry[5..], [0; 3]);
        assert_eq!(Plain::status(0x2000, 0x2000), IoStatus::OK);
        assert_eq!(Plain::status(-libc::EIO, 512), IoStatus::errno(libc::EIO));
        assert_eq!(Plain::status(0, 512), IoStatus::SHORT);
        assert!(!Plain::status(i32::MIN, 512).is_ok());
        let polled = Plain::new(FileRef::Registered, true, true);
        assert!(!polled.write_flush(&[], 1), "a polled ring has no flush");
    }

    /// linux/nvme_ioctl.h, `struct nvme_uring_cmd`, from the entry's byte 48 on.
    #[test]
    fn a_command_has_its_fields_where_the_driver_looks() {
        let passthrough = Passthrough::new(FileRef::Registered, true, (7, 12), WriteMode::Write);
        let entry = words::<16>(|words| passthrough.write(words, &TRANSFER));
        assert_eq!(entry[0], 46 | 1 << 8, "URING_CMD on a registered file");
        assert_eq!(entry[1], 0xc048_4e80);
        assert_eq!((entry[3], entry[4]), (1 << 32, 0x5eed));
        assert_eq!(entry[6], 2 | 7 << 32, "Read, namespace");
        assert_eq!((entry[9], entry[10]), (0x7f00_1234_5000, 0x2000 << 32));
        assert_eq!((entry[11], entry[12]), (0x10_0003, 1), "LBA, blocks zero-based");
        let durable = Passthrough::new(FileRef::Registered, true, (7, 12), WriteMode::Dsync);
        assert_eq!(
            words::<16>(|words| durable.write(words, &TRANSFER)),
            entry,
            "a read has no FUA"
        );
        let write = Transfer { is_write: true, ..TRANSFER };
        let forced = words::<16>(|words| durable.write(words, &write));
        assert_eq!((forced[6], forced[12]), (1 | 7 << 32, 1 | 1 << 30), "Write with FUA");
        let plain = words::<16>(|words| passthrough.write(words, &write));
        assert_eq!((plain[6], plain[12]), (1 | 7 << 32, 1));
        let flush = words::<16>(|words| assert!(passthrough.write_flush(words, 3)));
        assert_eq!((flush[3], flush[6]), (0, 7 << 32), "a flush has no buffer");
    }

    #[test]
    fn a_commands_status_is_the_drives() {
        assert_eq!(Passthrough::status(0, 512), IoStatus::OK);
        let media = Passthrough::status(0x4281, 512);
        assert_eq!(media, IoStatus::nvme(Status(0x4281)));
        assert_eq!(Passthrough::status(-libc::EINTR, 512), IoStatus::errno(libc::EINTR));
    }
}
