//! A machine in a folder, with a kernel that reacts: for tests, here and in what calls this crate.
//!
//! A recorded tree (see `tests/trees/record`) is laid out in a temporary folder. Writes to
//! `unbind`, `bind`, `drivers_probe` and `driver_override` then move driver links, nodes and
//! namespaces as Linux does; any of them can be made to fail. Device nodes are plain files whose
//! kind and number are kept beside them, so no test needs root.

mod kernel;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use self::kernel::FakeKernel;
pub use self::kernel::{Fault, Namespaces};
use crate::Host;
use crate::kernel::{DevId, Node};

/// Two drives of one and two namespaces, without kernel multipath; the first is partitioned.
pub const PLAIN: &str = include_str!("../../tests/trees/qemu-plain.tree");
/// Two drives under kernel multipath; the second has metadata.
pub const MULTIPATH: &str = include_str!("../../tests/trees/qemu-multipath.tree");
/// Two drives, one on vfio-pci with its override left set, one without driver.
pub const BOUND: &str = include_str!("../../tests/trees/qemu-bound.tree");

/// A machine in a folder; the folder goes with it.
///
/// Its methods panic where the folder cannot be written: this is for tests.
pub struct Machine {
    folder: TempDir,
    kernel: Arc<FakeKernel>,
}

impl Machine {
    /// Lays out a recorded tree, and the processes that every machine has.
    pub fn new(tree: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = fs::canonicalize(folder.path()).expect("its real path");
        let machine = Self { kernel: Arc::new(FakeKernel::new(root)), folder };
        for line in tree.lines().filter(|line| !line.starts_with('#')) {
            machine.lay(line);
        }
        for dir in ["/sys/bus/pci/devices", "/dev/vfio", "/run"] {
            machine.dir(dir);
        }
        machine.write("/sys/bus/pci/drivers_probe", "");
        machine.write("/proc/sys/kernel/random/boot_id", "3f1c\n");
        machine.write("/proc/swaps", "Filename Type Size Used Priority\n");
        machine.process(1, "init");
        machine.process(std::process::id(), "nvpoll");
        machine
    }

    /// The machine as this crate sees it.
    pub fn host(&self) -> Host {
        Host::with_kernel(self.folder.path(), self.kernel.clone())
    }

