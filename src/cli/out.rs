//! Writing to the two streams without a panic: a reader may go away at any time (`nvpoll list | head`).

use crate::failure::Failure;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// Writes to stdout what belongs to the result.
///
/// # Errors
/// When it cannot be written; a reader that has gone away wants no more, and is no failure.
pub fn result(text: Arguments<'_>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_fmt(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write the result to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to stderr: progress, warnings, errors. If nobody can read it, nobody is told.
pub fn note(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A line of the result, to stdout; see [`result`].
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::out::result(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use say;

/// A line to stderr; see [`note`].
macro_rules! tell {
    ($($text:tt)*) => { $crate::cli::out::note(format_args!($($text)*)) };
}
pub(crate) use tell;
