//! Everything that is asked before anything is touched: what a name means, whether an engine can
//! drive it, whether it may be written.
//!
//! # What it does not do
//!
//! It changes nothing on a drive; a bound one that is to be written is opened and read. Taking a
//! drive from the kernel is the run's, and `nvpoll-host` asks once more then, under a lock.

#[cfg(target_os = "linux")]
mod binding;
#[cfg(target_os = "linux")]
mod consent;
#[cfg(target_os = "linux")]
mod contents;
#[cfg(target_os = "linux")]
pub mod doctor;
#[cfg(target_os = "linux")]
pub mod memlock;
mod scratch;
mod subject;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;
#[cfg(target_os = "linux")]
pub mod user_access;

#[cfg(target_os = "linux")]
pub use binding::{BindWish, Binding, may_bind};
#[cfg(target_os = "linux")]
pub use contents::contents_of;
pub use scratch::{SCRATCH_BYTES, Scratch};
pub use subject::{Below, Subject, What};
#[cfg(windows)]
pub use system::check_unused;
pub use system::{
    Host, STAND_INS, TakeOptions, check_memory, check_ready, check_writes, controller, stack_name,
};

use crate::failure::Failure;
use nvpoll_engine::{Engine, EngineKind, OpenOptions, Target, Visitor};

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
#[derive(Debug, Default)]
pub struct Fitting {
    /// Those that can drive every target, in the list's order.
    pub kinds: Vec<EngineKind>,
    /// Those that would drive these targets but for something that can be mended, a line each.
    pub left_out: Vec<String>,
}

/// All engines that can drive every one of `subjects`; of those that take a drive from the kernel
/// the one with the driver that `bind` would choose.
pub fn fitting_engines(host: &Host, subjects: &[Subject], options: &TakeOptions) -> Fitting {
    let mut fitting = Fitting::default();
    for &kind in EngineKind::ALL.iter().filter(|kind| kind.info().moves_data) {
        if !subjects.iter().all(|subject| subject.engine_target(host, kind).is_ok()) {
            continue;
        }
        let checked = check_available(kind)
            .and_then(|()| check_opens(host, subjects, kind))
            .and_then(|()| system::check_driver(host, subjects, kind, options));
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
            None => system::best_kernel_engine(),
        },
        _ => system::best_kernel_engine(),
    }
}
