//! What is refused, with which status, before anything is touched.

use crate::machine::Lab;

/// One line, with these words and this status; the drive is where it was.
const CASES: &[(&str, &str, i32)] = &[
    ("nvpoll bind 0000:00:1f.7", "no PCI function", 2),
    ("nvpoll run ${n}p1", "partition", 2),
    ("nvpoll run $a --engine vfio", "not bound", 2),
    ("nvpoll compare $a --engines vfio --bs 100 --rw randread", "multiple", 2),
    ("nvpoll compare $a --engines vfio --iodepth 5000 --runtime 1", "MQES", 2),
    ("nvpoll compare $a --engines io_uring --offset 1T --rw read", "end", 2),
    ("nvpoll compare $a --engines spdk", "no engine is called", 2),
    ("nvpoll compare $a --engines vfio --runtime 0", "runtime 0", 2),
    ("nvpoll run $n --rw randwrite", "--destroy-data D0", 3),
    ("nvpoll run $n --rw randwrite --destroy-data D1", "names another", 3),
];

#[test]
fn bad_input_is_refused_with_one_line() {
    let mut script = String::from(
        "a=$(drive D0 address); n=$(drive D0 node); printf 'n\\np\\n1\\n\\n\\nw\\n' | fdisk $n >/dev/null 2>&1 || true\n",
    );
    for (command, _, _) in CASES {
        script += &format!(
            "s=0; {command} >/tmp/o 2>/tmp/e || s=$?; grep -v measurements /tmp/e | head -n 1 | sed \"s|^|$s |\"\n"
        );
    }
    script += "test \"$(drive D0 driver)\" = nvme; test -b $n";
    let ran = Lab::new().drive("serial=D0,size=64M").sh(&script);
    ran.is_fine();
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), CASES.len(), "a line a case");
    for ((command, words, status), line) in CASES.iter().zip(lines) {
        assert!(line.starts_with(&format!("{status} ")), "{command}: {line}");
        assert!(line.contains(words), "{command}: {line}");
    }
    println!("checked: {} refusals, each with its status, the drive untouched", CASES.len());
}

#[test]
fn a_drive_in_use_is_not_taken_nor_written() {
    let ran = Lab::new().drive("serial=D0,size=64M").sh(
        "a=$(drive D0 address); n=$(drive D0 node); mke2fs -q $n; mkdir /m; mount $n /m
         for c in \"bind $a\" \"compare $a --engines vfio\" \"run $n --rw write --destroy-data D0\"; do
           s=0; nvpoll $c >/tmp/o 2>/tmp/e || s=$?; echo \"$s $(tail -n 1 /tmp/e)\"
         done
         test \"$(drive D0 driver)\" = nvme; touch /m/still-here; umount /m",
    );
    ran.is_fine();
    let refused: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("3 ")).collect();
    assert_eq!(refused.len(), 3, "each is refused for safety");
    assert!(refused.iter().all(|line| line.contains("/m")), "each says where it is mounted");
    println!("checked: a mounted drive is neither bound, compared nor written");
}
