//! The rarer commands on QEMU's controller, through VFIO; and what identify says, through both drivers.

use crate::machine::{self, Lab};

#[test]
fn the_rarer_commands_do_what_they_say() {
    let lab = Lab::new()
        .with("--binary", &format!("{}=commands", machine::commands().display()))
        .drive("serial=D0,size=64M")
        .drive("serial=D1,size=64M,lba=4096");
    let ran = lab.sh("
        for d in D0 D1; do a=$(drive $d address); nvpoll identify $(drive $d node) > /tmp/kernel
          nvpoll bind $a; nvpoll identify $a > /tmp/user
          for section in optional power 'error log' firmware; do
            sed -n \"/^$section/,/^\\$/p\" /tmp/kernel > /tmp/1; sed -n \"/^$section/,/^\\$/p\" /tmp/user > /tmp/2
            test -s /tmp/1; cmp /tmp/1 /tmp/2; done
          sed -n '/^optional/,/^$/p; /^power/,/^$/p' /tmp/user
          s=0; commands $a wrong || s=$?; echo \"wrong serial $s\"
          commands $a $d; done
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
    said("after: nvme nvme");
    println!(
        "checked: eight commands and the write cache on blocks of 512 and 4096 bytes, an event, identify through both drivers"
    );
}
