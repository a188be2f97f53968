//! Format NVM (§5.23), to the one format that there is: everything reads as zeroes afterwards.

use crate::device::{Device, Outcome};
use crate::nvm::{NSID, Range, media_error};
use crate::shared::Shared;
use crate::zones::Zones;
use nvpoll_spec::{FormatSettings, NSID_ALL, Status, SubmissionEntry};

impl Device {
    pub(crate) fn format(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Outcome> {
        if entry.nsid != NSID && entry.nsid != NSID_ALL {
            return Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        }
        let wished = FormatSettings::from_bits(entry.cdw10);
        let metadata = &shared.options.metadata;
        let is_it = wished.format() == 0
            && wished.protection() == metadata.protection
            && (metadata.protection == 0 || wished.protection_first() == metadata.first)
            && (metadata.bytes == 0 || wished.metadata_interleaved() == metadata.interleaved);
        if !is_it {
            return Err(Outcome::invalid(Status::INVALID_FORMAT));
        }
        // 0 no secure erase, 1 of user data; there is no cryptographic one (FNA bit 2).
        if wished.secure_erase() > 1 {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        let all = Range { offset: 0, bytes: shared.options.size_bytes };
        let erased = self.media.zero(all.offset, all.bytes);
        let erased = erased.and_then(|()| self.forget_metadata(shared, &all));
        erased.map_err(|status| media_error(shared, status))?;
        self.zones = Zones::new(&shared.options);
        Ok(Outcome::DONE)
    }
}
