//! What the engines on io_uring share: rings set up as asked and as the kernel can, and the words
//! for what came of it.

use super::abi::setup;
use super::form::{Form, Plain};
use super::ring::{Ring, Setup};
use crate::{Caution, CautionKind, EngineError, EngineOptions};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Set-up flags in the order in which they are given up, newest first, with the Linux release that
/// brought each (io_uring_setup(2)). Deferred task run needs the single issuer below it.
const FLAGS: [(u32, &str, &str); 5] = [
    (setup::HYBRID_IOPOLL, "hybrid polling", "6.13"),
    (setup::NO_SQARRAY, "no SQ array", "6.6"),
    (setup::DEFER_TASKRUN, "deferred task run", "6.1"),
    (setup::SINGLE_ISSUER, "single issuer", "6.0"),
    (setup::COOP_TASKRUN, "cooperative task run", "5.19"),
];

/// What one ring runs with; an error says why not.
#[derive(Clone, Debug)]
pub(super) struct Features {
    pub(super) flags: u32,
    pub(super) buffers: Result<(), String>,
    pub(super) file: Result<(), String>,
    pub(super) ring: Result<(), String>,
}

/// What the queues made so far run with; shared with them.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    features: Vec<Features>,
    /// Processor time of the submission threads of the queues that are gone; `None` once one could
    /// not be read.
    thread_ns: Vec<Option<u64>>,
}

impl Seen {
    pub(super) fn add(&self, features: Features) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).features.push(features);
    }

    pub(super) fn add_thread_ns(&self, ns: Option<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).thread_ns.push(ns);
    }

    fn features(&self) -> Vec<Features> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).features.clone()
    }

    /// Of all queues that are gone, in seconds.
    fn thread_s(&self) -> Option<f64> {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum: Option<u64> = record.thread_ns.iter().copied().sum();
        sum.filter(|_| !record.thread_ns.is_empty()).map(|ns| ns as f64 / 1e9)
    }
}

/// An engine's rings.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) options: EngineOptions,
    /// Whether the target can be polled; if not, why.
    polls: Result<(), String>,
    /// The target takes I/O that must not wait, so that the system call which submits an I/O also
    /// sends it. Otherwise workers of the kernel's (io-wq) do.
    pub(super) takes_nowait: bool,
    pub(super) seen: Seen,
}

/// What takes a ring's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitter {
    /// The system call that publishes them.
    Call,
    /// A thread of the kernel's (`IORING_SETUP_SQPOLL`).
    Thread,
    /// The system call, which leaves each I/O to a worker of the kernel's.
    Workers,
}

impl Rings {
    pub(super) fn new(
        options: EngineOptions,
        polls: Result<(), String>,
        takes_nowait: bool,
    ) -> Self {
        Self { options: options.completed(), polls, takes_nowait, seen: Seen::default() }
    }

    /// What takes the entries.
    pub(super) fn submitter(&self) -> Submitter {
        match (self.options.sqpoll, self.takes_nowait || self.is_polled()) {
            (true, _) => Submitter::Thread,
            (false, true) => Submitter::Call,
            (false, false) => Submitter::Workers,
        }
    }

    /// Whether the rings are polled.
    pub(super) fn is_polled(&self) -> bool {
        self.options.iopoll && self.polls.is_ok()
    }

    /// I/Os that one system call waits for.
    pub(super) fn batch(&self) -> u32 {
        self.options.batch.unwrap_or(1)
    }

    /// The set-up flags that are wanted.
    fn wanted(&self) -> u32 {
        let options = &self.options;
        let mut flags = setup::NO_SQARRAY | setup::SINGLE_ISSUER;
        flags |= match self.submitter() {
            // Whose completion work runs where is of no matter to it (io_uring_setup(2): the other
            // flags are refused with it).
            Submitter::Thread => setup::SQPOLL,
            Submitter::Call => setup::DEFER_TASKRUN | setup::COOP_TASKRUN,
            // Deferred work would need a system call more to see what the workers have done.
            Submitter::Workers => setup::COOP_TASKRUN,
        };
        if options.sqpoll && options.sqpoll_cpu.is_some() {
            flags |= setup::SQ_AFF;
        }
        if self.is_polled() {
            flags |= setup::IOPOLL;
            flags |= if options.hybrid { setup::HYBRID_IOPOLL } else { 0 };
        }
        flags
    }

