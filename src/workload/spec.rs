//! One workload's description, and the stretch of a target that it covers.

use super::arrivals::RateProcess;
use super::buffers::Buffers;
use super::distribution::Distribution;
use super::rw::Rw;
use super::split::BsSplit;
use super::sync::SyncMode;
use super::units::{Amount, TextOrNumber, format_size};
use serde::{Deserialize, Deserializer, Serialize, de};

/// Largest I/O.
pub const BS_BYTES_MAX: u32 = 64 << 20;

/// Most I/Os in flight a worker: tags are 16 bits wide, and a queue keeps one slot empty.
pub const IODEPTH_MAX: u32 = 65_535;

/// One microsecond more than the longest think time.
const THINKTIME_US_MAX: u64 = 3_600_000_001;

/// Most workers a target.
pub const NUMJOBS_MAX: u32 = 1024;

/// One row's workload. Names and meaning are fio's, where fio has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// What the row is called: `randread-4k-qd32`.
    pub name: String,
    /// Access pattern.
    pub rw: Rw,
    /// Bytes an I/O.
    #[serde(rename = "bs", with = "bs_serde")]
    pub bs_bytes: u32,
    /// I/Os in flight a worker.
    pub iodepth: u32,
    /// Workers a target, each with a queue, a thread and a processor of its own.
    pub numjobs: u32,
    /// Reads of a mixed pattern, in percent.
    #[serde(default = "rwmixread_default")]
    pub rwmixread: u8,
    /// Where the stretch that is used begins. A percentage is rounded down to a whole I/O.
    #[serde(default)]
    pub offset: Amount,
    /// How long it is; `None` reaches to the target's end.
    #[serde(default)]
    pub size: Option<Amount>,
    /// A flush after every so many writes of a worker; 0 for none.
    #[serde(default)]
    pub fsync: u32,
    /// What each write waits for.
    #[serde(default)]
    pub sync: SyncMode,
    /// Seed of all random draws: the same seed gives the same operations.
    #[serde(default)]
    pub seed: u64,
    /// An open load: I/Os of a worker that fall due each second, whatever the target does. `None`: as
    /// many as the depth lets through.
    #[serde(default)]
    pub rate_iops: Option<u32>,
    /// How the I/Os of an open load arrive.
    #[serde(default)]
    pub rate_process: RateProcess,
    /// Sizes that differ; `bs` is then the largest of them.
    #[serde(default)]
    pub bssplit: Option<BsSplit>,
    /// Where random offsets fall.
    #[serde(default)]
    pub random_distribution: Distribution,
    /// Each worker's range begins so far behind the one before; 0: they have one range together.
    #[serde(default)]
    pub offset_increment: Amount,
    /// How long a worker does nothing after every `thinktime_blocks` I/Os, in microseconds; 0: never.
    #[serde(default)]
    pub thinktime_us: u64,
    /// I/Os from one think time to the next.
    #[serde(default = "thinktime_blocks_default")]
    pub thinktime_blocks: u32,
    /// What is written.
    #[serde(default)]
    pub buffers: Buffers,
    /// What is written says where and when, and is checked when it is read.
    #[serde(default)]
    pub verify: bool,
}

const fn thinktime_blocks_default() -> u32 {
    1
}

const fn rwmixread_default() -> u8 {
    50
}

/// A block size: a number in JSON; read from text such as `4k`, too.
mod bs_serde {
    use super::{Amount, Deserializer, TextOrNumber, de};
    use serde::Serializer;

    /// As a number.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(bs_bytes: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(*bs_bytes)
    }

    /// From a number or a text.
    ///
    /// # Errors
    /// When it is neither, or more than 32 bits hold.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let amount =
            deserializer.deserialize_any(TextOrNumber("a block size such as 4096 or 4k"))?;
        let Amount::Bytes(bytes) = amount else {
            return Err(de::Error::custom("a block size is no percentage"));
        };
        u32::try_from(bytes)
            .map_err(|_| de::Error::custom(format_args!("a block size of {bytes} is too large")))
    }
}

