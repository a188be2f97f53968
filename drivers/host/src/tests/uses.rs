//! What counts as use, and what the evidence says.

use std::fs;

use super::{FIRST, SECOND, drive, machine, plain};
use crate::fake::{MULTIPATH, Machine};
use crate::{
    DevId, Drive, ErrorKind, Host, HostError, Node, TakeOptions, Target, Use, UseKind, UserDriver,
};

fn uses(host: &Host) -> Vec<Use> {
    host.uses(&drive(host, FIRST)).unwrap()
}

/// The one use of the first drive, which also keeps it from being taken.
fn the_use(machine: &Machine, host: &Host) -> (UseKind, String) {
    let uses = uses(host);
    assert_eq!(uses.len(), 1, "{uses:?}");
    let first = drive(host, FIRST);
    let before = machine.writes();
    let error = host.take(&first, UserDriver::VfioPci, &TakeOptions::default()).unwrap_err();
    assert_eq!(error.exit_status(), 3, "{error}");
    assert_eq!(error.uses(), uses);
    assert_eq!(machine.writes(), before, "nothing is touched");
    assert!(host.records().unwrap().is_empty());
    let second = drive(host, SECOND);
    assert_eq!(host.uses(&second).unwrap(), [], "the other drive is free");
    (uses[0].kind, uses[0].to_string())
}

#[test]
fn a_free_drive_has_none() {
    for tree in [crate::fake::PLAIN, MULTIPATH] {
        let (_machine, host) = machine(tree);
        assert_eq!(uses(&host), []);
    }
}

#[test]
fn a_mounted_partition() {
    let (machine, host) = plain();
    machine.mount("30 22 259:3 / /srv/a\\040b rw - xfs /dev/nvme0n1p1 rw");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::Mount);
    assert_eq!(text, "/dev/nvme0n1p1 is mounted on /srv/a b, xfs");
}

#[test]
fn the_root_file_system() {
    let (machine, host) = plain();
    for pid in [1, std::process::id()] {
        machine.mounts(pid, "22 1 259:4 / / rw - ext4 /dev/root rw\n");
    }
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::Root);
    assert_eq!(text, "/dev/nvme0n1p2 holds the root file system, ext4");
}

#[test]
fn a_mount_in_another_namespace_or_another_thread() {
    let (machine, host) = plain();
    machine.process(77, "pod");
    machine.link("/proc/77/ns/mnt", "mnt:[4026532999]");
    machine.mounts(77, "9 1 259:2 / /data rw - ext4 /dev/nvme0n1 rw\n");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::Mount);
    assert_eq!(
        text,
        "/dev/nvme0n1 is mounted on /data in the mount namespace of pod (pid 77), ext4"
    );
    machine.end_process(77);
    assert_eq!(uses(&host), []);
    machine.process(78, "threads");
    machine.link("/proc/78/task/79/ns/mnt", "mnt:[4026533000]");
    machine.link("/proc/78/task/79/root", "/");
    let table = "9 1 259:2 / /data rw - ext4 /dev/nvme0n1 rw\n";
    machine.write("/proc/78/task/79/mountinfo", table);
    assert_eq!(uses(&host).len(), 1);
}

#[test]
fn a_process_in_a_changed_root_does_not_hide_what_others_see() {
    let (machine, host) = plain();
    // Both in one namespace; the one with the lower number sees only its own corner.
    for (pid, root, table) in [
        (77, "/srv/jail", "22 1 254:1 /srv/jail / rw - ext4 /dev/vda1 rw\n"),
        (78, "/", "9 1 259:2 / /data rw - ext4 /dev/nvme0n1 rw\n"),
    ] {
        machine.process(pid, "one");
        machine.link(&format!("/proc/{pid}/ns/mnt"), "mnt:[4026532999]");
        machine.link(&format!("/proc/{pid}/root"), root);
        machine.mounts(pid, table);
    }
    assert_eq!(uses(&host).len(), 1);
}

#[test]
fn a_file_system_with_a_number_of_its_own_is_known_by_its_source() {
    let (machine, host) = plain();
    machine.link("/dev/disk/by-id/nvme-D0-part1", "../../nvme0n1p1");
    machine.mount("30 22 0:45 /@ /home rw - btrfs /dev/disk/by-id/nvme-D0-part1 rw");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(
        (kind, text.as_str()),
        (UseKind::Mount, "/dev/nvme0n1p1 is mounted on /home, btrfs")
    );
}

