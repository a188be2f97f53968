//! `nvpoll compare` on a drive: the whole job, and the drive comes back.

use crate::machine::{Lab, Ran};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// To be followed by the runtime in seconds.
const COMPARE: &str = "nvpoll compare $a --engines vfio,io_uring,psync --rounds 2 \
    --ramp-time 200ms --json /mnt/out/result.json --runtime";

/// Printed by the guest after each run: what has the drive, and whether its node is there.
const STATE: &str =
    "echo \"after: $(drive D0 driver) $(drive D0 node)\"; ls /run/nvpoll 2>/dev/null || true";

fn lab() -> Lab {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let share = format!("{}:/mnt/out", out.display());
    lab.with("--share", &share).drive("serial=D0,size=64M")
}

fn result(lab: &Lab) -> Value {
    let path = lab.path("out").join("result.json");
    read(&path)
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).expect("a valid JSON document")
}

fn stacks(result: &Value) -> Vec<String> {
    let rows = result["rows"].as_array().unwrap();
    let mut stacks: Vec<String> =
        rows.iter().map(|row| row["stack"].as_str().unwrap().to_owned()).collect();
    stacks.dedup();
    stacks.sort();
    stacks.dedup();
    stacks
}

#[track_caller]
fn came_back(ran: &Ran) {
    ran.no_faults();
    assert!(ran.stdout.contains("after: nvme /dev/nvme"), "the drive did not come back");
    assert!(!ran.stdout.contains(".json\n"), "a record was left behind");
}

/// The kernel's stacks were woken by the drive's vectors and slept; the polled driver has no vector. QEMU's
/// drive says 50 C, through the driver's admin queue and through the kernel's.
fn accounted(row: &Value, name: &str) {
    let (accounts, ios) = (&row["accounts"], row["ios"].as_u64().unwrap());
    let count =
        |field: &str| accounts[field].as_u64().unwrap_or_else(|| panic!("{name}: no {field}"));
    match row["engine"].as_str() {
        Some("vfio") => assert_eq!(count("drive_interrupts"), 0, "{name}"),
        _ => assert!(
            count("drive_interrupts") > ios / 64 && count("context_switches") > ios / 64,
            "{name}: {accounts} of {ios} I/Os"
        ),
    }
    assert!(count("interrupts") >= count("drive_interrupts"), "{name}");
    assert!(accounts["package_j"].is_null(), "{name}: QEMU has no RAPL");
    assert!(accounts["missing"]["package_j"].as_str().is_some_and(|why| !why.is_empty()), "{name}");
    assert_eq!(row["drive_states"][0]["temperature_c"], serde_json::json!([50, 50]), "{name}");
    assert_eq!(row["drive_states"][0]["throttle_transitions"], 0, "{name}");
}

#[test]
fn three_stacks_and_the_drive_is_back() {
    let lab = lab();
    let ran = lab.sh(&format!("a=$(drive D0 address); {COMPARE} 1; {STATE}"));
    ran.is_fine();
    came_back(&ran);
    let result = result(&lab);
    assert_eq!(stacks(&result), ["Linux io_uring", "Linux psync", "userspace vfio"]);
    assert_eq!(result["complete"], true);
    for row in result["rows"].as_array().unwrap() {
        let name = format!("{} {}", row["stack"], row["workload"]["name"]);
        assert_eq!(row["rounds"].as_array().unwrap().len(), 2, "{name}");
        assert!(row["iops"]["mean"].as_f64().unwrap() > 0.0, "{name}");
        assert_eq!(row["errors"], 0, "{name}");
        assert_eq!(row["drives"][0]["serial"], "D0", "{name}");
        let marks = row["marks"].to_string();
        assert!(!marks.contains("littles-law"), "{name}: {marks}");
        accounted(row, &name);
    }
    println!(
        "checked: three stacks, {} rows with what each used and how hot the drive was, drive back on nvme, no DMA fault",
        result["rows"].as_array().unwrap().len()
    );
}

#[test]
fn ctrl_c_in_the_middle_gives_the_drive_back() {
    // Four seconds are in the first stack's column, which has the drive on vfio-pci.
    let lab = lab();
    let ran = lab.sh(&format!(
        "a=$(drive D0 address); s=0; signal-after 4 INT {COMPARE} 20 || s=$?; echo \"status $s\"; {STATE}"
    ));
    ran.is_fine();
    came_back(&ran);
    assert!(ran.stdout.contains("status 1"), "a stopped run ends with 1");
    let result = result(&lab);
    assert_eq!(result["complete"], false);
    println!("checked: Ctrl-C after 4 s; drive back, partial result kept and marked");
}

