//! What a user still lacks who was given a drive's nodes, as far as that can be known.

use super::memlock;
use crate::run::Locked;
use crate::workload::Suite;
use nvpoll_host::Host;
use nvpoll_host::machine::{NodeAccess, SaidLimit, User};
use std::path::Path;

/// Suites whose largest workload is held against the limit.
const SUITES: [&str; 2] = ["quick", "review"];

/// Lines for the user: what lacks, with what to do, and what cannot be known.
pub fn lacks(host: &Host, user: &User) -> Vec<String> {
    let mut lines = locked_memory(host, user);
    let node = |path: &str| host.node_access(Path::new(path)).filter(|node| !node.admits(user));
    if let Some(node) = node("/dev/vfio/vfio") {
        lines.push(format!("lacks: {}; as root: chmod 0666 /dev/vfio/vfio", described(&node)));
    }
    if let Some(node) = node("/dev/iommu") {
        lines.push(format!(
            "lacks for --iommu iommufd alone: {}; as root: chown {} /dev/iommu",
            described(&node),
            user.name
        ));
    }
    lines
}

fn described(node: &NodeAccess) -> String {
    format!("{} has mode {:o} and belongs to user {}", node.path.display(), node.mode, node.uid)
}

/// The largest of the suites' workloads, on one drive.
fn largest_suite_bytes() -> u64 {
    let suites = SUITES.iter().filter_map(|name| Suite::named(name).ok());
    let workloads = suites.flat_map(|suite| suite.workloads);
    workloads.map(|workload| Locked::of(&workload, 1).bytes).max().unwrap_or(0)
}

fn locked_memory(host: &Host, user: &User) -> Vec<String> {
    let needed = largest_suite_bytes();
    let limits = host.user_limits(user);
    let files = |said: &SaidLimit| format!("{} says \"{}\"", said.file.display(), said.line);
    let mut lines = Vec::new();
    let lasting = || memlock::lasting(needed.div_ceil(1024), &user.name);
    match &limits.pam_soft {
        Some(said) if said.bytes.is_some_and(|bytes| bytes < needed) => lines.push(format!(
            "lacks: locked memory: {}, and the suites need {} KiB a drive; {}",
            files(said),
            needed.div_ceil(1024),
            lasting()
        )),
        Some(said) => lines.push(format!("locked memory: {}, which does", files(said))),
        None => lines.push(format!(
            "locked memory: no file of pam_limits names a limit for {}; the kernel's own is 8 MiB (64 KiB before Linux 5.16), and the suites need {} KiB a drive; to be sure, {}",
            user.name,
            needed.div_ceil(1024),
            lasting()
        )),
    }
    if let Some(said) = &limits.systemd {
        lines.push(format!("for what systemd starts: {}", files(said)));
    }
    lines.push(format!(
        "not known: what a session of {} really gets, which depends on how it is begun; `ulimit -l` and `nvpoll doctor` in it tell",
        user.name
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_host::fake::{Machine, PLAIN};

    fn ann(machine: &Machine) -> User {
        machine.write("/etc/passwd", "ann:x:1000:1000::/home/ann:/bin/sh\n");
        machine.host().user("ann").unwrap()
    }

    #[test]
    fn what_files_tell_and_what_nobody_can() {
        let machine = Machine::new(PLAIN);
        let ann = ann(&machine);
        let lines = lacks(&machine.host(), &ann);
        assert!(lines[0].contains("no file of pam_limits"), "{lines:?}");
        assert!(lines.last().unwrap().starts_with("not known: "), "{lines:?}");
        machine.write("/etc/security/limits.d/a.conf", "ann - memlock 64\n");
        machine.write("/etc/systemd/system.conf", "DefaultLimitMEMLOCK=1G\n");
        let lines = lacks(&machine.host(), &ann);
        let said = "lacks: locked memory: /etc/security/limits.d/a.conf says \"ann - memlock 64\"";
        assert!(lines[0].starts_with(said), "{lines:?}");
        assert!(lines[0].contains("ann - memlock ") && lines[0].contains("limits.d/nvpoll.conf"));
        assert!(lines[1].contains("DefaultLimitMEMLOCK=1G"), "{lines:?}");
        machine.write("/etc/security/limits.d/a.conf", "ann - memlock unlimited\n");
        assert!(lacks(&machine.host(), &ann)[0].ends_with("which does"));
    }

    #[test]
    fn nodes_that_only_root_may_open() {
        use std::os::unix::fs::PermissionsExt;
        let machine = Machine::new(PLAIN);
        let ann = ann(&machine);
        machine.write("/dev/vfio/vfio", "");
        let set = |mode| {
            let path = machine.path("/dev/vfio/vfio");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let says = || {
            let lines = lacks(&machine.host(), &ann);
            lines.iter().any(|line| line.contains("chmod 0666 /dev/vfio/vfio"))
        };
        set(0o600);
        assert!(says());
        set(0o666);
        assert!(!says());
    }
}
