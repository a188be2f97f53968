//! One process at a time on one drive: a lock file beside its record, held by `flock(2)`, which
//! the kernel lets go of when the process ends, however it ends.
//!
//! A kernel built without file locking answers ENOSYS. Nothing is locked then, and what keeps two
//! processes apart is the record: a take creates it exclusively, and whoever gives back looks
//! whether the process that it names still runs.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nvpoll_spec::PciAddress;

use crate::Host;
use crate::error::{HostError, printable};
use crate::limits;
use crate::state::Holder;
use crate::sysfs;

/// Only its owner may open it: whoever can open a file can lock it, and so lock others out.
const LOCK_MODE: u32 = 0o600;

/// The right to be the one nvpoll process on a drive, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    file: File,
    path: PathBuf,
}

impl Hold {
    /// Removes the lock file, while it is still locked: for a drive without a record.
    pub fn remove(self) {
        // Whoever waits with this file open finds that the path leads elsewhere and tries again.
        let _ = fs::remove_file(&self.path);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Host {
    /// Becomes the one nvpoll process on a drive. It changes nothing on the drive itself; the
    /// user whom a handed-over drive was given to may do it, too.
    ///
    /// # Errors
    /// [`HostError::Held`] when another process has it, with its name and id as far as they can
    /// be read; [`HostError::State`] when a link lies where the lock should; [`HostError::Io`] when
    /// the lock file cannot be made or opened.
    pub fn hold(&self, address: PciAddress) -> Result<Hold, HostError> {
        let folder = self.make_state_folder()?;
        let path = folder.join(format!("{address}.lock"));
        for _ in 0..limits::LOCK_TRIES {
            match lock(&path) {
                Ok(Some(mut file)) => {
                    self.sign(&mut file)
                        .map_err(|error| HostError::io("write", self.outside(&path), error))?;
                    return Ok(Hold { file, path });
                }
                Ok(None) => {} // Removed between open and lock.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(HostError::Held { address, by: self.lock_holder(address, &path) });
                }
                // O_NOFOLLOW's answer: somebody else put it there, since nvpoll makes none.
                Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
                    return Err(HostError::State {
                        path: self.outside(&path),
                        seen: "this is a symbolic link, and no lock of nvpoll's".to_owned(),
                        remedy: "see who made it, then remove it as root".to_owned(),
                    });
                }
                Err(error) => return Err(HostError::io("lock", self.outside(&path), error)),
            }
        }
        Err(HostError::Held { address, by: "a series of other processes".to_owned() })
    }

    /// Leaves this process's name in its lock.
    fn sign(&self, file: &mut File) -> io::Result<()> {
        let Holder::Process { pid, comm, .. } = self.this_process() else { return Ok(()) };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{comm} (pid {pid})\n").as_bytes())
    }

    fn lock_holder(&self, address: PciAddress, path: &Path) -> String {
        // A handed-over drive's lock is its user's, who may write what he likes into it.
        if let Some(name) = sysfs::value(path) {
            return printable(&name.chars().take(limits::HOLDER_CHARS_MAX).collect::<String>());
        }
        match self.load_record(address) {
            Ok(Some(record)) => match record.holder {
                Holder::Process { pid, comm, .. } => format!("{comm} (pid {pid})"),
                Holder::Persistent => "another nvpoll process".to_owned(),
            },
            _ => "another nvpoll process".to_owned(),
        }
    }
}

/// Opens and locks; `None` when the path leads to another file by then.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(LOCK_MODE)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(error)) if error.raw_os_error() == Some(nix::libc::ENOSYS) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let still_there = fs::symlink_metadata(path).is_ok_and(|meta| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino()))
    });
    Ok(still_there.then_some(file))
}

impl Drop for Hold {
    fn drop(&mut self) {
        // An empty lock file names nobody; the lock itself ends with the descriptor.
        let _ = self.file.set_len(0);
    }
}
