//! A host in a few lines: registers, two rings a queue, and one command at a time or many.
//!
//! It is written against the specification and not against the driver, so that a misunderstanding
//! would have to be made twice.

#![allow(dead_code)]

use nvpoll_mem::{CompletionRing, DmaBuf, DmaSpace, Doorbell, Registers, SubmissionRing};
use nvpoll_soft::{SoftController, SoftDoorbell, SoftOptions};
use nvpoll_spec::{
    Admin, AdminQueueAttributes, Capabilities, Cns, CompletionEntry, ControllerConfiguration,
    ControllerStatus, NvmOpcode, Status, SubmissionEntry, reg,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A queue pair, driven by hand.
pub struct Pair {
    pub id: u16,
    pub sq: SubmissionRing,
    pub cq: CompletionRing,
    pub sq_bell: SoftDoorbell,
    pub cq_bell: SoftDoorbell,
}

impl Pair {
    /// Pushes an entry without telling the device.
    pub fn push(&mut self, entry: SubmissionEntry) {
        self.sq.push(entry.to_words());
    }

    pub fn ring(&self) {
        self.sq_bell.ring(self.sq.tail());
    }

    /// The next completion, if it is there; the device is not told that it was taken.
    pub fn take(&mut self) -> Option<CompletionEntry> {
        let upper = self.cq.peek()?;
        let entry = CompletionEntry::from_words([self.cq.result(), upper]);
        self.cq.advance();
        Some(entry)
    }

    pub fn ring_head(&self) {
        self.cq_bell.ring(self.cq.head());
    }

    /// The next completion, waited for.
    pub fn wait(&mut self) -> CompletionEntry {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.take() {
                self.ring_head();
                return entry;
            }
            assert!(start.elapsed() < PATIENCE, "queue {}: no completion", self.id);
            std::hint::spin_loop();
        }
    }

    /// One command from push to completion.
    pub fn run(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.push(entry);
        self.ring();
        let completion = self.wait();
        assert_eq!((completion.cid, completion.sq_id), (entry.cid, self.id));
        completion
    }
}

/// A controller that was brought up, and its admin queue.
pub struct Host {
    pub controller: Arc<SoftController>,
    pub dma: Arc<dyn DmaSpace>,
    pub admin: Pair,
    pub stride: usize,
    /// CC.MPS in bytes.
    pub page: u64,
}

/// So many cases a property; a failure is printed and no file is written beside the sources.
pub fn cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}

/// Options for a stepped device, from text.
pub fn stepped(text: &str) -> SoftOptions {
    let comma = if text.is_empty() { "" } else { "," };
    format!("{text}{comma}stepped").parse().unwrap()
}

pub fn status(controller: &SoftController) -> ControllerStatus {
    ControllerStatus::from_bits(controller.read32(reg::CSTS).unwrap())
}

/// Waits for CSTS to become as `good` wants it.
pub fn wait_status(
    controller: &SoftController,
    good: impl Fn(ControllerStatus) -> bool,
) -> ControllerStatus {
    let start = Instant::now();
    loop {
        let now = status(controller);
        if good(now) {
            return now;
        }
        assert!(start.elapsed() < PATIENCE, "CSTS stays {now:?}");
        std::thread::yield_now();
    }
}

pub fn enabled() -> ControllerConfiguration {
    ControllerConfiguration::new().with_enable(true).with_sq_entry_log2(6).with_cq_entry_log2(4)
}

/// Memory at a multiple of `align`, for queues where CC.MPS is more than the soft IOMMU's 4 KiB.
pub fn aligned(dma: &Arc<dyn DmaSpace>, bytes: usize, align: u64) -> DmaBuf {
    let mut kept = Vec::new();
    loop {
        let memory = DmaBuf::new(dma, bytes).unwrap();
        if memory.iova(0).is_multiple_of(align) {
            return memory;
        }
        kept.push(memory);
        assert!(kept.len() < 100, "no memory at a multiple of {align}");
    }
}

