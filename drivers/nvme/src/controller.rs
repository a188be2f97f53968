//! A controller from power-up to shutdown: everything that is not I/O.

use crate::admin::AdminQueue;
use crate::limits::{
    ADMIN_ENTRIES, ADMIN_WAIT, INTERRUPTS_MAX, NAMESPACES_MAX, PAGE_BYTES, QUEUES_ASKED,
    READY_WAIT_MIN, SHUTDOWN_WAIT, SHUTDOWN_WAIT_MAX,
};
use crate::quirks::{self, KnownQuirk, Quirks};
use crate::registers::{self, Access};
use crate::shadow::{ShadowPages, ShadowPair};
use crate::{Namespace, NvmeError, wait};
use nvpoll_mem::DmaBuf;
use nvpoll_pci::{Function, Interrupt};
use nvpoll_spec::{
    Admin, AdminQueueAttributes, Capabilities, Cns, CommandSet, CompletionEntry,
    ControllerConfiguration, ControllerIdentity, FeatureId, IDENTIFY_BYTES, LogId, NSID_ALL,
    NamespaceIdentity, ShutdownStatus, SmartLog, SubmissionEntry, Version, queue_sizes, reg,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros};

/// QPRIO in CDW11 of Create I/O Submission Queue (§5.4, Figure 153).
const SQ_PRIORITY_MEDIUM: u32 = 2 << 1;

/// How a controller is brought up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// I/O queue pairs to ask for; the controller may grant fewer.
    pub queues: u16,
    /// Longest wait for an admin command.
    pub admin_wait: Duration,
    /// Completion queues interrupt, so that a thread can sleep on them.
    pub interrupts: bool,
    /// What the controller needs beyond the specification, instead of what is known of it.
    pub quirks: Option<Quirks>,
    /// Memory page in bytes (CC.MPS) instead of the host's; the nearest that the controller allows.
    pub page_bytes: Option<usize>,
    /// I/O queues have shadow doorbells.
    pub shadow_doorbells: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: QUEUES_ASKED,
            admin_wait: ADMIN_WAIT,
            interrupts: false,
            quirks: None,
            page_bytes: None,
            shadow_doorbells: false,
        }
    }
}

/// One controller: enabled from [`open`](Self::open) until the last owner drops it.
///
/// Shared by the threads that own its queue pairs; everything here is cold. A queue pair keeps its
/// controller alive, so that memory is unmapped only after the device was disabled: what a pair
/// could not take back from the device (its queue deletion failed) is *retired* here, and retired
/// memory outlives the disable. When the disable itself fails, all memory stays mapped until the
/// function was closed, which resets the device or takes its memory away.
pub struct Controller<F: Function> {
    capabilities: Capabilities,
    /// Bytes of a memory page, as CC.MPS says.
    page_bytes: usize,
    identity: Box<ControllerIdentity>,
    quirks: Quirks,
    queues: u16,
    used: Mutex<BTreeSet<u16>>,
    // Dropped in this order, after `Drop::drop` disabled the device: memory, then the function.
    admin: Mutex<AdminQueue<F>>,
    retired: Mutex<Vec<DmaBuf>>,
    shadow: Option<ShadowPages>,
    /// By queue identifier, the admin queue's unused one first; empty where all queues are polled.
    interrupts: Vec<Interrupt>,
    function: F,
    /// What a device that could not be disabled may still reach; filled by `Drop::drop` alone.
    reachable: Vec<DmaBuf>,
}

/// Queues that were not created, and whether the device certainly does not know of their memory.
pub(crate) struct NotCreated {
    pub error: NvmeError,
    pub device_let_go: bool,
}

impl From<NvmeError> for NotCreated {
    /// An error from before the device was told of anything.
    fn from(error: NvmeError) -> Self {
        Self { error, device_let_go: true }
    }
}

