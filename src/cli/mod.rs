//! The command line.

mod args;
mod asked;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod drives;
mod identify;
mod measure;
mod out;
mod progress;
mod report;
mod rerun;
mod signals;

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
    #[cfg(target_os = "linux")]
    drives::tell_leftovers(&cli.command);
    let done = match cli.command {
        Command::Run(args) => measure::run(&args),
        Command::Compare(args) => measure::compare(&args),
        Command::Rerun(args) => rerun::rerun(&args),
        Command::Report(args) => report::report(&args),
        Command::Identify(args) => identify::identify(&args),
        #[cfg(target_os = "linux")]
        Command::List(args) => drives::list(&args),
        #[cfg(target_os = "linux")]
        Command::Doctor(args) => doctor::doctor(&args),
        #[cfg(target_os = "linux")]
        Command::Bind(args) => drives::bind(&args),
        #[cfg(target_os = "linux")]
        Command::Unbind(args) => drives::unbind(&args),
        #[cfg(not(target_os = "linux"))]
        Command::List(_) | Command::Doctor(_) | Command::Bind(_) | Command::Unbind(_) => {
            Err(Failure::usage("this command drives Linux's own driver model; not on this system"))
        }
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
