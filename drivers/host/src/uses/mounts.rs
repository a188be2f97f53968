//! Mounted file systems and swap, in every mount namespace that a process is in.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use super::layers::Layer;
use super::{Survey, Use, UseKind, Who, plain};
use crate::Host;
use crate::error::HostError;
use crate::kernel::DevId;
use crate::limits;
use crate::sysfs;

/// One line of a mount table.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    dev: DevId,
    point: String,
    fs: String,
    source: PathBuf,
    /// The block device that the source leads to: some file systems (Btrfs, bcachefs) have a
    /// device number of their own.
    source_devs: Vec<DevId>,
    /// A process that sees it, when this one does not.
    who: Option<Who>,
    is_root: bool,
}

/// One line of `/proc/swaps`.
#[derive(Clone, Debug)]
pub(super) struct Swap {
    pub(super) path: PathBuf,
    pub(super) kind: String,
    dev: Option<DevId>,
}

/// A process that was there when `/proc` was listed.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) dir: PathBuf,
}

impl Process {
    pub(super) fn who(&self) -> Who {
        let comm = sysfs::text(self.dir.join("comm"));
        Who { pid: self.pid, comm: comm.unwrap_or_else(|| "a process that ended".to_owned()) }
    }
}

/// Whether a failure means that the process ended meanwhile, or has nothing to show any more.
pub(super) fn has_ended(error: &io::Error) -> bool {
    use nix::libc::{EINVAL, ENOENT, ESRCH};
    matches!(error.raw_os_error(), Some(ENOENT | ESRCH | EINVAL))
}

impl Host {
    pub(super) fn processes(&self) -> Result<Vec<Process>, HostError> {
        let proc = self.path("/proc");
        let names = sysfs::names(&proc).map_err(|error| HostError::io("list", "/proc", error))?;
        let mut processes: Vec<Process> = names
            .iter()
            .filter_map(|name| Some(Process { pid: name.parse().ok()?, dir: proc.join(name) }))
            .collect();
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }

    /// Processes that this one cannot see may use anything.
    pub(super) fn check_pid_namespace(&self, processes: &[Process], unexamined: &mut Vec<String>) {
        /// The first PID namespace's number is fixed (PROC_PID_INIT_INO, include/linux/proc_ns.h).
        const FIRST: &str = "pid:[4026531836]";
        if processes.first().is_none_or(|process| process.pid != 1) {
            unexamined.push("processes of other users are hidden (/proc has hidepid)".to_owned());
        }
        let own = self.path(format!("/proc/{}/ns/pid", std::process::id()));
        if sysfs::link_name(own).is_some_and(|name| name != FIRST) {
            let what = "processes outside this container are not visible; run it with the host's \
                        PID namespace";
            unexamined.push(what.to_owned());
        }
    }

    /// Every mount that a process or thread sees, this process's own first.
    pub(super) fn mounts(&self, processes: &[Process], unexamined: &mut Vec<String>) -> Vec<Mount> {
        let own = std::process::id();
        let (mine, others): (Vec<_>, Vec<_>) =
            processes.iter().partition(|process| process.pid == own);
        let mut seen = BTreeSet::new();
        let mut tables = BTreeSet::new();
        let mut mounts = Vec::new();
        let mut sources = BTreeMap::new();
        for process in mine.into_iter().chain(others) {
            for task in tasks(process) {
                // A process in a changed root sees only what lies below it.
                let namespace = sysfs::link_name(task.join("ns/mnt"));
                let root = std::fs::read_link(task.join("root")).unwrap_or_default();
                let view = namespace.map(|namespace| (namespace, root));
                if view.as_ref().is_some_and(|view| seen.contains(view)) {
                    continue;
                }
                match sysfs::read(&task.join("mountinfo"), limits::PROC_FILE_BYTES_MAX) {
                    Ok(table) => {
                        seen.extend(view);
                        if tables.insert(table.clone()) {
                            let who = (process.pid != own).then(|| process.who());
                            mounts.extend(self.parse_mounts(&table, who, &mut sources));
                        }
                    }
                    Err(error) if has_ended(&error) => {}
                    Err(error) => {
                        unexamined.push(format!("the mount table of {} ({error})", process.who()))
                    }
                }
            }
        }
        mounts
    }