#[test]
fn a_btrfs_member_that_no_mount_names() {
    let (machine, host) = plain();
    machine.write("/sys/fs/btrfs/11-22/label", "pool\n");
    machine.link("/sys/fs/btrfs/11-22/devices/nvme0n1p2", "x");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::Btrfs);
    assert_eq!(text, "/dev/nvme0n1p2 is a member of mounted Btrfs \"pool\" (11-22)");
}

#[test]
fn swap() {
    let (machine, host) = plain();
    let table = "Filename Type Size Used Priority\n/dev/nvme0n1p2 partition 45036 0 -2\n";
    machine.write("/proc/swaps", table);
    let (kind, text) = the_use(&machine, &host);
    assert_eq!((kind, text.as_str()), (UseKind::Swap, "/dev/nvme0n1p2 is swap space in use"));
}

/// Makes a block device that rests on the first drive's second partition.
fn holder(machine: &Machine, name: &str, minor: u32) {
    machine.write(&format!("/sys/class/block/{name}/dev"), format!("253:{minor}\n"));
    machine.write(&format!("/sys/class/block/{name}/uevent"), format!("DEVNAME={name}\n"));
    machine.link(&format!("/sys/class/block/nvme0n1p2/holders/{name}"), "x");
}

#[test]
fn holders_by_kind() {
    for (files, kind, text) in [
        (
            &[("dm/name", "vg-lv"), ("dm/uuid", "LVM-abc")][..],
            UseKind::Lvm,
            "/dev/nvme0n1p2 is under LVM volume vg-lv (/dev/h0)",
        ),
        (
            &[("dm/name", "secret"), ("dm/uuid", "CRYPT-LUKS2-1-secret")],
            UseKind::DmCrypt,
            "/dev/nvme0n1p2 is under dm-crypt mapping secret (/dev/h0)",
        ),
        (
            &[("dm/name", "lin"), ("dm/uuid", "")],
            UseKind::DeviceMapper,
            "/dev/nvme0n1p2 is under device-mapper mapping lin (/dev/h0)",
        ),
        (
            &[("md/level", "raid1")],
            UseKind::MdRaid,
            "/dev/nvme0n1p2 is a member of md array /dev/h0 (raid1)",
        ),
        (&[], UseKind::Holder, "/dev/nvme0n1p2 is held by /dev/h0"),
    ] {
        let (machine, host) = plain();
        holder(&machine, "h0", 0);
        for (name, value) in files {
            machine.write(&format!("/sys/class/block/h0/{name}"), format!("{value}\n"));
        }
        assert_eq!(the_use(&machine, &host), (kind, text.to_owned()));
    }
}

#[test]
fn what_is_mounted_on_a_stack_of_holders() {
    let (machine, host) = plain();
    holder(&machine, "md0", 0);
    machine.write("/sys/class/block/md0/md/level", "raid0\n");
    machine.write("/sys/class/block/dm-3/dev", "253:3\n");
    machine.write("/sys/class/block/dm-3/dm/name", "crypt\n");
    machine.write("/sys/class/block/dm-3/dm/uuid", "CRYPT-PLAIN-x\n");
    machine.link("/sys/class/block/md0/holders/dm-3", "x");
    // Two devices that hold each other end the walk all the same.
    machine.link("/sys/class/block/dm-3/holders/md0", "x");
    machine.mount("30 22 253:3 / /deep rw - ext4 /dev/mapper/crypt rw");
    let texts: Vec<String> = uses(&host).iter().map(ToString::to_string).collect();
    let on = "(on /dev/nvme0n1p2)";
    assert!(texts.contains(&format!("/dev/dm-3 {on} is mounted on /deep, ext4")), "{texts:?}");
    let under = format!("/dev/md0 {on} is under dm-crypt mapping crypt (/dev/dm-3)");
    assert!(texts.contains(&under), "{texts:?}");
}

#[test]
fn a_loop_device_and_compressed_memory_over_it() {
    let (machine, host) = plain();
    machine.write("/sys/class/block/loop4/dev", "7:4\n");
    machine.write("/sys/class/block/loop4/loop/backing_file", "/dev/nvme0n1\n");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(
        (kind, text.as_str()),
        (UseKind::Loop, "/dev/nvme0n1 is under loop device /dev/loop4")
    );
    fs::remove_dir_all(machine.path("/sys/class/block/loop4")).unwrap();
    machine.write("/sys/class/block/zram0/dev", "252:7\n");
    machine.write("/sys/class/block/zram0/backing_dev", "/dev/nvme0n1p1\n");
    assert_eq!(the_use(&machine, &host).0, UseKind::Holder);
    machine.write("/sys/class/block/zram0/backing_dev", "none\n");
    assert_eq!(uses(&host), []);
}

