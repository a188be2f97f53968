//! Linux' accounts, of /proc, /sys, perf_event_open(2) and getrusage(2).

mod counters;
mod energy;
mod frequency;
mod others;
mod switches;

use super::Accounts;
use counters::{Counted, Counters};
use energy::EnergyWindow;
use frequency::Frequencies;
use others::{Others, Used};
use std::path::{Path, PathBuf};
use switches::Counts;

/// Counters that have to be opened before the threads are started that they count.
#[derive(Debug)]
pub struct Meters {
    root: PathBuf,
    counters: Counters,
    drives: Vec<String>,
    frequencies: Frequencies,
    others: Others,
    /// Ticks a second of the kernel's accounts of processes.
    ticks_per_s: Option<f64>,
}

/// A window that has been opened.
#[derive(Debug)]
pub struct AccountsWindow {
    others: Others,
    energy: EnergyWindow,
    counts: Counts,
    own_user_s: Option<f64>,
    counted: Counted,
}

impl Meters {
    /// For threads that the calling one starts from here on, on `drives` (PCI addresses).
    pub fn new(drives: Vec<String>) -> Self {
        Self::under(Path::new("/"), drives)
    }

    /// Of the system whose /proc and /sys lie under `root`.
    fn under(root: &Path, drives: Vec<String>) -> Self {
        Self {
            root: root.to_owned(),
            counters: Counters::open(),
            drives,
            frequencies: Frequencies::new(root, &[]),
            others: Others::default(),
            ticks_per_s: ticks_per_s(),
        }
    }

    /// The workers' processors, whose frequency is to be looked at.
    pub fn watch_processors(&mut self, processors: &[usize]) {
        self.frequencies = Frequencies::new(&self.root, processors);
    }

    /// Looks at other programs, which takes some milliseconds where there are many: to be done shortly
    /// before a window is opened, not inside it.
    pub fn look_around(&mut self) {
        self.others = Others::read(&self.root, std::process::id());
    }

    /// Opens a window now; other programs are held against the last [`look_around`](Self::look_around).
    pub fn open(&mut self) -> AccountsWindow {
        self.frequencies.forget();
        self.frequencies.look();
        AccountsWindow {
            others: std::mem::take(&mut self.others),
            energy: EnergyWindow::open(&self.root),
            counts: Counts::read(&self.root, &self.drives),
            own_user_s: own_user_s(),
            counted: self.counters.read(),
        }
    }

    /// One look inside a window, some times a second.
    pub fn look(&mut self) {
        self.frequencies.look();
    }

    /// What was used since `window` was opened.
    pub fn close(&mut self, window: &AccountsWindow) -> Accounts {
        let counted = self.counters.read().since(&window.counted);
        let energy = window.energy.close();
        let counts = Counts::read(&self.root, &self.drives);
        let own_user_s = own_user_s();
        self.frequencies.look();
        let used = Others::read(&self.root, std::process::id()).since(&window.others);
        let mut accounts = Accounts::default();
        accounts.fill_counted(counted);
        if let Some(energy) = accounts.take("package_j", energy) {
            accounts.package_j = Some(energy.package_j);
            let dram = energy.dram_j.ok_or("no zone counts the memory's energy".to_owned());
            accounts.dram_j = accounts.take("dram_j", dram);
        }
        accounts.fill_counts(&window.counts, &counts);
        accounts.frequency_mhz = accounts.take("frequency_mhz", self.frequencies.seen_mhz());
        let own = window.own_user_s.zip(own_user_s).map(|(from, to)| to - from);
        let user = window.counts.user_ticks.zip(counts.user_ticks);
        let user = user.map(|(from, to)| to.saturating_sub(from));
        accounts.fill_others(&used, user, own, self.ticks_per_s);
        accounts
    }
}

impl Accounts {
    /// Takes a figure, or notes why there is none.
    fn take<T>(&mut self, name: &str, figure: Result<T, String>) -> Option<T> {
        figure.map_err(|why| self.missing.insert(name.to_owned(), why)).ok()
    }

    fn fill_counted(&mut self, counted: Counted) {
        let Counted { cycles: [user, kernel], instructions } = counted;
        self.cycles_user = self.take("cycles_user", user);
        self.cycles_kernel = self.take("cycles_kernel", kernel);
        let [user, kernel] = instructions;
        self.instructions_user = self.take("instructions_user", user);
        self.instructions_kernel = self.take("instructions_kernel", kernel);
    }