impl<F: Function> Controller<F> {
    /// Brings the controller up by the steps of §7.6.1 and reads who it is.
    ///
    /// # Errors
    /// When the controller does not follow within the bounds it names itself, or is one that this
    /// driver does not drive.
    pub fn open(function: F, options: Options) -> Result<Arc<Self>, NvmeError> {
        let known = KnownQuirk::of(function.ids());
        let quirks = options.quirks.or(known.map(|known| known.quirks)).unwrap_or_default();
        let registers = Access(&function);
        if quirks.contains(Quirks::ENTRIES_OF_128) {
            return Err(registers.not_driven("its submission queue entries have 128 bytes"));
        }
        if quirks.contains(Quirks::DELAY_BEFORE_INIT) {
            std::thread::sleep(quirks::BEFORE_INIT);
        }
        let capabilities = registers.capabilities()?;
        let ready_bound = Duration::from_millis(capabilities.timeout_ms()).max(READY_WAIT_MIN);
        registers.settle(ready_bound)?;
        registers.disable(ready_bound, quirks)?;
        let stride_bytes = capabilities.doorbell_stride_bytes();
        let wanted = options.page_bytes.unwrap_or_else(nvpoll_mem::kernel_page_bytes);
        let page_bytes = registers::page_bytes(capabilities, wanted);
        let admin = AdminQueue::new(&function, stride_bytes, page_bytes, options.admin_wait)?;
        // From here on a failure must disable the device before the queues' memory goes, which is
        // what dropping a `Controller` does.
        let mut controller = Self {
            capabilities,
            page_bytes,
            identity: Box::new(ControllerIdentity::new_zeroed()),
            quirks,
            queues: 0,
            used: Mutex::default(),
            admin: Mutex::new(admin),
            retired: Mutex::default(),
            shadow: None,
            interrupts: Vec::new(),
            function,
            reachable: Vec::new(),
        };
        controller.enable(ready_bound)?;
        controller.identity = Box::new(controller.identify(Cns::CONTROLLER, 0)?);
        controller.queues = controller.ask_for_queues(options.queues)?;
        if options.interrupts {
            controller.enable_interrupts()?;
        }
        if options.shadow_doorbells {
            controller.use_shadow_doorbells()?;
        }
        Ok(Arc::new(controller))
    }

    /// The transport below.
    pub fn function(&self) -> &F {
        &self.function
    }

    /// CAP.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Bytes of a memory page, 4 KiB to 64 KiB, as CC.MPS was set: PRPs name such pages, and queues and
    /// buffers begin at one.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// VS, as the register says.
    ///
    /// # Errors
    /// When the register lies outside the BAR.
    pub fn version(&self) -> Result<Version, NvmeError> {
        Ok(Version::from_bits(Access(&self.function).read32(reg::VS)?))
    }

    /// The Identify Controller page.
    pub fn identity(&self) -> &ControllerIdentity {
        &self.identity
    }

    /// What the controller needs beyond the specification.
    pub fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// I/O queue pairs that the controller granted.
    pub fn queues_max(&self) -> u16 {
        self.queues
    }

    /// Largest data transfer of one command in bytes: MDTS and the driver's own limit.
    pub fn command_bytes_max(&self) -> u32 {
        let own = match self.quirks.contains(Quirks::NO_PRP_LISTS) {
            // Two pages are named in the entry itself.
            true => 2 * self.page_bytes as u32,
            false => crate::limits::COMMAND_BYTES_MAX,
        };
        let (page_bytes_min, _) = self.capabilities.page_bytes();
        match self.identity.transfer_bytes_max(page_bytes_min) {
            Some(bytes) => u32::try_from(bytes).unwrap_or(own).min(own),
            None => own,
        }
    }

