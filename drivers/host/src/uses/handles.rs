//! Device nodes that processes have open or mapped, known by number, whatever their name.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layers::Layer;
use super::mounts::{Mount, Process, has_ended};
use super::{Survey, Use, UseKind, Who, plain};
use crate::Host;
use crate::drive::Drive;
use crate::kernel::{DevId, Node};
use crate::limits;
use crate::sysfs;

/// One open or mapped file.
#[derive(Clone, Debug)]
struct Handle {
    who: Who,
    /// The name it was opened by, in its process's view.
    name: String,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Open { fd: u32, writes: bool },
    Mapped,
    Registered,
}

impl Handle {
    fn detail(&self) -> String {
        match self.how {
            How::Open { fd, writes: true } => format!("{} as fd {fd}, for writing", self.name),
            How::Open { fd, writes: false } => format!("{} as fd {fd}, for reading", self.name),
            How::Mapped => format!("{} mapped into its memory", self.name),
            How::Registered => format!("{} registered with io_uring", self.name),
        }
    }
}

/// All handles of the machine that lead to devices.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    blocks: BTreeMap<DevId, Vec<Handle>>,
    chars: BTreeMap<DevId, Vec<Handle>>,
    /// Files of sysfs, such as a function's `resource0`, and devices that have no node
    /// (`vfio-device`), by the function's folder.
    functions: Vec<(PathBuf, Handle)>,
}

/// What a process would not show, counted.
#[derive(Default)]
struct Hidden {
    count: usize,
    first: Option<(Who, io::Error)>,
}

impl Hidden {
    fn add(&mut self, process: &Process, error: io::Error) {
        self.count += 1;
        self.first.get_or_insert_with(|| (process.who(), error));
    }
}

impl Host {
    /// Goes through every open file of every process but the one left out (0: none).
    pub(super) fn handles(
        &self,
        processes: &[Process],
        left_out: u32,
        unexamined: &mut Vec<String>,
    ) -> Handles {
        let mut handles = Handles::default();
        let mut hidden = Hidden::default();
        let remote = Survey::remote_points(&self.own_mounts(processes));
        for process in processes.iter().filter(|process| process.pid != left_out) {
            let scan = Scan { host: self, process, remote: &remote };
            let result = scan.open_files(&mut handles).and_then(|()| scan.mappings(&mut handles));
            match result {
                Err(error) if !has_ended(&error) => hidden.add(process, error),
                _ => {}
            }
        }
        if let Some((who, error)) = hidden.first {
            let count = hidden.count;
            unexamined.push(format!("open files of {count} processes, first {who}: {error}"));
        }
        handles
    }

    fn own_mounts(&self, processes: &[Process]) -> Vec<Mount> {
        let own = std::process::id();
        let mine: Vec<Process> = processes.iter().filter(|p| p.pid == own).cloned().collect();
        self.mounts(&mine, &mut Vec::new())
    }

    /// Every process, this one included, that holds a node through which a drive is driven from
    /// userspace.
    pub(crate) fn userspace_users(&self, drive: &Drive) -> Result<Vec<Use>, crate::HostError> {
        let processes = self.processes()?;
        let mut unexamined = Vec::new();
        let handles = self.handles(&processes, 0, &mut unexamined);
        let folder = sysfs::canonical(&self.device_dir(&drive.address));
        Ok(handles.of_userspace(self, drive, &folder))
    }
}

struct Scan<'a> {
    host: &'a Host,
    process: &'a Process,
    remote: &'a [PathBuf],
}

