//! Facts of machines that the lab cannot make.

use nix::libc::{EACCES, EROFS};

use super::{HugePages, Lockdown, Presence, User, remaps_interrupts};
use crate::fake::{Machine, PLAIN};
use crate::{ErrorKind, TakeOptions, UserDriver};

const FIRST: &str = "0000:00:04.0";

fn machine() -> Machine {
    Machine::new(PLAIN)
}

/// Sets this process's status as /proc has it.
fn status(machine: &Machine, uid: u32, capabilities: u64) {
    let text = format!("Name:\tnvpoll\nUid:\t0\t{uid}\t0\t0\nCapEff:\t{capabilities:016x}\n");
    machine.write(&format!("/proc/{}/status", std::process::id()), text);
}

#[test]
fn what_is_not_there_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let facts = crate::Host::at(folder.path()).machine();
    assert_eq!((facts.kernel, facts.lockdown, facts.memlock), (None, None, None));
    assert_eq!((facts.iommu.groups, facts.iommu.interrupt_remapping), (None, None));
    assert_eq!((facts.rights.uid, facts.rights.ipc_lock()), (None, None));
    assert_eq!((facts.io_uring.disabled, facts.nvme_poll_queues), (None, None));
    assert_eq!((facts.vfio.container, facts.vfio.dma_entry_limit), (None, None));
    assert_eq!(facts.processors, super::Processors::default());
    assert!(facts.huge_pages.is_empty());
    assert!(facts.drivers.iter().all(|(_, presence)| *presence == Presence::NotKnown));
}

#[test]
fn the_lockdown_in_force_is_the_bracketed_one() {
    let machine = machine();
    for (text, want) in [
        ("[none] integrity confidentiality\n", Some(Lockdown::None)),
        ("none [integrity] confidentiality\n", Some(Lockdown::Integrity)),
        ("none integrity [confidentiality]\n", Some(Lockdown::Confidentiality)),
        ("none integrity\n", None),
        ("[something]\n", None),
    ] {
        machine.write("/sys/kernel/security/lockdown", text);
        assert_eq!(machine.host().machine().lockdown, want, "{text:?}");
    }
    std::fs::remove_file(machine.path("/sys/kernel/security/lockdown")).unwrap();
    for (text, want) in [("capability,yama", Some(Lockdown::None)), ("lockdown,capability", None)] {
        machine.write("/sys/kernel/security/lsm", text);
        assert_eq!(machine.host().machine().lockdown, want, "{text:?}");
    }
}

#[test]
fn groups_that_vfio_made_up_are_no_iommu() {
    let machine = machine();
    let groups = machine.host().machine().iommu.groups.unwrap();
    assert!(groups >= 2, "{groups}");
    machine.write("/sys/kernel/iommu_groups/2/name", "vfio-noiommu\n");
    assert_eq!(machine.host().machine().iommu.groups, Some(groups - 1));
    machine.write("/sys/firmware/acpi/tables/DMAR", "");
    machine.dir("/sys/class/iommu/dmar0");
    let iommu = machine.host().machine().iommu;
    assert_eq!(iommu.firmware_table.as_deref(), Some("DMAR"));
    assert_eq!(iommu.units, ["dmar0"]);
}

#[test]
fn interrupt_remapping_shows_in_the_chips_names() {
    let with = " 24: 9 0 IR-PCI-MSI-0000:00:04.0 0-edge nvme0q0\n 0: 5 IR-IO-APIC 2-edge timer\n";
    let without = " 24: 9 0 PCI-MSIX-0000:00:04.0 0-edge nvme0q0\n 0: 5 IO-APIC 2-edge timer\n";
    assert_eq!(remaps_interrupts(with), Some(true));
    assert_eq!(remaps_interrupts(without), Some(false));
    assert_eq!(remaps_interrupts(" 11: 9 GICv3 27 Level arch_timer\n"), None);
    assert_eq!(remaps_interrupts(""), None);
}

#[test]
fn huge_pages_are_counted_by_node_and_size() {
    let machine = machine();
    let pool = |folder: &str, total: u64, free: u64| {
        machine.write(&format!("{folder}/nr_hugepages"), format!("{total}\n"));
        machine.write(&format!("{folder}/free_hugepages"), format!("{free}\n"));
    };
    pool("/sys/kernel/mm/hugepages/hugepages-2048kB", 7, 5);
    let of = |node, page_bytes, total, free| HugePages { node, page_bytes, total, free };
    assert_eq!(machine.host().machine().huge_pages, [of(None, 2 << 20, 7, 5)]);
    pool("/sys/devices/system/node/node1/hugepages/hugepages-1048576kB", 1, 0);
    pool("/sys/devices/system/node/node0/hugepages/hugepages-2048kB", 6, 5);
    let want = [of(Some(0), 2 << 20, 6, 5), of(Some(1), 1 << 30, 1, 0)];
    assert_eq!(machine.host().machine().huge_pages, want);
}

