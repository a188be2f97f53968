//! A whole plan: rounds in interleaved order, drives taken and given back, every outcome kept.

use super::{Control, CpuList, HarnessNs, Job, Live, Measurement, harness, measure};
use crate::failure::{Failure, FailureKind};
use crate::plan::Plan;
use crate::preflight::{Subject, stack_name};
use crate::report::{Mark, MarkKind, Polls, Ran, RoundResult};
use crate::workload::Workload;
use nvpoll_engine::{CautionKind, EngineChoice, EngineKind, EngineOptions, Target};
use std::collections::BTreeMap;

/// One stack of a plan, resolved.
#[derive(Debug)]
pub struct Column {
    /// The engine.
    pub kind: EngineKind,
    /// How it is told to run, where it is the kernel's.
    pub options: EngineOptions,
    /// What it drives.
    pub subjects: Vec<Subject>,
}

/// Whoever wants to see a session go.
pub trait Observer {
    /// A measurement begins: the `number`-th of the plan, from 1.
    fn begins(&mut self, number: u64, round: u32, engine: EngineChoice, workload: &Workload);
    /// Live figures of the measurement that runs.
    fn live(&mut self, live: Live);
    /// Something is being done that takes a moment: a drive is taken or given back.
    fn doing(&mut self, what: &str);
    /// Something a user must know at once.
    fn warn(&mut self, text: &str);
    /// A round is over; what there is so far.
    fn round_done(&mut self, results: &[RoundResult]);
}

/// What a session leaves.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Every measurement, in the order in which they ran.
    pub results: Vec<RoundResult>,
    /// What failed, a line each; empty when all was measured.
    pub failures: Vec<String>,
    /// What is to be said of the whole.
    pub marks: Vec<Mark>,
}

/// Takes the drives that a column needs, and gives them back.
pub trait Hands {
    /// Makes the drives of `column` ready for its engine.
    ///
    /// # Errors
    /// When a drive cannot be taken or given back; it is as it was found then, or the error says
    /// what is not.
    fn ready(&mut self, column: &Column, observer: &mut dyn Observer) -> Result<(), Failure>;

    /// What the engine of `column` opens now: names may have changed since the last time.
    ///
    /// # Errors
    /// When the engine cannot drive one of them.
    fn targets(&self, column: &Column) -> Result<Vec<(Target, u32)>, Failure>;

    /// Gives every drive back. Done again on drop, should this not be reached.
    ///
    /// # Errors
    /// When a drive did not come back.
    fn give_back(&mut self, observer: &mut dyn Observer) -> Result<(), Failure>;
}

/// Runs `plan` over `columns`, which are its stacks resolved.
///
/// A measurement that fails is kept, marked, and the others go on, unless it is the very first one
/// and its target does not fit the workload. However it ends, the drives are given back.
///
/// # Errors
/// Bad usage that only an open target shows (a depth beyond its queues), or a drive that could not
/// be taken in the first place: nothing was measured then.
pub fn run_plan(
    plan: &Plan,
    columns: &[Column],
    cpus: &CpuList,
    control: &Control,
    hands: &mut dyn Hands,
    observer: &mut dyn Observer,
) -> Result<Outcome, Failure> {
    let (outcome, harness) = (Outcome::default(), BTreeMap::new());
    let mut session = Session { plan, cpus, control, outcome, number: 0, harness };
    let ended = session.rounds(columns, hands, observer);
    let mut outcome = session.outcome;
    if let Err(failure) = hands.give_back(observer) {
        observer.warn(&failure.text);
        outcome.failures.push(failure.text);
    }
    ended?;
    if control.is_stopped() {
        let why = control.reason().map_or_else(String::new, |reason| format!("{reason}; "));
        outcome.failures.push(format!("{why}stopped before the end; what was measured is kept"));
    }
    Ok(outcome)
}

struct Session<'a> {
    plan: &'a Plan,
    cpus: &'a CpuList,
    control: &'a Control,
    outcome: Outcome,
    number: u64,
    /// What the harness takes in the round that runs, by the workload's name.
    harness: BTreeMap<String, HarnessNs<f64>>,
}

