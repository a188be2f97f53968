//! How the stacks' costs stand to each other in guest time, which `--icount` counts in instructions.

use crate::machine::Lab;
use serde_json::Value;
use std::fs;

/// The bypass is to reach this many times the kernel paths' rate.
const RATIO_MIN: f64 = 2.5;

const STACKS: [&str; 3] = ["userspace vfio", "Linux io_uring", "Linux libaio"];

/// Rate and processor time an I/O of each stack, in the order of [`STACKS`].
fn figures(result: &Value) -> Vec<(f64, f64)> {
    let rows = result["rows"].as_array().unwrap();
    let row = |stack: &&str| rows.iter().find(|row| row["stack"] == **stack).expect(stack);
    let figures = |row: &Value| {
        assert_eq!(row["errors"], 0, "{}", row["stack"]);
        let iops = row["iops"]["mean"].as_f64().unwrap();
        (iops, row["cpu"]["ns_per_io"].as_f64().unwrap())
    };
    STACKS.iter().map(row).map(figures).collect()
}

/// A drive without media, so that what is left is the stacks' work and QEMU's controller. While
/// the guest's processor works, its clock counts 2 ns an instruction; while it sleeps, the clock is
/// the host's, so QEMU's own work on a request is in the sleeping stacks' time. The ratio of processor
/// time, which is printed and not asserted, leaves that out; but the polling stack's contains its
/// waiting for QEMU's thread, and so moves with the load of the host.
#[test]
fn the_bypass_is_2_5_times_as_fast_as_the_kernels_paths_in_guest_time() {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let share = format!("{}:/mnt/out", out.display());
    let lab = lab.with("--share", &share).flag("--icount").drive("serial=D0,size=1G,backing=null");
    let ran = lab.sh("a=$(drive D0 address); for depth in 1 32; do
         nvpoll compare $a --engines vfio,io_uring,libaio --rounds 1 --rw randread --bs 4k --iodepth $depth \
           --runtime 300ms --ramp-time 50ms --json /mnt/out/$depth.json
         done");
    ran.is_fine();
    for depth in [1, 32] {
        let text = fs::read_to_string(out.join(format!("{depth}.json"))).unwrap();
        let figures = figures(&serde_json::from_str(&text).unwrap());
        let (vfio, kernel) = figures.split_first().unwrap();
        for ((iops, cpu), stack) in kernel.iter().zip(&STACKS[1..]) {
            let (rate, work) = (vfio.0 / iops, cpu / vfio.1);
            println!(
                "checked: depth {depth}: vfio {:.0} IOPS, {:.0} ns of processor an I/O; {stack} {iops:.0}, {cpu:.0} ns; ratios {rate:.1} and {work:.1}",
                vfio.0, vfio.1
            );
            assert!(rate >= RATIO_MIN, "depth {depth}: {rate:.2} times {stack}'s rate");
        }
    }
}
