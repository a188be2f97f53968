//! A drive in use is neither bound, compared nor written: each kind of use, by every name that a
//! user may type, with the evidence on stderr and the data looked at from outside.

use crate::machine::Lab;
use crate::pattern;
use std::fs;

/// D0 has two partitions of 16 MiB at its start; the host's pattern lies behind them.
const SIZE_BYTES: usize = 64 << 20;
const PATTERN_FROM: usize = 33 << 20;
const SEED: u64 = 21;

/// Where a use is made and ended again, `tried NAME` says how each command that would take or
/// write the drive ended: status, last line of stderr, driver, override, block node, records.
const PRELUDE: &str = r#"
mkdir -p /m /dev/disk/by-id /dev/mapper
for drive in D0 D1; do bind-drive $drive none; done
for drive in D0 D1; do bind-drive $drive nvme; done
a=$(drive D0 address) n=$(drive D0 node) g=$(drive D0 generic)
printf 'n\np\n1\n2048\n+16M\nn\np\n2\n34816\n+16M\nw\n' | fdisk -u $n >/dev/null 2>&1
mke2fs -q ${n}p1 >/dev/null; mkswap ${n}p2 >/dev/null
ln -s $n /dev/disk/by-id/nvme-D0
t=$n
tried() {
  for command in "bind $t" "compare $t --engines vfio --rw randread --runtime 1" \
    "run $t --engine io_uring --rw randwrite --destroy-data D0 --runtime 1 --ramp-time 0"; do
    status=0; nvpoll $command >/tmp/o 2>/tmp/e || status=$?
    echo "tried|$1|$status|$(tail -n 1 /tmp/e)|$(drive D0 driver) $(cat /sys/bus/pci/devices/$a/driver_override) $(drive D0 node) $(ls /run/nvpoll 2>/dev/null)"
  done
}
"#;

const USES: &str = r#"
mount ${n}p1 /m
t=/dev/disk/by-id/nvme-D0 tried by-id
t=$g tried generic
umount /m
unshare -m sh -c "mount ${n}p1 /m; echo >/tmp/mounted; exec sleep 1000" &
until [ -e /tmp/mounted ]; do sleep 0.05; done; sleep 0.3
tried elsewhere; kill $!; wait $! || true
swapon ${n}p2; tried swap; swapoff ${n}p2
losetup /dev/loop0 ${n}p1; tried loop; losetup -d /dev/loop0; sleep 0.3
dmsetup create vg-lv -u LVM-x --table "0 2048 linear ${n}p1 0" >/dev/null; tried lvm; dmsetup remove vg-lv >/dev/null
key=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
dmsetup create secret -u CRYPT-PLAIN-secret --table "0 2048 crypt aes-xts-plain64 $key 0 ${n}p1 0" >/dev/null
tried dm-crypt; dmsetup remove secret >/dev/null
yes | mdadm --create /dev/md0 --level=1 --raid-devices=2 ${n}p2 missing >/dev/null 2>&1
tried md; mdadm --stop /dev/md0 >/dev/null 2>&1
sleep 1000 <$n & echo "pid|$!"; sleep 0.3; tried handle; kill $!; wait $! || true
sleep 1000 <$g & echo "pid|$!"; sleep 0.3; tried handle-generic; kill $!; wait $! || true
evil="/tmp/busybox$(printf '\033')[2J"; cp /bin/busybox "$evil"; "$evil" sleep 1000 <$n & sleep 0.3
tried escape; kill $!; wait $! || true
mkfs=${n}p1; mount $mkfs /m; mkdir -p /m/bin /m/proc /m/sys /m/dev /m/run /m/tmp /m/old
cp /bin/busybox /m/bin/; cp $(command -v nvpoll) /m/bin/
unshare -m sh -c 'for folder in proc sys dev run tmp; do mount --bind /$folder /m/$folder; done
  cd /m; pivot_root . old; exec chroot . /bin/busybox sh -c "umount -l /old; nvpoll bind '$a'"' >/tmp/o 2>/tmp/e || status=$?