impl Session<'_> {
    fn rounds(
        &mut self,
        columns: &[Column],
        hands: &mut dyn Hands,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        if self.plan.precondition {
            self.precondition(columns, hands, observer)?;
        }
        for round in 1..=self.plan.rounds {
            self.harness(round, columns, observer);
            for index in self.plan.order(round) {
                let Some(column) = columns.get(index) else { continue };
                if self.control.is_stopped() {
                    return Ok(());
                }
                self.column(round, column, hands, observer)?;
            }
            observer.round_done(&self.outcome.results);
        }
        Ok(())
    }

    /// Measures the harness itself with each workload, for the round that begins.
    fn harness(&mut self, round: u32, columns: &[Column], observer: &mut dyn Observer) {
        self.harness.clear();
        // Of the engine that moves nothing, the row itself is it.
        let measured = |column: &&Column| column.kind.info().moves_data;
        let Some(column) = columns.iter().find(measured) else { return };
        observer.doing(&format!("round {round}: measuring the harness itself"));
        for workload in &self.plan.workloads {
            let like = self.job(column, &[], &[], workload);
            let run =
                &mut |job: &Job<'_>| measure(EngineKind::Null, job, self.control, &mut |_| {});
            match harness::measure(workload, &like, run) {
                Ok(Some(cost)) => {
                    self.harness.insert(workload.name.clone(), cost);
                }
                Ok(None) => {}
                // What was asked for is measured all the same.
                Err(error) => observer.warn(&format!(
                    "the harness's own cost is not known for {}: {error}",
                    workload.name
                )),
            }
        }
    }

    /// By the first stack of each list of targets.
    fn precondition(
        &mut self,
        columns: &[Column],
        hands: &mut dyn Hands,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        let names = |column: &Column| {
            column.subjects.iter().map(|subject| subject.name.clone()).collect::<Vec<_>>()
        };
        let mut done: Vec<Vec<String>> = Vec::new();
        for column in columns {
            if done.contains(&names(column)) || self.control.is_stopped() {
                continue;
            }
            done.push(names(column));
            hands.ready(column, observer)?;
            let targets = hands.targets(column)?;
            let addresses = column.addresses();
            let mut run = |workload: &Workload, timing, live: &mut dyn FnMut(Live)| {
                // A worker of several drives deals its operations out among them: each drive is to be
                // written whole.
                let job = Job {
                    timing,
                    instruments: false,
                    drives_per_worker: 1,
                    ..self.job(column, &targets, &addresses, workload)
                };
                Ok(measure(column.kind, &job, self.control, live)?)
            };
            let round_s = self.plan.timing.runtime_s;
            let mark = super::precondition::precondition(&mut run, round_s, observer)?;
            self.outcome.marks.extend(mark);
        }
        Ok(())
    }

    fn column(
        &mut self,
        round: u32,
        column: &Column,
        hands: &mut dyn Hands,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        if let Err(failure) = hands.ready(column, observer) {
            // The first time nothing has been measured yet: the plan cannot be carried out.
            if self.is_empty() {
                return Err(failure);
            }
            return self.all_failed(round, column, &failure, observer);
        }
        for workload in &self.plan.workloads {
            if self.control.is_stopped() {
                return Ok(());
            }
            self.number += 1;
            observer.begins(self.number, round, column.choice(), workload);
            let measured = self.measure(column, workload, hands, observer);
            let result = match measured {
                Ok(measurement) => {
                    self.check_content(column, workload, &measurement, observer);
                    let result = measured_round(round, column, workload, measurement);
                    RoundResult { harness_ns: self.harness.get(&workload.name).copied(), ..result }
                }
                // What does not fit shows before anything was measured, as a rule.
                Err(failure) if failure.kind != FailureKind::Failed && self.is_empty() => {
                    return Err(failure);
                }
                Err(failure) => {
                    let line = format!("{} {}: {failure}", column.choice(), workload.name);
                    observer.warn(&line);
                    self.outcome.failures.push(line);
                    failed_round(round, column, workload, &failure.text)
                }
            };
            self.outcome.results.push(result);
        }
        Ok(())
    }

    /// Wrong data is no figure: it is said at once, and the command fails by it.
    fn check_content(
        &mut self,
        column: &Column,
        workload: &Workload,
        measurement: &Measurement,
        observer: &mut dyn Observer,
    ) {
        let wrong = measurement.verified.as_ref().and_then(super::verify::Verified::sentence);
        if let Some(wrong) = wrong {
            let line = format!("{} {}: {wrong}", column.choice(), workload.name);
            observer.warn(&line);
            self.outcome.failures.push(line);
        }
    }

    /// Whether nothing has been measured yet, so that nothing is lost by ending here.
    fn is_empty(&self) -> bool {
        self.outcome.results.is_empty()
    }

    fn measure(
        &self,
        column: &Column,
        workload: &Workload,
        hands: &dyn Hands,
        observer: &mut dyn Observer,
    ) -> Result<Measurement, Failure> {
        let targets = hands.targets(column)?;
        let addresses = column.addresses();
        let job = self.job(column, &targets, &addresses, workload);
        let measurement =
            measure(column.kind, &job, self.control, &mut |live| observer.live(live))?;
        Ok(measurement)
    }

    fn job<'b>(
        &'b self,
        column: &Column,
        targets: &'b [(Target, u32)],
        addresses: &'b [String],
        workload: &'b Workload,
    ) -> Job<'b> {
        Job {
            targets,
            workload,
            timing: self.plan.timing,
            cpus: self.cpus,
            transport: self.plan.transport.options(),
            quirks: self.plan.transport.quirks,
            engine: column.options,
            instruments: self.plan.instruments,
            drives_per_worker: self.plan.drives_per_worker,
            addresses,
        }
    }

    /// Keeps a column that could not be made ready as failed, and goes on with the others.
    fn all_failed(
        &mut self,
        round: u32,
        column: &Column,
        failure: &Failure,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        observer.warn(&failure.text);
        self.outcome.failures.push(failure.text.clone());
        for workload in &self.plan.workloads {
            self.number += 1;
            self.outcome.results.push(failed_round(round, column, workload, &failure.text));
        }
        Ok(())
    }
}

