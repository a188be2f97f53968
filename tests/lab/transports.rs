//! Each transport holds the driver's whole contract, moves the right bytes, and gives the drive back.

use crate::machine::{self, Lab, Ran};
use crate::pattern;
use std::fs;

const SIZE_BYTES: usize = 48 << 20;

fn lab() -> Lab {
    let lab = Lab::new();
    let image = lab.path("image").display().to_string();
    lab.with("--binary", &format!("{}=contract", machine::contract().display()))
        .with("--binary", &format!("{}=pattern", machine::pattern().display()))
        .drive("serial=D0,size=64M,lba=4096")
        .drive(&format!("serial=D1,size=48M,mdts=5,image={image}"))
}

fn fill_image(lab: &Lab, seed: u64) {
    let mut image = vec![0; SIZE_BYTES];
    pattern::fill(&mut image, 0, seed);
    fs::write(lab.path("image"), &image).unwrap();
}

/// Lines of the contract suite's own report that name the engine's promises.
#[track_caller]
fn kept(ran: &Ran, engine: &str, least: usize) {
    let line = format!(", {engine} on 0000:");
    let kept = ran.stderr.lines().filter(|text| text.contains(&line) && text.contains(": kept"));
    let kept = kept.count();
    assert!(kept >= least, "{engine} kept {kept} promises, not {least}");
    println!("checked: {engine} kept {kept} promises of the contract");
}

/// `contract` on the drives that are bound, each promise said.
const CONTRACT: &str = "NVPOLL_CONTRACT_ENGINES=vfio,uio NVPOLL_CONTRACT_VERBOSE=1 contract --test-threads=1 --skip kernel::";

