//! Names that users type.

use std::path::Path;

use super::{FIRST, SECOND, drive, plain};
use crate::{DevId, ErrorKind, Host, HostError, Node, TakeOptions, Target, UserDriver};

fn namespace(host: &Host, name: &str) -> (String, Option<u32>) {
    match host.resolve(name).unwrap_or_else(|error| panic!("{name}: {error}")) {
        Target::Drive { drive, namespace } => (drive.address.to_string(), namespace),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn every_name_of_a_drive_leads_to_it() {
    let (machine, host) = plain();
    machine.link("/dev/disk/by-id/nvme-D0", "../../nvme0n1");
    machine.link("/dev/disk/by-path/pci-0000:00:04.0-nvme-1", "../../nvme0n1");
    // A node that somebody made elsewhere, under a name of his own.
    machine.node("/run/mine", Node::Block(DevId { major: 259, minor: 2 }));
    for (name, nsid) in [
        ("0000:00:04.0", None),
        ("00:04.0", None),
        ("/dev/nvme0", None),
        ("/dev/nvme0n1", Some(1)),
        ("/dev/ng0n1", Some(1)),
        ("/dev/disk/by-id/nvme-D0", Some(1)),
        ("/dev/disk/by-path/pci-0000:00:04.0-nvme-1", Some(1)),
        ("/run/mine", Some(1)),
    ] {
        assert_eq!(namespace(&host, name), (FIRST.to_owned(), nsid), "{name}");
    }
    assert_eq!(namespace(&host, "/dev/nvme1n1").1, Some(2));
}

#[test]
fn a_partition_is_refused_with_the_name_of_the_whole() {
    let (machine, host) = plain();
    machine.link("/dev/disk/by-id/nvme-D0-part2", "../../nvme0n1p2");
    for name in ["/dev/nvme0n1p2", "/dev/disk/by-id/nvme-D0-part2"] {
        let error = host.resolve(name).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let HostError::Partition { number, whole, .. } = &error else { panic!("{error}") };
        assert_eq!((*number, whole.as_path()), (2, Path::new("/dev/nvme0n1")));
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

#[test]
fn other_block_devices_and_files_are_what_they_are() {
    let (machine, host) = plain();
    let target = host.resolve("/dev/nullb0").map_err(|error| error.to_string());
    // The recorder lists only NVMe nodes; null_blk's is made here.
    assert!(target.is_err());
    machine.node("/dev/nullb0", Node::Block(DevId { major: 252, minor: 0 }));
    machine.link("/sys/dev/block/252:0", "../../devices/virtual/block/nullb0");
    match host.resolve("/dev/nullb0").unwrap() {
        Target::Block { node, name, lba_bytes, size_bytes, .. } => {
            assert_eq!((node.as_path(), name.as_str()), (Path::new("/dev/nullb0"), "nullb0"));
            assert!(size_bytes > 0);
            assert_eq!(lba_bytes, 512);
        }
        other => panic!("{other:?}"),
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(12345).unwrap();
    let name = file.path().to_str().unwrap();
    assert!(matches!(host.resolve(name).unwrap(), Target::File { size_bytes: 12345, .. }));
}

#[test]
fn what_cannot_be_measured_is_told_with_what_can() {
    let (machine, host) = plain();
    machine.node("/dev/null", Node::Char(DevId { major: 1, minor: 3 }));
    machine.node("/dev/stale", Node::Block(DevId { major: 99, minor: 9 }));
    let dir = tempfile::tempdir().unwrap();
    for (name, seen) in [
        (dir.path().to_str().unwrap(), "this is a directory"),
        ("/dev/nvme9n1", "there is no such device or file"),
        ("", "there is no such device or file"),
        ("nvme0n1", "is /dev/nvme0n1 meant?"),
        ("/dev/null", "this character device is no NVMe drive"),
        ("/dev/stale", "no block device has the number 99:9"),
        ("0000:09:00.0", "there is no PCI function at this address"),
        ("00:1f.0", "class 060100, not 010802"),
    ] {
        let error = host.resolve(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        let text = error.to_string();
        assert!(text.contains(seen), "{text}");
        assert!(!text.contains('\n'), "one line: {text}");
        if !seen.contains("directory") {
            assert!(text.contains("0000:00:04.0 (nvme0, QEMU NVMe Ctrl, serial D0)"), "{text}");
        }
    }
}

#[test]
fn a_name_that_passed_to_another_drive_is_refused() {
    let (machine, host) = plain();
    let first = drive(&host, FIRST);
    let taken = host.take(&first, UserDriver::VfioPci, &TakeOptions::default()).unwrap();
    // The second drive's controller comes anew and gets the number that became free.
    machine.node("/dev/nvme0n1", Node::Block(DevId { major: 259, minor: 1 }));
    machine.node("/dev/nvme0", Node::Char(DevId { major: 250, minor: 1 }));
    for name in ["/dev/nvme0n1", "/dev/nvme0"] {
        let error = host.resolve(name).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("was 0000:00:04.0's"), "{error}");
    }
    // By address there is no doubt, and other names are not concerned.
    assert_eq!(namespace(&host, FIRST).0, FIRST);
    assert_eq!(namespace(&host, "/dev/nvme1n1").0, SECOND);
    std::fs::remove_file(machine.path("/dev/nvme0n1")).unwrap();
    std::fs::remove_file(machine.path("/dev/nvme0")).unwrap();
    taken.give_back().unwrap();
}

#[test]
fn a_taken_drive_is_found_by_the_names_it_had() {
    let (machine, host) = plain();
    machine.link("/dev/disk/by-id/nvme-D0", "../../nvme0n1");
    let first = drive(&host, FIRST);
    let taken = host.take(&first, UserDriver::VfioPci, &TakeOptions::default()).unwrap();
    for (name, nsid) in [
        ("/dev/nvme0n1", Some(1)),
        ("/dev/ng0n1", Some(1)),
        ("/dev/nvme0", None),
        ("/dev/disk/by-id/nvme-D0", Some(1)),
        ("/dev/vfio/2", None),
    ] {
        assert_eq!(namespace(&host, name), (FIRST.to_owned(), nsid), "{name}");
    }
    let now = drive(&host, FIRST);
    assert_eq!(now.serial.as_deref(), Some("D0"), "as recorded");
    assert!(host.resolve("/dev/nvme0n1p1").is_err(), "a partition is still no drive");
    taken.give_back().unwrap();
}
