//! The userspace driver as an engine, on each of its transports.
//!
//! One generic engine, [`Userspace`], and one line of types a transport: what differs between them
//! is how the function is opened and what the engine is called.

use crate::drive_events::DriveEvents;
use crate::waiting::{Awaited, Waiting};
use crate::zoned;
use crate::{
    Caution, CautionKind, Condition, Engine, EngineError, EngineInfo, EngineOption, Geometry,
    IoStatus, OpenOptions, Operation, OperationKind, Queue, QueueShape, Tag, Target,
    TransportOptions, Wait, WaitMode,
};
use nvpoll_nvme::{
    Controller, DoorbellMode, Io, Namespace, NvmeError, Options, PairOptions, ProtectionMode,
    ProtocolError, QueuePair, WriteMode,
};
use nvpoll_pci::Function;
use nvpoll_pci::soft::SoftFunction;
#[cfg(target_os = "linux")]
use nvpoll_pci::uio::UioFunction;
#[cfg(target_os = "linux")]
use nvpoll_pci::vfio::VfioFunction;
use nvpoll_spec::{FeatureId, NvmOpcode};
use std::sync::Arc;

/// The userspace driver on the soft controller.
pub type Soft = Userspace<SoftFunction>;
/// The userspace driver on VFIO.
#[cfg(target_os = "linux")]
pub type Vfio = Userspace<VfioFunction>;
/// The userspace driver on UIO.
#[cfg(target_os = "linux")]
pub type Uio = Userspace<UioFunction>;

/// Passes that found nothing before the controller's health is looked at: at some 10 ns each, ten
/// looks a second.
const EMPTY_BEFORE_CHECK: u32 = 1 << 23;

/// Ways of waiting on a transport that has no interrupts.
const WITHOUT_INTERRUPTS: [WaitMode; 2] = [WaitMode::Poll, WaitMode::Hybrid];

/// A transport that the engine can open by itself.
pub trait Openable: Function {
    /// The engine's name and the like.
    const INFO: EngineInfo;

    /// Whether this system has what the transport needs.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] with what is missing and what to do.
    fn available() -> Result<(), EngineError>;

    /// Opens `target`.
    ///
    /// # Errors
    /// [`EngineError::Usage`] when the target is of another kind, [`EngineError::Failed`] when it
    /// does not open.
    fn open_target(target: &Target, options: &TransportOptions) -> Result<Self, EngineError>
    where
        Self: Sized;
}

impl Openable for SoftFunction {
    const INFO: EngineInfo = EngineInfo {
        name: "soft",
        stack: "userspace soft",
        summary: "the userspace driver on a controller in software: no hardware, no root",
        driver: None,
        polls: true,
        moves_data: true,
        depth_max: None,
        options: &EngineOption::OF_USERSPACE,
        waits: &WITHOUT_INTERRUPTS,
        writes: EngineInfo::WRITES_AND_TRIMS,
    };

    fn available() -> Result<(), EngineError> {
        Ok(())
    }

    fn open_target(target: &Target, _: &TransportOptions) -> Result<Self, EngineError> {
        let Target::Soft(options) = target else { return Err(wrong_target("soft", target)) };
        Self::open(options).map_err(|error| EngineError::Failed(error.to_string()))
    }
}

#[cfg(target_os = "linux")]
impl Openable for VfioFunction {
    const INFO: EngineInfo = EngineInfo {
        name: "vfio",
        stack: "userspace vfio",
        summary: "the userspace driver on a drive bound to vfio-pci",
        driver: Some("vfio-pci"),
        polls: true,
        moves_data: true,
        depth_max: None,
        options: &EngineOption::OF_USERSPACE,
        waits: &WaitMode::ALL,
        writes: EngineInfo::WRITES_AND_TRIMS,
    };

    fn available() -> Result<(), EngineError> {
        kernel_has_driver("vfio-pci")
    }

    fn open_target(target: &Target, options: &TransportOptions) -> Result<Self, EngineError> {
        let Target::Pci(address) = target else { return Err(wrong_target("vfio", target)) };
        Self::open(*address, *options).map_err(|error| EngineError::Failed(error.to_string()))
    }
}

