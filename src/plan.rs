//! What will run: validated, and enough to run it again.

use crate::run::Timing;
use crate::workload::Workload;
use nvpoll_engine::{IommuInterface, NumaPolicy, OpenOptions, Quirks, TransportOptions, WaitMode};
use serde::{Deserialize, Serialize};

/// Everything that a run or a comparison does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// `run` or `compare`.
    pub command: String,
    /// What is compared, in the order in which the first round takes it.
    pub stacks: Vec<Stack>,
    /// The suite that the workloads are from, where they are from one.
    pub suite: Option<String>,
    /// What is done on each stack in each round.
    pub workloads: Vec<Workload>,
    /// How often. Every second round takes the stacks in reverse (A B B A), so that a drift of the
    /// drive or the machine does not favour one of them.
    pub rounds: u32,
    /// How long each measurement takes.
    pub timing: Timing,
    /// Processors that workers are pinned to, as a list; empty where they are not pinned.
    pub cpus: String,
    /// How drives are reached by the userspace driver.
    #[serde(default)]
    pub transport: Transport,
    /// The stages of each I/O are timed on the userspace driver.
    #[serde(default)]
    pub instruments: bool,
    /// Drives that one worker has a queue on.
    #[serde(default = "one")]
    pub drives_per_worker: u32,
    /// Whether the targets are written until they are steady before anything is measured.
    #[serde(default)]
    pub precondition: bool,
}

fn one() -> u32 {
    1
}

/// How drives are reached by the userspace driver. Names stand in a file as on the command line; one
/// that this build does not know is an error, not another run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// The kernel's interface to the IOMMU: `best`, `type1` or `iommufd`.
    #[serde(with = "as_text")]
    pub iommu: IommuInterface,
    /// A drive without an IOMMU may be driven by vfio-pci.
    pub unsafe_no_iommu: bool,
    /// How completions are waited for: `poll`, `irq`, `hybrid` or `adaptive`.
    #[serde(default, with = "as_text")]
    pub wait: WaitMode,
    /// Where memory and workers are to be: `near` or `any`.
    #[serde(default, with = "as_text")]
    pub numa: NumaPolicy,
    /// What the controllers need beyond the specification, where that was said instead of taken
    /// from what is known.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_text::option")]
    pub quirks: Option<Quirks>,
}

impl Transport {
    /// As the engines take it.
    pub fn options(&self) -> TransportOptions {
        TransportOptions {
            iommu: self.iommu,
            allow_no_iommu: self.unsafe_no_iommu,
            wait: self.wait,
            numa: self.numa,
        }
    }

    /// How an engine opens a target to look at it: nothing is written, and it polls.
    pub fn to_look(&self) -> OpenOptions {
        let transport = TransportOptions { wait: WaitMode::Poll, ..self.options() };
        OpenOptions { transport, quirks: self.quirks, ..OpenOptions::default() }
    }
}

/// A value in a file as the text that the command line has for it.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err = String>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }

    /// The same of a value that may be left out.
    pub mod option {
        use super::*;

        pub fn serialize<T: Display, S: Serializer>(
            value: &Option<T>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => to.collect_str(value),
                None => to.serialize_none(),
            }
        }

        pub fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
        where
            T: FromStr<Err = String>,
            D: Deserializer<'de>,
        {
            let text = Option::<String>::deserialize(from)?;
            text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
        }
    }
}

/// An engine and what it drives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// The engine's name.
    pub engine: String,
    /// The targets, as they were named.
    pub targets: Vec<String>,
}

impl Plan {
    /// Stack numbers in the order of round `round`, counted from 1.
    pub fn order(&self, round: u32) -> Vec<usize> {
        let forward = 0..self.stacks.len();
        if round.is_multiple_of(2) { forward.rev().collect() } else { forward.collect() }
    }

    /// Measurements of the whole plan.
    pub fn measurements(&self) -> u64 {
        u64::from(self.rounds) * (self.stacks.len() * self.workloads.len()) as u64
    }

    /// Seconds that the measurements take; binding, opening and the harness's own measurement left
    /// out. `None` where they end by a number of I/Os.
    pub fn seconds(&self) -> Option<f64> {
        let each = self.timing.ramp_s + self.timing.runtime_s;
        self.timing.number_ios.is_none().then(|| self.measurements() as f64 * each)
    }

    /// Whether anything is written.
    pub fn writes(&self) -> bool {
        self.precondition || self.workloads.iter().any(|workload| workload.rw.writes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Rw;

    fn plan(stacks: usize, rounds: u32) -> Plan {
        let stack = |n| Stack { engine: format!("e{n}"), targets: vec!["t".to_owned()] };
        Plan {
            command: "compare".to_owned(),
            stacks: (0..stacks).map(stack).collect(),
            suite: None,
            workloads: vec![Workload::new(Rw::RandRead, 4096, 1), Workload::new(Rw::Write, 512, 2)],
            rounds,
            timing: Timing { ramp_s: 0.5, runtime_s: 2.0, number_ios: None },
            cpus: String::new(),
            transport: Transport::default(),
            instruments: false,
            drives_per_worker: 1,
            precondition: false,
        }
    }

    #[test]
    fn every_second_round_is_reversed() {
        let plan = plan(3, 4);
        assert_eq!(plan.order(1), [0, 1, 2]);
        assert_eq!(plan.order(2), [2, 1, 0]);
        assert_eq!(plan.order(3), [0, 1, 2]);
    }

    #[test]
    fn sums() {
        let mut plan = plan(3, 4);
        assert_eq!(plan.measurements(), 24);
        assert_eq!(plan.seconds(), Some(60.0));
        assert!(plan.writes());
        plan.timing.number_ios = Some(5);
        assert_eq!(plan.seconds(), None);
    }

    #[test]
    fn a_plan_survives_its_file() {
        let mut plan = plan(2, 1);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        plan.transport = Transport {
            iommu: IommuInterface::Iommufd,
            unsafe_no_iommu: true,
            wait: WaitMode::Hybrid,
            numa: NumaPolicy::Any,
            quirks: Some(Quirks::ONE_COMMAND),
        };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        for (known, other) in [("hybrid", "napping"), ("iommufd", "type9"), ("one-command", "odd")]
        {
            let error = serde_json::from_str::<Plan>(&text.replace(known, other)).unwrap_err();
            assert!(error.to_string().contains(other), "{error}");
        }
    }
}