/// A workload that cannot be run, on any target or on this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// Block size out of bounds.
    #[error("--bs {0}: a block size is at least 1 byte and at most {max}", max = format_size(BS_BYTES_MAX.into()))]
    Bs(u32),
    /// Depth out of bounds.
    #[error("--iodepth {0}: a depth is at least 1 and at most {IODEPTH_MAX}")]
    Iodepth(u32),
    /// Worker count out of bounds.
    #[error("--numjobs {0}: at least 1 worker and at most {NUMJOBS_MAX}")]
    Numjobs(u32),
    /// A wait of writes where there is none.
    #[error("--sync {0}: {1} writes nothing that could wait for the medium; leave it out")]
    Sync(SyncMode, Rw),
    /// Mix out of bounds.
    #[error("--rwmixread {0}: at most 100 (percent)")]
    Rwmixread(u8),
    /// A rate of nothing.
    #[error("--rate-iops 0: no I/O would ever be due; give at least 1, or leave it out")]
    Rate,
    /// Arrivals without a rate.
    #[error("--rate-process {0}: there is no rate to keep; give --rate-iops as well")]
    RateProcess(RateProcess),
    /// Think times that cannot be kept.
    #[error("--thinktime: {0}")]
    Thinktime(&'static str),
    /// Buffers that cannot be made.
    #[error("--buffer-compress-percentage {0}: at most 100 (percent)")]
    Compress(u8),
    /// Buffers of what moves no data.
    #[error(
        "--rw trim and randtrim move no data; leave --zero-buffers, --refill-buffers and --buffer-compress-percentage out"
    )]
    Trim,
    /// Content that cannot be checked.
    #[error("--verify: {0}")]
    Verify(&'static str),
    /// Block size against the target's blocks.
    #[error(
        "--bs {}: the target has blocks of {block_bytes} bytes, and a block size must be a multiple of it",
        format_size((*bs_bytes).into())
    )]
    BsAlign {
        /// Asked for.
        bs_bytes: u32,
        /// The target's.
        block_bytes: u32,
    },
    /// Offset or size against the target's blocks.
    #[error(
        "--{option} {value}: the target has blocks of {block_bytes} bytes, and it must be a multiple of it"
    )]
    RangeAlign {
        /// `offset` or `size`.
        option: &'static str,
        /// Asked for, in bytes.
        value: u64,
        /// The target's.
        block_bytes: u32,
    },
    /// Past the end.
    #[error(
        "--offset {offset} --size {size}: the range ends past the target's end at {target_bytes} bytes; make one smaller"
    )]
    PastEnd {
        /// Asked for.
        offset: Amount,
        /// Asked for, or what was left.
        size: Amount,
        /// The target's size.
        target_bytes: u64,
    },
    /// Zones of so many bytes that do not fit.
    #[error(
        "--random-distribution {zones}: its zones end past the {range_bytes} bytes of the range; make them smaller, or give them in percent with zoned"
    )]
    Zones {
        /// Asked for.
        zones: Distribution,
        /// What --offset and --size leave.
        range_bytes: u64,
    },
    /// No room for one I/O of each worker.
    #[error(
        "the range of {range_bytes} bytes has no room for {needed} I/O(s) of {bs}; make --size larger or --bs smaller",
        bs = format_size((*bs_bytes).into())
    )]
    TooSmall {
        /// What --offset and --size leave.
        range_bytes: u64,
        /// Asked for.
        bs_bytes: u32,
        /// I/Os that must fit: one, or for a sequential pattern one a worker.
        needed: u32,
    },
}

/// The stretch of a target that a workload covers, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset_bytes: u64,
    /// I/Os of the smallest size that fit, at least 1; what is left behind the last is not used.
    pub ios: u64,
}

impl Workload {
    /// A workload with fio's defaults for the rest, named after its figures.
    pub fn new(rw: Rw, bs_bytes: u32, iodepth: u32) -> Self {
        let name = format!("{rw}-{}-qd{iodepth}", format_size(bs_bytes.into()));
        Self {
            name,
            rw,
            bs_bytes,
            iodepth,
            numjobs: 1,
            rwmixread: rwmixread_default(),
            offset: Amount::default(),
            size: None,
            fsync: 0,
            sync: SyncMode::None,
            seed: 0,
            rate_iops: None,
            rate_process: RateProcess::Linear,
            bssplit: None,
            random_distribution: Distribution::Random,
            offset_increment: Amount::default(),
            thinktime_us: 0,
            thinktime_blocks: thinktime_blocks_default(),
            buffers: Buffers::default(),
            verify: false,
        }
    }

    /// The same with sizes that differ: the buffers are as large as the largest, and the name says so.
    pub fn split(self, bssplit: Option<BsSplit>) -> Self {
        let Some(split) = bssplit else { return self };
        let plain = Self::new(self.rw, self.bs_bytes, self.iodepth).name;
        let name = match self.name == plain {
            true => format!("{}-split-qd{}", self.rw, self.iodepth),
            false => self.name,
        };
        Self { name, bs_bytes: split.bytes_max(), bssplit: Some(split), ..self }
    }

