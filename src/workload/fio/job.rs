//! The keys of a job, each of them followed, refused, or done in another way and said so.

use super::Section;
use crate::workload::arrivals::RateProcess;
use crate::workload::buffers::Buffers;
use crate::workload::distribution::Distribution;
use crate::workload::rw::Rw;
use crate::workload::spec::Workload;
use crate::workload::split::BsSplit;
use crate::workload::suite::{FileName, SuiteError, SuiteTiming};
use crate::workload::sync::SyncMode;
use crate::workload::units::{Amount, format_size, parse_time, parse_time_us};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest runtime and ramp.
const TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A job, and what the sections above gave it.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) line: usize,
    /// It begins when the one before it has ended.
    pub(super) waits: bool,
    pub(super) timing: SuiteTiming,
    pub(super) filename: Option<FileName>,
    kib_bytes: KbBase,
    rw: Rw,
    bs_bytes: u32,
    iodepth: u32,
    numjobs: u32,
    rwmixread: u8,
    offset: Amount,
    size: Option<Amount>,
    filesize: Option<Amount>,
    fsync: u32,
    sync: SyncMode,
    /// As `randrepeat` has it.
    seed: u64,
    randseed: Option<u64>,
    rate_iops: Option<u32>,
    rate_process: RateProcess,
    bssplit: Option<BsSplit>,
    /// Of trims, where they have a size of their own.
    trim_bytes: Option<u32>,
    random_distribution: Distribution,
    offset_increment: Amount,
    thinktime_us: u64,
    thinktime_blocks: u32,
    buffers: Buffers,
    verify: bool,
    is_direct: bool,
    is_time_based: bool,
    /// What is done in another way, by key.
    notes: Vec<(&'static str, String)>,
}

/// What fio's `kb_base` makes of suffixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KbBase {
    /// The default: k and kb are 1024 bytes, and ki and kib 1000 (fio's HOWTO, "Parameter types").
    Binary,
    /// As IEC 80000-13 has it: kb is 1000 bytes, kib 1024.
    Decimal,
}

impl Default for Job {
    /// fio's defaults.
    fn default() -> Self {
        Self {
            name: String::new(),
            line: 0,
            waits: false,
            timing: SuiteTiming::default(),
            filename: None,
            kib_bytes: KbBase::Binary,
            rw: Rw::Read,
            bs_bytes: 4096,
            iodepth: 1,
            numjobs: 1,
            rwmixread: 50,
            offset: Amount::default(),
            size: None,
            filesize: None,
            fsync: 0,
            sync: SyncMode::None,
            seed: 0,
            randseed: None,
            rate_iops: None,
            rate_process: RateProcess::Linear,
            bssplit: None,
            trim_bytes: None,
            random_distribution: Distribution::Random,
            offset_increment: Amount::default(),
            thinktime_us: 0,
            thinktime_blocks: 1,
            buffers: Buffers::default(),
            verify: false,
            is_direct: false,
            is_time_based: false,
            notes: Vec::new(),
        }
    }
}

