//! Where and with what a run was made: what is needed to judge it and to repeat it.

use crate::measure::Clock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// Longest text taken from one file of the system.
const TEXT_BYTES_MAX: usize = 4096;

/// Kernel parameters (or their modules) that bear on storage, processors or memory. Only these are
/// kept: a result is made to be published, and a kernel's command line can hold addresses, names of
/// disks and passwords.
const BEARING: [&str; 50] = [
    "amd_iommu",
    "amd_pstate",
    "clocksource",
    "cpuidle",
    "cpuidle_haltpoll",
    "default_hugepagesz",
    "haltpoll",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "kpti",
    "l1tf",
    "lockdown",
    "mds",
    "mitigations",
    "nmi_watchdog",
    "no_timer_check",
    "nohz",
    "nohz_full",
    "nopti",
    "nosmt",
    "nospectre_v1",
    "nospectre_v2",
    "numa_balancing",
    "nvme",
    "nvme_core",
    "pci",
    "pcie_aspm",
    "pcie_ports",
    "preempt",
    "processor",
    "pti",
    "rcu_nocbs",
    "retbleed",
    "skew_tick",
    "spec_store_bypass_disable",
    "spectre_v2",
    "swiotlb",
    "threadirqs",
    "transparent_hugepage",
    "tsc",
    "tsx",
    "vfio_iommu_type1",
    "vfio_pci",
];

/// The surroundings of a run. What could not be found out is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// This program's version.
    pub nvpoll: String,
    /// When it started: ISO 8601, UTC.
    pub date: String,
    /// The command, word by word.
    pub command_line: Vec<String>,
    /// Machine and system.
    pub machine: Machine,
    /// The clock of all figures.
    pub clock: ClockFacts,
}

/// A machine and its system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `linux`, `windows`.
    pub os: String,
    /// The system in its own words: `Debian GNU/Linux 13 (trixie)`.
    pub os_name: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// The kernel's parameters that bear on the figures; see [`BEARING`].
    pub kernel_parameters: Option<String>,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// Maker and product, as the firmware has them.
    pub product: Option<String>,
    /// Processor model.
    pub cpu_model: Option<String>,
    /// Processors online.
    pub processors: Option<u32>,
    /// Whether two threads share a core.
    pub smt: Option<bool>,
    /// NUMA nodes online.
    pub numa_nodes: Option<u32>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Frequency governor; several are joined with commas.
    pub governor: Option<String>,
    /// What the kernel does about processor bugs, by their name.
    pub mitigations: Option<BTreeMap<String, String>>,
    /// Whether this is a virtual machine.
    pub virtual_machine: Option<bool>,
    /// IOMMU groups; 0 where no IOMMU is in use.
    pub iommu_groups: Option<u32>,
    /// The nvme driver's poll queues.
    pub nvme_poll_queues: Option<String>,
    /// Wine's version, where Wine stood in for Windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wine: Option<String>,
    /// Whether Windows was asked for its native NVMe stack. What is in force a row's stack says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_nvme_asked: Option<bool>,
}

/// The clock of all figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockFacts {
    /// Whether it is the processor's counter (TSC on x86-64); else the system's monotonic clock.
    pub counter: bool,
    /// Nanoseconds a tick, measured at the start.
    pub ns_per_tick: f64,
    /// What a read costs, in nanoseconds, measured at the start.
    pub read_cost_ns: f64,
}

impl Environment {
    /// Of this process, now.
    pub fn read(clock: &Clock) -> Self {
        Self {
            nvpoll: env!("CARGO_PKG_VERSION").to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command_line: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            machine: Machine::of_this_system(),
            clock: ClockFacts {
                counter: clock.is_counter(),
                ns_per_tick: clock.ns_per_tick(),
                read_cost_ns: clock.read_cost_ns(),
            },
        }
    }
}

impl Machine {
    /// Of the machine that this runs on.
    pub fn of_this_system() -> Self {
        os::machine()
    }

