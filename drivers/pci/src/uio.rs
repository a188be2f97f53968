//! UIO, by `uio_pci_generic` (Documentation/driver-api/uio-howto.rst).
//!
//! The driver does nothing but keep others off the function; BAR 0 and the configuration space are
//! sysfs's. There is no IOMMU between the device and the machine's memory: see
//! [`PhysicalSpace`]. Only root can use it.

use crate::opening::{Opening, disable_bus_master};
use crate::physical::PhysicalSpace;
use crate::{Function, PciError, TransportOptions};
use nvpoll_mem::{DmaSpace, MappedDoorbell, MappedRegisters, RegisterError, Registers};
use nvpoll_spec::PciAddress;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

const TRANSPORT: &str = "UIO";
const DRIVER: &str = "uio_pci_generic";

/// A PCI function that is bound to uio_pci_generic.
#[derive(Debug)]
pub struct UioFunction {
    // Dropped in this order, after `Drop::drop` has cut the device off from memory.
    registers: Arc<MappedRegisters>,
    dma: Arc<dyn DmaSpace>,
    config: File,
    // The last one that closes the node clears bus master (uio_pci_generic's release).
    _node: File,
    _claim: UnixListener,
    location: String,
    transport: String,
    numa_node: Option<u32>,
    ids: Option<(u16, u16)>,
}

impl UioFunction {
    /// Opens the function at `address`, which is bound to uio_pci_generic already.
    ///
    /// # Errors
    /// With the step that failed, what the kernel said, and what to do.
    pub fn open(address: PciAddress, options: TransportOptions) -> Result<Self, PciError> {
        let at = Opening { address, transport: TRANSPORT };
        at.check_driver(DRIVER)?;
        check_untranslated(&at)?;
        let claim = claim(&at)?;
        let name = node_name(&at)?;
        let node = at.open_node(&format!("/dev/{name}"), &[])?;
        lock(&at, &node, &name)?;
        let open = |file: &str| {
            let path = at.sysfs().join(file);
            let opened = OpenOptions::new().read(true).write(true).open(&path);
            at.step(&format!("opening {}", path.display()), hint(&opened), opened)
        };
        let (bar, config) = (open("resource0")?, open("config")?);
        let bytes = at.step("reading BAR 0's size", "", bar.metadata())?.len();
        let registers = at.map_registers(&bar, 0, bytes, LOCKDOWN)?;
        let space = at.step(
            "opening /proc/self/pagemap",
            "",
            PhysicalSpace::new(options.numa.node(at.numa_node())),
        )?;
        at.enable_bus_master(&config, 0)?;
        Ok(Self {
            registers,
            dma: Arc::new(space),
            config,
            _node: node,
            _claim: claim,
            location: address.to_string(),
            transport: format!("UIO ({name}), physical addresses in huge pages, no IOMMU"),
            numa_node: at.numa_node(),
            ids: at.ids(),
        })
    }
}

const LOCKDOWN: &str = "the kernel may be locked down (see /sys/kernel/security/lockdown), which forbids this; use vfio-pci";

fn hint<T>(result: &io::Result<T>) -> &'static str {
    match result.as_ref().map_err(io::Error::kind) {
        Err(io::ErrorKind::PermissionDenied) => "run as root; under kernel lockdown use vfio-pci",
        _ => "",
    }
}

/// Refuses a function behind an IOMMU that translates: nobody maps anything there, so that every
/// access of the device would fault.
fn check_untranslated(at: &Opening) -> Result<(), PciError> {
    let kind = fs::read_to_string(at.sysfs().join("iommu_group/type")).unwrap_or_default();
    if kind.starts_with("DMA") {
        return at.unusable(format!(
            "it is behind the IOMMU (domain {}), which UIO cannot map; use vfio-pci, or boot with iommu=pt",
            kind.trim()
        ));
    }
    Ok(())
}

/// The name of the function's node, `uio0`.
fn node_name(at: &Opening) -> Result<String, PciError> {
    let folder = at.sysfs().join("uio");
    let entries = at.step("looking for its UIO node", "", fs::read_dir(folder))?;
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    match names.find(|name| name.starts_with("uio")) {
        Some(name) => Ok(name),
        None => at.unusable("it has no UIO node although uio_pci_generic has it"),
    }
}

/// Makes this process the only one that drives the function. The UIO node may be opened by many,
/// so a name that the kernel gives to one process at a time, and takes back when that ends, stands
/// for it; the lock on the node says the same to other network namespaces.
fn claim(at: &Opening) -> Result<UnixListener, PciError> {
    let name = format!("nvpoll/uio/{}", at.address);
    let bound =
        SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    let taken = "another nvpoll drives it";
    let hint = match bound.as_ref().map_err(io::Error::kind) {
        Err(io::ErrorKind::AddrInUse) => taken,
        _ => "",
    };
    at.step("claiming it", hint, bound)
}

fn lock(at: &Opening, node: &File, name: &str) -> Result<(), PciError> {
    match node.try_lock() {
        // A kernel without file locks: the claim has to do.
        Err(TryLockError::Error(error)) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            at.unusable(format!("another process has /dev/{name} locked, so it drives this drive"))
        }
        Err(TryLockError::Error(error)) => at.step(&format!("locking /dev/{name}"), "", Err(error)),
        Ok(()) => Ok(()),
    }
}

impl Drop for UioFunction {
    fn drop(&mut self) {
        // The controller is disabled by now; should it not have followed, this keeps it from memory
        // that is about to be somebody else's.
        if let Err(error) = disable_bus_master(&self.config, 0) {
            tracing::warn!(location = %self.location, %error, "bus master could not be cleared");
        }
    }
}

impl Function for UioFunction {
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
}
