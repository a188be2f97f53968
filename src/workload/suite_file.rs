//! Suites in TOML files. docs/SUITES.md has the format.

use super::arrivals::RateProcess;
use super::rw::Rw;
use super::spec::Workload;
use super::suite::{Suite, SuiteError, SuiteTiming};
use super::units::{Amount, TextOrNumber, parse_time};
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
    seed: Option<u64>,
    rate_iops: Option<u32>,
    rate_process: Option<RateProcess>,
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
    seed: Option<u64>,
    rate_iops: Option<u32>,
    rate_process: Option<RateProcess>,
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
             numjobs = 2\noffset = \"50%\"\nsize = \"1m\"\nfsync = 8\nseed = 4\n",
        )
        .unwrap();
        assert_eq!(suite.name, "oltp");
        assert_eq!(suite.timing.runtime, Some(Duration::from_secs(5)));
        assert_eq!(suite.timing.ramp, Some(Duration::from_millis(500)));
        let [mixed, log] = suite.workloads.as_slice() else { panic!("{suite:?}") };
        let expected = Workload { rwmixread: 70, seed: 3, ..Workload::new(Rw::RandRw, 8192, 16) };
        assert_eq!(mixed, &expected);
        assert_eq!((log.name.as_str(), log.bs_bytes, log.iodepth, log.seed), ("log", 512, 1, 4));
        assert_eq!((log.numjobs, log.fsync), (2, 8));
        assert_eq!((log.offset, log.size), (Amount::Percent(50), Some(Amount::Bytes(1 << 20))));
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
