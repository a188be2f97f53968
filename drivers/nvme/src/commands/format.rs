//! Format NVM (§5.23): another LBA format, other protection information. What is on it is lost.

use crate::limits::FORMAT_WAIT;
use crate::{Controller, Namespace, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::{Admin, FormatSettings, NamespaceIdentity};
use std::fmt;
use std::str::FromStr;

/// FNA (§5.15.2.2): formatting one namespace formats all; erasing one erases all; cryptographic erase is
/// there.
const FORMATS_ALL: u8 = 1;
const ERASES_ALL: u8 = 1 << 1;
const CRYPTO_ERASE: u8 = 1 << 2;

/// SES: what is done with the data that was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecureErase {
    /// Whatever the drive does by itself; a later reader may find parts of it.
    #[default]
    None,
    /// All user data is erased.
    UserData,
    /// Its key is, with which it was encrypted.
    Cryptographic,
}

impl SecureErase {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::None, Self::UserData, Self::Cryptographic];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::UserData => "user-data",
            Self::Cryptographic => "cryptographic",
        }
    }
}

impl fmt::Display for SecureErase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SecureErase {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|erase| erase.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no secure erase is called \"{name}\"; there are {names}")
        })
    }
}

/// How a namespace is to be formatted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatWish {
    /// LBAF: index of the LBA format.
    pub format: u8,
    /// MSET: metadata, where the format has any, stands behind each block's data in one buffer.
    pub metadata_interleaved: bool,
    /// PI: type of protection information; 0 is none.
    pub protection: u8,
    /// PIL: it is the metadata's first bytes.
    pub protection_first: bool,
    /// SES.
    pub secure_erase: SecureErase,
}

impl FormatWish {
    /// Why `page` says that the namespace cannot be formatted so.
    fn unfit(&self, page: &NamespaceIdentity) -> Option<String> {
        let last = page.formats_z;
        let there = page.formats.get(usize::from(self.format));
        let Some(format) = there.filter(|format| self.format <= last && format.data_log2 >= 9)
        else {
            return Some(format!(
                "there is no LBA format {}; `nvpoll identify` lists those that there are, up to {last}",
                self.format
            ));
        };
        if format.metadata_bytes == 0 {
            let wished = self.protection != 0 || self.metadata_interleaved;
            return wished.then(|| {
                format!(
                    "LBA format {} has no metadata, so neither protection information nor a place for it",
                    self.format
                )
            });
        }
        // MC: bit 0 interleaved, bit 1 separate.
        let place = if self.metadata_interleaved { 1 } else { 1 << 1 };
        if page.metadata & place == 0 {
            let how = if self.metadata_interleaved { "behind each block" } else { "separate" };
            return Some(format!("its metadata cannot be {how} (MC is {:#04x})", page.metadata));
        }
        // DPC: types 1 to 3 in bits 2:0, as the first bytes in bit 3, as the last in bit 4.
        let kind = self.protection.checked_sub(1)?;
        let place = if self.protection_first { 1 << 3 } else { 1 << 4 };
        let is_offered = kind < 3 && page.protection_capabilities >> kind & 1 != 0;
        (!is_offered || page.protection_capabilities & place == 0).then(|| {
            format!(
                "protection information of type {} in the {} bytes of the metadata is not offered (DPC is {:#04x})",
                self.protection,
                if self.protection_first { "first" } else { "last" },
                page.protection_capabilities
            )
        })
    }
}