    /// Of the system whose /proc, /sys and /etc lie under `root`.
    #[cfg_attr(windows, allow(dead_code))]
    fn read(root: &Path) -> Self {
        let text = |path: &str| read_text(&root.join(path));
        let cpuinfo = text_whole(&root.join("proc/cpuinfo"));
        let online = |path| text(path).and_then(|list| count_list(&list));
        let own_processors = || Some(std::thread::available_parallelism().ok()?.get() as u32);
        Self {
            os: std::env::consts::OS.to_owned(),
            os_name: text("etc/os-release").and_then(|text| os_name(&text)),
            kernel: text("proc/sys/kernel/osrelease"),
            kernel_parameters: text("proc/cmdline").map(|line| bearing_parameters(&line)),
            arch: std::env::consts::ARCH.to_owned(),
            product: product(root),
            cpu_model: cpuinfo
                .as_deref()
                .and_then(|info| colon_field(info, "model name"))
                .or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok()),
            processors: online("sys/devices/system/cpu/online").or_else(own_processors),
            smt: text("sys/devices/system/cpu/smt/active").map(|active| active == "1"),
            numa_nodes: online("sys/devices/system/node/online"),
            memory_bytes: text("proc/meminfo").and_then(|info| memory_bytes(&info)),
            governor: governor(root),
            mitigations: mitigations(root),
            virtual_machine: cpuinfo.as_deref().and_then(has_hypervisor),
            iommu_groups: fs::read_dir(root.join("sys/kernel/iommu_groups"))
                .ok()
                .map(|groups| groups.count() as u32),
            nvme_poll_queues: text("sys/module/nvme/parameters/poll_queues"),
            wine: None,
            native_nvme_asked: None,
        }
    }
}

#[cfg(not(windows))]
mod os {
    use super::{Machine, Path};

    pub fn machine() -> Machine {
        Machine::read(Path::new("/"))
    }
}

#[cfg(windows)]
mod os {
    use super::Machine;
    use nvpoll_windows::machine::{
        groups, memory_bytes, registry_number, registry_text, version, wine_version,
    };

    const CURRENT: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
    const PROCESSOR: &str = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0";
    const BIOS: &str = r"HARDWARE\DESCRIPTION\System\BIOS";
    const OVERRIDES: &str =
        r"SYSTEM\CurrentControlSet\Policies\Microsoft\FeatureManagement\Overrides";
    /// The feature that asks for the native NVMe stack of Windows Server 2025.
    const NATIVE_NVME: &str = "1176759950";

    pub fn machine() -> Machine {
        let wine = wine_version();
        // Version and build from the kernel, the update level from the registry.
        let level = registry_number(CURRENT, "UBR").map(|level| format!(".{level}"));
        let kernel = format!("{}{}", version(), level.unwrap_or_default());
        let names = ["ProductName", "DisplayVersion"].map(|name| registry_text(CURRENT, name));
        let name = names.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let os_name = match &wine {
            Some(version) => format!("Wine {version}, not Windows"),
            None => format!("{name}, build {kernel}").trim_start_matches(", ").to_owned(),
        };
        let product = ["SystemManufacturer", "SystemProductName"];
        let product: Vec<_> = product.iter().filter_map(|name| registry_text(BIOS, name)).collect();
        Machine {
            os: std::env::consts::OS.to_owned(),
            os_name: Some(os_name),
            kernel: Some(kernel),
            arch: std::env::consts::ARCH.to_owned(),
            product: (!product.is_empty()).then(|| product.join(" ")),
            cpu_model: registry_text(PROCESSOR, "ProcessorNameString")
                .or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok()),
            processors: Some(groups().iter().sum()),
            memory_bytes: memory_bytes(),
            native_nvme_asked: Some(registry_number(OVERRIDES, NATIVE_NVME) == Some(1)),
            wine,
            ..Machine::default()
        }
    }
}

