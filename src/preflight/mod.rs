//! Everything that is asked before anything is touched: what a name means, whether an engine can
//! drive it, whether it may be written.
//!
//! # What it does not do
//!
//! It changes nothing on a drive; a bound one that is to be written is opened and read. Taking a
//! drive from the kernel is the run's, and `nvpoll-host` asks once more then, under a lock.

#[cfg(target_os = "linux")]
mod binding;
mod consent;
#[cfg(target_os = "linux")]
mod contents;
#[cfg(target_os = "linux")]
pub mod doctor;
#[cfg(target_os = "linux")]
pub mod memlock;
mod scratch;
mod subject;
#[cfg(target_os = "linux")]
pub mod user_access;

#[cfg(target_os = "linux")]
pub use binding::{BindWish, Binding, may_bind};
pub use consent::check_writes;
#[cfg(target_os = "linux")]
pub use contents::contents_of;
pub use scratch::{SCRATCH_BYTES, Scratch};
pub use subject::{Subject, What};

use crate::failure::Failure;
use nvpoll_engine::{Engine, EngineKind, Visitor};
#[cfg(target_os = "linux")]
use nvpoll_engine::{OpenOptions, Target};
#[cfg(target_os = "linux")]
use nvpoll_host::{Host, TakeOptions, UserDriver};

/// Whether this system has what `kind` needs.
///
/// # Errors
/// What is missing and what to do, as bad usage.
pub fn check_available(kind: EngineKind) -> Result<(), Failure> {
    struct Available;
    impl Visitor for Available {
        type Output = Result<(), nvpoll_engine::EngineError>;
        fn visit<E: Engine>(self) -> Self::Output {
            E::available()
        }
    }
    kind.with(Available).map_err(|error| Failure::usage(format!("engine {kind}: {error}")))
}

/// The engines of a comparison when none was asked for.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
pub struct Fitting {
    /// Those that can drive every target, in the list's order.
    pub kinds: Vec<EngineKind>,
    /// Those that would drive these targets but for something that can be mended, a line each.
    pub left_out: Vec<String>,
}

/// All engines that can drive every one of `subjects`; of those that take a drive from the kernel
/// the one with the driver that `bind` would choose.
#[cfg(target_os = "linux")]
pub fn fitting_engines(host: &Host, subjects: &[Subject], options: &TakeOptions) -> Fitting {
    let mut fitting = Fitting::default();
    for &kind in EngineKind::ALL.iter().filter(|kind| kind.info().name != "null") {
        if !subjects.iter().all(|subject| subject.engine_target(host, kind).is_ok()) {
            continue;
        }
        let checked = check_available(kind)
            .and_then(|()| check_opens(host, subjects, kind))
            .and_then(|()| check_driver(host, subjects, kind, options));
        match checked {
            Ok(true) => fitting.kinds.push(kind),
            Ok(false) => {}
            Err(failure) => fitting.left_out.push(failure.text),
        }
    }
    fitting
}

/// Whether an engine of the kernel's opens each of `subjects` that the kernel has, read-only: there
/// are formats that not every path takes.
#[cfg(target_os = "linux")]
fn check_opens(host: &Host, subjects: &[Subject], kind: EngineKind) -> Result<(), Failure> {
    struct Open<'a>(&'a Target);
    impl Visitor for Open<'_> {
        type Output = Result<(), nvpoll_engine::EngineError>;
        fn visit<E: Engine>(self) -> Self::Output {
            E::open(self.0, &OpenOptions::default()).map(drop)
        }
    }
    for subject in subjects {
        let (target, _) = subject.engine_target(host, kind)?;
        let is_there = matches!(&target, Target::Path(path) if path.exists());
        if is_there {
            let opened = kind.with(Open(&target));
            opened.map_err(|error| Failure::usage(format!("engine {kind}: {error}")))?;
        }
    }
    Ok(())
}

/// Whether `kind` needs the driver that each of `subjects` has, or that `bind` would choose for it.
#[cfg(target_os = "linux")]
fn check_driver(
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
#[cfg(target_os = "linux")]
pub fn check_undriven(host: &Host, drive: &nvpoll_host::Drive) -> Result<(), Failure> {
    let uses = host.survey()?.uses(drive);
    let driven = uses.iter().find(|found| found.kind == nvpoll_host::UseKind::UserspaceDriver);
    driven.map_or(Ok(()), |found| {
        Err(Failure::refused(format!("{found}; wait until that ends, or end it")))
    })
}

/// The engine for `subject` when none was asked for, and why it is this one.
pub fn choose_engine(subject: &Subject) -> (EngineKind, String) {
    match &subject.what {
        What::Soft(_) => (EngineKind::Soft, "the target is a soft drive".to_owned()),
        What::Null => (EngineKind::Null, "the target is nothing at all".to_owned()),
        #[cfg(target_os = "linux")]
        What::Drive { .. } => match subject.user_driver() {
            Some(driver) => {
                let name = driver.name();
                let of = |kind: &&EngineKind| kind.info().driver == Some(name);
                let kind = EngineKind::ALL.iter().find(of).copied();
                (
                    kind.unwrap_or(EngineKind::Vfio),
                    format!("the drive is bound to {name}, the userspace driver's way"),
                )
            }
            None => best_kernel_engine(),
        },
        _ => best_kernel_engine(),
    }
}

#[cfg(target_os = "linux")]
fn best_kernel_engine() -> (EngineKind, String) {
    match check_available(EngineKind::IoUring) {
        Ok(()) => {
            let why = "the target is the kernel's, and io_uring is its fastest path here";
            (EngineKind::IoUring, why.to_owned())
        }
        Err(error) => (EngineKind::Psync, format!("the target is the kernel's; {error}")),
    }
}

#[cfg(not(target_os = "linux"))]
fn best_kernel_engine() -> (EngineKind, String) {
    (EngineKind::Null, "this build has no engine for this system's own I/O yet".to_owned())
}
