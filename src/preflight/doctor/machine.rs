//! Findings of the machine as a whole.

use super::{Context, ENGINE, Finding, in_units, processors};
use crate::failure::Failure;
use crate::preflight::{check_available, memlock};
use nvpoll_engine::EngineKind;
use nvpoll_host::UserDriver;
use nvpoll_host::machine::{Lockdown, MachineFacts, Presence};

/// Everything that is asked of the machine.
pub(super) fn findings(context: &Context<'_>) -> Result<Vec<Finding>, Failure> {
    let facts = &context.facts;
    let mut all = vec![rights(facts), lockdown(facts), iommu(facts), interrupts(facts)];
    all.extend(facts.drivers.iter().map(|(driver, presence)| driver_there(*driver, presence)));
    all.extend([vfio(facts), iommufd(facts), locked_memory(context), dma_entries(context)]);
    all.extend([huge_pages(context), io_uring(facts), poll_queues(facts)]);
    all.extend(processors::findings(&facts.processors));
    all.extend(EngineKind::ALL.iter().map(|kind| engine(*kind)));
    for leftover in context.host.leftovers()?.iter().filter(|leftover| leftover.is_orphan()) {
        let remedy = format!("nvpoll unbind {}", leftover.address);
        all.push(Finding::warning("leftover", leftover.to_string(), "none", remedy));
    }
    Ok(all)
}

/// The name of the engine that drives a drive on `driver`, where this build has one.
pub(super) fn engine_of(driver: UserDriver) -> Option<&'static str> {
    let infos = EngineKind::ALL.iter().map(|kind| kind.info());
    infos.filter(|info| info.driver == Some(driver.name())).map(|info| info.name).next()
}

fn rights(facts: &MachineFacts) -> Finding {
    const NEEDED: &str =
        "root, to bind and to give back; a run as another user needs `bind --user`";
    let rights = &facts.rights;
    let names = [
        ("CAP_SYS_ADMIN", rights.sys_admin()),
        ("CAP_SYS_RAWIO", rights.sys_rawio()),
        ("CAP_IPC_LOCK", rights.ipc_lock()),
    ];
    let lacking: Vec<&str> =
        names.iter().filter(|(_, has)| *has == Some(false)).map(|(name, _)| *name).collect();
    let Some(uid) = rights.uid else {
        return Finding::not_known("rights", "/proc does not tell who this is", NEEDED);
    };
    let who = if uid == 0 { "root".to_owned() } else { format!("user {uid}") };
    match (uid, lacking.as_slice()) {
        (0, []) if rights.capabilities.is_some() => Finding::ok("rights", who, NEEDED),
        (0, []) => Finding::not_known("rights", "root, its capabilities are not told", NEEDED),
        (_, lacking) => {
            let found = match lacking {
                [] => who,
                lacking => format!("{who}, without {}", lacking.join(", ")),
            };
            let remedy = "sudo nvpoll bind TARGET --user NAME, then run as NAME";
            let raw = lacking.contains(&"CAP_SYS_ADMIN") || lacking.contains(&"CAP_SYS_RAWIO");
            let rules_out: &[&str] = if raw { &["uio", "vfio without an IOMMU"] } else { &[] };
            Finding::warning("rights", found, NEEDED, remedy).rules_out(rules_out)
        }
    }
}

/// What lockdown forbids of what is done here is to write a device's configuration space and to map
/// its BARs through sysfs (LOCKDOWN_PCI_ACCESS in drivers/pci/pci-sysfs.c), from integrity on. VFIO
/// and /proc/self/pagemap are not among its reasons (include/linux/security.h).
fn lockdown(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "lockdown";
    const NEEDED: &str = "none for uio, which maps BARs through sysfs; VFIO works under any";
    match facts.lockdown {
        Some(Lockdown::None) => Finding::ok(CHECK, "none", NEEDED),
        Some(lockdown) => {
            let found = format!("{}: raw access to PCI devices is forbidden", lockdown.name());
            let remedy = "use VFIO; or turn Secure Boot off in the firmware, or take lockdown= off the kernel's command line, and boot";
            Finding::warning(CHECK, found, NEEDED, remedy).rules_out(&["uio"])
        }
        None => Finding::not_known(
            CHECK,
            "/sys/kernel/security/lockdown cannot be read (mount -t securityfs securityfs /sys/kernel/security)",
            NEEDED,
        ),
    }
}

