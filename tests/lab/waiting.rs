//! Ways of waiting on the bypass path: each keeps the contract, and sleeps or polls as it says.

use crate::machine::{self, Lab};
use serde_json::Value;
use std::fs;

#[test]
fn interrupts_hybrid_and_adaptive() {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let lab = lab
        .with("--share", &format!("{}:/mnt/out", out.display()))
        .with("--binary", &format!("{}=contract", machine::contract().display()))
        .drive("serial=D0,size=64M")
        .drive("serial=D1,size=64M,iops=200");
    let ran = lab.sh(
        "a=$(drive D0 address); b=$(drive D1 address); nvpoll bind $a $b
         for w in irq hybrid adaptive; do
           NVPOLL_CONTRACT_WAIT=$w NVPOLL_CONTRACT_DRIVES=$a NVPOLL_CONTRACT_ENGINES=vfio NVPOLL_CONTRACT_VERBOSE=1 \\
             contract --test-threads=1 --skip kernel:: 2>&1 | grep -c ': kept'
         done
         grep vfio /proc/interrupts || true
         for w in poll irq hybrid adaptive; do
           nvpoll run $b --wait $w --rw randread --bs 4k --iodepth 1 --runtime 2 --ramp-time 200ms --json /mnt/out/$w.json
         done
         nvpoll run $a --wait irq --numjobs 2 --iodepth 8 --runtime 1 --ramp-time 0 --json /mnt/out/two.json
         s=0; nvpoll run soft --wait irq --runtime 1 2>/tmp/e || s=$?; tail -n 1 /tmp/e; echo \"soft $s\"
         nvpoll unbind --all; echo \"after: $(drive D0 driver) $(drive D1 driver)\"",
    );
    ran.is_fine();
    assert!(ran.stdout.contains("after: nvme nvme"));
    let kept = ran.stdout.lines().filter_map(|line| line.parse::<u32>().ok());
    assert!(kept.clone().count() == 3 && kept.clone().all(|kept| kept >= 12), "{kept:?}");
    assert!(ran.stdout.contains("engine soft has no interrupts to wait for; it can: poll, hybrid"));
    assert!(ran.stdout.contains("soft 2"), "before anything is measured");
    let row = |name: &str| {
        let text = fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["rows"][0].clone()
    };
    let busy = |name: &str| {
        let row = row(name);
        let busy = row["cpu"]["machine_pct"].as_f64().unwrap();
        println!("{name}: {busy:.1} % of the processor, {}", row["facts"]["waiting"]);
        busy
    };
    let polled = busy("poll");
    for name in ["irq", "adaptive", "hybrid"] {
        // The drive takes 5 ms an I/O, so that sleeping is most of the time.
        let share = busy(name) / polled;
        assert!(share < 0.8, "{name} used {share:.2} of the polling processor time");
        assert_eq!(row(name)["errors"], 0);
    }
    assert_eq!(row("two")["errors"], 0);
    println!("checked: three ways of waiting keep the contract and spare the processor");
}
