//! A function that watches another one: what the driver does, in order.

use nvpoll_mem::{DmaSpace, Doorbell, MemError, Pages, RegisterError, Registers};
use nvpoll_pci::Function;
use nvpoll_spec::{
    AdminOpcode, AdminQueueAttributes, Capabilities, ControllerConfiguration, ControllerStatus,
    SubmissionEntry, reg,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

/// Something that the driver did, before the device learns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Memory was mapped at this address.
    Map(u64),
    /// The mapping at this address is taken away.
    Unmap(u64),
    /// CC was written.
    Configure(ControllerConfiguration),
    /// CSTS was read, and was not what the last read found.
    Status(ControllerStatus),
    /// A submission queue's tail doorbell is rung.
    Tail(u16),
    /// A completion queue's head doorbell is rung.
    Head(u16),
    /// The device is sent this admin command.
    Admin(AdminOpcode),
    /// The function was dropped.
    Closed,
}

/// Called with each event, before the device learns of it.
type Hook = Box<dyn FnMut(Event) + Send>;

/// A submission queue as its doorbell and its creation tell of it.
#[derive(Clone, Copy)]
struct Ring {
    iova: u64,
    entries: u32,
    tail: u32,
}

#[derive(Default)]
struct Seen {
    events: Vec<Event>,
    status: Option<u32>,
    mapped: BTreeMap<u64, Arc<Pages>>,
    rings: BTreeMap<u16, Ring>,
    commands: Vec<(u16, SubmissionEntry)>,
    admin: (AdminQueueAttributes, u64),
    hook: Option<Hook>,
}

/// What a [`Spy`] saw; outlives it.
#[derive(Default)]
pub struct Log(Mutex<Seen>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    /// Has `hook` called with each event from now on.
    pub fn hook(&self, hook: impl FnMut(Event) + Send + 'static) {
        self.lock().hook = Some(Box::new(hook));
    }

    pub fn unhook(&self) {
        self.lock().hook = None;
    }

    /// Everything that happened since this was called last.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().events)
    }

    /// The commands of a queue that the device was told of since this was called last.
    pub fn take_commands(&self, queue: u16) -> Vec<SubmissionEntry> {
        let commands = &mut self.lock().commands;
        commands.extract_if(.., |(other, _)| *other == queue).map(|(_, entry)| entry).collect()
    }

    /// Addresses of what is mapped.
    pub fn mapped(&self) -> Vec<u64> {
        self.lock().mapped.keys().copied().collect()
    }

    /// The 64-bit word at `iova`, which must be mapped.
    #[track_caller]
    pub fn word(&self, iova: u64) -> u64 {
        let (pages, offset) = self.find(iova, 8);
        assert_eq!(offset % 8, 0, "{iova:#x} is no multiple of 8");
        pages.words()[offset / 8].load(Relaxed)
    }

    /// The memory in which `bytes` from `iova` on lie, all in one mapping.
    #[track_caller]
    pub fn find(&self, iova: u64, bytes: usize) -> (Arc<Pages>, usize) {
        let seen = self.lock();
        let below = seen.mapped.range(..=iova).next_back();
        let (start, pages) = below.unwrap_or_else(|| panic!("{iova:#x} is not mapped"));
        let offset = (iova - start) as usize;
        assert!(offset + bytes <= pages.bytes(), "{iova:#x} + {bytes} is not mapped");
        (Arc::clone(pages), offset)
    }

    fn event(&self, event: Event) {
        let hook = {
            let mut seen = self.lock();
            seen.events.push(event);
            seen.hook.take()
        };
        // Called without the lock: a hook may look at the log.
        if let Some(mut hook) = hook {
            hook(event);
            self.lock().hook.get_or_insert(hook);
        }
    }

    /// Reads the entries between the last tail and this one.
    fn tail(&self, queue: u16, tail: u32) {
        self.event(Event::Tail(queue));
        let Some(ring) = self.lock().rings.get(&queue).copied() else { return };
        assert!(tail < ring.entries, "queue {queue}: a tail of {tail} in {} entries", ring.entries);
        let mut at = ring.tail;
        while at != tail {
            let iova = ring.iova + u64::from(at) * 64;
            let entry = SubmissionEntry::from_words(std::array::from_fn(|n| {
                self.word(iova + 8 * n as u64)
            }));
            self.lock().commands.push((queue, entry));
            if queue == 0 {
                self.admin(&entry);
            }
            at = (at + 1) % ring.entries;
        }
        if let Some(ring) = self.lock().rings.get_mut(&queue) {
            ring.tail = tail;
        }
    }

    fn admin(&self, entry: &SubmissionEntry) {
        let (queue, entries) = (entry.cdw10 as u16, (entry.cdw10 >> 16) + 1);
        match AdminOpcode(entry.opcode) {
            AdminOpcode::CREATE_SQ => {
                let ring = Ring { iova: entry.prp1, entries, tail: 0 };
                self.lock().rings.insert(queue, ring);
            }
            AdminOpcode::DELETE_SQ => {
                self.lock().rings.remove(&queue);
            }
            _ => {}
        }
        self.event(Event::Admin(AdminOpcode(entry.opcode)));
    }

    fn write(&self, offset: usize, value: u32) {
        let mut seen = self.lock();
        match offset {
            reg::AQA => seen.admin.0 = AdminQueueAttributes::from_bits(value),
            reg::ASQ => seen.admin.1 = seen.admin.1 >> 32 << 32 | u64::from(value),
            0x2c => seen.admin.1 = seen.admin.1 & 0xffff_ffff | u64::from(value) << 32,
            reg::CC => {
                let configuration = ControllerConfiguration::from_bits(value);
                if configuration.enable() && configuration.shutdown() == 0 {
                    let (attributes, iova) = seen.admin;
                    let entries = u32::from(attributes.sq_entries_z()) + 1;
                    seen.rings = BTreeMap::from([(0, Ring { iova, entries, tail: 0 })]);
                }
                drop(seen);
                self.event(Event::Configure(configuration));
            }
            _ => {}
        }
    }

    fn read(&self, offset: usize, value: u32) {
        if offset != reg::CSTS || self.lock().status.replace(value) == Some(value) {
            return;
        }
        self.event(Event::Status(ControllerStatus::from_bits(value)));
    }
}

