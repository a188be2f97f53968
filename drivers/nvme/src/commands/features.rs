//! Features that a user may want to see or set (§5.21.1). What is set lasts until the next reset.

use crate::{Controller, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::{Admin, ApstEntry, FeatureId};
use zerocopy::IntoBytes;

/// Entries of the Autonomous Power State Transition table: one for each possible power state.
const APST_ENTRIES: usize = 32;

/// Autonomous Power State Transition: whether it is on, and from each power state where to and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apst {
    /// APSTE.
    pub enabled: bool,
    /// By power state.
    pub table: [ApstEntry; APST_ENTRIES],
}

impl<F: Function> Controller<F> {
    /// Sets a feature whose value is one dword, until the next reset.
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn set_feature(&self, feature: FeatureId, value: u32) -> Result<(), NvmeError> {
        let entry = Admin::set_feature(feature, value);
        self.admin_command(&format!("Set Features ({feature})"), entry, false).map(|_| ())
    }

    /// Turns the volatile write cache on or off (§5.21.1.6).
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] when there is none (VWC bit 0).
    pub fn set_write_cache(&self, on: bool) -> Result<(), NvmeError> {
        if self.identity().write_cache & 1 == 0 {
            return Err(self.unsupported("the controller has no volatile write cache".into()));
        }
        self.set_feature(FeatureId::VOLATILE_WRITE_CACHE, on.into())
    }

    /// The power state that the controller is in (§5.21.1.2).
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn power_state(&self) -> Result<u8, NvmeError> {
        let entry = Admin::get_feature(FeatureId::POWER_MANAGEMENT, 0);
        let completion = self.admin_command("Get Features (Power Management)", entry, false)?;
        Ok(completion.result as u8 & 0x1f)
    }

    /// Sends the controller to a power state.
    ///
    /// # Errors
    /// [`NvmeError::Limit`] when there is no such state (NPSS).
    pub fn set_power_state(&self, state: u8) -> Result<(), NvmeError> {
        let last = self.identity().power_states_z;
        if state > last.min(31) {
            return Err(self.limit(format!("there is no power state {state}; the last is {last}")));
        }
        self.set_feature(FeatureId::POWER_MANAGEMENT, state.into())
    }

    /// Autonomous Power State Transition (§5.21.1.12).
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] when the controller has none (APSTA bit 0).
    pub fn apst(&self) -> Result<Apst, NvmeError> {
        self.has_apst()?;
        let name = "Get Features (Autonomous Power State Transition)";
        let entry = Admin::get_feature(FeatureId::AUTONOMOUS_POWER, 0);
        let (completion, table) = self.read_page_and_result(name, entry)?;
        Ok(Apst { enabled: completion.result & 1 != 0, table })
    }

    /// Sets it, table and all.
    ///
    /// # Errors
    /// As of [`apst`](Self::apst); and when the controller refuses the table.
    pub fn set_apst(&self, apst: &Apst) -> Result<(), NvmeError> {
        self.has_apst()?;
        let entry = Admin::set_feature(FeatureId::AUTONOMOUS_POWER, apst.enabled.into());
        let name = "Set Features (Autonomous Power State Transition)";
        self.write_page(name, entry, apst.table.as_bytes())
    }

    fn has_apst(&self) -> Result<(), NvmeError> {
        if self.identity().autonomous_power & 1 != 0 {
            return Ok(());
        }
        Err(self.unsupported(
            "the controller changes its power state only when told to (APSTA bit 0 is 0)".into(),
        ))
    }
}
