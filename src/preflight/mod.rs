//! Everything that is asked before anything is touched: what a name means, whether an engine can
//! drive it, whether it may be written.
//!
//! # What it does not do
//!
//! It changes nothing. Taking a drive from the kernel is the run's, and `nvpoll-host` asks once more
//! then, under a lock.

mod consent;
mod scratch;
mod subject;

pub use consent::check_writes;
pub use scratch::{SCRATCH_BYTES, Scratch};
pub use subject::{Subject, What};

use crate::failure::Failure;
use nvpoll_engine::{Engine, EngineKind, Visitor};

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

/// The engine for `subject` when none was asked for, and why it is this one.
pub fn choose_engine(subject: &Subject) -> (EngineKind, String) {
    match &subject.what {
        What::Soft(_) => (EngineKind::Soft, "the target is a soft drive".to_owned()),
        What::Null => (EngineKind::Null, "the target is nothing at all".to_owned()),
        #[cfg(target_os = "linux")]
        What::Drive { drive, .. } if subject.is_bound() => {
            let driver = drive.driver.as_deref().unwrap_or_default();
            (
                EngineKind::Vfio,
                format!("the drive is bound to {driver}, the userspace driver's way"),
            )
        }
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
