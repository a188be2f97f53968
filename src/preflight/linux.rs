//! What is Linux's alone: drivers that hand drives over, their records, memory that is locked.

use super::subject::{Below, Subject, What};
use super::{check_available, memlock};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::workload::Workload;
use nvpoll_engine::{EngineChoice, EngineKind, Target};
use nvpoll_host::{Holder, UserDriver};
use std::path::Path;

pub use super::consent::check_writes;
pub use nvpoll_host::{Host, TakeOptions};

/// What stands in when no target was named: the userspace driver, and the kernel's engines.
pub const STAND_INS: [EngineKind; 3] = [EngineKind::Soft, EngineKind::IoUring, EngineKind::Psync];

/// A column's heading.
pub fn stack_name(choice: &EngineChoice, _subjects: &[Subject]) -> String {
    choice.stack()
}

/// What is below a file: Linux has one stack, and names no other.
pub(super) fn below_file(_path: &Path) -> Below {
    Below::default()
}

/// Whether this process may lock the memory that workloads need.
///
/// # Errors
/// As for [`memlock::check`].
pub fn check_memory(
    host: &Host,
    kind: EngineKind,
    workloads: &[Workload],
    drives: usize,
) -> Result<(), Failure> {
    memlock::check(host, kind, workloads, drives)
}

/// What `name` means, where it is a device or a file.
pub(super) fn resolve(host: &Host, name: &str) -> Result<Subject, Failure> {
    let what = match host.resolve(name)? {
        nvpoll_host::Target::Drive { drive, namespace } => {
            let nsid = namespace.or_else(|| first_namespace(&drive)).unwrap_or(1);
            What::Drive { drive, nsid }
        }
        nvpoll_host::Target::Block { node, size_bytes, lba_bytes, .. } => {
            What::Block { node, size_bytes, lba_bytes }
        }
        nvpoll_host::Target::File { path, size_bytes } => {
            What::File { path, size_bytes, is_scratch: false }
        }
    };
    Ok(Subject::new(name, what))
}

fn first_namespace(drive: &nvpoll_host::Drive) -> Option<u32> {
    let recorded = drive.record.as_ref().and_then(|record| record.namespaces.first());
    let now = drive.namespaces.first().map(|namespace| namespace.nsid);
    now.or(recorded.map(|namespace| namespace.nsid))
}

/// The controller of `subject`, for whoever asks it what it is.
///
/// # Errors
/// When it has none, or nobody has it.
pub fn controller(host: &Host, subject: &Subject) -> Result<Target, Failure> {
    let name = &subject.name;
    match &subject.what {
        What::Soft(options) => Ok(Target::Soft(options.clone())),
        What::Drive { drive, .. } if subject.is_bound() => {
            check_undriven(host, drive)?;
            Ok(Target::Pci(drive.address))
        }
        What::Drive { drive, .. } => match &drive.controller {
            Some(name) => Ok(Target::Path(format!("/dev/{name}").into())),
            None => Err(Failure::usage(format!(
                "{name}: neither the kernel nor a userspace driver has this drive; `nvpoll bind {}` takes it",
                drive.address
            ))),
        },
        _ => Err(Failure::usage(format!(
            "{name} is {}, not an NVMe controller; name a drive or soft[:options]",
            subject.describe()
        ))),
    }
}

pub(super) fn best_kernel_engine() -> (EngineKind, String) {
    match check_available(EngineKind::IoUring) {
        Ok(()) => {
            let why = "the target is the kernel's, and io_uring is its fastest path here";
            (EngineKind::IoUring, why.to_owned())
        }
        Err(error) => (EngineKind::Psync, format!("the target is the kernel's; {error}")),
    }
}

/// Whether `kind` needs the driver that each of `subjects` has, or that `bind` would choose for it.
pub(super) fn check_driver(
    host: &Host,
    subjects: &[Subject],
    kind: EngineKind,
    options: &TakeOptions,
) -> Result<bool, Failure> {
    let Some(wanted) = kind.info().driver else { return Ok(true) };
    for subject in subjects {
        let What::Drive { drive, .. } = &subject.what else { return Ok(false) };
        let driver = match subject.user_driver() {
            Some(driver) => driver,
            None => match host.choose_driver(drive, options) {
                Ok((driver, _)) => driver,
                // Said once, of the engine that would be the first choice.
                Err(error) if wanted == UserDriver::VfioPci.name() => {
                    return Err(Failure::usage(format!("engine {kind}: {error}")));
                }
                Err(_) => return Ok(false),
            },
        };
        if driver.name() != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether no other process drives a bound drive: not every transport keeps a second one out, and
/// opening a controller resets it.
///
/// # Errors
/// Refused, with the process that does.
pub fn check_undriven(host: &Host, drive: &nvpoll_host::Drive) -> Result<(), Failure> {
    let uses = host.survey()?.uses(drive);
    let driven = uses.iter().find(|found| found.kind == nvpoll_host::UseKind::UserspaceDriver);
    driven.map_or(Ok(()), |found| {
        Err(Failure::refused(format!("{found}; wait until that ends, or end it")))
    })
}

/// Whether an engine that needs a bound drive may have this one. `run` takes no drive by itself:
/// taking one is a command of its own, or `compare`'s. A drive that is bound was bound to stay, by
/// `nvpoll bind` or by somebody else; one that a process holds, or a crash left, is not ours to use.
///
/// # Errors
/// Bad usage or refused, with what to do.
pub fn check_ready(
    host: &Host,
    subject: &Subject,
    plan: &Plan,
    kind: EngineKind,
) -> Result<(), Failure> {
    let What::Drive { drive, .. } = &subject.what else { return Ok(()) };
    let Some(wanted) = kind.info().driver else { return Ok(()) };
    let name = &subject.name;
    let Some(bound) = subject.user_driver() else {
        return match plan.command.as_str() {
            "run" => Err(Failure::usage(format!(
                "{name} is not bound to a userspace driver; `nvpoll bind {name} --driver {wanted}` does that, or `nvpoll compare {name}`, which also gives it back"
            ))),
            _ => Ok(()),
        };
    };
    if bound.name() != wanted {
        return Err(Failure::usage(format!(
            "{name} is bound to {}, and engine {kind} needs {wanted}; `nvpoll unbind {name}` first",
            bound.name()
        )));
    }
    if bound == UserDriver::VfioPci && !host.has_iommu(drive) && !plan.transport.unsafe_no_iommu {
        return Err(Failure::refused(format!(
            "{name}: no IOMMU stands in front of this drive, so it could write all memory of this machine; accept that with --unsafe-no-iommu, as when it was bound"
        )));
    }
    let leftovers = host.leftovers()?;
    let held = leftovers.iter().find(|leftover| {
        leftover.address == drive.address && leftover.holder != Holder::Persistent
    });
    if let Some(held) = held {
        return Err(Failure::refused(held.to_string()));
    }
    check_undriven(host, drive)
}