fn iommu(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "iommu";
    const NEEDED: &str = "on, for VFIO";
    let iommu = &facts.iommu;
    if let Some(groups @ 1..) = iommu.groups {
        let units = match iommu.units.as_slice() {
            [] => String::new(),
            units => format!(" ({})", units.join(", ")),
        };
        return Finding::ok(CHECK, format!("on, {groups} groups{units}"), NEEDED);
    }
    let (found, remedy) = match (iommu.groups, iommu.firmware_table.as_deref()) {
        (None, _) if facts.kernel.is_none() => {
            return Finding::not_known(CHECK, "/sys and /proc do not tell", NEEDED);
        }
        (None, _) => (
            "this kernel has no support for one".to_owned(),
            "boot a kernel with CONFIG_IOMMU_SUPPORT and the IOMMU's driver".to_owned(),
        ),
        (_, Some("DMAR")) => (
            "off, though the firmware tells of one (DMAR)".to_owned(),
            "put intel_iommu=on on the kernel's command line and boot".to_owned(),
        ),
        (_, Some(table)) => (
            format!("off, though the firmware tells of one ({table})"),
            "take iommu=off or amd_iommu=off off the kernel's command line and boot".to_owned(),
        ),
        (_, None) => (
            "none: the firmware tells of none".to_owned(),
            "turn VT-d (Intel) or AMD-Vi / IOMMU (AMD) on in the firmware, and put intel_iommu=on or amd_iommu=on on the kernel's command line".to_owned(),
        ),
    };
    Finding::warning(CHECK, found, NEEDED, remedy).rules_out(&["vfio"])
}

/// VFIO_SET_IOMMU answers EPERM where a device could send any interrupt, unless that is allowed
/// (vfio_iommu_type1_attach_group in drivers/vfio/vfio_iommu_type1.c).
pub(super) fn interrupts(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "interrupt-remapping";
    const NEEDED: &str = "on, for VFIO, or allow_unsafe_interrupts of vfio_iommu_type1";
    if facts.iommu.groups.unwrap_or(0) == 0 {
        return Finding::not_known(CHECK, "it is the IOMMU's, and that is not on", NEEDED);
    }
    match (facts.iommu.interrupt_remapping, facts.vfio.allow_unsafe_interrupts) {
        (Some(true), _) => Finding::ok(CHECK, "on", NEEDED),
        (Some(false), Some(true)) => Finding::warning(
            CHECK,
            "off; VFIO is allowed to go on all the same (allow_unsafe_interrupts)",
            NEEDED,
            "turn it on in the firmware, unless every device is trusted",
        ),
        (Some(false), _) => Finding::warning(
            CHECK,
            "off: VFIO will refuse the IOMMU (VFIO_SET_IOMMU, EPERM)",
            NEEDED,
            "turn it on in the firmware; or, if every device is trusted: echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
        )
        .rules_out(&["vfio"]),
        (None, _) => Finding::not_known(CHECK, "/proc/interrupts does not tell here", NEEDED),
    }
}

fn driver_there(driver: UserDriver, presence: &Presence) -> Finding {
    let check = format!("driver {}", driver.name());
    let engine = engine_of(driver);
    let needed = match engine {
        Some(engine) => format!("there, for the engine {engine}"),
        None => "nothing: this build has no engine for it".to_owned(),
    };
    match (presence, engine) {
        (Presence::There, _) => Finding::ok(&check, "there", &needed),
        (Presence::Loadable, _) => {
            Finding::ok(&check, "installed; `nvpoll bind` loads its module", &needed)
        }
        (Presence::Missing(why), Some(engine)) => {
            let remedy = format!(
                "modprobe {}, or install the modules of this kernel (a kernel with it, where there is none)",
                driver.name()
            );
            Finding::warning(&check, format!("missing: {why}"), &needed, remedy)
                .rules_out(&[engine])
        }
        (Presence::Missing(why), None) => Finding::ok(&check, format!("missing: {why}"), &needed),
        (Presence::NotKnown, _) => {
            Finding::not_known(&check, "the lists of this kernel's modules cannot be read", &needed)
        }
    }
}

