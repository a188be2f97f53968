//! The command line.

mod args;
mod asked;
#[cfg_attr(windows, path = "doctor_windows.rs")]
mod doctor;
#[cfg_attr(windows, path = "disks.rs")]
mod drives;
mod format;
mod identify;
mod measure;
mod out;
mod progress;
mod report;
mod rerun;
mod signals;
mod workload_args;

pub use args::{Cli, Command};

use crate::failure::Failure;
use std::process::ExitCode;

/// Does what the command line says; the exit status is the design's.
pub fn main(cli: Cli) -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .without_time()
        .with_target(false)
        .init();
    drives::tell_leftovers(&cli.command);
    let done = match cli.command {
        Command::Run(args) => measure::run(&args),
        Command::Compare(args) => measure::compare(&args),
        Command::Rerun(args) => rerun::rerun(&args),
        Command::Report(args) => report::report(&args),
        Command::Format(args) => format::format(&args),
        Command::Identify(args) => identify::identify(&args),
        Command::List(args) => drives::list(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bind(args) => drives::bind(&args),
        Command::Unbind(args) => drives::unbind(&args),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            out::tell!("nvpoll: {failure}");
            ExitCode::from(failure.exit_status())
        }
    }
}

/// What a command ends with: its exit status, or why it has no result.
pub(crate) type Done = Result<u8, Failure>;
