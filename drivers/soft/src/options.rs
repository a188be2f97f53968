//! What a soft controller is like, and the text that says it: `soft[:key=value,…]`.

mod values;

pub(crate) use values::{Binary, binary, number};

use crate::metadata::BlockMetadata;
use crate::zoned::ZonedOptions;
use nvpoll_spec::GuardFormat;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use values::{Count, Time, count, flag, mdts, page, split, time, timeout};

/// Largest namespace, 1 PiB: more than any drive, and far from where a byte count overflows.
const SIZE_BYTES_MAX: u64 = 1 << 50;
/// Longest latency; a slower device is a fault, for which there are [`FaultHooks`](crate::FaultHooks).
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// Highest rate; one I/O a nanosecond is the clock's own grain.
const IOPS_MAX: u64 = 1_000_000_000;
/// Most metadata a block.
const METADATA_BYTES_MAX: u16 = 4096;
/// Largest MDTS, 4 KiB shifted left by this: 128 MiB.
const MDTS_LOG2_MAX: u8 = 15;
/// Largest CAP.MPSMIN and MPSMAX, 4 KiB shifted left by this: 64 KiB.
pub(crate) const PAGE_LOG2_MAX: u8 = 4;

/// Where a soft controller keeps its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// In memory, allocated where it is written to; what was never written reads as zeroes.
    #[default]
    Ram,
    /// In a regular file, which is made if it is absent and grown to the namespace's size.
    File(PathBuf),
    /// Nowhere: writes vanish and reads leave the host's memory as it is.
    Null,
}

/// How a soft controller is to be.
///
/// As text it is `soft` and, after a colon, options separated by commas:
///
/// | option | meaning | default |
/// | --- | --- | --- |
/// | `size=` | namespace in bytes, with a binary suffix `k`, `m`, `g`, `t` | `1G` |
/// | `lba=` | block in bytes, a power of two from 512 to 64k | `512` |
/// | `ms=` | metadata a block in bytes, a multiple of 8, at most 4096 | `0` |
/// | `mset=` | 1: metadata behind each block's data; 0: in memory of its own | `0` |
/// | `pi=` | protection information of type 1 to 3; 0 is none | `0` |
/// | `pil=` | 1: it is the metadata's first 8 bytes; 0: its last | `0` |
/// | `pif=` | 2: a guard of 64 bits, in 16 bytes; 0: of 16 bits | `0` |
/// | `zoned=` | a zone in bytes: the namespace is zoned | none |
/// | `zcap=` | bytes of a zone that may be written | all |
/// | `mar=`, `mor=` | most active and most open zones | no limit |
/// | `latency=` | from the command's fetch to its completion, with `ns`, `us`, `ms` or `s` | `0` |
/// | `iops=` | most I/Os a second; a count, so `k` and `m` are **decimal**: `500k` is 500,000 | no limit |
/// | `backing=` | `ram`, `null`, or `file` with `file=` | `ram` |
/// | `file=` | the backing file's path; a comma in it is written `\,` | |
/// | `mqes=` | most entries in an I/O queue, 2 to 65536 | `1024` |
/// | `mdts=` | largest transfer in bytes (`128k`), or the field itself (0 to 15; 0 is no limit) | `128k` |
/// | `mpsmin=` | CAP.MPSMIN in bytes: least memory page, a power of two from 4k to 64k | `4k` |
/// | `mpsmax=` | CAP.MPSMAX in bytes: largest memory page, `mpsmin` to 64k | `64k` |
/// | `queues=` | I/O queue pairs, 1 to 65535 | `64` |
/// | `stride=` | CAP.DSTRD, 0 to 15: doorbells stand 4 bytes shifted left by this apart | `0` |
/// | `timeout=` | CAP.TO, 500ms to 127500ms in steps of 500 ms | `10s` |
/// | `serial=` | serial number, 1 to 20 printable characters | `SOFT0001` |
/// | `shadow` | the controller has shadow doorbells (Doorbell Buffer Config) | none |
/// | `stepped` | the device runs inside the doorbell's ring instead of in a thread of its own | threaded |
///
/// [`Display`](fmt::Display) prints the canonical text, which parses back to the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftOptions {
    /// Bytes in the one namespace, a multiple of `lba_bytes`.
    pub size_bytes: u64,
    /// Bytes in a logical block, a power of two from 512 to 65,536.
    pub lba_bytes: u32,
    /// What a block has beside its data.
    pub metadata: BlockMetadata,
    /// What zones it has.
    pub zoned: ZonedOptions,
    /// From the fetch of an I/O command to its completion.
    pub latency: Duration,
    /// Most I/O commands completed in a second.
    pub iops: Option<u64>,
    /// Where the blocks are kept.
    pub backing: Backing,
    /// Most entries in an I/O queue (CAP.MQES plus one), 2 to 65,536.
    pub mqes: u32,
    /// MDTS: largest transfer, 4 KiB shifted left by this; 0 is no limit.
    pub mdts_log2: u8,
    /// CAP.MPSMIN: least memory page, 4 KiB shifted left by this; at most 4.
    pub page_log2_min: u8,
    /// CAP.MPSMAX: largest memory page, 4 KiB shifted left by this; at most 4.
    pub page_log2_max: u8,
    /// I/O queue pairs, at least one.
    pub queues: u16,
    /// CAP.DSTRD: doorbell stride, 4 bytes shifted left by this; at most 15.
    pub stride: u8,
    /// CAP.TO: the longest that CSTS.RDY may take, in units of 500 ms; at least one.
    pub timeout_500ms: u8,
    /// The controller has shadow doorbells.
    pub shadow: bool,
    /// The device runs in the caller's thread, inside the doorbell's ring.
    pub stepped: bool,
    /// Serial number, 1 to 20 printable ASCII characters without a comma or backslash.
    pub serial: String,
}

