//! What a window's I/Os took beside time: energy, cycles, interrupts, context switches; and what the
//! machine did meanwhile that was none of theirs.
//!
//! What could not be read is `None` and named in `missing` with the reason, never 0. Nothing is subtracted:
//! neither what an idle machine takes, nor other programs' part.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
pub use elsewhere::{AccountsWindow, Meters};
#[cfg(target_os = "linux")]
pub use linux::{AccountsWindow, Meters};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Accounts of a window, or of several together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accounts {
    /// Energy of all processor packages in joules, idle power and other programs' included.
    pub package_j: Option<f64>,
    /// Energy of their memory in joules.
    pub dram_j: Option<f64>,
    /// This process's processor cycles in user mode.
    pub cycles_user: Option<u64>,
    /// The same in the kernel.
    pub cycles_kernel: Option<u64>,
    /// This process's instructions in user mode.
    pub instructions_user: Option<u64>,
    /// The same in the kernel.
    pub instructions_kernel: Option<u64>,
    /// Interrupts of the whole machine.
    pub interrupts: Option<u64>,
    /// Interrupts of the drives.
    pub drive_interrupts: Option<u64>,
    /// Context switches of the whole machine.
    pub context_switches: Option<u64>,
    /// This process's context switches: it waited.
    pub voluntary_switches: Option<u64>,
    /// This process's context switches: it was another's turn.
    pub involuntary_switches: Option<u64>,
    /// Lowest and highest frequency of the workers' processors that was seen, in MHz.
    pub frequency_mhz: Option<[u32; 2]>,
    /// Processor time of other programs in seconds, the kernel's threads left out.
    pub others_busy_s: Option<f64>,
    /// The program among them that took most.
    pub busiest_other: Option<String>,
    /// What is not available here, by field, and why.
    pub missing: BTreeMap<String, String>,
}

impl Accounts {
    /// Several windows together: what one lacks, all lack.
    pub fn sum<'a>(mut windows: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let first = windows.next()?.clone();
        Some(windows.fold(first, Self::plus))
    }

    fn plus(self, more: &Self) -> Self {
        let count = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let amount = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        let extremes = |a: Option<[u32; 2]>, b: Option<[u32; 2]>| {
            let ([low, high], [other_low, other_high]) = (a?, b?);
            Some([low.min(other_low), high.max(other_high)])
        };
        let mut missing = self.missing;
        missing.extend(more.missing.clone());
        let more_were_busy = more.others_busy_s > self.others_busy_s;
        Self {
            package_j: amount(self.package_j, more.package_j),
            dram_j: amount(self.dram_j, more.dram_j),
            cycles_user: count(self.cycles_user, more.cycles_user),
            cycles_kernel: count(self.cycles_kernel, more.cycles_kernel),
            instructions_user: count(self.instructions_user, more.instructions_user),
            instructions_kernel: count(self.instructions_kernel, more.instructions_kernel),
            interrupts: count(self.interrupts, more.interrupts),
            drive_interrupts: count(self.drive_interrupts, more.drive_interrupts),
            context_switches: count(self.context_switches, more.context_switches),
            voluntary_switches: count(self.voluntary_switches, more.voluntary_switches),
            involuntary_switches: count(self.involuntary_switches, more.involuntary_switches),
            frequency_mhz: extremes(self.frequency_mhz, more.frequency_mhz),
            others_busy_s: amount(self.others_busy_s, more.others_busy_s),
            busiest_other: if more_were_busy {
                more.busiest_other.clone()
            } else {
                self.busiest_other
            },
            missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_window_lacks_all_lack() {
        let one = Accounts {
            package_j: Some(1.5),
            interrupts: Some(10),
            cycles_user: Some(7),
            frequency_mhz: Some([1000, 2000]),
            others_busy_s: Some(0.5),
            busiest_other: Some("cc".to_owned()),
            ..Accounts::default()
        };
        let other = Accounts {
            cycles_user: None,
            frequency_mhz: Some([1500, 2500]),
            others_busy_s: Some(0.75),
            busiest_other: Some("ld".to_owned()),
            missing: BTreeMap::from([("cycles_user".to_owned(), "gone".to_owned())]),
            ..one.clone()
        };
        let sum = Accounts::sum([&one, &other, &one].into_iter()).unwrap();
        assert_eq!((sum.package_j, sum.interrupts, sum.cycles_user), (Some(4.5), Some(30), None));
        assert_eq!((sum.frequency_mhz, sum.others_busy_s), (Some([1000, 2500]), Some(1.75)));
        assert_eq!(sum.missing.len(), 1);
        assert_eq!(Accounts::sum([].into_iter()), None);
    }
}