#[cfg(target_os = "linux")]
impl Openable for UioFunction {
    const INFO: EngineInfo = EngineInfo {
        name: "uio",
        stack: "userspace uio",
        summary: "the userspace driver on a drive bound to uio_pci_generic: root, huge pages, no IOMMU",
        driver: Some("uio_pci_generic"),
        polls: true,
        moves_data: true,
        depth_max: None,
        options: &EngineOption::OF_USERSPACE,
        waits: &WITHOUT_INTERRUPTS,
        writes: EngineInfo::WRITES_AND_TRIMS,
    };

    fn available() -> Result<(), EngineError> {
        kernel_has_driver("uio_pci_generic")
    }

    fn open_target(target: &Target, options: &TransportOptions) -> Result<Self, EngineError> {
        let Target::Pci(address) = target else { return Err(wrong_target("uio", target)) };
        Self::open(*address, *options).map_err(|error| EngineError::Failed(error.to_string()))
    }
}

/// Whether the running kernel has a PCI driver, loaded or to be loaded.
#[cfg(target_os = "linux")]
fn kernel_has_driver(name: &str) -> Result<(), EngineError> {
    use std::path::Path;
    if Path::new("/sys/bus/pci/drivers").join(name).exists() {
        return Ok(());
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = Path::new("/lib/modules").join(release.trim());
    // One line a module, with its path first.
    let listed = std::fs::read_to_string(folder.join("modules.dep")).unwrap_or_default();
    let module = format!("/{name}.ko");
    if listed.lines().any(|line| line.split(':').next().is_some_and(|path| path.contains(&module)))
    {
        return Ok(());
    }
    Err(EngineError::Unavailable(format!(
        "the running kernel has no driver {name}, neither loaded nor in {}; install the kernel's modules (or, in a container, use the host's)",
        folder.display()
    )))
}

fn wrong_target(engine: &str, target: &Target) -> EngineError {
    EngineError::Usage(format!(
        "engine {engine} cannot open {target}; it takes {}",
        match engine {
            "soft" => "a soft drive (soft[:options])",
            _ => "an NVMe drive's PCI address",
        }
    ))
}

fn failed(error: NvmeError) -> EngineError {
    match error {
        NvmeError::Limit { .. } | NvmeError::Unsupported { .. } => {
            EngineError::Usage(error.to_string())
        }
        other => EngineError::Failed(other.to_string()),
    }
}

/// The userspace driver on transport `F`.
pub struct Userspace<F: Function> {
    controller: Arc<Controller<F>>,
    events: DriveEvents,
    namespace: Namespace,
    writable: bool,
    wait: WaitMode,
    doorbells: DoorbellMode,
    sgl: bool,
    unchecked: bool,
    writes: WriteMode,
}

impl<F: Function> Userspace<F> {
    /// The controller below, for what is not I/O.
    pub fn controller(&self) -> &Arc<Controller<F>> {
        &self.controller
    }

    /// The namespace, for messages.
    fn named(&self) -> String {
        format!("{}: namespace {}", self.controller.location(), self.namespace.nsid)
    }

    fn shadow_fact(&self) -> &'static str {
        let offered = self.controller.identity().optional_admin_commands().doorbell_buffer();
        match (self.controller.has_shadow_doorbells(), offered) {
            (true, _) => "yes: a register is written only where the controller asks for it",
            (false, true) => "offered, not used; shadow-doorbells uses them",
            (false, false) => "not offered",
        }
    }
}

impl<F: Openable> Engine for Userspace<F> {
    const INFO: EngineInfo = F::INFO;

    type Queue = UserspaceQueue<F>;

    fn available() -> Result<(), EngineError> {
        F::available()
    }