impl Default for SoftOptions {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 30,
            lba_bytes: 512,
            metadata: BlockMetadata::default(),
            zoned: ZonedOptions::default(),
            latency: Duration::ZERO,
            iops: None,
            backing: Backing::Ram,
            mqes: 1024,
            mdts_log2: 5,
            page_log2_min: 0,
            page_log2_max: PAGE_LOG2_MAX,
            queues: 64,
            stride: 0,
            timeout_500ms: 20,
            shadow: false,
            stepped: false,
            serial: "SOFT0001".to_owned(),
        }
    }
}

/// An option that a soft controller cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("soft controller, option {option}: saw {seen}; {allowed}")]
pub struct OptionError {
    /// Which option.
    pub option: String,
    /// What was given, quoted on one line.
    pub seen: String,
    /// What would have been taken.
    pub allowed: String,
}

impl OptionError {
    pub(crate) fn new(option: &str, seen: impl fmt::Debug, allowed: impl Into<String>) -> Self {
        Self { option: option.to_owned(), seen: format!("{seen:?}"), allowed: allowed.into() }
    }
}

const SIZE_ALLOWED: &str = "it takes bytes with a suffix k, m, g or t (binary), at most 1024t";
const LBA_ALLOWED: &str = "it takes a power of two from 512 to 64k";
const MS_ALLOWED: &str = "it takes bytes a block, a multiple of 8, at most 4096";
const MSET_ALLOWED: &str = "it takes 0 or 1, and 1 only beside ms=";
const PI_ALLOWED: &str = "it takes 0 to 3, and a type needs metadata of 8 bytes or more (16 with pif=2), as in ms=8,pi=1";
const PIL_ALLOWED: &str = "it takes 0 or 1, and 1 only beside pi=";
const PIF_ALLOWED: &str = "it takes 0 (16-bit guard) or 2 (64-bit guard), and 2 only beside pi=";
const METADATA_NULL: &str = "backing=null keeps no metadata; leave out one of the two";
const LATENCY_ALLOWED: &str = "it takes a time with ns, us, ms or s, at most 60s";
const IOPS_ALLOWED: &str =
    "it takes a count from 1 to 1000m; k and m are decimal, so 500k is 500,000";
const MQES_ALLOWED: &str = "it takes a number of entries from 2 to 65536";
const MDTS_ALLOWED: &str =
    "it takes 0 (no limit), the field's value 1 to 15, or bytes, a power of two from 8k to 128m";
const MPS_ALLOWED: &str = "it takes a power of two from 4k to 64k, and mpsmin= is not above mpsmax=, whose default is 64k";
const MDTS_PAGES: &str =
    "MDTS counts memory pages, so it takes two of mpsmin= or more, or 0 (no limit)";
const QUEUES_ALLOWED: &str = "it takes a number of queue pairs from 1 to 65535";
const STRIDE_ALLOWED: &str = "it takes CAP.DSTRD, 0 to 15";
const TIMEOUT_ALLOWED: &str = "it takes a multiple of 500ms from 500ms to 127500ms";
const SERIAL_ALLOWED: &str = "it takes 1 to 20 printable ASCII characters without a comma or backslash, no space at either end";
const BACKING_ALLOWED: &str = "it takes ram, null, or file together with file=PATH";
const FILE_ALLOWED: &str = "it takes a path, in UTF-8 and without control characters";
const STEPPED_ALLOWED: &str =
    "a stepped device has no clock: leave out latency= and iops=, or leave out stepped";

