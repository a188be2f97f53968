//! The admin commands (§5).

use crate::device::{Device, Outcome};
use crate::events::{ERROR_ENTRY_BYTES, ERRORS_KEPT, ErrorLog, Event, Events};
use crate::features::{APST_WORDS, BEHAVIOR_WORDS, Features, TEMPERATURE_KELVIN};
use crate::identify::{self, FIRMWARE, Page};
use crate::nvm::NSID;
use crate::options::SoftOptions;
use crate::shared::Shared;
use nvpoll_spec::{
    AdminOpcode, Cns, FeatureId, IDENTIFY_BYTES, LogId, NSID_ALL, SmartLog, Status, SubmissionEntry,
};
use std::time::Instant;
use zerocopy::{FromZeros, IntoBytes};

/// Command flags: SGL or fused; neither is an admin command's here.
const FLAGS_NONE: u8 = 0;
/// PC in CDW11 of queue creation: the queue is contiguous.
const CONTIGUOUS: u32 = 1;
/// Bytes of the firmware slot log.
const FIRMWARE_BYTES: usize = 512;

/// What the admin commands work on.
pub(crate) struct Admin {
    pub(crate) events: Events,
    pub(crate) errors: ErrorLog,
    pub(crate) features: Features,
    started: Instant,
    page: Box<Page>,
}

impl Admin {
    pub(crate) fn new(options: &SoftOptions) -> Self {
        Self {
            events: Events::default(),
            errors: ErrorLog::new(),
            features: Features::new(options.queues),
            started: Instant::now(),
            page: Box::new([0; IDENTIFY_BYTES / 8]),
        }
    }

    /// What a Controller Reset takes away; the error log stays.
    pub(crate) fn reset(&mut self, options: &SoftOptions) {
        self.events = Events::default();
        self.features = Features::new(options.queues);
    }
}

