//! Writes or checks a known pattern through any engine, at many sizes and odd offsets.
//!
//! ```text
//! pattern ENGINE[:OPTIONS] TARGET write|read SEED [best|type1|iommufd]
//! ```
//!
//! Every eight bytes of the target are a function of their own offset and SEED, so that a block
//! which came from, or went to, the wrong place shows as such. The tests on the lab machine use it
//! from both sides of the drive.

use nvpoll_engine::{
    Engine, EngineChoice, EngineError, EngineOptions, IoStatus, IommuInterface, OpenOptions,
    Operation, OperationKind, Queue, QueueShape, Tag, Target, TransportOptions, Visitor, Wait,
};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[path = "../../../tests/lab/pattern.rs"]
mod pattern;

/// I/Os in flight.
const DEPTH: u32 = 8;
/// I/Os of each size.
const EACH: u64 = 40;
/// Bound on one I/O.
const IO_WAIT: Duration = Duration::from_secs(20);
/// What the buffer holds before a read.
const BEFORE: u8 = 0xee;
/// After this, data that overtook their completion would be there.
const LATE_WAIT: Duration = Duration::from_millis(300);

struct Work {
    target: Target,
    writes: bool,
    seed: u64,
    iommu: IommuInterface,
    engine: EngineOptions,
}

impl Visitor for Work {
    type Output = Result<String, String>;

    fn visit<E: Engine>(self) -> Self::Output {
        let text = |error: EngineError| error.to_string();
        let transport = TransportOptions { iommu: self.iommu, ..TransportOptions::default() };
        let (writable, engine) = (self.writes, self.engine);
        let options = OpenOptions { writable, transport, engine, ..OpenOptions::default() };
        let engine = E::open(&self.target, &options).map_err(text)?;
        let block = engine.geometry(4096).block_bytes.max(512);
        let mut checked = 0;
        let sizes = sizes(block);
        for &bytes in &sizes {
            let geometry = engine.geometry(bytes);
            let depth = DEPTH.min(geometry.depth_max);
            let shape = QueueShape { worker: 0, depth, io_bytes: bytes };
            let mut queue = engine.queue(shape).map_err(text)?;
            let mut offsets = offsets(geometry.size_bytes, block, bytes);
            while !offsets.is_empty() {
                let batch: Vec<u64> =
                    offsets.split_off(offsets.len().saturating_sub(depth as usize));
                self.batch(&mut queue, &batch, bytes)?;
                checked += batch.len() as u64 * u64::from(bytes / block);
            }
        }
        let done = if self.writes { "wrote" } else { "checked" };
        Ok(format!(
            "{done} {checked} blocks of {block} bytes in {} sizes up to {}",
            sizes.len(),
            sizes.last().copied().unwrap_or(0)
        ))
    }
}

/// From one block to far beyond any drive's MDTS here, also sizes that are no power of two.
fn sizes(block: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = [1, 2, 3, 7, 8, 9, 17].iter().map(|blocks| blocks * block).collect();
    sizes.extend([64 << 10, 128 << 10, (128 << 10) + block, 384 << 10, (1 << 20) + 3 * block]);
    sizes
}

/// Offsets that are odd multiples of the block, the first and the last ones among them.
fn offsets(size_bytes: u64, block: u32, bytes: u32) -> Vec<u64> {
    let last = (size_bytes - u64::from(bytes)) / u64::from(block);
    let mut offsets = vec![0, u64::from(block) * last];
    let step = (last / EACH).max(1) | 1;
    offsets.extend((1..last).step_by(step as usize).map(|index| index * u64::from(block)));
    offsets
}

