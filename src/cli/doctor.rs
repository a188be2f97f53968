//! `doctor`: prints what `preflight::doctor` finds.

use super::Done;
use super::args::DoctorArgs;
use super::out::say;
use crate::failure::Failure;
use crate::preflight::BindWish;
use crate::preflight::doctor::{Diagnosis, Finding, Step, TargetDiagnosis, diagnose};
use crate::workload::{Rw, Workload};
use nvpoll_host::Host;

/// `nvpoll doctor`
pub fn doctor(args: &DoctorArgs) -> Done {
    let workload =
        Workload { numjobs: args.numjobs, ..Workload::new(Rw::RandRead, args.bs, args.iodepth) };
    workload.check().map_err(|error| Failure::usage(error.to_string()))?;
    let wish = BindWish { driver: args.driver, allow_no_iommu: args.unsafe_no_iommu };
    let diagnosis = diagnose(&Host::system(), &args.targets, &workload, wish)?;
    if args.json {
        let text = serde_json::to_string_pretty(&diagnosis);
        say!("{}", text.map_err(|error| Failure::failed(error.to_string()))?)?;
    } else {
        print(&diagnosis, args.targets.is_empty())?;
    }
    Ok(u8::from(!diagnosis.works))
}

fn print(diagnosis: &Diagnosis, all_drives: bool) -> Result<(), Failure> {
    say!("the machine")?;
    print_findings(&diagnosis.machine)?;
    for target in &diagnosis.targets {
        say!("\n{}", heading(target))?;
        print_findings(&target.findings)?;
    }
    say!("\n{}", conclusion(diagnosis, all_drives))
}

fn heading(target: &TargetDiagnosis) -> String {
    let step = match target.step {
        Step::Bind => "bind",
        Step::Run => "run",
    };
    let would = if target.works { "would work" } else { "would not work" };
    let label = match target.label.starts_with(&target.target) {
        true => target.label.clone(),
        false => format!("{}: {}", target.target, target.label),
    };
    format!("{label}: `nvpoll {step}` {would}")
}

fn conclusion(diagnosis: &Diagnosis, all_drives: bool) -> String {
    let targets = &diagnosis.targets;
    let works = targets.iter().filter(|target| target.works).count();
    match (targets.len(), works) {
        (0, _) => "no NVMe drive: no PCI function of class 01.08.02 is here; soft drives, files and block devices can be measured".to_owned(),
        (1, 1) => "nothing stands in the way".to_owned(),
        (all, works) if all == works => format!("nothing stands in the way of any of {all}"),
        (1, _) => "what blocks is said above, with what to do".to_owned(),
        (all, works) => {
            let what = if all_drives { "drives" } else { "targets" };
            format!("{works} of {all} {what} can be used; what blocks the others is said above")
        }
    }
}

/// One line a finding: what it means, its name, found, needed, what to do.
fn print_findings(findings: &[Finding]) -> Result<(), Failure> {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    for finding in findings {
        let Finding { check, found, needed, .. } = finding;
        let ruled_out = match finding.rules_out.as_slice() {
            [] => String::new(),
            names => format!("; rules out {}", names.join(", ")),
        };
        let remedy =
            finding.remedy.as_ref().map_or(String::new(), |remedy| format!("; do: {remedy}"));
        let verdict = finding.verdict.words();
        say!(
            "  {verdict:<9}  {check:<width$}  found: {found}; needed: {needed}{ruled_out}{remedy}"
        )?;
    }
    Ok(())
}