fn is_vfio_there(facts: &MachineFacts) -> bool {
    facts.drivers.contains(&(UserDriver::VfioPci, Presence::There))
}

fn vfio(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "vfio-container";
    const NEEDED: &str = "/dev/vfio/vfio, for a group with its type 1 IOMMU";
    match &facts.vfio.container {
        Some(node) if node.usable => {
            Finding::ok(CHECK, format!("there, mode {:o}", node.mode), NEEDED)
        }
        Some(node) => {
            let found = format!("there, mode {:o}, and not for this user", node.mode);
            Finding::warning(CHECK, found, NEEDED, "as root: chmod 0666 /dev/vfio/vfio")
                .rules_out(&["vfio"])
        }
        None if is_vfio_there(facts) => {
            let remedy = "modprobe vfio_iommu_type1; a kernel needs CONFIG_VFIO_GROUP for it";
            Finding::warning(CHECK, "missing", NEEDED, remedy).rules_out(&["vfio"])
        }
        None => Finding::not_known(CHECK, "not there before vfio's modules are loaded", NEEDED),
    }
}

fn iommufd(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "iommufd";
    const NEEDED: &str = "/dev/iommu, for VFIO devices without a group; type 1 does without";
    match &facts.vfio.iommufd {
        Some(node) => {
            let usable = if node.usable { "" } else { ", and not for this user" };
            let cdevs = facts.vfio.cdevs;
            let found = format!(
                "there, mode {:o}{usable}; {cdevs} devices under /dev/vfio/devices",
                node.mode
            );
            Finding::ok(CHECK, found, NEEDED)
        }
        None if facts.vfio.container.is_some() => Finding::ok(CHECK, "not there", NEEDED),
        None => Finding::not_known(CHECK, "not there before its module is loaded", NEEDED),
    }
}

/// The limit on locked memory against what the run that is asked about needs.
pub(super) fn locked_memory(context: &Context<'_>) -> Finding {
    const CHECK: &str = "locked-memory";
    let needed = format!("{} for this run on VFIO", in_units(context.locked.bytes));
    let Some(memlock) = &context.facts.memlock else {
        return Finding::not_known(CHECK, "/proc does not tell the limit", &needed);
    };
    let limit = |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), in_units);
    let found = format!("{}, at most {}", limit(memlock.soft), limit(memlock.hard));
    let rights = &context.facts.rights;
    let user = memlock::own_name(context.host, rights);
    match memlock::lack(memlock, rights, &user, context.locked.bytes) {
        Some(lack) => Finding::warning(CHECK, found, &needed, lack.remedy).rules_out(&["vfio"]),
        None if rights.ipc_lock() == Some(true) => {
            Finding::ok(CHECK, format!("{found}; not limited for root"), &needed)
        }
        None => Finding::ok(CHECK, found, &needed),
    }
}

fn dma_entries(context: &Context<'_>) -> Finding {
    const CHECK: &str = "dma-entries";
    let mappings = context.locked.mappings;
    let needed = format!("{mappings} mappings a drive for this run (dma_entry_limit)");
    match context.facts.vfio.dma_entry_limit {
        Some(limit) if limit >= mappings => Finding::ok(CHECK, limit.to_string(), &needed),
        Some(limit) => {
            let remedy = format!(
                "echo {mappings} > /sys/module/vfio_iommu_type1/parameters/dma_entry_limit, or lower --numjobs"
            );
            Finding::warning(CHECK, limit.to_string(), &needed, remedy).rules_out(&["vfio"])
        }
        None => Finding::not_known(CHECK, "the module vfio_iommu_type1 is not loaded", &needed),
    }
}

