//! The soft transport: a controller in this process, behind the same trait as a real one.

use crate::{Function, PciError};
use nvpoll_mem::{DmaSpace, RegisterError, Registers};
use nvpoll_soft::{SoftController, SoftDoorbell};
use std::sync::Arc;

pub use nvpoll_soft::SoftOptions;

/// A soft controller as a PCI function.
///
/// It holds the controller: the device stops when the last holder is dropped.
#[derive(Debug)]
pub struct SoftFunction {
    controller: Arc<SoftController>,
    dma: Arc<dyn DmaSpace>,
    location: String,
}

impl SoftFunction {
    /// Starts a controller of this kind and opens it.
    ///
    /// # Errors
    /// [`PciError::Unusable`] when an option is out of range, the backing file cannot be used, or
    /// there is no thread.
    pub fn open(options: &SoftOptions) -> Result<Self, PciError> {
        let controller = SoftController::start(options.clone()).map_err(|error| {
            let (location, reason) = (options.to_string(), error.to_string());
            PciError::Unusable { location, transport: "soft", reason }
        })?;
        Ok(Self::over(controller))
    }

    /// Opens a controller that runs already, whose faults and counters the caller goes on using.
    pub fn over(controller: Arc<SoftController>) -> Self {
        let (dma, location) = (controller.iommu(), controller.options().to_string());
        Self { controller, dma, location }
    }

    /// The controller.
    pub fn controller(&self) -> &Arc<SoftController> {
        &self.controller
    }
}

impl Function for SoftFunction {
    type Doorbell = SoftDoorbell;

    fn registers(&self) -> &dyn Registers {
        &*self.controller
    }

    fn doorbell(&self, offset: usize) -> Result<SoftDoorbell, RegisterError> {
        self.controller.doorbell(offset)
    }

    fn dma(&self) -> &Arc<dyn DmaSpace> {
        &self.dma
    }

    fn location(&self) -> &str {
        &self.location
    }

    fn transport(&self) -> String {
        let how = if self.controller.options().stepped { "stepped" } else { "threaded" };
        format!("soft, {how}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_mem::{DmaBuf, Doorbell};
    use nvpoll_spec::reg;

    #[test]
    fn it_is_a_function_like_any_other() {
        let options: SoftOptions = "soft:size=1M,stepped".parse().unwrap();
        let function = SoftFunction::open(&options).unwrap();
        assert_eq!(function.location(), "soft:size=1M,stepped");
        assert_eq!(function.transport(), "soft, stepped");
        assert_eq!(function.numa_node(), None);
        assert_ne!(function.registers().read64(reg::CAP).unwrap(), u64::MAX);
        let buffer = DmaBuf::new(function.dma(), 4096).unwrap();
        assert!(buffer.iova(0) >= 1 << 32);
        function.doorbell(reg::DOORBELLS).unwrap().ring(0);
        let error = function.doorbell(1 << 30).unwrap_err();
        assert_eq!(error.offset, 1 << 30);
    }

    #[test]
    fn what_cannot_be_is_one_line() {
        let options = SoftOptions { queues: 0, ..SoftOptions::default() };
        let error = SoftFunction::open(&options).unwrap_err().to_string();
        assert!(error.starts_with("cannot open soft:size=1G,queues=0 through soft: "), "{error}");
        assert!(error.contains("option queues: saw 0"), "{error}");
        assert!(!error.contains('\n'));
    }
}
