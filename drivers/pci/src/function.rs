//! What a transport gives to the driver.

use nvpoll_mem::{DmaSpace, Doorbell, RegisterError, Registers};
use std::fmt;
use std::sync::Arc;

/// One PCI function, owned from open to drop.
///
/// Dropping it gives the function back to whoever carries it; the driver has disabled the
/// controller by then.
pub trait Function: Send + Sync + fmt::Debug + 'static {
    /// The right to write one doorbell, of the kind that this transport has.
    type Doorbell: Doorbell + Send + 'static;

    /// BAR 0: the controller's registers.
    fn registers(&self) -> &dyn Registers;

    /// The doorbell at byte `offset` of BAR 0.
    ///
    /// # Errors
    /// When BAR 0 does not reach there.
    fn doorbell(&self, offset: usize) -> Result<Self::Doorbell, RegisterError>;

    /// The address space that the function's DMA goes through.
    fn dma(&self) -> &Arc<dyn DmaSpace>;

    /// Where it is, for messages: a PCI address, or what the soft controller is.
    fn location(&self) -> &str;

    /// How it is reached, for the report: `VFIO group, type 1 IOMMU`, `soft, stepped`.
    fn transport(&self) -> String;

    /// The NUMA node that the function hangs on, where the system says.
    fn numa_node(&self) -> Option<u32> {
        None
    }

    /// PCI vendor and device, where it has such.
    fn ids(&self) -> Option<(u16, u16)> {
        None
    }

    /// Most interrupt vectors that the function can be given; none where this is zero.
    fn interrupts_max(&self) -> u16 {
        0
    }

    /// Turns `count` vectors on, from vector 0, at most [`interrupts_max`](Self::interrupts_max).
    /// Asked for once in a function's life.
    ///
    /// # Errors
    /// When the transport has none, or the system grants fewer.
    fn enable_interrupts(&self, count: u16) -> Result<Vec<crate::Interrupt>, PciError> {
        Err(PciError::Interrupts {
            location: self.location().to_owned(),
            reason: format!(
                "{count} were asked for, and this transport ({}) has none; use --wait poll or hybrid",
                self.transport()
            ),
        })
    }

    /// Whether the system wants the function back: it is being unplugged, or its driver unbound, and
    /// waits until this is dropped.
    fn is_wanted_back(&self) -> bool {
        false
    }
}

/// A function that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// A step of opening failed.
    #[error("cannot open {location} through {transport}: {what}: {source}{}{hint}", if hint.is_empty() { "" } else { "; " })]
    Open {
        /// Which function.
        location: String,
        /// Which transport.
        transport: &'static str,
        /// Which step.
        what: String,
        /// What the system said.
        source: std::io::Error,
        /// What to do.
        hint: String,
    },
    /// Interrupts cannot be had.
    #[error("no interrupts from {location}: {reason}")]
    Interrupts {
        /// Which function.
        location: String,
        /// What was seen and what to do.
        reason: String,
    },
    /// The function is not as a transport needs it.
    #[error("cannot open {location} through {transport}: {reason}")]
    Unusable {
        /// Which function.
        location: String,
        /// Which transport.
        transport: &'static str,
        /// What was seen and what to do.
        reason: String,
    },
}
