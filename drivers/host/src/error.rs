//! What can go wrong, each with what was seen and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use nvpoll_spec::PciAddress;

use crate::limits;
use crate::uses::Use;

/// What a failure means to whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was asked for cannot be: another name, option or machine is needed.
    Usage,
    /// It could be done and is not, for the safety of the drive and its data.
    Refused,
    /// It was tried and did not work.
    Failed,
}

/// An error of this crate. Its text is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A file of the system could not be read or written.
    #[error("cannot {what} {}: {source}{}", path.display(), remedy_of(source))]
    Io {
        /// The verb: read, write, open, list.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },

    /// A name that leads to nothing that can be measured.
    #[error("{name}: {seen}; {remedy}")]
    Target {
        /// What the user typed.
        name: String,
        /// What it is.
        seen: String,
        /// What to type instead.
        remedy: String,
    },

    /// A name of a partition, where a drive is taken as a whole.
    #[error(
        "{name}: this is a partition (number {number}) of {}; name the whole namespace, {}, \
         and mind that everything on it is meant", whole.display(), whole.display()
    )]
    Partition {
        /// What the user typed.
        name: String,
        /// Its number.
        number: u32,
        /// The whole block device's node.
        whole: PathBuf,
    },

    /// The drive is in use, or could not be examined.
    #[error("{0}")]
    Refused(Box<Refusal>),

    /// What is to be written is in use, or could not be examined.
    #[error("{name} is in use and is not written: {}; end these uses first", Listed(uses))]
    InUse {
        /// What the user typed.
        name: String,
        /// The evidence; never empty.
        uses: Vec<Use>,
    },

    /// Another device is where a drive was.
    #[error(
        "{address}: this is not the drive any more that was looked at ({was}; {seen}); start \
         again, and name the drive that is meant"
    )]
    Replaced {
        /// Where.
        address: PciAddress,
        /// Model and serial number of the drive that was meant.
        was: String,
        /// What is there now.
        seen: String,
    },

    /// Another nvpoll process has the drive.
    #[error("{address}: {by} has this drive; wait until it ends, or end it")]
    Held {
        /// The drive.
        address: PciAddress,
        /// The process, as `nvpoll (pid 123)`.
        by: String,
    },

    /// A record shows that the drive is taken already, or was left behind by a crash.
    #[error("{address}: {seen}; {remedy}")]
    AlreadyTaken {
        /// The drive.
        address: PciAddress,
        /// What the record says.
        seen: String,
        /// What to do.
        remedy: String,
    },

    /// This machine, or this drive's place in it, lacks what the driver needs.
    #[error("{address}: {seen}; {remedy}")]
    Unsupported {
        /// The drive.
        address: PciAddress,
        /// What is missing.
        seen: String,
        /// How to get it.
        remedy: String,
    },

    /// The driver change failed half-way.
    #[error("{0}")]
    Change(Box<ChangeError>),

    /// The state folder or a record in it is not to be trusted.
    #[error("{}: {seen}; {remedy}", path.display())]
    State {
        /// The folder or the record.
        path: PathBuf,
        /// What is wrong with it.
        seen: String,
        /// What to do.
        remedy: String,
    },
}

impl HostError {
    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Target { .. } | Self::Partition { .. } | Self::Unsupported { .. } => {
                ErrorKind::Usage
            }
            Self::Refused(_)
            | Self::InUse { .. }
            | Self::Replaced { .. }
            | Self::Held { .. }
            | Self::AlreadyTaken { .. }
            | Self::State { .. } => ErrorKind::Refused,
            Self::Io { .. } | Self::Change(_) => ErrorKind::Failed,
        }
    }

    /// The exit status that the command line promises for it: 1 failed, 2 bad usage, 3 refused
    /// for safety.
    pub fn exit_status(&self) -> u8 {
        match self.kind() {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Refused => 3,
        }
    }

    /// What uses the drive, when that is the reason.
    pub fn uses(&self) -> &[Use] {
        match self {
            Self::Refused(refusal) => &refusal.uses,
            Self::InUse { uses, .. } => uses,
            _ => &[],
        }
    }

    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }
}

/// Why a drive is not touched.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The drive.
    pub address: PciAddress,
    /// Its model and serial number, where known.
    pub drive: String,
    /// The evidence; never empty.
    pub uses: Vec<Use>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) is in use and stays as it is: ", self.address, self.drive)?;
        write_list(f, &self.uses)
    }
}

/// A driver change that failed, and what became of the drive.
#[derive(Debug)]
pub struct ChangeError {
    /// The drive.
    pub address: PciAddress,
    /// What was being done.
    pub step: String,
    /// What was seen.
    pub seen: String,
    /// What to do.
    pub remedy: String,
    /// What could not be put back, in order; empty when the drive is as it was found.
    pub not_restored: Vec<String>,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed: {}; {}", self.address, self.step, self.seen, self.remedy)?;
        if self.not_restored.is_empty() {
            write!(f, " (the drive is as it was found)")
        } else {
            write!(f, "; NOT put back: ")?;
            write_list(f, &self.not_restored)?;
            write!(f, "; its state is recorded, `nvpoll unbind {}` tries again", self.address)
        }
    }
}

/// What to do about a failure of the system, where its kind tells.
fn remedy_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run it as root",
        io::ErrorKind::ReadOnlyFilesystem => "; it is read-only here, as in a container",
        io::ErrorKind::StorageFull => "; make room on that file system",
        _ => "",
    }
}

/// Text that somebody else chose (a process's name, a mount point, what a device says of itself),
/// fit for a terminal and a line: control characters are shown, not sent.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(f, self.0)
    }
}

/// `a; b; and 3 more`.
pub(crate) fn write_list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, all: &[T]) -> fmt::Result {
    for (index, item) in all.iter().take(limits::NAMES_IN_MESSAGE_MAX).enumerate() {
        let between = if index == 0 { "" } else { "; " };
        write!(f, "{between}{item}")?;
    }
    match all.len().saturating_sub(limits::NAMES_IN_MESSAGE_MAX) {
        0 => Ok(()),
        more => write!(f, "; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_says_what_it_leaves_out() {
        assert_eq!(Listed(&[1, 2]).to_string(), "1; 2");
        let ten: Vec<u32> = (0..10).collect();
        assert_eq!(Listed(&ten).to_string(), "0; 1; 2; 3; 4; 5; 6; 7; and 2 more");
    }

    #[test]
    fn what_others_named_cannot_steer_a_terminal() {
        assert_eq!(printable("sleep\x1b[2J\nnvpoll: fine"), "sleep\\u{1b}[2J\\nnvpoll: fine");
        assert_eq!(printable("/mnt/Größe a"), "/mnt/Größe a");
    }
}
