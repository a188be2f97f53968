//! io_uring: the kernel's block layer by shared rings, one system call a batch.
//!
//! A worker has a ring, one pinned region with a buffer for each tag, and the target as a
//! registered file. Whatever of this the kernel does not give is done without, and said in
//! [`IoUring::facts`](crate::Engine::facts).

mod abi;
mod queue;
mod ring;

pub use queue::IoUringQueue;

use crate::block::BlockTarget;
use crate::bounds::check_shape;
use crate::{Engine, EngineError, EngineInfo, Geometry, OpenOptions, QueueShape, Target};
use abi::{ENTRIES_MAX, REGISTERED_BYTES_MAX, setup};
use nvpoll_mem::PAGE_BYTES;
use ring::Ring;
use std::io;
use std::sync::{Mutex, PoisonError};

/// Set-up flags in the order in which they are given up, newest first, with the Linux release that
/// brought each (io_uring_setup(2)). Deferred task run needs the single issuer below it.
const FLAGS: [(u32, &str, &str); 4] = [
    (setup::NO_SQARRAY, "no SQ array", "6.6"),
    (setup::DEFER_TASKRUN, "deferred task run", "6.1"),
    (setup::SINGLE_ISSUER, "single issuer", "6.0"),
    (setup::COOP_TASKRUN, "cooperative task run", "5.19"),
];

/// The kernel's io_uring on a block device or a file.
#[derive(Debug)]
pub struct IoUring {
    target: BlockTarget,
    /// What the queues made so far run with.
    seen: Mutex<Vec<Features>>,
}

/// What one ring runs with; an error says why not.
#[derive(Clone, Debug)]
struct Features {
    flags: u32,
    buffers: Result<(), String>,
    file: Result<(), String>,
    ring: Result<(), String>,
}

impl Engine for IoUring {
    const INFO: EngineInfo = EngineInfo {
        name: "io_uring",
        stack: "Linux io_uring",
        summary: "the kernel's io_uring, batched, with registered buffers and file",
        driver: None,
        polls: false,
        depth_max: Some(ENTRIES_MAX),
    };

    type Queue = IoUringQueue;

    fn available() -> Result<(), EngineError> {
        new_ring(1).map(drop)
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        Self::available()?;
        let target = BlockTarget::open(Self::INFO.name, target, options)?;
        Ok(Self { target, seen: Mutex::default() })
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        let depth_max = REGISTERED_BYTES_MAX / buffer_stride(io_bytes);
        Geometry {
            size_bytes: self.target.size_bytes,
            block_bytes: self.target.block_bytes,
            depth_max: u32::try_from(depth_max).map_or(ENTRIES_MAX, |depth| depth.min(ENTRIES_MAX)),
            queues_max: None,
            numa_node: self.target.numa_node,
        }
    }

    /// Complete once the queues are made: what a ring runs with is known only then.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        vec![
            self.target.fact(),
            ("ring flags", flags_in_words(&seen)),
            ("fixed buffers", in_words(&seen, |features| &features.buffers)),
            ("registered file", in_words(&seen, |features| &features.file)),
            ("registered ring", in_words(&seen, |features| &features.ring)),
            ("polled", "no: completions come by interrupt".to_owned()),
        ]
    }

    fn queue(&self, shape: QueueShape) -> Result<IoUringQueue, EngineError> {
        let geometry = self.geometry(shape.io_bytes);
        check_shape(Self::INFO.name, shape, &geometry)?;
        let ring = new_ring(shape.depth)?;
        let (queue, features) = IoUringQueue::new(ring, &self.target, shape, &geometry)?;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(features);
        Ok(queue)
    }
}

/// Bytes from one tag's buffer to the next: whole pages, so that no two share one.
fn buffer_stride(io_bytes: u32) -> usize {
    (io_bytes as usize).max(1).next_multiple_of(PAGE_BYTES)
}

/// A ring with as many of the flags as this kernel has.
fn new_ring(entries: u32) -> Result<Ring, EngineError> {
    let mut flags = FLAGS.iter().fold(setup::CLAMP, |flags, (flag, ..)| flags | flag);
    for (flag, ..) in FLAGS {
        match Ring::new(entries, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => flags &= !flag,
            result => return result.map_err(|error| explain(&error)),
        }
    }
    Ring::new(entries, flags).map_err(|error| explain(&error))
}

/// Why there is no ring, and what to do.
fn explain(error: &io::Error) -> EngineError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => {
            "this kernel has none, or a seccomp filter hides it; use a kernel of \
             5.11 or later with CONFIG_IO_URING, outside of a container that filters it"
                .to_owned()
        }
        Some(libc::EPERM) => explain_refusal(),
        Some(libc::ENOMEM) => format!(
            "no memory for its rings; {} may be locked by this user (RLIMIT_MEMLOCK), raise it with \
             `ulimit -l`",
            memlock_allowed()
        ),
        Some(libc::EMFILE | libc::ENFILE) => {
            "too many open files; raise the limit with `ulimit -n`, or lower --numjobs".to_owned()
        }
        None if error.kind() == io::ErrorKind::Unsupported => {
            "this kernel's cannot wait with a time limit; use Linux 5.11 or later".to_owned()
        }
        _ => "see io_uring_setup(2)".to_owned(),
    };
    EngineError::Unavailable(format!("io_uring cannot be set up: {error}: {reason}"))
}

