//! Files that a report is made of: results of this program, fio's JSON, published tables.

mod fio;
mod fio_job;
mod ours;
mod published;
#[cfg(test)]
mod tests;

use super::json::{FILE_BYTES_MAX, ReportError};
use super::merged::{Figures, Source, SourceKind, Task};
use super::model::{Report, SCHEMA};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most rows of one file.
const ROWS_MAX: usize = 10_000;

/// Longest name that is taken from a file.
const NAME_CHARS_MAX: usize = 200;

/// A file, read.
#[derive(Clone, Debug)]
pub struct Input {
    /// What the file says of the whole.
    pub(super) source: Source,
    /// Its rows.
    pub(super) rows: Vec<InputRow>,
    /// The result itself, where the file is one.
    pub(super) report: Option<Report>,
}

/// A row and its workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InputRow {
    /// What was asked.
    pub task: Task,
    /// What came of it.
    pub figures: Figures,
}

/// A file that no report can be made of.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file system said no.
    #[error("{}: cannot read it: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// A folder, a pipe, a device.
    #[error("{}: not a regular file; name a result, fio's JSON or a table", path.display())]
    NotAFile {
        /// Which file.
        path: PathBuf,
    },
    /// A result of this program that is none, or is damaged.
    #[error(transparent)]
    Ours(#[from] ReportError),
    /// JSON of neither kind.
    #[error(
        "{}: JSON, but neither a result of nvpoll (\"{SCHEMA}\") nor fio's (it has no \"fio version\" and no \"jobs\")",
        path.display()
    )]
    ForeignJson {
        /// Which file.
        path: PathBuf,
    },
    /// fio's JSON that cannot be used.
    #[error("{}: fio's JSON, but {what}", path.display())]
    Fio {
        /// Which file.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// A table that cannot be used.
    #[error("{}: {}{what}", path.display(), line.map(|line| format!("line {line}: ")).unwrap_or_default())]
    Table {
        /// Which file.
        path: PathBuf,
        /// Where, from 1.
        line: Option<u64>,
        /// What is wrong and what to do.
        what: String,
    },
    /// Neither JSON nor a table.
    #[error(
        "{}: neither JSON nor a table as CSV; a report reads results of nvpoll, fio's JSON and CSV tables (docs/REPORT.md)",
        path.display()
    )]
    Foreign {
        /// Which file.
        path: PathBuf,
    },
    /// More than anybody looks at.
    #[error("{}: has {count} rows; at most {ROWS_MAX} are reported", path.display())]
    TooManyRows {
        /// Which file.
        path: PathBuf,
        /// Rows of it.
        count: usize,
    },
    /// Nothing in it.
    #[error("{}: has no row to report", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

impl Input {
    /// A result of this program that is, or would be, at `path`.
    pub(super) fn of(report: Report, path: &Path) -> Self {
        ours::convert(report, path)
    }

    /// Reads `path`, whatever of the kinds it is.
    ///
    /// # Errors
    /// Any [`InputError`]: what the file is instead, and where it breaks.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let fail = |error| InputError::Io { path: path.to_owned(), error };
        // Looked at before it is opened: opening a pipe waits for a writer.
        let metadata = std::fs::metadata(path).map_err(fail)?;
        if !metadata.is_file() {
            return Err(InputError::NotAFile { path: path.to_owned() });
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(ReportError::TooLarge { path: path.to_owned() }.into());
        }
        let mut bytes = Vec::new();
        // It may still grow while it is read.
        let file = File::open(path).map_err(fail)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ReportError::TooLarge { path: path.to_owned() }.into());
        }
        Self::parse(&bytes, path)
    }

    /// What `bytes`, which came from `path`, hold.
    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self, InputError> {
        let input = match kind(bytes) {
            Looks::Json(json) => Self::parse_json(json, bytes, path)?,
            Looks::Text(text) => published::parse(text, path)?,
            Looks::Neither => return Err(InputError::Foreign { path: path.to_owned() }),
        };
        match input.rows.len() {
            0 => Err(InputError::Empty { path: path.to_owned() }),
            1..=ROWS_MAX => Ok(input),
            count => Err(InputError::TooManyRows { path: path.to_owned(), count }),
        }
    }

    fn parse_json(json: &[u8], whole: &[u8], path: &Path) -> Result<Self, InputError> {
        let value: serde_json::Value = match serde_json::from_slice(json) {
            Ok(value) => value,
            // A result says better than a stranger what is wrong with it.
            Err(error) => return Err(ReportError::NotJson { path: path.to_owned(), error }.into()),
        };
        if value.get("schema").is_some() {
            let report = Report::parse(whole, path)?;
            return Ok(ours::convert(plain_report(report), path));
        }
        if value.get("fio version").is_some() || value.get("jobs").is_some() {
            return fio::convert(&value, path);
        }
        Err(InputError::ForeignJson { path: path.to_owned() })
    }

    fn new(path: &Path, kind: SourceKind) -> Self {
        let source = Source {
            file: plain(&path.display().to_string()),
            kind,
            label: String::new(),
            complete: true,
            environment: None,
            facts: BTreeMap::new(),
            reference_depth: None,
            marks: Vec::new(),
        };
        Self { source, rows: Vec::new(), report: None }
    }
}

/// What a file looks like from its first bytes.
enum Looks<'a> {
    Json(&'a [u8]),
    Text(&'a str),
    Neither,
}

/// fio may say something before its JSON begins, on lines of its own.
fn kind(bytes: &[u8]) -> Looks<'_> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if matches!(first, Some(b'{' | b'[')) {
        return Looks::Json(bytes);
    }
    let is_note = |line: &[u8]| line.starts_with(b"note:") || line.starts_with(b"fio:");
    let mut rest = bytes;
    while is_note(rest) {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { break };
        rest = rest.get(end + 1..).unwrap_or_default();
        if rest.trim_ascii_start().starts_with(b"{") {
            return Looks::Json(rest);
        }
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if first.is_some() && !text.contains('\0') => Looks::Text(text),
        _ => Looks::Neither,
    }
}

/// Text without control characters, which would play with a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A name from a file, as one short line.
fn name(text: &str) -> String {
    let short: String = plain(text).chars().take(NAME_CHARS_MAX).collect();
    short.trim().to_owned()
}

/// The same result with plain text all through: models, marks and command lines are shown, too.
fn plain_report(report: Report) -> Report {
    let cleaned = serde_json::to_value(&report).map(plain_value).and_then(serde_json::from_value);
    cleaned.unwrap_or(report)
}

fn plain_value(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(plain(&text)),
        Value::Array(items) => items.into_iter().map(plain_value).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (plain(&key), plain_value(value))).collect()
        }
        other => other,
    }
}
