//! A drive comes back whatever happens to nvpoll, at every phase: signals, a kill, a drive that
//! vanishes, a kernel that refuses, records that somebody tampered with.

use crate::machine::{Lab, Ran};

/// `signals_when CONDITION SIGNALS COMMAND…` sends the signals, a tenth of a second apart, once the
/// condition holds; `kept NAME` says what became of D0.
const PRELUDE: &str = r#"
for drive in D0 D1; do bind-drive $drive none; done
for drive in D0 D1; do bind-drive $drive nvme; done
a=$(drive D0 address) b=$(drive D1 address) device=/sys/bus/pci/devices/$(drive D0 address)
cat >/bin/signals_when <<'END'
#!/bin/sh
condition=$1 signals=$2; shift 2
(until eval "$condition"; do :; done; for signal in $signals; do kill -s $signal $$; sleep 0.1; done) >/dev/null 2>&1 &
exec "$@"
END
chmod +x /bin/signals_when
is() { [ "$(drive D0 driver)" = "$1" ]; }
with() { link=$(readlink $device/driver); [ "${link##*/}" = "$1" ]; }
kept() { echo "kept|$1|$status|$(drive D0 driver)|$(cat $device/driver_override)|$(drive D0 node)|$(ls /run/nvpoll 2>/dev/null | tr '\n' ' ')|$(tail -n 1 /tmp/e)"; }
try() { name=$1; shift; status=0; "$@" >/tmp/o 2>/tmp/e || status=$?; kept $name; }
# Pages pinned for devices; the kernel adds its processors' counts up when it is asked to.
pinned() { cat /proc/sys/vm/stat_refresh; awk '/^nr_foll_pin_acquired/ {a = $2} /^nr_foll_pin_released/ {r = $2} END {print a - r}' /proc/vmstat; }
cut_off() { until is vfio-pci; do sleep 0.05; done; sleep 1.5; printf '\002\004' | dd of=$device/config bs=1 seek=4 conv=notrunc 2>/dev/null; }
compare="nvpoll compare $a --engines vfio --rw randread --rounds 1 --ramp-time 0 --runtime"
export device; DRIVER='link=$(readlink $device/driver); link=${link##*/}'
"#;

/// One line of `kept`: its name, status, driver, override, node, files under /run/nvpoll, stderr.
struct Kept<'a>(Vec<&'a str>);

impl<'a> Kept<'a> {
    #[track_caller]
    fn of(ran: &'a Ran, name: &str) -> Self {
        let lines = ran.stdout.lines().map(|line| line.split('|').collect::<Vec<_>>());
        let mut found = lines.filter(|parts| parts[0] == "kept" && parts[1] == name);
        Self(found.next().unwrap_or_else(|| panic!("no line of {name}")))
    }

    fn status(&self) -> &str {
        self.0[2]
    }

    fn said(&self) -> &str {
        self.0[7]
    }

    /// Driver, override, node and what is left under /run/nvpoll are as before the command.
    #[track_caller]
    fn is_as_it_was(&self) {
        assert_eq!(self.0[3..7], ["nvme", "(null)", "/dev/nvme0n1", ""], "{:?}", self.0);
    }
}

#[track_caller]
fn said(ran: &Ran, words: &str) {
    assert!(ran.stdout.contains(words), "{words:?} was not said");
}

const SIGNALS: &str = r#"
try record signals_when "[ -e /run/nvpoll/$a.json ]" INT $compare 3
try taking signals_when "$DRIVER; [ \"\$link\" != nvme ]" TERM $compare 3
try taken signals_when "$DRIVER; [ \"\$link\" = vfio-pci ]" HUP $compare 3
try running signals_when "$DRIVER; [ \"\$link\" = vfio-pci ] && sleep 1.5" "INT INT TERM" $compare 20
try giving signals_when "$DRIVER; [ \"\$link\" = vfio-pci ] && bound=1; [ -n \"\$bound\" ] && [ \"\$link\" != vfio-pci ]" "TERM INT" $compare 1

try bind signals_when "$DRIVER; [ \"\$link\" != nvme ]" INT nvpoll bind $a
try unbind signals_when "$DRIVER; [ \"\$link\" != vfio-pci ]" TERM nvpoll unbind $a
try bind-killed signals_when "[ -e /run/nvpoll/$a.json ]" KILL nvpoll bind $a
sleep 1; try bind-killed-repaired nvpoll unbind --all
# The same state, made by hand: handed over, and no driver has it.
nvpoll bind $a >/dev/null; echo $a >$device/driver/unbind
nvpoll list 2>&1 >/dev/null | sed 's/^/half-way|/'
try repaired nvpoll unbind --all

# Nothing leaks when it is killed while it runs.
echo "pinned|$(pinned)"
(until is vfio-pci; do sleep 0.05; done; sleep 0.7; echo "pinned|$(pinned)") &
try killed signals_when "$DRIVER; [ \"\$link\" = vfio-pci ] && sleep 1.5" KILL $compare 20
sleep 0.5; echo "pinned|$(pinned)"
try killed-second nvpoll bind $a
try killed-repaired nvpoll unbind --all

