//! Suites in TOML files. docs/SUITES.md has the format.

use super::arrivals::RateProcess;
use super::buffers::Buffers;
use super::distribution::Distribution;
use super::rw::Rw;
use super::spec::Workload;
use super::split::BsSplit;
use super::suite::{Suite, SuiteError, SuiteTiming};
use super::sync::SyncMode;
use super::units::{Amount, TextOrNumber, parse_time, parse_time_us};
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The whole file. Unknown keys are errors everywhere: a misspelt one would measure something else.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    runtime: Option<FileTime>,
    ramp_time: Option<FileTime>,
    number_ios: Option<u64>,
    #[serde(default)]
    defaults: Keys,
    #[serde(default)]
    workload: Vec<toml::Spanned<Named>>,
}

/// A `[[workload]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: Option<String>,
    // `flatten` would let unknown keys pass, so that the keys stand here once more.
    rw: Option<Rw>,
    bs: Option<FileSize>,
    iodepth: Option<u32>,
    numjobs: Option<u32>,
    rwmixread: Option<u8>,
    offset: Option<Amount>,
    size: Option<Amount>,
    fsync: Option<u32>,
    sync: Option<SyncMode>,
    seed: Option<u64>,
    rate_iops: Option<u32>,
    rate_process: Option<RateProcess>,
    bssplit: Option<BsSplit>,
    random_distribution: Option<Distribution>,
    offset_increment: Option<Amount>,
    thinktime: Option<FileTimeUs>,
    thinktime_blocks: Option<u32>,
    zero_buffers: Option<bool>,
    buffer_compress_percentage: Option<u8>,
    refill_buffers: Option<bool>,
    verify: Option<bool>,
}

/// What `[defaults]` holds: a workload's keys but for its name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    rw: Option<Rw>,
    bs: Option<FileSize>,
    iodepth: Option<u32>,
    numjobs: Option<u32>,
    rwmixread: Option<u8>,
    offset: Option<Amount>,
    size: Option<Amount>,
    fsync: Option<u32>,
    sync: Option<SyncMode>,
    seed: Option<u64>,
    rate_iops: Option<u32>,
    rate_process: Option<RateProcess>,
    bssplit: Option<BsSplit>,
    random_distribution: Option<Distribution>,
    offset_increment: Option<Amount>,
    thinktime: Option<FileTimeUs>,
    thinktime_blocks: Option<u32>,
    zero_buffers: Option<bool>,
    buffer_compress_percentage: Option<u8>,
    refill_buffers: Option<bool>,
    verify: Option<bool>,
}

/// A block size, as a number or a text such as `4k`.
#[derive(Clone, Copy, Debug)]
struct FileSize(u32);

impl<'de> Deserialize<'de> for FileSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = TextOrNumber("a block size such as 4096 or \"4k\"");
        match deserializer.deserialize_any(expected)? {
            Amount::Percent(_) => Err(de::Error::custom("a block size is no percentage")),
            Amount::Bytes(bytes) => u32::try_from(bytes).map(Self).map_err(|_| {
                de::Error::custom(format_args!("a block size of {bytes} bytes is too large"))
            }),
        }
    }
}

/// A time in microseconds: a number, or a text such as `2ms`.
#[derive(Clone, Copy, Debug)]
struct FileTimeUs(u64);

