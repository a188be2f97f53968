//! Findings of the processors: what makes figures vary.

use super::Finding;
use nvpoll_host::machine::Processors;

/// A wake-up that is short against an I/O, in µs.
const WAKE_UP_US_MAX: u64 = 10;

pub(super) fn findings(processors: &Processors) -> Vec<Finding> {
    vec![
        governor(processors),
        turbo(processors),
        sleep(processors),
        isolation(processors),
        threads(processors),
    ]
}

fn governor(processors: &Processors) -> Finding {
    const CHECK: &str = "governor";
    const NEEDED: &str = "performance, for a steady frequency";
    match processors.governors.as_slice() {
        [] => Finding::not_known(CHECK, "the kernel sets no frequency here", NEEDED),
        [one] if one == "performance" => Finding::ok(CHECK, one.as_str(), NEEDED),
        all => Finding::warning(
            CHECK,
            all.join(", "),
            NEEDED,
            "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        ),
    }
}

fn turbo(processors: &Processors) -> Finding {
    const CHECK: &str = "turbo";
    const NEEDED: &str = "off, for figures that do not depend on temperature";
    match processors.turbo {
        Some(false) => Finding::ok(CHECK, "off", NEEDED),
        Some(true) => Finding::warning(
            CHECK,
            "on",
            NEEDED,
            "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo (Intel), or echo 0 > /sys/devices/system/cpu/cpufreq/boost",
        ),
        None => Finding::not_known(CHECK, "the kernel has no switch for it here", NEEDED),
    }
}

fn sleep(processors: &Processors) -> Finding {
    const CHECK: &str = "c-states";
    let needed = format!("a wake-up within {WAKE_UP_US_MAX} µs, for latencies by interrupt");
    if processors.idle_states.is_empty() {
        return Finding::not_known(CHECK, "the kernel chooses no sleep states here", &needed);
    }
    let limit = match processors.latency_allowed_us {
        Some(us) if us < 1_000_000 => format!(", programs allow {us} µs"),
        Some(_) => String::new(),
        None => ", what programs allow is for root to read".to_owned(),
    };
    match processors.deepest() {
        Some(state) if state.latency_us > WAKE_UP_US_MAX => {
            let found = format!("{} wakes up in {} µs{limit}", state.name, state.latency_us);
            let remedy = format!("cpupower idle-set -D {} (undone by -E)", WAKE_UP_US_MAX + 1);
            Finding::warning(CHECK, found, &needed, remedy)
        }
        Some(state) => {
            let found = format!("{} wakes up in {} µs{limit}", state.name, state.latency_us);
            Finding::ok(CHECK, found, &needed)
        }
        None => Finding::ok(CHECK, format!("none is allowed{limit}"), &needed),
    }
}

fn isolation(processors: &Processors) -> Finding {
    const CHECK: &str = "isolation";
    const NEEDED: &str =
        "nothing; processors of isolcpus= and nohz_full=, named by --cpus, are the steadiest";
    let Some(isolated) = &processors.isolated else {
        return Finding::not_known(CHECK, "the kernel does not tell", NEEDED);
    };
    let list = |list: &str| if list.is_empty() { "none".to_owned() } else { list.to_owned() };
    // A kernel without CONFIG_NO_HZ_FULL has no such file.
    let tickless = processors.nohz_full.as_deref().unwrap_or_default();
    let found = format!("isolcpus {}, nohz_full {}", list(isolated), list(tickless));
    Finding::ok(CHECK, found, NEEDED)
}

fn threads(processors: &Processors) -> Finding {
    const CHECK: &str = "smt";
    const NEEDED: &str = "off, or workers on one thread of each core (--cpus)";
    match processors.smt {
        Some(false) => Finding::ok(CHECK, "off", NEEDED),
        Some(true) => Finding::warning(
            CHECK,
            "on: two workers may share a core",
            NEEDED,
            "--cpus with one thread of each core (lscpu -e shows them), or echo off > /sys/devices/system/cpu/smt/control",
        ),
        None => Finding::not_known(CHECK, "the kernel does not tell", NEEDED),
    }
}