    fn fill_counts(&mut self, from: &Counts, to: &Counts) {
        let since = |from: &Result<u64, String>, to: &Result<u64, String>| {
            let (from, to) = (from.clone()?, to.clone()?);
            Ok(to.saturating_sub(from))
        };
        let all = since(&from.interrupts, &to.interrupts);
        self.interrupts = self.take("interrupts", all);
        let drives = since(&from.drive_interrupts, &to.drive_interrupts);
        self.drive_interrupts = self.take("drive_interrupts", drives);
        let switches = since(&from.context_switches, &to.context_switches);
        self.context_switches = self.take("context_switches", switches);
        let own = since(&from.voluntary, &to.voluntary);
        self.voluntary_switches = self.take("voluntary_switches", own);
        let own = since(&from.involuntary, &to.involuntary);
        self.involuntary_switches = self.take("involuntary_switches", own);
    }

    /// Other programs' time: by what each says of itself, or, where that is more (one has ended, or cannot
    /// be seen from in here), by what is left of the machine's time in user mode.
    fn fill_others(
        &mut self,
        used: &Used,
        user_ticks: Option<u64>,
        own_user_s: Option<f64>,
        ticks_per_s: Option<f64>,
    ) {
        let Some(ticks_per_s) = ticks_per_s.filter(|ticks| *ticks > 0.0) else {
            let why = "the kernel does not say how long a tick is".to_owned();
            self.missing.insert("others_busy_s".to_owned(), why);
            return;
        };
        let seen_s = used.ticks as f64 / ticks_per_s;
        let left_s = user_ticks.zip(own_user_s).map(|(all, own)| all as f64 / ticks_per_s - own);
        self.others_busy_s = Some(seen_s.max(left_s.unwrap_or(0.0)));
        self.busiest_other = used.most.as_ref().map(|(name, _)| name.clone());
    }
}

fn ticks_per_s() -> Option<f64> {
    use nix::unistd::{SysconfVar, sysconf};
    Some(sysconf(SysconfVar::CLK_TCK).ok()?? as f64)
}

fn own_user_s() -> Option<f64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let time = getrusage(UsageWho::RUSAGE_SELF).ok()?.user_time();
    Some(time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn set(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A machine with a drive, at one moment.
    fn moment(root: &Path, more: u64) {
        let uj = 1_000_000 + 500_000 * more;
        set(root, "sys/class/powercap/intel-rapl:0/name", "package-0\n");
        set(root, "sys/class/powercap/intel-rapl:0/max_energy_range_uj", "65532610987\n");
        set(root, "sys/class/powercap/intel-rapl:0/energy_uj", &uj.to_string());
        let stat =
            format!("cpu  {} 0 0 9 0 0 0 0 0 0\nintr {} 1\nctxt {}\n", 100 * more, 1000 + more, 50);
        set(root, "proc/stat", &stat);
        set(root, "proc/interrupts", &format!("  CPU0\n 30: {more} PCI-MSIX nvme0q1\n"));
        set(root, "sys/bus/pci/devices/0000:01:00.0/msi_irqs/30", "msix\n");
        let mhz = 2000 + 100 * more;
        set(root, "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", &format!("{mhz}000\n"));
    }

    #[test]
    fn a_window_over_a_made_machine() {
        let root = tempfile::tempdir().unwrap();
        moment(root.path(), 0);
        let mut meters = Meters::under(root.path(), vec!["0000:01:00.0".to_owned()]);
        meters.watch_processors(&[1]);
        meters.look_around();
        let window = meters.open();
        moment(root.path(), 3);
        meters.look();
        moment(root.path(), 2);
        let accounts = meters.close(&window);
        assert_eq!((accounts.package_j, accounts.dram_j), (Some(1.0), None));
        assert_eq!(accounts.missing.get("dram_j").unwrap(), "no zone counts the memory's energy");
        assert_eq!((accounts.interrupts, accounts.drive_interrupts), (Some(2), Some(2)));
        assert_eq!(accounts.context_switches, Some(0));
        assert_eq!(accounts.frequency_mhz, Some([2000, 2300]));
        // 200 ticks of 10 ms in user mode, of which this process had next to none.
        let others_s = accounts.others_busy_s.unwrap();
        assert!(others_s > 1.0 && others_s <= 2.0 * 100.0 / ticks_per_s().unwrap(), "{others_s}");
        assert!(accounts.voluntary_switches.is_some());
    }

    #[test]
    fn of_a_machine_that_shows_nothing_everything_is_missing_with_a_reason() {
        let root = tempfile::tempdir().unwrap();
        let mut meters = Meters::under(root.path(), Vec::new());
        meters.look_around();
        let window = meters.open();
        let accounts = meters.close(&window);
        assert_eq!((accounts.package_j, accounts.interrupts), (None, None));
        assert_eq!((accounts.context_switches, accounts.frequency_mhz), (None, None));
        for name in ["package_j", "interrupts", "drive_interrupts", "context_switches"] {
            assert!(accounts.missing.contains_key(name), "{name}: {:?}", accounts.missing);
        }
    }
}