    /// The unit of all offsets in bytes: the smallest size.
    pub fn unit_bytes(&self) -> u32 {
        self.bssplit.as_ref().map_or(self.bs_bytes, BsSplit::bytes_min)
    }

    /// In words, what beyond pattern, sizes and range makes it another workload than a plain one.
    pub fn peculiarities(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.rw.is_random() && self.random_distribution != Distribution::Random {
            words.push(self.random_distribution.to_string());
        }
        if self.has_own_ranges() {
            words.push(format!("each worker {} further on", self.offset_increment));
        }
        if self.thinktime_us > 0 {
            let Self { thinktime_us, thinktime_blocks, .. } = self;
            words.push(format!("{thinktime_us} us of thought after {thinktime_blocks} I/O(s)"));
        }
        if self.rw.writes() {
            let waits =
                (self.sync != SyncMode::None).then(|| format!("each write with {}", self.sync));
            words.extend(waits);
            let Buffers { zero, compress_percentage, refill } = self.buffers;
            words.extend(zero.then(|| "writes zeros".to_owned()));
            words.extend(
                (compress_percentage > 0).then(|| format!("{compress_percentage} % of it zeros")),
            );
            words.extend(refill.then(|| "new bytes for each write".to_owned()));
        }
        words.extend(self.verify.then(|| "content checked".to_owned()));
        words
    }

    /// Whether each worker has a range of its own, by `offset_increment`.
    pub fn has_own_ranges(&self) -> bool {
        !matches!(self.offset_increment, Amount::Bytes(0) | Amount::Percent(0))
    }

    /// Whether it makes sense on any target.
    ///
    /// # Errors
    /// [`WorkloadError`] with the option, its value and its bounds.
    pub fn check(&self) -> Result<(), WorkloadError> {
        if !(1..=BS_BYTES_MAX).contains(&self.bs_bytes) {
            return Err(WorkloadError::Bs(self.bs_bytes));
        }
        if !(1..=IODEPTH_MAX).contains(&self.iodepth) {
            return Err(WorkloadError::Iodepth(self.iodepth));
        }
        if !(1..=NUMJOBS_MAX).contains(&self.numjobs) {
            return Err(WorkloadError::Numjobs(self.numjobs));
        }
        if self.rwmixread > 100 {
            return Err(WorkloadError::Rwmixread(self.rwmixread));
        }
        if self.rate_iops == Some(0) {
            return Err(WorkloadError::Rate);
        }
        if self.rate_iops.is_none() && self.rate_process != RateProcess::Linear {
            return Err(WorkloadError::RateProcess(self.rate_process));
        }
        if let Some(bytes) =
            self.bssplit.as_ref().and_then(|split| split.find(|b| !(1..=BS_BYTES_MAX).contains(&b)))
        {
            return Err(WorkloadError::Bs(bytes));
        }
        if self.rw.trims() && self.buffers != Buffers::default() {
            return Err(WorkloadError::Trim);
        }
        if self.sync != SyncMode::None && !self.rw.stores() {
            return Err(WorkloadError::Sync(self.sync, self.rw));
        }
        if self.buffers.compress_percentage > 100 {
            return Err(WorkloadError::Compress(self.buffers.compress_percentage));
        }
        self.check_thinktime()?;
        self.check_verify()
    }

    fn check_thinktime(&self) -> Result<(), WorkloadError> {
        let wrong = match (self.thinktime_us, self.thinktime_blocks) {
            (_, 0) => "--thinktime-blocks 0 never comes; give at least 1",
            (1.., _) if self.rate_iops.is_some() => {
                "--rate-iops says when I/Os are due as well; leave one of them out"
            }
            (THINKTIME_US_MAX.., _) => "at most one hour is possible",
            _ => return Ok(()),
        };
        Err(WorkloadError::Thinktime(wrong))
    }

    fn check_verify(&self) -> Result<(), WorkloadError> {
        if !self.verify {
            return Ok(());
        }
        let unit_bytes = self.unit_bytes().max(1);
        let is_odd = |bytes: u32| !bytes.is_multiple_of(unit_bytes);
        Err(WorkloadError::Verify(if self.rw.trims() {
            "what a trim leaves is the drive's to say; leave one of them out"
        } else if self.bssplit.as_ref().is_some_and(|split| split.find(is_odd).is_some()) {
            "an I/O would end inside another one's block; give --bssplit sizes that are multiples of the smallest"
        } else if self.has_own_ranges() && self.numjobs > 1 {
            "workers whose ranges may overlap would overwrite each other's blocks; leave --offset-increment out: each has a share of its own"
        } else if self.numjobs > 1 && matches!(self.random_distribution, Distribution::ZonedAbs(_))
        {
            "workers have a share of the range each, and the zones of zoned_abs are of the whole; give zones in percent (zoned) or one worker"
        } else if unit_bytes < 64 {
            "a block of less than 64 bytes cannot say what it is; use a larger --bs"
        } else if self.buffers != Buffers::default() {
            "it fills the buffers by itself; leave --zero-buffers, --refill-buffers and --buffer-compress-percentage out"
        } else {
            return Ok(());
        }))
    }

