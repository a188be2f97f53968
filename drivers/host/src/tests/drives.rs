//! The list of drives.

use std::fs;
use std::path::{Path, PathBuf};

use super::{FIRST, SECOND, address, drive, machine, plain};
use crate::fake::{BOUND, MULTIPATH, Machine};
use crate::{DevId, ErrorKind, IommuGroup, Link, Node, Partition};

#[test]
fn drives_without_kernel_multipath() {
    let (_machine, host) = plain();
    let drives = host.drives().unwrap();
    assert_eq!(drives.len(), 2);
    let first = &drives[0];
    assert_eq!(first.address, address(FIRST));
    assert_eq!((first.vendor_id, first.device_id), (0x1b36, 0x0010));
    assert_eq!(first.model.as_deref(), Some("QEMU NVMe Ctrl"));
    assert_eq!(first.serial.as_deref(), Some("D0"));
    assert_eq!(first.controller.as_deref(), Some("nvme0"));
    assert_eq!(first.controller_state.as_deref(), Some("live"));
    assert_eq!(first.driver.as_deref(), Some("nvme"));
    assert_eq!(first.driver_override, None);
    assert_eq!(first.numa_node, None, "-1 is unknown, not node 0");
    assert_eq!(first.link_now, None, "sysfs says Unknown and 0");
    assert_eq!(first.link_max, None, "sysfs says Unknown and 255");
    let group = IommuGroup { id: 2, domain: Some("DMA".to_owned()), others: vec![] };
    assert_eq!(first.iommu_group, Some(group));
    let namespace = &first.namespaces[0];
    assert_eq!(namespace.node.as_deref(), Some(Path::new("/dev/nvme0n1")));
    assert_eq!(namespace.generic.as_deref(), Some(Path::new("/dev/ng0n1")));
    assert_eq!((namespace.size_bytes, namespace.lba_bytes), (64 << 20, 512));
    let second = Partition {
        number: 2,
        node: PathBuf::from("/dev/nvme0n1p2"),
        start_bytes: 40992 * 512,
        size_bytes: 90080 * 512,
    };
    assert_eq!(namespace.partitions[1], second);
}

#[test]
fn a_namespace_is_known_by_its_identifier_not_by_its_name() {
    // In this recording the kernel named namespace 2 nvme1n1: it scans them side by side.
    let (_machine, host) = plain();
    let namespaces = drive(&host, SECOND).namespaces;
    let named: Vec<_> = namespaces.iter().map(|ns| (ns.nsid, ns.node.as_deref())).collect();
    let node = |name| Some(Path::new(name));
    assert_eq!(named, [(1, node("/dev/nvme1n2")), (2, node("/dev/nvme1n1"))]);
    assert_eq!(namespaces[0].generic.as_deref(), node("/dev/ng1n2"));
    assert_eq!(namespaces[0].lba_bytes, 4096);
}

#[test]
fn drives_under_kernel_multipath() {
    let (_machine, host) = machine(MULTIPATH);
    let drives = host.drives().unwrap();
    let first = &drives[0].namespaces[0];
    assert_eq!(first.node.as_deref(), Some(Path::new("/dev/nvme0n1")));
    assert_eq!(first.generic.as_deref(), Some(Path::new("/dev/ng0n1")));
    assert_eq!(first.partitions.len(), 2);
    assert_eq!(first.other_paths, Vec::<String>::new());
    let second = &drives[1].namespaces[0];
    assert_eq!((second.lba_bytes, second.metadata_bytes), (4096, Some(8)));
}

/// Adds a second controller of the first one's subsystem.
fn second_port(machine: &Machine, namespace: &str) {
    let dir = "/sys/devices/pci0000:00/0000:00:06.0";
    machine.link("/sys/bus/pci/devices/0000:00:06.0", "../../../devices/pci0000:00/0000:00:06.0");
    machine.write(&format!("{dir}/class"), "0x010802\n");
    machine.write(&format!("{dir}/nvme/nvme7/{namespace}/nsid"), "1\n");
    let subsystem = "/sys/class/nvme-subsystem/nvme-subsys0/nvme7";
    machine.link(subsystem, machine.path(&format!("{dir}/nvme/nvme7")).to_str().unwrap());
}

#[test]
fn a_second_controller_of_the_subsystem_is_another_path() {
    let (machine, host) = machine(MULTIPATH);
    second_port(&machine, "nvme0c7n1");
    let drives = host.drives().unwrap();
    assert_eq!(drives[0].namespaces[0].other_paths, ["nvme7"]);
    // The node is the subsystem's, for both.
    assert_eq!(drives[2].namespaces[0].node, drives[0].namespaces[0].node);
    let error = host.resolve("/dev/nvme0n1").unwrap_err().to_string();
    assert!(error.contains("2 drives lead to this namespace"), "{error}");
}