impl Device {
    /// Carries out an admin command; `None` when it is held (Asynchronous Event Request).
    #[cold]
    pub(crate) fn admin_command(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Option<Outcome> {
        shared.tallies.admin.add(1);
        if entry.flags != FLAGS_NONE {
            return Some(Outcome::invalid(Status::INVALID_FIELD));
        }
        let outcome = match AdminOpcode(entry.opcode) {
            AdminOpcode::IDENTIFY => self.identify(shared, entry),
            AdminOpcode::CREATE_CQ => self.create_cq(shared, entry),
            AdminOpcode::CREATE_SQ => self.create_sq(shared, entry),
            AdminOpcode::DELETE_CQ => self.delete_cq(shared, entry),
            AdminOpcode::DELETE_SQ => self.delete_sq(shared, entry),
            AdminOpcode::GET_FEATURES => self.get_feature(shared, entry),
            AdminOpcode::SET_FEATURES => self.set_feature(shared, entry),
            AdminOpcode::GET_LOG_PAGE => self.get_log(shared, entry),
            AdminOpcode::FORMAT => self.format(shared, entry),
            AdminOpcode::ABORT => Ok(self.abort_command(shared, entry)),
            AdminOpcode::DOORBELL_BUFFER_CONFIG if shared.options.shadow => {
                self.doorbell_buffer_config(shared, entry)
            }
            AdminOpcode::ASYNC_EVENT => {
                if self.admin.events.hold(entry.cid) {
                    self.deliver_events(shared);
                    return None;
                }
                Err(Outcome::invalid(Status::ASYNC_EVENT_LIMIT))
            }
            _ => Err(Outcome::invalid(Status::INVALID_OPCODE)),
        };
        Some(outcome.unwrap_or_else(|failure| failure))
    }

    /// Copies the page that was prepared to where the command wants it, `bytes` of it from byte
    /// `from` on; zeroes follow where the page ends.
    fn answer(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
        from: usize,
        bytes: u64,
    ) -> Result<Outcome, Outcome> {
        if shared.options.transfer_bytes_max().is_some_and(|most| bytes > most) {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        self.reach(shared, entry, bytes, true)?;
        let page = self.admin.page.get(from / 8..).unwrap_or(&[]);
        let dwords = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        let held = dwords.min(2 * page.len());
        self.segments.fill_host(&self.view, page, held);
        self.segments.zero_host(&self.view, dwords - held);
        Ok(Outcome::DONE)
    }

    fn identify(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let page = &mut *self.admin.page;
        let options = &shared.options;
        let invalid_namespace = Err(Outcome::invalid(Status::INVALID_NAMESPACE));
        match Cns(entry.cdw10 as u8) {
            Cns::CONTROLLER => identify::controller(options, page),
            Cns::NAMESPACE if entry.nsid == NSID => identify::namespace(options, page),
            Cns::DESCRIPTORS if entry.nsid == NSID => identify::descriptors(options, page),
            Cns::SET_NAMESPACE if options.zoned.is_zoned() && entry.cdw11 >> 24 == 2 => {
                if entry.nsid != NSID {
                    return invalid_namespace;
                }
                identify::zoned_namespace(options, page);
            }
            // ZASL 0: as MDTS.
            Cns::SET_CONTROLLER if options.zoned.is_zoned() && entry.cdw11 >> 24 == 2 => {
                page.fill(0)
            }
            // CSI 0 (CDW11): the NVM Command Set's.
            Cns::NVM_NAMESPACE if entry.cdw11 >> 24 != 0 => {
                return Err(Outcome::invalid(Status::INVALID_FIELD));
            }
            Cns::NVM_NAMESPACE if entry.nsid == NSID => identify::nvm_namespace(options, page),
            Cns::NAMESPACE | Cns::NVM_NAMESPACE | Cns::DESCRIPTORS => return invalid_namespace,
            // FFFFFFFEh and FFFFFFFFh are no namespace that a list could go on from (§5.15.2.3).
            Cns::ACTIVE_NAMESPACES if entry.nsid >= NSID_ALL - 1 => return invalid_namespace,
            Cns::ACTIVE_NAMESPACES => identify::active_namespaces(entry.nsid, page),
            _ => return Err(Outcome::invalid(Status::INVALID_FIELD)),
        }
        self.answer(shared, entry, 0, IDENTIFY_BYTES as u64)
    }

    fn exists<T>(queues: &[Option<T>], qid: u16) -> bool {
        queues.get(usize::from(qid)).is_some_and(Option::is_some)
    }

    /// What both kinds of queue creation check; returns the entries.
    fn check_queue(
        &self,
        shared: &Shared,
        entry: &SubmissionEntry,
        entry_size_is_set: bool,
    ) -> Result<u32, Outcome> {
        let entries_z = entry.cdw10 >> 16;
        if entries_z == 0 || entries_z >= shared.options.mqes || !entry_size_is_set {
            return Err(Outcome::invalid(Status::INVALID_QUEUE_SIZE));
        }
        // CAP.CQR says that queues have to be contiguous.
        if entry.cdw11 & CONTIGUOUS == 0 {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        if !entry.prp1.is_multiple_of(self.page_bytes) {
            return Err(Outcome::invalid(Status::INVALID_PRP_OFFSET));
        }
        Ok(entries_z + 1)
    }

    /// Create I/O Completion Queue (§5.3).
    fn create_cq(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let qid = entry.cdw10 as u16;
        let (_, granted) = self.admin.features.granted();
        if qid == 0 || qid > granted || Self::exists(&self.cqs, qid) {
            return Err(Outcome::invalid(Status::INVALID_QID));
        }
        let size_is_set = shared.written().cc.cq_entry_log2() == 4;
        let entries = self.check_queue(shared, entry, size_is_set)?;
        if entry.cdw11 >> 16 > shared.options.queues.into() {
            return Err(Outcome::invalid(Status::INVALID_VECTOR));
        }
        self.add_cq(shared, qid, entry.prp1, entries);
        Ok(Outcome::DONE)
    }

    /// Create I/O Submission Queue (§5.4).
    fn create_sq(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let qid = entry.cdw10 as u16;
        let cq = (entry.cdw11 >> 16) as u16;
        let (granted, granted_cqs) = self.admin.features.granted();
        if qid == 0 || qid > granted || Self::exists(&self.sqs, qid) {
            return Err(Outcome::invalid(Status::INVALID_QID));
        }
        if cq == 0 || cq > granted_cqs {
            return Err(Outcome::invalid(Status::INVALID_QID));
        }
        if !Self::exists(&self.cqs, cq) {
            return Err(Outcome::invalid(Status::INVALID_CQ));
        }
        let size_is_set = shared.written().cc.sq_entry_log2() == 6;
        let entries = self.check_queue(shared, entry, size_is_set)?;
        self.add_sq(shared, qid, entry.prp1, entries, cq);
        Ok(Outcome::DONE)
    }

    /// Delete I/O Completion Queue (§5.5): not while a submission queue completes to it.
    fn delete_cq(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let qid = entry.cdw10 as u16;
        match self.cq(qid).filter(|_| qid != 0) {
            None => Err(Outcome::invalid(Status::INVALID_QID)),
            Some(cq) if cq.users > 0 => Err(Outcome::invalid(Status::INVALID_QUEUE_DELETION)),
            Some(_) => {
                self.remove_cq(shared, qid);
                Ok(Outcome::DONE)
            }
        }
    }

    /// Delete I/O Submission Queue (§5.6).
    fn delete_sq(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let qid = entry.cdw10 as u16;
        if qid == 0 || !Self::exists(&self.sqs, qid) {
            return Err(Outcome::invalid(Status::INVALID_QID));
        }
        self.remove_sq(shared, qid);
        Ok(Outcome::DONE)
    }

    /// Doorbell Buffer Config (§5.7): PRP1 and PRP2 name a page each.
    fn doorbell_buffer_config(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Outcome> {
        let pages = (entry.prp1, entry.prp2);
        let is_page = |page: u64| page != 0 && page.is_multiple_of(self.page_bytes);
        if !is_page(pages.0) || !is_page(pages.1) {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        self.use_shadow_doorbells(shared, pages);
        Ok(Outcome::DONE)
    }

    /// Get Features (§5.13). Select is not supported (ONCS bit 4), so only the current value is.
    fn get_feature(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Outcome> {
        if entry.cdw10 >> 8 & 7 != 0 {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        let feature = FeatureId(entry.cdw10 as u8);
        if feature == FeatureId::AUTONOMOUS_POWER {
            let table = self.admin.features.apst_table();
            let page = self.admin.page.iter_mut();
            page.zip(table).for_each(|(to, from)| *to = *from);
            self.answer(shared, entry, 0, 8 * APST_WORDS as u64)?;
        }
        if feature == FeatureId::HOST_BEHAVIOR {
            self.admin.page.fill(0);
            let page = self.admin.page.iter_mut();
            page.zip(self.admin.features.behavior).for_each(|(to, from)| *to = from);
            return self.answer(shared, entry, 0, 8 * BEHAVIOR_WORDS as u64);
        }
        Ok(self.admin.features.get(feature, entry.cdw11))
    }

    fn set_feature(
        &mut self,
        shared: &Shared,
        entry: &SubmissionEntry,
    ) -> Result<Outcome, Outcome> {
        if entry.cdw10 & 1 << 31 != 0 {
            return Err(Outcome::invalid(Status::FEATURE_NOT_SAVEABLE));
        }
        if FeatureId(entry.cdw10 as u8) == FeatureId::AUTONOMOUS_POWER {
            let mut table = [0; APST_WORDS];
            self.reach(shared, entry, 8 * APST_WORDS as u64, false)?;
            self.segments.take_host(&self.view, &mut table, 2 * APST_WORDS);
            return Ok(self.admin.features.set_apst(entry.cdw11, &table));
        }
        if FeatureId(entry.cdw10 as u8) == FeatureId::HOST_BEHAVIOR {
            let mut words = [0; BEHAVIOR_WORDS];
            self.reach(shared, entry, 8 * BEHAVIOR_WORDS as u64, false)?;
            self.segments.take_host(&self.view, &mut words, 2 * BEHAVIOR_WORDS);
            self.admin.features.behavior = words;
            return Ok(Outcome::DONE);
        }
        let has_queues = self.sqs.iter().skip(1).any(Option::is_some)
            || self.cqs.iter().skip(1).any(Option::is_some);
        let features = &mut self.admin.features;
        let outcome = features.set(FeatureId(entry.cdw10 as u8), entry.cdw11, has_queues);
        if features.reports_temperature() && features.is_too_hot_or_cold() {
            self.raise(shared, Event::Temperature);
        }
        Ok(outcome)
    }

    /// Abort (§5.1): DW0 bit 0 says that the command was not aborted.
    fn abort_command(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Outcome {
        let (sq, cid) = (entry.cdw10 as u16, (entry.cdw10 >> 16) as u16);
        let aborted = if sq == 0 && self.admin.events.take(cid) {
            self.complete_aborted_request(shared, cid);
            true
        } else {
            self.abort(shared, sq, cid)
        };
        Outcome::with(u32::from(!aborted))
    }

    /// Get Log Page (§5.14), with lengths and offsets of the extended kind.
    fn get_log(&mut self, shared: &Shared, entry: &SubmissionEntry) -> Result<Outcome, Outcome> {
        let dwords_z = u64::from(entry.cdw10 >> 16) | u64::from(entry.cdw11 & 0xffff) << 16;
        let offset = u64::from(entry.cdw12) | u64::from(entry.cdw13) << 32;
        let log = LogId(entry.cdw10 as u8);
        let page = &mut *self.admin.page;
        page.fill(0);
        let length = match log {
            LogId::ERROR => {
                let entries = page.chunks_exact_mut(ERROR_ENTRY_BYTES / 8).take(ERRORS_KEPT);
                for (index, words) in entries.enumerate() {
                    words.copy_from_slice(&self.admin.errors.words(index));
                }
                ERRORS_KEPT * ERROR_ENTRY_BYTES
            }
            // Per-namespace SMART data is not there (LPA bit 0).
            LogId::SMART if entry.nsid != NSID_ALL && entry.nsid != 0 => {
                return Err(Outcome::invalid(Status::INVALID_FIELD));
            }
            LogId::SMART => {
                let smart = self.smart(shared);
                let page = self.admin.page.as_mut_bytes();
                page.iter_mut().zip(smart.as_bytes()).for_each(|(to, from)| *to = *from);
                size_of::<SmartLog>()
            }
            LogId::FIRMWARE => {
                // Slot 1 is active; its revision stands at byte 8.
                let words = [1, u64::from_le_bytes(*FIRMWARE)];
                page.iter_mut().zip(words).for_each(|(to, from)| *to = from);
                FIRMWARE_BYTES
            }
            _ => return Err(Outcome::invalid(Status::INVALID_LOG)),
        };
        if offset > length as u64 || !offset.is_multiple_of(4) {
            return Err(Outcome::invalid(Status::INVALID_FIELD));
        }
        let from = (offset / 8 * 8) as usize;
        if !offset.is_multiple_of(8) {
            // Shift by half a word, so that what is asked for starts at a word's start.
            shift_down(&mut self.admin.page);
        }
        self.answer(shared, entry, from, (dwords_z + 1) * 4)?;
        // Retain Asynchronous Event in CDW10 bit 15.
        if entry.cdw10 & 1 << 15 == 0 {
            self.admin.events.log_was_read(log);
            self.deliver_events(shared);
        }
        Ok(Outcome::DONE)
    }

    fn smart(&self, shared: &Shared) -> SmartLog {
        let tallies = &shared.tallies;
        let counter = |value: u64| [value, 0];
        // Thousands of 512-byte units, rounded up (Figure 194).
        let units = |bytes: u64| counter(bytes.div_ceil(512 * 1000));
        let mut log = SmartLog::new_zeroed();
        log.critical_warning = u8::from(self.admin.features.is_too_hot_or_cold()) << 1;
        log.temperature_kelvin = TEMPERATURE_KELVIN.to_le_bytes();
        (log.available_spare_pct, log.spare_threshold_pct) = (100, 10);
        log.data_units_read = units(tallies.read_bytes.get());
        log.data_units_written = units(tallies.written_bytes.get());
        log.host_reads = counter(tallies.reads.get());
        log.host_writes = counter(tallies.writes.get());
        log.power_cycles = counter(1);
        log.power_on_hours = counter(self.admin.started.elapsed().as_secs() / 3600);
        log.media_errors = counter(tallies.media_errors.get());
        log.error_log_entries = counter(self.admin.errors.count());
        log
    }
}

/// Moves every dword of the page one place down.
fn shift_down(page: &mut Page) {
    let mut above = 0;
    for word in page.iter_mut().rev() {
        let next = *word;
        *word = next >> 32 | above << 32;
        above = next;
    }
}
