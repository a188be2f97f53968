//! The rarer commands on QEMU's controller, through VFIO; and what identify says, through both drivers.

use crate::machine::{self, Lab};
use std::fs;

/// Half of the drive is trimmed, and the host sees that half as zeroes and the other as it was.
#[test]
fn trims_deallocate_what_they_name_and_need_leave() {
    const HALF: usize = 8 << 20;
    let lab = Lab::new();
    let image = lab.path("image");
    fs::write(&image, vec![0x5a; 2 * HALF]).unwrap();
    let lab = lab.drive(&format!("serial=D0,image={},mdts=3", image.display()));
    let ran = lab.sh(
        "a=$(drive D0 address); n=$(drive D0 node); s=0; e='--iodepth 4 --number-ios 32'; t=\"--rw trim --bs 256k $e\"
         nvpoll run $n $t --engine io_uring --destroy-data D0 || s=$?; echo \"kernel $s\"
         nvpoll compare $n --engines vfio,io_uring,io_uring_cmd,libaio,psync --rw randwrite --bs 4k --iodepth 1 --number-ios 32 --rounds 1 \\
           --size 50% --verify --sync dsync --destroy-data D0 --json /tmp/durable > /dev/null
         grep -o 'O_DIRECT, O_DSYNC\\|writes with FUA\\|with FUA: done' /tmp/durable | sort | uniq -c
         nvpoll bind $n; s=0; nvpoll run $a $t || s=$?; echo \"no leave $s\"
         nvpoll run $a $t --size 50% --destroy-data D0
         nvpoll run $a --rw randtrim --bs 4k $e --size 50% --destroy-data D0
         nvpoll unbind --all",
    );
    ran.is_fine();
    let said = |words: &str| {
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains(words), "{words:?} was not said");
    };
    said("kernel 2");
    said("engine io_uring cannot deallocate here");
    said("no leave 3");
    said("3 O_DIRECT, O_DSYNC");
    said("1 with FUA: done");
    said("1 writes with FUA");
    let image = fs::read(&image).unwrap();
    assert!(image[..HALF].iter().all(|byte| *byte == 0), "what was trimmed");
    assert!(image[HALF..].iter().all(|byte| *byte == 0x5a), "what was not");
    println!(
        "checked: durable writes by five engines, 32 trims of 256 KiB, leave asked for, the other half untouched"
    );
}

