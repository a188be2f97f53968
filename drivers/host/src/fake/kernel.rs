//! The kernel of the machine in a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::libc;

use super::is_within;
use crate::kernel::{Claim, DevId, Kernel, Node};
use crate::machine::{User, parse_user};

/// How a write goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing happens, and the write fails with this errno.
    Refused(i32),
    /// It happens, and the write fails all the same.
    DoneButFails(i32),
    /// Nothing happens, and the write says that it did.
    Ignored,
    /// The drive is unplugged: its driver goes at once, every write about it fails from now on, and
    /// half a second later its folder is gone.
    Unplugged,
}

/// When a drive's namespaces come back after the kernel's driver has it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// With the driver.
    AtOnce,
    /// So much later.
    After(Duration),
    /// Never: the controller does not come up.
    Never,
}

enum Due {
    Namespaces(String),
    End(u32),
    Gone(String),
}

type Look = Box<dyn Fn(&Path) + Send>;

struct State {
    nodes: BTreeMap<PathBuf, Node>,
    claimed: BTreeSet<PathBuf>,
    writes: Vec<(String, String)>,
    faults: BTreeMap<usize, Fault>,
    now: Duration,
    namespaces: Namespaces,
    /// What an unbind from nvme took away, by address: where it was, and where it is kept.
    kept: BTreeMap<String, Vec<(PathBuf, PathBuf)>>,
    /// What happens at some time.
    due: Vec<(Duration, Due)>,
    look: Option<Look>,
    without_nodes: bool,
    /// Modules that can be loaded.
    loaded: Vec<String>,
    /// Files that this process has no right to, and what the kernel answers.
    denied: BTreeMap<PathBuf, i32>,
    /// Drives that are being removed.
    leaving: BTreeSet<String>,
    /// What was given to whom.
    owners: Vec<(String, u32, u32)>,
}

/// It keeps what unbinding takes away in a folder of its own.
const KEPT: &str = "/.kept";

pub(super) struct FakeKernel {
    root: PathBuf,
    state: Mutex<State>,
}

impl FakeKernel {
    pub(super) fn new(root: PathBuf) -> Self {
        let state = State {
            nodes: BTreeMap::new(),
            claimed: BTreeSet::new(),
            writes: Vec::new(),
            faults: BTreeMap::new(),
            now: Duration::ZERO,
            namespaces: Namespaces::AtOnce,
            kept: BTreeMap::new(),
            due: Vec::new(),
            look: None,
            without_nodes: false,
            loaded: Vec::new(),
            denied: BTreeMap::new(),
            leaving: BTreeSet::new(),
            owners: Vec::new(),
        };
        Self { root, state: Mutex::new(state) }
    }

    pub(super) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_node(&self, path: &str, node: Node) {
        self.state().nodes.insert(self.path(path), node);
    }

    pub(super) fn set_claimed(&self, node: &str) {
        self.state().claimed.insert(self.path(node));
    }

    pub(super) fn set_look(&self, look: Look) {
        self.state().look = Some(look);
    }

    pub(super) fn end_after(&self, time: Duration, pid: u32) {
        let mut state = self.state();
        let due = state.now + time;
        state.due.push((due, Due::End(pid)));
    }

    pub(super) fn set_without_nodes(&self) {
        self.state().without_nodes = true;
    }

    pub(super) fn set_fault(&self, nth: usize, fault: Fault) {
        let mut state = self.state();
        let nth = state.writes.len() + nth;
        state.faults.insert(nth, fault);
    }

    pub(super) fn mend(&self) {
        self.state().faults.clear();
    }

    pub(super) fn set_namespaces(&self, namespaces: Namespaces) {
        self.state().namespaces = namespaces;
    }

    pub(super) fn writes(&self) -> Vec<(String, String)> {
        self.state().writes.clone()
    }

    fn device(&self, address: &str) -> PathBuf {
        let link = self.path("/sys/bus/pci/devices").join(address);
        fs::canonicalize(&link).unwrap_or(link)
    }

    fn driver(&self, address: &str) -> Option<String> {
        let link = fs::read_link(self.device(address).join("driver")).ok()?;
        Some(link.file_name()?.to_str()?.to_owned())
    }

