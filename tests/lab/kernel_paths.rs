//! The kernel's engines on real block paths: what a row says of itself is what the kernel says.

use crate::machine::{Lab, Ran};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Interrupts of all I/O queues of NVMe drives so far (queue 0 is the admin queue).
const FUNCTIONS: &str = r#"
    irqs() { grep -E 'nvme[0-9]+q[1-9]' /proc/interrupts | awk '{ for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+$/) t += $i } END { print t + 0 }'; }
    measure() { b=$(irqs); nvpoll run "$2" --engine "$3" --iodepth 4 --runtime 1 --ramp-time 0 --json "/mnt/out/$1.json" >/dev/null 2>&1; echo "irqs $1 $(($(irqs) - b))"; }
"#;

const SCRIPT: &str = r#"
    n=$(drive D0 node)
    measure plain $n io_uring; measure cmd $n io_uring_cmd; measure aio $n libaio; measure sync $n psync
    measure nopoll $n io_uring:iopoll; measure thread $n io_uring:sqpoll-idle=20; measure null /dev/nullb0 libaio
    nvpoll run $n --engine io_uring --bs 256k --iodepth 2 --runtime 1 --ramp-time 0 --json /mnt/out/split.json >/dev/null
    s=0; nvpoll run $n --engine io_uring_cmd --bs 256k --runtime 1 2>&1 | tail -n 1 || s=$?
    s=0; nvpoll run $(drive D2 address) --engine io_uring_cmd --runtime 1 2>&1 | tail -n 1 || s=$?
    for e in io_uring io_uring_cmd libaio psync; do
      nvpoll run $(drive D1 node) --engine $e --offset 1M --size 4k --iodepth 1 --number-ios 3 --json /mnt/out/bad-$e.json >/dev/null 2>&1 || true
    done
    echo 2 >/sys/module/nvme/parameters/poll_queues; bind-drive D0 none; bind-drive D0 nvme
    until n=$(drive D0 node); do sleep 0.1; done; echo "polls: $(cat /sys/block/${n#/dev/}/queue/io_poll)"
    measure polled $n io_uring:iopoll; measure polled-cmd $n io_uring_cmd:iopoll; measure polled-sync $n psync:iopoll
    measure polled-thread $n io_uring:iopoll+sqpoll; measure unpolled $n io_uring
    nvpoll compare $n --engines io_uring,io_uring:iopoll,io_uring_cmd:iopoll,libaio,psync --iodepth 4 --rounds 2 --runtime 500ms --ramp-time 0 --json /mnt/out/compare.json >/dev/null
    (nvpoll run $(drive D3 node) --engine io_uring --iodepth 4 --runtime 4 --ramp-time 0 --json /mnt/out/gone.json >/dev/null 2>&1; echo "gone ended") &
    sleep 2; host unplug D3; wait
    echo 2 >/proc/sys/kernel/io_uring_disabled; s=0; nvpoll run $n --engine io_uring 2>&1 || s=$?; echo "disabled $s"
"#;

fn row(out: &Path, name: &str) -> Value {
    let text = fs::read_to_string(out.join(format!("{name}.json")));
    let text = text.unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str::<Value>(&text).expect("a valid JSON document")["rows"][0].clone()
}

fn marks(row: &Value) -> Vec<&str> {
    row["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap()).collect()
}

/// Interrupts during the run of this name.
fn interrupts(ran: &Ran, name: &str) -> u64 {
    let start = format!("irqs {name} ");
    let line = ran.stdout.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("{name} was not measured")).parse().unwrap()
}