#[test]
fn a_module_is_there_loadable_or_missing() {
    let machine = machine();
    let presence = || machine.host().driver_presence(UserDriver::UioPciGeneric);
    assert_eq!(presence(), Presence::There, "its driver is registered");
    std::fs::remove_dir_all(machine.path("/sys/bus/pci/drivers/uio_pci_generic")).unwrap();
    assert_eq!(presence(), Presence::NotKnown, "the kernel's release is not known");
    machine.write("/proc/sys/kernel/osrelease", "6.12.0\n");
    assert!(matches!(presence(), Presence::Missing(why) if why.contains("/lib/modules/6.12.0")));
    let dep = "/lib/modules/6.12.0/modules.dep";
    machine.write(dep, "kernel/drivers/uio/uio.ko:\n");
    assert!(matches!(presence(), Presence::Missing(why) if why.contains("no module")));
    machine.write(dep, "kernel/drivers/uio/uio_pci_generic.ko.xz: kernel/drivers/uio/uio.ko.xz\n");
    assert_eq!(presence(), Presence::Loadable);
    machine.write("/proc/sys/kernel/modules_disabled", "1\n");
    assert!(matches!(presence(), Presence::Missing(why) if why.contains("modules_disabled")));
    machine.write("/lib/modules/6.12.0/modules.builtin", "kernel/drivers/uio/uio_pci_generic.ko\n");
    assert_eq!(presence(), Presence::There);
}

#[test]
fn a_missing_driver_refuses_before_anything_is_touched() {
    let machine = machine();
    let host = machine.host();
    let drive = host.drive(FIRST.parse().unwrap()).unwrap();
    let ask = || host.may_take(&drive, UserDriver::VfioPci, &TakeOptions::default());
    ask().unwrap();
    std::fs::remove_dir_all(machine.path("/sys/bus/pci/drivers/vfio-pci")).unwrap();
    machine.write("/proc/sys/kernel/osrelease", "6.12.0\n");
    let error = ask().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("modprobe vfio-pci"), "{error}");
    assert_eq!(machine.writes(), []);
}

#[test]
fn without_root_nothing_is_begun_and_the_message_says_so() {
    let machine = machine();
    let host = machine.host();
    let drive = host.drive(FIRST.parse().unwrap()).unwrap();
    let options = TakeOptions { persistent: true, ..TakeOptions::default() };
    status(&machine, 1000, 0);
    machine.deny("/sys/bus/pci/drivers_probe", EACCES);
    let refused = [
        host.may_take(&drive, UserDriver::VfioPci, &options).unwrap_err(),
        host.take(&drive, UserDriver::VfioPci, &options).unwrap_err(),
    ];
    for error in refused {
        let text = error.to_string();
        assert!(text.contains("user 1000") && text.contains("sudo nvpoll bind"), "{text}");
    }
    machine.deny("/sys/bus/pci/drivers_probe", EROFS);
    let error = host.take(&drive, UserDriver::VfioPci, &options).unwrap_err().to_string();
    assert!(error.contains("read-only"), "{error}");
    assert_eq!(machine.writes(), []);
    assert!(!machine.path("/run/nvpoll").exists(), "not even a lock");
}

#[test]
fn rights_are_those_in_force() {
    let machine = machine();
    status(&machine, 1000, 0);
    let rights = machine.host().rights();
    assert_eq!((rights.uid, rights.ipc_lock()), (Some(1000), Some(false)));
    status(&machine, 0, 1 << 14 | 1 << 21);
    let rights = machine.host().rights();
    assert_eq!((rights.uid, rights.ipc_lock()), (Some(0), Some(true)));
    assert_eq!((rights.sys_admin(), rights.sys_rawio()), (Some(true), Some(false)));
}

#[test]
fn processors_that_sleep_deeply_and_those_that_may_not() {
    let machine = machine();
    let cpu = "/sys/devices/system/cpu";
    for (name, latency, disable) in [("state0", 0, 0), ("state1", 2, 0), ("state2", 170, 0)] {
        let dir = format!("{cpu}/cpu0/cpuidle/{name}");
        machine.write(&format!("{dir}/name"), format!("S{latency}\n"));
        machine.write(&format!("{dir}/latency"), format!("{latency}\n"));
        machine.write(&format!("{dir}/disable"), format!("{disable}\n"));
    }
    machine.write(&format!("{cpu}/cpu0/cpufreq/scaling_governor"), "powersave\n");
    machine.write(&format!("{cpu}/cpu1/cpufreq/scaling_governor"), "performance\n");
    machine.write(&format!("{cpu}/cpufreq/boost"), "1\n");
    machine.write(&format!("{cpu}/smt/active"), "1\n");
    machine.write(&format!("{cpu}/isolated"), "2-5\n");
    machine.write(&format!("{cpu}/nohz_full"), "  (null)\n");
    let read = || machine.host().machine().processors;
    let processors = read();
    assert_eq!(processors.governors, ["performance", "powersave"]);
    assert_eq!((processors.turbo, processors.smt), (Some(true), Some(true)));
    assert_eq!(processors.isolated.as_deref(), Some("2-5"));
    assert_eq!(processors.nohz_full.as_deref(), Some(""));
    assert_eq!(processors.deepest().unwrap().name, "S170");
    machine.write("/dev/cpu_dma_latency", 5_i32.to_ne_bytes());
    assert_eq!(read().deepest().unwrap().name, "S2", "a program allows 5 µs");
    machine.write(&format!("{cpu}/cpu0/cpuidle/state1/disable"), "1\n");
    assert_eq!(read().deepest().unwrap().name, "S0");
    machine.write(&format!("{cpu}/intel_pstate/no_turbo"), "1\n");
    assert_eq!(read().turbo, Some(false), "the driver's own switch counts");
}