echo "root|$status|$(tail -n 1 /tmp/e)|$(drive D0 driver)"
umount /m
t=$n; nvpoll run $n --rw randread --number-ios 100 >/dev/null; echo "read|$?"
"#;

/// For each use, what the evidence must name.
const EVIDENCE: &[(&str, &[&str])] = &[
    ("by-id", &["p1 is mounted on /m"]),
    ("generic", &["p1 is mounted on /m"]),
    ("elsewhere", &["p1 is mounted on /m in the mount namespace of sleep (pid "]),
    ("swap", &["p2 is swap space in use"]),
    ("loop", &["p1 is under loop device /dev/loop0"]),
    ("lvm", &["p1 is under LVM volume vg-lv"]),
    ("dm-crypt", &["p1 is under dm-crypt mapping secret"]),
    ("md", &["p2 is a member of md array /dev/md0 (raid1)"]),
    ("handle", &["is open by sleep (pid PID)", "for reading"]),
    ("handle-generic", &["/dev/ng0n1 is open by sleep (pid PID)"]),
    ("escape", &[r"busybox\u{1b}[2J (pid"]),
];

/// Two programs that make the stacks to be found; CI installs them.
fn with_programs(mut lab: Lab) -> Lab {
    for program in ["dmsetup", "mdadm"] {
        lab = lab.with("--binary", program);
    }
    lab
}

#[test]
fn each_use_is_refused_with_its_evidence_and_nothing_is_touched() {
    let lab = Lab::new();
    let path = lab.path("image");
    let mut image = vec![0; SIZE_BYTES];
    pattern::fill(&mut image, 0, SEED);
    image[..PATTERN_FROM].fill(0);
    fs::write(&path, &image).unwrap();
    let lab = with_programs(lab)
        .drive(&format!("serial=D0,image={}", path.display()))
        .drive("serial=D1,size=64M");
    let ran = lab.sh(&format!("{PRELUDE}{USES}"));
    ran.is_fine();
    let mut pids = ran.stdout.lines().filter_map(|line| line.strip_prefix("pid|"));
    for (name, words) in EVIDENCE {
        let pid = if words[0].contains("PID") { pids.next().expect("a pid") } else { "" };
        let tried: Vec<Vec<&str>> = ran
            .stdout
            .lines()
            .map(|line| line.split('|').collect::<Vec<_>>())
            .filter(|parts| parts[0] == "tried" && parts[1] == *name)
            .collect();
        assert_eq!(tried.len(), 3, "{name}: bind, compare and run");
        for (parts, command) in tried.iter().zip(["bind", "compare", "run"]) {
            assert_eq!(parts[2], "3", "{name}: {command}: refused for safety: {}", parts[3]);
            for words in *words {
                let words = words.replace("PID", pid);
                assert!(parts[3].contains(&words), "{name}: {command}: {words:?} in {}", parts[3]);
            }
            assert_eq!(parts[4].trim_end(), "nvme (null) /dev/nvme0n1", "{name}: {command}");
        }
    }
    let root = ran.stdout.lines().find(|line| line.starts_with("root|")).expect("the root's line");
    assert!(root.starts_with("root|3|"), "{root}");
    assert!(root.contains("p1 holds the root file system") && root.ends_with("|nvme"), "{root}");
    assert!(ran.stdout.contains("read|0"), "reading a drive with file systems needs no leave");
    let after = fs::read(&path).unwrap();
    let offset = PATTERN_FROM as u64;
    assert_eq!(pattern::first_wrong(&after[PATTERN_FROM..], offset, SEED), None, "a write got out");
    println!(
        "checked: {} uses x bind, compare and a writing run refused with their evidence; the root drive; {} MiB untouched",
        EVIDENCE.len(),
        (SIZE_BYTES - PATTERN_FROM) >> 20
    );
}

