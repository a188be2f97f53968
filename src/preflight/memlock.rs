//! Whether this process may lock the memory that a drive reaches by itself.

use crate::failure::Failure;
use crate::run::Locked;
use crate::workload::Workload;
use nvpoll_engine::EngineKind;
use nvpoll_host::machine::Rights;
use nvpoll_host::{Host, Memlock, UserDriver};

/// What a process lacks: one clause of what was seen, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Needed and allowed.
    pub seen: String,
    /// How to get it.
    pub remedy: String,
}

/// Holds what a run locks against the limit; `None` where it fits or is not limited. VFIO counts
/// the memory that it maps against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK
/// (vfio_lock_acct in drivers/vfio/vfio_iommu_type1.c).
///
/// `user` is how a file of pam_limits names whom it holds for; see [`own_name`].
pub fn lack(memlock: &Memlock, rights: &Rights, user: &str, needed_bytes: u64) -> Option<Lack> {
    let allowed = memlock.soft.filter(|_| rights.ipc_lock() != Some(true))?;
    if needed_bytes <= allowed {
        return None;
    }
    let kib = needed_bytes.div_ceil(1024);
    let seen = format!(
        "this run locks at least {kib} KiB of memory, and this process may lock {} KiB (RLIMIT_MEMLOCK)",
        allowed / 1024
    );
    let remedy = match memlock.hard {
        Some(hard) if hard < needed_bytes => lasting(kib, user),
        // The shell may raise its own up to the hard limit.
        _ => format!("raise it in this shell: ulimit -l {kib}"),
    };
    Some(Lack { seen, remedy })
}

/// Refuses workloads that lock more than this process may, on an engine whose memory is locked for
/// the drive. A limit that cannot be read is left to the kernel.
///
/// # Errors
/// Bad usage, with what is needed, what is allowed and what to do.
pub fn check(
    host: &Host,
    kind: EngineKind,
    workloads: &[Workload],
    drives: usize,
) -> Result<(), Failure> {
    if kind.info().driver != Some(UserDriver::VfioPci.name()) {
        return Ok(());
    }
    let needed = workloads.iter().map(|one| Locked::of(one, drives as u64).bytes).max();
    let (Some(needed), Ok(memlock)) = (needed, host.memlock()) else { return Ok(()) };
    let rights = host.rights();
    match lack(&memlock, &rights, &own_name(host, &rights), needed) {
        Some(Lack { seen, remedy }) => {
            Err(Failure::usage(format!("engine {kind}: {seen}; {remedy}")))
        }
        None => Ok(()),
    }
}

/// This process's user as limits.conf(5) takes it: by name or, where that is not known, `:UID`.
pub fn own_name(host: &Host, rights: &Rights) -> String {
    let name = rights.uid.map(|uid| host.user_name(uid).unwrap_or_else(|| format!(":{uid}")));
    name.unwrap_or_else(|| "USER".to_owned())
}

/// How root lets a user lock so much, in KiB, for good.
pub fn lasting(kib: u64, user: &str) -> String {
    format!(
        "as root: echo '{user} - memlock {kib}' >> /etc/security/limits.d/nvpoll.conf, then log in anew (LimitMEMLOCK={kib}K in a unit of systemd); or lower --iodepth, --bs or --numjobs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Rights = Rights { uid: Some(1000), capabilities: Some(0) };
    const ROOT: Rights = Rights { uid: Some(0), capabilities: Some(1 << 14) };

    fn limit(soft: Option<u64>, hard: Option<u64>) -> Memlock {
        Memlock { soft, hard }
    }

    #[test]
    fn needed_and_allowed_and_the_remedy_that_works() {
        let small = limit(Some(64 << 10), Some(8 << 20));
        assert_eq!(lack(&small, &USER, "ann", 64 << 10), None);
        assert_eq!(lack(&small, &ROOT, "ann", 1 << 30), None, "root is not limited");
        assert_eq!(lack(&limit(None, None), &USER, "ann", 1 << 40), None);
        let found = lack(&small, &USER, "ann", (64 << 10) + 1).unwrap();
        assert!(found.seen.contains("65 KiB") && found.seen.contains("64 KiB"), "{found:?}");
        assert!(found.remedy.contains("ulimit -l 65"), "within the hard limit: {found:?}");
        let found = lack(&small, &USER, "ann", 9 << 20).unwrap();
        assert!(found.remedy.contains("'ann - memlock 9216'"), "beyond the hard limit: {found:?}");
        let unknown = Rights::default();
        assert!(lack(&small, &unknown, "ann", 9 << 20).is_some(), "unknown rights are none");
    }
}
