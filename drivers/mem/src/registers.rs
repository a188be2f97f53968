//! What a register file and a doorbell are, whatever stands behind them.

/// A controller's register file.
///
/// Cold: used to bring a controller up and down. Offsets are bytes from BAR 0's start.
pub trait Registers: Send + Sync {
    /// Reads 32 bits.
    ///
    /// # Errors
    /// [`RegisterError`] when `offset` lies outside or is not aligned.
    fn read32(&self, offset: usize) -> Result<u32, RegisterError>;

    /// Reads 64 bits, as two 32-bit reads where the transport has no wider one (§3.1 allows both).
    ///
    /// # Errors
    /// As [`read32`](Self::read32).
    fn read64(&self, offset: usize) -> Result<u64, RegisterError> {
        let low = self.read32(offset)?;
        Ok(u64::from(self.read32(offset + 4)?) << 32 | u64::from(low))
    }

    /// Writes 32 bits.
    ///
    /// # Errors
    /// As [`read32`](Self::read32).
    fn write32(&self, offset: usize, value: u32) -> Result<(), RegisterError>;

    /// Writes 64 bits, low half first where it takes two writes.
    ///
    /// # Errors
    /// As [`read32`](Self::read32).
    fn write64(&self, offset: usize, value: u64) -> Result<(), RegisterError> {
        self.write32(offset, value as u32)?;
        self.write32(offset + 4, (value >> 32) as u32)
    }
}

/// The right to write one doorbell register.
pub trait Doorbell {
    /// Publishes `value`. Every store to DMA memory that stands before it in program order is
    /// visible to the device first: the barrier is in here, so that none is forgotten.
    fn ring(&self, value: u32);
}

/// An access outside the register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "register access at {offset:#x} lies outside the mapped {bytes:#x} bytes or is not aligned; the device's BAR 0 is smaller than its queues need"
)]
pub struct RegisterError {
    /// Byte offset of the access.
    pub offset: usize,
    /// Bytes that are mapped.
    pub bytes: usize,
}

/// Orders earlier stores to DMA memory before the doorbell store that follows.
///
/// On x86-64 stores to write-back memory become visible in order, and before a later store to
/// uncached memory, so the compiler alone has to be held back: a release fence emits nothing. On
/// AArch64 the device is in the outer shareable domain, which `dmb ish` does not reach.
#[inline(always)]
pub fn order_stores_before_doorbell() {
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    #[allow(unsafe_code)]
    // SAFETY: a barrier has no operands and changes no state but the order of accesses.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags))
    };
}
