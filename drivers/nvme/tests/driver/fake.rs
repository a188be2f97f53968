//! A register file with an admin queue behind it that says whatever a test has it say.
//!
//! It runs in the doorbell's ring, moves no data but Identify pages, and has I/O queues in name
//! only. Where a controller that keeps to the specification is enough, the soft one is.

use nvpoll_mem::{DmaSpace, Doorbell, MemError, Pages, RegisterError, Registers};
use nvpoll_pci::Function;
use nvpoll_spec::{
    AdminOpcode, AdminQueueAttributes, Capabilities, Cns, CommandSet, CompletionEntry,
    ControllerConfiguration, ControllerIdentity, ControllerStatus, FeatureId, LbaFormat,
    NamespaceIdentity, ShutdownStatus, Status, SubmissionEntry, Version, ZonedNamespaceIdentity,
    reg,
};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard};
use zerocopy::{FromZeros, IntoBytes};

const BAR_BYTES: usize = 0x2000;

/// What the controller is like. By default one that the driver drives.
pub struct Character {
    pub capabilities: Capabilities,
    pub version: Version,
    pub controller: ControllerIdentity,
    pub namespace: NamespaceIdentity,
    /// The page of active namespaces above a namespace.
    pub list: Box<dyn Fn(u32) -> Vec<u32> + Send>,
    /// CSI of the namespace, where CC.CSS has all command sets, and what it says of its zones.
    pub set: Option<CommandSet>,
    pub zones: ZonedNamespaceIdentity,
    /// Completion of Set Features, Number of Queues.
    pub granted: u32,
    /// Reads of CSTS until RDY follows EN, either way.
    pub ready_after: u32,
    /// RDY stays as it is until CC was written once.
    pub hung_at_first: bool,
    /// CC and CSTS as the last owner left them.
    pub left: (ControllerConfiguration, ControllerStatus),
}

impl Default for Character {
    fn default() -> Self {
        let capabilities = Capabilities::new()
            .with_mqes_z(255)
            .with_contiguous_queues(true)
            .with_timeout_500ms(1)
            .with_command_sets(1);
        let mut controller = ControllerIdentity::new_zeroed();
        (controller.namespaces, controller.transfer_log2_max) = (1, 5);
        let mut namespace = NamespaceIdentity::new_zeroed();
        namespace.blocks = 1 << 20;
        namespace.formats[0] = LbaFormat { metadata_bytes: 0, data_log2: 9, performance: 0 };
        Self {
            capabilities,
            version: Version::new().with_major(1).with_minor(4),
            controller,
            namespace,
            list: Box::new(|after| if after == 0 { vec![1] } else { vec![] }),
            set: Some(CommandSet::NVM),
            zones: ZonedNamespaceIdentity::new_zeroed(),
            granted: 3 | 3 << 16,
            ready_after: 2,
            hung_at_first: false,
            left: (ControllerConfiguration::new(), ControllerStatus::new()),
        }
    }
}

struct Device {
    character: Character,
    cc: ControllerConfiguration,
    csts: ControllerStatus,
    reads: u32,
    aqa: AdminQueueAttributes,
    asq: u64,
    acq: u64,
    head: u32,
    tail: u32,
    phase: bool,
    mapped: BTreeMap<u64, Arc<Pages>>,
}

impl Device {
    fn configure(&mut self, cc: ControllerConfiguration) {
        self.character.hung_at_first = false;
        if cc.enable() != self.cc.enable() {
            self.reads = 0;
            (self.head, self.tail, self.phase) = (0, 0, true);
            // A reset clears all but RDY, which follows.
            self.csts = ControllerStatus::new().with_ready(self.csts.ready());
        }
        if cc.enable() && cc.shutdown() != 0 {
            self.csts = self.csts.with_shutdown(ShutdownStatus::Complete);
        }
        // CC.CSS other than what the controller has: it does not come up.
        let sets = if self.character.capabilities.command_sets() >> 6 & 1 == 0 { 0 } else { 6 };
        if cc.enable() && cc.command_set() != sets {
            self.csts = self.csts.with_fatal(true);
        }
        self.cc = cc;
    }