    fn open(target: &Target, options: &OpenOptions) -> Result<Self, EngineError> {
        let function = F::open_target(target, &options.transport)?;
        let wait = options.transport.wait;
        let opening = Options {
            interrupts: wait.needs_interrupts(),
            quirks: options.quirks,
            shadow_doorbells: options.engine.shadow_doorbells,
            ..Options::default()
        };
        let controller = Controller::open(function, opening).map_err(failed)?;
        let mut namespace = controller.namespace(options.namespace).map_err(failed)?;
        if options.engine.pi == Some(ProtectionMode::Host) {
            namespace = namespace.protected_by_host(controller.location()).map_err(failed)?;
        }
        if options.writable && namespace.zones.is_some() {
            let named = format!("{}: namespace {}", controller.location(), namespace.nsid);
            return Err(zoned::writes_refused(&named));
        }
        let doorbells = options.engine.doorbell.unwrap_or_default();
        let (sgl, unchecked) = (options.engine.sgl, options.unchecked);
        let OpenOptions { writable, writes, .. } = *options;
        let events = DriveEvents::ask(&controller);
        Ok(Self {
            controller,
            events,
            namespace,
            writable,
            wait,
            doorbells,
            sgl,
            unchecked,
            writes,
        })
    }

    fn geometry(&self, io_bytes: u32) -> Geometry {
        Geometry {
            size_bytes: self.namespace.bytes(),
            block_bytes: self.namespace.block_bytes,
            depth_max: QueuePair::depth_max(&self.controller, &self.namespace, io_bytes),
            queues_max: Some(u32::from(self.controller.queues_max())),
            numa_node: self.controller.function().numa_node(),
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let identity = self.controller.identity();
        let text = |bytes: &[u8]| match nvpoll_spec::ascii_field(bytes) {
            Ok(text) => text.to_owned(),
            Err(raw) => raw.escape_ascii().to_string(),
        };
        let cache = match identity.write_cache & 1 {
            0 => "none".to_owned(),
            _ => match self.controller.feature(FeatureId::VOLATILE_WRITE_CACHE) {
                Ok(Some(value)) if value & 1 == 0 => "off".to_owned(),
                Ok(Some(_)) => "on".to_owned(),
                Ok(None) | Err(_) => "not said".to_owned(),
            },
        };
        let metadata = self.namespace.metadata.map(|metadata| ("metadata", metadata.to_string()));
        let mut facts = vec![
            ("transport", self.controller.function().transport()),
            ("waiting", waiting_fact(self.wait).to_owned()),
            ("doorbells", doorbell_fact(self.doorbells).to_owned()),
            ("shadow doorbells", self.shadow_fact().to_owned()),
            ("data named by", data_fact(self.sgl).to_owned()),
            ("model", text(&identity.model)),
            ("serial", text(&identity.serial)),
            ("firmware", text(&identity.firmware)),
            ("command bytes max", self.controller.command_bytes_max().to_string()),
            ("volatile write cache", cache),
        ];
        facts.extend(metadata);
        facts.extend(
            self.namespace
                .zones
                .map(|zones| ("zones", format!("{} of {} blocks", zones.count, zones.zone_blocks))),
        );
        if self.writes == WriteMode::Deallocate {
            let command = "Dataset Management (deallocate), one range a command".to_owned();
            facts.push(("trims by", command));
        }
        if self.writes.is_durable() {
            facts.push(("writes", "with FUA: done when they are on the medium".to_owned()));
        }
        facts.extend(self.controller.function().dma().placement().map(|text| ("memory", text)));
        if !self.controller.quirks().is_empty() {
            facts.push(("quirks", self.controller.quirks().to_string()));
        }
        facts
    }

    fn condition(&self) -> Condition {
        let log = self.controller.smart().map_err(|error| error.to_string());
        // Read anew: what is allocated grows with what is written.
        let page = self.controller.namespace_page(self.namespace.nsid).ok();
        Condition::new(log, self.controller.identity(), page.as_deref())
    }

    fn cautions(&self) -> Vec<Caution> {
        self.events.look(&self.controller);
        let location = self.controller.location();
        let (events, deaf) = self.events.seen();
        let told = events.into_iter().map(|event| {
            format!(
                "{location} reported while it was driven: {event}; `nvpoll identify` shows its logs"
            )
        });
        let deaf = deaf.map(|why| format!("{location}: its events could not be heard: {why}"));
        let caution = |text| Caution { kind: CautionKind::DriveEvent, text };
        told.chain(deaf).map(caution).collect()
    }

    fn check(&self) -> Result<(), EngineError> {
        self.events.look(&self.controller);
        if !self.controller.function().is_wanted_back() {
            return Ok(());
        }
        let location = self.controller.location();
        Err(EngineError::Failed(format!(
            "{location}: the system asks for the drive back (it is being unplugged, or unbound from its driver), so the run ends"
        )))
    }

    fn queue(&self, shape: QueueShape) -> Result<UserspaceQueue<F>, EngineError> {
        let limit = || {
            let depth = shape.depth;
            EngineError::Usage(format!(
                "a depth of {depth} was asked for; at most 65535 is possible"
            ))
        };
        let options = PairOptions {
            depth: u16::try_from(shape.depth).map_err(|_| limit())?,
            io_bytes: shape.io_bytes,
            doorbells: self.doorbells,
            sgl: self.sgl,
            unchecked: self.unchecked,
            writes: self.writes,
        };
        if let Some(zones) = &self.namespace.zones {
            let block_bytes = self.namespace.block_bytes;
            zoned::check_reads(&self.named(), zones, block_bytes, shape.io_bytes)?;
        }
        let pair = QueuePair::new(&self.controller, &self.namespace, options).map_err(failed)?;
        let patience_full = if pair.is_protected_by_host() { 1 } else { patience(self.wait) };
        Ok(UserspaceQueue {
            pair,
            block_log2: self.namespace.block_log2,
            io_bytes: shape.io_bytes,
            writable: self.writable,
            patience: patience_full,
            patience_full,
            waiting: Waiting::new(self.wait),
            ready: Vec::with_capacity(shape.depth as usize),
            looks: 0,
        })
    }
}

/// A queue that waits by itself is asked to as soon as it is empty.
fn patience(wait: WaitMode) -> u32 {
    if wait == WaitMode::Poll { EMPTY_BEFORE_CHECK } else { 1 }
}

fn waiting_fact(wait: WaitMode) -> &'static str {
    match wait {
        WaitMode::Poll => "polled",
        WaitMode::Irq => "interrupts (MSI-X)",
        WaitMode::Hybrid => "hybrid: sleeps for half the mean wait, then polls",
        WaitMode::Adaptive => "adaptive: polls for 20 us, then sleeps until the interrupt (MSI-X)",
    }
}