#[test]
fn an_open_handle_under_any_name() {
    for (target, text) in [
        ("/dev/nvme0n1", "/dev/nvme0n1 is open by fio (pid 99), /dev/nvme0n1 as fd 5, for writing"),
        ("/dev/ng0n1", "/dev/ng0n1 is open by fio (pid 99), /dev/ng0n1 as fd 5, for writing"),
        ("/dev/nvme0", "/dev/nvme0 is open by fio (pid 99), /dev/nvme0 as fd 5, for writing"),
        ("/run/mine", "/dev/nvme0n1p1 is open by fio (pid 99), /run/mine as fd 5, for writing"),
    ] {
        let (machine, host) = plain();
        machine.node("/run/mine", Node::Block(DevId { major: 259, minor: 3 }));
        machine.process(99, "fio");
        machine.open(99, 5, target);
        assert_eq!(the_use(&machine, &host), (UseKind::OpenHandle, text.to_owned()));
    }
}

#[test]
fn a_descriptor_that_opened_nothing_is_no_use() {
    let (machine, host) = plain();
    machine.process(99, "ls");
    machine.open(99, 5, "/dev/nvme0n1");
    machine.write("/proc/99/fdinfo/5", "pos:\t0\nflags:\t012000000\n");
    assert_eq!(uses(&host), []);
    machine.open(99, 6, "socket:[12345]");
    machine.open(99, 7, "/dev/null");
    assert_eq!(uses(&host), []);
}

#[test]
fn a_file_that_only_io_uring_keeps_open() {
    let (machine, host) = plain();
    machine.process(99, "fio");
    machine.open(99, 5, "anon_inode:[io_uring]");
    let info = "flags:\t02\nSqMask:\t0x1\nUserFiles:\t2\n    0: /dev/null\n    1: /dev/nvme0n1\nUserBufs:\t0\n";
    machine.write("/proc/99/fdinfo/5", info);
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::OpenHandle);
    assert!(text.ends_with("registered with io_uring"), "{text}");
}

#[test]
fn a_mapping_without_descriptor() {
    let (machine, host) = plain();
    machine.process(99, "db");
    let maps = "7f00-7f10 rw-s 00000000 00:05 99 /dev/nvme0n1p1\n7f20-7f30 r--p 0 00:00 0 [heap]\n";
    machine.write("/proc/99/maps", maps);
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::OpenHandle);
    assert!(text.contains("by db (pid 99)") && text.contains("mapped"), "{text}");
}

#[test]
fn a_userspace_driver_by_its_resource() {
    let (machine, host) = plain();
    machine.process(99, "spdk_tgt");
    let resource = "/sys/devices/pci0000:00/0000:00:04.0/resource0";
    machine.write("/proc/99/maps", format!("7f00-7f10 rw-s 00000000 00:05 99 {resource}\n"));
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::UserspaceDriver);
    assert!(text.contains("spdk_tgt (pid 99)"), "{text}");
}

#[test]
fn a_userspace_driver_by_its_group() {
    let (machine, host) = machine(crate::fake::BOUND);
    machine.process(99, "qemu");
    machine.open(99, 9, "/dev/vfio/2");
    let uses = uses(&host);
    assert_eq!(uses.len(), 1, "{uses:?}");
    let text = "0000:00:04.0 is driven from userspace through /dev/vfio/2 by qemu (pid 99)";
    assert_eq!(uses[0].to_string(), text);
}

#[test]
fn exports_to_other_machines() {
    let (machine, host) = plain();
    let dir = "/sys/kernel/config/nvmet/subsystems/nqn.x/namespaces/1";
    machine.write(&format!("{dir}/device_path"), "/dev/nvme0n1\n");
    machine.write(&format!("{dir}/enable"), "0\n");
    assert_eq!(uses(&host), []);
    machine.write(&format!("{dir}/enable"), "1\n");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::Exported);
    assert_eq!(text, "/dev/nvme0n1 is exported by NVMe target nqn.x (nsid 1)");
}

