//! What the tests share: a soft controller under watch, patterns, random numbers, patience.

use crate::spy::{Log, Spy};
use nvpoll_nvme::{
    Controller, DoorbellMode, Io, Namespace, NvmeError, Options, PairOptions, QueuePair, WriteMode,
};
use nvpoll_pci::soft::SoftFunction;
use nvpoll_soft::{SoftController, SoftOptions};
use nvpoll_spec::{NvmOpcode, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails: far beyond what a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type SoftSpy = Spy<SoftFunction>;
pub type Pair = QueuePair<SoftSpy>;

/// Options from text.
pub fn options(text: &str) -> SoftOptions {
    text.parse().unwrap()
}

/// A soft controller, and the driver's view of it.
pub struct Bench {
    // Dropped first: the driver lets go of the device while the device is there.
    pub controller: Arc<Controller<SoftSpy>>,
    pub namespace: Namespace,
    pub log: Arc<Log>,
    pub soft: Arc<SoftController>,
    /// Of the pairs that are made.
    pub doorbells: DoorbellMode,
    pub sgl: bool,
    /// Protection information is the host's work.
    pub by_host: bool,
    /// What writes of the pairs that are made do.
    pub writes: WriteMode,
}

impl Bench {
    pub fn new(soft: SoftOptions) -> Self {
        Self::with(soft, Options::default())
    }

    pub fn with(soft: SoftOptions, driver: Options) -> Self {
        let soft = SoftController::start(soft).unwrap();
        let (controller, log) = open(&soft, driver);
        let controller = controller.unwrap();
        let namespace = controller.namespace(1).unwrap();
        log.take_events();
        log.take_commands(0);
        Self {
            controller,
            namespace,
            log,
            soft,
            doorbells: DoorbellMode::Batch,
            sgl: false,
            by_host: false,
            writes: WriteMode::Write,
        }
    }

    pub fn pair(&self, depth: u16, io_blocks: u32) -> Pair {
        self.try_pair(depth, io_blocks).unwrap()
    }

    pub fn try_pair(&self, depth: u16, io_blocks: u32) -> Result<Pair, NvmeError> {
        let io_bytes = io_blocks * self.namespace.block_bytes;
        let namespace = match self.by_host {
            true => self.namespace.protected_by_host(self.controller.location())?,
            false => self.namespace,
        };
        QueuePair::new(
            &self.controller,
            &namespace,
            PairOptions {
                depth,
                io_bytes,
                doorbells: self.doorbells,
                sgl: self.sgl,
                writes: self.writes,
                ..PairOptions::default()
            },
        )
    }

    /// Takes the driver away; the controller stays.
    pub fn into_soft(self) -> (Arc<SoftController>, Arc<Log>) {
        (self.soft, self.log)
    }
}

/// Opens a soft controller under watch.
pub fn open(
    soft: &Arc<SoftController>,
    driver: Options,
) -> (Result<Arc<Controller<SoftSpy>>, NvmeError>, Arc<Log>) {
    let (spy, log) = Spy::new(SoftFunction::over(Arc::clone(soft)));
    (Controller::open(spy, driver), log)
}

/// Options with which an admin command that never completes is given up soon.
pub fn impatient() -> Options {
    Options { admin_wait: Duration::from_millis(100), ..Options::default() }
}

pub fn read(lba: u64, blocks: u32) -> Io {
    Io { opcode: NvmOpcode::READ, lba, blocks }
}

pub fn write(lba: u64, blocks: u32) -> Io {
    Io { opcode: NvmOpcode::WRITE, lba, blocks }
}

pub const FLUSH: Io = Io { opcode: NvmOpcode::FLUSH, lba: 0, blocks: 0 };

/// One look at the completions.
pub fn reap(pair: &mut Pair) -> Vec<(u16, Status)> {
    let mut reaped = Vec::new();
    let count = pair.reap(&mut |tag, status| reaped.push((tag, status))).unwrap();
    assert_eq!(count as usize, reaped.len());
    reaped
}

/// The next completion, waited for.
pub fn wait(pair: &mut Pair) -> (u16, Status) {
    let start = Instant::now();
    loop {
        match reap(pair)[..] {
            [] => assert!(start.elapsed() < PATIENCE, "{pair:?}: no completion"),
            [one] => return one,
            ref more => panic!("one completion was expected, not {more:?}"),
        }
        std::thread::yield_now();
    }
}

/// One I/O from push to completion.
pub fn run(pair: &mut Pair, tag: u16, io: Io) -> Status {
    pair.push(tag, io).unwrap();
    pair.kick();
    let (reported, status) = wait(pair);
    assert_eq!(reported, tag);
    status
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Fills `bytes`, whose length is a multiple of 8.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.as_chunks_mut().0 {
            *word = self.next().to_le_bytes();
        }
    }
}