fn doorbell_fact(doorbells: DoorbellMode) -> &'static str {
    match doorbells {
        DoorbellMode::Batch => "one for all that a pass sends, one for all that it takes",
        DoorbellMode::Each => "one for each I/O that is sent, one for each completion",
    }
}

fn data_fact(sgl: bool) -> &'static str {
    if sgl { "an SGL data block descriptor" } else { "PRPs" }
}

/// A queue pair, as something to wait for.
struct Sleeper<'a, F: Function>(&'a QueuePair<F>);

impl<F: Function> Awaited for Sleeper<'_, F> {
    fn has_completion(&self) -> bool {
        self.0.has_completion()
    }

    fn sleep(&self, time_max: std::time::Duration) -> std::io::Result<()> {
        match self.0.interrupt() {
            Some(interrupt) => interrupt.wait(time_max).map(|_| ()),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }
}

/// A queue pair as an engine's lane.
pub struct UserspaceQueue<F: Function> {
    pair: QueuePair<F>,
    block_log2: u8,
    writable: bool,
    io_bytes: u32,
    /// Passes that may find nothing before there is something else to look at: the controller's
    /// health, or a refusal to report.
    patience: u32,
    /// How many there are after one that found something.
    patience_full: u32,
    // Cold from here on.
    waiting: Waiting,
    /// Operations to be reported by the next `reap`: those that were refused, and where the host checks
    /// protection information all that ended.
    ready: Vec<(Tag, IoStatus)>,
    /// Looks in vain where there is always something else to look at.
    looks: u32,
}

impl<F: Function> UserspaceQueue<F> {
    #[cold]
    fn reject(&mut self, tag: Tag) {
        // The room was reserved: a caller that pushes more than its depth loses the report.
        if self.ready.len() < self.ready.capacity() {
            self.ready.push((tag, IoStatus::REJECTED));
        }
        self.patience = 1;
    }