impl<F: Function> Controller<F> {
    /// Formats namespace `nsid`, waits until that is done, and reads what it is then. **All that is on it
    /// is lost.**
    ///
    /// Nothing is sent while a queue pair exists, where the controller does not offer what is wished, or
    /// where it would format or erase other namespaces as well (FNA).
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] and [`NvmeError::Limit`] for these; when the controller refuses, does not
    /// end within [`FORMAT_WAIT`], or has another format afterwards.
    pub fn format(&self, nsid: u32, wish: &FormatWish) -> Result<Namespace, NvmeError> {
        let identity = self.identity();
        if !identity.optional_admin_commands().format() {
            return Err(self
                .unsupported("the controller has no Format NVM command (OACS bit 1 is 0)".into()));
        }
        if self.has_queues() {
            return Err(self.limit("Format NVM was not sent: a queue pair is open".into()));
        }
        if wish.secure_erase == SecureErase::Cryptographic
            && identity.format_attributes & CRYPTO_ERASE == 0
        {
            return Err(self
                .unsupported("the controller has no cryptographic erase (FNA bit 2 is 0)".into()));
        }
        self.check_others(nsid, wish)?;
        let page = self.namespace_page(nsid)?;
        if page.blocks == 0 {
            return Err(self.limit(format!(
                "there is no active namespace {nsid}; `nvpoll identify` lists them"
            )));
        }
        if let Some(reason) = wish.unfit(&page) {
            return Err(self.limit(format!("namespace {nsid} was not formatted: {reason}")));
        }
        let settings = FormatSettings::new()
            .with_format(wish.format)
            .with_metadata_interleaved(wish.metadata_interleaved)
            .with_protection(wish.protection)
            .with_protection_first(wish.protection_first)
            .with_secure_erase(wish.secure_erase as u8);
        self.admin_command_within("Format NVM", Admin::format(nsid, settings), FORMAT_WAIT)?;
        let page = self.namespace_page(nsid)?;
        let is = (page.format_index(), page.protection & 7);
        if is != (Some(usize::from(wish.format)), wish.protection) {
            return Err(self.unsupported(format!(
                "the controller said that Format NVM succeeded, and namespace {nsid} now has FLBAS {:#04x} and DPS {:#04x}",
                page.format, page.protection
            )));
        }
        self.namespace(nsid)
    }

    /// Refuses to format one namespace where that would reach others.
    fn check_others(&self, nsid: u32, wish: &FormatWish) -> Result<(), NvmeError> {
        let attributes = self.identity().format_attributes;
        let erases = wish.secure_erase != SecureErase::None && attributes & ERASES_ALL != 0;
        if attributes & FORMATS_ALL == 0 && !erases {
            return Ok(());
        }
        let others: Vec<String> = self
            .active_namespaces()?
            .into_iter()
            .filter(|other| *other != nsid)
            .map(|other| other.to_string())
            .collect();
        match others.as_slice() {
            [] => Ok(()),
            others => Err(self.limit(format!(
                "namespace {nsid} was not formatted: this controller does that to all of its namespaces at once (FNA is {attributes:#04x}), and there are others: {}",
                others.join(", ")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_spec::LbaFormat;
    use zerocopy::FromZeros;

    fn page() -> NamespaceIdentity {
        let mut page = NamespaceIdentity::new_zeroed();
        page.formats_z = 2;
        page.formats[0] = LbaFormat { metadata_bytes: 0, data_log2: 9, performance: 0 };
        page.formats[1] = LbaFormat { metadata_bytes: 8, data_log2: 12, performance: 0 };
        // The third is not available; separate metadata alone; types 1 and 3, last bytes alone.
        (page.metadata, page.protection_capabilities) = (1 << 1, 0b1_0101);
        page
    }

    #[test]
    fn what_a_namespace_does_not_offer_is_not_sent() {
        let plain = FormatWish::default();
        let wish = |format, protection| FormatWish { format, protection, ..plain };
        for (wish, word) in [
            (plain, None),
            (wish(1, 0), None),
            (wish(1, 1), None),
            (wish(1, 3), None),
            (wish(2, 0), Some("no LBA format 2")),
            (wish(3, 0), Some("no LBA format 3")),
            (wish(0, 1), Some("has no metadata")),
            (wish(1, 2), Some("type 2 in the last bytes")),
            (wish(1, 9), Some("type 9")),
            (FormatWish { metadata_interleaved: true, ..wish(1, 0) }, Some("behind each block")),
            (FormatWish { protection_first: true, ..wish(1, 1) }, Some("in the first bytes")),
        ] {
            let reason = wish.unfit(&page());
            match word {
                None => assert_eq!(reason, None, "{wish:?}"),
                Some(word) => assert!(reason.is_some_and(|text| text.contains(word)), "{wish:?}"),
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for erase in SecureErase::ALL {
            assert_eq!(erase.to_string().parse(), Ok(erase));
        }
        assert!("crypto".parse::<SecureErase>().unwrap_err().contains("cryptographic"));
        let bits = SecureErase::ALL.map(|erase| erase as u8);
        assert_eq!(bits, [0, 1, 2], "SES");
    }
}
