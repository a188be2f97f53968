//! What a user may choose about the way to a PCI function.

use std::fmt;
use std::str::FromStr;

/// Which of the kernel's interfaces to the IOMMU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IommuInterface {
    /// Type 1 where the kernel has it, since it is what other userspace drivers use; else iommufd.
    #[default]
    Best,
    /// The group's container with a type 1 IOMMU.
    Type1,
    /// The device's own node with iommufd.
    Iommufd,
}

impl IommuInterface {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Best, Self::Type1, Self::Iommufd];

    /// Its name on the command line and in result files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Type1 => "type1",
            Self::Iommufd => "iommufd",
        }
    }
}

impl fmt::Display for IommuInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IommuInterface {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|interface| interface.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no interface to the IOMMU is called \"{name}\"; there are {names}")
        })
    }
}

/// How a queue's thread waits for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// It looks at the queue without pause.
    #[default]
    Poll,
    /// It sleeps until the device's interrupt (MSI-X, as an event).
    Irq,
    /// It sleeps for half of what a completion takes on the mean, then looks without pause.
    Hybrid,
    /// It looks without pause for a short while, then sleeps until the interrupt.
    Adaptive,
}

impl WaitMode {
    /// All of them, the default first.
    pub const ALL: [Self; 4] = [Self::Poll, Self::Irq, Self::Hybrid, Self::Adaptive];

    /// Its name on the command line and in result files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Irq => "irq",
            Self::Hybrid => "hybrid",
            Self::Adaptive => "adaptive",
        }
    }

    /// Whether the device has to interrupt for it.
    pub const fn needs_interrupts(self) -> bool {
        matches!(self, Self::Irq | Self::Adaptive)
    }
}

impl fmt::Display for WaitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WaitMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no way of waiting is called \"{name}\"; there are {names}")
        })
    }
}

/// Where memory for a drive and its workers are to be, on a machine with several NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaPolicy {
    /// On the node that the drive hangs on: queues and buffers there as long as it has room, workers on
    /// its processors first.
    #[default]
    Near,
    /// Wherever the workers run, which take the processors in their order.
    Any,
}

impl NumaPolicy {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::Near, Self::Any];

    /// Its name on the command line and in result files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Any => "any",
        }
    }

    /// The node that is wanted for a drive on `node`.
    pub const fn node(self, node: Option<u32>) -> Option<u32> {
        match self {
            Self::Near => node,
            Self::Any => None,
        }
    }
}

impl fmt::Display for NumaPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for NumaPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no NUMA policy is called \"{name}\"; there are {names}")
        })
    }
}

/// How a function is opened, and waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportOptions {
    /// The interface to the IOMMU, under VFIO.
    pub iommu: IommuInterface,
    /// VFIO may drive a function without an IOMMU, which can write all memory then.
    pub allow_no_iommu: bool,
    /// How completions are waited for.
    pub wait: WaitMode,
    /// Where memory and workers are to be.
    pub numa: NumaPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for interface in IommuInterface::ALL {
            assert_eq!(interface.to_string().parse(), Ok(interface));
        }
        for policy in NumaPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for mode in WaitMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Type1".parse::<IommuInterface>().unwrap_err().contains("type1"));
    }
}
