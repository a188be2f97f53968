//! VFIO (Documentation/driver-api/vfio.rst): by group with a type 1 IOMMU, by device node with
//! iommufd, or, where the user accepts it, without an IOMMU.
//!
//! They differ in how the device's file and its address space come about; the device itself is the
//! same. The kernel disables bus mastering and resets the function when its last descriptor closes.

mod group;
mod ioctl;
mod iommufd;
mod mapping;

use crate::opening::Opening;
use crate::{Function, Interrupt, IommuInterface, PciError, TransportOptions};
use nvpoll_mem::{DmaSpace, MappedDoorbell, MappedRegisters, RegisterError, Registers};
use nvpoll_spec::PciAddress;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfio_bindings::bindings::vfio as sys;

use self::group::Opened;

const TRANSPORT: &str = "VFIO";
const DRIVER: &str = "vfio-pci";

/// A PCI function that is bound to vfio-pci.
#[derive(Debug)]
pub struct VfioFunction {
    // Dropped in this order: the mapping, the device (which resets it), then its address space.
    registers: Arc<MappedRegisters>,
    device: File,
    dma: Arc<dyn DmaSpace>,
    /// Signalled when the kernel wants the device back; none where the device does not tell.
    request: Option<Interrupt>,
    requested: AtomicBool,
    location: String,
    transport: String,
    numa_node: Option<u32>,
    ids: Option<(u16, u16)>,
}

impl VfioFunction {
    /// Opens the function at `address`, which is bound to vfio-pci already.
    ///
    /// # Errors
    /// With the step that failed, what the kernel said, and what to do.
    pub fn open(address: PciAddress, options: TransportOptions) -> Result<Self, PciError> {
        let at = Opening { address, transport: TRANSPORT };
        at.check_driver(DRIVER)?;
        let Opened { device, dma, transport } = open_device(&at, options)?;
        let region = ioctl::region(&device, sys::VFIO_PCI_CONFIG_REGION_INDEX);
        let config = at.step("reading the configuration space's place", "", region)?.offset;
        at.enable_bus_master(&device, config)?;
        let registers = map_registers(&at, &device)?;
        Ok(Self {
            registers,
            request: request_event(&device).ok(),
            requested: AtomicBool::new(false),
            device,
            dma,
            location: address.to_string(),
            transport,
            numa_node: at.numa_node(),
            ids: at.ids(),
        })
    }
}

fn open_device(at: &Opening, options: TransportOptions) -> Result<Opened, PciError> {
    let address = at.address;
    let node = options.numa.node(at.numa_node());
    match at.group_number() {
        Some(number) if group::is_made_up(number) => match options.allow_no_iommu {
            true => group::open_no_iommu(at, number, node),
            false => at.unusable(format!(
                "no IOMMU stands in front of {address}, so it could write all memory of this machine; turn the IOMMU on, or accept that with --unsafe-no-iommu"
            )),
        },
        Some(number) => match options.iommu {
            IommuInterface::Iommufd => iommufd::open(at, node),
            IommuInterface::Best if !group_is_here(number) && iommufd::is_here(at) => {
                iommufd::open(at, node)
            }
            IommuInterface::Best | IommuInterface::Type1 => group::open(at, number, node),
        },
        None => at.unusable(
            "it has no IOMMU group; turn the IOMMU on in the firmware and with intel_iommu=on or amd_iommu=on on the kernel's command line",
        ),
    }
}

/// Whether this kernel has groups at all (CONFIG_VFIO_GROUP).
fn group_is_here(number: u32) -> bool {
    std::path::Path::new(&format!("/dev/vfio/{number}")).exists()
}

/// An event that the kernel signals when it wants the device back.
fn request_event(device: &File) -> std::io::Result<Interrupt> {
    let event = Interrupt::new()?;
    ioctl::connect_interrupts(device, sys::VFIO_PCI_REQ_IRQ_INDEX, &[event.descriptor()])?;
    Ok(event)
}

fn map_registers(at: &Opening, device: &File) -> Result<Arc<MappedRegisters>, PciError> {
    let region = ioctl::region(device, sys::VFIO_PCI_BAR0_REGION_INDEX);
    let region = at.step("reading BAR 0's place", "", region)?;
    if !region.mappable {
        let bytes = region.bytes;
        return at.unusable(format!(
            "BAR 0 has {bytes} bytes and cannot be mapped; an NVMe controller's can"
        ));
    }
    at.map_registers(device, region.offset, region.bytes, "")
}

impl Function for VfioFunction {
    type Doorbell = MappedDoorbell;

    fn registers(&self) -> &dyn Registers {
        &*self.registers
    }

    fn doorbell(&self, offset: usize) -> Result<MappedDoorbell, RegisterError> {
        self.registers.doorbell(offset)
    }

    fn dma(&self) -> &Arc<dyn DmaSpace> {
        &self.dma
    }

    fn location(&self) -> &str {
        &self.location
    }

    fn transport(&self) -> String {
        self.transport.clone()
    }

    fn ids(&self) -> Option<(u16, u16)> {
        self.ids
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn interrupts_max(&self) -> u16 {
        let count = ioctl::interrupts(&self.device, sys::VFIO_PCI_MSIX_IRQ_INDEX);
        count.map_or(0, |count| u16::try_from(count).unwrap_or(u16::MAX))
    }

    fn enable_interrupts(&self, count: u16) -> Result<Vec<Interrupt>, PciError> {
        let at = |what: &str, error: std::io::Error| PciError::Interrupts {
            location: self.location.clone(),
            reason: format!("{what}: {error}"),
        };
        let events = (0..count).map(|_| Interrupt::new()).collect::<Result<Vec<_>, _>>();
        let events = events.map_err(|error| at("making events", error))?;
        let descriptors: Vec<_> = events.iter().map(Interrupt::descriptor).collect();
        ioctl::connect_interrupts(&self.device, sys::VFIO_PCI_MSIX_IRQ_INDEX, &descriptors)
            .map_err(|error| at(&format!("turning {count} MSI-X vectors on"), error))?;
        Ok(events)
    }

    fn is_wanted_back(&self) -> bool {
        // The event is gone once it was read; the wish stays.
        if self.request.as_ref().is_some_and(Interrupt::take) {
            self.requested.store(true, Relaxed);
        }
        self.requested.load(Relaxed)
    }
}
