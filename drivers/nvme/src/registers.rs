//! The registers that bring a controller up and down: waits with bounds, and what CAP allows.

use crate::limits::{PAGE_BYTES, PAGE_BYTES_MAX};
use crate::quirks::{self, Quirks};
use crate::{NvmeError, wait};
use nvpoll_mem::{RegisterError, Registers};
use nvpoll_pci::Function;
use nvpoll_spec::{Capabilities, ControllerConfiguration, ControllerStatus, ShutdownStatus, reg};
use std::time::Duration;

/// CAP.CSS bit 6: the controller has I/O command sets beside the NVM Command Set, or may have (2.0, §3.1.3.1).
const SEVERAL_SETS: u8 = 1 << 6;
/// CC.CSS for all of them.
const ALL_SETS: u8 = 0b110;

/// CC.CSS for a controller (2.0, §3.1.3.5): all command sets where it has several, since a namespace of
/// another than the NVM Command Set is not there otherwise.
pub(crate) fn command_sets(capabilities: Capabilities) -> u8 {
    if capabilities.command_sets() & SEVERAL_SETS != 0 { ALL_SETS } else { 0 }
}

/// Register access that knows whose registers they are.
pub(crate) struct Access<'a, F: Function>(pub &'a F);

impl<F: Function> Access<'_, F> {
    fn registers(&self) -> &dyn Registers {
        self.0.registers()
    }

    fn located(&self) -> impl Fn(RegisterError) -> NvmeError {
        |source| NvmeError::Register { location: self.0.location().into(), source }
    }

    pub fn not_driven(&self, what: &str) -> NvmeError {
        NvmeError::Unsupported { location: self.0.location().into(), reason: what.to_owned() }
    }

    pub fn read32(&self, offset: usize) -> Result<u32, NvmeError> {
        self.registers().read32(offset).map_err(self.located())
    }

    pub fn write32(&self, offset: usize, value: u32) -> Result<(), NvmeError> {
        self.registers().write32(offset, value).map_err(self.located())
    }

    pub fn write64(&self, offset: usize, value: u64) -> Result<(), NvmeError> {
        self.registers().write64(offset, value).map_err(self.located())
    }

    pub fn wait(
        &self,
        what: &'static str,
        bound: Duration,
        fatal_ends: bool,
        done: impl Fn(ControllerStatus) -> bool,
    ) -> Result<(), NvmeError> {
        wait::for_status(self.registers(), self.0.location(), what, bound, fatal_ends, done)
    }

    /// Reads CAP and refuses what this driver does not drive.
    pub fn capabilities(&self) -> Result<Capabilities, NvmeError> {
        let location = || self.0.location().to_owned();
        let bits = self.registers().read64(reg::CAP).map_err(self.located())?;
        if bits == u64::MAX {
            return Err(NvmeError::Gone { location: location(), what: "CAP" });
        }
        let capabilities = Capabilities::from_bits(bits);
        let unsupported = |reason| Err(NvmeError::Unsupported { location: location(), reason });
        if capabilities.command_sets() & (1 | SEVERAL_SETS) == 0 {
            return unsupported(format!(
                "CAP is {bits:#018x}: the controller has no NVM command set (CSS bit 0), nor several (CSS bit 6)"
            ));
        }
        let (page_bytes_min, _) = capabilities.page_bytes();
        if page_bytes_min > PAGE_BYTES_MAX as u64 {
            return unsupported(format!(
                "the controller needs memory pages of {page_bytes_min} bytes (CAP.MPSMIN); this driver uses at most {PAGE_BYTES_MAX}"
            ));
        }
        if capabilities.queue_entries_max() < 2 {
            return unsupported("CAP.MQES is 0: the controller has no room for a queue".into());
        }
        Ok(capabilities)
    }

    pub fn check(&self, what: &'static str) -> Result<ControllerStatus, NvmeError> {
        wait::check(self.registers(), self.0.location(), what, true)
    }

    /// Waits for a controller that somebody else enabled and that is still becoming ready: it may
    /// be disabled only then (§3.1.5). One that does not get there is disabled all the same.
    pub fn settle(&self, bound: Duration) -> Result<(), NvmeError> {
        if !ControllerConfiguration::from_bits(self.read32(reg::CC)?).enable() {
            return Ok(());
        }
        let settled = self.wait("CSTS.RDY before disabling", bound, false, |status| {
            status.ready() || status.fatal() || status.shutdown() != ShutdownStatus::Normal
        });
        match settled {
            Err(NvmeError::Timeout { .. }) => Ok(()),
            other => other,
        }
    }

    /// Clears CC.EN and waits until the controller is not ready, as §7.6.1 step 2 asks.
    pub fn disable(&self, bound: Duration, quirks: Quirks) -> Result<(), NvmeError> {
        // All ones would be written back to a device that has just returned.
        wait::check(self.registers(), self.0.location(), "disabling", false)?;
        let configuration = ControllerConfiguration::from_bits(self.read32(reg::CC)?);
        if configuration.enable() {
            let off = configuration.with_enable(false).with_shutdown(0);
            self.write32(reg::CC, off.into_bits())?;
            if quirks.contains(Quirks::DELAY_BEFORE_READY) {
                std::thread::sleep(quirks::BEFORE_READY);
            }
        }
        self.wait("CSTS.RDY clear after disabling", bound, false, |status| !status.ready())
    }
}

/// The memory page in bytes that CC.MPS names (§3.1.5): `wanted` where CAP.MPSMIN and MPSMAX allow
/// it, otherwise the nearest that they do.
pub(crate) fn page_bytes(capabilities: Capabilities, wanted: usize) -> usize {
    let (least, most) = capabilities.page_bytes();
    let wanted = wanted.clamp(PAGE_BYTES, PAGE_BYTES_MAX) as u64;
    // A controller that names them the wrong way round means its least.
    wanted.min(most).max(least) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_page_is_used_where_the_controller_allows_it() {
        for (least, most, wanted, used) in [
            (0, 0, 4096, 4096),
            (0, 0, 65_536, 4096),
            (0, 4, 16_384, 16_384),
            (0, 15, 4096, 4096),
            (0, 15, 65_536, 65_536),
            (0, 15, 1 << 21, 65_536),
            (1, 4, 4096, 8192),
            (4, 4, 4096, 65_536),
            (2, 0, 4096, 16_384),
            (0, 4, 512, 4096),
        ] {
            let capabilities =
                Capabilities::new().with_page_size_min(least).with_page_size_max(most);
            assert_eq!(page_bytes(capabilities, wanted), used, "{least} to {most}, {wanted}");
        }
    }
}