#[test]
fn device_node_and_iommufd() {
    let lab = lab();
    fill_image(&lab, 21);
    let ran = lab.sh(&format!(
        "a=$(drive D0 address); b=$(drive D1 address); nvpoll bind $a $b
         ls /dev/vfio/devices; nvpoll identify $a --iommu iommufd | head -n 1; nvpoll identify $a | head -n 1
         NVPOLL_CONTRACT_DRIVES=$a NVPOLL_CONTRACT_IOMMU=iommufd {CONTRACT} | tail -n 3
         pattern vfio $b read 21 iommufd
         nvpoll run $b --engine vfio:sgl --rw write --bs 256k --iodepth 8 --number-ios 192 --verify --destroy-data D1 --json /tmp/sgl >/dev/null
         grep 'data named by' /tmp/sgl
         nvpoll run $b --rw read --bs 64k --iodepth 8 --number-ios 768 --verify >/dev/null
         nvpoll compare $b --engines vfio,vfio:sgl --rw randread --runtime 300ms --ramp-time 0 --rounds 1 | grep '(sgl)'
         nvpoll run $b --engine vfio:shadow-doorbells --rw write --bs 4k --iodepth 8 --numjobs 2 --number-ios 1024 --verify --destroy-data D1 --json /tmp/shadow >/dev/null
         nvpoll run $b --rw read --bs 4k --iodepth 8 --numjobs 2 --number-ios 1024 --verify >/dev/null
         nvpoll run $b --rw randread --bs 4k --iodepth 8 --number-ios 512 --json /tmp/registers >/dev/null
         grep -h '\"shadow doorbells' /tmp/registers /tmp/shadow
         nvpoll run $b --iommu iommufd --runtime 1 --ramp-time 0 --iodepth 8 --json - | grep '\"transport\"'
         warn() {{ host qmp \"{{\\\"execute\\\":\\\"qom-set\\\",\\\"arguments\\\":{{\\\"path\\\":\\\"/machine/peripheral/D1\\\",\\\"property\\\":\\\"smart_critical_warning\\\",\\\"value\\\":$1}}}}\" >/dev/null; }}
         (while sleep 0.3; do warn 4; warn 0; done) & loop=$!
         nvpoll run $b --rw randread --runtime 4 --ramp-time 0 | grep 'reported while'; kill $loop
         nvpoll unbind --all; echo \"after: $(drive D0 driver) $(drive D1 driver)\""
    ));
    ran.is_fine();
    let said = |words: &str| assert!(ran.stdout.contains(words), "{words:?} was not said");
    said("reported while it was driven: SMART / health status: NVM subsystem reliability");
    said("userspace driver, VFIO device vfio");
    said("userspace driver, VFIO group");
    said(", iommufd");
    said("vfio: checked");
    said("after: nvme nvme");
    said("an SGL data block descriptor");
    said("vfio (sgl)");
    said("offered, not used; shadow-doorbells uses them");
    said("yes: a register is written only where the controller asks for it");
    kept(&ran, "vfio", 10);
}

#[test]
fn uio_and_no_iommu_mode() {
    let lab = lab().with("--iommu", "off");
    fill_image(&lab, 22);
    let ran = lab.sh(&format!(
        "a=$(drive D0 address); b=$(drive D1 address)
         s=0; nvpoll bind $a || s=$?; echo \"refused $s, $(drive D0 driver)\"
         nvpoll bind $a --unsafe-no-iommu; nvpoll bind $b --driver uio_pci_generic
         s=0; nvpoll run $a --runtime 1 || s=$?; echo \"without leave $s\"
         s=0; nvpoll run $b --runtime 1 --ramp-time 0 2>/tmp/e || s=$?; cat /tmp/e; echo \"no huge pages $s\"
         echo 64 > /proc/sys/vm/nr_hugepages
         nvpoll identify $a --unsafe-no-iommu | head -n 1; nvpoll identify $b | head -n 1
         export NVPOLL_CONTRACT_DRIVES=$a,$b NVPOLL_CONTRACT_NO_IOMMU=1
         {CONTRACT} | tail -n 3
         nvpoll run $a --unsafe-no-iommu --bs 128k --iodepth 64 --runtime 1 --ramp-time 0 | tail -n 2
         nvpoll run $b --bs 1M --iodepth 8 --runtime 1 --ramp-time 0 | tail -n 2
         nvpoll run $b --runtime 4 --ramp-time 0 >/dev/null 2>&1 & sleep 1
         s=0; nvpoll run $b --runtime 1 --ramp-time 0 2>/tmp/e || s=$?; cat /tmp/e; echo \"second $s\"; wait
         nvpoll unbind --all; echo \"after: $(drive D0 driver) $(drive D1 driver) $(cat /sys/module/vfio/parameters/enable_unsafe_noiommu_mode)\"
         grep HugePages_Free /proc/meminfo"
    ));
    ran.is_fine();
    let said = |words: &str| {
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains(words), "{words:?} was not said");
    };
    said("refused 2, nvme");
    said("or accept that with --unsafe-no-iommu, or by naming --driver uio_pci_generic");
    said("no IOMMU keeps this drive from this machine's memory");
    said("without leave 3");
    said("huge page of 2 MiB");
    said("no huge pages 1");
    said("VFIO group noiommu-0, physical addresses in huge pages, no IOMMU");
    said("UIO (uio0), physical addresses in huge pages, no IOMMU");
    said("is driven from userspace through /dev/uio0 by nvpoll (pid ");
    said("second 3");
    said("after: nvme nvme N");
    assert!(ran.stdout.contains("HugePages_Free:       64"), "huge pages leaked");
    kept(&ran, "vfio", 10);
    kept(&ran, "uio", 10);
}

/// Data seen from outside, under physical addresses; and one comparison that moves the drive between
/// both kernel drivers and the kernel's own.
#[test]
fn physical_addresses_reach_the_right_bytes_and_compare_moves_the_drive() {
    let lab = lab().with("--iommu", "off");
    fill_image(&lab, 23);
    let ran = lab.sh(
        "a=$(drive D0 address); b=$(drive D1 address); echo 64 > /proc/sys/vm/nr_hugepages
         nvpoll bind $b --driver uio_pci_generic; pattern uio $b read 23; pattern uio $b write 24; nvpoll unbind $b
         pattern psync $(drive D1 node) read 24
         nvpoll compare $a --engines uio,vfio,io_uring --unsafe-no-iommu --rounds 2 --rw randread --bs 4k --iodepth 4 --runtime 500ms --ramp-time 100ms
         nvpoll compare $a --rounds 1 --rw randread --bs 4k --iodepth 4 --runtime 300ms --ramp-time 0 2>&1 >/dev/null | grep 'left out'
         echo \"after: $(drive D0 driver) $(drive D1 driver)\"; ls /run/nvpoll",
    );
    ran.is_fine();
    for words in
        ["uio: checked", "psync: checked", "userspace uio", "userspace vfio", "after: nvme nvme"]
    {
        assert!(ran.stdout.contains(words), "{words:?} was not said");
    }
    assert!(ran.stdout.contains("left out: engine vfio:"), "compare says why there is no bypass");
    assert!(!ran.stdout.contains(".json\n"), "a record was left behind");
    println!("checked: bytes under physical addresses, and a comparison over three drivers");
}

/// The system wants the drive back while it is driven: the run ends in good order and says why.
#[test]
fn the_request_interrupt_ends_the_run_in_good_order() {
    let lab = Lab::new().drive("serial=D0,size=64M").drive("serial=HOT,size=64M,port=hot");
    let ran = lab.sh(
        "b=$(drive HOT address); nvpoll bind $b
         (sleep 2; echo $b > /sys/bus/pci/drivers/vfio-pci/unbind; echo \"unbound\") & sleep 0.1
         s=0; nvpoll run $b --runtime 60 --ramp-time 0 2>/tmp/e >/tmp/o || s=$?; cat /tmp/e; tail -n 3 /tmp/o; echo \"status $s\"; wait
         nvpoll unbind --all; echo \"after: $(drive HOT driver)\"",
    );
    ran.is_fine();
    for words in [
        "asks for the drive back",
        "what was measured is kept",
        "status 1",
        "unbound",
        "after: nvme",
    ] {
        assert!(ran.stdout.contains(words), "{words:?} was not said");
    }
    println!("checked: the request interrupt ends the run, and the drive is the kernel's again");
}
