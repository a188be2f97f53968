//! `run` and `compare`.

use super::Done;
use super::args::{CommonArgs, CompareArgs, RunArgs};
use super::asked::Asked;
use super::out::{self, say, tell};
use super::progress::Progress;
use super::signals::stop_on_signals;
use crate::failure::Failure;
use crate::measure::Clock;
use crate::plan::{Plan, Stack};
use crate::preflight::{self, Host, Scratch, Subject, TakeOptions, What};
use crate::report::{Environment, Report, RoundResult, table};
use crate::run::{Column, Control, HostHands, run_plan, write_mode};
use nvpoll_engine::{EngineChoice, EngineKind, EngineOption, EngineOptions, WaitMode, WriteMode};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ramp and runtime in seconds where a target was named.
const TIMES_S: (f64, f64) = (2.0, 10.0);
/// Ramp and runtime in seconds for the stand-ins: the whole comparison ends within a minute.
const STAND_IN_TIMES_S: (f64, f64) = (0.2, 1.0);
/// The soft drive that stands in.
const STAND_IN: &str = "soft:size=1G";
/// Most targets of one command.
const TARGETS_MAX: usize = 256;

/// `nvpoll run`
pub fn run(args: &RunArgs) -> Done {
    let control = stoppable()?;
    let host = Host::system();
    let subjects = resolve(&host, &args.targets)?;
    let (choice, why) = match args.engine {
        Some(choice) => (choice, "asked for".to_owned()),
        None => choose(&subjects).map(|(kind, why)| (kind.into(), why))?,
    };
    let choice = with_flags(&[choice], &args.common)?.swap_remove(0);
    let column = Column { kind: choice.kind, options: choice.options, subjects };
    let asked = Asked::new(&args.workload, None, &column.subjects)?;
    let plan = Plan {
        command: "run".to_owned(),
        stacks: vec![stack_of(&column)],
        suite: asked.suite,
        workloads: asked.workloads,
        rounds: 1,
        timing: args.common.timing(asked.timing, TIMES_S.0, TIMES_S.1)?,
        cpus: args.common.cpu_list()?.to_string(),
        transport: args.common.transport(),
        instruments: args.common.instruments,
        drives_per_worker: args.common.drives_per_worker,
        precondition: args.common.precondition,
    };
    let names = args.targets.join(", ");
    let headline = format!("nvpoll run: engine {choice} on {names} ({why})");
    execute(&host, &plan, &[column], &args.common, &control, &headline)
}

/// `nvpoll compare`
pub fn compare(args: &CompareArgs) -> Done {
    let control = stoppable()?;
    let host = Host::system();
    let is_default = args.targets.is_empty();
    let times = if is_default { STAND_IN_TIMES_S } else { TIMES_S };
    let subjects = resolve(&host, &args.targets)?;
    let asked = Asked::new(&args.workload, Some("quick"), &subjects)?;
    let mut plan = Plan {
        command: "compare".to_owned(),
        stacks: Vec::new(),
        suite: asked.suite,
        workloads: asked.workloads,
        rounds: args.rounds,
        timing: args.common.timing(asked.timing, times.0, times.1)?,
        cpus: args.common.cpu_list()?.to_string(),
        transport: args.common.transport(),
        instruments: args.common.instruments,
        drives_per_worker: args.common.drives_per_worker,
        precondition: args.common.precondition,
    };
    let scratch = if is_default { Some(Scratch::create(&args.scratch)?) } else { None };
    let columns = match &scratch {
        Some(scratch) => stand_in_columns(scratch, &args.engines, &args.common)?,
        None => columns(&host, &subjects, &args.engines, &args.common)?,
    };
    plan.stacks = columns.iter().map(stack_of).collect();
    let headline = match &scratch {
        Some(scratch) => format!(
            "nvpoll compare: no target was named, so a soft drive ({STAND_IN}) and a scratch file ({}) stand in; they are two things, not one drive: compare stacks within each only",
            scratch.path().display()
        ),
        None => {
            format!("nvpoll compare: {} on {}", engine_names(&columns), args.targets.join(", "))
        }
    };
    execute(&host, &plan, &columns, &args.common, &control, &headline)
}

/// How drives are taken from the kernel, and given back.
fn take_options(common: &CommonArgs) -> TakeOptions {
    TakeOptions { allow_no_iommu: common.transport.unsafe_no_iommu, ..TakeOptions::default() }
}

/// What a signal stops: set up before anything is made that has to be removed or given back.
pub(super) fn stoppable() -> Result<Arc<Control>, Failure> {
    let control = Arc::new(Control::new());
    stop_on_signals(&control)?;
    Ok(control)
}

