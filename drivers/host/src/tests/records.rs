//! The state folder, its records and its locks.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{FIRST, SECOND, address, drive, plain};
use crate::fake::Machine;
use crate::{
    ErrorKind, GiveBackOptions, Holder, Host, HostError, Outcome, TakeOptions, UserDriver,
};

const RECORD: &str = "/run/nvpoll/0000:00:04.0.json";

/// Hands the first drive over, as `nvpoll bind` does, and ends.
fn hand_over(host: &Host) {
    let options = TakeOptions { persistent: true, ..TakeOptions::default() };
    drop(host.take(&drive(host, FIRST), UserDriver::VfioPci, &options).unwrap());
}

/// Makes a record look as if a process had taken the drive.
fn set_holder(machine: &Machine, pid: u32) {
    let mut record: serde_json::Value =
        serde_json::from_str(&machine.read(RECORD).unwrap()).unwrap();
    record["holder"] = serde_json::json!({
        "kind": "process", "pid": pid, "start_ticks": pid * 10 + 7, "comm": "nvpoll"
    });
    machine.write(RECORD, record.to_string());
}

#[test]
fn a_record_tells_what_was_found_to_everybody_and_is_written_by_root_alone() {
    let (machine, host) = plain();
    hand_over(&host);
    let mode = |path: &str| fs::metadata(machine.path(path)).unwrap().permissions().mode();
    assert_eq!(mode("/run/nvpoll") & 0o7777, 0o755);
    assert_eq!(mode(RECORD) & 0o7777, 0o644);
    assert_eq!(mode("/run/nvpoll/0000:00:04.0.lock") & 0o7777, 0o600);
    let record = host.record(address(FIRST)).unwrap().unwrap();
    assert_eq!(record.driver.as_deref(), Some("nvme"));
    assert_eq!(record.driver_override, None);
    assert_eq!(record.holder, Holder::Persistent);
    assert_eq!(record.serial.as_deref(), Some("D0"));
    assert_eq!(record.namespaces[0].node.as_deref(), Some("/dev/nvme0n1".as_ref()));
    let left: Vec<_> = fs::read_dir(machine.path("/run/nvpoll")).unwrap().collect();
    assert_eq!(left.len(), 2, "a record and a lock, no draft");
}

#[test]
fn a_folder_that_others_may_write_is_not_believed() {
    for make in [
        |machine: &Machine| {
            machine.dir("/run/nvpoll");
            let mode = fs::Permissions::from_mode(0o777);
            fs::set_permissions(machine.path("/run/nvpoll"), mode).unwrap();
        },
        |machine: &Machine| {
            machine.dir("/run/elsewhere");
            machine.link("/run/nvpoll", "elsewhere");
        },
        |machine: &Machine| machine.write("/run/nvpoll", ""),
    ] {
        let (machine, host) = plain();
        make(&machine);
        let first = host.drives().map(|_| ());
        assert!(matches!(first, Err(HostError::State { .. })), "{first:?}");
        let error = host.leftovers().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        let text = error.to_string();
        assert!(text.starts_with("/run/nvpoll: ") && text.contains("forged"), "{text}");
    }
}

#[test]
fn a_link_where_the_lock_should_be_is_refused() {
    let (machine, host) = plain();
    machine.dir("/run/nvpoll");
    machine.write("/etc/precious", "mine");
    machine.link("/run/nvpoll/0000:00:04.0.lock", "../../etc/precious");
    let options = TakeOptions::default();
    let error = host.take(&drive(&host, FIRST), UserDriver::VfioPci, &options).unwrap_err();
    assert_eq!(error.exit_status(), 3, "{error}");
    assert!(error.to_string().starts_with("/run/nvpoll/0000:00:04.0.lock: this is a symbolic"));
    assert_eq!(machine.read("/etc/precious").as_deref(), Some("mine"));
    assert_eq!(machine.writes(), []);
}

