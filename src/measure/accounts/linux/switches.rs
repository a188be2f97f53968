//! Interrupts and context switches: the machine's, the drives' and this process's own.

use std::fs;
use std::path::Path;

/// Counts since the system (or the process) started. What could not be read is an error in words.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Interrupts of the whole machine, timers and processor-to-processor ones included.
    pub interrupts: Result<u64, String>,
    /// Interrupts of the drives alone.
    pub drive_interrupts: Result<u64, String>,
    /// Context switches of the whole machine.
    pub context_switches: Result<u64, String>,
    /// This process's: it waited for something.
    pub voluntary: Result<u64, String>,
    /// This process's: somebody else's turn came.
    pub involuntary: Result<u64, String>,
    /// Time of all processors in user mode, nice included, in ticks.
    pub user_ticks: Option<u64>,
}

impl Counts {
    /// As they stand now in the system under `root`; `drives` are PCI addresses.
    pub fn read(root: &Path, drives: &[String]) -> Self {
        let stat = fs::read_to_string(root.join("proc/stat"))
            .map_err(|error| format!("/proc/stat: {error}"));
        let stat = stat.as_deref().map_err(String::clone);
        let (voluntary, involuntary) = own_switches();
        Self {
            interrupts: stat.clone().and_then(|stat| number_after(stat, "intr")),
            context_switches: stat.clone().and_then(|stat| number_after(stat, "ctxt")),
            user_ticks: stat.ok().and_then(user_ticks),
            drive_interrupts: drive_interrupts(root, drives),
            voluntary,
            involuntary,
        }
    }
}

/// The first number of the line that begins with `name` (proc_stat(5)).
fn number_after(stat: &str, name: &str) -> Result<u64, String> {
    let mut words = stat.lines().map(str::split_ascii_whitespace);
    let value = words.find_map(|mut words| (words.next() == Some(name)).then(|| words.next())?);
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("/proc/stat has no line {name}"))
}

/// User and nice time of the `cpu` line.
fn user_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace();
    let mut next = || words.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

/// All vectors of `drives`, whichever driver has them: sysfs has their numbers, /proc/interrupts counts.
fn drive_interrupts(root: &Path, drives: &[String]) -> Result<u64, String> {
    if drives.is_empty() {
        return Err("the target is no PCI drive".to_owned());
    }
    let mut numbers = Vec::new();
    for drive in drives {
        let folder = root.join("sys/bus/pci/devices").join(drive).join("msi_irqs");
        // A drive that is polled without any vector has no such folder, and none is 0.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        numbers.extend(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
    }
    if numbers.is_empty() {
        let is_there = |drive: &String| root.join("sys/bus/pci/devices").join(drive).exists();
        return match drives.iter().all(is_there) {
            true => Ok(0),
            false => Err("the kernel shows no such PCI device".to_owned()),
        };
    }
    let text = fs::read_to_string(root.join("proc/interrupts"))
        .map_err(|error| format!("/proc/interrupts: {error}"))?;
    let of_line = |line: &str| {
        let (number, counts) = line.split_once(':')?;
        numbers.iter().any(|wanted| wanted == number.trim()).then(|| sum(counts))
    };
    Ok(text.lines().filter_map(of_line).fold(0, u64::saturating_add))
}

/// The counts of a line of /proc/interrupts, a processor each; words follow them.
fn sum(counts: &str) -> u64 {
    let numbers = counts.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    numbers.fold(0, u64::saturating_add)
}

fn own_switches() -> (Result<u64, String>, Result<u64, String>) {
    use nix::sys::resource::{UsageWho, getrusage};
    match getrusage(UsageWho::RUSAGE_SELF) {
        Ok(usage) => {
            let count = |switches: i64| Ok(u64::try_from(switches).unwrap_or(0));
            (count(usage.voluntary_context_switches()), count(usage.involuntary_context_switches()))
        }
        Err(error) => {
            let why = format!("getrusage: {error}");
            (Err(why.clone()), Err(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "cpu  100 7 50 800 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 12345 9 0 0 8\nctxt 678\n";

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_machines_counts_and_the_drives_vectors() {
        let interrupts = "            CPU0       CPU1\n  \
            24:         10          5  PCI-MSIX-0000:01:00.0    0-edge      nvme0q0\n  \
            25:       1000       2000  PCI-MSIX-0000:01:00.0    1-edge      nvme0q1\n  \
            26:         77         88  PCI-MSIX-0000:02:00.0    0-edge      vfio-msix[0](0000:02:00.0)\n  \
            2:          9          9  IO-APIC   2-edge      timer\n\
            ERR:          3\n";
        let root = tree(&[
            ("proc/stat", STAT),
            ("proc/interrupts", interrupts),
            ("sys/bus/pci/devices/0000:01:00.0/msi_irqs/24", "msix\n"),
            ("sys/bus/pci/devices/0000:01:00.0/msi_irqs/25", "msix\n"),
            ("sys/bus/pci/devices/0000:02:00.0/msi_irqs/26", "msix\n"),
            ("sys/bus/pci/devices/0000:03:00.0/class", "0x010802\n"),
        ]);
        let of = |drives: &[&str]| {
            let drives: Vec<String> = drives.iter().map(|&drive| drive.to_owned()).collect();
            Counts::read(root.path(), &drives).drive_interrupts
        };
        let counts = Counts::read(root.path(), &[]);
        assert_eq!((counts.interrupts, counts.context_switches), (Ok(12_345), Ok(678)));
        assert_eq!(counts.user_ticks, Some(107));
        assert_eq!(of(&["0000:01:00.0"]), Ok(3015));
        assert_eq!(of(&["0000:01:00.0", "0000:02:00.0"]), Ok(3180));
        assert_eq!(of(&["0000:03:00.0"]), Ok(0), "it is there and has no vectors");
        assert!(of(&["0000:04:00.0"]).is_err() && of(&[]).is_err());
    }

    #[test]
    fn what_cannot_be_read_is_absent_not_zero() {
        let root = tree(&[("proc/stat", "cpu  x\nintr\nctxt many\n")]);
        let counts = Counts::read(root.path(), &[]);
        assert!(counts.interrupts.is_err() && counts.context_switches.is_err());
        assert_eq!(counts.user_ticks, None);
        let nothing = tempfile::tempdir().unwrap();
        assert!(Counts::read(nothing.path(), &[]).interrupts.unwrap_err().contains("/proc/stat"));
    }

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let before = own_switches().0.unwrap();
        (0..5).for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        assert!(own_switches().0.unwrap() >= before + 5);
    }
}