impl Work {
    /// One round of I/Os, checked when all of them completed.
    fn batch<Q: Queue>(&self, queue: &mut Q, offsets: &[u64], bytes: u32) -> Result<(), String> {
        let mut data = vec![0; bytes as usize];
        let kind = if self.writes { OperationKind::Write } else { OperationKind::Read };
        for (tag, &offset) in offsets.iter().enumerate() {
            let tag = Tag(tag as u16);
            // A buffer that still holds what is expected would hide a read that moved nothing.
            data.fill(BEFORE);
            if self.writes {
                pattern::fill(&mut data, offset, self.seed);
            }
            queue.fill(tag, &data);
            queue.push(tag, Operation { kind, offset, bytes });
        }
        queue.kick().map_err(|error| error.to_string())?;
        let start = Instant::now();
        let mut left = offsets.len();
        let mut failed = None;
        while left > 0 {
            let mut sink = |tag: Tag, status: IoStatus| {
                left -= 1;
                if !status.is_ok() {
                    failed = Some((tag, status));
                }
            };
            queue
                .reap(Wait::Upto(Duration::from_millis(100)), &mut sink)
                .map_err(|error| error.to_string())?;
            if start.elapsed() > IO_WAIT {
                return Err(format!("{left} I/Os of {bytes} bytes did not complete"));
            }
        }
        if let Some((tag, status)) = failed {
            return Err(format!("{bytes} bytes at {}: {status}", offsets[tag.index()]));
        }
        for (tag, &offset) in offsets.iter().enumerate().filter(|_| !self.writes) {
            queue.copy_out(Tag(tag as u16), &mut data);
            if let Some(at) = pattern::first_wrong(&data, offset, self.seed) {
                let seen = self.describe(&data, offset, at);
                std::thread::sleep(LATE_WAIT);
                queue.copy_out(Tag(tag as u16), &mut data);
                let later = match pattern::first_wrong(&data, offset, self.seed) {
                    None => "right: the data came after its completion",
                    Some(_) => "still wrong",
                };
                return Err(format!(
                    "an I/O of {bytes} bytes at {offset}: byte {at} of the target is wrong: {seen}; \
                     {} ms later it is {later}",
                    LATE_WAIT.as_millis()
                ));
            }
        }
        Ok(())
    }

    /// What stands there instead, and how much is wrong.
    fn describe(&self, data: &[u8], offset: u64, at: u64) -> String {
        let mut wanted = vec![0; data.len()];
        pattern::fill(&mut wanted, offset, self.seed);
        let wrong = data.iter().zip(&wanted).filter(|(seen, wanted)| seen != wanted).count();
        let from = (at - offset) as usize;
        let seen = &data[from..(from + 16).min(data.len())];
        let is_untouched = seen.iter().all(|&byte| byte == BEFORE);
        let what = if is_untouched { ", as it was before the read" } else { "" };
        format!("{wrong} bytes differ, the first are {seen:02x?}{what}")
    }
}

fn parse() -> Option<(EngineChoice, Work)> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [engine, target, way, seed, rest @ ..] = words.as_slice() else { return None };
    let iommu = match rest {
        [] => IommuInterface::Best,
        [name] => name.parse().ok()?,
        _ => return None,
    };
    let target = match (target.parse(), target.parse()) {
        (Ok(address), _) => Target::Pci(address),
        (_, Ok(options)) if target.starts_with("soft") => Target::Soft(options),
        _ => Target::Path(target.into()),
    };
    let writes = match way.as_str() {
        "write" => true,
        "read" => false,
        _ => return None,
    };
    let engine: EngineChoice = engine.parse().ok()?;
    let (seed, options) = (seed.parse().ok()?, engine.options);
    Some((engine, Work { target, writes, seed, iommu, engine: options }))
}

fn main() -> ExitCode {
    let Some((engine, work)) = parse() else {
        eprintln!("usage: pattern ENGINE[:OPTIONS] TARGET write|read SEED [best|type1|iommufd]");
        return ExitCode::from(2);
    };
    match engine.kind.with(work) {
        Ok(done) => {
            println!("{engine}: {done}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{engine}: {error}");
            ExitCode::FAILURE
        }
    }
}
