//! Processor time over a window: the whole machine's, and this process's own.

use serde::{Deserialize, Serialize};

/// Processor time over a window. What could not be read is `None`: not available, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// Part of all processors' time that was busy, in percent of the whole machine: user, nice,
    /// system, interrupts and time stolen by a hypervisor; idle and waiting for I/O are not busy.
    pub machine_pct: Option<f64>,
    /// The same in processor seconds, over all processors.
    pub machine_busy_s: Option<f64>,
    /// This process's own time in user mode, in seconds, all threads.
    pub user_s: Option<f64>,
    /// This process's own time in the kernel, in seconds, all threads.
    pub sys_s: Option<f64>,
    /// The machine's busy time per I/O, in nanoseconds; `None` as well where no tick was counted as
    /// busy, since none is not what the I/Os took.
    pub ns_per_io: Option<f64>,
}

impl CpuUse {
    /// The same window, in which `ios` I/Os were done.
    pub fn per(self, ios: u64) -> Self {
        let ns_per_io = |busy_s: f64| (ios > 0 && busy_s > 0.0).then(|| busy_s * 1e9 / ios as f64);
        Self { ns_per_io: self.machine_busy_s.and_then(ns_per_io), ..self }
    }
}

/// A window that has been opened.
#[derive(Clone, Copy, Debug)]
pub struct CpuWindow {
    machine: Option<MachineTime>,
    own: Option<OwnTime>,
}

impl CpuWindow {
    /// Opens a window now.
    pub fn open() -> Self {
        Self { machine: os::machine_time(), own: os::own_time() }
    }

    /// What was used since, by a run that did `ios` I/Os meanwhile.
    ///
    /// The kernel adds up whole ticks (commonly 4 ms): a window of a second is right to about 1 %.
    pub fn close(&self, ios: u64) -> CpuUse {
        self.until(os::machine_time(), os::own_time(), ios)
    }

    fn until(&self, machine: Option<MachineTime>, own: Option<OwnTime>, ios: u64) -> CpuUse {
        let machine = self.machine.zip(machine).map(|(from, to)| to.since(&from));
        let own = self.own.zip(own);
        CpuUse {
            machine_pct: machine
                .and_then(|time| (time.all_s > 0.0).then(|| time.busy_s / time.all_s * 100.0)),
            machine_busy_s: machine.map(|time| time.busy_s),
            user_s: own.map(|(from, to)| (to.user_s - from.user_s).max(0.0)),
            sys_s: own.map(|(from, to)| (to.sys_s - from.sys_s).max(0.0)),
            ns_per_io: None,
        }
        .per(ios)
    }
}

/// Time of all processors since the system started, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MachineTime {
    busy_s: f64,
    all_s: f64,
}

impl MachineTime {
    /// Time since `from`. The kernel's idle and iowait may go backwards by a tick; time does not.
    fn since(&self, from: &Self) -> Self {
        let busy_s = (self.busy_s - from.busy_s).max(0.0);
        Self { busy_s, all_s: (self.all_s - from.all_s).max(busy_s) }
    }

    /// From the `cpu` line of /proc/stat (proc_stat(5)): user nice system idle iowait irq softirq
    /// steal guest guest_nice, in ticks. Guest time is in user and nice already. Kernels that lack
    /// the later fields do not account what they stand for.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn parse(stat: &str, ticks_per_s: f64) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut ticks = [0_u64; 8];
        let mut seen = 0;
        for (slot, word) in ticks.iter_mut().zip(line.split_ascii_whitespace()) {
            *slot = word.parse().ok()?;
            seen += 1;
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks.map(|t| t as f64);
        let busy = user + nice + system + irq + softirq + steal;
        let all = busy + idle + iowait;
        (seen >= 4 && ticks_per_s > 0.0)
            .then(|| Self { busy_s: busy / ticks_per_s, all_s: all / ticks_per_s })
    }
}

/// This process's time since it started, in seconds.
#[derive(Clone, Copy, Debug)]
struct OwnTime {
    user_s: f64,
    sys_s: f64,
}

#[cfg(unix)]
mod os {
    use super::{MachineTime, OwnTime};
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeVal;