    /// NSIDs of the active namespaces, ascending.
    ///
    /// # Errors
    /// When the controller refuses, or its list does not ascend.
    pub fn active_namespaces(&self) -> Result<Vec<u32>, NvmeError> {
        // Before 1.1 there is no list: the valid identifiers are 1 to NN (revision 1.0, §5.11).
        if self.version()? < Version::new().with_major(1).with_minor(1) {
            let count = self.identity.namespaces.min(NAMESPACES_MAX as u32);
            return Ok((1..=count).collect());
        }
        let mut all: Vec<u32> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let page: [u32; IDENTIFY_BYTES / 4] = self.identify(Cns::ACTIVE_NAMESPACES, after)?;
            for nsid in page.into_iter().take_while(|&nsid| nsid != 0) {
                if all.last().is_some_and(|&last| nsid <= last) || all.len() == NAMESPACES_MAX {
                    return Err(self.unsupported(format!(
                        "the active namespace list names {nsid} after {} entries; it does not ascend, or is longer than {NAMESPACES_MAX}",
                        all.len()
                    )));
                }
                all.push(nsid);
            }
            // A page that is not full ends the list, whatever stands behind the first zero.
            if page.contains(&0) {
                return Ok(all);
            }
        }
    }

    /// Identify Namespace, whole.
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn namespace_page(&self, nsid: u32) -> Result<Box<NamespaceIdentity>, NvmeError> {
        Ok(Box::new(self.identify(Cns::NAMESPACE, nsid)?))
    }

    /// A namespace as I/O needs it.
    ///
    /// # Errors
    /// When the controller refuses, or the driver does not drive the namespace's format.
    pub fn namespace(&self, nsid: u32) -> Result<Namespace, NvmeError> {
        // The broadcast identifier names every namespace, so none (§6.1.2).
        let last = self.identity.namespaces.min(NSID_ALL - 1);
        if nsid == 0 || nsid > last {
            return Err(self.limit(format!(
                "there is no namespace {nsid}; valid are 1 to {last}, see `nvpoll identify`"
            )));
        }
        let set = self.command_set(nsid)?;
        if set != CommandSet::NVM && set != CommandSet::ZONED {
            return Err(self.unsupported(format!(
                "namespace {nsid} has the {set} command set; namespaces of blocks are driven (NVM, Zoned Namespace)"
            )));
        }
        let page = self.namespace_page(nsid)?;
        let namespace = Namespace::new(self.location(), nsid, &page)?;
        let zones =
            (set == CommandSet::ZONED).then(|| self.zones(&namespace, &page)).transpose()?;
        self.with_guard(Namespace { zones, ..namespace }, &page)
    }

    /// The SMART / Health log of the whole controller.
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn smart(&self) -> Result<SmartLog, NvmeError> {
        let bytes = size_of::<SmartLog>();
        self.read_page("Get Log Page (SMART)", Admin::get_log(LogId::SMART, NSID_ALL, bytes as u32))
    }

    /// The current value of a feature (completion dword 0), or `None` when the controller does not
    /// have it.
    ///
    /// # Errors
    /// When the controller does not answer.
    pub fn feature(&self, feature: FeatureId) -> Result<Option<u32>, NvmeError> {
        let entry = Admin::get_feature(feature, 0);
        match self.admin_command(&format!("Get Features ({feature})"), entry, false) {
            Ok(completion) => Ok(Some(completion.result)),
            Err(NvmeError::Command { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One look at the controller's health.
    ///
    /// # Errors
    /// [`NvmeError::Gone`] or [`NvmeError::Fatal`].
    pub fn check(&self) -> Result<(), NvmeError> {
        wait::check(self.function.registers(), self.location(), "I/O", true).map(|_| ())
    }

    /// Where the controller is, for messages.
    pub fn location(&self) -> &str {
        self.function.location()
    }

    pub(crate) fn limit(&self, reason: String) -> NvmeError {
        NvmeError::Limit { location: self.location().into(), reason }
    }

    pub(crate) fn unsupported(&self, reason: String) -> NvmeError {
        NvmeError::Unsupported { location: self.location().into(), reason }
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Result<DmaBuf, NvmeError> {
        DmaBuf::aligned(self.function.dma(), bytes, self.page_bytes)
            .map_err(|source| NvmeError::Memory { location: self.location().into(), source })
    }

    pub(crate) fn doorbell(&self, offset: usize) -> Result<F::Doorbell, NvmeError> {
        let located = |source| NvmeError::Register { location: self.location().into(), source };
        self.function.doorbell(offset).map_err(located)
    }

    /// Takes the lowest free queue identifier.
    pub(crate) fn take_queue_id(&self) -> Result<u16, NvmeError> {
        let mut used = lock(&self.used);
        let free = (1..=self.queues).find(|qid| !used.contains(qid)).ok_or_else(|| {
            let queues = self.queues;
            self.limit(format!("all {queues} I/O queue pairs that the controller granted are in use; lower --numjobs"))
        })?;
        used.insert(free);
        Ok(free)
    }

    pub(crate) fn free_queue_id(&self, qid: u16) {
        lock(&self.used).remove(&qid);
    }

    /// Creates the completion queue, then the submission queue that posts to it (§7.6.1 steps 9
    /// and 10); `sq` and `cq` are entries and address.
    pub(crate) fn create_queues(
        &self,
        qid: u16,
        sq: (u32, u64),
        cq: (u32, u64),
    ) -> Result<(), NotCreated> {
        // Only a refusal says that the device has no such queue.
        let refused = |error: &NvmeError| matches!(error, NvmeError::Command { .. });
        let zero_based = |entries: u32| (entries - 1) as u16;
        let entry = match self.interrupt(qid) {
            Some(_) => Admin::create_cq_interrupting(qid, zero_based(cq.0), cq.1, qid),
            None => Admin::create_cq(qid, zero_based(cq.0), cq.1),
        };
        self.admin_command(&format!("Create I/O Completion Queue {qid}"), entry, false)
            .map_err(|error| NotCreated { device_let_go: refused(&error), error })?;
        let mut entry = Admin::create_sq(qid, zero_based(sq.0), sq.1, qid);
        if self.quirks.contains(Quirks::MEDIUM_PRIORITY) {
            entry.cdw11 |= SQ_PRIORITY_MEDIUM;
        }
        let created =
            self.admin_command(&format!("Create I/O Submission Queue {qid}"), entry, false);
        if self.quirks.contains(Quirks::DELAY_AFTER_QUEUE) {
            std::thread::sleep(quirks::AFTER_QUEUE);
        }
        created
            .map_err(|error| {
                let device_let_go = refused(&error) && self.delete_cq(qid).is_ok();
                NotCreated { error, device_let_go }
            })
            .map(|_| ())
    }

    /// Deletes a queue pair: afterwards the device has let go of its memory (§5.6).
    pub(crate) fn delete_queues(&self, qid: u16) -> Result<(), NvmeError> {
        let entry = Admin::delete_sq(qid);
        self.admin_command(&format!("Delete I/O Submission Queue {qid}"), entry, false)?;
        self.delete_cq(qid)
    }

    fn delete_cq(&self, qid: u16) -> Result<(), NvmeError> {
        let entry = Admin::delete_cq(qid);
        self.admin_command(&format!("Delete I/O Completion Queue {qid}"), entry, false).map(|_| ())
    }

    /// Keeps memory until the device is disabled.
    pub(crate) fn retire<'a>(&self, memory: impl IntoIterator<Item = &'a DmaBuf>) {
        lock(&self.retired).extend(memory.into_iter().cloned());
    }

    /// Abort (§5.1): whether the command was aborted (dword 0, bit 0 is 0).
    pub(crate) fn abort(&self, qid: u16, cid: u16) -> Result<bool, NvmeError> {
        let completion = self.admin_command("Abort", Admin::abort(qid, cid), false)?;
        Ok(completion.result & 1 == 0)
    }

    pub(crate) fn timeout(&self, what: &'static str, waited: Duration) -> NvmeError {
        let csts = Access(&self.function).read32(reg::CSTS).unwrap_or(u32::MAX);
        NvmeError::Timeout { location: self.location().into(), what, waited, csts }
    }

    pub(crate) fn lock_admin(&self) -> MutexGuard<'_, AdminQueue<F>> {
        lock(&self.admin)
    }

    pub(crate) fn admin_command(
        &self,
        command: &str,
        entry: SubmissionEntry,
        moves_data: bool,
    ) -> Result<CompletionEntry, NvmeError> {
        lock(&self.admin).submit(&self.function, command, entry, moves_data)
    }

    /// The same without data, with a bound on the wait of its own.
    pub(crate) fn admin_command_within(
        &self,
        command: &str,
        entry: SubmissionEntry,
        wait_max: Duration,
    ) -> Result<CompletionEntry, NvmeError> {
        lock(&self.admin).submit_within(&self.function, command, entry, false, wait_max)
    }

    /// Whether a queue pair exists, or the device may still know of one.
    pub(crate) fn has_queues(&self) -> bool {
        !lock(&self.used).is_empty()
    }

    /// Sends a command that fills the data page and reads it as `T`.
    pub(crate) fn read_page<T: FromBytes>(
        &self,
        command: &str,
        entry: SubmissionEntry,
    ) -> Result<T, NvmeError> {
        self.read_page_and_result(command, entry).map(|(_, page)| page)
    }

    /// The same with the completion, for a command that answers by both.
    pub(crate) fn read_page_and_result<T: FromBytes>(
        &self,
        command: &str,
        entry: SubmissionEntry,
    ) -> Result<(CompletionEntry, T), NvmeError> {
        let mut page = [0; PAGE_BYTES];
        let mut admin = lock(&self.admin);
        admin.clear_data();
        let completion = admin.submit(&self.function, command, entry, true)?;
        admin.read_data(&mut page);
        let (value, _) = T::read_from_prefix(&page)
            .map_err(|_| self.limit(format!("{command} returns more than one page")))?;
        Ok((completion, value))
    }

    /// Sends a command whose data is `page`, at most a page of it.
    pub(crate) fn write_page(
        &self,
        command: &str,
        entry: SubmissionEntry,
        page: &[u8],
    ) -> Result<(), NvmeError> {
        let mut admin = lock(&self.admin);
        admin.clear_data();
        admin.write_data(page);
        admin.submit(&self.function, command, entry, true).map(|_| ())
    }

    fn identify<T: FromBytes>(&self, cns: Cns, nsid: u32) -> Result<T, NvmeError> {
        self.read_page(&format!("Identify ({cns}, NSID {nsid})"), Admin::identify(cns, nsid))
    }

    /// Steps 3 to 6 of §7.6.1: admin queues, configuration, enable, ready.
    fn enable(&self, bound: Duration) -> Result<(), NvmeError> {
        let access = Access(&self.function);
        let entries_z = ADMIN_ENTRIES - 1;
        let attributes =
            AdminQueueAttributes::new().with_sq_entries_z(entries_z).with_cq_entries_z(entries_z);
        let (asq, acq) = lock(&self.admin).addresses();
        access.write32(reg::AQA, attributes.into_bits())?;
        access.write64(reg::ASQ, asq)?;
        access.write64(reg::ACQ, acq)?;
        let configuration = ControllerConfiguration::new()
            .with_sq_entry_log2(6)
            .with_cq_entry_log2(4)
            .with_command_set(registers::command_sets(self.capabilities))
            .with_page_size((self.page_bytes / PAGE_BYTES).trailing_zeros() as u8)
            .with_enable(true);
        access.write32(reg::CC, configuration.into_bits())?;
        access.wait("CSTS.RDY after enabling", bound, true, |status| status.ready())
    }

    /// Set Features, Number of Queues (§5.21.1.7); both numbers are zero-based, asked and granted.
    fn ask_for_queues(&self, asked: u16) -> Result<u16, NvmeError> {
        let asked_z = asked.clamp(1, u16::MAX - 1) - 1;
        let entry = Admin::set_feature(FeatureId::NUMBER_OF_QUEUES, queue_sizes(asked_z, asked_z));
        let completion = self.admin_command("Set Features (Number of Queues)", entry, false)?;
        let (sqs_z, cqs_z) = (completion.result as u16, (completion.result >> 16) as u16);
        Ok(sqs_z.min(cqs_z).min(asked_z) + 1)
    }

    /// Names the pages of the shadow doorbells, which hold for all I/O queues from here on (§7.13).
    fn use_shadow_doorbells(&mut self) -> Result<(), NvmeError> {
        if !self.identity.optional_admin_commands().doorbell_buffer() {
            return Err(self.limit(
                "the controller has no shadow doorbells (OACS bit 8 is 0), as most that are no software; leave out shadow-doorbells".to_owned(),
            ));
        }
        let stride_bytes = self.capabilities.doorbell_stride_bytes();
        let pages = ShadowPages::new(stride_bytes, || self.buffer(self.page_bytes))?;
        let places = pages.queues_max();
        if places == 0 {
            return Err(self.limit(format!(
                "doorbells are {stride_bytes} bytes apart (CAP.DSTRD), so that a page of shadow doorbells has no place for an I/O queue; leave out shadow-doorbells"
            )));
        }
        self.queues = self.queues.min(u16::try_from(places).unwrap_or(u16::MAX));
        let (values, events) = pages.addresses();
        // Before the command: whatever comes of it, the device may know the pages.
        self.shadow = Some(pages);
        let entry = Admin::doorbell_buffer_config(values, events);
        self.admin_command("Doorbell Buffer Config", entry, false).map(|_| ())
    }

    /// Whether I/O queues have shadow doorbells.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.shadow.is_some()
    }

    /// The shadow doorbells of a queue pair that is about to be created, where there are any.
    pub(crate) fn shadow_pair(&self, qid: u16) -> Option<ShadowPair> {
        self.shadow.as_ref()?.pair(qid)
    }

    /// One vector a queue; no more queues are used than there are vectors.
    fn enable_interrupts(&mut self) -> Result<(), NvmeError> {
        let most = self.function.interrupts_max();
        let count = most.min(self.queues.saturating_add(1)).min(INTERRUPTS_MAX);
        // Where there is none, the transport says so.
        if most == 1 {
            return Err(self.limit(
                "the function has one interrupt vector, and the admin queue has it; use --wait poll or hybrid".to_owned(),
            ));
        }
        self.interrupts = self.function.enable_interrupts(count)?;
        self.queues = self.queues.min(count.saturating_sub(1));
        Ok(())
    }

    /// The interrupt of a queue pair, where queues have one.
    pub(crate) fn interrupt(&self, qid: u16) -> Option<&Interrupt> {
        self.interrupts.get(usize::from(qid))
    }

    /// Normal shutdown (§7.6.2), where the controller is in a state to follow one.
    fn notify_shutdown(&self) -> Result<(), NvmeError> {
        let registers = Access(&self.function);
        let status = registers.check("shutdown")?;
        if !status.ready() {
            return Ok(());
        }
        let named = Duration::from_micros(u64::from(self.identity.shutdown_us));
        let bound = named.clamp(SHUTDOWN_WAIT, SHUTDOWN_WAIT_MAX);
        let configuration = ControllerConfiguration::from_bits(registers.read32(reg::CC)?);
        registers.write32(reg::CC, configuration.with_shutdown(1).into_bits())?;
        registers.wait("CSTS.SHST complete after shutdown", bound, true, |status| {
            status.shutdown() == ShutdownStatus::Complete
        })
    }

    fn disable(&self) -> Result<(), NvmeError> {
        let bound = Duration::from_millis(self.capabilities.timeout_ms()).max(READY_WAIT_MIN);
        Access(&self.function).disable(bound, self.quirks)
    }
}

impl<F: Function> Drop for Controller<F> {
    fn drop(&mut self) {
        if let Err(error) = self.notify_shutdown() {
            tracing::warn!("shutting down: {error}");
        }
        // A controller that does not complete its shutdown is still to be disabled.
        if let Err(error) = self.disable() {
            tracing::warn!("shutting down: {error}");
            self.reachable.append(&mut lock(&self.retired));
            self.reachable.extend(lock(&self.admin).memory().cloned());
            let shadow = self.shadow.iter().flat_map(ShadowPages::memory);
            self.reachable.extend(shadow.cloned());
        }
    }
}

impl<F: Function> std::fmt::Debug for Controller<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Controller({}, {} queue pairs)", self.location(), self.queues)
    }
}

/// A poisoned lock here means that another thread panicked between two admin commands; the data is
/// plain and still valid, and the drive has to be shut down in any case.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