pub(super) fn resolve(host: &Host, names: &[String]) -> Result<Vec<Subject>, Failure> {
    if names.len() > TARGETS_MAX {
        return Err(Failure::usage(format!(
            "{} targets; at most {TARGETS_MAX} are possible",
            names.len()
        )));
    }
    let subjects: Vec<Subject> =
        names.iter().map(|name| Subject::resolve(host, name)).collect::<Result<_, _>>()?;
    let mut seen = HashSet::new();
    for subject in &subjects {
        let Some(identity) = subject.identity() else { continue };
        if !seen.insert(identity.clone()) {
            let name = &subject.name;
            return Err(Failure::usage(format!(
                "{name} is named twice ({identity}); name each target once"
            )));
        }
    }
    Ok(subjects)
}

/// One engine for all targets of a run.
fn choose(subjects: &[Subject]) -> Result<(EngineKind, String), Failure> {
    let mut choices = subjects.iter().map(preflight::choose_engine);
    let first = choices.next().ok_or_else(|| Failure::usage("name a target"))?;
    match choices.find(|other| other.0 != first.0) {
        None => Ok(first),
        Some(other) => Err(Failure::usage(format!(
            "these targets want different engines ({} and {}); name one with --engine, or run them one by one",
            first.0, other.0
        ))),
    }
}

/// The columns of a comparison of real targets: the engines asked for, or all that fit.
fn columns(
    host: &Host,
    subjects: &[Subject],
    asked: &[EngineChoice],
    common: &CommonArgs,
) -> Result<Vec<Column>, Failure> {
    let choices: Vec<EngineChoice> = match asked {
        [] => {
            let fitting = preflight::fitting_engines(host, subjects, &take_options(common));
            for reason in fitting.left_out {
                tell!("nvpoll: warning: left out: {reason}");
            }
            fitting.kinds.into_iter().map(EngineChoice::from).collect()
        }
        asked => asked.to_vec(),
    };
    if choices.is_empty() {
        return Err(Failure::usage(
            "no engine fits all these targets; name engines with --engines",
        ));
    }
    let column =
        |EngineChoice { kind, options }| Column { kind, options, subjects: subjects.to_vec() };
    Ok(with_flags(&choices, common)?.into_iter().map(column).collect())
}

/// Each engine with the options of the whole command that it has.
fn with_flags(choices: &[EngineChoice], common: &CommonArgs) -> Result<Vec<EngineChoice>, Failure> {
    let flags: EngineOptions = common.engine_options();
    let has = |option: &EngineOption| {
        choices.iter().any(|choice| choice.kind.info().options.contains(option))
    };
    let mut given = EngineOption::ALL.into_iter().filter(|option| flags.has(*option));
    if let Some(option) = given.find(|option| !has(option)) {
        let names: Vec<_> = choices.iter().map(EngineChoice::to_string).collect();
        return Err(Failure::usage(format!(
            "--{}: no engine of this command has this option ({}); `--help` says which do",
            option.name(),
            names.join(", ")
        )));
    }
    let with = |choice: &EngineChoice| EngineChoice {
        kind: choice.kind,
        options: choice.options.with(&flags, choice.kind.info()),
    };
    let choices: Vec<_> = choices.iter().map(with).collect();
    let mut seen = HashSet::new();
    match choices.iter().find(|choice| !seen.insert(**choice)) {
        None => Ok(choices),
        Some(twice) => Err(Failure::usage(format!(
            "engine {twice} is named twice; a comparison takes each once"
        ))),
    }
}

/// The embedded default: the userspace driver on a soft drive, the kernel's engines on a file.
fn stand_in_columns(
    scratch: &Scratch,
    asked: &[EngineChoice],
    common: &CommonArgs,
) -> Result<Vec<Column>, Failure> {
    let soft = Subject::resolve(&Host::system(), STAND_IN)?;
    let default = preflight::STAND_INS.map(EngineChoice::from);
    let choices = with_flags(if asked.is_empty() { &default } else { asked }, common)?;
    let mut columns = Vec::new();
    for EngineChoice { kind, options } in choices {
        let available = preflight::check_available(kind);
        if asked.is_empty() && available.is_err() {
            tell!(
                "nvpoll: warning: left out: {}",
                available.err().map_or_else(String::new, |error| error.text)
            );
            continue;
        }
        let subject = match kind {
            EngineKind::Soft | EngineKind::Null => soft.clone(),
            _ => scratch.subject(),
        };
        columns.push(Column { kind, options, subjects: vec![subject] });
    }
    Ok(columns)
}

fn stack_of(column: &Column) -> Stack {
    Stack {
        engine: column.choice().to_string(),
        targets: column.subjects.iter().map(|subject| subject.name.clone()).collect(),
    }
}

