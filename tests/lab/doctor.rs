//! `nvpoll doctor` says what `bind` then does, and `bind --user` lets a user run.

use crate::machine::{Lab, Ran};
use serde_json::Value;
use std::fs;

/// A drive, and a folder for results.
fn lab() -> Lab {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let share = format!("{}:/mnt/out", out.display());
    lab.with("--share", &share).drive("serial=D0,size=64M")
}

fn diagnosis(lab: &Lab, name: &str) -> Value {
    let text = fs::read_to_string(lab.path("out").join(name)).unwrap();
    serde_json::from_str(&text).expect("a valid JSON document")
}

/// The finding of that name, of the machine or else of the first target.
#[track_caller]
fn finding<'a>(diagnosis: &'a Value, check: &str) -> &'a Value {
    let machine = diagnosis["machine"].as_array().unwrap();
    let target = diagnosis["targets"][0]["findings"].as_array().unwrap();
    let mut all = machine.iter().chain(target);
    all.find(|finding| finding["check"] == check).expect(check)
}

#[track_caller]
fn says(ran: &Ran, words: &str) {
    assert!(ran.stdout.contains(words), "{words:?} was not said");
}

#[test]
fn a_healthy_machine_and_a_user_who_runs_without_root() {
    // What a user's session may lock is set by the shell that becomes him.
    let lab = lab();
    let ran = lab.sh(
        "a=$(drive D0 address); run='nvpoll run '$a' --iodepth 32 --runtime 1 --ramp-time 0'
         as() { ( ulimit -l $1; shift; exec su user -s /bin/sh -c \"$*\" ); }
         nvpoll doctor $a --json >/mnt/out/free.json; echo \"doctor $?\"
         s=0; nvpoll bind $a --user nobody-of-that-name 2>&1 || s=$?; echo \"unknown $s, $(drive D0 driver)\"
         s=0; as 64 nvpoll bind $a 2>&1 || s=$?; echo \"bind as user $s, $(drive D0 driver)\"
         s=0; as 64 nvpoll doctor $a || s=$?; echo \"doctor as user $s\"
         nvpoll bind $a; s=0; as 8192 nvpoll doctor $a || s=$?; echo \"not given $s\"
         nvpoll bind $a --user user; stat -c '%n %u %a' /run/nvpoll /run/nvpoll/*
         s=0; as 8192 nvpoll doctor $a --iodepth 32 --json >/mnt/out/given.json || s=$?; echo \"given $s\"
         as 8192 \"$run\" | head -n 3; echo \"ran as user\"
         s=0; as 64 \"$run\" 2>&1 || s=$?; echo \"too little $s\"
         s=0; as 64 nvpoll doctor $a --iodepth 32 || s=$?; echo \"doctor on too little $s\"
         s=0; as 64 nvpoll unbind $a 2>&1 || s=$?; echo \"unbind as user $s, $(drive D0 driver)\"
         nvpoll unbind $a; echo \"after: $(drive D0 driver) $(drive D0 node)\"
         nvpoll list $a; nvpoll bind $a --user user >/dev/null
         s=0; as 8192 \"$run --rw randwrite --destroy-data D0\" 2>&1 || s=$?; echo \"write as user $s\"
         s=0; as 8192 \"$run --rw randwrite --destroy-data D9\" 2>&1 || s=$?; echo \"write as user, wrong serial $s\"
         nvpoll unbind --all; echo \"at the end: $(drive D0 driver)\"",
    );
    ran.is_fine();
    let free = diagnosis(&lab, "free.json");
    says(&ran, "doctor 0\n");
    assert_eq!((&free["works"], &free["targets"][0]["step"]), (&true.into(), &"bind".into()));
    for check in ["rights", "lockdown", "iommu", "interrupt-remapping", "bind", "iommu-group"] {
        assert_eq!(finding(&free, check)["verdict"], "ok", "{}", finding(&free, check));
    }
    says(&ran, "no such user");
    says(&ran, "unknown 2, nvme\n");
    says(&ran, "changing a drive's driver needs root, and this is user 1000; run it as root: sudo");
    says(&ran, "bind as user 2, nvme\n");
    says(&ran, "doctor as user 1\n");
    says(&ran, "not given 1\n");
    says(&ran, "given to user (user 1000): /dev/vfio/");
    says(&ran, "not known: what a session of user really gets");
    says(&ran, "/run/nvpoll 0 755\n");
    says(&ran, "/run/nvpoll/0000:00:04.0.json 0 644\n");
    says(&ran, "/run/nvpoll/0000:00:04.0.lock 1000 600\n");
    says(&ran, "given 0\n");
    let given = diagnosis(&lab, "given.json");
    assert_eq!((&given["works"], &given["targets"][0]["step"]), (&true.into(), &"run".into()));
    says(&ran, "engine vfio on 0000:00:04.0 (the drive is bound to vfio-pci");
    says(&ran, "ran as user\n");
    says(&ran, "this run locks at least 148 KiB of memory, and this process may lock 64 KiB");
    says(&ran, "as root: echo 'user - memlock 148' >> /etc/security/limits.d/nvpoll.conf");
    says(&ran, "too little 2\n");
    says(&ran, "doctor on too little 1\n");
    says(&ran, "sudo nvpoll unbind 0000:00:04.0");
    says(&ran, "unbind as user 2, vfio-pci\n");
    says(&ran, "after: nvme /dev/nvme0n1\n");
    // The kernel opens a group for one process at a time, so that nobody else can have it.
    says(&ran, "write as user 0\n");
    says(&ran, "write as user, wrong serial 3\n");
    says(&ran, "at the end: nvme\n");
    println!("checked: doctor's word kept by bind; a user bound for, run by, refused by memlock");
}

#[test]
fn without_an_iommu_doctor_blocks_in_the_words_of_bind() {
    let lab = lab().with("--iommu", "off");
    let ran = lab.sh(
        "a=$(drive D0 address); s=0; nvpoll doctor $a --json >/mnt/out/off.json || s=$?
         echo \"doctor $s\"; s=0; nvpoll bind $a 2>&1 || s=$?; echo \"bind $s, $(drive D0 driver)\"
         s=0; nvpoll bind $a --unsafe-no-iommu --user user 2>&1 || s=$?; echo \"user $s, $(drive D0 driver)\"
         nvpoll doctor $a --unsafe-no-iommu >/dev/null; echo \"accepted $?\"
         nvpoll doctor | tail -n 1 || true",
    );
    ran.is_fine();
    says(&ran, "doctor 1\n");
    says(&ran, "bind 2, nvme\n");
    says(&ran, "only root may drive it");
    says(&ran, "user 2, nvme\n");
    says(&ran, "accepted 0\n");
    let off = diagnosis(&lab, "off.json");
    let bind = finding(&off, "bind");
    assert_eq!((&off["works"], &bind["verdict"]), (&false.into(), &"blocks".into()));
    let (found, remedy) = (bind["found"].as_str().unwrap(), bind["remedy"].as_str().unwrap());
    assert!(remedy.contains("intel_iommu=on"), "{remedy}");
    says(&ran, &format!("nvpoll: 0000:00:04.0: {found}; {remedy}"));
    assert_eq!(finding(&off, "iommu")["rules_out"][0], "vfio");
    println!("checked: no IOMMU blocks, and bind refuses in the same words");
}

#[test]
fn lockdown_and_interrupts_that_are_not_remapped() {
    let lab = lab().with("--append", "lockdown=integrity").with("--iommu", "no-intremap");
    let ran = lab.sh(
        "a=$(drive D0 address); nvpoll doctor $a --json >/mnt/out/down.json; echo \"doctor $?\"
         s=0; printf '\\0' >/sys/bus/pci/devices/$a/config || s=$?; echo \"raw access $s\"
         s=0; nvpoll compare $a --engines vfio --rounds 1 --runtime 1 --rw randread 2>&1 || s=$?
         echo \"compare $s, $(drive D0 driver) $(drive D0 node)\"
         nvpoll bind $a; s=0; nvpoll run $a --runtime 1 2>&1 || s=$?; echo \"run $s\"
         s=0; nvpoll doctor $a --json >/mnt/out/bound.json || s=$?; echo \"doctor of the bound $s\"
         nvpoll unbind $a; echo \"after: $(drive D0 driver) $(drive D0 node)\"",
    );
    ran.is_fine();
    let down = diagnosis(&lab, "down.json");
    says(&ran, "doctor 0\n");
    let lockdown = finding(&down, "lockdown");
    assert!(lockdown["found"].as_str().unwrap().starts_with("integrity"), "{lockdown}");
    assert_eq!(lockdown["rules_out"][0], "uio");
    says(&ran, "raw access 1\n");
    let remapping = finding(&down, "interrupt-remapping");
    assert_eq!(
        (&remapping["verdict"], &remapping["rules_out"][0]),
        (&"warning".into(), &"vfio".into())
    );
    let option = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    assert!(remapping["remedy"].as_str().unwrap().contains(option), "{remapping}");
    // The engine's own message names the option, after compare and after run.
    let (compared, ran_bound) = ran.stdout.split_once("compare ").expect("compare ended");
    assert!(compared.contains("VFIO_SET_IOMMU") && compared.contains(option));
    assert!(ran_bound.starts_with("1, nvme /dev/nvme0n1\n"), "the drive is given back");
    assert!(ran_bound.contains("VFIO_SET_IOMMU") && ran_bound.contains(option));
    says(&ran, "run 1\n");
    says(&ran, "doctor of the bound 1\n");
    let bound = diagnosis(&lab, "bound.json");
    let blocked = bound["targets"][0]["findings"].as_array().unwrap().iter();
    let blocked: Vec<&Value> = blocked.filter(|one| one["verdict"] == "blocks").collect();
    assert_eq!(blocked.len(), 1, "{blocked:?}");
    assert_eq!(blocked[0]["check"], "interrupt-remapping");
    says(&ran, "after: nvme /dev/nvme0n1\n");
    println!(
        "checked: lockdown shows; VFIO's refusal without remapping names the option; drive back"
    );
}
