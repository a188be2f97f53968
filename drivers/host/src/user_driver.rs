//! The kernel's drivers that hand a drive over, by name.

use serde::Serialize;

/// A kernel driver that hands a function to userspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserDriver {
    /// `vfio-pci`: behind an IOMMU, or without one when that is asked for by name.
    VfioPci,
    /// `uio_pci_generic`: no IOMMU protects the machine's memory.
    UioPciGeneric,
}

impl UserDriver {
    /// All of them, the best first.
    pub const ALL: [Self; 2] = [Self::VfioPci, Self::UioPciGeneric];

    /// The name below `/sys/bus/pci/drivers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::VfioPci => "vfio-pci",
            Self::UioPciGeneric => "uio_pci_generic",
        }
    }

    /// The driver of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|driver| driver.name() == name)
    }

    /// The modules that it needs, in order.
    #[cfg(target_os = "linux")]
    pub(crate) fn modules(self) -> &'static [&'static str] {
        match self {
            Self::VfioPci => &["vfio-pci", "vfio_iommu_type1"],
            Self::UioPciGeneric => &["uio_pci_generic"],
        }
    }
}