#[test]
fn a_claim_that_nothing_explains_is_a_use() {
    let (machine, host) = plain();
    machine.claim("/dev/nvme0n1p2");
    // The kernel refuses the whole disk as well then, which is no second use.
    machine.claim("/dev/nvme0n1");
    let (kind, text) = the_use(&machine, &host);
    assert_eq!(kind, UseKind::Claimed);
    assert_eq!(text, "/dev/nvme0n1p2 is claimed exclusively by an unknown user");
}

#[test]
fn a_zfs_member_is_named() {
    let (machine, host) = plain();
    let mut image = vec![0; 512 << 10];
    image[128 << 10..][..8].copy_from_slice(&0x00ba_b10c_u64.to_le_bytes());
    machine.write("/dev/nvme0n1", &image);
    machine.write("/sys/class/block/nvme0n1/size", format!("{}\n", image.len() / 512));
    machine.claim("/dev/nvme0n1");
    assert_eq!(the_use(&machine, &host).0, UseKind::Zfs);
}

#[test]
fn a_claim_that_a_mount_explains_is_not_told_twice() {
    let (machine, host) = plain();
    machine.mount("30 22 259:3 / /srv rw - xfs /dev/nvme0n1p1 rw");
    machine.claim("/dev/nvme0n1p1");
    machine.claim("/dev/nvme0n1");
    assert_eq!(the_use(&machine, &host).0, UseKind::Mount);
    // But a mount on one partition does not explain a claim on the other.
    machine.claim("/dev/nvme0n1p2");
    let kinds: Vec<_> = uses(&host).iter().map(|found| found.kind).collect();
    assert_eq!(kinds, [UseKind::Mount, UseKind::Claimed]);
}

#[test]
fn what_could_not_be_examined_counts_as_use() {
    let (machine, host) = plain();
    machine.process(99, "other");
    // Read as a directory, a file fails in a way that no ended process does.
    fs::remove_dir(machine.path("/proc/99/fd")).unwrap();
    machine.write("/proc/99/fd", "");
    let uses = uses(&host);
    assert_eq!(uses.len(), 1, "{uses:?}");
    assert_eq!(uses[0].kind, UseKind::Unexamined);
    assert!(uses[0].to_string().contains("open files of 1 processes, first other (pid 99)"));
}

/// The kernel opens a group for one process at a time, so that whoever writes through it needs no
/// look at other processes; whoever takes the drive to another driver does.
#[test]
fn a_drive_on_vfio_may_be_written_although_processes_are_hidden_but_not_taken() {
    let (machine, host) = plain();
    let options = TakeOptions { persistent: true, ..TakeOptions::default() };
    let taken = host.take(&drive(&host, FIRST), UserDriver::VfioPci, &options).unwrap();
    drop(taken);
    machine.process(99, "other");
    fs::remove_dir(machine.path("/proc/99/fd")).unwrap();
    machine.write("/proc/99/fd", "");
    let bound = drive(&host, FIRST);
    assert_eq!(bound.driver.as_deref(), Some("vfio-pci"));
    let seen = host.survey().unwrap().uses(&bound);
    assert!(seen.iter().any(|found| found.kind == UseKind::Unexamined), "{seen:?}");
    let target = Target::Drive { drive: Box::new(bound), namespace: Some(1) };
    host.may_write(FIRST, &target).unwrap();
    // Another drive, which the kernel has, is not written meanwhile.
    let other = Target::Drive { drive: Box::new(drive(&host, SECOND)), namespace: Some(1) };
    assert!(host.may_write(SECOND, &other).is_err());
}

#[test]
fn a_node_that_is_missing_could_not_be_examined() {
    let (machine, host) = plain();
    fs::remove_file(machine.path("/dev/nvme0n1p1")).unwrap();
    let uses = uses(&host);
    assert_eq!(uses[0].kind, UseKind::Unexamined);
}

#[test]
fn processes_that_cannot_be_seen_could_not_be_examined() {
    let (machine, host) = plain();
    machine.link(&format!("/proc/{}/ns/pid", std::process::id()), "pid:[4026532111]");
    assert!(uses(&host)[0].to_string().contains("outside this container"));
    let (machine, host) = plain();
    machine.end_process(1);
    assert!(uses(&host)[0].to_string().contains("hidden"));
}