    /// A ring for `depth` I/Os in flight, with as many of the flags as this kernel has.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub(super) fn make<F: Form>(&self, depth: u32) -> Result<Ring<F>, EngineError> {
        let mut setup = Setup {
            flags: setup::CLAMP | self.wanted(),
            sq_thread_idle_ms: self.options.sqpoll_idle_ms.unwrap_or(0),
            sq_thread_cpu: self.options.sqpoll_cpu.unwrap_or(0),
        };
        // A thread says late, for a whole batch, that it has read entries, whose completions may be
        // there before: room for a batch that it reads and one behind it.
        let entries = if self.options.sqpoll { depth.saturating_mul(2) } else { depth };
        let wanted = FLAGS.into_iter().filter(|(flag, ..)| self.wanted() & flag != 0);
        for (flag, ..) in wanted {
            match Ring::new(entries, setup) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => setup.flags &= !flag,
                result => return result.map_err(|error| explain(&error, &self.options)),
            }
        }
        Ring::new(entries, setup).map_err(|error| explain(&error, &self.options))
    }

    /// How the rings run. Complete once the queues are made, or gone as for the thread's time.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let seen = self.seen.features();
        let mut facts = vec![
            ("ring flags", flags_in_words(&seen, self.wanted())),
            ("fixed buffers", in_words(&seen, |features| &features.buffers)),
            ("registered file", in_words(&seen, |features| &features.file)),
            ("registered ring", in_words(&seen, |features| &features.ring)),
            ("polled", self.polled_in_words(&seen)),
            ("batch", format!("a system call waits for {}", self.batch())),
        ];
        if self.submitter() == Submitter::Workers {
            let how = "by worker threads of the kernel's (io-wq): completion work is not deferred, \
                       and where nothing is ready after submitting, the processor is given up \
                       once before a call waits";
            facts.push(("submission", how.to_owned()));
        }
        if self.options.sqpoll {
            let time = match self.seen.thread_s() {
                Some(seconds) => format!(
                    "{seconds:.2} s of processor time from its start to its end, which the \
                     machine's and the process's count in"
                ),
                None => "its processor time is not known; the machine's counts it in".to_owned(),
            };
            facts.push(("submission thread", format!("yes: {time}")));
        }
        facts
    }

    fn polled_in_words(&self, seen: &[Features]) -> String {
        let all_have = |flag| seen.iter().all(|features| features.flags & flag != 0);
        match (&self.polls, self.options.iopoll) {
            (_, false) => "no: completions come by interrupt".to_owned(),
            (Err(reason), true) => format!("not polled: {reason}"),
            (Ok(()), true) if self.options.hybrid && all_have(setup::HYBRID_IOPOLL) => {
                "yes: by the kernel, after a sleep (hybrid)".to_owned()
            }
            (Ok(()), true) => "yes: by the kernel".to_owned(),
        }
    }

    /// What was asked for and is not so.
    pub(super) fn cautions(&self) -> Vec<Caution> {
        let mut texts = Vec::new();
        if let (Err(reason), true) = (&self.polls, self.options.iopoll) {
            texts.push(format!("not polled: {reason}"));
        }
        let seen = self.seen.features();
        let lacks_hybrid = seen.iter().any(|features| features.flags & setup::HYBRID_IOPOLL == 0);
        if self.is_polled() && self.options.hybrid && lacks_hybrid {
            texts.push("polled without a sleep: hybrid polling came with Linux 6.13".to_owned());
        }
        let caution = |text| Caution { kind: CautionKind::NotAsAsked, text };
        texts.into_iter().map(caution).collect()
    }
}

/// Whether this system has io_uring.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn available() -> Result<(), EngineError> {
    Rings::new(EngineOptions::default(), Ok(()), true).make::<Plain>(1).map(drop)
}

/// Why there is no ring, and what to do.
fn explain(error: &io::Error, options: &EngineOptions) -> EngineError {
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
        Some(libc::EINVAL) if options.sqpoll_cpu.is_some() => format!(
            "processor {} of --sqpoll-cpu may be none that is online and allowed to this process; \
             name another",
            options.sqpoll_cpu.unwrap_or(0)
        ),
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
pub(super) fn explain_unpinned(error: &io::Error, bytes: usize) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "{bytes} bytes had to be locked and {} may be by this user's rings together \
             (RLIMIT_MEMLOCK); raise it with `ulimit -l`, or run with CAP_IPC_LOCK",
            memlock_allowed()
        ),
        _ => error.to_string(),
    }
}

fn flags_in_words(seen: &[Features], expected: u32) -> String {
    let Some(flags) = seen.iter().map(|features| features.flags).reduce(|a, b| a & b) else {
        return NO_QUEUE.to_owned();
    };
    let names = |wanted: bool| {
        FLAGS
            .iter()
            .filter(move |(flag, ..)| expected & flag != 0 && (flags & flag != 0) == wanted)
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
        let flags = flags_in_words(&[good, bad], setup::COOP_TASKRUN | setup::NO_SQARRAY);
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
            let error = explain(&io::Error::from_raw_os_error(errno), &EngineOptions::default());
            assert!(matches!(error, EngineError::Unavailable(_)));
            assert!(error.to_string().contains(word), "{error}");
        }
        let text = explain_unpinned(&io::Error::from_raw_os_error(libc::ENOMEM), 4096);
        assert!(text.contains("4096 bytes had to be locked"), "{text}");
    }
}
