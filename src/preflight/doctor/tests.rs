//! Machines that the lab cannot make, and the promise that doctor and bind agree.

use super::{Diagnosis, Finding, Step, Verdict, diagnose};
use crate::preflight::{BindWish, may_bind};
use crate::workload::{Rw, Workload};
use nvpoll_engine::EngineKind;
use nvpoll_host::fake::{BOUND, Machine, PLAIN};
use nvpoll_host::{TakeOptions, UserDriver};

const FIRST: &str = "0000:00:04.0";
const SECOND: &str = "0000:00:05.0";
const EACCES: i32 = 13;

/// A machine on which root runs, with every right.
fn machine(tree: &str) -> Machine {
    let machine = Machine::new(tree);
    rights(&machine, 0, u64::MAX);
    machine.write("/proc/sys/kernel/osrelease", "6.12.0\n");
    // Drives that can be read: `bind` takes no other.
    for node in std::fs::read_dir(machine.path("/dev")).unwrap().flatten() {
        if node.file_name().to_string_lossy().starts_with("nvme") {
            std::fs::File::options()
                .write(true)
                .open(node.path())
                .unwrap()
                .set_len(1 << 30)
                .unwrap();
        }
    }
    machine
}

fn rights(machine: &Machine, uid: u32, capabilities: u64) {
    let text = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n");
    machine.write(&format!("/proc/{}/status", std::process::id()), text);
}

fn ask(machine: &Machine, names: &[&str]) -> Diagnosis {
    ask_for(machine, names, Workload::new(Rw::RandRead, 4096, 1))
}

fn ask_for(machine: &Machine, names: &[&str], workload: Workload) -> Diagnosis {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    diagnose(&machine.host(), &names, &workload, BindWish::default()).unwrap()
}

#[track_caller]
fn of_machine<'a>(diagnosis: &'a Diagnosis, check: &str) -> &'a Finding {
    diagnosis.machine.iter().find(|finding| finding.check == check).expect(check)
}

#[track_caller]
fn of_target<'a>(diagnosis: &'a Diagnosis, check: &str) -> &'a Finding {
    let findings = &diagnosis.targets[0].findings;
    findings.iter().find(|finding| finding.check == check).expect(check)
}

#[track_caller]
fn says(finding: &Finding, verdict: Verdict, found: &str, remedy: &str) {
    assert_eq!(finding.verdict, verdict, "{finding:?}");
    assert!(finding.found.contains(found), "{finding:?}");
    assert!(finding.remedy.as_deref().unwrap_or_default().contains(remedy), "{finding:?}");
}

/// What doctor says of a drive is what `bind` would do.
#[track_caller]
fn agrees(machine: &Machine, address: &str) -> bool {
    let host = machine.host();
    let drive = host.drive(address.parse().unwrap()).unwrap();
    let diagnosis = ask(machine, &[address]);
    assert_eq!(diagnosis.targets[0].step, Step::Bind);
    let may = may_bind(&host, &drive, &BindWish::default());
    assert_eq!(diagnosis.works, may.is_ok(), "{may:?}");
    if let Err(error) = may {
        let text = error.to_string();
        let bind = of_target(&diagnosis, "bind");
        assert_eq!(bind.verdict, Verdict::Blocks);
        let said = text.contains(&bind.found) && text.contains(bind.remedy.as_ref().unwrap());
        assert!(said || !error.uses().is_empty(), "{text} against {bind:?}");
        return false;
    }
    assert!(host.take(&drive, UserDriver::VfioPci, &TakeOptions::default()).is_ok());
    true
}

#[test]
fn a_healthy_machine() {
    let machine = machine(PLAIN);
    assert!(agrees(&machine, FIRST));
    let diagnosis = ask(&machine, &[FIRST]);
    says(of_machine(&diagnosis, "rights"), Verdict::Ok, "root", "");
    says(of_machine(&diagnosis, "iommu"), Verdict::Ok, "on, ", "");
    says(of_machine(&diagnosis, "driver vfio-pci"), Verdict::Ok, "there", "");
    says(of_target(&diagnosis, "bind"), Verdict::Ok, "hands it to vfio-pci", "");
    says(of_target(&diagnosis, "iommu-group"), Verdict::Ok, "group 2", "");
    assert_eq!(diagnosis.asked.locked_bytes, 6 * 4096);
}

/// `bind` takes no drive that it cannot look at, so doctor looks, too.
#[test]
fn a_drive_that_cannot_be_read_would_not_be_taken() {
    let machine = machine(PLAIN);
    machine.write("/dev/nvme0n1", "shorter than the namespace");
    let drive = machine.host().drive(FIRST.parse().unwrap()).unwrap();
    assert!(crate::preflight::contents_of(&machine.host(), &drive).is_err());
    let diagnosis = ask(&machine, &[FIRST]);
    assert!(!diagnosis.works);
    says(of_target(&diagnosis, "bind"), Verdict::Blocks, "could not be examined", "dmesg");
}

