//! What stands in the way of a measurement, and of a good one: findings, each with what was found,
//! what is needed and what to do.
//!
//! Facts come from `nvpoll-host` and the engines; here they are judged. Whether a drive can be bound
//! is asked of the very function that `bind` asks, so that the two cannot disagree: only that
//! finding, and for what needs no bind those about the run itself, can be [`Verdict::Blocks`].

mod drive;
mod machine;
mod processors;

#[cfg(test)]
mod tests;

use super::{BindWish, Subject};
use crate::failure::Failure;
use crate::run::Locked;
use crate::workload::Workload;
use nvpoll_host::Host;
use nvpoll_host::machine::MachineFacts;
use serde::Serialize;

/// Name and version of the JSON form; see docs/DOCTOR-FORMAT.md.
pub const SCHEMA: &str = "nvpoll.doctor/1";

/// What a finding means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It rules an engine out, or makes figures worse.
    Warning,
    /// The step that is asked about would not work.
    Blocks,
    /// It could not be told.
    NotKnown,
}

impl Verdict {
    /// In words, for a line.
    pub fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Blocks => "blocks",
            Self::NotKnown => "not known",
        }
    }
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at: a word that stays the same.
    pub check: String,
    /// What it means.
    pub verdict: Verdict,
    /// What was seen.
    pub found: String,
    /// What it should be, and for what.
    pub needed: String,
    /// What to do, exactly; `None` where nothing is to be done or nothing can be.
    pub remedy: Option<String>,
    /// Engines and transports that cannot be used as things are.
    pub rules_out: Vec<String>,
}

impl Finding {
    fn new(verdict: Verdict, check: &str, found: String, needed: &str) -> Self {
        Self {
            check: check.to_owned(),
            verdict,
            found,
            needed: needed.to_owned(),
            remedy: None,
            rules_out: Vec::new(),
        }
    }

    fn ok(check: &str, found: impl Into<String>, needed: &str) -> Self {
        Self::new(Verdict::Ok, check, found.into(), needed)
    }

    fn warning(
        check: &str,
        found: impl Into<String>,
        needed: &str,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..Self::new(Verdict::Warning, check, found.into(), needed) }
    }

    fn blocks(
        check: &str,
        found: impl Into<String>,
        needed: &str,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..Self::new(Verdict::Blocks, check, found.into(), needed) }
    }

    /// `found` says why it is not known.
    fn not_known(check: &str, found: impl Into<String>, needed: &str) -> Self {
        Self::new(Verdict::NotKnown, check, found.into(), needed)
    }

    fn rules_out(mut self, names: &[&str]) -> Self {
        self.rules_out = names.iter().map(|&name| name.to_owned()).collect();
        self
    }
}

/// What would be done with a target first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// `nvpoll bind`: the kernel has the drive.
    Bind,
    /// `nvpoll run`: it is bound, or need not be.
    Run,
}

/// A target's findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetDiagnosis {
    /// As it was typed, or the drive's address.
    pub target: String,
    /// What it is, in a line.
    pub label: String,
    /// What was asked about.
    pub step: Step,
    /// Whether it would work: no finding blocks.
    pub works: bool,
    /// In the order in which they are to be read.
    pub findings: Vec<Finding>,
}

impl TargetDiagnosis {
    fn new(target: String, label: String, step: Step, findings: Vec<Finding>) -> Self {
        let works = findings.iter().all(|finding| finding.verdict != Verdict::Blocks);
        Self { target, label, step, works, findings }
    }
}

/// The run that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// Bytes an I/O.
    pub bs: u32,
    /// I/Os in flight a worker.
    pub iodepth: u32,
    /// Workers a drive.
    pub numjobs: u32,
    /// Memory that the userspace driver locks for it, on all targets that are drives, in bytes.
    pub locked_bytes: u64,
    /// Mappings in a drive's address space.
    pub mappings: u64,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// [`SCHEMA`].
    pub schema: String,
    /// Whether every target that was named would work. Of all drives, where none was named,
    /// whether one would, since nobody means to bind the one that the system runs from; where
    /// there is none, whether any engine is available.
    pub works: bool,
    /// The run that is asked about.
    pub asked: Asked,
    /// Of the machine as a whole.
    pub machine: Vec<Finding>,
    /// Of each target.
    pub targets: Vec<TargetDiagnosis>,
}

/// What the checks of one diagnosis share.
struct Context<'a> {
    host: &'a Host,
    facts: MachineFacts,
    locked: Locked,
    wish: BindWish,
}

/// Looks at the machine, and at the targets named, or at all drives.
///
/// # Errors
/// A name that leads to nothing that can be measured; drives or records that cannot be read.
pub fn diagnose(
    host: &Host,
    names: &[String],
    workload: &Workload,
    wish: BindWish,
) -> Result<Diagnosis, Failure> {
    let subjects = match names {
        [] => {
            let drives = host.drives()?.into_iter().map(|drive| drive.address.to_string());
            drives.map(|name| Subject::resolve(host, &name)).collect::<Result<Vec<_>, _>>()?
        }
        names => names.iter().map(|name| Subject::resolve(host, name)).collect::<Result<_, _>>()?,
    };
    // Without a name every drive is asked about for itself.
    let together = if names.is_empty() { 1 } else { drives_among(&subjects).max(1) };
    let locked = Locked::of(workload, together);
    let context = Context { host, facts: host.machine(), locked, wish };
    let machine = machine::findings(&context)?;
    let targets: Vec<TargetDiagnosis> = subjects
        .iter()
        .map(|subject| drive::diagnose(&context, subject))
        .collect::<Result<_, _>>()?;
    let works = match (names, targets.as_slice()) {
        ([], []) => machine.iter().any(|one| one.check.starts_with(ENGINE) && is_ok(one)),
        ([], all) => all.iter().any(|target| target.works),
        (_, all) => all.iter().all(|target| target.works),
    };
    let asked = Asked {
        bs: workload.bs_bytes,
        iodepth: workload.iodepth,
        numjobs: workload.numjobs,
        locked_bytes: locked.bytes,
        mappings: locked.mappings,
    };
    Ok(Diagnosis { schema: SCHEMA.to_owned(), works, asked, machine, targets })
}

/// What the name of an engine's check begins with.
const ENGINE: &str = "engine ";

fn is_ok(finding: &Finding) -> bool {
    finding.verdict == Verdict::Ok
}

fn drives_among(subjects: &[Subject]) -> u64 {
    let is_drive = |subject: &&Subject| matches!(subject.what, super::What::Drive { .. });
    subjects.iter().filter(is_drive).count() as u64
}

/// Bytes for people.
fn in_units(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes.div_ceil(1024)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}