#[test]
fn a_record_that_cannot_be_read_stops_everything_with_a_remedy() {
    let good = {
        let (machine, host) = plain();
        hand_over(&host);
        machine.read(RECORD).unwrap()
    };
    for (bad, seen) in [
        (String::new(), "no record"),
        ("{".to_owned(), "no record"),
        (good.replace("\"version\": 1", "\"version\": 2"), "version 2, not 1"),
        (good.replace("0000:00:04.0", "0000:00:05.0"), "a record of 0000:00:05.0"),
        (good.replace("\"nvme\"", "\"../../x\""), "no driver's name"),
        (good.replace("\"address\"", "\"adress\""), "no record"),
        (" ".repeat(300 << 10), "larger than"),
    ] {
        let (machine, host) = plain();
        machine.dir("/run/nvpoll");
        machine.write(RECORD, bad);
        let error = host.give_back(address(FIRST), &GiveBackOptions::default()).unwrap_err();
        assert!(error.to_string().contains(seen), "{error}");
        assert!(error.to_string().contains("remove this file"), "{error}");
        assert_eq!(error.exit_status(), 3);
        assert_eq!(machine.writes(), []);
    }
}

#[test]
fn leftovers_say_who_and_whether_they_run() {
    let (machine, host) = plain();
    assert_eq!(host.leftovers().unwrap(), []);
    hand_over(&host);
    let left = &host.leftovers().unwrap()[0];
    assert!(!left.is_orphan());
    assert!(left.to_string().contains("is handed over to vfio-pci, was on nvme"), "{left}");
    machine.process(77, "nvpoll");
    set_holder(&machine, 77);
    let left = &host.leftovers().unwrap()[0];
    assert!(left.alive && !left.is_orphan());
    machine.end_process(77);
    let left = &host.leftovers().unwrap()[0];
    assert!(left.is_orphan());
    assert!(left.to_string().contains("left on vfio-pci by nvpoll (pid 77), which is gone"));
    // The number is given out again: another process, whose start tells it from the first.
    machine.process(77, "sh");
    machine.write("/proc/77/stat", format!("77 (a ) b) S {}99 0\n", "0 ".repeat(18)));
    assert!(host.leftovers().unwrap()[0].is_orphan());
}

#[test]
fn what_a_dead_process_left_is_given_back_from_the_record_alone() {
    let (machine, host) = plain();
    let before = machine.state(FIRST);
    hand_over(&host);
    set_holder(&machine, 77);
    let error = host
        .take(&drive(&host, FIRST), UserDriver::VfioPci, &TakeOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("nvpoll (pid 77) took it and is gone"), "{error}");
    assert!(error.contains("nvpoll unbind 0000:00:04.0"), "{error}");
    let given = host.give_back(address(FIRST), &GiveBackOptions::default()).unwrap();
    assert_eq!((given.outcome, given.namespaces_back), (Outcome::Restored, true));
    assert_eq!(machine.state(FIRST), before);
    assert_eq!(fs::read_dir(machine.path("/run/nvpoll")).unwrap().count(), 0);
}

#[test]
fn a_drive_in_other_hands_is_left_there() {
    let (machine, host) = plain();
    let taken =
        host.take(&drive(&host, FIRST), UserDriver::VfioPci, &TakeOptions::default()).unwrap();
    let other = machine.host();
    let me = format!("nvpoll (pid {})", std::process::id());
    let takes = other.take(&drive(&other, FIRST), UserDriver::VfioPci, &TakeOptions::default());
    let gives = other.give_back(address(FIRST), &GiveBackOptions::default());
    for error in [takes.map(drop).unwrap_err(), gives.map(drop).unwrap_err()] {
        assert!(matches!(error, HostError::Held { .. }), "{error}");
        assert!(error.to_string().contains(&me), "{error}");
        assert_eq!(error.exit_status(), 3);
    }
    // The second drive is nobody's business but the second process's.
    let options = TakeOptions::default();
    let second = other.take(&drive(&other, SECOND), UserDriver::VfioPci, &options).unwrap();
    second.give_back().unwrap();
    taken.give_back().unwrap();
}

