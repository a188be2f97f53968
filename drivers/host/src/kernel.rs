//! The few things that change the machine or ask it something a folder cannot answer, behind
//! one trait: the tests put a kernel of their own in its place that reacts to writes.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::sys::stat::{major, minor};
use nix::unistd::{AccessFlags, faccessat};

use crate::limits;
use crate::machine::User;
use crate::machine::parse_groups;

/// A device number, written `259:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevId {
    /// The driver's number.
    pub major: u32,
    /// The device's number within it.
    pub minor: u32,
}

impl fmt::Display for DevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DevId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.trim().split_once(':').ok_or(())?;
        Ok(Self { major: major.parse().map_err(drop)?, minor: minor.parse().map_err(drop)? })
    }
}

/// What a path leads to, links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A block device.
    Block(DevId),
    /// A character device.
    Char(DevId),
    /// A regular file of so many bytes.
    File(u64),
    /// A directory.
    Directory,
    /// A socket, a pipe.
    Other,
}

/// An exclusive claim on a block device; it ends when this is dropped.
#[derive(Debug)]
pub struct Claim(#[allow(dead_code, reason = "held for its drop")] pub(crate) Option<File>);

/// What this crate asks of the running kernel beyond reading files.
///
/// Paths are real ones, below the root of the [`Host`](crate::Host) that passes them.
pub trait Kernel: Send + Sync {
    /// Writes one sysfs attribute in one `write(2)`.
    ///
    /// # Errors
    /// What the kernel answers; `TimedOut` when it has not within [`limits::SYSFS_WRITE_MAX`].
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// What a path leads to.
    ///
    /// # Errors
    /// Those of `stat(2)`.
    fn node(&self, path: &Path) -> io::Result<Node>;

    /// Opens a block device for reading with `O_EXCL`: the kernel refuses it with EBUSY when a
    /// file system, swap, a holder or anything else has claimed the device or, for a whole
    /// disk, one of its partitions (`bd_may_claim` in block/bdev.c).
    ///
    /// # Errors
    /// Those of `open(2)`.
    fn claim(&self, path: &Path) -> io::Result<Claim>;

    /// Loads a kernel module. That the module is unknown is not told apart from other failures.
    ///
    /// # Errors
    /// When modprobe is missing, fails, or takes longer than [`limits::MODPROBE_MAX`].
    fn load_module(&self, name: &str) -> io::Result<()>;

    /// Gives a file or node to a user and group.
    ///
    /// # Errors
    /// Those of `chown(2)`.
    fn chown(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()>;

    /// Whether this process may write a file or open a node for writing, by its effective user
    /// and capabilities. Nothing is opened.
    ///
    /// # Errors
    /// Those of `faccessat(2)`.
    fn may_write(&self, path: &Path) -> io::Result<()>;

    /// Whether this process may read a file or open a node for reading. Nothing is opened.
    ///
    /// # Errors
    /// Those of `faccessat(2)`.
    fn may_read(&self, path: &Path) -> io::Result<()>;

    /// The user of that name, wherever the system keeps its users; `None` when there is none.
    ///
    /// # Errors
    /// Those of `getpwnam_r(3)`.
    fn user(&self, name: &str) -> io::Result<Option<User>>;

    /// Sleeps.
    fn pause(&self, time: Duration);

    /// A monotonic clock.
    fn elapsed(&self) -> Duration;
}

/// The machine's own kernel.
#[derive(Debug)]
pub(crate) struct Linux {
    start: Instant,
}

impl Linux {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Kernel for Linux {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // Unbinding a dead device can block for minutes inside write(2), where nothing but a
        // second thread keeps a deadline. A thread that is left behind ends with the process.
        let (done, waiting) = mpsc::channel();
        let (path, text) = (path.to_owned(), text.to_owned());
        thread::Builder::new().name("nvpoll-sysfs".into()).spawn(move || {
            let _ = done.send(write_attribute(&path, &text));
        })?;
        waiting.recv_timeout(limits::SYSFS_WRITE_MAX).unwrap_or_else(|_| {
            let seconds = limits::SYSFS_WRITE_MAX.as_secs();
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the kernel did not finish within {seconds} s"),
            ))
        })
    }

    fn node(&self, path: &Path) -> io::Result<Node> {
        let meta = std::fs::metadata(path)?;
        let kind = meta.file_type();
        let dev = DevId { major: major(meta.rdev()) as u32, minor: minor(meta.rdev()) as u32 };
        Ok(if kind.is_block_device() {
            Node::Block(dev)
        } else if kind.is_char_device() {
            Node::Char(dev)
        } else if kind.is_file() {
            Node::File(meta.len())
        } else if kind.is_dir() {
            Node::Directory
        } else {
            Node::Other
        })
    }

    fn claim(&self, path: &Path) -> io::Result<Claim> {
        let flags = (OFlag::O_EXCL | OFlag::O_NONBLOCK).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        Ok(Claim(Some(file)))
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        let tool = ["/sbin/modprobe", "/usr/sbin/modprobe", "/bin/modprobe"]
            .into_iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no modprobe"))?;
        run_modprobe(self, &tool, name)
    }

    fn chown(&self, path: &Path, uid: u32, gid: u32) -> io::Result<()> {
        std::os::unix::fs::chown(path, Some(uid), Some(gid))
    }

    fn may_write(&self, path: &Path) -> io::Result<()> {
        may(path, AccessFlags::W_OK)
    }

    fn may_read(&self, path: &Path) -> io::Result<()> {
        may(path, AccessFlags::R_OK)
    }

    fn user(&self, name: &str) -> io::Result<Option<User>> {
        let Some(user) = nix::unistd::User::from_name(name)? else { return Ok(None) };
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
        let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
        let (groups, group_names) = parse_groups(&group, name, gid);
        Ok(Some(User { name: user.name, uid, gid, groups, group_names }))
    }

    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

fn may(path: &Path, how: AccessFlags) -> io::Result<()> {
    Ok(faccessat(AT_FDCWD, path, how, AtFlags::AT_EACCESS)?)
}

fn write_attribute(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn run_modprobe(kernel: &dyn Kernel, tool: &Path, name: &str) -> io::Result<()> {
    let mut child = Command::new(tool)
        .args(["--", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = kernel.elapsed() + limits::MODPROBE_MAX;
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() {
                Ok(())
            } else {
                Err(io::Error::other(format!("{} {name}: {status}", tool.display())))
            };
        }
        if kernel.elapsed() >= deadline {
            // Its own child, by its handle; a zombie at worst, until this process ends.
            let _ = child.kill();
            let seconds = limits::MODPROBE_MAX.as_secs();
            let what = format!("{} {name}: no end within {seconds} s", tool.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        kernel.pause(limits::POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_round_trips() {
        assert_eq!("259:3\n".parse(), Ok(DevId { major: 259, minor: 3 }));
        assert_eq!(DevId { major: 259, minor: 3 }.to_string(), "259:3");
        assert!("259".parse::<DevId>().is_err());
    }

    #[test]
    fn nodes_are_told_apart() {
        let kernel = Linux::new();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "abc").unwrap();
        assert_eq!(kernel.node(&dir.path().join("file")).unwrap(), Node::File(3));
        assert_eq!(kernel.node(dir.path()).unwrap(), Node::Directory);
        let null = DevId { major: 1, minor: 3 };
        assert_eq!(kernel.node(Path::new("/dev/null")).unwrap(), Node::Char(null));
    }

    #[test]
    fn rights_and_users_are_asked_without_opening() {
        let kernel = Linux::new();
        kernel.may_read(Path::new("/proc/self/status")).unwrap();
        let missing = kernel.may_write(Path::new("/proc/self/none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let root = kernel.user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(kernel.user("no such user").unwrap(), None);
    }

    #[test]
    fn a_failing_module_says_so() {
        let kernel = Linux::new();
        let error = run_modprobe(&kernel, Path::new("/bin/false"), "x").unwrap_err();
        assert!(error.to_string().contains("/bin/false x"), "{error}");
        run_modprobe(&kernel, Path::new("/bin/true"), "x").unwrap();
    }
}
