//! A mapping of a BAR whose device has gone from under it.
//!
//! The kernel takes the pages of a mapped BAR away when the device's memory is turned off or the
//! device is reset by somebody else (`vfio_pci_core.c`, the zapping of its mappings). The next access
//! raises SIGBUS, by which a process ends with no drive given back. So that signal is caught: the
//! page is replaced by one of all ones, which is what a read from a device gives that is not there
//! (PCI Express 2.3.2), and which the driver takes for that everywhere. The access is repeated then.
//!
//! A SIGBUS at any other address goes where it went before.

#![allow(unsafe_code)]

use crate::PAGE_BYTES;
use std::ffi::c_void;
use std::fs::File;
use std::io::{Error, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Once, OnceLock};

/// Most BARs that are watched at once: more than a process can have drives. Beyond it a SIGBUS ends the process.
const WATCHED_MAX: usize = 256;

/// A watched range; free while `start` is 0, being taken while it is 1.
struct Range {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static WATCHED: [Range; WATCHED_MAX] =
    [const { Range { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; WATCHED_MAX];
/// A page of all ones. It is never closed.
static ONES: OnceLock<File> = OnceLock::new();
static HANDLER: Once = Once::new();
/// What had SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A range of mapped registers, watched until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: Option<usize>,
}

impl Watch {
    /// Watches `bytes` from `start` on.
    pub fn new(start: *const u8, bytes: usize) -> Self {
        if ONES.get().is_none()
            && let Ok(page) = page_of_ones()
        {
            // Where another thread was first, its page is as good.
            let _ = ONES.set(page);
        }
        HANDLER.call_once(install);
        let slot = WATCHED.iter().position(|range| {
            let took = range.start.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
            if took {
                range.bytes.store(bytes, Relaxed);
                range.start.store(start as usize, Release);
            }
            took
        });
        Self { slot }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(range) = self.slot.and_then(|slot| WATCHED.get(slot)) {
            range.start.store(0, Release);
        }
    }
}

fn page_of_ones() -> Result<File, Error> {
    let name = c"nvpoll: a device that is gone".as_ptr();
    // SAFETY: a constant text that ends in zero, and a flag; the result is checked.
    let fd = unsafe { libc::memfd_create(name, libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: it was just opened, and nothing else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(&[0xff; PAGE_BYTES])?;
    Ok(file)
}

fn install() {
    let mut before = MaybeUninit::uninit();
    // SAFETY: sigaction is plain data, for which zeroes mean no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
    // SAFETY: both point to structures of this type, and the handler has the form of SA_SIGINFO.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
            return;
        }
        // It is there before the handler can need it.
        let _ = BEFORE.set(before.assume_init());
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// Runs between any two instructions of any thread: it takes no lock, allocates nothing and calls the
/// system alone.
extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands a handler of SA_SIGINFO a valid siginfo_t, and for SIGBUS it has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Up to 0 it was sent by a process, and has no address.
    let is_fault = code > 0;
    if is_fault && is_watched(address) && replace(address) {
        return;
    }
    // The access is repeated, and goes where it would have gone without this.
    if let Some(before) = BEFORE.get() {
        // SAFETY: it is what the kernel itself said was installed.
        unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
    }
    if !is_fault {
        // What was sent is not repeated by itself, and ends a process.
        // SAFETY: two calls of the system that may be made in a handler.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::raise(libc::SIGBUS);
        }
    }
}

fn is_watched(address: usize) -> bool {
    WATCHED.iter().any(|range| {
        let start = range.start.load(Acquire);
        start > 1 && address.wrapping_sub(start) < range.bytes.load(Relaxed)
    })
}

/// Puts a page of all ones where `address` is, at one stroke.
fn replace(address: usize) -> bool {
    let Some(ones) = ONES.get() else { return false };
    let page = address & !(PAGE_BYTES - 1);
    // SAFETY: the page belongs to a mapping that its owner keeps and that is accessed by volatile
    // operations alone; what is mapped over it is as long and may be read and written as well.
    let mapped = unsafe {
        libc::mmap(
            page as *mut c_void,
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_FIXED,
            ones.as_raw_fd(),
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No access is made here, and no signal raised.
    #[test]
    fn what_is_watched_is_the_range_and_for_as_long_as_its_owner_is_there() {
        let start = std::ptr::without_provenance::<u8>(0x7000_0000_0000);
        let watch = Watch::new(start, 0x3000);
        let of = |offset: isize| is_watched(0x7000_0000_0000usize.wrapping_add_signed(offset));
        assert!(of(0) && of(0x2fff));
        assert!(!of(-1) && !of(0x3000) && !is_watched(0) && !is_watched(1));
        drop(watch);
        assert!(!of(0) && !of(0x2fff));
    }
}