    /// The queue is empty, and patience has ended: because of a refusal, or because this queue waits
    /// by itself, or because it is time to look whether the controller still lives.
    #[cold]
    fn look_around(&mut self, wait: Wait) -> Result<(), EngineError> {
        if !self.ready.is_empty() || self.pair.is_protected_by_host() && self.take_checked()? {
            return Ok(());
        }
        if self.waiting.waits() {
            // Whoever may not wait looks often, and gets no look at the controller's registers.
            let Wait::Upto(time_max) = wait else { return Ok(()) };
            let waited = self.waiting.wait(&Sleeper(&self.pair), time_max);
            waited.map_err(|error| {
                let location = self.pair.location();
                EngineError::Failed(format!("{location}: waiting for an interrupt failed: {error}"))
            })?;
            if self.pair.has_completion() {
                return Ok(());
            }
        }
        self.pair.check().map_err(failed)
    }

    /// Takes what has ended where the host checks protection information. Whether that was anything, or
    /// it is not yet time to look whether the controller still lives.
    #[cold]
    fn take_checked(&mut self) -> Result<bool, EngineError> {
        let ready = &mut self.ready;
        let mut sink = |tag, status| ready.push((Tag(tag), IoStatus::nvme(status)));
        let taken = self.pair.reap(&mut sink).map_err(|error| self.protocol_error(&error))?;
        self.looks = if taken > 0 { 0 } else { self.looks.wrapping_add(1) };
        let is_early = !self.waiting.waits() && !self.looks.is_multiple_of(EMPTY_BEFORE_CHECK);
        Ok(taken > 0 || is_early)
    }

    #[cold]
    fn protocol_error(&self, error: &ProtocolError) -> EngineError {
        EngineError::Failed(format!("{}: {error}", self.pair.location()))
    }
}

impl<F: Function> Queue for UserspaceQueue<F> {
    #[inline(always)]
    fn sleeps(&self) -> bool {
        self.waiting.waits()
    }

    #[inline(always)]
    fn push(&mut self, tag: Tag, operation: Operation) {
        let opcode = match operation.kind {
            OperationKind::Read => NvmOpcode::READ,
            OperationKind::Write => NvmOpcode::WRITE,
            OperationKind::Flush => NvmOpcode::FLUSH,
        };
        let allowed = self.writable || operation.kind != OperationKind::Write;
        // An offset that is no multiple of the block becomes a number beyond any namespace's blocks,
        // because its lowest bits turn into the highest; so one comparison finds both faults.
        let lba = operation.offset.rotate_right(self.block_log2.into());
        let blocks = operation.bytes.rotate_right(self.block_log2.into());
        let pushed = allowed
            && if operation.bytes == self.io_bytes {
                self.pair.push_whole(tag.0, opcode, lba).is_ok()
            } else {
                self.pair.push(tag.0, Io { opcode, lba, blocks }).is_ok()
            };
        if !pushed {
            self.reject(tag);
        }
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), EngineError> {
        self.pair.kick();
        Ok(())
    }

    #[inline(always)]
    fn reap(
        &mut self,
        wait: Wait,
        sink: &mut impl FnMut(Tag, IoStatus),
    ) -> Result<u32, EngineError> {
        let mut first = self.pair.peek();
        if first.is_none() {
            self.patience = self.patience.wrapping_sub(1);
            if self.patience != 0 {
                return Ok(0);
            }
            self.look_around(wait)?;
            first = self.pair.peek();
        }
        let mut count = 0;
        if let Some(first) = first {
            let mut sink = |tag, status| sink(Tag(tag), IoStatus::nvme(status));
            let reaped = self.pair.reap_from(first, &mut sink);
            count = reaped.map_err(|error| self.protocol_error(&error))?;
        }
        self.patience = self.patience_full;
        while let Some((tag, status)) = self.ready.pop() {
            sink(tag, status);
            count += 1;
        }
        Ok(count)
    }

    fn fill(&mut self, tag: Tag, data: &[u8]) {
        self.pair.fill(tag.0, data);
    }

    fn copy_out(&self, tag: Tag, data: &mut [u8]) {
        self.pair.copy_out(tag.0, data);
    }

    fn doorbell_writes(&self) -> Option<u64> {
        Some(self.pair.doorbell_writes())
    }
}
