//! `--rate-iops`: an open load keeps its rate, counts latency from when an I/O was due, and says when the
//! drive could not keep up.

use serde_json::Value;
use std::process::Command;

fn run(arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    let rest = ["--runtime", "1", "--ramp-time", "100ms", "--json", "-"];
    let output = command.arg("run").args(arguments).args(rest).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    result["rows"][0].clone()
}

fn marks(row: &Value) -> Vec<&str> {
    row["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap()).collect()
}

#[test]
fn a_rate_is_kept_per_worker() {
    for process in ["linear", "poisson"] {
        let row =
            run(&["null", "--rate-iops", "2000", "--rate-process", process, "--iodepth", "16"]);
        let iops = row["iops"]["mean"].as_f64().unwrap();
        // Other tests want the same processor: what falls due while it is away at the window's end
        // does not count. Its own test has the arrivals' mean.
        assert!((iops - 2000.0).abs() < 300.0, "{process}: {iops}");
        assert_eq!(row["workload"]["rate_iops"], 2000);
        assert_eq!(row["workload"]["rate_process"], process);
        assert!(!marks(&row).contains(&"depth-not-kept"), "{:?}", marks(&row));
    }
}

/// Twice as much as the drive does: what is due waits, ever longer, and the row says so.
#[test]
fn too_much_is_marked_and_its_waiting_is_in_the_latencies() {
    let row = run(&["soft:size=64m,iops=1k", "--rate-iops", "2000", "--iodepth", "4"]);
    assert!(marks(&row).contains(&"rate-missed"), "{:?}", marks(&row));
    assert!(!marks(&row).contains(&"littles-law"), "{:?}", marks(&row));
    // At the end of a second half of what was due still waits: the last ones waited half a second.
    let p99 = row["lat_ns"]["p99"].as_u64().unwrap();
    assert!(p99 > 300_000_000, "{p99}");
    let closed = run(&["soft:size=64m,iops=1k", "--iodepth", "4"]);
    let p99 = closed["lat_ns"]["p99"].as_u64().unwrap();
    assert!(p99 < 200_000_000, "a closed loop waits for four I/Os: {p99}");
}