fn engine_names(columns: &[Column]) -> String {
    columns.iter().map(|column| column.choice().to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks everything that can be checked before anything is touched.
fn check(host: &Host, plan: &Plan, columns: &[Column], common: &CommonArgs) -> Result<(), Failure> {
    for workload in &plan.workloads {
        workload.check().map_err(|error| Failure::usage(error.to_string()))?;
    }
    for column in columns {
        preflight::check_available(column.kind)?;
        preflight::check_memory(host, column.kind, &plan.workloads, column.subjects.len())?;
        for subject in &column.subjects {
            subject.engine_target(host, column.kind)?;
            preflight::check_ready(host, subject, plan, column.kind)?;
            let Some((size_bytes, lba_bytes)) = subject.known_geometry() else { continue };
            for workload in &plan.workloads {
                let fits = workload.span(size_bytes, lba_bytes);
                fits.map_err(|error| Failure::usage(format!("{}: {error}", subject.name)))?;
            }
        }
    }
    check_waiting(plan, columns)?;
    check_writes(plan, columns)?;
    check_instruments(plan, columns)?;
    check_workers(plan, columns)?;
    check_precondition(plan, columns)?;
    check_json(common.json.as_deref(), columns)?;
    if plan.writes() {
        let mut subjects: Vec<(EngineKind, &Subject)> = Vec::new();
        let all = columns.iter().flat_map(|c| c.subjects.iter().map(|subject| (c.kind, subject)));
        for (kind, subject) in all {
            if !subjects.iter().any(|(_, other)| other.name == subject.name) {
                subjects.push((kind, subject));
            }
        }
        let opening = plan.transport.to_look();
        preflight::check_writes(
            host,
            &subjects,
            &common.destroy_data,
            &opening,
            "this workload writes",
        )?;
    }
    Ok(())
}

/// What is new for each measurement has no state that could be brought about.
fn check_precondition(plan: &Plan, columns: &[Column]) -> Result<(), Failure> {
    let mut subjects = columns.iter().flat_map(|column| &column.subjects);
    let made_anew = |subject: &&Subject| matches!(subject.what, What::Soft(_) | What::Null);
    match subjects.find(made_anew).filter(|_| plan.precondition) {
        None => Ok(()),
        Some(subject) => Err(Failure::usage(format!(
            "--precondition: {} is new for each measurement, so that nothing lasts of what is written before; leave it out, or name a drive",
            subject.name
        ))),
    }
}

/// A worker of several drives polls them; an engine that sleeps on one would leave the others waiting.
fn check_workers(plan: &Plan, columns: &[Column]) -> Result<(), Failure> {
    if plan.drives_per_worker == 1 {
        return Ok(());
    }
    if plan.transport.wait != WaitMode::Poll {
        let wait = plan.transport.wait;
        return Err(Failure::usage(format!(
            "--drives-per-worker: one worker cannot sleep on several drives; leave out --wait {wait}"
        )));
    }
    if plan.workloads.iter().any(|workload| workload.verify) {
        return Err(Failure::usage(
            "--drives-per-worker: content is checked by a worker for each drive; leave out --verify",
        ));
    }
    match columns.iter().map(|column| column.kind).find(|kind| !kind.info().has_doorbells()) {
        None => Ok(()),
        Some(kind) => Err(Failure::usage(format!(
            "--drives-per-worker: engine {kind} has a worker for each drive; the userspace driver's (vfio, uio, soft) can share one"
        ))),
    }
}

/// Instruments time the stages of a queue that is polled by the userspace driver.
fn check_instruments(plan: &Plan, columns: &[Column]) -> Result<(), Failure> {
    if !plan.instruments {
        return Ok(());
    }
    if !columns.iter().any(|column| column.kind.info().has_doorbells()) {
        return Err(Failure::usage(
            "--instruments: no engine of this command has stages to time; the userspace driver's (vfio, uio, soft) have",
        ));
    }
    match plan.transport.wait {
        WaitMode::Poll => Ok(()),
        wait => Err(Failure::usage(format!(
            "--instruments: the stages are those of a queue that is polled; leave out --wait {wait}"
        ))),
    }
}

/// An engine that cannot do what a workload's writes are to do must not run something else.
fn check_writes(plan: &Plan, columns: &[Column]) -> Result<(), Failure> {
    for workload in &plan.workloads {
        let mode = write_mode(workload);
        let can = |kind: EngineKind| kind.info().writes.contains(&mode);
        let mut kinds = columns.iter().map(|column| column.kind);
        let Some(kind) = kinds.find(|kind| !can(*kind)) else { continue };
        let (option, what) = match mode {
            WriteMode::Deallocate => (format!("--rw {}", workload.rw), "deallocate"),
            _ => (format!("--sync {}", workload.sync), "have each write wait for the medium"),
        };
        let able = EngineKind::ALL.iter().filter(|kind| can(**kind)).map(ToString::to_string);
        return Err(Failure::usage(format!(
            "{option}: engine {kind} cannot {what} here; name one that can: {}",
            able.collect::<Vec<_>>().join(", ")
        )));
    }
    Ok(())
}

/// A way of waiting that no engine of the command has, or not all that have a choice, is not a run
/// that was asked for.
fn check_waiting(plan: &Plan, columns: &[Column]) -> Result<(), Failure> {
    let wait = plan.transport.wait;
    if wait == WaitMode::Poll {
        return Ok(());
    }
    if plan.workloads.iter().any(|workload| workload.rate_iops.is_some()) {
        return Err(Failure::usage(format!(
            "--wait {wait}: with --rate-iops every engine polls, so that each I/O is sent when it is due; leave one of them out"
        )));
    }
    let choosers = columns.iter().map(|column| column.kind).filter(|k| !k.info().waits.is_empty());
    let mut choosers = choosers.peekable();
    if choosers.peek().is_none() {
        return Err(Failure::usage(format!(
            "--wait {wait}: no engine of this command has a choice; the userspace driver's have"
        )));
    }
    match choosers.find(|kind| !kind.info().waits.contains(&wait)) {
        None => Ok(()),
        Some(kind) => {
            let ways: Vec<_> = kind.info().waits.iter().map(ToString::to_string).collect();
            Err(Failure::usage(format!(
                "--wait {wait}: engine {kind} has no interrupts to wait for; it can: {}",
                ways.join(", ")
            )))
        }
    }
}

/// The result's file must not be what is measured, nor any other device.
fn check_json(json: Option<&Path>, columns: &[Column]) -> Result<(), Failure> {
    let Some(path) = json.filter(|path| *path != Path::new("-")) else { return Ok(()) };
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_it = |file: &PathBuf| file.canonicalize().is_ok_and(|file| file == real);
    let mut subjects = columns.iter().flat_map(|column| &column.subjects);
    if subjects.any(|s| matches!(&s.what, What::File { path, .. } if is_it(path))) {
        let path = path.display();
        return Err(Failure::refused(format!(
            "--json {path}: this file is a target, and the result would take its place; name another file"
        )));
    }
    crate::report::check_destination(path).map_err(|error| Failure::refused(error.to_string()))
}

/// Checks, runs, and reports.
pub(super) fn execute(
    host: &Host,
    plan: &Plan,
    columns: &[Column],
    common: &CommonArgs,
    control: &Control,
    headline: &str,
) -> Done {
    let mut hands = HostHands::new(host.clone(), take_options(common), plan.writes());
    hands.hold_bound(columns)?;
    check(host, plan, columns, common)?;
    let to_stdout = common.json.as_deref() == Some(Path::new("-"));
    let file = common.json.as_deref().filter(|_| !to_stdout);
    let environment = Environment::read(&Clock::new());
    let planned = serde_json::to_value(plan).map_err(|error| Failure::failed(error.to_string()))?;
    let assemble = |results: &[RoundResult], complete: bool| {
        Report::assemble(planned.clone(), environment.clone(), results, complete)
    };
    head(to_stdout, headline)?;
    if let Some(seconds) = plan.seconds().filter(|_| plan.measurements() > 1) {
        tell!("{} measurements, about {}", plan.measurements(), minutes(seconds));
    }
    if plan.precondition {
        tell!("before that, all of each target is written, until it is steady");
    }
    let save_round = |results: &[RoundResult]| {
        if let Some(file) = file
            && let Err(error) = assemble(results, false).save(file)
        {
            tell!("nvpoll: warning: {error}");
        }
    };
    let mut progress = Progress::new(plan, Box::new(save_round));
    let cpus = common.cpu_list()?;
    let outcome = run_plan(plan, columns, &cpus, control, &mut hands, &mut progress);
    progress.finish();
    let outcome = outcome?;
    let mut report = assemble(&outcome.results, outcome.failures.is_empty());
    report.marks.extend(outcome.marks.iter().cloned());
    match common.json.as_deref() {
        Some(_) if to_stdout => {
            let json = report.to_json().map_err(|error| Failure::failed(error.to_string()))?;
            out::result(format_args!("{json}"))?;
        }
        Some(file) => {
            let saved = report.save(file).map_err(|error| Failure::failed(error.to_string()));
            print_table(&report)?;
            saved?;
        }
        None => print_table(&report)?,
    }
    for failure in &outcome.failures {
        tell!("nvpoll: {failure}");
    }
    Ok(u8::from(!outcome.failures.is_empty() || !report.complete))
}

/// The first line belongs to the result, unless stdout is to be one JSON document.
fn head(json_on_stdout: bool, line: &str) -> Result<(), Failure> {
    if json_on_stdout {
        tell!("{line}");
        return Ok(());
    }
    say!("{line}")
}

fn print_table(report: &Report) -> Result<(), Failure> {
    out::result(format_args!("{}", table::render(report, table::Look::of_stdout())))
}

fn minutes(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}