/// `signed NAME WORDS`: a writing run is refused without a serial number and with a wrong one.
const SIGNATURES: &str = r#"
n=$(drive D1 node)
signed() {
  for flag in "" "--destroy-data D10" "--destroy-data d1"; do
    status=0; nvpoll run $n --rw randwrite --runtime 1 --ramp-time 0 $flag >/tmp/o 2>/tmp/e || status=$?
    echo "signed|$1|$status|$(tail -n 1 /tmp/e)"
  done
}
at() { printf "$2" | dd of=$n bs=1 seek=$1 conv=notrunc 2>/dev/null; }
clean() { dd if=/dev/zero of=$n bs=64k count=4 conv=notrunc 2>/dev/null; }
at 512 'LABELONE'; at 536 'LVM2 001'; signed lvm; clean
at 65600 '_BHRfS_M'; signed btrfs; clean
at 131072 '\014\261\272\000\000\000\000\000'; signed zfs; clean
at 0 'LUKS\272\276\000\002'; signed luks; clean
at 512 'EFI PART'; signed gpt; clean
yes | mdadm --create /dev/md0 --level=1 --raid-devices=2 $n missing >/dev/null 2>&1; mdadm --stop /dev/md0 >/dev/null 2>&1
signed md; mdadm --zero-superblock $n >/dev/null 2>&1
mke2fs -q -L data $n >/dev/null; signed ext2

ten=$(drive D10 node); sum=$(sha256sum <$ten)
try() { name=$1; shift; status=0; "$@" >/tmp/o 2>/tmp/e || status=$?; echo "$name|$status|$(tail -n 1 /tmp/e)"; }
try two nvpoll run $n $ten --rw randwrite --destroy-data D1 --runtime 1 --ramp-time 0
try two-other nvpoll run $n $ten --rw randwrite --destroy-data D10 --runtime 1 --ramp-time 0
test "$(sha256sum <$ten)" = "$sum" && echo "two-untouched"
bad=$(drive BAD address)
try unreadable nvpoll run $(drive BAD node) --rw write --destroy-data BAD --runtime 1
try unreadable-bind nvpoll bind $bad; drive BAD driver
s=0; nvpoll doctor $bad >/tmp/o || s=$?; echo "unreadable-doctor|$s|$(grep -w bind /tmp/o | tail -n 1)"
try json nvpoll run soft --number-ios 10 --json $n
try json-file sh -c 'echo 1 >/tmp/f; truncate -s 1M /tmp/f; nvpoll run /tmp/f --number-ios 10 --json /tmp/f'
test $(stat -c %s /tmp/f) = 1048576 && echo json-untouched

nvpoll bind $n 2>/tmp/e; echo "told|$(tail -n 1 /tmp/e)"
a=$(drive D1 address)
try vfio nvpoll run $a --rw randwrite --runtime 1 --ramp-time 0
try vfio-wrong nvpoll run $a --rw randwrite --destroy-data D10 --runtime 1 --ramp-time 0
try vfio-read nvpoll run $a --rw randread --number-ios 100
nvpoll unbind $a; n=$(drive D1 node); mount -o ro $n /m && umount /m && echo "vfio-untouched"
bind-drive BAD vfio-pci
try vfio-unreadable nvpoll run $bad --rw write --destroy-data BAD --runtime 1
bind-drive BAD nvme
b=$(drive D10 address); bind-drive D10 vfio-pci
try stranger nvpoll run $b --rw randwrite --runtime 1
try stranger-named nvpoll run $b --rw randwrite --destroy-data D10 --number-ios 100
ls /run/nvpoll; bind-drive D10 nvme

