//! What was asked to be measured: one workload, or a suite.

use super::out::tell;
use super::workload_args::WorkloadArgs;
use crate::failure::Failure;
use crate::preflight::{Subject, What};
use crate::workload::{FileName, Suite, SuiteTiming, Workload};
use std::path::Path;

/// The rows of a plan, and what their suite says beside.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The suite's name, where there is one.
    pub suite: Option<String>,
    /// The rows.
    pub workloads: Vec<Workload>,
    /// What the suite says of times.
    pub timing: SuiteTiming,
}

impl Asked {
    /// What `args` ask of `subjects`; `default` is the suite of who asks for nothing.
    ///
    /// # Errors
    /// A suite that is none, or cannot be followed, or names other targets than the command line.
    pub fn new(
        args: &WorkloadArgs,
        default: Option<&str>,
        subjects: &[Subject],
    ) -> Result<Self, Failure> {
        let default = default.filter(|_| !args.names_one());
        let Some(name) = args.suite.as_deref().or(default) else {
            let timing = SuiteTiming::default();
            let workloads = vec![args.one()];
            check_sync(args, &workloads)?;
            return Ok(Self { suite: None, workloads, timing });
        };
        let suite =
            Suite::find(name).map_err(|error| Failure::usage(format!("--suite: {error}")))?;
        for named in &suite.filenames {
            check_filename(name, named, subjects)?;
        }
        for note in &suite.notes {
            tell!("nvpoll: note: {name}: {note}");
        }
        let workloads: Vec<_> =
            suite.workloads.into_iter().map(|workload| args.apply(workload)).collect();
        check_sync(args, &workloads)?;
        Ok(Self { suite: Some(suite.name), workloads, timing: suite.timing })
    }
}

/// Of a suite's rows `--sync` is for those that write; where none does, it was not meant for these.
fn check_sync(args: &WorkloadArgs, workloads: &[Workload]) -> Result<(), Failure> {
    match args.sync {
        Some(sync) if !workloads.iter().any(|workload| workload.rw.stores()) => {
            Err(Failure::usage(format!(
                "--sync {sync}: nothing here writes what could wait for the medium; leave it out, or name a pattern that writes (--rw)"
            )))
        }
        _ => Ok(()),
    }
}

/// What a job file names must be what the command line names: the file alone opens nothing, and what
/// it was written for is what runs.
fn check_filename(file: &str, named: &FileName, subjects: &[Subject]) -> Result<(), Failure> {
    let is = |name: &str, subject: &Subject| name == subject.name || is_node(name, subject);
    let other = named.names.iter().find(|name| !subjects.iter().any(|subject| is(name, subject)));
    let missing = subjects.iter().find(|subject| !named.names.iter().any(|name| is(name, subject)));
    let line = named.line;
    match (other, missing) {
        (None, None) => Ok(()),
        (Some(other), _) => Err(Failure::refused(format!(
            "{file}:{line}: filename={other} is no target of this command; nvpoll drives only what the command line names: name it there, or remove the line"
        ))),
        (None, Some(missing)) => Err(Failure::refused(format!(
            "{file}:{line}: filename leaves out {}, which the command line names; make them the same, or remove the line",
            missing.name
        ))),
    }
}

/// Whether `name` leads to the same node as the subject's.
fn is_node(name: &str, subject: &Subject) -> bool {
    let typed = match &subject.what {
        What::Soft(_) | What::Null => return false,
        _ => Path::new(&subject.name),
    };
    let real = |path: &Path| path.canonicalize().ok();
    real(Path::new(name)).is_some_and(|path| Some(path) == real(typed))
}
