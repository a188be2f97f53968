//! A machine with two NUMA nodes: memory and worker are where the drive is, and elsewhere when asked.

use crate::machine::Lab;
use serde_json::Value;
use std::fs;

const SCRIPT: &str = r#"
    a=$(drive D0 address); echo 1 >/sys/bus/pci/devices/$a/numa_node
    go() { nvpoll compare $a --engines vfio --numa $2 --bs 64k --iodepth 64 --number-ios 2000 --rounds 1 --json /mnt/out/$1.json >/dev/null; }
    go near near; go any any
    echo 8 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages; go huge near
    nvpoll compare $a --engines vfio --iodepth 4 --runtime 3 --ramp-time 0 --rounds 1 >/dev/null & p=$!
    sleep 2; for t in /proc/$p/task/*; do echo "may $(sed -n 's/^Cpus_allowed_list:\t//p' $t/status)"; done; wait
"#;

#[test]
fn memory_and_workers_are_on_the_drives_node() {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let lab = lab
        .with("--share", &format!("{}:/mnt/out", out.display()))
        .with("--numa", "--smp=2")
        .drive("serial=D0,size=64M");
    let ran = lab.sh(SCRIPT);
    ran.is_fine();
    let memory = |name: &str| {
        let text = fs::read_to_string(out.join(format!("{name}.json"))).unwrap();
        let row = serde_json::from_str::<Value>(&text).unwrap()["rows"][0].clone();
        assert_eq!((row["errors"].as_u64(), row["ios"].as_u64()), (Some(0), Some(2000)), "{name}");
        let fact = row["facts"]["memory"].as_str().unwrap().to_owned();
        println!("{name}: {fact}");
        fact
    };
    let near = memory("near");
    assert!(near.starts_with("on NUMA node 1, the drive's; 0.0 MiB in huge pages"), "{near}");
    assert!(memory("any").starts_with("on whichever node the workers run; "));
    let huge = memory("huge");
    assert!(huge.starts_with("on NUMA node 1, the drive's; 4.0 MiB in huge pages"), "{huge}");
    // The worker alone is pinned, to the second node's processor.
    let may: Vec<_> = ran.stdout.lines().filter_map(|line| line.strip_prefix("may ")).collect();
    assert!(may.contains(&"1") && !may.contains(&"0"), "{may:?}");
    println!("checked: memory and worker on the drive's node, in huge pages where there are some");
}