impl SoftOptions {
    /// Bytes of the longest transfer, or `None` when MDTS names no limit.
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        (self.mdts_log2 != 0)
            .then(|| 4096u64.checked_shl(self.mdts_log2.into()).unwrap_or(u64::MAX))
    }

    /// Bytes of all blocks, with their metadata.
    pub(crate) fn medium_bytes(&self) -> u64 {
        let blocks = self.size_bytes / u64::from(self.lba_bytes);
        self.size_bytes.saturating_add(blocks.saturating_mul(self.metadata.bytes.into()))
    }

    /// Checks every field, for options that were not made from text.
    ///
    /// # Errors
    /// [`OptionError`] for the first field that is out of its range.
    pub fn validate(&self) -> Result<(), OptionError> {
        let check = |good: bool, option: &str, seen: &dyn fmt::Debug, allowed: &str| {
            if good { Ok(()) } else { Err(OptionError::new(option, seen, allowed)) }
        };
        let lba = self.lba_bytes;
        check(lba.is_power_of_two() && (512..=65_536).contains(&lba), "lba", &lba, LBA_ALLOWED)?;
        let size = self.size_bytes;
        check((1..=SIZE_BYTES_MAX).contains(&size), "size", &size, SIZE_ALLOWED)?;
        check(
            size.is_multiple_of(lba.into()),
            "size",
            &size,
            &format!("it takes a multiple of the block, lba={lba}"),
        )?;
        self.validate_metadata()?;
        self.zoned.validate(self)?;
        check(self.latency <= LATENCY_MAX, "latency", &self.latency, LATENCY_ALLOWED)?;
        let iops = self.iops.unwrap_or(1);
        check((1..=IOPS_MAX).contains(&iops), "iops", &iops, IOPS_ALLOWED)?;
        check((2..=65_536).contains(&self.mqes), "mqes", &self.mqes, MQES_ALLOWED)?;
        check(self.mdts_log2 <= MDTS_LOG2_MAX, "mdts", &self.mdts_log2, MDTS_ALLOWED)?;
        let (least, most) = (self.page_log2_min, self.page_log2_max);
        check(most <= PAGE_LOG2_MAX, "mpsmax", &most, MPS_ALLOWED)?;
        check(least <= most, "mpsmin", &(4096u64 << least.min(51)), MPS_ALLOWED)?;
        let mdts = self.mdts_log2;
        check(mdts == 0 || mdts > least, "mdts", &(4096u64 << mdts), MDTS_PAGES)?;
        check(self.queues >= 1, "queues", &self.queues, QUEUES_ALLOWED)?;
        check(self.stride <= 15, "stride", &self.stride, STRIDE_ALLOWED)?;
        check(self.timeout_500ms >= 1, "timeout", &self.timeout_500ms, TIMEOUT_ALLOWED)?;
        check(serial_is_good(&self.serial), "serial", &self.serial, SERIAL_ALLOWED)?;
        if let Backing::File(path) = &self.backing {
            let good = |text: &str| !text.is_empty() && !text.contains(char::is_control);
            check(path.to_str().is_some_and(good), "file", path, FILE_ALLOWED)?;
        }
        if let Some(limit) = self.transfer_bytes_max() {
            let metadata = if self.metadata.interleaved { self.metadata.bytes } else { 0 };
            let mut seen = format!("mdts={} with lba={lba}", Binary(limit));
            if metadata != 0 {
                seen += &format!(",ms={metadata},mset=1");
            }
            check(
                limit >= u64::from(lba) + u64::from(metadata),
                "mdts",
                &seen,
                "a transfer has to hold at least one block",
            )?;
        }
        let timed = !self.latency.is_zero() || self.iops.is_some();
        check(!(self.stepped && timed), "stepped", &self.timing_text(), STEPPED_ALLOWED)
    }

    fn validate_metadata(&self) -> Result<(), OptionError> {
        let BlockMetadata { bytes, interleaved, protection, first, guard } = self.metadata;
        let has = |option: &str, seen: &str, allowed: &str| {
            Err(OptionError { seen: seen.to_owned(), ..OptionError::new(option, "", allowed) })
        };
        if bytes > METADATA_BYTES_MAX || !bytes.is_multiple_of(8) {
            return has("ms", &bytes.to_string(), MS_ALLOWED);
        }
        if interleaved && bytes == 0 {
            return has("mset", "mset=1 with ms=0", MSET_ALLOWED);
        }
        if protection > 3 || protection != 0 && usize::from(bytes) < guard.tuple_bytes() {
            return has("pi", &format!("pi={protection} with ms={bytes}"), PI_ALLOWED);
        }
        if first && protection == 0 {
            return has("pil", "pil=1 with pi=0", PIL_ALLOWED);
        }
        if guard != GuardFormat::Bits16 && protection == 0 {
            return has("pif", "pif=2 with pi=0", PIF_ALLOWED);
        }
        if bytes != 0 && self.backing == Backing::Null {
            return has("ms", &format!("ms={bytes} with backing=null"), METADATA_NULL);
        }
        Ok(())
    }

    /// Whether blocks are kept in a file.
    pub(crate) fn has_file(&self) -> bool {
        matches!(self.backing, Backing::File(_))
    }

    fn timing_text(&self) -> String {
        let iops = self.iops.map_or_else(|| "no limit".to_owned(), |iops| iops.to_string());
        format!("latency={} and iops={iops}", Time(self.latency))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), OptionError> {
        let error = |allowed: &str| OptionError::new(key, value, allowed);
        match key {
            "size" => {
                self.size_bytes = binary(value).ok_or_else(|| error(SIZE_ALLOWED))?;
            }
            "lba" => {
                let bytes = binary(value).and_then(|bytes| u32::try_from(bytes).ok());
                self.lba_bytes = bytes.ok_or_else(|| error(LBA_ALLOWED))?;
            }
            "ms" => {
                let bytes = binary(value).and_then(|bytes| u16::try_from(bytes).ok());
                self.metadata.bytes = bytes.ok_or_else(|| error(MS_ALLOWED))?;
            }
            "mset" => self.metadata.interleaved = flag(value).ok_or_else(|| error(MSET_ALLOWED))?,
            "pi" => self.metadata.protection = number(value).ok_or_else(|| error(PI_ALLOWED))?,
            "pil" => self.metadata.first = flag(value).ok_or_else(|| error(PIL_ALLOWED))?,
            "pif" => {
                self.metadata.guard = match value {
                    "0" => GuardFormat::Bits16,
                    "2" => GuardFormat::Bits64,
                    _ => return Err(error(PIF_ALLOWED)),
                };
            }
            key if ZonedOptions::NAMES.contains(&key) => self.zoned.set(key, value)?,
            "latency" => self.latency = time(value).ok_or_else(|| error(LATENCY_ALLOWED))?,
            "iops" => self.iops = Some(count(value).ok_or_else(|| error(IOPS_ALLOWED))?),
            "mqes" => self.mqes = number(value).ok_or_else(|| error(MQES_ALLOWED))?,
            "mdts" => self.mdts_log2 = mdts(value).ok_or_else(|| error(MDTS_ALLOWED))?,
            "mpsmin" => self.page_log2_min = page(value).ok_or_else(|| error(MPS_ALLOWED))?,
            "mpsmax" => self.page_log2_max = page(value).ok_or_else(|| error(MPS_ALLOWED))?,
            "queues" => self.queues = number(value).ok_or_else(|| error(QUEUES_ALLOWED))?,
            "stride" => self.stride = number(value).ok_or_else(|| error(STRIDE_ALLOWED))?,
            "timeout" => {
                self.timeout_500ms = timeout(value).ok_or_else(|| error(TIMEOUT_ALLOWED))?;
            }
            "serial" => self.serial = value.to_owned(),
            "shadow" | "stepped" => return Err(error("it stands alone, without =")),
            _ => return Err(unknown(key)),
        }
        Ok(())
    }
}

