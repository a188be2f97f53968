//! The system calls on files that the standard library does not wrap, each made safe here.

#![allow(unsafe_code)]

use nvpoll_mem::Pages;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// What direct I/O asks of a file (statx(2), `STATX_DIOALIGN`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectAlign {
    /// Offsets and lengths are multiples of this many bytes.
    Bytes(u32),
    /// The file cannot do direct I/O.
    Refused,
    /// The kernel or the filesystem does not say.
    Unknown,
}

/// Reads `bytes` at byte `offset` of `file` to byte `at` of `pages`; returns how many were read.
///
/// # Errors
/// The kernel's, or `InvalidInput` for a range outside `pages`.
#[inline(always)]
pub(crate) fn read_at(
    file: &File,
    pages: &Pages,
    at: usize,
    bytes: u32,
    offset: u64,
) -> io::Result<usize> {
    let target = range(pages, at, bytes)?;
    // SAFETY: the range lies in `pages`, which outlives this synchronous call and is memory that
    // others may write to. The system call itself, since the library's function is a point where a
    // thread may be cancelled, and pays for that.
    let read = unsafe {
        libc::syscall(libc::SYS_pread64, file.as_raw_fd(), target, bytes as usize, offset)
    };
    moved(read)
}

/// As [`read_at`] or, if `writes`, [`write_at`], with `RWF_HIPRI`: where the kernel and the queue
/// can, the call polls for the completion (preadv2(2)).
///
/// # Errors
/// As for these.
pub(crate) fn move_polled(
    writes: bool,
    file: &File,
    pages: &Pages,
    bytes: u32,
    offset: u64,
) -> io::Result<usize> {
    let call = if writes { libc::SYS_pwritev2 } else { libc::SYS_preadv2 };
    move_with_flags(call, file, pages, bytes, offset, libc::RWF_HIPRI)
}

/// Whether `file` takes I/O that must not wait (`RWF_NOWAIT`). Asked for behind the file's end, at
/// byte `end`, where nothing is read; `false` only where the kernel says so.
pub(crate) fn takes_nowait(file: &File, block_bytes: u32, end: u64) -> bool {
    let Ok(pages) = Pages::new(block_bytes as usize) else { return true };
    match move_with_flags(libc::SYS_preadv2, file, &pages, block_bytes, end, libc::RWF_NOWAIT) {
        Err(error) => error.raw_os_error() != Some(libc::EOPNOTSUPP),
        Ok(_) => true,
    }
}

fn move_with_flags(
    call: libc::c_long,
    file: &File,
    pages: &Pages,
    bytes: u32,
    offset: u64,
    flags: libc::c_int,
) -> io::Result<usize> {
    // The upper half of the offset, for systems whose words are shorter (linux/fs.h, `pos_from_hilo`).
    const UPPER_HALF: libc::c_long = 0;
    let vector = libc::iovec { iov_base: range(pages, 0, bytes)?.cast(), iov_len: bytes as usize };
    let (fd, vector) = (file.as_raw_fd(), &raw const vector);
    // SAFETY: the vector and the range in `pages` that it names outlive this synchronous call.
    moved(unsafe { libc::syscall(call, fd, vector, 1, offset, UPPER_HALF, flags) })
}

/// Writes `bytes` from byte `at` of `pages` to byte `offset` of `file`; returns how many.
///
/// # Errors
/// The kernel's, or `InvalidInput` for a range outside `pages`.
#[inline(always)]
pub(crate) fn write_at(
    file: &File,
    pages: &Pages,
    at: usize,
    bytes: u32,
    offset: u64,
) -> io::Result<usize> {
    let source = range(pages, at, bytes)?;
    // SAFETY: as in `read_at`; the kernel only reads the range.
    let written = unsafe {
        libc::syscall(libc::SYS_pwrite64, file.as_raw_fd(), source, bytes as usize, offset)
    };
    moved(written)
}

#[inline(always)]
fn range(pages: &Pages, at: usize, bytes: u32) -> io::Result<*mut u8> {
    match pages.bytes().checked_sub(at) {
        Some(room) if bytes as usize <= room => Ok(pages.as_ptr().wrapping_add(at)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

#[inline(always)]
fn moved(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A block device's size in bytes (`BLKGETSIZE64`).
///
/// # Errors
/// The kernel's.
pub(crate) fn block_device_bytes(file: &File) -> io::Result<u64> {
    // The request's number is made from size_t, but what it writes is a u64 (linux/fs.h).
    const BLKGETSIZE64: libc::Ioctl = nix::request_code_read!(0x12, 114, size_of::<usize>()) as _;
    let mut bytes = 0u64;
    // SAFETY: the request writes 8 bytes through its argument.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    nix::errno::Errno::result(result)?;
    Ok(bytes)
}

/// A block device's logical and physical block in bytes (`BLKSSZGET`, `BLKPBSZGET`).
///
/// # Errors
/// The kernel's.
pub(crate) fn block_device_blocks(file: &File) -> io::Result<(u32, u32)> {
    let ask = |request| {
        let mut bytes: libc::c_uint = 0;
        // SAFETY: both requests write an int through their argument.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut bytes) };
        nix::errno::Errno::result(result).map(|_| bytes)
    };
    Ok((ask(libc::BLKSSZGET)?, ask(libc::BLKPBSZGET)?))
}

/// What direct I/O asks of `file`.
///
/// # Errors
/// The kernel's.
pub(crate) fn direct_align(file: &File) -> io::Result<DirectAlign> {
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor itself; the kernel fills the
    // structure that is passed.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            found.as_mut_ptr(),
        )
    };
    nix::errno::Errno::result(result)?;
    // SAFETY: plain integers, zeroed above and filled by the kernel.
    let found = unsafe { found.assume_init() };
    Ok(match found.stx_dio_offset_align {
        _ if found.stx_mask & libc::STATX_DIOALIGN == 0 => DirectAlign::Unknown,
        0 => DirectAlign::Refused,
        bytes => DirectAlign::Bytes(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_no_io_without_waiting_is_told_from_what_does() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [0; 4096]).unwrap();
        // Past the end, so that nothing is read.
        assert!(takes_nowait(&File::open(&path).unwrap(), 4096, 4096));
        // The proc filesystem cannot promise that a read never waits.
        assert!(!takes_nowait(&File::open("/proc/self/status").unwrap(), 4096, 1 << 20));
    }
}