#[test]
fn every_engine_has_a_line() {
    let diagnosis = ask(&machine(PLAIN), &[]);
    for kind in EngineKind::ALL {
        of_machine(&diagnosis, &format!("engine {kind}"));
    }
}

#[test]
fn what_is_not_known_is_never_ok() {
    let machine = Machine::new(PLAIN);
    let diagnosis = ask(&machine, &[FIRST]);
    for check in [
        "rights",
        "lockdown",
        "interrupt-remapping",
        "dma-entries",
        "huge-pages",
        "io_uring-switch",
        "poll-queues",
        "governor",
        "turbo",
        "c-states",
        "isolation",
        "smt",
    ] {
        let finding = of_machine(&diagnosis, check);
        assert_eq!(finding.verdict, Verdict::NotKnown, "{finding:?}");
    }
    for check in ["numa-node", "iostats nvme0n1", "io_poll nvme0n1"] {
        let finding = of_target(&diagnosis, check);
        assert_eq!(finding.verdict, Verdict::NotKnown, "{finding:?}");
    }
}

#[test]
fn without_an_iommu_bind_is_blocked_with_its_own_words() {
    let machine = machine(PLAIN);
    std::fs::remove_file(machine.path(&format!("/sys/bus/pci/devices/{FIRST}/iommu_group")))
        .unwrap();
    std::fs::remove_dir_all(machine.path("/sys/kernel/iommu_groups")).unwrap();
    machine.dir("/sys/kernel/iommu_groups");
    assert!(!agrees(&machine, FIRST));
    let diagnosis = ask(&machine, &[FIRST]);
    says(of_target(&diagnosis, "bind"), Verdict::Blocks, "no IOMMU stands", "intel_iommu=on");
    says(of_machine(&diagnosis, "iommu"), Verdict::Warning, "tells of none", "VT-d");
    machine.write("/sys/firmware/acpi/tables/DMAR", "");
    let diagnosis = ask(&machine, &[FIRST]);
    let iommu = of_machine(&diagnosis, "iommu");
    says(iommu, Verdict::Warning, "DMAR", "put intel_iommu=on");
    assert_eq!(iommu.rules_out, ["vfio"]);
}

#[test]
fn siblings_in_a_group_block_while_the_kernel_drives_them() {
    let machine = machine(PLAIN);
    machine.link(&format!("/sys/kernel/iommu_groups/2/devices/{SECOND}"), "x");
    assert!(!agrees(&machine, FIRST));
    let diagnosis = ask(&machine, &[FIRST]);
    let group = of_target(&diagnosis, "iommu-group");
    let sibling = format!("{SECOND} on nvme");
    says(group, Verdict::Warning, &sibling, &format!("{SECOND}/driver/unbind"));
    std::fs::remove_file(machine.path(&format!("/sys/bus/pci/devices/{SECOND}/driver"))).unwrap();
    let diagnosis = ask(&machine, &[FIRST]);
    says(of_target(&diagnosis, "iommu-group"), Verdict::Ok, "without driver", "");
    assert!(agrees(&machine, FIRST));
}

#[test]
fn a_drive_in_use_and_one_without_root() {
    let machine = machine(PLAIN);
    machine.mount("30 22 259:2 / /data rw - ext4 /dev/nvme0n1 rw");
    assert!(!agrees(&machine, FIRST));
    let diagnosis = ask(&machine, &[FIRST]);
    says(of_target(&diagnosis, "in-use"), Verdict::Blocks, "/data", "end this use");
    // Without a name one drive that works is enough; with both, all must.
    let all = ask(&machine, &[]);
    assert!(all.works, "{:?}", all.targets);
    assert!(!ask(&machine, &[FIRST, SECOND]).works);
    rights(&machine, 1000, 0);
    machine.deny("/sys/bus/pci/drivers_probe", EACCES);
    assert!(!agrees(&machine, SECOND));
    let diagnosis = ask(&machine, &[SECOND]);
    says(of_target(&diagnosis, "bind"), Verdict::Blocks, "user 1000", "sudo nvpoll bind");
    says(of_machine(&diagnosis, "rights"), Verdict::Warning, "without CAP_SYS_ADMIN", "sudo");
}

#[test]
fn a_driver_that_cannot_be_had() {
    let machine = machine(PLAIN);
    std::fs::remove_dir_all(machine.path("/sys/bus/pci/drivers/vfio-pci")).unwrap();
    assert!(!agrees(&machine, FIRST));
    let diagnosis = ask(&machine, &[FIRST]);
    let driver = of_machine(&diagnosis, "driver vfio-pci");
    says(driver, Verdict::Warning, "/lib/modules/6.12.0", "modprobe vfio-pci");
    assert_eq!(driver.rules_out, ["vfio"]);
}