#[test]
fn without_file_locks_the_record_keeps_others_away() {
    let (machine, host) = plain();
    machine.process(77, "nvpoll");
    hand_over(&host);
    set_holder(&machine, 77);
    // No lock is held here, as on a kernel without flock(2).
    let error = host.give_back(address(FIRST), &GiveBackOptions::default()).unwrap_err();
    assert!(matches!(&error, HostError::Held { by, .. } if by == "nvpoll (pid 77)"), "{error}");
    let options = TakeOptions::default();
    let error = host.take(&drive(&host, FIRST), UserDriver::VfioPci, &options).unwrap_err();
    assert!(error.to_string().contains("nvpoll (pid 77) has taken it"), "{error}");
}

#[test]
fn a_record_of_an_earlier_boot_binds_nobody() {
    let (machine, host) = plain();
    hand_over(&host);
    machine.write("/proc/sys/kernel/random/boot_id", "another\n");
    assert_eq!(host.leftovers().unwrap(), []);
    let given = host.give_back(address(FIRST), &GiveBackOptions::default()).unwrap();
    assert_eq!(given.outcome, Outcome::EarlierBoot);
    assert_eq!(given.driver.as_deref(), Some("vfio-pci"), "left alone");
    assert_eq!(host.records().unwrap(), []);
}

#[test]
fn a_drive_that_was_swapped_is_left_alone() {
    let (machine, host) = plain();
    hand_over(&host);
    let dir = "/sys/devices/pci0000:00/0000:00:04.0";
    fs::rename(machine.path(dir), machine.path("/sys/old")).unwrap();
    machine.write(&format!("{dir}/class"), "0x010802\n");
    machine.write(&format!("{dir}/driver_override"), "(null)\n");
    assert_eq!(drive(&host, FIRST).serial, None, "the record is about another drive");
    // What was changed of the machine itself goes back all the same.
    let mode = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    machine.write(mode, "Y\n");
    let record =
        machine.read(RECORD).unwrap().replace("\"noiommu_mode\": null", "\"noiommu_mode\": \"N\"");
    machine.write(RECORD, record);
    let given = host.give_back(address(FIRST), &GiveBackOptions::default()).unwrap();
    assert_eq!(given.outcome, Outcome::Gone);
    assert_eq!(machine.read(mode).as_deref(), Some("N"));
    assert_eq!(host.records().unwrap(), []);
}

#[test]
fn a_record_that_cannot_be_trusted_does_not_hide_the_others() {
    let (machine, host) = plain();
    hand_over(&host);
    machine.write("/run/nvpoll/0000:00:05.0.json", "nonsense");
    host.leftovers().unwrap_err();
    let all = host.leftovers_one_by_one().unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].as_ref().unwrap().address, address(FIRST));
    assert_eq!(all[1].as_ref().unwrap_err().kind(), ErrorKind::Refused);
    let given = host.give_back(address(FIRST), &GiveBackOptions::default()).unwrap();
    assert_eq!(given.outcome, Outcome::Restored);
}

#[test]
fn a_hand_over_that_was_interrupted_is_told() {
    let (machine, host) = plain();
    hand_over(&host);
    assert!(!host.leftovers().unwrap()[0].is_unfinished());
    fs::remove_file(machine.path("/sys/bus/pci/devices/0000:00:04.0/driver")).unwrap();
    let left = host.leftovers().unwrap().remove(0);
    assert!(left.is_unfinished() && !left.is_orphan());
    let text = left.to_string();
    assert!(text.contains("is on no driver, between nvme and vfio-pci"), "{text}");
    assert!(text.contains("nvpoll unbind 0000:00:04.0"), "{text}");
}

#[test]
fn what_a_user_writes_into_his_lock_cannot_steer_a_terminal() {
    let (machine, host) = plain();
    let held = host.hold(address(FIRST)).unwrap();
    machine.write("/run/nvpoll/0000:00:04.0.lock", format!("\x1b[2J{}", "x".repeat(1000)));
    let text = host.hold(address(FIRST)).unwrap_err().to_string();
    assert!(text.contains(r"\u{1b}[2Jxx") && text.len() < 250, "{text}");
    drop(held);
}
