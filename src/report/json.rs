//! The document in files and on standard output.

use super::model::{Report, SCHEMA};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Largest result file that is read. A row takes some kilobytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A result that could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system said no.
    #[error("{}: {what}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Too large to be a result.
    #[error("{}: larger than {} MiB; this is no result of nvpoll", path.display(), FILE_BYTES_MAX >> 20)]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// Not JSON, or cut off.
    #[error("{}: not valid JSON ({error}); the file is damaged or was never a result", path.display())]
    NotJson {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
    /// JSON of another kind or version.
    #[error("{}: {}; this nvpoll reads \"{SCHEMA}\"", path.display(), seen(found.as_deref()))]
    OtherSchema {
        /// Which file.
        path: PathBuf,
        /// The schema that it names.
        found: Option<String>,
    },
    /// Names the schema and does not keep to it.
    #[error("{}: says it is \"{SCHEMA}\" but does not keep to it: {error}", path.display())]
    Shape {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The report could not be put into JSON.
    #[error("the result could not be put into JSON: {0}")]
    Encode(serde_json::Error),
}

fn seen(found: Option<&str>) -> String {
    match found {
        Some(schema) => format!("its schema is \"{schema}\""),
        None => "it names no schema, so it is no result of nvpoll".to_owned(),
    }
}

impl Report {
    /// The document, indented, with a newline at its end.
    ///
    /// # Errors
    /// [`ReportError::Encode`].
    pub fn to_json(&self) -> Result<String, ReportError> {
        let mut text = serde_json::to_string_pretty(self).map_err(ReportError::Encode)?;
        text.push('\n');
        Ok(text)
    }

    /// Keeps it at `path`, whole or not at all: written under a temporary name beside it, brought to
    /// the disk, renamed. A symbolic link stays one. What is no regular file (a pipe, /dev/stderr)
    /// is written to.
    ///
    /// # Errors
    /// [`ReportError::Io`], [`ReportError::Encode`]; a file that was there before is then as it was.
    pub fn save(&self, path: &Path) -> Result<(), ReportError> {
        let text = self.to_json()?;
        let fail = |what| move |error| ReportError::Io { path: path.to_owned(), what, error };
        match fs::metadata(path) {
            Ok(found) if !found.is_file() => {
                fs::write(path, text).map_err(fail("cannot write the result"))
            }
            Ok(_) => {
                let real = fs::canonicalize(path).map_err(fail("cannot find the file"))?;
                replace(&real, &text).map_err(fail("cannot write the result"))
            }
            Err(_) => replace(path, &text).map_err(fail("cannot write the result")),
        }
    }

    /// The result that `path` holds.
    ///
    /// # Errors
    /// Any [`ReportError`] but `Encode`, with what the file is instead.
    pub fn load(path: &Path) -> Result<Self, ReportError> {
        let fail = |error| ReportError::Io {
            path: path.to_owned(),
            what: "cannot read the result",
            error,
        };
        let file = fs::File::open(path).map_err(fail)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ReportError::TooLarge { path: path.to_owned() });
        }
        Self::parse(&bytes, path)
    }

    /// The result in `bytes`, which came from `path`.
    fn parse(bytes: &[u8], path: &Path) -> Result<Self, ReportError> {
        let path = path.to_owned();
        let value: serde_json::Value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(error) => return Err(ReportError::NotJson { path, error }),
        };
        let found = value.get("schema").and_then(|schema| schema.as_str());
        if found != Some(SCHEMA) {
            let found = found.map(str::to_owned);
            return Err(ReportError::OtherSchema { path, found });
        }
        // From the text once more, not from the value: the message then has line and column.
        serde_json::from_slice(bytes).map_err(|error| ReportError::Shape { path, error })
    }
}

/// Puts `text` in the place of `path` at once.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".nvpoll-").suffix(".json");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Less what the umask takes away: a result is for others to read.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|failed| failed.error)?;
    sync_folder(folder)
}

/// Makes the rename itself lasting. Windows has no such thing.
fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}
