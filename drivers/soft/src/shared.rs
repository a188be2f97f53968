//! What the host's side and the device's side of a controller share.

use crate::device::Device;
use crate::fault::{FaultHooks, mode};
use crate::iommu::{SoftIommu, lock};
use crate::options::SoftOptions;
use nvpoll_mem::{PAGE_BYTES, RegisterError};
use nvpoll_spec::{
    AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus, Version, reg,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::Thread;

/// In a doorbell of a queue that does not exist, until somebody writes to it.
pub(crate) const UNWRITTEN: u32 = u32::MAX;
/// Tries for the device's lock without a system call, before one is made.
const SPINS: u32 = 20_000;

/// One doorbell register, on a cache line of its own: each has one writer, and the device reads.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot(pub(crate) AtomicU32);

/// What the host wrote to the register file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) cc: ControllerConfiguration,
    pub(crate) aqa: AdminQueueAttributes,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
    pub(crate) interrupt_mask: u32,
    /// Falling edges of CC.EN. Each is a reset, even when EN rises again before the device looks.
    pub(crate) resets: u64,
}

/// What a controller has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftCounters {
    /// Admin commands carried out.
    pub admin: u64,
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Those of them with FUA.
    pub forced_writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Write Zeroes that succeeded.
    pub write_zeroes: u64,
    /// Compares that found no difference.
    pub compares: u64,
    /// Verifies that succeeded.
    pub verifies: u64,
    /// Dataset Management commands that deallocated.
    pub trims: u64,
    /// Copies that succeeded.
    pub copies: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written by writes.
    pub written_bytes: u64,
    /// Bytes deallocated by Dataset Management.
    pub trimmed_bytes: u64,
    /// Commands that failed, admin and I/O.
    pub failed: u64,
    /// Reads, writes and flushes that the backing failed.
    pub media_errors: u64,
    /// Doorbell writes that were refused.
    pub invalid_doorbells: u64,
    /// Accesses outside of what is mapped.
    pub dma_faults: u64,
    /// Falling edges of CC.EN that the device acted upon.
    pub resets: u64,
}

/// A counter with one writer, the device: no locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    #[inline(always)]
    pub(crate) fn add(&self, value: u64) {
        self.0.store(self.get().wrapping_add(value), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) admin: Tally,
    pub(crate) reads: Tally,
    pub(crate) writes: Tally,
    pub(crate) forced_writes: Tally,
    pub(crate) flushes: Tally,
    pub(crate) write_zeroes: Tally,
    pub(crate) compares: Tally,
    pub(crate) verifies: Tally,
    pub(crate) trims: Tally,
    pub(crate) copies: Tally,
    pub(crate) read_bytes: Tally,
    pub(crate) written_bytes: Tally,
    pub(crate) trimmed_bytes: Tally,
    pub(crate) failed: Tally,
    pub(crate) media_errors: Tally,
    pub(crate) invalid_doorbells: Tally,
    pub(crate) resets: Tally,
}

/// Everything that both sides see. Doorbells hold it too, so it may outlive its controller.
pub(crate) struct Shared {
    pub(crate) options: SoftOptions,
    pub(crate) capabilities: Capabilities,
    pub(crate) iommu: Arc<SoftIommu>,
    pub(crate) faults: FaultHooks,
    pub(crate) tallies: Tallies,
    pub(crate) doorbells: Vec<Arc<Slot>>,
    /// CSTS, written by the device.
    pub(crate) status: AtomicU32,
    /// Rises with every write to CC.
    pub(crate) version: AtomicU64,
    written: Mutex<Written>,
    /// The device itself; in threaded mode its thread holds the lock all along.
    pub(crate) device: Mutex<Device>,
    /// To be woken when a register is written.
    pub(crate) thread: OnceLock<Thread>,
    pub(crate) stop: AtomicBool,
}

impl Shared {
    pub(crate) fn new(options: SoftOptions, device: Device) -> Self {
        let capabilities = Capabilities::new()
            .with_mqes_z((options.mqes - 1).try_into().unwrap_or(u16::MAX))
            .with_contiguous_queues(true)
            .with_timeout_500ms(options.timeout_500ms)
            .with_doorbell_stride(options.stride)
            .with_command_sets(if options.zoned.is_zoned() { 1 << 6 } else { 1 })
            .with_page_size_min(options.page_log2_min)
            .with_page_size_max(options.page_log2_max);
        let slots = 2 * (usize::from(options.queues) + 1);
        Self {
            options,
            capabilities,
            iommu: Arc::new(SoftIommu::new()),
            faults: FaultHooks::default(),
            tallies: Tallies::default(),
            doorbells: (0..slots).map(|_| Arc::new(Slot(AtomicU32::new(UNWRITTEN)))).collect(),
            status: AtomicU32::new(0),
            version: AtomicU64::new(0),
            written: Mutex::default(),
            device: Mutex::new(device),
            thread: OnceLock::new(),
            stop: AtomicBool::new(false),
        }
    }