    /// What a write does once it got this far.
    fn react(&self, state: &mut State, path: &Path, text: &str) -> io::Result<()> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let address = text.trim();
        match name {
            "driver_override" if address.is_empty() => fs::write(path, "(null)\n"),
            "drivers_probe" => self.probe(state, address),
            "unbind" | "bind" => {
                let driver = path.parent().and_then(Path::file_name);
                let driver = driver.and_then(|name| name.to_str()).unwrap_or_default();
                let now = self.driver(address);
                match (name, now) {
                    ("unbind", Some(now)) if now == driver => self.unbind(state, address, driver),
                    ("bind", None) if self.matches(address, driver) => {
                        self.bind(state, address, driver)
                    }
                    ("bind", Some(_)) => Err(io::Error::from_raw_os_error(libc::EBUSY)),
                    _ => Err(io::Error::from_raw_os_error(libc::ENODEV)),
                }
            }
            _ => fs::write(path, text),
        }
    }

    fn matches(&self, address: &str, driver: &str) -> bool {
        let dir = self.device(address);
        let wanted = fs::read_to_string(dir.join("driver_override")).unwrap_or_default();
        match wanted.trim() {
            "" | "(null)" => {
                let class = fs::read_to_string(dir.join("class")).unwrap_or_default();
                driver == "nvme" && class.trim() == "0x010802"
            }
            wanted => wanted == driver,
        }
    }

    fn probe(&self, state: &mut State, address: &str) -> io::Result<()> {
        if !self.device(address).exists() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let drivers = fs::read_dir(self.path("/sys/bus/pci/drivers"))?;
        for driver in drivers.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if self.driver(address).is_none() && self.matches(address, &driver) {
                // Like Linux, it keeps a refusal of the driver to itself.
                let _ = self.bind(state, address, &driver);
            }
        }
        Ok(())
    }

    fn bind(&self, state: &mut State, address: &str, driver: &str) -> io::Result<()> {
        let dir = self.device(address);
        let group = fs::read_link(dir.join("iommu_group")).ok();
        let group = group.and_then(|link| link.file_name()?.to_str().map(str::to_owned));
        match (driver, group) {
            ("vfio-pci", None) => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
            ("vfio-pci", Some(group)) => {
                let number = DevId { major: 247, minor: 0 };
                self.make_node(state, &format!("/dev/vfio/{group}"), Node::Char(number))?;
                let class = self.path(format!("/sys/class/vfio/{group}"));
                fs::create_dir_all(&class)?;
                fs::write(class.join("dev"), format!("{number}\n"))?;
            }
            ("uio_pci_generic", _) => {
                let number = DevId { major: 248, minor: 0 };
                fs::create_dir_all(dir.join("uio/uio0"))?;
                fs::write(dir.join("uio/uio0/dev"), format!("{number}\n"))?;
                self.make_node(state, "/dev/uio0", Node::Char(number))?;
            }
            ("nvme", _) => match state.namespaces {
                Namespaces::AtOnce => self.bring_back(state, address)?,
                Namespaces::After(time) => {
                    let due = Due::Namespaces(address.to_owned());
                    state.due.push((state.now + time, due));
                }
                Namespaces::Never => {}
            },
            _ => {}
        }
        let target = self.path("/sys/bus/pci/drivers").join(driver);
        std::os::unix::fs::symlink(target, dir.join("driver"))
    }

    fn make_node(&self, state: &mut State, path: &str, node: Node) -> io::Result<()> {
        if state.without_nodes {
            return Ok(());
        }
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
        fs::write(&path, "")?;
        state.nodes.insert(path, node);
        Ok(())
    }

    fn unbind(&self, state: &mut State, address: &str, driver: &str) -> io::Result<()> {
        let dir = self.device(address);
        fs::remove_file(dir.join("driver"))?;
        match driver {
            "nvme" => self.take_away(state, address, &dir),
            "vfio-pci" => {
                let group = fs::read_link(dir.join("iommu_group")).unwrap_or_default();
                let group = group.file_name().map(PathBuf::from).unwrap_or_default();
                let _ = fs::remove_dir_all(self.path("/sys/class/vfio").join(&group));
                let _ = fs::remove_file(self.path("/dev/vfio").join(group));
                Ok(())
            }
            "uio_pci_generic" => {
                fs::remove_dir_all(dir.join("uio"))?;
                fs::remove_file(self.path("/dev/uio0"))
            }
            _ => Ok(()),
        }
    }

    /// The controller, its subsystem, and every node that leads to either.
    fn take_away(&self, state: &mut State, address: &str, dir: &Path) -> io::Result<()> {
        let mut gone = vec![dir.join("nvme")];
        let controllers: Vec<_> = fs::read_dir(dir.join("nvme")).into_iter().flatten().collect();
        for entry in fs::read_dir(self.path("/sys/devices/virtual/nvme-subsystem"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let has = |name: &std::ffi::OsStr| entry.path().join(name).exists();
            if controllers.iter().flatten().any(|controller| has(&controller.file_name())) {
                gone.push(entry.path());
            }
        }
        for (kind, folder) in [(true, "block"), (false, "char")] {
            let links = fs::read_dir(self.path("/sys/dev").join(folder));
            for link in links.into_iter().flatten().flatten() {
                let target = fs::canonicalize(link.path()).unwrap_or_default();
                if !gone.iter().any(|folder| is_within(&target, folder)) {
                    continue;
                }
                let number = link.file_name().to_str().and_then(|name| name.parse().ok());
                let node = number.map(|n| if kind { Node::Block(n) } else { Node::Char(n) });
                let nodes = state.nodes.iter().filter(|(_, other)| Some(**other) == node);
                let nodes: Vec<PathBuf> = nodes.map(|(path, _)| path.clone()).collect();
                gone.extend(nodes.into_iter().filter(|path| path.exists()));
            }
        }
        let folder = self.path(KEPT).join(address);
        fs::create_dir_all(&folder)?;
        let mut kept = Vec::new();
        for (index, path) in gone.into_iter().enumerate() {
            let place = folder.join(index.to_string());
            fs::rename(&path, &place)?;
            kept.push((path, place));
        }
        state.kept.insert(address.to_owned(), kept);
        Ok(())
    }

    fn bring_back(&self, state: &mut State, address: &str) -> io::Result<()> {
        for (path, place) in state.kept.remove(address).unwrap_or_default() {
            fs::rename(place, path)?;
        }
        Ok(())
    }

    pub(super) fn deny(&self, path: &str, errno: i32) {
        let path = self.path(path);
        self.state().denied.insert(path, errno);
    }

    pub(super) fn owners(&self) -> Vec<(String, u32, u32)> {
        self.state().owners.clone()
    }

    fn may(&self, path: &Path) -> io::Result<()> {
        match self.state().denied.get(path) {
            Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
            None => fs::metadata(path).map(drop),
        }
    }

    /// What a process's descriptor leads to: the link's text, in the machine.
    fn follow(&self, path: &Path) -> PathBuf {
        match fs::read_link(path) {
            Ok(target) if target.is_absolute() && !target.starts_with(&self.root) => {
                self.path(target)
            }
            _ => fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
        }
    }
}