fn unknown(key: &str) -> OptionError {
    let allowed = "there are size, lba, ms, mset, pi, pil, pif, zoned, zcap, mar, mor, latency, iops, backing, file, mqes, mdts, \
                   mpsmin, mpsmax, queues, stride, timeout, serial, shadow and stepped";
    OptionError::new("name", key, allowed)
}

fn serial_is_good(serial: &str) -> bool {
    (1..=20).contains(&serial.len())
        && serial.bytes().all(|byte| (0x20..0x7f).contains(&byte) && !b",\\".contains(&byte))
        && serial.trim() == serial
}

impl FromStr for SoftOptions {
    type Err = OptionError;

    /// Takes `soft`, `soft:key=value,…`, or what stands after the colon.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let text = match text.strip_prefix("soft") {
            Some("") => "",
            Some(rest) => rest.strip_prefix(':').unwrap_or(text),
            None => text,
        };
        let mut options = Self::default();
        let (mut backing, mut file) = (None, None);
        let mut seen: Vec<String> = Vec::new();
        for item in split(text) {
            let (key, value) = match item.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value)),
                None => (item.trim(), None),
            };
            if seen.iter().any(|other| other == key) {
                return Err(OptionError::new(key, item.as_str(), "it may be given once"));
            }
            seen.push(key.to_owned());
            match (key, value) {
                ("shadow", None) => options.shadow = true,
                ("stepped", None) => options.stepped = true,
                ("backing", Some(value)) => backing = Some(value.to_owned()),
                ("file", Some(value)) => file = Some(value.to_owned()),
                (key, Some(value)) => options.set(key, value)?,
                ("", None) => {
                    return Err(OptionError::new(
                        "name",
                        "",
                        "an option stands between two commas",
                    ));
                }
                (key, None) if is_option(key) => {
                    return Err(OptionError::new(key, item.as_str(), "it takes =VALUE"));
                }
                (key, None) => return Err(unknown(key)),
            }
        }
        options.backing = choose_backing(backing.as_deref(), file)?;
        options.validate()?;
        Ok(options)
    }
}

