//! The memory of a run: 16 workers at a depth of 128 and 4 KiB stay under 100 MiB.

#![cfg(unix)]

use nix::sys::resource::{UsageWho, getrusage};
use std::process::Command;

const RSS_MAX_BYTES: i64 = 100 << 20;

/// Most memory that any child so far has had resident.
fn children_rss_bytes() -> i64 {
    // In KiB (getrusage(2)).
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() * 1024
}

fn run(target: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_nvpoll"))
        .args(["run", target, "--rw", "randread", "--bs", "4k", "--iodepth", "128"])
        .args(["--numjobs", "16", "--runtime", "500ms", "--ramp-time", "100ms", "--json", "-"])
        .output()
        .unwrap();
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{target}: {errors}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let workload = &report["rows"][0]["workload"];
    assert_eq!((&workload["numjobs"], &workload["iodepth"]), (&16.into(), &128.into()), "{target}");
}

/// One test for all targets: what is measured is the most that any child has had.
#[test]
fn sixteen_workers_stay_under_100_mib() {
    for target in ["null", "soft", "soft:stepped"] {
        run(target);
        let bytes = children_rss_bytes();
        eprintln!("{target}: {} MiB", bytes >> 20);
        assert!(bytes > 1 << 20, "{bytes} bytes are less than any program needs");
        assert!(bytes < RSS_MAX_BYTES, "{target}: {bytes} bytes resident");
    }
}
