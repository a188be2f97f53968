//! What will run: validated, and enough to run it again.

use crate::run::Timing;
use crate::workload::Workload;
use nvpoll_engine::{Quirks, TransportOptions};
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
}

/// How drives are reached by the userspace driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// The kernel's interface to the IOMMU: `best`, `type1` or `iommufd`.
    pub iommu: String,
    /// A drive without an IOMMU may be driven by vfio-pci.
    pub unsafe_no_iommu: bool,
    /// How completions are waited for: `poll`, `irq`, `hybrid` or `adaptive`.
    #[serde(default)]
    pub wait: String,
    /// What the controllers need beyond the specification, where that was said instead of taken
    /// from what is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quirks: Option<String>,
}

impl Transport {
    /// What was said of the controllers; a name that this build does not know is no quirk.
    pub fn quirks(&self) -> Option<Quirks> {
        self.quirks.as_ref().map(|names| names.parse().unwrap_or_default())
    }

    /// As the engines take it. A name that this build does not know is the default.
    pub fn options(&self) -> TransportOptions {
        TransportOptions {
            iommu: self.iommu.parse().unwrap_or_default(),
            allow_no_iommu: self.unsafe_no_iommu,
            wait: self.wait.parse().unwrap_or_default(),
        }
    }
}

impl Transport {
    /// As it is written down.
    pub fn new(options: TransportOptions, quirks: Option<Quirks>) -> Self {
        Self {
            quirks: quirks.map(|quirks| quirks.to_string()),
            iommu: options.iommu.to_string(),
            unsafe_no_iommu: options.allow_no_iommu,
            wait: options.wait.to_string(),
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

    /// Seconds that the measurements take, binding and opening left out; `None` where they end by
    /// a number of I/Os.
    pub fn seconds(&self) -> Option<f64> {
        let each = self.timing.ramp_s + self.timing.runtime_s;
        self.timing.number_ios.is_none().then(|| self.measurements() as f64 * each)
    }

    /// Whether any workload writes.
    pub fn writes(&self) -> bool {
        self.workloads.iter().any(|workload| workload.rw.writes())
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
        let plan = plan(2, 1);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