fn is_option(key: &str) -> bool {
    let options = [
        "size", "lba", "ms", "mset", "pi", "pil", "pif", "latency", "iops", "backing", "file",
        "mqes", "mdts", "mpsmin", "mpsmax", "queues", "stride", "timeout", "serial",
    ];
    options.contains(&key) || ZonedOptions::NAMES.contains(&key)
}

fn choose_backing(backing: Option<&str>, file: Option<String>) -> Result<Backing, OptionError> {
    match (backing, file) {
        (None | Some("file"), Some(path)) => Ok(Backing::File(path.into())),
        (None | Some("ram"), None) => Ok(Backing::Ram),
        (Some("null"), None) => Ok(Backing::Null),
        (Some(other), _) => Err(OptionError::new("backing", other, BACKING_ALLOWED)),
    }
}

impl fmt::Display for SoftOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        write!(f, "soft:size={}", Binary(self.size_bytes))?;
        if self.lba_bytes != default.lba_bytes {
            write!(f, ",lba={}", self.lba_bytes)?;
        }
        let BlockMetadata { bytes, interleaved, protection, first, guard } = self.metadata;
        if bytes != 0 {
            write!(f, ",ms={bytes}")?;
        }
        if interleaved {
            f.write_str(",mset=1")?;
        }
        if protection != 0 {
            write!(f, ",pi={protection}")?;
        }
        if first {
            f.write_str(",pil=1")?;
        }
        if guard == GuardFormat::Bits64 {
            f.write_str(",pif=2")?;
        }
        self.zoned.fmt(f)?;
        if self.latency != default.latency {
            write!(f, ",latency={}", Time(self.latency))?;
        }
        if let Some(iops) = self.iops {
            write!(f, ",iops={}", Count(iops))?;
        }
        if self.backing == Backing::Null {
            f.write_str(",backing=null")?;
        }
        if self.mqes != default.mqes {
            write!(f, ",mqes={}", self.mqes)?;
        }
        if self.mdts_log2 != default.mdts_log2 {
            match self.transfer_bytes_max() {
                Some(bytes) => write!(f, ",mdts={}", Binary(bytes))?,
                None => f.write_str(",mdts=0")?,
            }
        }
        if self.page_log2_min != default.page_log2_min {
            write!(f, ",mpsmin={}", Binary(4096 << self.page_log2_min))?;
        }
        if self.page_log2_max != default.page_log2_max {
            write!(f, ",mpsmax={}", Binary(4096 << self.page_log2_max))?;
        }
        if self.queues != default.queues {
            write!(f, ",queues={}", self.queues)?;
        }
        if self.stride != default.stride {
            write!(f, ",stride={}", self.stride)?;
        }
        if self.timeout_500ms != default.timeout_500ms {
            write!(f, ",timeout={}ms", u32::from(self.timeout_500ms) * 500)?;
        }
        if self.serial != default.serial {
            write!(f, ",serial={}", self.serial)?;
        }
        if self.shadow {
            f.write_str(",shadow")?;
        }
        if self.stepped {
            f.write_str(",stepped")?;
        }
        match &self.backing {
            // Last, so that a path which ends in a backslash does not escape the next comma.
            Backing::File(path) => {
                write!(f, ",file={}", path.display().to_string().replace(',', "\\,"))
            }
            Backing::Ram | Backing::Null => Ok(()),
        }
    }
}