    pub(crate) fn written(&self) -> Written {
        *lock(&self.written)
    }

    pub(crate) fn set_status(&self, status: ControllerStatus) {
        self.status.store(status.into_bits(), Ordering::Release);
    }

    /// Bytes of BAR 0: up to the last doorbell, in whole pages.
    pub(crate) fn bar_bytes(&self) -> usize {
        let stride = self.capabilities.doorbell_stride_bytes();
        (reg::DOORBELLS + self.doorbells.len() * stride).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) fn check(&self, offset: usize) -> Result<(), RegisterError> {
        let bytes = self.bar_bytes();
        let good = offset.is_multiple_of(4) && offset < bytes;
        if good { Ok(()) } else { Err(RegisterError { offset, bytes }) }
    }

    /// Which doorbell stands at `offset`; `None` between and below doorbells.
    pub(crate) fn doorbell_index(&self, offset: usize) -> Option<usize> {
        let stride = self.capabilities.doorbell_stride_bytes();
        let offset = offset.checked_sub(reg::DOORBELLS)?;
        let index = offset / stride;
        (offset.is_multiple_of(stride) && index < self.doorbells.len()).then_some(index)
    }

    /// What a read of the 32-bit register at `offset` returns (§3.1); reserved ones are zero.
    pub(crate) fn read(&self, offset: usize) -> u32 {
        if self.faults.is(mode::VANISHED) {
            return u32::MAX;
        }
        let halves = |value: u64, start: usize| (value >> ((offset - start) * 8)) as u32;
        let written = self.written();
        match offset {
            reg::CAP | 0x04 => halves(self.capabilities.into_bits(), reg::CAP),
            reg::VS => Version::new().with_major(1).with_minor(4).into_bits(),
            reg::INTMS | reg::INTMC => written.interrupt_mask,
            reg::CC => written.cc.into_bits(),
            reg::CSTS => {
                let status = self.status.load(Ordering::Acquire);
                let status = ControllerStatus::from_bits(status);
                status.with_fatal(status.fatal() || self.faults.is(mode::FATAL)).into_bits()
            }
            reg::AQA => written.aqa.into_bits(),
            reg::ASQ | 0x2c => halves(written.asq, reg::ASQ),
            reg::ACQ | 0x34 => halves(written.acq, reg::ACQ),
            _ => 0,
        }
    }

    /// A write to a register below the doorbells. Writes to read-only and reserved ones do
    /// nothing. The admin queues' registers keep their value while CC.EN is set: what a write does
    /// then is undefined (§3.1.8 to §3.1.10), and the device uses what it found at the rising edge.
    pub(crate) fn write(&self, offset: usize, value: u32) {
        if self.faults.is(mode::VANISHED) {
            return;
        }
        let mut written = lock(&self.written);
        let disabled = !written.cc.enable();
        match offset {
            reg::INTMS => written.interrupt_mask |= value,
            reg::INTMC => written.interrupt_mask &= !value,
            reg::CC => {
                let cc = ControllerConfiguration::from_bits(value & 0x00ff_fff1);
                written.resets += u64::from(written.cc.enable() && !cc.enable());
                written.cc = cc;
                self.version.fetch_add(1, Ordering::Release);
            }
            reg::AQA if disabled => {
                written.aqa = AdminQueueAttributes::from_bits(value & 0x0fff_0fff);
            }
            reg::ASQ if disabled => written.asq = low(written.asq, value),
            0x2c if disabled => written.asq = high(written.asq, value),
            reg::ACQ if disabled => written.acq = low(written.acq, value),
            0x34 if disabled => written.acq = high(written.acq, value),
            _ => {}
        }
        drop(written);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The device, for whoever steps it. Contended only when several threads ring a stepped
    /// device; then it is waited for without a system call first.
    pub(crate) fn lock_device(&self) -> MutexGuard<'_, Device> {
        for _ in 0..SPINS {
            match self.device.try_lock() {
                Ok(device) => return device,
                Err(TryLockError::Poisoned(error)) => return error.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        lock(&self.device)
    }

    /// What a stepped device does when doorbell `index` is rung: all of its work, in the caller's
    /// thread. A function of its own, so that a profiler tells the device's cost from the driver's.
    #[inline(never)]
    pub(crate) fn step(&self, index: usize) {
        self.lock_device().rung(self, index);
    }
}

/// The low half of a queue's base address; bits 11:0 are reserved.
fn low(old: u64, value: u32) -> u64 {
    old & !0xffff_ffff | u64::from(value & !0xfff)
}

fn high(old: u64, value: u32) -> u64 {
    old & 0xffff_ffff | u64::from(value) << 32
}
