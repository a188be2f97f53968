//! `rerun`: a result's plan once more, and what came out beside what came out then.

use super::Done;
use super::args::{Cli, Command, CommonArgs};
use super::measure::{execute, resolve, stoppable};
use super::out;
use crate::failure::Failure;
use crate::plan::{Plan, Stack};
use crate::preflight::{Host, Scratch, Subject};
use crate::report::{Diff, Input, Report};
use crate::run::Column;
use clap::{Args, Parser};
use nvpoll_engine::EngineChoice;
use std::path::{Path, PathBuf};

/// `nvpoll rerun`
#[derive(Debug, Args)]
pub struct RerunArgs {
    /// A result of `nvpoll run --json` or `nvpoll compare --json`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Allow writes to the drive with this serial number (or the block device or file of this
    /// name); everything on it is lost. What was allowed for the result in the file holds no more
    #[arg(long, value_name = "SERIAL")]
    pub destroy_data: Vec<String>,
    /// Processors that the workers are pinned to, as 2,4-7 [default: as in the file]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Folder for the scratch file, where the result in the file is of one
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub scratch: PathBuf,
    /// Keep the new result as one JSON document
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The name that a plan has for the scratch file, which is made anew each time.
const SCRATCH: &str = "scratch file";

/// `nvpoll rerun`
pub fn rerun(args: &RerunArgs) -> Done {
    let (plan, before) = read(&args.file)?;
    check_destination(args)?;
    let control = stoppable()?;
    let host = Host::system();
    let is_scratch = |stack: &Stack| stack.targets.iter().any(|name| name == SCRATCH);
    let scratch = match plan.stacks.iter().any(is_scratch) {
        true => Some(Scratch::create(&args.scratch)?),
        false => None,
    };
    let column = |stack: &Stack| column(&host, stack, scratch.as_ref(), &args.file);
    let columns = plan.stacks.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    // Held until the new result is read again.
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::failed(format!("cannot make a temporary folder: {error}")))?;
    let new = args.json.clone().unwrap_or_else(|| folder.path().join("rerun.json"));
    let common = common(args, &plan, &new)?;
    let headline = format!("nvpoll rerun: {}, measured {before}, once more", args.file.display());
    let status = execute(&host, &plan, &columns, &common, &control, &headline)?;
    let input = |path: &Path| Input::read(path).map_err(|error| Failure::failed(error.to_string()));
    let diff = Diff::new(input(&args.file)?, input(&new)?);
    out::result(format_args!("\n{}", diff.to_text()))?;
    Ok(status)
}

/// The plan in `file`, and the date of its result.
fn read(file: &Path) -> Result<(Plan, String), Failure> {
    let report = Report::load(file).map_err(|error| Failure::usage(error.to_string()))?;
    let plan: Plan = serde_json::from_value(report.plan).map_err(|error| {
        Failure::usage(format!(
            "{}: this version cannot run its plan again: {error}; use the version that made it ({})",
            file.display(),
            report.environment.nvpoll
        ))
    })?;
    Ok((plan, report.environment.date))
}

/// The new result must not take the old one's place: they are held against each other.
fn check_destination(args: &RerunArgs) -> Result<(), Failure> {
    let Some(json) = &args.json else { return Ok(()) };
    let real = |path: &Path| path.canonicalize().ok();
    if json.as_path() == Path::new("-") {
        return Err(Failure::usage("--json -: rerun puts its comparison on stdout; name a file"));
    }
    if real(json).is_some() && real(json) == real(&args.file) {
        let json = json.display();
        return Err(Failure::usage(format!(
            "--json {json}: this is the result that is run again; name another file"
        )));
    }
    Ok(())
}

/// A stack of the plan, resolved anew: the names in a file may lead elsewhere by now.
fn column(
    host: &Host,
    stack: &Stack,
    scratch: Option<&Scratch>,
    file: &Path,
) -> Result<Column, Failure> {
    let choice: EngineChoice = stack
        .engine
        .parse()
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let subjects: Vec<Subject> = match scratch {
        Some(scratch) if stack.targets.iter().all(|name| name == SCRATCH) => {
            vec![scratch.subject()]
        }
        _ => resolve(host, &stack.targets)?,
    };
    Ok(Column { kind: choice.kind, options: choice.options, subjects })
}

/// The options of the run in the file, and those that were typed now. They go through the same parser
/// as a command line's, so that they mean the same.
fn common(args: &RerunArgs, plan: &Plan, json: &Path) -> Result<CommonArgs, Failure> {
    let mut words: Vec<std::ffi::OsString> = vec!["nvpoll".into(), "run".into(), "null".into()];
    let mut option = |name: &str, value: std::ffi::OsString| words.extend([name.into(), value]);
    option("--json", json.into());
    let cpus = args.cpus.as_ref().unwrap_or(&plan.cpus);
    if !cpus.is_empty() {
        option("--cpus", cpus.into());
    }
    option("--iommu", plan.transport.iommu.name().into());
    option("--numa", plan.transport.numa.name().into());
    option("--wait", plan.transport.wait.name().into());
    if let Some(quirks) = &plan.transport.quirks {
        option("--quirks", quirks.to_string().into());
    }
    args.destroy_data.iter().for_each(|serial| option("--destroy-data", serial.into()));
    option("--drives-per-worker", plan.drives_per_worker.to_string().into());
    if plan.instruments {
        words.push("--instruments".into());
    }
    if plan.transport.unsafe_no_iommu {
        words.push("--unsafe-no-iommu".into());
    }
    match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(Command::Run(run)) => Ok(run.common),
        Ok(_) => Err(Failure::usage(format!("{}: holds no run", args.file.display()))),
        Err(error) => Err(Failure::usage(format!(
            "{}: its options cannot be used here: {}",
            args.file.display(),
            error.to_string().lines().next().unwrap_or_default()
        ))),
    }
}
