//! The way in.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::kernel::{Kernel, Linux};
use crate::limits;

/// This machine, or a folder that looks like one.
#[derive(Clone)]
pub struct Host {
    root: PathBuf,
    pub(crate) kernel: Arc<dyn Kernel>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Host {
    /// The machine this runs on.
    pub fn system() -> Self {
        Self::at(Path::new("/"))
    }

    /// A folder in which `/sys`, `/proc`, `/dev` and `/run` are looked for. Writes change the
    /// files in it, and nothing reacts to them.
    pub fn at(root: &Path) -> Self {
        Self::with_kernel(root, Arc::new(Linux::new()))
    }

    /// A folder, and a kernel for it.
    pub fn with_kernel(root: &Path, kernel: Arc<dyn Kernel>) -> Self {
        Self { root: crate::sysfs::canonical(root), kernel }
    }

    /// Where an absolute path of the machine lies below the root.
    pub(crate) fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// The reverse of [`Host::path`], for messages and records.
    pub(crate) fn outside(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).map_or_else(|_| path.to_owned(), |p| Path::new("/").join(p))
    }

    /// Asks again and again until the answer is `Some`, for at most `time_max`.
    pub(crate) fn wait<T>(
        &self,
        time_max: Duration,
        mut ask: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = self.kernel.elapsed() + time_max;
        loop {
            if let Some(answer) = ask() {
                return Some(answer);
            }
            if self.kernel.elapsed() >= deadline {
                return None;
            }
            self.kernel.pause(limits::POLL_INTERVAL);
        }
    }
}
