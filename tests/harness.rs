//! What the harness itself takes is measured beside every workload, whatever that waits for.

use serde_json::Value;
use std::process::Command;

fn row(arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    command.arg("run").args(arguments).args(["--number-ios", "200", "--json", "-"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    result["rows"][0].clone()
}

/// Nanoseconds with the whole depth a pass, and with one I/O.
fn harness_ns(row: &Value) -> [f64; 2] {
    ["batched", "one_by_one"].map(|of| row["harness_ns_per_io"][of]["mean"].as_f64().unwrap())
}

#[test]
fn a_pass_costs_more_where_it_brings_one_io() {
    // By a busy machine one of both may be displaced; not each time.
    let is_less = |_| {
        let [batched, one_by_one] = harness_ns(&row(&["soft", "--iodepth", "64"]));
        assert!(batched > 0.0 && one_by_one > 0.0, "{batched} {one_by_one}");
        batched < one_by_one
    };
    assert!((0..20).any(is_less));
    let [batched, one_by_one] = harness_ns(&row(&["soft", "--iodepth", "1"]));
    assert_eq!(batched, one_by_one, "one pass at a depth of 1 is the other");
}

/// An open load of 1,000 a second waits for 1 ms an I/O, and a think time of 1 ms likewise.
#[test]
fn waiting_is_no_work_of_the_harness() {
    for paced in [["--rate-iops", "1000"], ["--thinktime", "1ms"]] {
        let costs = harness_ns(&row(&[&["soft"], &paced[..]].concat()));
        assert!(costs.iter().all(|ns| *ns < 100_000.0), "{paced:?}: {costs:?}");
    }
}

/// The engine that moves nothing has 16 TiB, and a job's ranges and zones may be anywhere.
#[test]
fn a_range_that_it_does_not_have_is_no_reason_to_fail() {
    let ranges: [&[&str]; 3] = [
        &["soft:size=40t,backing=null", "--offset", "20t", "--size", "10t"],
        &["soft:size=40t,backing=null", "--numjobs", "2", "--offset-increment", "18t"],
        &["soft:size=40t,backing=null", "--random-distribution", "zoned_abs:50/20t:50/20t"],
    ];
    for arguments in ranges {
        let row = row(arguments);
        assert_eq!(row["errors"], 0, "{arguments:?}");
        let is_known = row["harness_ns_per_io"].is_object();
        assert_eq!(is_known, !arguments.contains(&"--random-distribution"), "{arguments:?}");
    }
}

#[test]
fn of_the_engine_that_moves_nothing_the_row_itself_is_it() {
    let row = row(&["null"]);
    assert!(row.get("harness_ns_per_io").is_some_and(Value::is_null), "{row}");
}