impl Column {
    /// The engine with its options.
    pub fn choice(&self) -> EngineChoice {
        EngineChoice { kind: self.kind, options: self.options }
    }

    /// PCI addresses of its drives, as far as they have any.
    fn addresses(&self) -> Vec<String> {
        let drives = self.subjects.iter().map(Subject::report_drive);
        drives.filter_map(|drive| drive.address).collect()
    }

    fn ran(&self, facts: BTreeMap<String, String>) -> Ran {
        Ran {
            stack: stack_name(&self.choice(), &self.subjects),
            engine: self.kind.info().name.to_owned(),
            drives: self.subjects.iter().map(Subject::report_drive).collect(),
            facts,
        }
    }
}

fn measured_round(
    round: u32,
    column: &Column,
    workload: &Workload,
    measurement: Measurement,
) -> RoundResult {
    let mut ran = column.ran(measurement.facts.into_iter().collect());
    for (drive, geometry) in ran.drives.iter_mut().zip(&measurement.geometries) {
        drive.size_bytes.get_or_insert(geometry.size_bytes);
        drive.block_bytes.get_or_insert(geometry.block_bytes);
        drive.numa_node = drive.numa_node.or(geometry.numa_node);
    }
    let (useful, empty) = measurement.polls;
    let polls = column.kind.info().polls.then_some(Polls { useful, empty });
    let stopped = measurement.stopped;
    let stopped = stopped.then(|| Mark::new(MarkKind::Incomplete, "stopped before its end"));
    let cautions = measurement.cautions.into_iter().map(|caution| {
        let kind = match caution.kind {
            CautionKind::NotAsAsked => MarkKind::NotAsAsked,
            CautionKind::Buffered => MarkKind::Buffered,
            CautionKind::Split => MarkKind::Split,
            CautionKind::Workers => MarkKind::KernelWorkers,
            CautionKind::DriveEvent => MarkKind::DriveEvent,
        };
        Mark::new(kind, caution.text)
    });
    // The engine that moves nothing reads nothing.
    let reads = workload.rw.reads() && column.kind.info().moves_data;
    let unwritten = column.subjects.iter().filter(|_| reads).filter_map(Subject::never_written);
    let unwritten = unwritten.map(|text| Mark::new(MarkKind::NeverWritten, text));
    let wrong = measurement.verified.as_ref().and_then(super::verify::Verified::sentence);
    let wrong = wrong.map(|text| Mark::new(MarkKind::WrongData, text));
    RoundResult {
        round,
        workload: workload.clone(),
        ran,
        recorder: measurement.recorder,
        ns_per_tick: measurement.ns_per_tick,
        elapsed_s: measurement.elapsed_s,
        cpu: measurement.cpu,
        accounts: Some(measurement.accounts),
        conditions: measurement.conditions,
        in_flight_mean: Some(measurement.in_flight_mean),
        polls,
        doorbells: measurement.doorbells,
        instruments: measurement.instruments,
        harness_ns: None,
        iops_by_drive: measurement.iops_by_target,
        complete: !measurement.stopped,
        verified: measurement.verified,
        marks: stopped.into_iter().chain(wrong).chain(cautions).chain(unwritten).collect(),
    }
}

fn failed_round(round: u32, column: &Column, workload: &Workload, why: &str) -> RoundResult {
    RoundResult {
        round,
        workload: workload.clone(),
        ran: column.ran(BTreeMap::new()),
        recorder: crate::measure::Recorder::new(),
        ns_per_tick: 1.0,
        elapsed_s: 0.0,
        cpu: crate::measure::CpuUse::default(),
        accounts: None,
        conditions: Vec::new(),
        in_flight_mean: None,
        polls: None,
        doorbells: None,
        instruments: None,
        harness_ns: None,
        iops_by_drive: Vec::new(),
        complete: false,
        verified: None,
        marks: vec![Mark::new(MarkKind::Failed, format!("round {round} failed: {why}"))],
    }
}
