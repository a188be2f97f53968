//! Lists of workloads that belong together.

use super::rw::Rw;
use super::spec::Workload;
use serde::{Deserialize, Serialize};

/// A named list of workloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Its rows, in the order in which a round runs them.
    pub workloads: Vec<Workload>,
}

/// A suite that comes with the program.
struct BuiltIn {
    name: &'static str,
    summary: &'static str,
    rows: &'static [(Rw, u32, u32)],
}

const KIB: u32 = 1 << 10;

const BUILT_IN: [BuiltIn; 2] = [
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
];

/// A suite that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no suite \"{name}\"; the suites are {known}")]
pub struct UnknownSuite {
    name: String,
    known: String,
}

impl Suite {
    /// The built-in suite `name`.
    ///
    /// # Errors
    /// [`UnknownSuite`], with those that there are.
    pub fn named(name: &str) -> Result<Self, UnknownSuite> {
        let found = BUILT_IN.iter().find(|suite| suite.name == name).ok_or_else(|| {
            let known = Self::built_in().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            UnknownSuite { name: name.to_owned(), known }
        })?;
        let workload =
            |&(rw, bs_bytes, iodepth): &(Rw, u32, u32)| Workload::new(rw, bs_bytes, iodepth);
        let workloads = found.rows.iter().map(workload).collect();
        Ok(Self { name: found.name.to_owned(), workloads })
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
    fn an_unknown_one_is_named_with_the_known() {
        let message = Suite::named("slow").unwrap_err().to_string();
        assert_eq!(message, "there is no suite \"slow\"; the suites are quick, review");
    }
}