#[test]
fn a_twin_without_multipath_is_another_path() {
    let (machine, host) = plain();
    second_port(&machine, "nvme7n1");
    let wwid = "/sys/devices/pci0000:00/0000:00:06.0/nvme/nvme7/nvme7n1/wwid";
    machine.write(wwid, "another\n");
    assert_eq!(drive(&host, FIRST).namespaces[0].other_paths, Vec::<String>::new());
    let own = machine.read("/sys/class/block/nvme0n1/wwid").unwrap();
    machine.write(wwid, format!("{own}\n"));
    let namespace = &drive(&host, FIRST).namespaces[0];
    assert_eq!(namespace.other_paths, ["nvme7"]);
    assert_eq!(namespace.twins, ["nvme7n1"]);
}

#[test]
fn drives_on_other_drivers_and_none() {
    let (_machine, host) = machine(BOUND);
    let drives = host.drives().unwrap();
    assert_eq!(drives[0].driver.as_deref(), Some("vfio-pci"));
    assert_eq!(drives[0].driver_override.as_deref(), Some("vfio-pci"));
    assert_eq!((&drives[0].serial, drives[0].namespaces.len()), (&None, 0));
    assert_eq!(drives[1].driver, None);
    assert_eq!(drives[0].label(), "PCI 1b36:0010");
    assert!(drives[1].summary().contains("no driver"));
}

#[test]
fn what_the_lab_cannot_show() {
    let (machine, host) = plain();
    let dir = "/sys/bus/pci/devices/0000:00:04.0";
    for (name, text) in [
        ("numa_node", "1\n"),
        ("current_link_speed", "8.0 GT/s PCIe\n"),
        ("current_link_width", "2\n"),
        ("max_link_speed", "16.0 GT/s PCIe\n"),
        ("max_link_width", "4\n"),
        ("sriov_numvfs", "3\n"),
    ] {
        machine.write(&format!("{dir}/{name}"), text);
    }
    machine.link("/sys/kernel/iommu_groups/2/devices/0000:00:05.0", "x");
    let drive = drive(&host, FIRST);
    assert_eq!(drive.numa_node, Some(1));
    assert_eq!(drive.link_now, Some(Link { speed_gts: 8.0, width: 2 }));
    assert_eq!(drive.link_max, Some(Link { speed_gts: 16.0, width: 4 }));
    assert_eq!(drive.virtual_functions, 3);
    assert_eq!(drive.iommu_group.unwrap().others, [address(SECOND)]);
}

#[test]
fn a_namespace_without_block_node_keeps_its_generic_one() {
    let (machine, host) = plain();
    let dir = "/sys/bus/pci/devices/0000:00:04.0/nvme/nvme0/nvme0n1";
    std::fs::remove_file(machine.path(&format!("{dir}/dev"))).unwrap();
    let namespace = &drive(&host, FIRST).namespaces[0];
    assert_eq!(namespace.node, None);
    assert!(namespace.generic.is_some());
}

#[test]
fn a_machine_without_sysfs_is_an_error_and_one_without_drives_is_not() {
    let (_machine, host) = machine("");
    assert_eq!(host.drives().unwrap(), []);
    let empty = tempfile::tempdir().unwrap();
    assert!(crate::Host::at(empty.path()).drives().is_err());
}

#[test]
fn the_list_is_stable_json() {
    let (machine, host) = plain();
    machine.node("/dev/nvme0n1", Node::Block(DevId { major: 259, minor: 2 }));
    let json = serde_json::to_value(drive(&host, FIRST)).unwrap();
    assert_eq!(json["address"], "0000:00:04.0");
    assert_eq!(json["namespaces"][0]["node"], "/dev/nvme0n1");
    assert_eq!(json["numa_node"], serde_json::Value::Null);
    assert_eq!(json["iommu_group"]["id"], 2);
}

#[test]
fn another_device_at_the_same_address_is_not_the_drive_that_was_looked_at() {
    let (machine, host) = plain();
    let before = drive(&host, FIRST);
    host.check_same(&before).unwrap();
    let serial = "/sys/bus/pci/devices/0000:00:04.0/nvme/nvme0/serial";
    machine.write(serial, "D7\n");
    let error = host.check_same(&before).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("serial D7 is there now"), "{error}");
    machine.write(serial, "D0\n");
    host.check_same(&before).unwrap();
    // On a driver for userspace nothing tells the serial number, but the folder is another.
    machine.link("/sys/bus/pci/devices/0000:00:04.0", "../../../devices/pci0000:00/0000:00:05.0");
    host.check_same(&before).unwrap_err();
    fs::remove_file(machine.path("/sys/bus/pci/devices/0000:00:04.0")).unwrap();
    let error = host.check_same(&before).unwrap_err();
    assert!(error.to_string().contains("nothing is there now"), "{error}");
}