#[test]
fn sigterm_gives_the_drive_back_and_sigkill_leaves_a_record_that_unbind_repairs() {
    let lab = lab();
    let ran = lab.sh(&format!(
        "a=$(drive D0 address); s=0; signal-after 4 TERM {COMPARE} 20 || s=$?; echo \"status $s\"; {STATE}
         s=0; signal-after 4 KILL {COMPARE} 20 || s=$?; echo \"killed $s, driver $(drive D0 driver)\"
         nvpoll list 2>&1 >/dev/null; s=0; nvpoll compare $a --engines vfio 2>&1 || s=$?; echo \"second $s\"
         nvpoll unbind --all; {STATE}"
    ));
    ran.is_fine();
    let (terminated, killed) = ran.stdout.split_once("killed ").expect("both runs ended");
    assert!(terminated.contains("status 1\nafter: nvme /dev/nvme"), "SIGTERM gives it back");
    assert!(killed.starts_with("137, driver vfio-pci"), "SIGKILL leaves it where it was");
    assert!(killed.contains("was left on vfio-pci"), "the next command says so");
    assert!(killed.contains("second 3"), "nobody takes it over silently");
    assert!(killed.contains("back with nvme\nafter: nvme /dev/nvme"), "unbind --all repairs it");
    assert!(!killed.contains(".json\n"), "a record was left behind");
    println!("checked: SIGTERM gives the drive back; after SIGKILL `unbind --all` does");
}

#[test]
fn a_bound_drive_is_listed_identified_run_and_given_back() {
    let ran = lab().sh(
        "a=$(drive D0 address); n=$(drive D0 node)
         nvpoll list; nvpoll identify $n | head -n 1; nvpoll run $n --runtime 1 --ramp-time 0 | head -n 1
         nvpoll bind $n; nvpoll list; nvpoll identify $a
         nvpoll run $a --runtime 1 --ramp-time 0; nvpoll unbind $n; drive D0 driver",
    );
    ran.is_fine();
    let said = |words: &str| assert!(ran.stdout.contains(words), "{words:?} was not said");
    said("the kernel's driver, /dev/nvme0");
    said("engine io_uring on /dev/nvme0n1 (the target is the kernel's");
    said("is now with vfio-pci");
    said("(was /dev/nvme0n1)");
    said("userspace driver, VFIO group");
    said("engine vfio on 0000:00:04.0 (the drive is bound to vfio-pci");
    said("back with nvme\nnvme\n");
    let serials = ran.stdout.lines().filter(|line| line.contains("  serial ")).count();
    assert!(serials >= 1, "identify names the serial number");
    println!("checked: list, identify, run without --engine, bind and unbind by name");
}

#[test]
fn four_workers_on_four_queues_and_two_drives_at_once() {
    let lab = lab().drive("serial=D1,size=64M,lba=4096").with("--smp", "4");
    let ran = lab.sh("a=$(drive D0 address); b=$(drive D1 address); nvpoll bind $a $b
         nvpoll run $a --numjobs 4 --iodepth 8 --runtime 1 --ramp-time 0 --json /mnt/out/four.json
         nvpoll run $a $b --numjobs 2 --iodepth 8 --runtime 1 --ramp-time 0 --json /mnt/out/two.json
         nvpoll unbind --all; test \"$(drive D0 driver) $(drive D1 driver)\" = 'nvme nvme'");
    ran.is_fine();
    let out = lab.path("out");
    let four = &read(&out.join("four.json"))["rows"][0];
    assert_eq!(four["engine"], "vfio");
    let in_flight = four["in_flight_mean"].as_f64().unwrap();
    assert!((in_flight - 32.0).abs() < 0.7, "four workers of depth 8 kept {in_flight}");
    let two = &read(&out.join("two.json"))["rows"][0];
    assert_eq!(two["drives"].as_array().unwrap().len(), 2);
    let in_flight = two["in_flight_mean"].as_f64().unwrap();
    assert!((in_flight - 32.0).abs() < 0.7, "two drives, two workers, depth 8 kept {in_flight}");
    assert_eq!((&four["errors"], &two["errors"]), (&0.into(), &0.into()));
    println!("checked: four workers on four queues; two drives at once");
}
