//! Lists of workloads that belong together.

use super::rw::Rw;
use super::spec::Workload;
use super::{fio, suite_file};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A named list of workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Its rows, in the order in which a round runs them.
    pub workloads: Vec<Workload>,
    /// What it says of times.
    pub timing: SuiteTiming,
    /// What a fio job file names as its targets. Nobody opens them: they have to be the targets that
    /// were named on the command line.
    pub filenames: Vec<FileName>,
    /// What of a file is done in another way than its author may expect: a sentence each.
    pub notes: Vec<String>,
}

/// For how long a suite wants to run; what is `None` is left to the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuiteTiming {
    /// I/O before the window.
    pub ramp: Option<Duration>,
    /// The window.
    pub runtime: Option<Duration>,
    /// Instead of a time, I/Os of each worker.
    pub number_ios: Option<u64>,
}

/// Targets that a fio job file names, in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The line, from 1.
    pub line: usize,
    /// Them.
    pub names: Vec<String>,
}

/// Largest suite file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most workloads of a suite.
const WORKLOADS_MAX: usize = 1000;

/// A suite that comes with the program.
struct BuiltIn {
    name: &'static str,
    summary: &'static str,
    rows: &'static [(Rw, u32, u32)],
}

const KIB: u32 = 1 << 10;

const BUILT_IN: [BuiltIn; 3] = [
    BuiltIn {
        name: "quick",
        summary: "one latency, one rate and one bandwidth: three rows that only read",
        rows: &[(Rw::RandRead, 4 * KIB, 1), (Rw::RandRead, 4 * KIB, 32), (Rw::Read, 128 * KIB, 32)],
    },
    BuiltIn {
        name: "review",
        summary: "the eight rows of published reviews: random 4k and 64k, sequential 64k and 128k, \
                  reads and writes, depth 32",
        rows: &[
            (Rw::RandRead, 4 * KIB, 32),
            (Rw::RandRead, 64 * KIB, 32),
            (Rw::Read, 64 * KIB, 32),
            (Rw::Read, 128 * KIB, 32),
            (Rw::RandWrite, 4 * KIB, 32),
            (Rw::RandWrite, 64 * KIB, 32),
            (Rw::Write, 64 * KIB, 32),
            (Rw::Write, 128 * KIB, 32),
        ],
    },
    BuiltIn {
        name: "latency",
        summary: "random 4k reads at depths from 1 to 256, each twice the one before: where more depth \
                  gives no more IOPS, only more latency",
        rows: &[
            (Rw::RandRead, 4 * KIB, 1),
            (Rw::RandRead, 4 * KIB, 2),
            (Rw::RandRead, 4 * KIB, 4),
            (Rw::RandRead, 4 * KIB, 8),
            (Rw::RandRead, 4 * KIB, 16),
            (Rw::RandRead, 4 * KIB, 32),
            (Rw::RandRead, 4 * KIB, 64),
            (Rw::RandRead, 4 * KIB, 128),
            (Rw::RandRead, 4 * KIB, 256),
        ],
    },
];

/// A suite that is none.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// No file and none that comes with the program.
    #[error(
        "there is no suite \"{name}\"; the suites are {known}, or name a file that ends in .toml or .fio"
    )]
    Unknown {
        /// Asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A file that cannot be read.
    #[error("{}: cannot read the suite: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file that says what cannot be done.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// Which.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what to do.
        what: String,
    },
    /// Two rows of a name.
    #[error("{}: two workloads are called \"{name}\"; give each a name of its own", path.display())]
    Twice {
        /// Which file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Too many.
    #[error("{}: {count} workloads; at most {WORKLOADS_MAX} are possible", path.display())]
    TooMany {
        /// Which file.
        path: PathBuf,
        /// Counted.
        count: usize,
    },
}

impl SuiteError {
    pub(super) fn line(path: &Path, line: usize, what: impl Into<String>) -> Self {
        Self::Line { path: path.to_owned(), line, what: what.into() }
    }
}