#[test]
fn lockdown_rules_out_raw_access_and_no_more() {
    let machine = machine(PLAIN);
    for word in ["integrity", "confidentiality"] {
        machine.write("/sys/kernel/security/lockdown", format!("none [{word}] more\n"));
        let diagnosis = ask(&machine, &[FIRST]);
        let lockdown = of_machine(&diagnosis, "lockdown");
        says(lockdown, Verdict::Warning, word, "Secure Boot");
        assert_eq!(lockdown.rules_out, ["uio"]);
        assert!(diagnosis.works, "VFIO works under lockdown");
    }
}

#[test]
fn interrupts_that_are_not_remapped() {
    let machine = machine(PLAIN);
    machine.write("/proc/interrupts", " 24: 9 PCI-MSIX-0000:00:04.0 0-edge nvme0q0\n");
    let diagnosis = ask(&machine, &[FIRST]);
    let remapping = of_machine(&diagnosis, "interrupt-remapping");
    says(remapping, Verdict::Warning, "EPERM", "allow_unsafe_interrupts");
    assert_eq!(remapping.rules_out, ["vfio"]);
    machine.write("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
    let diagnosis = ask(&machine, &[FIRST]);
    let remapping = of_machine(&diagnosis, "interrupt-remapping");
    says(remapping, Verdict::Warning, "allowed", "");
    assert!(remapping.rules_out.is_empty());
}

#[test]
fn locked_memory_and_mappings_against_the_run() {
    let machine = machine(PLAIN);
    rights(&machine, 1000, 0);
    let limits = "Max locked memory 65536 131072 bytes\n";
    machine.write(&format!("/proc/{}/limits", std::process::id()), limits);
    machine.write("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "100\n");
    let diagnosis = ask(&machine, &[FIRST]);
    says(of_machine(&diagnosis, "locked-memory"), Verdict::Ok, "64 KiB, at most 128 KiB", "");
    says(of_machine(&diagnosis, "dma-entries"), Verdict::Ok, "100", "");
    let deep = Workload { numjobs: 32, ..Workload::new(Rw::RandRead, 131_072, 256) };
    let diagnosis = ask_for(&machine, &[FIRST], deep);
    let memory = of_machine(&diagnosis, "locked-memory");
    says(memory, Verdict::Warning, "64 KiB", "':1000 - memlock ");
    assert!(memory.needed.starts_with("1.0 GiB"), "{memory:?}");
    says(of_machine(&diagnosis, "dma-entries"), Verdict::Warning, "100", "echo 131 >");
    let shallow = Workload::new(Rw::RandRead, 4096, 24);
    let diagnosis = ask_for(&machine, &[FIRST], shallow);
    says(of_machine(&diagnosis, "locked-memory"), Verdict::Warning, "", "ulimit -l");
}

#[test]
fn a_bound_drive_is_asked_about_a_run() {
    let machine = machine(BOUND);
    let run = |depth| ask_for(&machine, &[FIRST], Workload::new(Rw::RandRead, 4096, depth));
    let diagnosis = run(1);
    assert_eq!(diagnosis.targets[0].step, Step::Run);
    says(of_target(&diagnosis, "node"), Verdict::Ok, "/dev/vfio/2", "");
    says(of_target(&diagnosis, "holder"), Verdict::Ok, "another than nvpoll", "");
    // Enough for one I/O at a time, not for many.
    rights(&machine, 1000, 0);
    let limits = "Max locked memory 65536 65536 bytes\n";
    machine.write(&format!("/proc/{}/limits", std::process::id()), limits);
    says(of_target(&run(500), "locked-memory"), Verdict::Blocks, "64 KiB", "limits.d");
    assert!(!run(500).works);
    machine.deny("/dev/vfio/2", EACCES);
    machine.deny("/dev/vfio/devices/vfio0", EACCES);
    let diagnosis = run(1);
    says(of_target(&diagnosis, "node"), Verdict::Blocks, "/dev/vfio/2", "bind 0000:00:04.0 --user");
    assert!(!diagnosis.works);
}

#[test]
fn a_drive_that_a_dead_process_left() {
    let machine = machine(PLAIN);
    let host = machine.host();
    let drive = host.drive(FIRST.parse().unwrap()).unwrap();
    let taken = host.take(&drive, UserDriver::VfioPci, &TakeOptions::default()).unwrap();
    std::mem::forget(taken);
    let record = machine.read("/run/nvpoll/0000:00:04.0.json").unwrap();
    let gone = record.replace(&format!("\"pid\": {}", std::process::id()), "\"pid\": 999999");
    machine.write("/run/nvpoll/0000:00:04.0.json", gone);
    let diagnosis = ask(&machine, &[FIRST]);
    says(
        of_machine(&diagnosis, "leftover"),
        Verdict::Warning,
        "gone",
        "nvpoll unbind 0000:00:04.0",
    );
    says(of_target(&diagnosis, "holder"), Verdict::Blocks, "gone", "nvpoll unbind 0000:00:04.0");
    assert!(!diagnosis.works);
}

#[test]
fn the_processors_and_the_kernels_own_path() {
    let machine = machine(PLAIN);
    let cpu = "/sys/devices/system/cpu";
    for (path, text) in [
        (format!("{cpu}/cpu0/cpufreq/scaling_governor"), "powersave\n"),
        (format!("{cpu}/cpufreq/boost"), "1\n"),
        (format!("{cpu}/smt/active"), "1\n"),
        (format!("{cpu}/isolated"), "\n"),
        (format!("{cpu}/cpu0/cpuidle/state3/name"), "C6\n"),
        (format!("{cpu}/cpu0/cpuidle/state3/latency"), "133\n"),
        (format!("{cpu}/cpu0/cpuidle/state3/disable"), "0\n"),
        ("/sys/module/nvme/parameters/poll_queues".to_owned(), "0\n"),
        ("/proc/sys/kernel/io_uring_disabled".to_owned(), "2\n"),
        ("/sys/class/block/nvme0n1/queue/scheduler".to_owned(), "none [mq-deadline]\n"),
        ("/sys/class/block/nvme0n1/queue/iostats".to_owned(), "1\n"),
        ("/sys/class/block/nvme0n1/queue/nomerges".to_owned(), "2\n"),
        (format!("/sys/bus/pci/devices/{FIRST}/current_link_speed"), "8.0 GT/s PCIe\n"),
        (format!("/sys/bus/pci/devices/{FIRST}/current_link_width"), "2\n"),
        (format!("/sys/bus/pci/devices/{FIRST}/max_link_speed"), "16.0 GT/s PCIe\n"),
        (format!("/sys/bus/pci/devices/{FIRST}/max_link_width"), "4\n"),
        (format!("/sys/bus/pci/devices/{FIRST}/numa_node"), "1\n"),
    ] {
        machine.write(&path, text);
    }
    let diagnosis = ask(&machine, &[FIRST]);
    says(of_machine(&diagnosis, "governor"), Verdict::Warning, "powersave", "echo performance");
    says(of_machine(&diagnosis, "turbo"), Verdict::Warning, "on", "no_turbo");
    says(of_machine(&diagnosis, "c-states"), Verdict::Warning, "C6 wakes up in 133 µs", "-D 11");
    says(of_machine(&diagnosis, "smt"), Verdict::Warning, "on", "--cpus");
    says(of_machine(&diagnosis, "isolation"), Verdict::Ok, "isolcpus none", "");
    says(of_machine(&diagnosis, "poll-queues"), Verdict::Warning, "0", "poll_queues");
    let switch = of_machine(&diagnosis, "io_uring-switch");
    says(switch, Verdict::Warning, "nobody", "sysctl kernel.io_uring_disabled=0");
    assert!(switch.rules_out.contains(&"io_uring".to_owned()));
    let scheduler = of_target(&diagnosis, "scheduler nvme0n1");
    says(
        scheduler,
        Verdict::Warning,
        "mq-deadline",
        "echo none > /sys/block/nvme0n1/queue/scheduler",
    );
    says(of_target(&diagnosis, "iostats nvme0n1"), Verdict::Warning, "1", "echo 0");
    says(of_target(&diagnosis, "nomerges nvme0n1"), Verdict::Ok, "2", "");
    says(of_target(&diagnosis, "link"), Verdict::Warning, "8 GT/s x2 of 16 GT/s x4", "lspci");
    says(of_target(&diagnosis, "numa-node"), Verdict::Ok, "node 1", "");
    assert!(diagnosis.works, "none of these keeps a drive from being bound");
}

#[test]
fn no_drive_at_all_and_what_needs_no_bind() {
    let machine = machine("");
    let diagnosis = ask(&machine, &[]);
    assert!(diagnosis.works && diagnosis.targets.is_empty());
    let diagnosis = ask(&machine, &["soft", "null", "Cargo.toml"]);
    assert!(diagnosis.works);
    assert!(diagnosis.targets.iter().all(|target| target.step == Step::Run));
    let json = serde_json::to_value(&diagnosis).unwrap();
    assert_eq!(
        (&json["schema"], &json["targets"][0]["step"]),
        (&"nvpoll.doctor/1".into(), &"run".into())
    );
    let lockdown =
        json["machine"].as_array().unwrap().iter().find(|one| one["check"] == "lockdown");
    assert_eq!(lockdown.unwrap()["verdict"], "not-known");
}