    fn status(&mut self) -> ControllerStatus {
        let stuck = self.character.hung_at_first || self.csts.fatal() && self.cc.enable();
        if self.csts.ready() != self.cc.enable() && !stuck {
            if self.reads >= self.character.ready_after {
                self.csts = ControllerStatus::new().with_ready(self.cc.enable());
            }
            self.reads += 1;
        }
        self.csts
    }

    fn answer(&self, entry: &SubmissionEntry) -> (Status, u32, Option<Vec<u8>>) {
        let page = |page: &[u8]| (Status::SUCCESS, 0, Some(page.to_vec()));
        let Character { controller, namespace, list, granted, .. } = &self.character;
        match (AdminOpcode(entry.opcode), Cns(entry.cdw10 as u8)) {
            (AdminOpcode::IDENTIFY, Cns::CONTROLLER) => page(controller.as_bytes()),
            (AdminOpcode::IDENTIFY, Cns::NAMESPACE) => page(namespace.as_bytes()),
            (AdminOpcode::IDENTIFY, Cns::DESCRIPTORS) if self.cc.command_set() == 6 => {
                let mut list = vec![0; 4096];
                if let Some(set) = self.character.set {
                    list[..5].copy_from_slice(&[4, 1, 0, 0, set.0]);
                }
                page(&list)
            }
            (AdminOpcode::IDENTIFY, Cns::SET_NAMESPACE) if entry.cdw11 == 2 << 24 => {
                page(self.character.zones.as_bytes())
            }
            (AdminOpcode::IDENTIFY, Cns::SET_CONTROLLER) if entry.cdw11 == 2 << 24 => {
                page(&[3; 4096])
            }
            (AdminOpcode::IDENTIFY, Cns::ACTIVE_NAMESPACES) => page(list(entry.nsid).as_bytes()),
            (AdminOpcode::SET_FEATURES, Cns(id)) if id == FeatureId::NUMBER_OF_QUEUES.0 => {
                (Status::SUCCESS, *granted, None)
            }
            (
                AdminOpcode::CREATE_CQ
                | AdminOpcode::CREATE_SQ
                | AdminOpcode::DELETE_SQ
                | AdminOpcode::DELETE_CQ,
                _,
            ) => (Status::SUCCESS, 0, None),
            _ => (Status::INVALID_OPCODE, 0, None),
        }
    }

    /// The memory that is mapped at or below `iova`, and the offset in it.
    fn pages(&self, iova: u64) -> (&Pages, usize) {
        let below = self.mapped.range(..=iova).next_back();
        let (start, pages) = below.unwrap_or_else(|| panic!("{iova:#x} is not mapped"));
        let offset = (iova - start) as usize;
        assert!(offset < pages.bytes(), "{iova:#x} is not mapped");
        (pages, offset)
    }

    fn words(&self, iova: u64, index: usize, count: usize) -> &[AtomicU64] {
        let (pages, offset) = self.pages(iova);
        &pages.words()[offset / 8 + index..][..count]
    }

    fn admin_tail(&mut self, tail: u32) {
        while self.head != tail {
            let words = self.words(self.asq, self.head as usize * 8, 8);
            let entry =
                SubmissionEntry::from_words(std::array::from_fn(|n| words[n].load(Relaxed)));
            let entries = u32::from(self.aqa.sq_entries_z()) + 1;
            self.head = (self.head + 1) % entries;
            let (status, result, data) = self.answer(&entry);
            if let Some(data) = data {
                let (pages, offset) = self.pages(entry.prp1);
                pages.write(offset, &data);
            }
            let (sq_head, status_phase) = (self.head as u16, status.to_entry(self.phase));
            let completion =
                CompletionEntry { result, dw1: 0, sq_head, sq_id: 0, cid: entry.cid, status_phase };
            let words = self.words(self.acq, self.tail as usize * 2, 2);
            let [lower, upper] = completion.to_words();
            words[0].store(lower, Relaxed);
            words[1].store(upper, Release);
            let entries = u32::from(self.aqa.cq_entries_z()) + 1;
            self.tail = (self.tail + 1) % entries;
            self.phase ^= self.tail == 0;
        }
    }
}