    /// Whether it fits a target of `target_bytes` in blocks of `block_bytes`, and where the first
    /// worker then runs: all of them, unless each has a range of its own.
    ///
    /// # Errors
    /// [`WorkloadError`] with the option, its value and what the target has.
    pub fn span(&self, target_bytes: u64, block_bytes: u32) -> Result<Span, WorkloadError> {
        self.check()?;
        // What fits the last one fits the others.
        self.span_of(self.numjobs - 1, target_bytes, block_bytes)?;
        self.span_of(0, target_bytes, block_bytes)
    }

    /// Where `worker` (from 0) runs on a target of `target_bytes` in blocks of `block_bytes`.
    ///
    /// # Errors
    /// As [`span`](Self::span).
    pub fn span_of(
        &self,
        worker: u32,
        target_bytes: u64,
        block_bytes: u32,
    ) -> Result<Span, WorkloadError> {
        let block_bytes = block_bytes.max(1);
        let is_odd = |bytes: u32| !bytes.is_multiple_of(block_bytes);
        let odd = match &self.bssplit {
            Some(split) => split.find(is_odd),
            None => Some(self.bs_bytes).filter(|bytes| is_odd(*bytes)),
        };
        if let Some(bs_bytes) = odd {
            return Err(WorkloadError::BsAlign { bs_bytes, block_bytes });
        }
        let increment_bytes = self.offset_increment.of(target_bytes, self.bs_bytes);
        let offset_bytes = self.offset.of(target_bytes, self.bs_bytes);
        let first_bytes =
            offset_bytes.saturating_add(increment_bytes.saturating_mul(worker.into()));
        let left_bytes = target_bytes.saturating_sub(first_bytes);
        let size = self.size.unwrap_or(Amount::Bytes(left_bytes));
        let size_bytes = size.of(target_bytes, self.bs_bytes);
        let range =
            [("offset", offset_bytes), ("offset-increment", increment_bytes), ("size", size_bytes)];
        for (option, value) in range {
            // A size that was not given is what it is.
            let given = option != "size" || self.size.is_some();
            if given && !value.is_multiple_of(block_bytes.into()) {
                return Err(WorkloadError::RangeAlign { option, value, block_bytes });
            }
        }
        if first_bytes >= target_bytes || size_bytes > left_bytes {
            let offset = match worker {
                0 => self.offset,
                _ => Amount::Bytes(first_bytes),
            };
            return Err(WorkloadError::PastEnd { offset, size, target_bytes });
        }
        let shares = !self.has_own_ranges() && (!self.rw.is_random() || self.verify);
        let needed = if shares { self.numjobs } else { 1 };
        if size_bytes / u64::from(self.bs_bytes) < u64::from(needed) {
            return Err(WorkloadError::TooSmall {
                range_bytes: size_bytes,
                bs_bytes: self.bs_bytes,
                needed,
            });
        }
        if let Distribution::ZonedAbs(zones) = &self.random_distribution
            && self.rw.is_random()
            && zones.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add) > size_bytes
        {
            let zones = self.random_distribution.clone();
            return Err(WorkloadError::Zones { zones, range_bytes: size_bytes });
        }
        let ios = size_bytes / u64::from(self.unit_bytes().max(1));
        Ok(Span { offset_bytes: first_bytes, ios })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(bs_bytes: u32) -> Workload {
        Workload::new(Rw::RandRead, bs_bytes, 32)
    }

    #[test]
    fn named_after_its_figures() {
        assert_eq!(workload(4096).name, "randread-4k-qd32");
        assert_eq!(Workload::new(Rw::Read, 131_072, 1).name, "read-128k-qd1");
    }

    #[test]
    fn json_has_fios_names_and_takes_text() {
        let json = serde_json::to_value(workload(4096)).unwrap();
        for (key, value) in [("rw", "randread".into()), ("bs", 4096.into()), ("iodepth", 32.into())]
        {
            assert_eq!(json.get(key), Some::<&serde_json::Value>(&value), "{key}");
        }
        assert_eq!(serde_json::from_value::<Workload>(json).unwrap(), workload(4096));
        let least = r#"{"name": "x", "rw": "randrw", "bs": "64k", "iodepth": 4, "numjobs": 2}"#;
        let read: Workload = serde_json::from_str(least).unwrap();
        assert_eq!((read.bs_bytes, read.rwmixread, read.size), (65_536, 50, None));
        for bs in ["\"50%\"", "4294967296", "-1", "\"x\"", "null"] {
            let text = least.replace("\"64k\"", bs);
            assert!(serde_json::from_str::<Workload>(&text).is_err(), "{bs}");
        }
    }

