//! A controller that the userspace driver brings up for something that is no I/O.

use crate::{EngineError, OpenOptions, Target};
use nvpoll_nvme::{Controller, NvmeError, Options};
use nvpoll_pci::soft::SoftFunction;
use nvpoll_pci::{Function, PciError};
#[cfg(target_os = "linux")]
use nvpoll_pci::{uio::UioFunction, vfio::VfioFunction};
use std::sync::Arc;

/// What is done with a controller, whichever transport leads to it.
pub(crate) trait ControllerVisitor {
    /// What comes of it.
    type Output;

    /// Does it; afterwards the controller is shut down.
    ///
    /// # Errors
    /// Its own.
    fn visit<F: Function>(
        self,
        controller: &Arc<Controller<F>>,
    ) -> Result<Self::Output, EngineError>;
}

/// Opens the controller that `target` names through the userspace driver, and hands it to `visitor`.
///
/// # Errors
/// When `target` has none, or it cannot be opened; the visitor's.
pub(crate) fn with_controller<V: ControllerVisitor>(
    target: &Target,
    options: &OpenOptions,
    visitor: V,
) -> Result<V::Output, EngineError> {
    let failed = |error: PciError| EngineError::Failed(error.to_string());
    match target {
        Target::Soft(soft) => visit(SoftFunction::open(soft).map_err(failed)?, options, visitor),
        #[cfg(target_os = "linux")]
        Target::Pci(address) => match nvpoll_pci::driver_of(*address).as_deref() {
            Some("uio_pci_generic") => {
                let function = UioFunction::open(*address, options.transport).map_err(failed)?;
                visit(function, options, visitor)
            }
            _ => {
                let function = VfioFunction::open(*address, options.transport).map_err(failed)?;
                visit(function, options, visitor)
            }
        },
        other => {
            Err(EngineError::Usage(format!("{other} has no NVMe controller that nvpoll drives")))
        }
    }
}

fn visit<F: Function, V: ControllerVisitor>(
    function: F,
    options: &OpenOptions,
    visitor: V,
) -> Result<V::Output, EngineError> {
    let failed = |error: NvmeError| EngineError::Failed(error.to_string());
    let opening = Options { quirks: options.quirks, ..Options::default() };
    visitor.visit(&Controller::open(function, opening).map_err(failed)?)
}
