//! The second-by-second series is of the very I/Os that the row counts.

use serde_json::Value;
use std::process::Command;

fn row(arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    let output = command.arg("run").args(arguments).args(["--json", "-"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    result["rows"][0].clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// In each of the three loops, over workers and targets: every second has its I/Os, and none is lost.
#[test]
fn seconds_add_up_to_the_row() {
    let depth = |depth| ["--iodepth", depth];
    let split = ["--bssplit", "4k/50:8k/50"];
    for more in [&depth("1")[..], &[&depth("8")[..], &["--numjobs", "2"]].concat(), &split] {
        let base = ["soft:size=8m,iops=20k", "soft:size=8m,iops=20k", "--rw", "randread"];
        let row = row(&[&base, more, &["--ramp-time", "100ms", "--runtime", "2300ms"]].concat());
        let round = &row["rounds"][0];
        let series = &round["series"];
        let sum = |name: &str| series[name].as_array().unwrap().iter().map(number).sum::<f64>();
        assert_eq!(series["step_s"], 1.0, "{more:?}");
        assert_eq!(series["ios"].as_array().unwrap().len(), 3, "{more:?}: {series}");
        assert_eq!(sum("ios"), number(&row["ios"]), "{more:?}");
        let bytes = number(&row["bw_bytes"]["mean"]) * number(&row["elapsed_s"]);
        assert!((sum("bytes") / bytes - 1.0).abs() < 1e-6, "{more:?}: {series}");
        let longest =
            series["lat_max_ns"].as_array().unwrap().iter().map(number).fold(0.0, f64::max);
        assert!((longest - number(&row["lat_ns"]["max"])).abs() <= 1.0, "{more:?}: {series}");
        let ios = series["ios"].as_array().unwrap();
        let latencies = series["lat_mean_ns"].as_array().unwrap().iter().zip(ios);
        let all: f64 = latencies.map(|(mean, ios)| number(mean) * number(ios)).sum();
        let mean = all / number(&row["ios"]);
        assert!((mean / number(&row["lat_ns"]["mean"]) - 1.0).abs() < 1e-6, "{more:?}: {mean}");
    }
}