    #[test]
    fn bounds_hold_on_any_target() {
        let edit = |change: fn(&mut Workload)| {
            let mut workload = workload(4096);
            change(&mut workload);
            workload.check()
        };
        assert_eq!(edit(|_| ()), Ok(()));
        assert_eq!(edit(|w| w.bs_bytes = 0), Err(WorkloadError::Bs(0)));
        assert_eq!(edit(|w| w.bs_bytes = u32::MAX), Err(WorkloadError::Bs(u32::MAX)));
        assert_eq!(edit(|w| w.iodepth = 0), Err(WorkloadError::Iodepth(0)));
        assert_eq!(edit(|w| w.iodepth = 65_536), Err(WorkloadError::Iodepth(65_536)));
        assert_eq!(edit(|w| w.numjobs = 0), Err(WorkloadError::Numjobs(0)));
        assert_eq!(edit(|w| w.numjobs = 1025), Err(WorkloadError::Numjobs(1025)));
        assert_eq!(edit(|w| w.rwmixread = 101), Err(WorkloadError::Rwmixread(101)));
        assert_eq!(edit(|w| w.rate_iops = Some(0)), Err(WorkloadError::Rate));
        let poisson = RateProcess::Poisson;
        let alone = Err(WorkloadError::RateProcess(poisson));
        assert_eq!(edit(|w| w.rate_process = RateProcess::Poisson), alone);
    }

    #[test]
    fn the_whole_target_to_its_last_whole_io() {
        let span = workload(4096).span((1 << 20) + 512, 512).unwrap();
        assert_eq!(span, Span { offset_bytes: 0, ios: 256 });
    }

    #[test]
    fn a_range_by_bytes_and_by_parts() {
        let mut part = workload(4096);
        part.offset = Amount::Bytes(512);
        part.size = Some(Amount::Bytes(8192 + 512));
        assert_eq!(part.span(1 << 20, 512), Ok(Span { offset_bytes: 512, ios: 2 }));
        part.offset = Amount::Percent(50);
        part.size = Some(Amount::Percent(50));
        assert_eq!(part.span(1 << 20, 512), Ok(Span { offset_bytes: 1 << 19, ios: 128 }));
    }

    #[test]
    fn what_does_not_fit_says_what_and_why() {
        let span = |bs: u32, offset: Amount, size: Option<Amount>, target: u64, block: u32| {
            let mut workload = workload(bs);
            (workload.offset, workload.size) = (offset, size);
            workload.span(target, block).unwrap_err().to_string()
        };
        let start = Amount::Bytes(0);
        let message = span(512, start, None, 1 << 20, 4096);
        assert!(message.starts_with("--bs 512: the target has blocks of 4096"), "{message}");
        let message = span(4096, Amount::Bytes(100), None, 1 << 20, 512);
        assert!(message.starts_with("--offset 100: the target has blocks of 512"), "{message}");
        let message = span(4096, start, Some(Amount::Bytes(5000)), 1 << 20, 512);
        assert!(message.starts_with("--size 5000: "), "{message}");
        let message = span(4096, Amount::Bytes(1 << 20), None, 1 << 20, 512);
        assert!(message.starts_with("--offset 1m --size 0: the range ends past"), "{message}");
        let message = span(4096, Amount::Percent(60), Some(Amount::Percent(60)), 1 << 20, 512);
        assert!(message.starts_with("--offset 60% --size 60%: "), "{message}");
        let message = span(4096, start, Some(Amount::Bytes(u64::MAX - 511)), 1 << 20, 512);
        assert!(message.contains("past the target's end at 1048576"), "{message}");
        let message = span(65_536, start, None, 32_768, 512);
        assert!(message.contains("no room for 1 I/O(s) of 64k"), "{message}");
    }

    #[test]
    fn sequential_workers_need_a_share_each() {
        let mut sequential = Workload::new(Rw::Write, 4096, 1);
        sequential.numjobs = 4;
        assert!(sequential.span(4 * 4096, 512).is_ok());
        assert!(matches!(
            sequential.span(3 * 4096, 512),
            Err(WorkloadError::TooSmall { needed: 4, .. })
        ));
    }
}
