//! Log pages (§5.14.1).

use crate::limits::PAGE_BYTES;
use crate::{Controller, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::{Admin, ErrorLogEntry, FirmwareLog, LogId, NSID_ALL};

/// OAES bit 8: Namespace Attribute Notices, and with them the Changed Namespace List.
const NAMESPACE_NOTICES: u32 = 1 << 8;

/// Entries of the error log that are read: those that one page holds.
const ERRORS_MAX: usize = PAGE_BYTES / size_of::<ErrorLogEntry>();

impl<F: Function> Controller<F> {
    /// The newest entries of the Error Information log, newest first, at most 64 (§5.14.1.1).
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn error_log(&self) -> Result<Vec<ErrorLogEntry>, NvmeError> {
        let kept = usize::from(self.identity().error_entries_z) + 1;
        let bytes = kept.min(ERRORS_MAX) * size_of::<ErrorLogEntry>();
        let page: [ErrorLogEntry; ERRORS_MAX] = self.read_page(
            "Get Log Page (Error Information)",
            Admin::get_log(LogId::ERROR, NSID_ALL, bytes as u32),
        )?;
        Ok(page.into_iter().filter(|entry| entry.count != 0).collect())
    }

    /// The Firmware Slot Information log (§5.14.1.3).
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn firmware_log(&self) -> Result<FirmwareLog, NvmeError> {
        let bytes = size_of::<FirmwareLog>() as u32;
        let entry = Admin::get_log(LogId::FIRMWARE, NSID_ALL, bytes);
        self.read_page("Get Log Page (Firmware Slot Information)", entry)
    }

    /// Namespaces that were attached, detached or changed since the list was last read (§5.14.1.4);
    /// `None` when they were more than it holds.
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] when the controller has no such list (OAES bit 8).
    pub fn changed_namespaces(&self) -> Result<Option<Vec<u32>>, NvmeError> {
        if self.identity().async_events & NAMESPACE_NOTICES == 0 {
            return Err(self.unsupported(
                "the controller has no Changed Namespace List (OAES bit 8 is 0)".into(),
            ));
        }
        let entry = Admin::get_log(LogId::CHANGED_NAMESPACES, NSID_ALL, PAGE_BYTES as u32);
        let page: [u32; PAGE_BYTES / 4] =
            self.read_page("Get Log Page (Changed Namespace List)", entry)?;
        let changed: Vec<u32> = page.into_iter().take_while(|&nsid| nsid != 0).collect();
        Ok((changed.first() != Some(&NSID_ALL)).then_some(changed))
    }
}