/// What EPERM means (Documentation/admin-guide/sysctl/kernel.rst, `io_uring_disabled`).
fn explain_refusal() -> String {
    let sysctl = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    match sysctl("io_uring_disabled") {
        Some(2) => "kernel.io_uring_disabled is 2, off for everybody; \
             `sysctl kernel.io_uring_disabled=0` allows it"
            .to_owned(),
        Some(1) => {
            let group = match sysctl("io_uring_group") {
                Some(group) if group >= 0 => format!("or as a member of group {group}"),
                _ => "(kernel.io_uring_group names no group)".to_owned(),
            };
            format!(
                "kernel.io_uring_disabled is 1, for privileged users alone; run with CAP_SYS_ADMIN \
                 {group}, or `sysctl kernel.io_uring_disabled=0`"
            )
        }
        _ => "a security policy forbids it, often a container's seccomp filter; allow \
             io_uring_setup, io_uring_enter and io_uring_register there, or run outside"
            .to_owned(),
    }
}

/// The locked memory that this process may have, in words.
fn memlock_allowed() -> String {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => "any amount".to_owned(),
        Ok((bytes, _)) => format!("{bytes} bytes"),
        Err(_) => "an unknown amount".to_owned(),
    }
}

/// Why a region of `bytes` was not pinned.
fn explain_unpinned(error: &io::Error, bytes: usize) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "{bytes} bytes had to be locked and {} may be by this user's rings together \
             (RLIMIT_MEMLOCK); raise it with `ulimit -l`, or run with CAP_IPC_LOCK",
            memlock_allowed()
        ),
        _ => error.to_string(),
    }
}

fn flags_in_words(seen: &[Features]) -> String {
    let Some(flags) = seen.iter().map(|features| features.flags).reduce(|a, b| a & b) else {
        return NO_QUEUE.to_owned();
    };
    let names = |wanted: bool| {
        FLAGS
            .iter()
            .filter(move |(flag, ..)| (flags & flag != 0) == wanted)
            .map(move |(_, name, since)| match wanted {
                true => (*name).to_owned(),
                false => format!("{name} (since Linux {since})"),
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    match (names(true), names(false)) {
        (with, without) if without.is_empty() => with,
        (with, without) if with.is_empty() => format!("none; without {without}"),
        (with, without) => format!("{with}; without {without}"),
    }
}

const NO_QUEUE: &str = "not known before a queue is made";

/// "yes" only if it is so on each queue.
fn in_words(seen: &[Features], feature: impl Fn(&Features) -> &Result<(), String>) -> String {
    let refused: Vec<_> =
        seen.iter().filter_map(|features| feature(features).as_ref().err()).collect();
    match (refused.first(), seen.len()) {
        (_, 0) => NO_QUEUE.to_owned(),
        (None, _) => "yes".to_owned(),
        (Some(reason), all) if refused.len() == all => format!("no ({reason})"),
        (Some(reason), all) => format!("no on {} of {all} queues ({reason})", refused.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_yes_only_if_every_queue_has_it() {
        let features = |buffers: Result<(), &str>, flags| Features {
            flags,
            buffers: buffers.map_err(str::to_owned),
            file: Ok(()),
            ring: Ok(()),
        };
        let label = |seen: &[Features]| in_words(seen, |features| &features.buffers);
        let good = features(Ok(()), setup::COOP_TASKRUN | setup::NO_SQARRAY);
        let bad = features(Err("why"), setup::COOP_TASKRUN);
        assert_eq!(label(&[]), NO_QUEUE);
        assert_eq!(label(&[good.clone(), good.clone()]), "yes");
        assert_eq!(label(&[good.clone(), bad.clone()]), "no on 1 of 2 queues (why)");
        assert_eq!(label(&[bad.clone(), bad.clone()]), "no (why)");
        let flags = flags_in_words(&[good, bad]);
        assert!(flags.starts_with("cooperative task run; without no SQ array"), "{flags}");
    }

    #[test]
    fn a_refusal_names_its_cause() {
        for (errno, word) in [
            (libc::ENOSYS, "CONFIG_IO_URING"),
            (libc::EPERM, "io_uring"),
            (libc::ENOMEM, "RLIMIT_MEMLOCK"),
            (libc::EMFILE, "ulimit -n"),
        ] {
            let error = explain(&io::Error::from_raw_os_error(errno));
            assert!(matches!(error, EngineError::Unavailable(_)));
            assert!(error.to_string().contains(word), "{error}");
        }
        let text = explain_unpinned(&io::Error::from_raw_os_error(libc::ENOMEM), 4096);
        assert!(text.contains("4096 bytes had to be locked"), "{text}");
    }
}