nvpoll run $n --rw randwrite --destroy-data D1 --runtime 4 --ramp-time 0 >/tmp/o 2>&1 & run=$!
sleep 2; if mount $n /m 2>/tmp/e; then echo "claimed|mounted"; else echo "claimed|$(cat /tmp/e)"; fi
try second nvpoll bind $n
wait $run; echo "allowed|$?"
nvpoll run $n --engine io_uring_cmd --rw randwrite --destroy-data D1 --runtime 4 --ramp-time 0 >/tmp/o 2>&1 & run=$!
sleep 2; if mount $n /m 2>/tmp/e; then echo "claimed-cmd|mounted"; else echo "claimed-cmd|$(cat /tmp/e)"; fi
wait $run; echo "allowed-cmd|$?"
"#;

const SIGNED: &[(&str, &str)] = &[
    ("lvm", "LVM2 physical volume at byte 512"),
    ("btrfs", "btrfs at byte 65600"),
    ("zfs", "ZFS member at byte 131072"),
    ("luks", "LUKS2 at byte 0"),
    ("gpt", "GPT at byte 512"),
    ("md", "md RAID 1.2 member"),
    ("ext2", "ext2 \"data\" at byte 1080"),
];

#[test]
fn what_lies_on_a_drive_is_named_and_only_its_own_serial_number_allows_to_write() {
    let lab = with_programs(Lab::new())
        .drive("serial=D0,size=64M")
        .drive("serial=D1,size=64M")
        .drive("serial=D10,size=16M")
        .drive("serial=BAD,size=16M,error-sector=0");
    let ran = lab.sh(&format!("{PRELUDE}{SIGNATURES}"));
    ran.is_fine();
    for (name, words) in SIGNED {
        let prefix = format!("signed|{name}|3|");
        let lines: Vec<&str> =
            ran.stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        assert_eq!(lines.len(), 3, "{name}: without a number, with others'");
        assert!(lines.iter().all(|line| line.contains(words)), "{name}: {words}: {lines:?}");
        assert!(lines.iter().all(|line| line.contains("--destroy-data D1")), "{name}: {lines:?}");
    }
    let said = |words: &str| assert!(ran.stdout.contains(words), "{words:?} was not said");
    let line = |name: &str| {
        let found = ran.stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('|'));
        found.unwrap_or_else(|| panic!("no line of {name}")).to_owned()
    };
    let refused = |name: &str, words: &str| {
        let line = line(name);
        assert!(line.starts_with("3|") && line.contains(words), "{name}: {line}");
    };
    refused("two", "--destroy-data D10 (--destroy-data D1 names another)");
    refused("two-other", "--destroy-data D1 (--destroy-data D10 names another)");
    said("two-untouched");
    refused("unreadable", "could not be examined");
    refused("unreadable-bind", "could not be examined");
    let doctor = line("unreadable-doctor");
    assert!(doctor.starts_with("1|") && doctor.contains("could not be examined"), "{doctor}");
    refused("json", "a block device");
    refused("json-file", "this file is a target");
    said("json-untouched");
    assert!(line("told").contains("holds ext2 \"data\" at byte 1080"), "{}", line("told"));
    refused("vfio", "ext2 \"data\" at byte 1080 on namespace 1");
    refused("vfio", "--destroy-data D1");
    refused("vfio-wrong", "--destroy-data D1 (--destroy-data D10 names another)");
    assert!(line("vfio-read").starts_with("0|"), "reading needs no leave");
    said("vfio-untouched");
    refused("vfio-unreadable", "could not be examined");
    refused("stranger", "--destroy-data D10");
    assert!(line("stranger-named").starts_with("0|"), "{}", line("stranger-named"));
    for name in ["claimed", "claimed-cmd"] {
        assert!(line(name).contains("busy"), "{name}: {}", line(name));
    }
    assert_eq!(line("allowed-cmd"), "0", "past the block layer as well");
    refused("second", "by nvpoll (pid ");
    assert_eq!(line("allowed"), "0", "the drive that is named is written");
    println!(
        "checked: {} signatures by kernel and by userspace driver, serial numbers, unreadable drives, --json on a drive, no mount while it is written",
        SIGNED.len()
    );
}
