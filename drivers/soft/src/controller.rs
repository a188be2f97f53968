//! The controller, as its host holds it.

use crate::device::Device;
use crate::fault::{FaultHooks, mode};
use crate::iommu::DmaFault;
use crate::options::{OptionError, SoftOptions};
use crate::shared::{Shared, Slot, SoftCounters};
use crate::thread;
use nvpoll_mem::{DmaSpace, Doorbell, RegisterError, Registers};
use nvpoll_spec::reg;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// A soft controller that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SoftError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The backing file cannot be used.
    #[error(
        "soft controller: cannot use {} as its backing: {source}; name a regular file that may be written, or leave file= out",
        path.display()
    )]
    Backing {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("soft controller: cannot start its thread: {0}; add stepped to do without one")]
    Thread(std::io::Error),
}

/// An NVMe controller in software.
///
/// The host speaks to it through [`Registers`], [`SoftDoorbell`]s and memory mapped in
/// [`iommu`](Self::iommu). Dropping it stops the device, whatever state it is in; doorbells that
/// outlive it do nothing.
pub struct SoftController {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl SoftController {
    /// Powers a controller on: disabled, as a real one is after a reset.
    ///
    /// # Errors
    /// When an option is out of range, the backing file cannot be used, or there is no thread.
    pub fn start(options: SoftOptions) -> Result<Arc<Self>, SoftError> {
        options.validate()?;
        let device = Device::new(&options)?;
        let stepped = options.stepped;
        let shared = Arc::new(Shared::new(options, device));
        let thread =
            if stepped { None } else { Some(thread::start(&shared).map_err(SoftError::Thread)?) };
        Ok(Arc::new(Self { shared, thread }))
    }

    /// What it was started with.
    pub fn options(&self) -> &SoftOptions {
        &self.shared.options
    }

    /// The doorbell at byte `offset` of BAR 0.
    ///
    /// # Errors
    /// When no doorbell stands there.
    pub fn doorbell(self: &Arc<Self>, offset: usize) -> Result<SoftDoorbell, RegisterError> {
        self.shared.check(offset)?;
        let error = RegisterError { offset, bytes: self.shared.bar_bytes() };
        let index = self.shared.doorbell_index(offset).ok_or(error)?;
        let slot = self.shared.doorbells.get(index).map(Arc::clone).ok_or(error)?;
        let stepped = self.shared.options.stepped.then(|| Arc::clone(&self.shared));
        Ok(SoftDoorbell { slot, stepped, index })
    }

    /// The address space of the device's DMA.
    pub fn iommu(&self) -> Arc<dyn DmaSpace> {
        Arc::clone(&self.shared.iommu) as Arc<dyn DmaSpace>
    }

    /// The device's accesses outside of what is mapped, oldest first; the first 256 of them.
    pub fn dma_faults(&self) -> Vec<DmaFault> {
        self.shared.iommu.faults()
    }

    /// Faults to order.
    pub fn faults(&self) -> &FaultHooks {
        &self.shared.faults
    }

    /// Lets go the completions that [`Delay`](crate::FaultAction::Delay) in a stepped device and
    /// [`Defer`](crate::FaultAction::Defer) hold back: at once in a stepped device, with the next
    /// pass in a threaded one.
    pub fn release_held(&self) {
        if self.shared.options.stepped {
            self.shared.lock_device().release(&self.shared);
        } else {
            self.shared.faults.set(mode::RELEASE, true);
        }
    }

    /// What it has counted.
    pub fn counters(&self) -> SoftCounters {
        let tallies = &self.shared.tallies;
        SoftCounters {
            admin: tallies.admin.get(),
            reads: tallies.reads.get(),
            writes: tallies.writes.get(),
            flushes: tallies.flushes.get(),
            write_zeroes: tallies.write_zeroes.get(),
            compares: tallies.compares.get(),
            verifies: tallies.verifies.get(),
            forced_writes: tallies.forced_writes.get(),
            trims: tallies.trims.get(),
            copies: tallies.copies.get(),
            trimmed_bytes: tallies.trimmed_bytes.get(),
            read_bytes: tallies.read_bytes.get(),
            written_bytes: tallies.written_bytes.get(),
            failed: tallies.failed.get(),
            media_errors: tallies.media_errors.get(),
            invalid_doorbells: tallies.invalid_doorbells.get(),
            dma_faults: self.shared.iommu.fault_count(),
            resets: tallies.resets.get(),
        }
    }
}

impl Registers for SoftController {
    fn read32(&self, offset: usize) -> Result<u32, RegisterError> {
        self.shared.check(offset)?;
        let value = self.shared.read(offset);
        if offset == reg::CSTS && self.shared.options.stepped {
            // A stepped device acts on CC after CSTS was read once more: a host that does not wait
            // for a change does not get it.
            self.shared.lock_device().registers(&self.shared);
        }
        Ok(value)
    }

    fn write32(&self, offset: usize, value: u32) -> Result<(), RegisterError> {
        self.shared.check(offset)?;
        if offset < reg::DOORBELLS {
            self.shared.write(offset, value);
        } else if let Some(index) = self.shared.doorbell_index(offset) {
            if let Some(slot) = self.shared.doorbells.get(index) {
                slot.0.store(value, Ordering::Release);
            }
            if self.shared.options.stepped {
                self.shared.step(index);
            }
        }
        Ok(())
    }
}

impl Drop for SoftController {
    fn drop(&mut self) {
        match self.thread.take() {
            Some(handle) => thread::stop(&self.shared, handle),
            None => self.shared.lock_device().forget_queues(&self.shared),
        }
    }
}

impl fmt::Debug for SoftController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftController({})", self.shared.options)
    }
}

/// The right to write one doorbell of a soft controller.
pub struct SoftDoorbell {
    slot: Arc<Slot>,
    /// The device, where ringing runs it.
    stepped: Option<Arc<Shared>>,
    index: usize,
}

impl Doorbell for SoftDoorbell {
    #[inline(always)]
    fn ring(&self, value: u32) {
        // A release store: everything that the host wrote to memory before is visible to whoever
        // reads this value, which is all that a device in this process needs.
        self.slot.0.store(value, Ordering::Release);
        if let Some(device) = &self.stepped {
            device.step(self.index);
        }
    }
}

impl fmt::Debug for SoftDoorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftDoorbell({})", self.index)
    }
}