# Two processes: on two drives side by side; on one drive the second is told.
nvpoll compare $b --engines vfio --rw randread --rounds 1 --ramp-time 0 --runtime 3 >/tmp/b 2>&1 & other=$!
until [ "$(drive D1 driver)" = vfio-pci ]; do sleep 0.05; done
try side-by-side $compare 1
try second nvpoll bind $b; echo "other|$other"
s=0; wait $other || s=$?; echo "beside|$s|$(drive D1 driver)"; [ $s = 0 ] || cat /tmp/b
nvpoll bind $b >/dev/null
nvpoll run $b --runtime 3 --ramp-time 0 >/dev/null 2>&1 & other=$!
sleep 1.5; echo "other|$other"
try run-second nvpoll run $b --runtime 1
try unbind-second nvpoll unbind $b
s=0; wait $other || s=$?; echo "ran|$s"; nvpoll unbind $b >/dev/null

# No driver goes back to none.
bind-drive D1 none
nvpoll compare $b --engines vfio --rw randread --rounds 1 --ramp-time 0 --runtime 1 >/dev/null
nvpoll bind $b >/dev/null; nvpoll unbind $b; echo "none|$(drive D1 driver)|$(cat /sys/bus/pci/devices/$b/driver_override)"
bind-drive D1 nvme
"#;

#[test]
fn signals_kills_and_neighbours_at_each_phase() {
    let ran = Lab::new()
        .drive("serial=D0,size=64M")
        .drive("serial=D1,size=64M")
        .sh(&format!("{PRELUDE}{SIGNALS}"));
    ran.is_fine();
    for name in [
        "record",
        "taking",
        "taken",
        "running",
        "giving",
        "unbind",
        "bind-killed-repaired",
        "repaired",
    ] {
        Kept::of(&ran, name).is_as_it_was();
    }
    for name in ["record", "taking", "taken", "running"] {
        assert_eq!(Kept::of(&ran, name).status(), "1", "{name}: a stopped run ends with 1");
    }
    let bind = Kept::of(&ran, "bind");
    assert_eq!(
        bind.0[2..5],
        ["0", "vfio-pci", "(null)"],
        "a drive is not left between two drivers"
    );
    said(
        &ran,
        "half-way|nvpoll: warning: 0000:00:04.0 (QEMU NVMe Ctrl, serial D0) is on no driver",
    );
    let pinned = ran.stdout.lines().filter_map(|line| line.strip_prefix("pinned|"));
    let pinned: Vec<i64> = pinned.map(|pages| pages.parse().expect("a number")).collect();
    let leaves_nothing = pinned.len() == 3 && pinned[0] == pinned[2] && pinned[1] > pinned[0];
    assert!(leaves_nothing, "pages pinned before, in and after a killed run: {pinned:?}");
    assert_eq!(Kept::of(&ran, "killed").status(), "137");
    let second = Kept::of(&ran, "killed-second");
    assert!(second.status() == "3" && second.said().contains("gone without giving it back"));
    Kept::of(&ran, "killed-repaired").is_as_it_was();
    assert_eq!(Kept::of(&ran, "side-by-side").status(), "0");
    Kept::of(&ran, "side-by-side").0[3..6].iter().zip(["nvme", "(null)"]).for_each(|(a, b)| {
        assert_eq!(*a, b, "side by side");
    });
    let mut others = ran.stdout.lines().filter_map(|line| line.strip_prefix("other|"));
    let first = format!("nvpoll (pid {})", others.next().expect("a pid"));
    let second = format!("nvpoll (pid {})", others.next().expect("a pid"));
    for (name, who) in [("second", &first), ("run-second", &second), ("unbind-second", &second)] {
        let kept = Kept::of(&ran, name);
        assert!(kept.status() == "3" && kept.said().contains(who.as_str()), "{name}: {:?}", kept.0);
    }
    said(&ran, "beside|0|nvme");
    said(&ran, "ran|0");
    said(&ran, "none||(null)");
    println!(
        "checked: signals at 7 phases, kills in bind and in a run, nothing leaks, two processes, no driver stays none"
    );
}

const TROUBLE: &str = r#"
# Half-way failure: writes to these files bind nothing.
touch /tmp/nothing
mount --bind /tmp/nothing /sys/bus/pci/drivers_probe
mount --bind /tmp/nothing /sys/bus/pci/drivers/vfio-pci/bind
try half-way nvpoll bind $a
umount /sys/bus/pci/drivers/vfio-pci/bind; umount /sys/bus/pci/drivers_probe

