//! What some controllers need beyond the specification, by PCI vendor and device.
//!
//! The rows are facts that Linux (drivers/nvme/host/pci.c, `nvme_id_table`) and SPDK
//! (lib/nvme/nvme_quirks.c) have found out; each names its source. Quirks of what this driver does
//! not do (power state transitions, Write Zeroes, subsystem names …) are not listed.

use bitflags::bitflags;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

bitflags! {
    /// What a controller needs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Quirks: u32 {
        /// CSTS.RDY must not be read for 2.3 s after CC.EN was cleared.
        const DELAY_BEFORE_READY = 1 << 0;
        /// Nothing must be sent for 2 s after the controller was found.
        const DELAY_BEFORE_INIT = 1 << 1;
        /// A new queue takes commands only after a moment.
        const DELAY_AFTER_QUEUE = 1 << 2;
        /// More than one command at a time loses data or resets the controller.
        const ONE_COMMAND = 1 << 3;
        /// Submission queue entries have 128 bytes: not driven.
        const ENTRIES_OF_128 = 1 << 4;
        /// Queues of urgent priority, which is the value zero, starve others: they are made of
        /// medium priority.
        const MEDIUM_PRIORITY = 1 << 5;
        /// PRP lists at addresses that are no multiple of 512 are misread: commands stay below
        /// what needs a list.
        const NO_PRP_LISTS = 1 << 6;
        /// An I/O that crosses a multiple of 128 KiB is slower.
        const STRIPE_OF_128K = 1 << 7;
    }
}

/// [`Quirks::DELAY_BEFORE_READY`], as in Linux.
pub(crate) const BEFORE_READY: Duration = Duration::from_millis(2300);
/// [`Quirks::DELAY_BEFORE_INIT`], as in SPDK.
pub(crate) const BEFORE_INIT: Duration = Duration::from_millis(2000);
/// [`Quirks::DELAY_AFTER_QUEUE`]: ten times SPDK's, since it is paid once a queue.
pub(crate) const AFTER_QUEUE: Duration = Duration::from_millis(1);

/// A controller that is known to need something.
#[derive(Clone, Copy, Debug)]
pub struct KnownQuirk {
    /// PCI vendor and device.
    pub ids: (u16, u16),
    /// What it is called.
    pub name: &'static str,
    /// What it needs.
    pub quirks: Quirks,
    /// Who found out.
    pub source: &'static str,
}

const LINUX: &str = "Linux";
const SPDK: &str = "SPDK";
const BOTH: &str = "Linux and SPDK";

const fn row(
    ids: (u16, u16),
    name: &'static str,
    quirks: Quirks,
    source: &'static str,
) -> KnownQuirk {
    KnownQuirk { ids, name, quirks, source }
}

/// All that is known.
pub const KNOWN: &[KnownQuirk] = &[
    row((0x106b, 0x2001), "Apple (MacBook8,1)", Quirks::ONE_COMMAND, LINUX),
    row((0x106b, 0x2005), "Apple T2", Quirks::ENTRIES_OF_128, LINUX),
    row((0x1217, 0x8760), "O2 Micro bridge", Quirks::NO_PRP_LISTS, LINUX),
    row((0x144d, 0xa821), "Samsung PM1725", Quirks::DELAY_BEFORE_READY, BOTH),
    row((0x144d, 0xa822), "Samsung PM1725a", Quirks::DELAY_BEFORE_READY, BOTH),
    row((0x1bb1, 0x0100), "Seagate Nytro", Quirks::DELAY_BEFORE_READY, LINUX),
    row((0x1c58, 0x0003), "HGST adapter", Quirks::DELAY_BEFORE_READY, LINUX),
    row((0x1c58, 0x0023), "WDC SN200", Quirks::DELAY_BEFORE_READY, LINUX),
    row((0x1c5f, 0x0540), "Memblaze PBlaze4", Quirks::DELAY_BEFORE_READY, BOTH),
    row(
        (0x8086, 0x0953),
        "Intel P3500, P3600, P3700",
        Quirks::DELAY_BEFORE_INIT.union(Quirks::STRIPE_OF_128K),
        SPDK,
    ),
    row(
        (0x8086, 0x0a53),
        "Intel P3520",
        Quirks::DELAY_BEFORE_INIT.union(Quirks::STRIPE_OF_128K),
        SPDK,
    ),
    row((0x8086, 0x0a54), "Intel P4500, P4600", Quirks::STRIPE_OF_128K, BOTH),
    row((0x8086, 0x0a55), "Intel P4501, P4601", Quirks::STRIPE_OF_128K, BOTH),
    row((0x8086, 0x0b60), "Intel P5500, P5600", Quirks::STRIPE_OF_128K, SPDK),
    row((0x8086, 0xf1a5), "Intel 600p", Quirks::MEDIUM_PRIORITY, LINUX),
    row((0x8086, 0xf1a6), "Intel 760p", Quirks::MEDIUM_PRIORITY, LINUX),
    row((0x80ee, 0x4e56), "VirtualBox", Quirks::DELAY_AFTER_QUEUE, SPDK),
];

impl KnownQuirk {
    /// What is known of a controller.
    pub fn of(ids: Option<(u16, u16)>) -> Option<&'static Self> {
        KNOWN.iter().find(|known| Some(known.ids) == ids)
    }
}

impl Quirks {
    /// Names on the command line, with `_` as `-`.
    fn names(self) -> Vec<String> {
        self.iter_names().map(|(name, _)| name.to_lowercase().replace('_', "-")).collect()
    }
}

impl fmt::Display for Quirks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.pad("none");
        }
        f.pad(&self.names().join(","))
    }
}

impl FromStr for Quirks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::empty());
        }
        text.split(',').try_fold(Self::empty(), |found, word| {
            let name = word.trim().to_uppercase().replace('-', "_");
            Self::from_name(&name).map(|quirk| found | quirk).ok_or_else(|| {
                let names = Self::all().names().join(", ");
                format!("no quirk is called \"{word}\"; there are none, {names}")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for quirks in [Quirks::empty(), Quirks::all(), Quirks::ONE_COMMAND] {
            assert_eq!(quirks.to_string().parse(), Ok(quirks));
        }
        assert_eq!(
            "one-command, no-prp-lists".parse(),
            Ok(Quirks::ONE_COMMAND | Quirks::NO_PRP_LISTS)
        );
        assert!("one_thing".parse::<Quirks>().unwrap_err().contains("delay-before-ready"));
    }

    #[test]
    fn each_controller_is_known_once() {
        let mut ids: Vec<_> = KNOWN.iter().map(|known| known.ids).collect();
        let sorted = ids.is_sorted();
        ids.dedup();
        assert!(sorted && ids.len() == KNOWN.len());
        assert!(KNOWN.iter().all(|known| !known.quirks.is_empty()));
        assert!(KnownQuirk::of(None).is_none());
    }
}
