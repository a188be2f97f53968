//! Every block that the driver moves is the right one, seen from both sides of the drive.

use crate::machine::{self, Lab};
use crate::pattern;
use std::fs;

const SIZE_BYTES: usize = 48 << 20;

fn lab(drive: &str) -> Lab {
    let lab = Lab::new();
    let image = lab.path("image").display().to_string();
    lab.with("--binary", &format!("{}=pattern", machine::pattern().display()))
        .drive(&format!("serial=D0,size=48M,image={image},{drive}"))
}

/// The host wrote the image; the driver reads it through VFIO. Sizes from one block to eight times
/// MDTS (128 KiB here; 32 KiB for the drive of 4,096-byte blocks), at odd offsets.
fn host_writes_driver_reads(drive: &str) {
    let lab = lab(drive);
    let mut image = vec![0; SIZE_BYTES];
    pattern::fill(&mut image, 0, 11);
    fs::write(lab.path("image"), &image).unwrap();
    let ran = lab.sh("a=$(drive D0 address); bind-drive D0 vfio-pci; pattern vfio $a read 11");
    ran.is_fine();
    assert!(ran.stdout.contains("vfio: checked"), "{}", ran.stdout);
    println!("checked: the host's pattern through VFIO: {}", ran.stdout.trim());
}

/// The driver writes through VFIO, the drive goes back to the kernel, and the kernel reads the
/// same, through both of its paths; afterwards the host finds nothing in the image that neither
/// side wrote.
fn driver_writes_kernel_reads(drive: &str) {
    let lab = lab(drive);
    fs::write(lab.path("image"), vec![0; SIZE_BYTES]).unwrap();
    let ran =
        lab.sh("a=$(drive D0 address); nvpoll bind $a; pattern vfio $a write 12; nvpoll unbind $a
         n=$(drive D0 node); test \"$(drive D0 driver)\" = nvme
         pattern psync $n read 12; pattern io_uring $n read 12");
    ran.is_fine();
    assert_eq!(ran.stdout.matches("checked").count(), 2, "{}", ran.stdout);
    let image = fs::read(lab.path("image")).unwrap();
    let mut written = 0;
    for (block, offset) in image.chunks_exact(512).zip((0..).step_by(512)) {
        let untouched = block.iter().all(|byte| *byte == 0);
        if !untouched {
            assert_eq!(pattern::first_wrong(block, offset, 12), None, "block at {offset}");
            written += 1;
        }
    }
    assert!(written > 10_000, "only {written} blocks were written");
    println!(
        "checked: {written} blocks of 512 bytes in the image are the driver's, none is another"
    );
}

#[test]
fn host_writes_driver_reads_512() {
    host_writes_driver_reads("lba=512,mdts=5");
}

#[test]
fn host_writes_driver_reads_4096() {
    host_writes_driver_reads("lba=4096,mdts=3");
}

#[test]
fn driver_writes_kernel_reads_512() {
    driver_writes_kernel_reads("lba=512,mdts=5");
}

#[test]
fn driver_writes_kernel_reads_4096() {
    driver_writes_kernel_reads("lba=4096,mdts=3");
}

/// The contract suite on a drive through VFIO and, with polled queues, on io_uring's ways to a drive,
/// its generic device, and a file of a file system on a third one.
#[test]
fn vfio_and_io_uring_keep_their_contract_on_drives() {
    keep_their_contract(&["vfio", "io_uring", "io_uring_cmd"]);
}

/// The same of the other engines of the kernel.
#[test]
fn libaio_and_psync_keep_their_contract_on_drives() {
    keep_their_contract(&["libaio", "psync"]);
}

fn keep_their_contract(engines: &[&str]) {
    let lab = Lab::new()
        .with("--binary", &format!("{}=contract", machine::contract().display()))
        .with("--append", "nvme.poll_queues=1")
        .drive("serial=D0,size=64M,lba=4096")
        .drive("serial=D1,size=64M")
        .drive("serial=D2,size=256M");
    let ran = lab.sh(&format!(
        "bind-drive D0 vfio-pci; mke2fs -q $(drive D2 node) >/dev/null; mkdir /m; mount $(drive D2 node) /m
         export NVPOLL_CONTRACT_DRIVES=$(drive D0 address) NVPOLL_CONTRACT_BLOCK=$(drive D1 node)
         export NVPOLL_CONTRACT_GENERIC=$(drive D1 generic) NVPOLL_CONTRACT_ENGINES={}
         NVPOLL_CONTRACT_FOLDER=/m contract --test-threads=1; umount /m",
        engines.join(",")
    ));
    ran.is_fine();
    for engine in engines {
        let unkept = format!("{engine} is not held to its contract");
        assert!(!ran.stderr.contains(&unkept), "{}", ran.stderr);
    }
    let kept = ran.stdout.matches("... ok").count();
    let names = engines.join(", ");
    println!("checked: {kept} promises of the contract suite on {names}, with polled queues");
}