# Records that are not to be believed: nothing is taken, and the file is named.
mkdir -p /run/nvpoll; chmod 777 /run/nvpoll; try world nvpoll bind $a; chmod 755 /run/nvpoll
chown 1000 /run/nvpoll; try owner nvpoll bind $a; rm -r /run/nvpoll
mkdir /tmp/evil; ln -s /tmp/evil /run/nvpoll; try link nvpoll bind $a; ls /tmp/evil; rm /run/nvpoll
mkdir /run/nvpoll; echo '{"version": 1' >/run/nvpoll/$a.json
try malformed nvpoll bind $a
try malformed-unbind nvpoll unbind --all
echo x >/tmp/evil/x; ln -sf /tmp/evil/x /run/nvpoll/$a.json; try record-link nvpoll bind $a; rm -r /run/nvpoll
ln -s /etc/passwd /tmp/lock; mkdir /run/nvpoll; ln -s /tmp/lock /run/nvpoll/$a.lock
try lock-link nvpoll bind $a; echo "passwd|$(head -n 1 /etc/passwd)"; rm -r /run/nvpoll
nvpoll bind $a >/dev/null; stat -c 'mode|%a %u %n' /run/nvpoll /run/nvpoll/*
sed -i 's/"boot_id": ".*"/"boot_id": "00000000-0000-0000-0000-000000000000"/' /run/nvpoll/$a.json
nvpoll unbind $a | sed 's/^/boot|/'; nvpoll unbind $a --to nvme >/dev/null; try other-boot true

# A slot whose functions the IOMMU cannot tell apart.
g=$(drive G0 address)
try group nvpoll bind $g
bind-drive G1 none; nvpoll bind $g >/dev/null && echo "group|$(drive G0 driver)|$(drive G1 driver)"
nvpoll unbind $g >/dev/null; bind-drive G1 nvme; echo "group|$(drive G0 driver)|$(drive G1 driver)"

# The controller fails in the middle, since it reaches no memory any more: the run ends by itself.
cut_off & try cut-off timeout 60 $compare 30

# The drive vanishes in the middle: nothing is left of it.
h=$(drive HOT address)
(until [ "$(drive HOT driver)" = vfio-pci ]; do sleep 0.05; done; sleep 1; host unplug HOT) & s=0
timeout 150 nvpoll compare $h --engines vfio --rw randread --rounds 1 --runtime 60 --ramp-time 0 >/tmp/o 2>/tmp/e || s=$?
echo "vanished|$s|$(ls /run/nvpoll)|$(tr '\n' ' ' </tmp/e)"
"#;

#[test]
fn a_kernel_that_refuses_tampered_records_groups_and_drives_that_vanish() {
    let ran = Lab::new()
        .drive("serial=D0,size=64M")
        .drive("serial=D1,size=64M")
        .drive("serial=G0,size=16M")
        .drive("serial=G1,size=16M,with=G0")
        .drive("serial=HOT,size=64M,port=hot")
        .sh(&format!("{PRELUDE}{TROUBLE}"));
    ran.is_fine();
    let half_way = Kept::of(&ran, "half-way");
    assert!(half_way.status() == "1" && half_way.said().contains("(the drive is as it was found)"));
    half_way.is_as_it_was();
    for (name, words) in [
        ("world", "others may write this (mode 777)"),
        ("owner", "this belongs to user 1000"),
        ("link", "this is a symbolic link"),
        ("malformed", "this is no record"),
        ("record-link", "this is no file"),
    ] {
        let kept = Kept::of(&ran, name);
        assert_eq!(kept.status(), "3", "{name}: {:?}", kept.0);
        assert!(kept.said().contains("/run/nvpoll") && kept.said().contains(words), "{:?}", kept.0);
        assert_eq!(kept.0[3..6], ["nvme", "(null)", "/dev/nvme0n1"], "{name}");
    }
    assert_eq!(Kept::of(&ran, "malformed-unbind").status(), "3");
    let lock = Kept::of(&ran, "lock-link");
    assert!(
        lock.status() == "3" && lock.said().contains("this is a symbolic link"),
        "{:?}",
        lock.0
    );
    said(&ran, "passwd|root:x:0:0:root:/root:/bin/sh");
    for mode in ["755 0 /run/nvpoll", "600 0 /run/nvpoll/0000:00:04.0.lock"] {
        said(&ran, &format!("mode|{mode}"));
    }
    said(&ran, "mode|644 0 /run/nvpoll/0000:00:04.0.json");
    said(&ran, "boot|0000:00:04.0: taken before the last boot; nothing to do");
    Kept::of(&ran, "other-boot").is_as_it_was();
    let group = Kept::of(&ran, "group");
    assert_eq!(group.status(), "2", "VFIO cannot open such a group, whatever is allowed");
    assert!(group.said().contains("0000:00:06.1 (class 010802) on nvme"), "{:?}", group.0);
    said(&ran, "group|vfio-pci|\ngroup|nvme|nvme");
    let cut_off = Kept::of(&ran, "cut-off");
    assert!(cut_off.status() == "1" && cut_off.said().contains("a fatal error"), "{:?}", cut_off.0);
    cut_off.is_as_it_was();
    said(&ran, "vanished|1||");
    said(&ran, "asks for the drive back");
    println!(
        "checked: a bind that fails half-way, 8 kinds of tampering, a group of two, a controller that fails, a drive that vanishes"
    );
}