impl<'de> Deserialize<'de> for FileTimeUs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = FileTimeUs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("microseconds, or text such as \"2ms\"")
            }

            fn visit_i64<E: de::Error>(self, us: i64) -> Result<FileTimeUs, E> {
                u64::try_from(us)
                    .map(FileTimeUs)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(us), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FileTimeUs, E> {
                parse_time_us(text).map(FileTimeUs).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A time: a number of seconds, or a text such as `500ms`.
#[derive(Clone, Copy, Debug)]
struct FileTime(Duration);

impl<'de> Deserialize<'de> for FileTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = FileTime;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds, or text such as \"500ms\"")
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<FileTime, E> {
                u64::try_from(seconds)
                    .map(|seconds| FileTime(Duration::from_secs(seconds)))
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(seconds), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FileTime, E> {
                parse_time(text).map(FileTime).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The suite that `text` describes, which came from `path`.
///
/// # Errors
/// [`SuiteError::Line`] with the line and what is wrong there.
pub(super) fn parse(text: &str, path: &Path) -> Result<Suite, SuiteError> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        // One line for people: the crate's own message may have several.
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        SuiteError::line(path, line, message)
    })?;
    let workloads = file.workload.iter().map(|named| {
        let line = line_of(text, named.span().start);
        named.get_ref().workload(&file.defaults).map_err(|why| SuiteError::line(path, line, why))
    });
    let suite = Suite {
        name: file.name.unwrap_or_else(|| Suite::name_of(path)),
        workloads: workloads.collect::<Result<_, _>>()?,
        timing: SuiteTiming {
            ramp: file.ramp_time.map(|time| time.0),
            runtime: file.runtime.map(|time| time.0),
            number_ios: file.number_ios,
        },
        filenames: Vec::new(),
        notes: Vec::new(),
    };
    if suite.workloads.is_empty() {
        return Err(SuiteError::line(path, 1, "there is no [[workload]] in it"));
    }
    Ok(suite)
}

impl Named {
    fn workload(&self, defaults: &Keys) -> Result<Workload, String> {
        let rw =
            self.rw.or(defaults.rw).ok_or("this workload has no rw, and nor has [defaults]")?;
        let bs = self.bs.or(defaults.bs).map_or(4096, |bs| bs.0);
        let mut workload = Workload::new(rw, bs, self.iodepth.or(defaults.iodepth).unwrap_or(1));
        if let Some(name) = &self.name {
            workload.name.clone_from(name);
        }
        workload.size = self.size.or(defaults.size);
        workload.rate_iops = self.rate_iops.or(defaults.rate_iops);
        macro_rules! take {
            ($($key:ident),*) => {
                $(if let Some(value) = self.$key.or(defaults.$key) { workload.$key = value; })*
            };
        }
        take!(numjobs, rwmixread, offset, fsync, seed, rate_process);
        take!(offset_increment, thinktime_blocks, verify);
        let default_sync = defaults.sync.filter(|_| workload.rw.stores());
        workload.sync = self.sync.or(default_sync).unwrap_or_default();
        if let Some(time) = self.thinktime.or(defaults.thinktime) {
            workload.thinktime_us = time.0;
        }
        let distribution = self.random_distribution.as_ref();
        if let Some(distribution) = distribution.or(defaults.random_distribution.as_ref()) {
            workload.random_distribution.clone_from(distribution);
        }
        let percentage = self.buffer_compress_percentage.or(defaults.buffer_compress_percentage);
        workload.buffers = Buffers {
            zero: self.zero_buffers.or(defaults.zero_buffers).unwrap_or(false),
            compress_percentage: percentage.unwrap_or(0),
            refill: self.refill_buffers.or(defaults.refill_buffers).unwrap_or(false),
        };
        // A row's own size goes before the split of all rows.
        let of_all = defaults.bssplit.as_ref().filter(|_| self.bs.is_none());
        workload = workload.split(self.bssplit.as_ref().or(of_all).cloned());
        workload.check().map_err(|error| error.to_string())?;
        Ok(workload)
    }
}