impl Job {
    /// Takes a section's keys; `kb_base` before the others, as fio does.
    pub(super) fn take(&mut self, section: &Section, path: &Path) -> Result<(), SuiteError> {
        let (bases, rest): (Vec<_>, Vec<_>) =
            section.keys.iter().partition(|(_, key, _)| key == "kb_base");
        for (line, key, value) in bases.into_iter().chain(rest) {
            self.key(*line, key, value.as_deref()).map_err(|what| {
                let said =
                    value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}={value}"));
                SuiteError::line(path, *line, format!("{said}: {what}"))
            })?;
        }
        Ok(())
    }

    /// Follows a key.
    fn key(&mut self, line: usize, key: &str, value: Option<&str>) -> Result<(), String> {
        if self.flag_key(key, value)? || self.noted_key(key, value) {
            return Ok(());
        }
        let value = value.ok_or("this key needs a value")?;
        match key {
            "rw" | "readwrite" => self.rw = value.parse().map_err(|error| format!("{error}"))?,
            "bs" | "blocksize" => self.block_size(value)?,
            "bssplit" => {
                let split = BsSplit::parse(value, |size| self.bytes(size));
                self.bssplit = Some(split.map_err(|error| error.to_string())?);
            }
            "random_distribution" => {
                let distribution = Distribution::parse(value, |size| self.bytes(size));
                self.random_distribution = distribution.map_err(|error| error.to_string())?;
            }
            "offset_increment" => self.offset_increment = self.amount(value)?,
            "thinktime" => {
                self.thinktime_us = parse_time_us(value).map_err(|error| error.to_string())?;
            }
            "thinktime_blocks" => self.thinktime_blocks = self.count(value)?,
            "buffer_compress_percentage" => self.buffers.compress_percentage = percent(value)?,
            "iodepth" => self.iodepth = self.count(value)?,
            "numjobs" => self.numjobs = self.count(value)?,
            "rwmixread" => self.rwmixread = percent(value)?,
            "rwmixwrite" => self.rwmixread = 100 - percent(value)?,
            "offset" => self.offset = self.amount(value)?,
            "size" => self.size = Some(self.amount(value)?),
            "filesize" => self.filesize = Some(self.amount(value)?),
            "fsync" => self.fsync = self.count(value)?,
            "sync" => self.sync = value.parse().map_err(|error| format!("{error}"))?,
            "rate_iops" => self.rate_iops = Some(self.count(value)?),
            "rate_process" => {
                self.rate_process = value.parse().map_err(|error| format!("{error}"))?;
            }
            "randseed" => self.randseed = Some(self.bytes(value)?),
            "runtime" | "timeout" => self.timing.runtime = Some(time(value)?),
            "ramp_time" => self.timing.ramp = Some(time(value)?),
            "number_ios" => self.timing.number_ios = Some(self.bytes(value)?),
            "name" => value.clone_into(&mut self.name),
            "filename" => {
                let names = file_names(value);
                self.filename = Some(FileName { line, names });
            }
            "kb_base" => {
                self.kib_bytes = match value {
                    "1024" => KbBase::Binary,
                    "1000" => KbBase::Decimal,
                    _ => return Err("it is 1024 or 1000".to_owned()),
                }
            }
            // What changes how fio prints, and no I/O.
            "description" | "unit_base" | "percentile_list" => {}
            _ => return self.refused(key, value),
        }
        Ok(())
    }

    /// Keys that are on or off; whether `key` is one.
    fn flag_key(&mut self, key: &str, value: Option<&str>) -> Result<bool, String> {
        let on = || flag(value);
        match key {
            "stonewall" | "wait_for_previous" => self.waits = on()?,
            "time_based" => self.is_time_based = on()?,
            "direct" if on()? => self.is_direct = true,
            "buffered" if !on()? => self.is_direct = true,
            "direct" | "buffered" => {
                return Err("nvpoll has no I/O through the page cache; write direct=1, or measure this with fio".to_owned());
            }
            "randrepeat" | "allrandrepeat" => {
                // The seed is in the result, so that this run can be repeated all the same.
                self.seed = if on()? { 0 } else { seed_of_now() };
            }
            // True here, whatever they say: no map is kept, workers are threads, figures are of the
            // whole group; and what only changes what is printed.
            "norandommap"
            | "thread"
            | "group_reporting"
            | "new_group"
            | "lat_percentiles"
            | "clat_percentiles"
            | "slat_percentiles"
            | "disable_lat"
            | "disable_clat"
            | "disable_slat"
            | "disable_bw_measurement"
            | "disable_bw" => {
                on()?;
            }
            "zero_buffers" => self.buffers.zero = on()?,
            "refill_buffers" => self.buffers.refill = on()?,
            // Nothing is cached, so that there is nothing to drop.
            "invalidate" => {
                on()?;
            }
            // Targets are there already.
            "create_on_open" | "create_serialize" | "overwrite" | "allow_file_create" => {
                on()?;
            }
            "verify" => self.verify(value)?,
            "sync" | "loops" => return self.only_off(key, value),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// fio's ways to check content. Each that says whether a block is what was written is ours: place,
    /// write and every byte. (Of `meta` fio compares place and number alone.)
    fn verify(&mut self, value: Option<&str>) -> Result<(), String> {
        const CHECKS: [&str; 16] = [
            "md5",
            "crc64",
            "crc32c",
            "crc32c-intel",
            "crc32",
            "crc16",
            "crc7",
            "xxhash",
            "sha1",
            "sha256",
            "sha512",
            "sha3-224",
            "sha3-256",
            "sha3-384",
            "sha3-512",
            "meta",
        ];
        let value = value.unwrap_or_default();
        self.notes.retain(|(known, _)| *known != "verify");
        self.verify = CHECKS.contains(&value);
        match value {
            "0" | "none" => Ok(()),
            _ if self.verify => {
                self.notes.push(("verify", format!(
                    "verify={value} is --verify here: each block says its place and which write made it, and all its bytes are compared; after the window all that was written is read back"
                )));
                Ok(())
            }
            "pattern" | "pattern_hdr" => Err(
                "nvpoll's --verify has content of its own, and writes no pattern; use verify=crc32c or run this with fio".to_owned(),
            ),
            _ => Err(format!(
                "nvpoll does not check content that way; what it can follow is 0, none, {}",
                CHECKS.join(", ")
            )),
        }
    }

    /// Keys whose "off" alone is followed.
    fn only_off(&self, key: &str, value: Option<&str>) -> Result<bool, String> {
        let off = if key == "loops" { ["1", "1"] } else { ["0", "none"] };
        match value {
            Some(value) if off.contains(&value) => Ok(true),
            _ => Err(format!(
                "nvpoll follows {key}={} only; remove it, or run this with fio",
                off[0]
            )),
        }
    }

    /// Keys that are done in another way; whether `key` is one.
    fn noted_key(&mut self, key: &str, value: Option<&str>) -> bool {
        let value = value.unwrap_or("1");
        let (kind, note) = match key {
            "ioengine" => (
                "ioengine",
                format!("ioengine={value} is not followed: --engine and --engines choose"),
            ),
            "hipri" | "fixedbufs" | "registerfiles" | "sqthread_poll" | "sqthread_poll_cpu"
            | "nonvectored" | "force_async" | "cmd_type" | "userspace_reap" => (
                "engine",
                format!(
                    "{key} is an option of fio's engine and is not followed: nvpoll's engines say in their facts how they ran"
                ),
            ),
            "iodepth_batch"
            | "iodepth_batch_submit"
            | "iodepth_batch_complete"
            | "iodepth_batch_complete_min"
            | "iodepth_batch_complete_max"
            | "iodepth_low" => (
                "batch",
                format!(
                    "{key} is not followed: what completed in a pass is sent again in one batch"
                ),
            ),
            "write_lat_log" | "write_bw_log" | "write_iops_log" | "write_hist_log"
            | "log_avg_msec" | "log_hist_msec" | "log_max_value" | "log_offset"
            | "per_job_logs" | "bwavgtime" | "iopsavgtime" => {
                ("log", format!("{key} is not followed: nvpoll writes no log files"))
            }
            "gtod_reduce" | "gtod_cpu" | "clocksource" => (
                "clock",
                format!(
                    "{key} is not followed: the clock is read once a pass, and latencies are always measured"
                ),
            ),
            _ => return false,
        };
        self.notes.retain(|(known, _)| *known != kind);
        self.notes.push((kind, note));
        true
    }

    fn refused(&self, key: &str, _value: &str) -> Result<(), String> {
        Err(match key {
            "directory" | "filename_format" | "nrfiles" | "openfiles" | "opendir" => {
                "nvpoll makes no files and finds none by pattern; name the targets on the command line".to_owned()
            }
            "cpus_allowed" | "cpumask" | "cpus_allowed_policy" | "numa_cpu_nodes" => {
                "processors are chosen with --cpus".to_owned()
            }
            _ => "nvpoll does not know this key, and ignores none; remove it, or run this with fio".to_owned(),
        })
    }

    /// The row.
    pub(super) fn workload(&self) -> Result<Workload, String> {
        let size = self.size.or(self.filesize);
        if let (Some(size), Some(filesize)) = (self.size, self.filesize)
            && size != filesize
        {
            return Err(format!(
                "size={size} and filesize={filesize} differ; nvpoll's size is the stretch that is used"
            ));
        }
        let own = self.trim_bytes.filter(|_| self.rw.trims());
        let workload = Workload {
            name: self.name.clone(),
            numjobs: self.numjobs,
            rwmixread: self.rwmixread,
            offset: self.offset,
            size,
            fsync: self.fsync,
            // fio lets it stand where nothing is written, and does nothing for it.
            sync: if self.rw.stores() { self.sync } else { SyncMode::None },
            // One that is named goes before randrepeat, wherever it stands.
            seed: self.randseed.unwrap_or(self.seed),
            rate_iops: self.rate_iops,
            rate_process: self.rate_process,
            random_distribution: self.random_distribution.clone(),
            offset_increment: self.offset_increment,
            thinktime_us: self.thinktime_us,
            thinktime_blocks: self.thinktime_blocks,
            buffers: self.buffers,
            verify: self.verify,
            ..Workload::new(self.rw, own.unwrap_or(self.bs_bytes), self.iodepth)
        }
        .split(self.bssplit.clone().filter(|_| own.is_none()));
        workload.check().map_err(|error| error.to_string())?;
        Ok(workload)
    }

    /// What is done in another way than fio would.
    pub(super) fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.notes.iter().map(|(_, note)| note.clone()).collect();
        if !self.is_direct {
            notes.push(
                "direct=1 is missing: fio would go through the page cache, nvpoll never does"
                    .to_owned(),
            );
        }
        if self.timing.number_ios.is_none() && !self.is_time_based {
            notes.push("time_based is missing: fio would end when size is done, nvpoll goes on until the runtime is over".to_owned());
        }
        if self.rate_iops.is_some() {
            notes.push("rate_iops is an open load here: latencies run from when an I/O was due, where fio's run from when it was sent".to_owned());
        }
        if self.numjobs > 1
            && !self.rw.is_random()
            && matches!(self.offset_increment, Amount::Bytes(0) | Amount::Percent(0))
        {
            notes.push("numjobs of a sequential pattern: fio starts all at the same place, nvpoll gives each a share of its own".to_owned());
        }
        notes
    }

    /// One size, or one of reads and one of writes.
    fn block_size(&mut self, value: &str) -> Result<(), String> {
        let size = |text: &str| {
            let bytes = self.bytes(text)?;
            u32::try_from(bytes)
                .map_err(|_| format!("a block size of {} is too large", format_size(bytes)))
        };
        let mut sizes = value.split(',').filter(|part| !part.is_empty());
        let read = size(sizes.next().unwrap_or_default())?;
        let write = sizes.next().map(size).transpose()?.unwrap_or(read);
        self.trim_bytes = sizes.next().map(size).transpose()?;
        self.bs_bytes = read.max(write);
        self.bssplit = (read != write).then(|| BsSplit::sizes(read, write));
        Ok(())
    }

    fn amount(&self, value: &str) -> Result<Amount, String> {
        match value.strip_suffix('%') {
            Some(_) => value.parse().map_err(|error| format!("{error}")),
            None => self.bytes(value).map(Amount::Bytes),
        }
    }

    fn count(&self, value: &str) -> Result<u32, String> {
        let count = self.bytes(value)?;
        u32::try_from(count).map_err(|_| format!("{count} is too large"))
    }

    /// A number with fio's suffixes.
    fn bytes(&self, value: &str) -> Result<u64, String> {
        let bad = || format!("\"{value}\" is no number with fio's suffixes (4096, 4k, 1m, 0x1000)");
        let lower = value.to_ascii_lowercase();
        let (digits, radix) =
            lower.strip_prefix("0x").map_or((lower.as_str(), 10), |hex| (hex, 16));
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        let (digits, suffix) = digits.split_at(end);
        let power = match suffix.chars().next() {
            None | Some('b') => 0,
            Some('k') => 1,
            Some('m') => 2,
            Some('g') => 3,
            Some('t') => 4,
            Some('p') => 5,
            Some(_) => return Err(bad()),
        };
        let base: u64 = match (self.kib_bytes, suffix.get(1..).unwrap_or_default()) {
            (KbBase::Binary, "" | "b") | (KbBase::Decimal, "i" | "ib") => 1024,
            (KbBase::Decimal, "" | "b") | (KbBase::Binary, "i" | "ib") => 1000,
            _ => return Err(bad()),
        };
        let number = u64::from_str_radix(digits, radix).map_err(|_| bad())?;
        number.checked_mul(base.pow(power)).ok_or_else(|| format!("{value} exceeds 2^64"))
    }
}

fn percent(value: &str) -> Result<u8, String> {
    let percent = value.strip_suffix('%').unwrap_or(value).parse::<u8>().ok();
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| "it is a percentage from 0 to 100".to_owned())
}

fn time(value: &str) -> Result<Duration, String> {
    let time = parse_time(value).map_err(|error| error.to_string())?;
    if time > TIME_MAX {
        return Err("at most 7 days are possible".to_owned());
    }
    Ok(time)
}

fn flag(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err("it is 0 or 1".to_owned()),
    }
}

fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().wrapping_mul(1_000_000_007).wrapping_add(since.subsec_nanos().into())
}

/// The names in a list: a colon parts them, one behind a backslash belongs to the name.
fn file_names(value: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    for part in value.split_inclusive(':') {
        let Some(name) = names.last_mut() else { break };
        match (part.strip_suffix("\\:"), part.strip_suffix(':')) {
            (Some(escaped), _) => name.extend([escaped, ":"]),
            (None, Some(end)) => {
                name.push_str(end);
                names.push(String::new());
            }
            (None, None) => name.push_str(part),
        }
    }
    // As fio does, an empty one is passed over.
    names.retain(|name| !name.is_empty());
    names
}