impl Kernel for FakeKernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut state = self.state();
        // The driver link leads out of the device's folder, so the name is made real first.
        let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
        let path = match (folder, path.file_name()) {
            (Some(folder), Some(name)) => folder.join(name),
            _ => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
        };
        if let Some(look) = &state.look {
            look(&self.root);
        }
        let nth = state.writes.len();
        let name = Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(&path));
        state.writes.push((name.display().to_string(), text.to_owned()));
        // A write is about the drive that it names, or in whose folder it is.
        let of_folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let about = [Some(text.trim()), of_folder].into_iter().flatten();
        let about = about.filter(|name| name.contains(':')).map(str::to_owned).next();
        let is_leaving = about.as_ref().is_some_and(|address| state.leaving.contains(address));
        match state.faults.remove(&nth) {
            _ if is_leaving => Err(io::Error::from_raw_os_error(libc::ENODEV)),
            Some(Fault::Unplugged) => {
                let address = about.unwrap_or_default();
                let _ = fs::remove_file(self.device(&address).join("driver"));
                let due = state.now + Duration::from_millis(500);
                state.due.push((due, Due::Gone(address.clone())));
                state.leaving.insert(address);
                Err(io::Error::from_raw_os_error(libc::ENODEV))
            }
            Some(Fault::Refused(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::Ignored) => Ok(()),
            Some(Fault::DoneButFails(errno)) => {
                self.react(&mut state, &path, text)?;
                Err(io::Error::from_raw_os_error(errno))
            }
            None => self.react(&mut state, &path, text),
        }
    }

    fn node(&self, path: &Path) -> io::Result<Node> {
        let real = self.follow(path);
        if let Some(node) = self.state().nodes.get(&real).filter(|_| real.exists()) {
            return Ok(*node);
        }
        let meta = fs::metadata(&real)?;
        Ok(if meta.is_dir() { Node::Directory } else { Node::File(meta.len()) })
    }

    fn claim(&self, path: &Path) -> io::Result<Claim> {
        let real = fs::canonicalize(path)?;
        if self.state().claimed.contains(&real) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        Ok(Claim(None))
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        self.state().loaded.push(name.to_owned());
        Err(io::Error::other(format!("modprobe {name}: there are no modules here")))
    }

    fn chown(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        fs::metadata(path)?;
        let name = Path::new("/").join(path.strip_prefix(&self.root).unwrap_or(path));
        self.state().owners.push((name.display().to_string(), uid, gid));
        Ok(())
    }

    fn may_write(&self, path: &Path) -> io::Result<()> {
        self.may(path)
    }

    fn may_read(&self, path: &Path) -> io::Result<()> {
        self.may(path)
    }

    fn user(&self, name: &str) -> io::Result<Option<User>> {
        let text = |path| fs::read_to_string(self.path(path)).unwrap_or_default();
        Ok(parse_user(&text("/etc/passwd"), &text("/etc/group"), name))
    }

    fn pause(&self, time: Duration) {
        let mut state = self.state();
        // Faster than its callers think, so that waits to their end are short.
        state.now += time * 20;
        let now = state.now;
        let (due, later) = std::mem::take(&mut state.due).into_iter().partition(|d| d.0 <= now);
        state.due = later;
        for (_, due) in due {
            let _ = match due {
                Due::Namespaces(address) => self.bring_back(&mut state, &address),
                Due::End(pid) => fs::remove_dir_all(self.path(format!("/proc/{pid}"))),
                Due::Gone(address) => fs::remove_dir_all(self.device(&address)),
            };
        }
    }

    fn elapsed(&self) -> Duration {
        self.state().now
    }
}
