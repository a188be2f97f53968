//! The scratch file that stands in for a drive when no target was named.

use crate::failure::Failure;
use crate::preflight::subject::{Subject, What};
use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes in the scratch file.
pub const SCRATCH_BYTES: u64 = 128 << 20;

/// A file that this process made; removed when this is dropped.
///
/// It is written in full, with data that does not compress, because a read of a block that was
/// never written costs the filesystem nothing.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the file in `folder`.
    ///
    /// # Errors
    /// When it cannot be made or written, with the folder and what to do.
    pub fn create(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(format!(".nvpoll-scratch-{}", std::process::id()));
        let failed = |error: std::io::Error| {
            let megabytes = SCRATCH_BYTES >> 20;
            Failure::failed(format!(
                "cannot write a scratch file of {megabytes} MiB, {}: {error}; run it in a folder that has room, or name one with --scratch",
                path.display()
            ))
        };
        let mut file = File::options().write(true).create_new(true).open(&path).map_err(failed)?;
        // From here on it is removed, whatever happens.
        let scratch = Self { path: path.clone() };
        let mut chunk = vec![0; 1 << 20];
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(0x6e76_706f_6c6c);
        for _ in 0..SCRATCH_BYTES / chunk.len() as u64 {
            rng.fill_bytes(&mut chunk);
            file.write_all(&chunk).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(scratch)
    }

    /// The file as a target.
    pub fn subject(&self) -> Subject {
        let path = self.path.clone();
        let below = super::system::below_file(&path);
        let what = What::File { path, size_bytes: SCRATCH_BYTES, is_scratch: true };
        Subject { below, ..Subject::new("scratch file", what) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove the scratch file {}: {error}", self.path.display());
        }
    }
}