#[test]
fn the_rarer_commands_do_what_they_say() {
    let lab = Lab::new()
        .with("--binary", &format!("{}=commands", machine::commands().display()))
        .drive("serial=D0,size=64M")
        .drive("serial=D1,size=64M,lba=4096")
        .drive(
            "serial=D2,size=64M,lba=4096,controller.zoned.zasl=3,namespace.zoned=true,\
             namespace.zoned.zone_size=4M,namespace.zoned.zone_capacity=3M,namespace.zoned.max_active=3,\
             namespace.zoned.max_open=2",
        );
    let ran = lab.sh("
        for d in D0 D1; do a=$(drive $d address); nvpoll identify $(drive $d node) > /tmp/kernel
          nvpoll bind $a; nvpoll identify $a > /tmp/user
          for section in optional power 'error log' firmware; do
            sed -n \"/^$section/,/^\\$/p\" /tmp/kernel > /tmp/1; sed -n \"/^$section/,/^\\$/p\" /tmp/user > /tmp/2
            test -s /tmp/1; cmp /tmp/1 /tmp/2; done
          sed -n '/^optional/,/^$/p; /^power/,/^$/p' /tmp/user
          s=0; commands $a wrong || s=$?; echo \"wrong serial $s\"
          commands $a $d; done
        n=$(drive D2 node); cat /sys/block/${n##*/}/queue/zoned
        for e in psync libaio io_uring; do s=0
          nvpoll run $n --engine $e --rw write --bs 4k --number-ios 16 --destroy-data D2 2>&1 || s=$?; echo \"$e ended with $s\"; done
        s=0; nvpoll run $(drive D2 generic) --engine io_uring_cmd --rw write --bs 4k --number-ios 16 --destroy-data D2 2>&1 || s=$?
        echo \"io_uring_cmd ended with $s\"; nvpoll identify $n | grep 'userspace driver alone'
        a=$(drive D2 address); nvpoll bind $a; nvpoll identify $a > /tmp/zoned; sed -n '/^namespace/,/^$/p' /tmp/zoned
        for rw in write randwrite randtrim; do s=0
          nvpoll run $a --rw $rw --bs 4k --number-ios 16 --destroy-data D2 2>&1 || s=$?; echo \"$rw ended with $s\"; done
        s=0; nvpoll run $a --rw randread --bs 12k --number-ios 16 2>&1 || s=$?; echo \"across zones $s\"
        nvpoll run $a --rw randread --bs 16k --iodepth 4 --number-ios 256
        commands $a D2
        nvpoll unbind --all; echo \"after: $(drive D0 driver) $(drive D1 driver)\"");
    ran.is_fine();
    for name in [
        "Write with FUA",
        "Compare",
        "Compare of other data",
        "Copy",
        "Write Zeroes",
        "Dataset Management",
        "Flush",
    ] {
        let count = ran.stdout.matches(&format!("{name}: checked\n")).count();
        assert_eq!(count, 2, "{name}");
    }
    let said = |words: &str| assert!(ran.stdout.contains(words), "{words:?} was not said");
    assert_eq!(ran.stdout.matches("write cache: checked\n").count(), 4, "off and on");
    said("the controller has no Verify command (ONCS bit 7 is 0)");
    said("the controller has no Write Uncorrectable command (ONCS bit 1 is 0)");
    said("SMART / health status: temperature threshold");
    said("wrong serial 1");
    for told in ["Zone Append, Write at the pointer", "Zone Management Send", "Zone limits"] {
        said(&format!("{told}: checked\n"));
    }
    said("Zones without leave to write: checked");
    for fact in [
        "16 empty",
        "1024 blocks, 4194304 bytes",
        "768 blocks, 3145728 bytes",
        "3, 2",
        "32768 bytes",
    ] {
        said(fact);
    }
    said("host-managed");
    said("what they are is read by the userspace driver alone");
    for rw in ["psync", "libaio", "io_uring", "io_uring_cmd", "write", "randwrite", "randtrim"] {
        said(&format!("{rw} ended with 2"));
    }
    assert_eq!(ran.stdout.matches("is zoned: it takes a write at").count(), 7);
    said("choose a --bs that divides this, 12288 does not");
    said("across zones 2");
    said("after: nvme nvme");
    println!(
        "checked: eight commands and the write cache on blocks of 512 and 4096 bytes, an event, identify through both drivers"
    );
}

/// Blocks of 512 bytes become 4096, with protection information, and 512 again; the kernel sees each.
#[test]
fn a_namespace_is_formatted_with_leave_and_comes_back() {
    let lab = Lab::new().drive("serial=D0,size=64M").drive("serial=D1,size=64M");
    let ran = lab.sh(
        "n=$(drive D0 node); a=$(drive D0 address)
         lba() { cat /sys/class/block/$(basename $(drive D0 node))/queue/logical_block_size; }
         nvpoll run $n --engine psync --rw write --bs 4k --number-ios 16 --destroy-data D0 > /dev/null
         s=0; nvpoll format $n --block-size 4k || s=$?; echo \"no leave $s $(lba)\"
         s=0; nvpoll format $n --block-size 4k --destroy-data D1 || s=$?; echo \"another $s $(lba)\"
         s=0; nvpoll format $n --lbaf 60 --destroy-data D0 || s=$?; echo \"no such $s $(lba) $(drive D0 driver)\"
         s=0; nvpoll format $n --block-size 8k --destroy-data D0 || s=$?; echo \"no blocks $s $(lba)\"
         mke2fs -q $(drive D1 node); mkdir -p /mnt; mount $(drive D1 node) /mnt
         s=0; nvpoll format $(drive D1 node) --block-size 4k --destroy-data D1 || s=$?; echo \"mounted $s\"; umount /mnt
         host speed D0 bps=16M; nvpoll format $n --block-size 4k --destroy-data D0 >/tmp/f 2>&1 & p=$!
         for i in $(seq 300); do grep -q formatting /tmp/f && break; sleep 0.1; done; kill -INT $p; kill -TERM $p; s=0; wait $p || s=$?
         cat /tmp/f; echo \"signalled $s\"; host speed D0 unlimited; echo \"now $(lba) $(drive D0 driver)\"
         nvpoll run $(drive D0 node) --engine psync --rw write --bs 4k --number-ios 16 --verify --destroy-data D0 > /dev/null
         nvpoll bind $a; nvpoll format $a --block-size 4k --pi 1 --ses user-data --destroy-data D0
         nvpoll run $a --rw write --bs 4k --number-ios 64 --verify --destroy-data D0 > /dev/null
         nvpoll identify $a | grep -E 'in use|protection information'
         nvpoll format $a --block-size 512 --destroy-data D0; nvpoll unbind --all; echo \"again $(lba) $(drive D0 driver)\"
         cmp -n 65536 $(drive D0 node) /dev/zero && echo erased",
    );
    ran.is_fine();
    let said = |words: &str| {
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains(words), "{words:?} was not said");
    };
    said("no leave 3 512");
    said("formatting erases, and its data would be lost (no known signature is on it)");
    said("another 3 512");
    said("no such 2 512 nvme");
    said("there is no LBA format 60");
    said("no blocks 2 512");
    said("has no such LBA format; it has 0: 2^9+0 bytes");
    said("mounted 3");
    said("a drive that is being formatted is waited for, then given back");
    said("signalled 0");
    said("16384 blocks of 4096 bytes (64m)");
    said("now 4096 nvme");
    said("type 1");
    said("again 512 nvme");
    said("erased");
    println!(
        "checked: 512 to 4096 (with two signals) to 4096 with protection information to 512, six refusals, both drivers before"
    );
}