    #[cfg(target_os = "linux")]
    pub fn machine_time() -> Option<MachineTime> {
        use nix::unistd::{SysconfVar, sysconf};
        let ticks_per_s = sysconf(SysconfVar::CLK_TCK).ok()??;
        MachineTime::parse(&std::fs::read_to_string("/proc/stat").ok()?, ticks_per_s as f64)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn machine_time() -> Option<MachineTime> {
        None
    }

    pub fn own_time() -> Option<OwnTime> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Some(OwnTime { user_s: seconds(usage.user_time()), sys_s: seconds(usage.system_time()) })
    }
}

#[cfg(windows)]
mod os {
    use super::{MachineTime, OwnTime};
    use nvpoll_windows::machine::{SystemTimes, process_times, system_times};

    pub fn machine_time() -> Option<MachineTime> {
        system_times().map(|SystemTimes { busy_s, all_s }| MachineTime { busy_s, all_s })
    }

    pub fn own_time() -> Option<OwnTime> {
        process_times().map(|(user_s, sys_s)| OwnTime { user_s, sys_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  1000 100 500 8000 300 20 30 50 700 60\ncpu0 1 2 3\nintr 5\n";
    const AFTER: &str = "cpu  1100 110 550 8300 290 22 33 55 790 66\ncpu0 1 2 3\nintr 5\n";

    fn window(before: &str) -> CpuWindow {
        let own = Some(OwnTime { user_s: 1.0, sys_s: 2.0 });
        CpuWindow { machine: MachineTime::parse(before, 100.0), own }
    }

    #[test]
    fn idle_and_iowait_are_not_busy_and_guests_count_once() {
        let own = Some(OwnTime { user_s: 1.5, sys_s: 2.25 });
        let used = window(BEFORE).until(MachineTime::parse(AFTER, 100.0), own, 1000);
        // Busy: 100 + 10 + 50 + 2 + 3 + 5 = 170 ticks; all: 170 + 300 - 10 = 460.
        assert!((used.machine_busy_s.unwrap() - 1.7).abs() < 1e-9);
        assert!((used.machine_pct.unwrap() - 100.0 * 170.0 / 460.0).abs() < 1e-9);
        assert!((used.ns_per_io.unwrap() - 1.7e6).abs() < 1e-3);
        assert_eq!((used.user_s, used.sys_s), (Some(0.5), Some(0.25)));
    }

    #[test]
    fn what_cannot_be_read_is_absent_not_zero() {
        for text in ["", "cpu0 1 2 3 4", "cpu  1 2 3", "cpu  1 2 x 4 5", "cpu  -1 2 3 4"] {
            assert_eq!(MachineTime::parse(text, 100.0), None, "{text:?}");
            let used = window(text).until(MachineTime::parse(AFTER, 100.0), None, 10);
            assert_eq!(used, CpuUse::default(), "{text:?}");
        }
        let none_moved = window(BEFORE).until(MachineTime::parse(BEFORE, 100.0), None, 0);
        assert_eq!((none_moved.machine_pct, none_moved.ns_per_io), (None, None));
    }

    #[test]
    fn counters_that_go_backwards_do_not_make_negative_time() {
        let used = window(AFTER).until(MachineTime::parse(BEFORE, 100.0), None, 1);
        assert_eq!((used.machine_busy_s, used.machine_pct), (Some(0.0), None));
    }

    #[test]
    fn a_busy_loop_shows_in_both_accounts() {
        let window = CpuWindow::open();
        let start = std::time::Instant::now();
        let own_s = |used: &CpuUse| used.user_s.unwrap() + used.sys_s.unwrap();
        // Until this process has had its share, which may take a while on a busy machine.
        let used = loop {
            for _ in 0..1_000_000 {
                std::hint::spin_loop();
            }
            let used = window.close(1);
            if own_s(&used) > 0.1 {
                break used;
            }
            assert!(start.elapsed().as_secs() < 60, "{used:?}");
        };
        assert!(used.machine_busy_s.unwrap() > 0.05, "{used:?}");
        assert!(used.machine_pct.unwrap() > 0.0 && used.machine_pct.unwrap() <= 100.0);
    }
}