/// `F`, watched.
pub struct Spy<F: Function> {
    log: Arc<Log>,
    dma: Arc<dyn DmaSpace>,
    stride_bytes: usize,
    inner: F,
}

impl<F: Function> Spy<F> {
    pub fn new(inner: F) -> (Self, Arc<Log>) {
        let log = Arc::new(Log::default());
        let space = SpyDma { inner: Arc::clone(inner.dma()), log: Arc::clone(&log) };
        let capabilities = inner.registers().read64(reg::CAP).unwrap();
        let stride_bytes = Capabilities::from_bits(capabilities).doorbell_stride_bytes();
        (Self { log: Arc::clone(&log), dma: Arc::new(space), stride_bytes, inner }, log)
    }
}

impl<F: Function> Function for Spy<F> {
    type Doorbell = SpyDoorbell<F::Doorbell>;

    fn registers(&self) -> &dyn Registers {
        self
    }

    fn doorbell(&self, offset: usize) -> Result<Self::Doorbell, RegisterError> {
        let index = (offset - reg::DOORBELLS) / self.stride_bytes;
        let inner = self.inner.doorbell(offset)?;
        Ok(SpyDoorbell { inner, log: Arc::clone(&self.log), index })
    }

    fn dma(&self) -> &Arc<dyn DmaSpace> {
        &self.dma
    }

    fn location(&self) -> &str {
        self.inner.location()
    }

    fn transport(&self) -> String {
        self.inner.transport()
    }
}

impl<F: Function> Registers for Spy<F> {
    fn read32(&self, offset: usize) -> Result<u32, RegisterError> {
        let value = self.inner.registers().read32(offset)?;
        self.log.read(offset, value);
        Ok(value)
    }

    fn write32(&self, offset: usize, value: u32) -> Result<(), RegisterError> {
        self.log.write(offset, value);
        self.inner.registers().write32(offset, value)
    }
}

impl<F: Function> Drop for Spy<F> {
    fn drop(&mut self) {
        self.log.event(Event::Closed);
    }
}

impl<F: Function> fmt::Debug for Spy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A doorbell, watched.
pub struct SpyDoorbell<D> {
    inner: D,
    log: Arc<Log>,
    index: usize,
}

impl<D: Doorbell> Doorbell for SpyDoorbell<D> {
    fn ring(&self, value: u32) {
        let queue = (self.index / 2) as u16;
        if self.index.is_multiple_of(2) {
            self.log.tail(queue, value);
        } else {
            self.log.event(Event::Head(queue));
        }
        self.inner.ring(value);
    }
}

struct SpyDma {
    inner: Arc<dyn DmaSpace>,
    log: Arc<Log>,
}

impl DmaSpace for SpyDma {
    fn map(&self, pages: &Arc<Pages>) -> Result<u64, MemError> {
        let iova = self.inner.map(pages)?;
        self.log.lock().mapped.insert(iova, Arc::clone(pages));
        self.log.event(Event::Map(iova));
        Ok(iova)
    }

    fn unmap(&self, iova: u64, pages: &Pages) -> bool {
        self.log.event(Event::Unmap(iova));
        let gone = self.inner.unmap(iova, pages);
        assert!(gone, "{iova:#x} could not be unmapped");
        self.log.lock().mapped.remove(&iova);
        gone
    }
}

impl fmt::Debug for SpyDma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
