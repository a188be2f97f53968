//! Why a command ends without its result, and the exit status that says so.

use nvpoll_engine::EngineError;
use std::fmt;

/// What kind of end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Something failed while it was done.
    Failed,
    /// What was asked for cannot be: bad usage.
    Usage,
    /// It could be done and is not, for the safety of a drive or its data.
    Refused,
}

/// A command's end without its result. The text is one line: what failed, what was seen, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of end.
    pub kind: FailureKind,
    /// One line for people.
    pub text: String,
}

impl Failure {
    /// Something failed.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { kind: FailureKind::Failed, text: text.into() }
    }

    /// What was asked for cannot be.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { kind: FailureKind::Usage, text: text.into() }
    }

    /// Refused for safety.
    pub fn refused(text: impl Into<String>) -> Self {
        Self { kind: FailureKind::Refused, text: text.into() }
    }

    /// The exit status: 1 failed, 2 bad usage, 3 refused for safety.
    pub const fn exit_status(&self) -> u8 {
        match self.kind {
            FailureKind::Failed => 1,
            FailureKind::Usage => 2,
            FailureKind::Refused => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Usage(text) | EngineError::Unavailable(text) => Self::usage(text),
            EngineError::Failed(text) => Self::failed(text),
        }
    }
}

#[cfg(target_os = "linux")]
impl From<nvpoll_host::HostError> for Failure {
    fn from(error: nvpoll_host::HostError) -> Self {
        let kind = match error.kind() {
            nvpoll_host::ErrorKind::Usage => FailureKind::Usage,
            nvpoll_host::ErrorKind::Refused => FailureKind::Refused,
            nvpoll_host::ErrorKind::Failed => FailureKind::Failed,
        };
        Self { kind, text: error.to_string() }
    }
}
