//! A workload as it can be typed: fio's names and value syntax.

use super::args::{block_size, time_us};
use crate::workload::units::Amount;
use crate::workload::{BsSplit, Buffers, Distribution, RateProcess, Rw, SyncMode, Workload};
use clap::Args;

/// A workload, in fio's words.
#[derive(Debug, Args)]
#[command(next_help_heading = "Workload (fio's names)")]
pub struct WorkloadArgs {
    /// A list of workloads: quick, review, latency, a TOML file (docs/SUITES.md) or a fio job file, by
    /// the ending .toml or .fio. The options below hold for all its rows [default of compare: quick,
    /// unless --rw, --bs, --bssplit or --iodepth is given]
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["rw", "bs", "bssplit", "iodepth"])]
    pub suite: Option<String>,
    /// read, write, randread, randwrite, rw, randrw, trim or randtrim (deallocates; the userspace driver
    /// alone)
    #[arg(long, value_name = "PATTERN", alias = "readwrite")]
    pub rw: Option<Rw>,
    /// Block size
    #[arg(long, value_name = "SIZE", value_parser = block_size, alias = "blocksize")]
    pub bs: Option<u32>,
    /// Block sizes that differ, each with its percent of the I/Os, as 4k/60:64k/40; those of writes
    /// behind a comma, where they are others. Offsets are multiples of the smallest
    #[arg(long, value_name = "SIZE/PERCENT:…", conflicts_with = "bs")]
    pub bssplit: Option<BsSplit>,
    /// I/Os in flight, a worker and drive
    #[arg(long, value_name = "N")]
    pub iodepth: Option<u32>,
    /// Workers a drive, each with a queue, a thread and a processor of its own [default: 1]
    #[arg(long, value_name = "N")]
    pub numjobs: Option<u32>,
    /// Reads of a mixed pattern, in percent [default: 50]
    #[arg(long, value_name = "PERCENT")]
    pub rwmixread: Option<u8>,
    /// Where the used stretch of the target begins [default: 0]
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub offset: Option<Amount>,
    /// How long it is [default: to the target's end]
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub size: Option<Amount>,
    /// A flush after every so many writes [default: none]
    #[arg(long, value_name = "N")]
    pub fsync: Option<u32>,
    /// What each write waits for: none (the drive's word), dsync (the data on the medium; FUA, O_DSYNC)
    /// or sync (a file system's notes as well; FUA, O_SYNC) [default: none]
    #[arg(long, value_name = "WHAT")]
    pub sync: Option<SyncMode>,
    /// An open load: so many I/Os of each worker fall due each second, whatever the drive does, and
    /// latencies run from then. --iodepth is the most that are sent at once
    #[arg(long, value_name = "N", alias = "rate_iops")]
    pub rate_iops: Option<u32>,
    /// How they arrive: linear (at equal distances) or poisson [default: linear]
    #[arg(long, value_name = "HOW", alias = "rate_process")]
    pub rate_process: Option<RateProcess>,
    /// Where random I/O goes: random (everywhere alike), zipf:THETA, pareto:PART, normal:PERCENT,
    /// zoned:IOS/SIZE:… [default: random]. zipf:1.2 has hot blocks all over the range; pareto:0.2 gives
    /// a fifth of the blocks four fifths of the I/Os; zoned:80/20:20/80 does so by place, and
    /// zoned_abs:80/1g:20/9g by bytes
    #[arg(long, value_name = "HOW", alias = "random_distribution")]
    pub random_distribution: Option<Distribution>,
    /// Each worker's range begins so far behind the one before, and reaches as far as --size says or
    /// to the target's end [default: one range for all, of which sequential workers have a share each]
    #[arg(long, value_name = "SIZE|PERCENT", alias = "offset_increment")]
    pub offset_increment: Option<Amount>,
    /// A worker does nothing for so long (microseconds, or with a suffix) after every
    /// --thinktime-blocks I/Os, once they completed [default: none]
    #[arg(long, value_name = "TIME", value_parser = time_us)]
    pub thinktime: Option<u64>,
    /// I/Os from one think time to the next [default: 1]
    #[arg(long, value_name = "N", alias = "thinktime_blocks")]
    pub thinktime_blocks: Option<u32>,
    /// Write zeros [default: random bytes, other ones for each I/O in flight]
    #[arg(long, alias = "zero_buffers")]
    pub zero_buffers: bool,
    /// So much of each 512 bytes that are written are zeros [default: 0]
    #[arg(
        long,
        value_name = "PERCENT",
        alias = "buffer_compress_percentage",
        conflicts_with = "zero_buffers"
    )]
    pub buffer_compress_percentage: Option<u8>,
    /// New random bytes for each write, so that no two are alike; the worker makes them while the drive
    /// waits [default: once, before the measurement]
    #[arg(long, alias = "refill_buffers")]
    pub refill_buffers: bool,
    /// Write content that says where and when, check it whenever it is read, and read it all back at
    /// the end. Without writes, check what an earlier --verify wrote. A wrong block is named, with how
    /// it is wrong, and the exit status is 1. Workers share the range; the time per I/O is no drive's
    #[arg(long)]
    pub verify: bool,
    /// Seed of the random offsets; the same seed gives the same I/O [default: 0]
    #[arg(long, value_name = "N")]
    pub randseed: Option<u64>,
}

impl WorkloadArgs {
    /// Whether the pattern, block size or depth was given: then there is one workload, no suite.
    pub fn names_one(&self) -> bool {
        self.rw.is_some() || self.bs.is_some() || self.bssplit.is_some() || self.iodepth.is_some()
    }

    /// The workload that was typed, fio's defaults for the rest (but for the pattern: random).
    pub fn one(&self) -> Workload {
        let rw = self.rw.unwrap_or(Rw::RandRead);
        self.apply(Workload::new(rw, self.bs.unwrap_or(4096), self.iodepth.unwrap_or(1)))
    }

    /// A suite's workload with the options that hold for all.
    pub fn apply(&self, workload: Workload) -> Workload {
        Workload {
            numjobs: self.numjobs.unwrap_or(workload.numjobs),
            rwmixread: self.rwmixread.unwrap_or(workload.rwmixread),
            offset: self.offset.unwrap_or(workload.offset),
            size: self.size.or(workload.size),
            fsync: self.fsync.unwrap_or(workload.fsync),
            // Of a suite's rows those that write.
            sync: self.sync.filter(|_| workload.rw.stores()).unwrap_or(workload.sync),
            seed: self.randseed.unwrap_or(workload.seed),
            rate_iops: self.rate_iops.or(workload.rate_iops),
            rate_process: self.rate_process.unwrap_or(workload.rate_process),
            random_distribution: self
                .random_distribution
                .clone()
                .unwrap_or_else(|| workload.random_distribution.clone()),
            offset_increment: self.offset_increment.unwrap_or(workload.offset_increment),
            thinktime_us: self.thinktime.unwrap_or(workload.thinktime_us),
            thinktime_blocks: self.thinktime_blocks.unwrap_or(workload.thinktime_blocks),
            buffers: Buffers {
                zero: self.zero_buffers || workload.buffers.zero,
                compress_percentage: self
                    .buffer_compress_percentage
                    .unwrap_or(workload.buffers.compress_percentage),
                refill: self.refill_buffers || workload.buffers.refill,
            },
            verify: self.verify || workload.verify,
            ..workload
        }
        .split(self.bssplit.clone())
    }
}
