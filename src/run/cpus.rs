//! Which processors the workers are pinned to.

use std::fmt;
use std::str::FromStr;

/// Processors in the order in which workers get them; more workers than processors start over.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CpuList(Vec<usize>);

/// A list of processors that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// Not a list.
    #[error("--cpus \"{0}\": a list of processors is written 2,4-7")]
    Syntax(String),
    /// A processor that this process may not run on.
    #[error("--cpus: processor {cpu} is not among those that this process may use ({allowed})")]
    NotAllowed {
        /// Asked for.
        cpu: usize,
        /// What there is.
        allowed: CpuList,
    },
}

/// Most processors that a list names.
const CPUS_MAX: usize = 8192;

impl CpuList {
    /// Those that this process may run on; empty where the system does not say, and then no worker
    /// is pinned.
    pub fn allowed() -> Self {
        Self(os::allowed())
    }

    /// The same list, if this process may run on all of it.
    ///
    /// # Errors
    /// [`CpuListError::NotAllowed`] with the first that it may not.
    pub fn check(self) -> Result<Self, CpuListError> {
        let allowed = Self::allowed();
        match self.0.iter().find(|cpu| !allowed.0.contains(cpu)) {
            Some(&cpu) => Err(CpuListError::NotAllowed { cpu, allowed }),
            None => Ok(self),
        }
    }

    /// The processor of worker `index`.
    pub fn nth(&self, index: usize) -> Option<usize> {
        self.0.get(index.checked_rem(self.0.len())?).copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Deals a list's processors to workers, those of a drive's NUMA node first; when all are dealt, it
/// starts over.
pub(super) struct Dealer<'a> {
    list: &'a CpuList,
    dealt: Vec<bool>,
    /// A node's processors.
    of_node: fn(u32) -> CpuList,
}

impl<'a> Dealer<'a> {
    /// Over `list`.
    pub(super) fn new(list: &'a CpuList) -> Self {
        Self { list, dealt: vec![false; list.len()], of_node }
    }

    /// The next processor for a worker on a drive of `node`, or of none that matters.
    pub(super) fn deal(&mut self, node: Option<u32>) -> Option<usize> {
        if self.dealt.iter().all(|dealt| *dealt) {
            self.dealt.fill(false);
        }
        let near = node.map_or_else(CpuList::default, self.of_node);
        let free = || self.list.0.iter().enumerate().filter(|(place, _)| !self.dealt[*place]);
        let next = free().find(|(_, cpu)| near.0.contains(cpu)).or_else(|| free().next());
        let (place, cpu) = next?;
        let cpu = *cpu;
        self.dealt[place] = true;
        Some(cpu)
    }
}

/// The processors of a NUMA node (Documentation/ABI/stable/sysfs-devices-node); none where the system
/// does not say.
fn of_node(node: u32) -> CpuList {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Pins the calling thread. Where the system refuses, the thread runs unpinned, as it would without
/// a list; the list was checked before.
pub(super) fn pin(cpu: usize) {
    if !os::pin(cpu) {
        tracing::warn!("a worker could not be pinned to processor {cpu}");
    }
}

#[cfg(not(windows))]
mod os {
    use core_affinity::CoreId;

    pub fn allowed() -> Vec<usize> {
        let ids = core_affinity::get_core_ids().unwrap_or_default();
        ids.into_iter().map(|core| core.id).collect()
    }

    pub fn pin(cpu: usize) -> bool {
        core_affinity::set_for_current(CoreId { id: cpu })
    }
}

/// Of all processor groups, which `core_affinity` does not know.
#[cfg(windows)]
mod os {
    pub use nvpoll_windows::machine::{pin, processors as allowed};
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let syntax = || CpuListError::Syntax(text.to_owned());
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().map_err(|_| syntax());
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last - first >= CPUS_MAX || cpus.len() > CPUS_MAX {
                return Err(syntax());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut separator = "";
        while let [first, ..] = rest {
            let run = rest.iter().zip(*first..).take_while(|&(cpu, expected)| *cpu == expected);
            let length = run.count();
            match length {
                1 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{}", first + length - 1)?,
            }
            separator = ",";
            rest = &rest[length..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_go_both_ways() {
        for (text, nth3) in [("0", 0), ("2,4-7", 6), ("3-4", 4)] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!(list.to_string(), text);
            assert_eq!(list.nth(3), Some(nth3), "{text}");
        }
        assert_eq!(CpuList::default().nth(0), None);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "a", "1-", "3-1", "0-99999999", "1,,2"] {
            assert!(text.parse::<CpuList>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_nodes_processors_are_dealt_first() {
        let list: CpuList = "0-7".parse().unwrap();
        let of_node = |node| if node == 1 { CpuList(vec![4, 5, 6, 7]) } else { CpuList::default() };
        let mut dealer = Dealer { of_node, ..Dealer::new(&list) };
        let dealt: Vec<_> =
            [Some(1), None, Some(1), Some(9), Some(1), Some(1), Some(1), None, Some(1)]
                .into_iter()
                .map(|node| dealer.deal(node).unwrap())
                .collect();
        assert_eq!(dealt, [4, 0, 5, 1, 6, 7, 2, 3, 4]);
        assert_eq!(Dealer::new(&CpuList::default()).deal(Some(0)), None);
    }

    #[test]
    fn processors_that_are_not_there_are_named() {
        let error = "4095".parse::<CpuList>().unwrap().check().unwrap_err();
        assert!(error.to_string().contains("processor 4095"), "{error}");
    }
}