#[test]
fn a_process_that_ends_while_it_is_looked_at_is_nothing() {
    let (machine, host) = plain();
    machine.process(99, "gone");
    for name in ["fd", "ns", "fdinfo"] {
        let _ = fs::remove_dir_all(machine.path(&format!("/proc/99/{name}")));
    }
    for name in ["mountinfo", "maps", "comm"] {
        fs::remove_file(machine.path(&format!("/proc/99/{name}"))).unwrap();
    }
    assert_eq!(uses(&host), []);
}

#[test]
fn a_driver_that_is_not_known_may_have_users() {
    let (machine, host) = plain();
    machine.link("/sys/bus/pci/devices/0000:00:04.0/driver", "x/pciback");
    let uses = uses(&host);
    assert_eq!(uses[0].kind, UseKind::Unexamined);
    assert!(uses[0].to_string().contains("it is on pciback"), "{}", uses[0]);
}

#[test]
fn virtual_functions_and_other_paths() {
    let (machine, host) = plain();
    machine.write("/sys/bus/pci/devices/0000:00:04.0/sriov_numvfs", "2\n");
    assert_eq!(the_use(&machine, &host).0, UseKind::VirtualFunctions);
    let (_machine, host) = machine_with_second_port();
    let found = host.uses(&drive(&host, FIRST)).unwrap();
    assert_eq!(found[0].to_string(), "/dev/nvme0n1 is reached through nvme7 as well");
    let options = TakeOptions { allow_shared: true, ..TakeOptions::default() };
    host.may_take(&drive(&host, FIRST), UserDriver::VfioPci, &options).unwrap();
}

fn machine_with_second_port() -> (Machine, Host) {
    let (machine, host) = machine(MULTIPATH);
    let dir = "/sys/devices/pci0000:00/0000:00:06.0";
    machine.link("/sys/bus/pci/devices/0000:00:06.0", "../../../devices/pci0000:00/0000:00:06.0");
    machine.write(&format!("{dir}/class"), "0x010802\n");
    machine.write(&format!("{dir}/nvme/nvme7/nvme0c7n1/nsid"), "1\n");
    let subsystem = "/sys/class/nvme-subsystem/nvme-subsys0/nvme7";
    machine.link(subsystem, machine.path(&format!("{dir}/nvme/nvme7")).to_str().unwrap());
    (machine, host)
}

#[test]
fn group_members_on_kernel_drivers_block_vfio() {
    let (machine, host) = plain();
    machine.link("/sys/kernel/iommu_groups/2/devices/0000:00:05.0", "x");
    let first: Drive = drive(&host, FIRST);
    let blockers = host.group_blockers(&first);
    assert_eq!(blockers[0].to_string(), "0000:00:05.0 (class 010802) on nvme");
    let error = host.take(&first, UserDriver::VfioPci, &TakeOptions::default()).unwrap_err();
    assert!(matches!(error, HostError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("0000:00:05.0 (class 010802) on nvme"), "{error}");
    // Drivers that leave DMA alone do not block.
    machine.link("/sys/bus/pci/devices/0000:00:05.0/driver", "x/pcieport");
    assert_eq!(host.group_blockers(&first), []);
}

#[test]
fn a_visitor_that_leaves_in_time_is_waited_for() {
    let (machine, host) = plain();
    machine.process(99, "(udev-worker)");
    machine.open(99, 5, "/dev/nvme0n1");
    machine.leave_after(std::time::Duration::from_millis(500), 99);
    let first = drive(&host, FIRST);
    let taken = host.take(&first, UserDriver::VfioPci, &TakeOptions::default()).unwrap();
    taken.give_back().unwrap();
}

#[test]
fn what_is_written_must_be_unused_whatever_its_name() {
    let (machine, host) = plain();
    let target = host.resolve("/dev/nvme0n1").unwrap();
    host.may_write("/dev/nvme0n1", &target).unwrap();
    machine.mount("36 22 259:1 / /mnt/a\\040b rw - ext4 /dev/nvme0n1p1 rw");
    let error = host.may_write("disk", &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(error.uses().len(), 1);
    assert!(error.to_string().starts_with("disk is in use and is not written: /dev/"), "{error}");
    assert!(error.to_string().contains("is mounted on /mnt/a b"), "{error}");
}

#[test]
fn a_line_of_evidence_is_one_line() {
    let (machine, host) = plain();
    machine.process(99, "bad\x1b[2J\nnvpoll: fine");
    machine.open(99, 5, "/dev/nvme0n1");
    let text = uses(&host).iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains(r"bad\u{1b}[2J\nnvpoll"), "{text}");
    assert!(!text.contains(char::is_control), "{text}");
}
