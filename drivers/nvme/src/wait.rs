//! Waiting for a controller: always with a deadline, and with an eye on what it says meanwhile.

use crate::NvmeError;
use nvpoll_mem::Registers;
use nvpoll_spec::{ControllerStatus, reg};
use std::time::{Duration, Instant};

/// Pause between two looks at a register: short beside any controller's own delays.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);

/// What all ones in a register mean: nothing drives the bus.
const ALL_ONES: u32 = u32::MAX;

/// Reads CSTS until `done`, for at most `bound`.
///
/// # Errors
/// [`NvmeError::Timeout`], or at once [`NvmeError::Gone`] and, where `fatal_ends` says that a
/// fatal controller will not get there, [`NvmeError::Fatal`].
pub(crate) fn for_status(
    registers: &dyn Registers,
    location: &str,
    what: &'static str,
    bound: Duration,
    fatal_ends: bool,
    done: impl Fn(ControllerStatus) -> bool,
) -> Result<(), NvmeError> {
    let start = Instant::now();
    loop {
        // The clock is read before the register, so that a thread which was kept from running
        // looks once more before it gives up.
        let waited = start.elapsed();
        let status = check(registers, location, what, fatal_ends)?;
        if done(status) {
            return Ok(());
        }
        if waited > bound {
            let (location, csts) = (location.to_owned(), status.into_bits());
            return Err(NvmeError::Timeout { location, what, waited, csts });
        }
        std::thread::sleep(PAUSE);
    }
}

/// One look at CSTS.
///
/// # Errors
/// [`NvmeError::Gone`]; [`NvmeError::Fatal`] where `fatal_ends`.
pub(crate) fn check(
    registers: &dyn Registers,
    location: &str,
    what: &'static str,
    fatal_ends: bool,
) -> Result<ControllerStatus, NvmeError> {
    let location = || location.to_owned();
    let csts = registers
        .read32(reg::CSTS)
        .map_err(|source| NvmeError::Register { location: location(), source })?;
    let status = ControllerStatus::from_bits(csts);
    match csts {
        ALL_ONES => Err(NvmeError::Gone { location: location(), what }),
        _ if fatal_ends && status.fatal() => {
            Err(NvmeError::Fatal { location: location(), what, csts })
        }
        _ => Ok(status),
    }
}
