//! `doctor` on Windows: what stands in the way of a measurement, and of a good one.

use super::Done;
use super::args::DoctorArgs;
use super::out::say;
use crate::failure::Failure;
use crate::preflight::{self, Host, Subject, What};
use crate::report::Machine;
use nvpoll_engine::EngineKind;
use nvpoll_windows::disk::{self, Disk, Stack};
use nvpoll_windows::{Name, Win32};
use serde::Serialize;

/// One check.
#[derive(Serialize)]
struct Finding {
    verdict: Verdict,
    check: String,
    seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    Warning,
    Blocks,
    NotKnown,
}

impl Verdict {
    const fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Blocks => "blocks",
            Self::NotKnown => "not known",
        }
    }
}

fn finding(
    verdict: Verdict,
    check: impl Into<String>,
    seen: impl Into<String>,
    remedy: Option<&str>,
) -> Finding {
    let remedy = remedy.map(str::to_owned);
    Finding { verdict, check: check.into(), seen: seen.into(), remedy }
}

/// `nvpoll doctor`
pub fn doctor(args: &DoctorArgs) -> Done {
    let machine = Machine::of_this_system();
    let mut findings = of_machine(&machine);
    let targets = match args.targets.as_slice() {
        [] => match disk::all(&Win32) {
            Ok(disks) => {
                disks.iter().map(|disk| disk::path_of(disk.number).display().to_string()).collect()
            }
            Err(error) => {
                let seen = format!("they cannot be listed: {error}");
                findings.push(finding(Verdict::NotKnown, "disks", seen, None));
                Vec::new()
            }
        },
        named => named.to_vec(),
    };
    for name in &targets {
        findings.extend(of_target(name, &machine));
    }
    let works = findings.iter().all(|finding| finding.verdict != Verdict::Blocks);
    if args.json {
        let document = serde_json::json!({
            "schema": "nvpoll.doctor-windows/1", "works": works, "findings": findings,
        });
        let text = serde_json::to_string_pretty(&document);
        say!("{}", text.map_err(|error| Failure::failed(error.to_string()))?)?;
    } else {
        for Finding { verdict, check, seen, remedy } in &findings {
            let remedy = remedy.as_ref().map_or_else(String::new, |remedy| format!("; {remedy}"));
            say!("{:<9}  {check}: {seen}{remedy}", verdict.words())?;
        }
        let end = if works { "nothing stands in the way" } else { "what blocks is said above" };
        say!("\n{end}")?;
    }
    Ok(u8::from(!works))
}

fn of_machine(machine: &Machine) -> Vec<Finding> {
    let system = match &machine.wine {
        Some(version) => {
            let seen = format!("Wine {version}, not Windows");
            let remedy = "its speed says nothing of Windows'; run it on Windows";
            finding(Verdict::Warning, "system", seen, Some(remedy))
        }
        None => {
            let name = machine.os_name.clone().unwrap_or_else(|| "Windows".to_owned());
            finding(Verdict::Ok, "system", name, None)
        }
    };
    let mut findings = vec![system];
    for kind in [EngineKind::Iocp, EngineKind::IoRing] {
        let check = format!("engine {kind}");
        findings.push(match preflight::check_available(kind) {
            Ok(()) => finding(Verdict::Ok, check, "is there", None),
            Err(failure) => finding(Verdict::Warning, check, failure.text, None),
        });
    }
    let asked = machine.native_nvme_asked == Some(true);
    let seen = if asked { "asked for in the registry" } else { "not asked for in the registry" };
    findings.push(finding(Verdict::Ok, "native NVMe stack", seen, None));
    findings
}

fn of_target(name: &str, machine: &Machine) -> Vec<Finding> {
    let subject = match Subject::resolve(&Host::system(), name) {
        Ok(subject) => subject,
        Err(failure) => return vec![finding(Verdict::Blocks, name, failure.text, None)],
    };
    let mut findings =
        vec![finding(Verdict::Ok, name, format!("{}, can be read", subject.describe()), None)];
    let What::Block { node, .. } = &subject.what else { return findings };
    let Name::Disk(number) = Name::of(node) else { return findings };
    let Ok(disk) = Disk::read(&Win32, number) else { return findings };
    let service = disk.service.clone().unwrap_or_else(|| "none that Windows names".to_owned());
    let asked = machine.native_nvme_asked == Some(true);
    let (verdict, stack, remedy) = match disk.stack() {
        Some(Stack::Native) => (Verdict::Ok, "native NVMe", None),
        Some(Stack::NonNative) if asked && disk.is_nvme == Some(true) => (
            Verdict::Warning,
            "SCSI translation, although native NVMe was asked for",
            Some("restart, and see that the updates are current"),
        ),
        Some(Stack::NonNative) => (Verdict::Ok, "SCSI translation", None),
        None => (Verdict::NotKnown, "cannot be told", None),
    };
    findings.push(finding(
        verdict,
        format!("{name}: stack"),
        format!("{stack} (service: {service})"),
        remedy,
    ));
    findings.push(match disk::check_unused(&Win32, &disk) {
        Ok(()) => finding(
            Verdict::Ok,
            format!("{name}: writes"),
            format!("nobody uses it; {}", disk.contents()),
            None,
        ),
        Err(why) => finding(
            Verdict::Warning,
            format!("{name}: writes"),
            format!("would be refused: {why}"),
            None,
        ),
    });
    findings
}