fn text_whole(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// A short file's text, trimmed; `None` when it is empty or cannot be read.
fn read_text(path: &Path) -> Option<String> {
    let mut text = text_whole(path)?;
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text.truncate(end);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The value of a `key : value` line.
fn colon_field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

/// `PRETTY_NAME` of os-release(5).
fn os_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// `MemTotal` of proc_meminfo(5), which counts in KiB and calls them kB.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let value = colon_field(meminfo, "MemTotal")?;
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// How many a list such as `0-3,8` names.
fn count_list(list: &str) -> Option<u32> {
    list.split(',').try_fold(0_u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Of a kernel's command line the words of [`BEARING`], up to `--`, behind which init's own begin.
fn bearing_parameters(line: &str) -> String {
    let name = |word: &str| word.split(['=', '.']).next().unwrap_or(word).replace('-', "_");
    let words = line.split_ascii_whitespace().take_while(|word| *word != "--");
    words.filter(|word| BEARING.contains(&name(word).as_str())).collect::<Vec<_>>().join(" ")
}

fn product(root: &Path) -> Option<String> {
    let dmi = root.join("sys/class/dmi/id");
    let parts = ["sys_vendor", "product_name"].map(|name| read_text(&dmi.join(name)));
    let words: Vec<String> = parts.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The flag that hypervisors set for their guests (CPUID 1, ECX bit 31); x86 alone has a list of
/// flags that would have it.
fn has_hypervisor(cpuinfo: &str) -> Option<bool> {
    let flags = colon_field(cpuinfo, "flags")?;
    Some(flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

fn governor(root: &Path) -> Option<String> {
    let cpus = fs::read_dir(root.join("sys/devices/system/cpu")).ok()?;
    let mut names: Vec<String> = cpus
        .filter_map(|cpu| read_text(&cpu.ok()?.path().join("cpufreq/scaling_governor")))
        .collect();
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| names.join(","))
}

fn mitigations(root: &Path) -> Option<BTreeMap<String, String>> {
    let files = fs::read_dir(root.join("sys/devices/system/cpu/vulnerabilities")).ok()?;
    let entry = |file: fs::DirEntry| {
        Some((file.file_name().to_string_lossy().into_owned(), read_text(&file.path())?))
    };
    Some(files.filter_map(|file| entry(file.ok()?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_server() {
        let root = tree(&[
            ("etc/os-release", "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n"),
            ("proc/sys/kernel/osrelease", "6.12.48-amd64\n"),
            ("proc/cmdline", "root=/dev/sda1 intel_iommu=on rd.iscsi.password=x -- pci=x\n"),
            ("proc/cpuinfo", "processor\t: 0\nmodel name\t: EPYC\nflags\t\t: fpu tsc\n\n"),
            ("proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 1 kB\n"),
            ("sys/devices/system/cpu/online", "0-3,8,10-11\n"),
            ("sys/devices/system/cpu/smt/active", "1\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/class/dmi/id/sys_vendor", "Maker\n"),
            ("sys/class/dmi/id/product_name", "Box 1\n"),
            ("sys/kernel/iommu_groups/0/type", "DMA\n"),
            ("sys/kernel/iommu_groups/1/type", "DMA\n"),
            ("sys/module/nvme/parameters/poll_queues", "0\n"),
        ]);
        let machine = Machine::read(root.path());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(machine.os_name, some("Debian GNU/Linux 13 (trixie)"));
        assert_eq!(machine.kernel, some("6.12.48-amd64"));
        assert_eq!(machine.kernel_parameters, some("intel_iommu=on"));
        assert_eq!(machine.cpu_model, some("EPYC"));
        assert_eq!(machine.virtual_machine, Some(false));
        assert_eq!(machine.memory_bytes, Some(24_000_000 * 1024));
        assert_eq!((machine.processors, machine.numa_nodes), (Some(7), Some(2)));
        assert_eq!(machine.smt, Some(true));
        assert_eq!(machine.governor, some("performance,powersave"));
        assert_eq!(machine.mitigations.unwrap().get("meltdown"), some("Not affected").as_ref());
        assert_eq!(machine.product, some("Maker Box 1"));
        assert_eq!((machine.iommu_groups, machine.nvme_poll_queues), (Some(2), some("0")));
    }

    #[test]
    fn of_the_kernels_words_those_that_bear_on_figures() {
        let line = "BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro quiet nvme.poll_queues=4 vfio-pci.ids=1:2 \
                    isolcpus=2-5 nosmt systemd.hostname=secret mitigations=off";
        let kept = "nvme.poll_queues=4 vfio-pci.ids=1:2 isolcpus=2-5 nosmt mitigations=off";
        assert_eq!(bearing_parameters(line), kept);
        assert_eq!(bearing_parameters(""), "");
    }

    #[test]
    fn a_guest_is_told_by_its_flag() {
        assert_eq!(has_hypervisor("flags : fpu hypervisor lahf_lm\n"), Some(true));
        assert_eq!(has_hypervisor("Features : fp asimd\n"), None);
    }

    #[test]
    fn what_is_not_there_is_unknown() {
        let machine = Machine::read(tree(&[("proc/meminfo", "MemTotal: many kB\n")]).path());
        assert_eq!(
            (&machine.kernel, &machine.governor, &machine.mitigations),
            (&None, &None, &None)
        );
        assert_eq!((machine.memory_bytes, machine.virtual_machine), (None, None));
        assert_eq!((machine.numa_nodes, machine.iommu_groups, machine.smt), (None, None, None));
        assert!(machine.processors.is_some(), "the process knows how many it may use");
    }

    #[test]
    fn lists_that_are_none() {
        for list in ["", "a", "3-1", "0-4294967295", "1,,2", "-"] {
            assert_eq!(count_list(list), None, "{list}");
        }
    }

    #[test]
    fn this_process() {
        let environment = Environment::read(&Clock::new());
        assert_eq!(environment.nvpoll, env!("CARGO_PKG_VERSION"));
        assert!(environment.date.ends_with('Z') && environment.date.len() == 20);
        assert!(!environment.command_line.is_empty());
        assert!(environment.clock.read_cost_ns > 0.0);
        let json = serde_json::to_string(&environment).unwrap();
        assert_eq!(serde_json::from_str::<Environment>(&json).unwrap(), environment);
    }
}