/// Memory for the rings of a queue with that many entries, on pages of `page` bytes.
pub fn rings(
    dma: &Arc<dyn DmaSpace>,
    entries: u32,
    page: u64,
) -> (SubmissionRing, u64, CompletionRing, u64) {
    let sq = aligned(dma, entries as usize * 64, page);
    let cq = aligned(dma, entries as usize * 16, page);
    let (sq_iova, cq_iova) = (sq.iova(0), cq.iova(0));
    let sq = SubmissionRing::new(sq, entries).unwrap();
    let cq = CompletionRing::new(cq, entries).unwrap();
    (sq, sq_iova, cq, cq_iova)
}

impl Host {
    pub fn new(options: SoftOptions) -> Self {
        Self::over(SoftController::start(options).unwrap(), enabled(), 32)
    }

    /// Brings a controller up by the steps of §7.6.1.
    pub fn over(
        controller: Arc<SoftController>,
        cc: ControllerConfiguration,
        entries: u32,
    ) -> Self {
        let dma = controller.iommu();
        let page = 4096 << cc.page_size();
        let cap = Capabilities::from_bits(controller.read64(reg::CAP).unwrap());
        let (sq, sq_iova, cq, cq_iova) = rings(&dma, entries, page);
        let z = (entries - 1) as u16;
        let aqa = AdminQueueAttributes::new().with_sq_entries_z(z).with_cq_entries_z(z);
        controller.write32(reg::AQA, aqa.into_bits()).unwrap();
        controller.write64(reg::ASQ, sq_iova).unwrap();
        controller.write64(reg::ACQ, cq_iova).unwrap();
        controller.write32(reg::CC, cc.into_bits()).unwrap();
        wait_status(&controller, |csts| csts.ready());
        let stride = cap.doorbell_stride_bytes();
        let sq_bell = controller.doorbell(reg::sq_tail_doorbell(0, stride)).unwrap();
        let cq_bell = controller.doorbell(reg::cq_head_doorbell(0, stride)).unwrap();
        Self { controller, dma, admin: Pair { id: 0, sq, cq, sq_bell, cq_bell }, stride, page }
    }

    pub fn buffer(&self, bytes: usize) -> DmaBuf {
        DmaBuf::new(&self.dma, bytes).unwrap()
    }

    /// An I/O queue pair of `entries`.
    pub fn pair(&mut self, id: u16, entries: u32) -> Pair {
        let (sq, sq_iova, cq, cq_iova) = rings(&self.dma, entries, self.page);
        let z = (entries - 1) as u16;
        assert_ok(self.admin.run(Admin::create_cq(id, z, cq_iova)));
        assert_ok(self.admin.run(Admin::create_sq(id, z, sq_iova, id)));
        let sq_bell = self.controller.doorbell(reg::sq_tail_doorbell(id, self.stride)).unwrap();
        let cq_bell = self.controller.doorbell(reg::cq_head_doorbell(id, self.stride)).unwrap();
        Pair { id, sq, cq, sq_bell, cq_bell }
    }

    /// One page of Identify.
    pub fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
        let page = self.buffer(4096);
        let mut entry = Admin::identify(cns, nsid);
        entry.prp1 = page.iova(0);
        let status = self.admin.run(entry).status();
        let mut bytes = vec![0; 4096];
        page.read(0, &mut bytes);
        if status.is_success() { Ok(bytes) } else { Err(status) }
    }

    pub fn reset(&self) {
        self.controller.write32(reg::CC, 0).unwrap();
        wait_status(&self.controller, |csts| !csts.ready());
    }
}

/// A read or write of `blocks` whose data pointer is `prp1` and `prp2`.
pub fn io(opcode: NvmOpcode, lba: u64, blocks: u32, prp1: u64, prp2: u64) -> SubmissionEntry {
    let mut entry = SubmissionEntry::io(opcode, 1, lba, (blocks - 1) as u16);
    (entry.prp1, entry.prp2) = (prp1, prp2);
    entry
}

/// A status without Do Not Retry.
pub fn code(completion: CompletionEntry) -> Status {
    Status(completion.status().0 & 0x7ff)
}

#[track_caller]
pub fn assert_ok(completion: CompletionEntry) {
    assert!(completion.status().is_success(), "{completion:?}");
}

/// Bytes that differ from block to block and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |n: u64| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ seed;
    (0..bytes as u64 / 8).flat_map(|n| word(n).to_le_bytes()).collect()
}