fn huge_pages(context: &Context<'_>) -> Finding {
    const CHECK: &str = "huge-pages";
    let pools = &context.facts.huge_pages;
    let bytes = context.locked.bytes;
    let has_engine = engine_of(UserDriver::UioPciGeneric).is_some();
    let needed = match has_engine {
        true => {
            format!("{} free on the drive's node, where there is no IOMMU (uio)", in_units(bytes))
        }
        false => "none: this build has no engine that needs them".to_owned(),
    };
    if pools.is_empty() {
        return Finding::not_known(CHECK, "this kernel shows none", &needed);
    }
    let listed: Vec<String> = pools
        .iter()
        .map(|pool| {
            let node = pool.node.map_or("all nodes".to_owned(), |node| format!("node {node}"));
            let size = in_units(pool.page_bytes);
            format!("{node}: {} of {size}, {} free", pool.total, pool.free)
        })
        .collect();
    let free = pools.iter().map(|pool| pool.free.saturating_mul(pool.page_bytes)).max();
    let found = listed.join("; ");
    if !has_engine || free.unwrap_or(0) >= bytes {
        return Finding::ok(CHECK, found, &needed);
    }
    // Whole pages for each mapping at worst.
    let pages = bytes.div_ceil(2 << 20).saturating_add(context.locked.mappings);
    let remedy = format!(
        "echo {pages} > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages (the drive's node in place of node0)"
    );
    Finding::warning(CHECK, found, &needed, remedy).rules_out(&["uio"])
}

/// Documentation/admin-guide/sysctl/kernel.rst, io_uring_disabled. Whether there is io_uring at all
/// its engine tells.
fn io_uring(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "io_uring-switch";
    const NEEDED: &str = "0 (kernel.io_uring_disabled), for the engines on io_uring";
    let engines: Vec<&str> = EngineKind::ALL
        .iter()
        .map(|kind| kind.info().name)
        .filter(|name| name.starts_with("io_uring"))
        .collect();
    let remedy = "as root: sysctl kernel.io_uring_disabled=0";
    match (facts.io_uring.disabled, facts.rights.sys_admin()) {
        (Some(0), _) => Finding::ok(CHECK, "0", NEEDED),
        (Some(1), Some(true)) => Finding::ok(CHECK, "1: for root and a group alone", NEEDED),
        (Some(1), _) => {
            let group = facts.io_uring.group.filter(|group| *group >= 0);
            let group = group.map_or("no group".to_owned(), |group| format!("group {group}"));
            let found = format!("1: for root and {group} alone");
            let remedy = format!("{remedy}, or be a member of kernel.io_uring_group");
            Finding::warning(CHECK, found, NEEDED, remedy).rules_out(&engines)
        }
        (Some(value), _) => Finding::warning(CHECK, format!("{value}: for nobody"), NEEDED, remedy)
            .rules_out(&engines),
        (None, _) if facts.kernel.is_some() => {
            Finding::ok(CHECK, "this kernel has no such switch", NEEDED)
        }
        (None, _) => Finding::not_known(CHECK, "/proc/sys does not tell", NEEDED),
    }
}

fn poll_queues(facts: &MachineFacts) -> Finding {
    const CHECK: &str = "poll-queues";
    const NEEDED: &str = "1 or more, to poll the kernel's driver (nvme.poll_queues)";
    match facts.nvme_poll_queues {
        Some(0) => Finding::warning(
            CHECK,
            "0: the kernel's driver has interrupts alone",
            NEEDED,
            "echo 2 > /sys/module/nvme/parameters/poll_queues, then reset each drive (echo 1 > /sys/class/nvme/nvme0/reset_controller); or nvme.poll_queues=2 on the kernel's command line",
        ),
        Some(queues) => Finding::ok(CHECK, queues.to_string(), NEEDED),
        None => Finding::not_known(CHECK, "the module nvme is not loaded", NEEDED),
    }
}

fn engine(kind: EngineKind) -> Finding {
    let info = kind.info();
    let check = format!("{ENGINE}{}", info.name);
    match check_available(kind) {
        Ok(()) => Finding::ok(&check, "available", info.summary),
        Err(error) => {
            let text = error.text.strip_prefix(&format!("{check}: ")).unwrap_or(&error.text);
            Finding::warning(&check, "not available", info.summary, text).rules_out(&[info.name])
        }
    }
}