/// The device and its address space, in one: addresses are those of this process.
pub struct Fake {
    device: Arc<FakeDevice>,
    dma: Arc<dyn DmaSpace>,
}

struct FakeDevice(Mutex<Device>);

impl FakeDevice {
    fn lock(&self) -> MutexGuard<'_, Device> {
        self.0.lock().unwrap()
    }
}

impl Fake {
    pub fn new(character: Character) -> Self {
        let (cc, csts) = character.left;
        let device = Device {
            character,
            cc,
            csts,
            reads: 0,
            aqa: AdminQueueAttributes::new(),
            asq: 0,
            acq: 0,
            head: 0,
            tail: 0,
            phase: true,
            mapped: BTreeMap::new(),
        };
        let device = Arc::new(FakeDevice(Mutex::new(device)));
        let dma: Arc<dyn DmaSpace> = device.clone();
        Self { device, dma }
    }
}

impl Function for Fake {
    type Doorbell = FakeDoorbell;

    fn registers(&self) -> &dyn Registers {
        &*self.device
    }

    fn doorbell(&self, offset: usize) -> Result<FakeDoorbell, RegisterError> {
        let error = RegisterError { offset, bytes: BAR_BYTES };
        let device = Arc::clone(&self.device);
        if offset < BAR_BYTES { Ok(FakeDoorbell { device, offset }) } else { Err(error) }
    }

    fn dma(&self) -> &Arc<dyn DmaSpace> {
        &self.dma
    }

    fn location(&self) -> &str {
        "fake"
    }

    fn transport(&self) -> String {
        "fake".to_owned()
    }
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl std::fmt::Debug for FakeDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeDevice")
    }
}

impl Registers for FakeDevice {
    fn read32(&self, offset: usize) -> Result<u32, RegisterError> {
        let mut device = self.lock();
        let capabilities = device.character.capabilities.into_bits();
        Ok(match offset {
            reg::CAP => capabilities as u32,
            0x04 => (capabilities >> 32) as u32,
            reg::VS => device.character.version.into_bits(),
            reg::CC => device.cc.into_bits(),
            reg::CSTS => device.status().into_bits(),
            _ => 0,
        })
    }

    fn write32(&self, offset: usize, value: u32) -> Result<(), RegisterError> {
        let mut device = self.lock();
        let low = |old: u64| old >> 32 << 32 | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            reg::CC => device.configure(ControllerConfiguration::from_bits(value)),
            reg::AQA => device.aqa = AdminQueueAttributes::from_bits(value),
            reg::ASQ => device.asq = low(device.asq),
            0x2c => device.asq = high(device.asq),
            reg::ACQ => device.acq = low(device.acq),
            0x34 => device.acq = high(device.acq),
            _ => {}
        }
        Ok(())
    }
}

impl DmaSpace for FakeDevice {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
        let iova = pages.as_ptr().addr() as u64;
        self.lock().mapped.insert(iova, Arc::clone(pages));
        Ok(iova)
    }

    fn unmap(&self, iova: u64, _: &Pages) -> bool {
        self.lock().mapped.remove(&iova).is_some()
    }
}

/// The admin submission queue's tail does something, the others nothing.
pub struct FakeDoorbell {
    device: Arc<FakeDevice>,
    offset: usize,
}

impl Doorbell for FakeDoorbell {
    fn ring(&self, value: u32) {
        if self.offset == reg::DOORBELLS {
            self.device.lock().admin_tail(value);
        }
    }
}
