//! Energy of processor packages and memory: Intel's and AMD's RAPL counters, as Linux' powercap shows
//! them (Documentation/power/powercap/powercap.rst).

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Zones that are looked at, at most: two a socket, and a machine has few sockets.
const ZONES_MAX: usize = 256;

/// What a zone counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A processor package: cores, caches, memory controllers.
    Package,
    /// The memory of one package.
    Dram,
}

/// One counter.
#[derive(Clone, Debug)]
struct Zone {
    kind: Kind,
    folder: PathBuf,
    /// Microjoules at which it starts over at 0.
    range_uj: u64,
    at_start_uj: u64,
}

/// Joules since a window was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// All packages.
    pub package_j: f64,
    /// All packages' memory; `None` where no zone counts it.
    pub dram_j: Option<f64>,
}

/// A window that has been opened.
#[derive(Clone, Debug)]
pub struct EnergyWindow(Result<Vec<Zone>, String>);

impl EnergyWindow {
    /// Opens a window now, over the zones below `root`/sys/class/powercap.
    pub fn open(root: &Path) -> Self {
        Self(zones(&root.join("sys/class/powercap")))
    }

    /// What was used since. A counter that started over once is taken as that; one that did so twice
    /// (after some minutes under load, at the earliest) cannot be told.
    ///
    /// # Errors
    /// Why it is not available here, in words.
    pub fn close(&self) -> Result<Energy, String> {
        let mut energy = Energy::default();
        for zone in self.0.as_ref().map_err(Clone::clone)? {
            let now_uj = number(&zone.folder.join("energy_uj"))?;
            let joules = used_uj(zone, now_uj)? as f64 / 1e6;
            match zone.kind {
                Kind::Package => energy.package_j += joules,
                Kind::Dram => *energy.dram_j.get_or_insert(0.0) += joules,
            }
        }
        Ok(energy)
    }
}

fn used_uj(zone: &Zone, now_uj: u64) -> Result<u64, String> {
    if now_uj >= zone.at_start_uj {
        return Ok(now_uj - zone.at_start_uj);
    }
    let to_end = zone.range_uj.checked_sub(zone.at_start_uj);
    to_end.and_then(|rest| rest.checked_add(now_uj)).ok_or_else(|| {
        format!("{} went back, and its range does not explain it", zone.folder.display())
    })
}

/// The zones of packages and of their memory, each as it stands now.
fn zones(powercap: &Path) -> Result<Vec<Zone>, String> {
    let entries = fs::read_dir(powercap).map_err(|_| {
        "the kernel shows no energy counters (RAPL, /sys/class/powercap), as in most virtual machines"
            .to_owned()
    })?;
    let mut folders: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| is_zone(&name.to_string_lossy())))
        .take(ZONES_MAX)
        .collect();
    folders.sort();
    let mut zones = Vec::new();
    for folder in folders {
        let Some(kind) = kind(&folder) else { continue };
        zones.push(Zone {
            kind,
            range_uj: number(&folder.join("max_energy_range_uj"))?,
            at_start_uj: number(&folder.join("energy_uj"))?,
            folder,
        });
    }
    if !zones.iter().any(|zone| zone.kind == Kind::Package) {
        return Err("no energy counter (RAPL) of a processor package is there".to_owned());
    }
    Ok(zones)
}

/// `intel-rapl:0`, `intel-rapl:0:1`; AMD's have these names as well. `intel-rapl-mmio:…` counts the same
/// packages once more.
fn is_zone(name: &str) -> bool {
    name.strip_prefix("intel-rapl:").is_some_and(|rest| !rest.is_empty())
}

/// `core` and `uncore` are parts of a package, and `psys` is more than it: they would count twice.
fn kind(folder: &Path) -> Option<Kind> {
    let name = fs::read_to_string(folder.join("name")).ok()?;
    match name.trim() {
        "dram" => Some(Kind::Dram),
        name if name.starts_with("package") => Some(Kind::Package),
        _ => None,
    }
}

fn number(path: &Path) -> Result<u64, String> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    let text = text.trim();
    text.parse().map_err(|_| format!("{} holds no number", path.display()))
}

