//! Registers and doorbells in a mapped BAR.

#![allow(unsafe_code)]

use crate::{Doorbell, RegisterError, Registers, order_stores_before_doorbell};
use memmap2::MmapRaw;
use std::ptr::NonNull;
use std::sync::Arc;
use volatile::VolatilePtr;

/// A BAR that is mapped into this process.
///
/// Built from a raw mapping, never a slice: a register may change under a reader and must be read
/// exactly as often as the program says. From a BAR that the device has gone from under, all ones
/// are read, as from a device that is not there; the process does not end.
#[derive(Debug)]
pub struct MappedRegisters {
    // Dropped before the mapping that it watches.
    #[cfg(target_os = "linux")]
    _watch: crate::vanished::Watch,
    map: MmapRaw,
}

impl MappedRegisters {
    /// Takes a mapping of a BAR from its first byte.
    pub fn new(map: MmapRaw) -> Arc<Self> {
        Arc::new(Self {
            #[cfg(target_os = "linux")]
            _watch: crate::vanished::Watch::new(map.as_ptr(), map.len()),
            map,
        })
    }

    /// The doorbell at `offset`; it keeps the mapping alive.
    ///
    /// # Errors
    /// [`RegisterError`] when the doorbell is not within the mapping.
    pub fn doorbell(self: &Arc<Self>, offset: usize) -> Result<MappedDoorbell, RegisterError> {
        let register = self.locate::<u32>(offset)?;
        Ok(MappedDoorbell { register, _map: Arc::clone(self) })
    }

    fn locate<T>(&self, offset: usize) -> Result<NonNull<T>, RegisterError> {
        let error = RegisterError { offset, bytes: self.map.len() };
        let end = offset.checked_add(size_of::<T>()).ok_or(error)?;
        if end > self.map.len() || !offset.is_multiple_of(size_of::<T>()) {
            return Err(error);
        }
        // SAFETY: within the mapping, as was just checked.
        let address = unsafe { self.map.as_mut_ptr().add(offset) };
        NonNull::new(address.cast()).ok_or(error)
    }
}

impl Registers for MappedRegisters {
    fn read32(&self, offset: usize) -> Result<u32, RegisterError> {
        let register = self.locate::<u32>(offset)?;
        // SAFETY: mapped, aligned, and accessed by volatile operations alone.
        Ok(unsafe { VolatilePtr::new(register) }.read())
    }

    fn write32(&self, offset: usize, value: u32) -> Result<(), RegisterError> {
        let register = self.locate::<u32>(offset)?;
        // A write may start the controller on memory that was prepared before it.
        order_stores_before_doorbell();
        // SAFETY: mapped, aligned, and accessed by volatile operations alone.
        unsafe { VolatilePtr::new(register) }.write(value);
        Ok(())
    }
}

/// A doorbell in a mapped BAR: one uncached store.
#[derive(Debug)]
pub struct MappedDoorbell {
    register: NonNull<u32>,
    _map: Arc<MappedRegisters>,
}

// SAFETY: the register is device memory that any thread may write; the mapping lives in the `Arc`.
unsafe impl Send for MappedDoorbell {}

impl Doorbell for MappedDoorbell {
    #[inline(always)]
    fn ring(&self, value: u32) {
        order_stores_before_doorbell();
        // SAFETY: located within the mapping, which `_map` keeps, and aligned.
        unsafe { VolatilePtr::new(self.register) }.write(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapOptions;

    #[test]
    fn accesses_are_checked() {
        let map = MmapOptions::new().len(0x2000).map_anon().unwrap();
        let registers = MappedRegisters::new(map.into());
        registers.write64(0x28, 0x1122_3344_5566_7788).unwrap();
        assert_eq!(registers.read32(0x2c), Ok(0x1122_3344));
        assert_eq!(registers.read64(0x28), Ok(0x1122_3344_5566_7788));
        let error = RegisterError { offset: 0x1ffe, bytes: 0x2000 };
        assert_eq!(registers.read32(0x1ffe), Err(error));
        assert!(registers.read32(0x2000).is_err());
        assert!(registers.write32(usize::MAX, 0).is_err());
        assert!(registers.doorbell(0x2000).is_err());
        registers.doorbell(0x1004).unwrap().ring(7);
        assert_eq!(registers.read32(0x1004), Ok(7));
    }
}