impl Suite {
    /// The built-in suite `name`.
    ///
    /// # Errors
    /// [`SuiteError::Unknown`], with those that there are.
    pub fn named(name: &str) -> Result<Self, SuiteError> {
        let found = BUILT_IN.iter().find(|suite| suite.name == name).ok_or_else(|| {
            let known = Self::built_in().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            SuiteError::Unknown { name: name.to_owned(), known }
        })?;
        let workload =
            |&(rw, bs_bytes, iodepth): &(Rw, u32, u32)| Workload::new(rw, bs_bytes, iodepth);
        let workloads = found.rows.iter().map(workload).collect();
        Ok(Self {
            name: found.name.to_owned(),
            workloads,
            timing: SuiteTiming::default(),
            filenames: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// The suite that `name` means: a file where it ends in `.toml` or `.fio`, else one that comes
    /// with the program.
    ///
    /// # Errors
    /// [`SuiteError`], of a file with the line.
    pub fn find(name: &str) -> Result<Self, SuiteError> {
        let path = Path::new(name);
        let suite = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => suite_file::parse(&read(path)?, path)?,
            Some("fio") => fio::parse(&read(path)?, path)?,
            _ => return Self::named(name),
        };
        suite.check(path)?;
        Ok(suite)
    }

    /// What a file's suite is called where it does not say so.
    pub(super) fn name_of(path: &Path) -> String {
        path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn check(&self, path: &Path) -> Result<(), SuiteError> {
        let path = path.to_owned();
        let count = self.workloads.len();
        if count > WORKLOADS_MAX {
            return Err(SuiteError::TooMany { path, count });
        }
        let mut seen = std::collections::HashSet::new();
        match self.workloads.iter().find(|workload| !seen.insert(workload.name.as_str())) {
            Some(twice) => Err(SuiteError::Twice { path, name: twice.name.clone() }),
            None => Ok(()),
        }
    }

    /// Name and summary of each built-in suite, for help.
    pub fn built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
        BUILT_IN.iter().map(|suite| (suite.name, suite.summary))
    }

    /// Whether any of its workloads writes.
    pub fn writes(&self) -> bool {
        self.workloads.iter().any(|workload| workload.rw.writes())
    }
}

fn read(path: &Path) -> Result<String, SuiteError> {
    let fail = |error| SuiteError::Io { path: path.to_owned(), error };
    let mut text = String::new();
    let file = File::open(path).map_err(fail)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(std::io::Error::other("it is larger than 1 MiB, which no suite is")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_is_sound() {
        for (name, summary) in Suite::built_in() {
            let suite = Suite::named(name).unwrap();
            assert!(!summary.is_empty() && !suite.workloads.is_empty());
            let mut names: Vec<_> = suite.workloads.iter().map(|w| w.name.clone()).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), suite.workloads.len(), "{name}: rows told apart by name");
            suite.workloads.iter().for_each(|workload| workload.check().unwrap());
        }
    }

    #[test]
    fn quick_only_reads_and_review_is_the_published_eight() {
        assert!(!Suite::named("quick").unwrap().writes());
        let review = Suite::named("review").unwrap();
        let rows: Vec<_> = review.workloads.iter().map(|w| w.name.as_str()).collect();
        let published = "randread-4k randread-64k read-64k read-128k \
                         randwrite-4k randwrite-64k write-64k write-128k";
        assert_eq!(rows.join(" ").replace("-qd32", ""), published);
    }

    #[test]
    fn latency_doubles_the_depth_from_1_to_256() {
        let depths: Vec<u32> =
            Suite::named("latency").unwrap().workloads.iter().map(|w| w.iodepth).collect();
        assert_eq!(depths, (0..9).map(|power| 1 << power).collect::<Vec<_>>());
    }

    #[test]
    fn an_unknown_one_is_named_with_the_known() {
        let message = Suite::named("slow").unwrap_err().to_string();
        assert_eq!(
            message,
            "there is no suite \"slow\"; the suites are quick, review, latency, or name a file that ends in .toml or .fio"
        );
    }
}
