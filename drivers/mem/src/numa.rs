//! Where memory is: on which NUMA node (numa(7)), and in pages of which kind.

#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
use crate::PAGE_BYTES;
use crate::Pages;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes from one page that is asked for its node to the next.
const SAMPLE_BYTES: usize = 2 << 20;
/// Nodes that the kernel knows at most (CONFIG_NODES_SHIFT is 10).
#[cfg(target_os = "linux")]
const NODES_MAX: usize = 1024;
/// get_mempolicy(2): the node of a page, not a policy (linux/mempolicy.h).
#[cfg(target_os = "linux")]
const MPOL_F_NODE: libc::c_ulong = 1;
#[cfg(target_os = "linux")]
const MPOL_F_ADDR: libc::c_ulong = 2;

/// Asks that `bytes` from `start` on, which nobody has touched yet, come from `node` as long as it
/// has memory, and from others then (mbind(2), MPOL_PREFERRED). A kernel that refuses places them as
/// it always does; [`Pages::node_at`] tells.
#[cfg(target_os = "linux")]
pub(crate) fn prefer(start: *mut libc::c_void, bytes: usize, node: u32) {
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    let mut nodes = [0 as libc::c_ulong; NODES_MAX / WORD_BITS];
    let (word, bit) = (node as usize / WORD_BITS, node as usize % WORD_BITS);
    let Some(word) = nodes.get_mut(word) else { return };
    *word = 1 << bit;
    // SAFETY: a policy for the caller's own mapping; the mask is as long as is said (the kernel counts
    // one bit more than it reads), and memory is neither read nor moved.
    unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            bytes,
            libc::MPOL_PREFERRED,
            nodes.as_ptr(),
            (NODES_MAX + 1) as libc::c_ulong,
            0 as libc::c_uint,
        )
    };
}

impl Pages {
    /// The node that the page at byte `offset` is on; `None` where the kernel does not say.
    pub fn node_at(&self, offset: usize) -> Option<u32> {
        if offset >= self.bytes() {
            return None;
        }
        #[cfg(target_os = "linux")]
        {
            let mut node: libc::c_int = -1;
            // SAFETY: asks for the node of a page within this mapping; the kernel writes one `int`,
            // and no mask, since there is none.
            let asked = unsafe {
                libc::syscall(
                    libc::SYS_get_mempolicy,
                    &raw mut node,
                    std::ptr::null_mut::<libc::c_ulong>(),
                    0 as libc::c_ulong,
                    self.as_ptr().wrapping_add(offset),
                    MPOL_F_NODE | MPOL_F_ADDR,
                )
            };
            if asked == 0 { u32::try_from(node).ok() } else { None }
        }
        #[cfg(not(target_os = "linux"))]
        None
    }
}

/// Where the memory of one device was placed so far, as the kernel says.
#[derive(Debug, Default)]
pub struct Placement {
    wanted: Option<u32>,
    huge: AtomicU64,
    base: AtomicU64,
    elsewhere: AtomicU64,
    unknown: AtomicU64,
}

impl Placement {
    /// Of a device whose memory is wanted on `node`, or anywhere.
    pub fn new(node: Option<u32>) -> Self {
        Self { wanted: node, ..Self::default() }
    }

    /// The node that is wanted.
    pub fn wanted(&self) -> Option<u32> {
        self.wanted
    }

    /// Counts `pages`, with a look at the node of a page every 2 MiB.
    pub fn note(&self, pages: &Pages) {
        let kind = if pages.is_huge() { &self.huge } else { &self.base };
        kind.fetch_add(pages.bytes() as u64, Relaxed);
        let Some(wanted) = self.wanted else { return };
        for offset in (0..pages.bytes()).step_by(SAMPLE_BYTES) {
            let bytes = (pages.bytes() - offset).min(SAMPLE_BYTES) as u64;
            match pages.node_at(offset) {
                Some(node) if node == wanted => {}
                Some(_) => drop(self.elsewhere.fetch_add(bytes, Relaxed)),
                None => drop(self.unknown.fetch_add(bytes, Relaxed)),
            }
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: &AtomicU64| bytes.load(Relaxed) as f64 / f64::from(1 << 20);
        match self.wanted {
            Some(node) => write!(f, "on NUMA node {node}, the drive's")?,
            None => f.write_str("on whichever node the workers run")?,
        }
        if self.elsewhere.load(Relaxed) > 0 {
            write!(f, " (but {:.1} MiB, which it has no room for)", mib(&self.elsewhere))?;
        }
        if self.unknown.load(Relaxed) > 0 {
            f.write_str(" (as asked; the kernel does not say)")?;
        }
        let (huge, base) = (mib(&self.huge), mib(&self.base));
        write!(f, "; {huge:.1} MiB in huge pages of the pool, {base:.1} MiB in others")
    }
}

/// Whether so many bytes are worth a huge page.
#[cfg(target_os = "linux")]
pub(crate) const fn is_huge_sized(bytes: usize) -> bool {
    bytes >= 512 * PAGE_BYTES
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// On any machine: node 0 is there where the kernel knows nodes at all.
    #[test]
    fn memory_is_where_it_says() {
        let pages = Pages::near(3 * SAMPLE_BYTES + 4096, Some(0)).unwrap();
        let placement = Placement::new(Some(0));
        placement.note(&pages);
        let text = placement.to_string();
        assert!(text.starts_with("on NUMA node 0, the drive's"), "{text}");
        assert_eq!(pages.node_at(pages.bytes()), None);
        match pages.node_at(0) {
            // With one node there is no other; with several, node 0 may be full.
            Some(0) => assert!(!text.contains("does not say"), "{text}"),
            Some(_) => assert!(text.contains("no room"), "{text}"),
            None => assert!(text.contains("does not say"), "{text}"),
        }
        let sum = placement.huge.load(Relaxed) + placement.base.load(Relaxed);
        assert_eq!(sum, pages.bytes() as u64);
        assert_eq!(pages.is_huge(), placement.huge.load(Relaxed) > 0);
    }

    #[test]
    fn a_node_that_is_not_there_is_no_failure() {
        for node in [1023, 1024, u32::MAX] {
            let pages = Pages::near(4096, Some(node)).unwrap();
            let placement = Placement::new(Some(node));
            placement.note(&pages);
            assert!(placement.to_string().contains("MiB"), "{placement}");
            assert!(!pages.is_huge());
        }
    }
}
