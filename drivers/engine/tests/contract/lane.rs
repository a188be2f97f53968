//! A queue as the promises use it: nothing is lost, nothing takes for ever.

use crate::cases::Case;
use nvpoll_engine::{
    Engine, IoStatus, OpenOptions, Operation, OperationKind, Queue, QueueShape, Tag, Wait,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// No I/O of these tests takes longer, on a loaded machine either.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Opens a case's target for writing.
pub fn open<E: Engine>(case: &Case) -> E {
    open_as(case, true)
}

/// Opens a case's target.
pub fn open_as<E: Engine>(case: &Case, writable: bool) -> E {
    let options = OpenOptions {
        writable,
        transport: crate::cases::transport(),
        engine: case.options,
        ..OpenOptions::default()
    };
    E::open(&case.target, &options).unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

pub fn read(offset: u64, bytes: u32) -> Operation {
    Operation { kind: OperationKind::Read, offset, bytes }
}

pub fn write(offset: u64, bytes: u32) -> Operation {
    Operation { kind: OperationKind::Write, offset, bytes }
}

pub fn flush() -> Operation {
    Operation { kind: OperationKind::Flush, offset: 0, bytes: 0 }
}

/// A queue of `depth`, or of as much as the engine has.
pub struct Lane<'a, Q> {
    pub queue: Q,
    pub depth: u16,
    pub block_bytes: u32,
    pub size_bytes: u64,
    case: &'a Case,
    in_flight: Vec<bool>,
}

impl<'a, Q: Queue> Lane<'a, Q> {
    pub fn new<E: Engine<Queue = Q>>(
        case: &'a Case,
        engine: &E,
        depth: u32,
        io_bytes: u32,
    ) -> Self {
        Self::of_worker(case, engine, 0, depth, io_bytes)
    }

    pub fn of_worker<E: Engine<Queue = Q>>(
        case: &'a Case,
        engine: &E,
        worker: u32,
        depth: u32,
        io_bytes: u32,
    ) -> Self {
        let geometry = engine.geometry(io_bytes);
        let depth = depth.min(geometry.depth_max);
        let queue = engine
            .queue(QueueShape { worker, depth, io_bytes })
            .unwrap_or_else(|error| panic!("{}: a queue of {depth}: {error}", case.name));
        let (block_bytes, size_bytes) = (geometry.block_bytes, geometry.size_bytes);
        let in_flight = vec![false; depth as usize];
        Self { queue, depth: depth as u16, block_bytes, size_bytes, case, in_flight }
    }

    pub fn push(&mut self, tag: u16, operation: Operation) {
        self.in_flight[usize::from(tag)] = true;
        self.queue.push(Tag(tag), operation);
    }

    pub fn kick(&mut self) {
        self.queue.kick().unwrap_or_else(|error| panic!("{}: kick: {error}", self.case.name));
    }

    /// Reaps once; each tag that comes back was in flight and is not any more.
    pub fn reap(&mut self, wait: Wait) -> Vec<(u16, IoStatus)> {
        let mut seen = Vec::new();
        let count = self
            .queue
            .reap(wait, &mut |tag, status| seen.push((tag.0, status)))
            .unwrap_or_else(|error| panic!("{}: reap: {error}", self.case.name));
        assert_eq!(
            count as usize,
            seen.len(),
            "{}: the count is not what was seen",
            self.case.name
        );
        for &(tag, status) in &seen {
            let was = self.in_flight.get_mut(usize::from(tag)).map(std::mem::take);
            assert_eq!(was, Some(true), "{}: tag {tag} ({status}) was idle", self.case.name);
        }
        seen
    }

    /// Kicks and reaps until nothing is in flight.
    pub fn finish(&mut self) -> BTreeMap<u16, IoStatus> {
        self.kick();
        let mut all = BTreeMap::new();
        let deadline = Instant::now() + PATIENCE;
        while self.in_flight.contains(&true) {
            all.extend(self.reap(Wait::Upto(Duration::from_millis(100))));
            let tags = &self.in_flight;
            assert!(Instant::now() < deadline, "{}: lost, true is: {tags:?}", self.case.name);
        }
        let late = self.reap(Wait::No);
        assert!(late.is_empty(), "{}: came back twice: {late:?}", self.case.name);
        all
    }

    /// One operation under `tag`, to its end.
    pub fn run(&mut self, tag: u16, operation: Operation) -> IoStatus {
        self.push(tag, operation);
        self.finish()[&tag]
    }

    /// One operation that has to succeed.
    pub fn must(&mut self, tag: u16, operation: Operation) {
        let status = self.run(tag, operation);
        assert!(status.is_ok(), "{}: {operation:?}: {status}", self.case.name);
    }

    /// Writes `data` at `offset`.
    pub fn put(&mut self, tag: u16, offset: u64, data: &[u8]) {
        self.queue.fill(Tag(tag), data);
        self.must(tag, write(offset, data.len() as u32));
    }

    /// Reads `bytes` at `offset`, into a buffer that held something else.
    pub fn get(&mut self, tag: u16, offset: u64, bytes: u32) -> Vec<u8> {
        let mut data = vec![0xee; bytes as usize];
        self.queue.fill(Tag(tag), &data);
        self.must(tag, read(offset, bytes));
        self.queue.copy_out(Tag(tag), &mut data);
        data
    }

    /// Reads `data`'s range back and compares.
    pub fn expect(&mut self, tag: u16, offset: u64, data: &[u8], what: &str) {
        let found = self.get(tag, offset, data.len() as u32);
        if let Some(at) = found.iter().zip(data).position(|(found, wanted)| found != wanted) {
            let (name, length) = (&self.case.name, data.len());
            let (found, wanted) = (found[at], data[at]);
            panic!(
                "{name}: {what}: {length} bytes at {offset}: byte {at} is {found:#x}, not {wanted:#x}"
            );
        }
    }
}

/// Bytes that say where they belong: each word is a mix of its offset and `seed`.
pub fn pattern(seed: u64, offset: u64, bytes: u32) -> Vec<u8> {
    let words = u64::from(bytes).div_ceil(8);
    let data = (0..words).flat_map(|word| mix(seed ^ (offset + 8 * word)).to_le_bytes());
    data.take(bytes as usize).collect()
}

/// A good mixing of 64 bits.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ (value >> 32)
}
