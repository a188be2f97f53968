//! The processors: frequency, sleep, isolation (Documentation/ABI/testing/sysfs-devices-system-cpu).

use crate::Host;
use crate::sysfs;

/// How the processors are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// Frequency governors in force, each once; empty where the kernel sets no frequency.
    pub governors: Vec<String>,
    /// Whether frequencies above the nominal one are allowed.
    pub turbo: Option<bool>,
    /// Whether two threads share a core now.
    pub smt: Option<bool>,
    /// Sleep states of processor 0; empty where the kernel chooses none.
    pub idle_states: Vec<IdleState>,
    /// The longest wake-up that all programs together allow, in µs (/dev/cpu_dma_latency).
    pub latency_allowed_us: Option<u32>,
    /// Processors that the scheduler leaves alone (`isolcpus`), as a list; empty for none.
    pub isolated: Option<String>,
    /// Processors without a tick while one task runs (`nohz_full`), as a list; empty for none.
    pub nohz_full: Option<String>,
}

/// One sleep state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// The driver's name for it: `C6`.
    pub name: String,
    /// Time to wake up, in µs.
    pub latency_us: u64,
    /// Whether it is turned off.
    pub disabled: bool,
}

const CPU: &str = "/sys/devices/system/cpu";

impl Processors {
    /// The deepest sleep that is allowed; `None` where nothing is known of any.
    pub fn deepest(&self) -> Option<&IdleState> {
        let limit = self.latency_allowed_us.map_or(u64::MAX, u64::from);
        let allowed = |state: &&IdleState| !state.disabled && state.latency_us <= limit;
        self.idle_states.iter().filter(allowed).max_by_key(|state| state.latency_us)
    }
}

impl Host {
    pub(super) fn processors(&self) -> Processors {
        let cpu = self.path(CPU);
        let list = |name: &str| sysfs::text(cpu.join(name)).map(|text| list_of(&text));
        Processors {
            governors: self.governors(),
            turbo: self.turbo(),
            smt: sysfs::number::<u32>(cpu.join("smt/active")).map(|active| active != 0),
            idle_states: self.idle_states(),
            latency_allowed_us: self.latency_allowed_us(),
            isolated: list("isolated"),
            nohz_full: list("nohz_full"),
        }
    }

    fn governors(&self) -> Vec<String> {
        let cpu = self.path(CPU);
        let governor =
            |name: &String| sysfs::value(cpu.join(name).join("cpufreq/scaling_governor"));
        let mut governors: Vec<String> =
            sysfs::names_or_none(&cpu).iter().filter_map(governor).collect();
        governors.sort();
        governors.dedup();
        governors
    }

    /// Intel's driver has a switch of its own, the others share one.
    fn turbo(&self) -> Option<bool> {
        let number = |name: &str| sysfs::number::<u32>(self.path(CPU).join(name));
        let intel = number("intel_pstate/no_turbo").map(|off| off == 0);
        intel.or_else(|| number("cpufreq/boost").map(|on| on != 0))
    }

    fn idle_states(&self) -> Vec<IdleState> {
        let dir = self.path(CPU).join("cpu0/cpuidle");
        let state = |name: &String| {
            let dir = dir.join(name);
            Some(IdleState {
                name: sysfs::value(dir.join("name"))?,
                latency_us: sysfs::number(dir.join("latency"))?,
                disabled: sysfs::number::<u32>(dir.join("disable")) == Some(1),
            })
        };
        sysfs::names_or_none(&dir).iter().filter_map(state).collect()
    }

    /// The request in force, a signed number of 4 bytes (Documentation/power/pm_qos_interface.rst).
    /// Reading it makes no request of one's own.
    fn latency_allowed_us(&self) -> Option<u32> {
        use std::io::Read;
        let mut file = std::fs::File::open(self.path("/dev/cpu_dma_latency")).ok()?;
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).ok()?;
        u32::try_from(i32::from_ne_bytes(bytes)).ok()
    }
}

/// The kernel writes `(null)` for an empty list in places.
fn list_of(text: &str) -> String {
    match text.trim() {
        "(null)" => String::new(),
        list => list.to_owned(),
    }
}