/// The line, from 1, of byte `at`.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Suite, String> {
        parse(text, Path::new("x/mine.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_with_all_it_can_hold() {
        let suite = read(
            "name = \"oltp\"\nruntime = 5\nramp_time = \"500ms\"\n\
             [defaults]\niodepth = 16\nseed = 3\n\
             [[workload]]\nrw = \"randrw\"\nbs = \"8k\"\nrwmixread = 70\n\
             [[workload]]\nname = \"log\"\nrw = \"write\"\nbs = 512\niodepth = 1\n\
             numjobs = 2\noffset = \"50%\"\nsize = \"1m\"\nfsync = 8\nsync = \"dsync\"\nseed = 4\n",
        )
        .unwrap();
        assert_eq!(suite.name, "oltp");
        assert_eq!(suite.timing.runtime, Some(Duration::from_secs(5)));
        assert_eq!(suite.timing.ramp, Some(Duration::from_millis(500)));
        let [mixed, log] = suite.workloads.as_slice() else { panic!("{suite:?}") };
        let expected = Workload { rwmixread: 70, seed: 3, ..Workload::new(Rw::RandRw, 8192, 16) };
        assert_eq!(mixed, &expected);
        assert_eq!((log.name.as_str(), log.bs_bytes, log.iodepth, log.seed), ("log", 512, 1, 4));
        assert_eq!((log.numjobs, log.fsync, log.sync), (2, 8, SyncMode::Dsync));
        assert_eq!((log.offset, log.size), (Amount::Percent(50), Some(Amount::Bytes(1 << 20))));
    }

    #[test]
    fn what_goes_beyond_a_plain_pattern() {
        let suite = read(
            "[defaults]\nbssplit = \"4k/50:8k/50\"\nrandom_distribution = \"zipf:1.1\"\n\
             [[workload]]\nrw = \"randread\"\nthinktime = \"2ms\"\nthinktime_blocks = 4\n\
             [[workload]]\nname = \"w\"\nrw = \"randwrite\"\nbs = 512\niodepth = 1\n\
             random_distribution = \"random\"\noffset_increment = \"25%\"\nthinktime = 7\n\
             buffer_compress_percentage = 30\nrefill_buffers = true\n\
             [[workload]]\nname = \"v\"\nrw = \"randrw\"\nbs = 512\nverify = true\n",
        )
        .unwrap();
        let [split, writes, checked] = suite.workloads.as_slice() else { panic!("{suite:?}") };
        assert_eq!((split.bs_bytes, split.unit_bytes(), split.thinktime_us), (8192, 4096, 2000));
        assert_eq!((split.thinktime_blocks, split.name.as_str()), (4, "randread-split-qd1"));
        assert_eq!(split.random_distribution.to_string(), "zipf:1.1");
        assert_eq!((&writes.bssplit, writes.thinktime_us), (&None, 7), "its own bs goes first");
        assert_eq!(writes.offset_increment, Amount::Percent(25));
        let buffers = Buffers { zero: false, compress_percentage: 30, refill: true };
        assert_eq!((writes.buffers, checked.verify, split.verify), (buffers, true, false));
    }

    #[test]
    fn without_a_name_it_has_the_files() {
        assert_eq!(read("[[workload]]\nrw = \"read\"\n").unwrap().name, "mine");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let start = "[[workload]]\nrw = \"read\"\n";
        for (text, line, what) in [
            ("iodpeth = 3\n", 3, "iodpeth"),
            ("bs = \"4q\"\n", 3, "4q"),
            ("bs = \"50%\"\n", 3, "percentage"),
            ("bssplit = \"4k/50\"\n", 3, "50 and not 100"),
            ("random_distribution = \"zapf:1\"\n", 3, "no distribution"),
            ("thinktime = -1\n", 3, "-1"),
            ("thinktime = 5\nrate_iops = 7\n", 1, "--rate-iops"),
            ("verify = true\nbssplit = \"4k:6k\"\n", 1, "inside another"),
            ("iodepth = -1\n", 3, "-1"),
            ("iodepth = 0\n", 1, "--iodepth 0"),
            ("[defaults]\nname = \"x\"\n", 4, "name"),
            ("[[workload]]\nbs = 512\n", 3, "no rw"),
            ("x = \n", 3, ""),
        ] {
            let message = read(&format!("{start}{text}")).unwrap_err();
            assert!(message.starts_with(&format!("x/mine.toml:{line}: ")), "{text}: {message}");
            assert!(message.contains(what) && !message.contains('\n'), "{text}: {message}");
        }
        assert!(read("colour = 1\n").unwrap_err().starts_with("x/mine.toml:1: "));
        assert!(read("").unwrap_err().contains("no [[workload]]"));
    }
}