#[test]
fn a_queues_settings() {
    let machine = machine();
    let host = machine.host();
    let drive = host.drive(FIRST.parse().unwrap()).unwrap();
    let queue = "/sys/class/block/nvme0n1/queue";
    for (name, text) in [
        ("scheduler", "none mq-deadline [kyber]\n"),
        ("iostats", "1\n"),
        ("nomerges", "2\n"),
        ("wbt_lat_usec", "75000\n"),
        ("io_poll", "0\n"),
    ] {
        machine.write(&format!("{queue}/{name}"), text);
    }
    let settings = &host.queue_settings(&drive)[0];
    assert_eq!(settings.scheduler.as_deref(), Some("kyber"));
    assert_eq!((settings.iostats, settings.nomerges), (Some(true), Some(2)));
    assert_eq!((settings.wbt_lat_usec, settings.io_poll), (Some(75000), Some(false)));
    assert_eq!(settings.rq_affinity, None);
}

fn ann() -> User {
    let (groups, group_names) = (vec![1000, 50], vec!["ann".to_owned(), "bench".to_owned()]);
    User { name: "ann".to_owned(), uid: 1000, gid: 1000, groups, group_names }
}

#[test]
fn a_user_and_his_groups_are_found() {
    let machine = machine();
    machine.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n");
    machine.write("/etc/group", "root:x:0:\nann:x:1000:\nbench:x:50:bob,ann\nother:x:51:bob\n");
    assert_eq!(machine.host().user("ann").unwrap(), ann());
    assert_eq!(machine.host().user_name(1000).as_deref(), Some("ann"));
    assert_eq!(machine.host().user_name(1001), None);
    let error = machine.host().user("nobody-of-that-name").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn of_several_limits_the_more_particular_and_then_the_later_holds() {
    let machine = machine();
    let limits = || machine.host().user_limits(&ann());
    assert_eq!(limits(), super::UserLimits::default());
    machine.write(
        "/etc/security/limits.conf",
        "# a comment\n*  soft memlock 64 # all\n@bench - memlock 1024\n* hard memlock 99\n\
         bob - memlock unlimited\n@other - memlock 5\nann soft nofile 7\n* soft memlock many\n",
    );
    let soft = limits().pam_soft.unwrap();
    assert_eq!((soft.bytes, soft.line.as_str()), (Some(1 << 20), "@bench - memlock 1024"));
    machine.write("/etc/security/limits.d/90-x.conf", "ann hard memlock unlimited\n");
    machine.write("/etc/security/limits.d/91-x.conf.off", "ann hard memlock 1\n");
    let both = limits();
    assert_eq!((both.pam_soft.unwrap().bytes, both.pam_hard.unwrap().bytes), (Some(1 << 20), None));
    for (domain, want) in [(":1000", true), ("1000:", true), ("9:1000", true), (":999", false)] {
        machine.write("/etc/security/limits.d/95.conf", format!("{domain} - memlock 7\n"));
        assert_eq!(limits().pam_soft.unwrap().bytes == Some(7 << 10), want, "{domain}");
    }
    machine.write("/etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=1M\n");
    assert_eq!(limits().systemd, None);
    machine.write("/etc/systemd/system.conf.d/a.conf", "[Manager]\nDefaultLimitMEMLOCK=64M:1G\n");
    assert_eq!(limits().systemd.unwrap().bytes, Some(64 << 20));
}

#[test]
fn a_nodes_bits_say_who_may_open_it() {
    let machine = machine();
    machine.write("/dev/vfio/vfio", "");
    let mut node = machine.host().node_access("/dev/vfio/vfio".as_ref()).unwrap();
    for (mode, uid, gid, want) in [
        (0o666, 0, 0, true),
        (0o600, 0, 0, false),
        (0o660, 0, 50, true),
        (0o600, 1000, 0, true),
        (0o066, 1000, 0, false),
        (0o644, 0, 0, false),
    ] {
        (node.mode, node.uid, node.gid) = (mode, uid, gid);
        assert_eq!(node.admits(&ann()), want, "{mode:o} {uid}:{gid}");
    }
}
