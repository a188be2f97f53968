//! The program: reads the command line, does the command, and says by its exit status how it ended
//! (0 all measured, 1 something failed, 2 bad usage, 3 refused for safety).

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    nvpoll::cli::main(nvpoll::cli::Cli::parse())
}