    /// Where an absolute path of the machine lies.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.kernel.path(absolute)
    }

    /// Makes a folder and those above it.
    pub fn dir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).expect(path);
    }

    /// Writes a file, and makes its folder.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let real = self.path(path);
        fs::create_dir_all(real.parent().expect("a parent")).expect(path);
        fs::write(real, text).expect(path);
    }

    /// Reads a file without the newline at its end; `None` when it is not there.
    pub fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim_end_matches('\n').to_owned())
    }

    /// Makes a link; its target is kept as it is.
    pub fn link(&self, path: &str, target: &str) {
        let real = self.path(path);
        fs::create_dir_all(real.parent().expect("a parent")).expect(path);
        let _ = fs::remove_file(&real);
        std::os::unix::fs::symlink(target, real).expect(path);
    }

    /// Makes a device node.
    pub fn node(&self, path: &str, node: Node) {
        if !self.path(path).exists() {
            self.write(path, "");
        }
        self.kernel.set_node(path, node);
    }

    /// Starts a process in the first mount namespace, without open files.
    pub fn process(&self, pid: u32, comm: &str) {
        let dir = format!("/proc/{pid}");
        self.write(&format!("{dir}/comm"), format!("{comm}\n"));
        // Its start is field 22; its name may hold blanks and parentheses.
        let fields = "0 ".repeat(18);
        self.write(&format!("{dir}/stat"), format!("{pid} ({comm}) S {fields}{pid}7 0\n"));
        self.write(&format!("{dir}/maps"), "");
        self.write(&format!("{dir}/limits"), "Max locked memory 8388608 unlimited bytes\n");
        self.link(&format!("{dir}/ns/mnt"), "mnt:[4026531840]");
        self.link(&format!("{dir}/ns/pid"), "pid:[4026531836]");
        self.link(&format!("{dir}/root"), "/");
        self.dir(&format!("{dir}/fd"));
        self.mounts(pid, "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n");
    }

    /// Ends a process.
    pub fn end_process(&self, pid: u32) {
        fs::remove_dir_all(self.path(&format!("/proc/{pid}"))).expect("a process");
    }

    /// Sets a process's mount table.
    pub fn mounts(&self, pid: u32, table: &str) {
        self.write(&format!("/proc/{pid}/mountinfo"), table);
    }

    /// Adds a line to the mount table of the first mount namespace.
    pub fn mount(&self, line: &str) {
        for pid in [1, std::process::id()] {
            let table = self.read(&format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            self.mounts(pid, &format!("{table}\n{line}\n"));
        }
    }

    /// Gives a process an open file.
    pub fn open(&self, pid: u32, fd: u32, target: &str) {
        self.link(&format!("/proc/{pid}/fd/{fd}"), target);
        let info = "pos:\t0\nflags:\t0100002\nmnt_id:\t22\n";
        self.write(&format!("/proc/{pid}/fdinfo/{fd}"), info);
    }

    /// Lets exclusive claims on a node fail, as something in the kernel would.
    pub fn claim(&self, node: &str) {
        self.kernel.set_claimed(node);
    }

    /// Lets the `nth` write from now on (0 is the next) go wrong.
    pub fn fail(&self, nth: usize, fault: Fault) {
        self.kernel.set_fault(nth, fault);
    }

    /// Forgets all faults that have not happened.
    pub fn mend(&self) {
        self.kernel.mend();
    }

    /// When namespaces come back after the nvme driver has a drive again.
    pub fn namespaces(&self, namespaces: Namespaces) {
        self.kernel.set_namespaces(namespaces);
    }

    /// Does something before each write, with the machine's folder.
    pub fn before_each_write(&self, look: impl Fn(&Path) + Send + 'static) {
        self.kernel.set_look(Box::new(look));
    }

    /// Lets a process end at a later time on the machine's clock.
    pub fn leave_after(&self, time: Duration, pid: u32) {
        self.kernel.end_after(time, pid);
    }

    /// Makes no nodes in `/dev` for drivers bound from now on, as without devtmpfs and udev.
    pub fn without_nodes(&self) {
        self.kernel.set_without_nodes();
    }

    /// Lets this process have no right to a file or node.
    pub fn deny(&self, path: &str, errno: i32) {
        self.kernel.deny(path, errno);
    }

    /// Whom nodes were given to so far: path, user, group.
    pub fn owners(&self) -> Vec<(String, u32, u32)> {
        self.kernel.owners()
    }

    /// What was written so far: path and text.
    pub fn writes(&self) -> Vec<(String, String)> {
        self.kernel.writes()
    }

    /// The driver of a drive, its override and what nodes there are: what must be the same after
    /// a drive was given back.
    pub fn state(&self, address: &str) -> String {
        let dir = format!("/sys/bus/pci/devices/{address}");
        let driver = fs::read_link(self.path(&format!("{dir}/driver"))).unwrap_or_default();
        let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let driver_override = self.read(&format!("{dir}/driver_override"));
        let mut nodes: Vec<String> = fs::read_dir(self.path("/dev"))
            .expect("/dev")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        nodes.sort();
        format!("driver {driver:?} override {driver_override:?} nodes {}", nodes.join(" "))
    }

    fn lay(&self, line: &str) {
        let mut parts = line.splitn(3, ' ');
        let kind = parts.next().unwrap_or_default();
        let path = parts.next().unwrap_or_default();
        let rest = parts.next().unwrap_or_default();
        match kind {
            "" => {}
            "d" => self.dir(path),
            "l" => self.link(path, rest),
            "f" => self.write(path, rest.replace("\\n", "\n")),
            "b" => self.node(path, Node::Block(number(rest))),
            "c" => self.node(path, Node::Char(number(rest))),
            _ => panic!("{line}: no such kind of entry"),
        }
    }
}

fn number(text: &str) -> DevId {
    text.parse().unwrap_or_else(|()| panic!("{text}: no device number"))
}

/// Whether a path lies in a folder or is it.
fn is_within(path: &Path, folder: &Path) -> bool {
    path.starts_with(folder)
}