    fn parse_mounts(
        &self,
        table: &[u8],
        who: Option<Who>,
        sources: &mut BTreeMap<String, Vec<DevId>>,
    ) -> Vec<Mount> {
        let mut mounts = Vec::new();
        for line in String::from_utf8_lossy(table).lines() {
            let Some((dev, point, fs, source)) = parse_mount(line) else { continue };
            let source_devs = sources.entry(source.clone()).or_insert_with(|| {
                // bcachefs names all its members, with colons between.
                source.split(':').filter_map(|path| self.block_number(Path::new(path))).collect()
            });
            mounts.push(Mount {
                dev,
                is_root: point == "/" && who.as_ref().is_none_or(|who| who.pid == 1),
                point,
                fs,
                source_devs: source_devs.clone(),
                source: source.into(),
                who: who.clone(),
            });
        }
        mounts
    }

    pub(super) fn swaps(&self, unexamined: &mut Vec<String>) -> Vec<Swap> {
        let table = match sysfs::read(&self.path("/proc/swaps"), limits::PROC_FILE_BYTES_MAX) {
            Ok(table) => table,
            // A kernel without swap has no such file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                unexamined.push(format!("/proc/swaps ({error})"));
                return Vec::new();
            }
        };
        let table = String::from_utf8_lossy(&table).into_owned();
        let mut swaps = Vec::new();
        for line in table.lines().skip(1) {
            let mut words = line.split_whitespace();
            if let (Some(path), Some(kind)) = (words.next(), words.next()) {
                let path = PathBuf::from(sysfs::unescape(path));
                swaps.push(Swap { dev: self.block_number(&path), path, kind: kind.to_owned() });
            }
        }
        swaps
    }
}

/// The threads of a process: each may have left for a mount namespace of its own.
fn tasks(process: &Process) -> Vec<PathBuf> {
    let dir = process.dir.join("task");
    let own = process.pid.to_string();
    let mut tasks = vec![process.dir.clone()];
    let threads = sysfs::names_or_none(&dir).into_iter().filter(|name| *name != own);
    tasks.extend(threads.map(|name| dir.join(name)));
    tasks
}

/// Number, mount point, type and source of one line (proc_pid_mountinfo(5)): the optional fields
/// end with a single dash.
fn parse_mount(line: &str) -> Option<(DevId, String, String, String)> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ');
    let dev = front.nth(2)?.parse().ok()?;
    let point = sysfs::unescape(front.nth(1)?);
    let mut back = back.split(' ');
    Some((dev, point, back.next()?.to_owned(), sysfs::unescape(back.next()?)))
}

impl Survey {
    pub(super) fn mounts_of(&self, layer: &Layer) -> Vec<Use> {
        let mut uses: Vec<Use> = Vec::new();
        for mount in &self.mounts {
            let is_it = mount.dev == layer.dev
                || mount.source_devs.contains(&layer.dev)
                || mount.source == layer.node;
            // A bind mount of a device node shows devtmpfs, whose number is no block device's.
            if !is_it || uses.iter().any(|found| found.place == mount.point) {
                continue;
            }
            let kind = if mount.is_root { UseKind::Root } else { UseKind::Mount };
            uses.push(
                plain(kind, &layer.node, mount.point.clone())
                    .with_detail(&mount.fs)
                    .by(mount.who.clone())
                    .resting_on(layer),
            );
        }
        uses
    }

    pub(super) fn swaps_of(&self, layer: &Layer) -> Vec<Use> {
        let is_it = |swap: &&Swap| swap.dev == Some(layer.dev) || swap.path == layer.node;
        self.swaps
            .iter()
            .filter(is_it)
            .map(|_| plain(UseKind::Swap, &layer.node, String::new()).resting_on(layer))
            .collect()
    }

    /// File systems that may never answer: what lies on them is not asked.
    pub(super) fn remote_points(mounts: &[Mount]) -> Vec<PathBuf> {
        let remote = |fs: &str| {
            let kinds = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "lustre", "gpfs"];
            kinds.contains(&fs) || fs.starts_with("fuse")
        };
        mounts.iter().filter(|mount| remote(&mount.fs)).map(|m| PathBuf::from(&m.point)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart_whatever_optional_fields_it_has() {
        let line = r"36 35 259:1 /sub /mnt/a\040b rw,noatime shared:1 master:2 - xfs /dev/x rw";
        let (dev, point, fs, source) = parse_mount(line).unwrap();
        assert_eq!((dev.to_string().as_str(), point.as_str()), ("259:1", "/mnt/a b"));
        assert_eq!((fs.as_str(), source.as_str()), ("xfs", "/dev/x"));
        assert!(parse_mount("36 35 259:1 / /mnt rw - xfs /dev/x rw").is_some());
        assert!(parse_mount("36 35 259:1 / /mnt rw xfs /dev/x rw").is_none());
        assert!(parse_mount("").is_none());
    }
}