impl Scan<'_> {
    fn open_files(&self, handles: &mut Handles) -> io::Result<()> {
        let dir = self.process.dir.join("fd");
        // Unlike an optional folder of sysfs, one that is refused here hides something.
        for entry in fs::read_dir(&dir)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if has_ended(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match fs::read_link(entry.path()) {
                Ok(target) => self.open_file(fd, &entry.path(), &target, handles),
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn open_file(&self, fd: u32, path: &Path, target: &Path, handles: &mut Handles) {
        let name = target.to_string_lossy().into_owned();
        match name.as_str() {
            "anon_inode:[io_uring]" => return self.registered_files(fd, handles),
            "anon_inode:[vfio-device]" => return self.vfio_device(fd, name, handles),
            _ => {}
        }
        if let Some(folder) = function_folder(&name) {
            let handle = Handle { who: self.process.who(), name, how: self.how(fd) };
            handles.functions.push((folder, handle));
        } else if self.may_ask(target)
            && let Ok(node) = self.host.kernel.node(path)
        {
            let how = || self.how_unless_path(fd);
            self.add(node, &name, how, handles);
        }
    }

    fn add(
        &self,
        node: Node,
        name: &str,
        how: impl FnOnce() -> Option<How>,
        handles: &mut Handles,
    ) {
        let (devices, dev) = match node {
            Node::Block(dev) => (&mut handles.blocks, dev),
            Node::Char(dev) => (&mut handles.chars, dev),
            _ => return,
        };
        if let Some(how) = how() {
            let handle = Handle { who: self.process.who(), name: name.to_owned(), how };
            devices.entry(dev).or_default().push(handle);
        }
    }

    /// Whether a file can be asked for its kind without the risk of waiting for ever.
    fn may_ask(&self, target: &Path) -> bool {
        target.is_absolute()
            && (target.starts_with("/dev")
                || !self.remote.iter().any(|point| target.starts_with(point)))
    }

    fn flags(&self, fd: u32) -> Option<u32> {
        let info = sysfs::text(self.process.dir.join(format!("fdinfo/{fd}")))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u32::from_str_radix(flags.trim(), 8).ok()
    }

    fn how(&self, fd: u32) -> How {
        let flags = self.flags(fd).unwrap_or(0);
        How::Open { fd, writes: flags & nix::libc::O_ACCMODE as u32 != 0 }
    }

    /// `None` for a descriptor that only names a path (`O_PATH`) and opened nothing.
    fn how_unless_path(&self, fd: u32) -> Option<How> {
        let flags = self.flags(fd).unwrap_or(0);
        (flags & nix::libc::O_PATH as u32 == 0).then(|| self.how(fd))
    }

    /// Files that a process gave to io_uring stay open when it closes its own descriptor.
    /// `fdinfo` lists them (io_uring/fdinfo.c): `UserFiles: 2`, then `    0: /dev/nvme0n1`.
    fn registered_files(&self, fd: u32, handles: &mut Handles) {
        let path = self.process.dir.join(format!("fdinfo/{fd}"));
        let Ok(info) = sysfs::read(&path, limits::PROC_FILE_BYTES_MAX) else { return };
        let info = String::from_utf8_lossy(&info).into_owned();
        let lines = info.lines().skip_while(|line| !line.starts_with("UserFiles:")).skip(1);
        for line in lines.take_while(|line| line.starts_with(' ')) {
            let Some((_, name)) = line.split_once(": ") else { continue };
            let path = Path::new(name.trim());
            if path.starts_with("/dev")
                && let Ok(node) = self.host.kernel.node(&self.host.path(path))
            {
                self.add(node, name, || Some(How::Registered), handles);
            }
        }
    }

    /// From 6.17 on the kernel tells which function a VFIO device descriptor is.
    fn vfio_device(&self, fd: u32, name: String, handles: &mut Handles) {
        let info = sysfs::text(self.process.dir.join(format!("fdinfo/{fd}"))).unwrap_or_default();
        let folder = info.lines().find_map(|line| line.strip_prefix("vfio-device-syspath:"));
        if let Some(folder) = folder {
            let handle = Handle { who: self.process.who(), name, how: self.how(fd) };
            handles.functions.push((PathBuf::from(folder.trim()), handle));
        }
    }

    /// Devices and PCI resources that are mapped, perhaps with no descriptor left.
    fn mappings(&self, handles: &mut Handles) -> io::Result<()> {
        let maps = sysfs::read(&self.process.dir.join("maps"), limits::PROC_FILE_BYTES_MAX)?;
        let mut last = String::new();
        for line in String::from_utf8_lossy(&maps).lines() {
            let mut fields = line.splitn(6, ' ');
            let range = fields.next().unwrap_or_default();
            let name = fields.nth(4).map(str::trim).unwrap_or_default();
            if !(name.starts_with("/dev/") || name.starts_with("/sys/")) || name == last {
                continue;
            }
            last = name.to_owned();
            if let Some(folder) = function_folder(name) {
                let name = name.to_owned();
                let handle = Handle { who: self.process.who(), name, how: How::Mapped };
                handles.functions.push((folder, handle));
            } else if let Ok(node) = self.mapped_node(range, name) {
                self.add(node, name, || Some(How::Mapped), handles);
            }
        }
        Ok(())
    }

    /// What is mapped at a range: by the kernel's link where this process may follow it, else by
    /// its name.
    fn mapped_node(&self, range: &str, name: &str) -> io::Result<Node> {
        let trim = |part: &str| match part.trim_start_matches('0') {
            "" => "0".to_owned(),
            rest => rest.to_owned(),
        };
        let range: Vec<String> = range.split('-').map(trim).collect();
        let link = self.process.dir.join("map_files").join(range.join("-"));
        let kernel = &self.host.kernel;
        kernel.node(&link).or_else(|_| kernel.node(&self.host.path(name)))
    }
}

/// The folder of the PCI function whose `resource0`, `config` … a path of sysfs is.
fn function_folder(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let is_resource =
        path.starts_with("/sys/devices") && path.file_name()?.to_str()?.starts_with("resource");
    is_resource.then(|| path.parent().map(Path::to_owned)).flatten()
}

impl Handles {
    pub(super) fn of_block(&self, layer: &Layer) -> Vec<Use> {
        let handles = self.blocks.get(&layer.dev).map(Vec::as_slice).unwrap_or_default();
        handles.iter().map(|handle| opened(&layer.node, handle).resting_on(layer)).collect()
    }

    /// The kernel driver's character nodes: `/dev/nvme0` and `/dev/ng0n1`.
    pub(super) fn of_controller(&self, host: &Host, drive: &Drive) -> Vec<Use> {
        let Some(controller) = &drive.controller else { return Vec::new() };
        let folder = host.device_dir(&drive.address).join("nvme").join(controller);
        let mut nodes = vec![(Path::new("/dev").join(controller), folder.join("dev"))];
        for node in drive.namespaces.iter().filter_map(|ns| ns.generic.clone()) {
            let name = node.file_name().map(PathBuf::from).unwrap_or_default();
            let class = host.path("/sys/class/nvme-generic").join(name);
            nodes.push((node, class.join("dev")));
        }
        let mut uses = Vec::new();
        for (node, dev) in nodes {
            let dev = sysfs::text(dev).and_then(|text| text.parse().ok());
            let handles = dev.and_then(|dev: DevId| self.chars.get(&dev));
            uses.extend(handles.into_iter().flatten().map(|handle| opened(&node, handle)));
        }
        uses
    }

    /// The nodes of a userspace driver, and the function's own resources.
    pub(super) fn of_userspace(&self, host: &Host, drive: &Drive, folder: &Path) -> Vec<Use> {
        let node = PathBuf::from(drive.address.to_string());
        let folder = host.outside(folder);
        let by_node = host.vfio_nodes(drive).into_iter();
        let by_node = by_node.filter_map(|dev| self.chars.get(&dev)).flatten();
        let by_folder = self.functions.iter().filter(|(of, _)| *of == folder);
        by_node
            .chain(by_folder.map(|(_, handle)| handle))
            .map(|handle| {
                plain(UseKind::UserspaceDriver, &node, handle.name.clone())
                    .by(Some(handle.who.clone()))
            })
            .collect()
    }
}

fn opened(node: &Path, handle: &Handle) -> Use {
    plain(UseKind::OpenHandle, node, String::new())
        .by(Some(handle.who.clone()))
        .with_detail(&handle.detail())
}