fn unreadable(path: &Path, error: &Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("{} is for root to read; run as root", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(root: &Path, folder: &str, name: &str, energy_uj: &str) {
        let folder = root.join("sys/class/powercap").join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "262143328850\n").unwrap();
        fs::write(folder.join("energy_uj"), energy_uj).unwrap();
    }

    /// Two sockets, one of which tells its memory's, and zones that would count twice.
    fn server() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        zone(root.path(), "intel-rapl:0", "package-0", "1000000\n");
        zone(root.path(), "intel-rapl:0:0", "core", "500000\n");
        zone(root.path(), "intel-rapl:0:1", "dram", "200000\n");
        zone(root.path(), "intel-rapl:1", "package-1", "262143000000\n");
        zone(root.path(), "intel-rapl:2", "psys", "9000000\n");
        zone(root.path(), "intel-rapl-mmio:0", "package-0", "1000000\n");
        fs::create_dir_all(root.path().join("sys/class/powercap/intel-rapl")).unwrap();
        root
    }

    #[test]
    fn packages_are_summed_over_a_wrap_and_memory_stands_beside() {
        let root = server();
        let window = EnergyWindow::open(root.path());
        zone(root.path(), "intel-rapl:0", "package-0", "3500000\n");
        zone(root.path(), "intel-rapl:0:0", "core", "1500000\n");
        zone(root.path(), "intel-rapl:0:1", "dram", "450000\n");
        zone(root.path(), "intel-rapl:1", "package-1", "171150\n");
        zone(root.path(), "intel-rapl:2", "psys", "99000000\n");
        zone(root.path(), "intel-rapl-mmio:0", "package-0", "3500000\n");
        let energy = window.close().unwrap();
        // 2.5 J, and 0.32885 J to the end of the range and 0.17115 J behind it.
        assert!((energy.package_j - 3.0).abs() < 1e-9, "{energy:?}");
        assert!((energy.dram_j.unwrap() - 0.25).abs() < 1e-9, "{energy:?}");
    }

    #[test]
    fn memory_that_is_not_counted_is_absent_not_zero() {
        let root = tempfile::tempdir().unwrap();
        zone(root.path(), "intel-rapl:0", "package-0", "5\n");
        let energy = EnergyWindow::open(root.path()).close().unwrap();
        assert_eq!(energy, Energy { package_j: 0.0, dram_j: None });
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let nothing = tempfile::tempdir().unwrap();
        let why = EnergyWindow::open(nothing.path()).close().unwrap_err();
        assert!(why.contains("virtual machines"), "{why}");
        let root = server();
        fs::remove_dir_all(root.path().join("sys/class/powercap/intel-rapl:0")).unwrap();
        fs::remove_dir_all(root.path().join("sys/class/powercap/intel-rapl:1")).unwrap();
        let why = EnergyWindow::open(root.path()).close().unwrap_err();
        assert!(why.contains("no energy counter"), "{why}");
    }

    #[test]
    fn a_counter_that_vanishes_in_the_window_or_holds_no_number_says_so() {
        let root = server();
        let window = EnergyWindow::open(root.path());
        let file = root.path().join("sys/class/powercap/intel-rapl:1/energy_uj");
        fs::remove_file(&file).unwrap();
        assert!(window.close().unwrap_err().contains("intel-rapl:1/energy_uj"));
        fs::write(&file, "many\n").unwrap();
        assert!(window.close().unwrap_err().contains("holds no number"));
        // Before its start although its range is below that: no wrap explains it.
        let zone = Zone { kind: Kind::Dram, folder: "z".into(), range_uj: 10, at_start_uj: 20 };
        assert!(used_uj(&zone, 5).unwrap_err().contains("went back"));
    }

    #[test]
    fn a_counter_for_root_alone_names_the_remedy() {
        // Root reads every file: the error is made, as any other user meets it.
        let why = unreadable(Path::new("/sys/energy_uj"), &ErrorKind::PermissionDenied.into());
        assert_eq!(why, "/sys/energy_uj is for root to read; run as root");
        let why = unreadable(Path::new("/sys/energy_uj"), &ErrorKind::NotFound.into());
        assert!(why.starts_with("/sys/energy_uj: ") && !why.contains("root"), "{why}");
    }
}
