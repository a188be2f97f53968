//! A row's accounts by the I/O, as reports show them.

use super::model::Row;
use crate::measure::{Accounts, Interval};
use crate::run::HarnessNs;
use serde::Serialize;

/// One account of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    /// `Energy per I/O`.
    pub name: &'static str,
    /// Its unit, behind the name: `µJ`; empty for counts.
    pub unit: &'static str,
    /// The figure; `None` where it is not available.
    pub per_io: Option<f64>,
    /// Why it is not available, where that is known.
    pub missing: Option<String>,
}

/// How an account is taken: name, unit, the field that `missing` names, and its sum.
type Kind = (&'static str, &'static str, &'static str, fn(&Accounts) -> Option<f64>);

fn count(count: Option<u64>) -> Option<f64> {
    count.map(|count| count as f64)
}

/// The accounts, in the order in which they are shown.
const KINDS: [Kind; 11] = [
    ("Energy per I/O, processors", "µJ", "package_j", |of| Some(of.package_j? * 1e6)),
    ("Energy per I/O, memory", "µJ", "dram_j", |of| Some(of.dram_j? * 1e6)),
    ("Cycles per I/O, user", "", "cycles_user", |of| count(of.cycles_user)),
    ("Cycles per I/O, kernel", "", "cycles_kernel", |of| count(of.cycles_kernel)),
    ("Instructions per I/O, user", "", "instructions_user", |of| count(of.instructions_user)),
    ("Instructions per I/O, kernel", "", "instructions_kernel", |of| count(of.instructions_kernel)),
    ("Interrupts per I/O, machine", "", "interrupts", |of| count(of.interrupts)),
    ("Interrupts per I/O, drives", "", "drive_interrupts", |of| count(of.drive_interrupts)),
    ("Context switches per I/O, machine", "", "context_switches", |of| count(of.context_switches)),
    ("Context switches per I/O, own, waits", "", "voluntary_switches", |of| {
        count(of.voluntary_switches)
    }),
    ("Context switches per I/O, own, displaced", "", "involuntary_switches", |of| {
        count(of.involuntary_switches)
    }),
];

/// All accounts of a row, and what the harness took of it.
pub(super) fn of_row(row: &Row) -> Vec<Account> {
    let mut accounts = row.accounts.as_ref().map_or_else(Vec::new, |own| per_io(own, row.ios));
    let harness =
        row.harness_ns_per_io.into_iter().flat_map(|HarnessNs { batched, one_by_one }| {
            [
                ("Harness per I/O, whole depth a pass", batched),
                ("Harness per I/O, one a pass", one_by_one),
            ]
        });
    accounts.extend(harness.map(|(name, ns)| Account {
        name,
        unit: "ns",
        per_io: Some(ns.mean),
        missing: None,
    }));
    accounts
}

/// What the harness itself took in the rows' rounds, in a sentence.
pub(super) fn harness<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<String> {
    let costs: Vec<HarnessNs<Interval>> = rows.filter_map(|row| row.harness_ns_per_io).collect();
    let least = costs.iter().map(|cost| cost.batched.mean).reduce(f64::min)?;
    let most = costs.iter().map(|cost| cost.one_by_one.mean).reduce(f64::max)?;
    Some(format!(
        "The harness itself takes {least:.0} to {most:.0} ns of each I/O (engine null with these workloads, in the same rounds); nothing is subtracted."
    ))
}

/// All accounts of a window with `ios` I/Os.
fn per_io(accounts: &Accounts, ios: u64) -> Vec<Account> {
    let kinds = KINDS.into_iter();
    kinds
        .map(|(name, unit, field, sum)| {
            let per_io = sum(accounts).map(|sum| sum / ios as f64);
            Account {
                name,
                unit,
                per_io: per_io.filter(|per_io| per_io.is_finite()),
                missing: accounts.missing.get(field).cloned(),
            }
        })
        .collect()
}

/// Names and reasons of what is not available, those of one reason together: `energy and cycles (why)`.
pub(super) fn not_available<'a>(rows: impl Iterator<Item = &'a Accounts>) -> Vec<String> {
    /// What a user calls the figure of these fields.
    const WORDS: [(&str, &str); 5] = [
        ("package_j", "energy"),
        ("cycles_user", "cycles and instructions"),
        ("cycles_kernel", "the kernel's cycles and instructions"),
        ("interrupts", "interrupts"),
        ("context_switches", "context switches"),
    ];
    let mut found: Vec<String> = Vec::new();
    for accounts in rows {
        for (field, words) in WORDS {
            let Some(why) = accounts.missing.get(field) else { continue };
            // Said of both modes at once where neither is there.
            let is_said = field == "cycles_kernel" && accounts.missing.contains_key("cycles_user");
            let text = format!("{words}: {why}");
            if !is_said && !found.contains(&text) {
                found.push(text);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn by_the_io_and_what_is_missing_says_why() {
        let report = sample::report();
        let row = &report.rows[0];
        let accounts = row.accounts.as_ref().unwrap();
        let per_io = per_io(accounts, row.ios);
        let of = |name: &str| per_io.iter().find(|account| account.name == name).unwrap();
        // Three rounds of 0.25 J.
        let energy = of("Energy per I/O, processors");
        assert!((energy.per_io.unwrap() - 0.75e6 / row.ios as f64).abs() < 1e-9, "{energy:?}");
        let cycles = of("Cycles per I/O, user");
        assert_eq!(cycles.per_io, None);
        assert!(cycles.missing.as_ref().unwrap().contains("perf_event_paranoid"));
        assert_eq!(of("Interrupts per I/O, drives").per_io, Some(0.0));
        assert!(super::per_io(accounts, 0).iter().all(|account| account.per_io.is_none()));
    }

    #[test]
    fn the_harness_stands_beside_what_it_took_part_in() {
        let mut report = sample::report();
        let accounts = of_row(&report.rows[0]);
        let of = |name: &str| accounts.iter().find(|account| account.name == name).unwrap().per_io;
        // Three rounds: 21, 22 and 23.
        assert_eq!(of("Harness per I/O, whole depth a pass"), Some(22.0));
        assert_eq!(of("Harness per I/O, one a pass"), Some(42.0));
        let said = harness(report.rows.iter()).unwrap();
        assert!(said.contains("22 to 42 ns of each I/O"), "{said}");
        report.rows.iter_mut().for_each(|row| row.harness_ns_per_io = None);
        assert_eq!(harness(report.rows.iter()), None);
        assert!(of_row(&report.rows[0]).iter().all(|account| !account.name.starts_with("Harness")));
    }

    #[test]
    fn one_reason_is_said_once() {
        let report = sample::report();
        let said = not_available(report.rows.iter().filter_map(|row| row.accounts.as_ref()));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("cycles and instructions: /proc/sys/kernel"), "{said:?}");
    }
}