/// A row's polling as it says, and as the interrupts say.
#[track_caller]
fn polling(ran: &Ran, out: &Path, name: &str, fact: &str, is_polled: bool) {
    let row = row(out, name);
    let (ios, irqs) = (row["ios"].as_u64().unwrap(), interrupts(ran, name));
    let said = row["facts"]["polled"].as_str().unwrap();
    println!("{name}: {ios} I/Os, {irqs} interrupts, polled: {said}");
    assert!(said.starts_with(fact), "{name}: {said}");
    assert_eq!((row["errors"].as_u64(), ios > 100), (Some(0), true), "{name}");
    // The drive's other users are few; an interrupt may bring several completions.
    let few = ios / 50 + 20;
    assert!((irqs <= few) == is_polled, "{name}: {irqs} interrupts for {ios} I/Os");
    let is_marked = marks(&row).contains(&"not-as-asked");
    assert_eq!(is_marked, said.starts_with("not polled"), "{name}: {}", row["marks"]);
}

#[test]
fn a_row_says_what_the_kernel_says() {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let lab = lab
        // As many polled queues as the script asks for, and a processor for the kernel's thread.
        .with("--smp", "2")
        .with("--share", &format!("{}:/mnt/out", out.display()))
        .drive("serial=D0,size=64M,mdts=5")
        .drive("serial=D1,size=64M,error-sector=2048")
        .drive("serial=D2,size=64M,ms=8,wait=off")
        .drive("serial=D3,size=64M,port=hot");
    let ran = lab.sh(&format!("{FUNCTIONS}{SCRIPT}"));
    ran.is_fine();
    let by_interrupt = "no: ";
    for name in ["plain", "cmd", "aio", "sync", "unpolled"] {
        polling(&ran, &out, name, by_interrupt, false);
    }
    polling(&ran, &out, "nopoll", "not polled: nvme0n1 has no polled queues", false);
    assert!(ran.stdout.contains("polls: 1"), "the drive has polled queues now");
    for name in ["polled", "polled-cmd", "polled-thread"] {
        polling(&ran, &out, name, "yes", true);
    }
    polling(&ran, &out, "polled-sync", "not polled: Linux ignores RWF_HIPRI", false);

    let thread = row(&out, "thread");
    let said = thread["facts"]["submission thread"].as_str().unwrap();
    assert!(said.starts_with("yes: ") && said.contains(" s of processor time"), "{said}");
    assert_eq!(row(&out, "null")["errors"], 0);
    let split = row(&out, "split");
    assert!(marks(&split).contains(&"split"), "{}", split["marks"]);
    assert!(split["marks"].to_string().contains("max_sectors_kb"), "{}", split["marks"]);
    let said = |words: &str| assert!(ran.stdout.contains(words), "{words:?} was not said");
    said("an I/O of 262144 bytes is more than engine io_uring_cmd can send");
    said("8 bytes of metadata a block");
    said("kernel.io_uring_disabled is 2");
    said("disabled 2");

    for (engine, status) in [
        ("io_uring", "No data available"),
        ("libaio", "No data available"),
        ("psync", "No data available"),
        ("io_uring_cmd", "Unrecovered Read Error"),
    ] {
        let bad = row(&out, &format!("bad-{engine}"));
        let kind = &bad["error_kinds"][0];
        assert_eq!((&bad["errors"], &kind["count"]), (&3.into(), &3.into()), "{engine}");
        assert!(kind["status"].as_str().unwrap().contains(status), "{engine}: {kind}");
        assert_eq!(kind["first_offsets"][0], 1 << 20, "{engine}: {kind}");
    }
    said("gone ended");
    let gone = row(&out, "gone");
    assert!(gone["errors"].as_u64().unwrap() > 0, "a drive that went away: {}", gone["errors"]);

    let compare = fs::read_to_string(out.join("compare.json")).unwrap();
    let compare: Value = serde_json::from_str(&compare).unwrap();
    let stacks: Vec<_> =
        compare["rows"].as_array().unwrap().iter().map(|row| &row["stack"]).collect();
    assert_eq!(
        stacks,
        [
            "Linux io_uring",
            "Linux io_uring (iopoll)",
            "Linux io_uring_cmd (iopoll)",
            "Linux libaio",
            "Linux psync"
        ]
    );
    assert_eq!(compare["plan"]["stacks"][1]["engine"], "io_uring:iopoll");
    println!("checked: polled is polled, splits, media errors, a drive that goes, refusals");
}
