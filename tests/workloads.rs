//! What a workload may be beyond a plain pattern: sizes that differ, hot spots, think times, ranges of
//! their own, content that is checked.

use serde_json::Value;
use std::process::{Command, Output};

fn nvpoll(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvpoll")).args(arguments).output().unwrap()
}

fn row(arguments: &[&str]) -> Value {
    let output = nvpoll(&[&["run"], arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    result["rows"][0].clone()
}

fn refusal(arguments: &[&str]) -> String {
    let output = nvpoll(&[&["run", "null"], arguments].concat());
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Bandwidth of sizes that differ is counted, of each direction by itself.
#[test]
fn a_split_of_sizes() {
    let row = row(&[
        "soft:size=64m",
        "--rw",
        "randrw",
        "--bssplit",
        "4k/60:64k/40,8k",
        "--iodepth",
        "8",
        "--number-ios",
        "20000",
    ]);
    assert_eq!(
        (&row["workload"]["bssplit"], &row["errors"]),
        (&"4k/60:64k/40,8k/100".into(), &0.into())
    );
    assert_eq!(row["workload"]["bs"], 65536);
    assert_eq!(row["workload"]["name"], "randrw-split-qd8");
    let mean = |side: &Value| number(&side["bw_bytes"]["mean"]) / number(&side["iops"]["mean"]);
    let reads = mean(&row["read"]) / (0.6 * 4096.0 + 0.4 * 65536.0);
    assert!((reads - 1.0).abs() < 0.03, "{reads}");
    assert!((mean(&row["write"]) - 8192.0).abs() < 0.01);
    let both = number(&row["bw_bytes"]["mean"]);
    let sum = number(&row["read"]["bw_bytes"]["mean"]) + number(&row["write"]["bw_bytes"]["mean"]);
    assert!((both / sum - 1.0).abs() < 1e-9);
}

/// With 2 ms of thought after four I/Os at most 2,000 a second are possible; a busy machine does fewer.
#[test]
fn think_times() {
    for target in ["null", "soft:size=64m"] {
        let row = row(&[
            target,
            "--thinktime",
            "2ms",
            "--thinktime-blocks",
            "4",
            "--iodepth",
            "2",
            "--runtime",
            "500ms",
            "--ramp-time",
            "0",
        ]);
        let iops = number(&row["iops"]["mean"]);
        assert!((20.0..2050.0).contains(&iops), "{target}: {iops}");
        // A soft drive's thread may be kept waiting by a busy machine.
        let in_flight = number(&row["in_flight_mean"]);
        assert!(target != "null" || in_flight < 1.0, "{target}: {in_flight}");
        let marks = row["marks"].to_string();
        assert!(!marks.contains("depth-not-kept") && !marks.contains("littles-law"), "{marks}");
    }
}

#[test]
fn distributions_and_ranges_run() {
    for distribution in ["zipf:1.2", "pareto:0.2", "normal:10", "zoned:80/20:20/80"] {
        let row = row(&["null", "--random-distribution", distribution, "--number-ios", "1000"]);
        assert_eq!(row["workload"]["random_distribution"], distribution);
        assert_eq!((&row["ios"], &row["errors"]), (&1000.into(), &0.into()));
    }
    let row = row(&[
        "null",
        "--rw",
        "read",
        "--numjobs",
        "4",
        "--offset-increment",
        "25%",
        "--number-ios",
        "100",
    ]);
    assert_eq!((&row["ios"], &row["errors"]), (&400.into(), &0.into()));
}

/// Several workers at depth, mixed, with flushes: everything is what was written.
#[test]
fn content_is_checked() {
    let row = row(&[
        "soft:size=8m",
        "--rw",
        "randrw",
        "--bs",
        "4k",
        "--iodepth",
        "8",
        "--numjobs",
        "2",
        "--fsync",
        "16",
        "--verify",
        "--number-ios",
        "4000",
    ]);
    let verified = &row["verified"];
    assert!(verified["checked"].as_u64().unwrap() > 2000, "{verified}");
    assert_eq!((&verified["wrong"], &verified["not_read"]), (&0.into(), &0.into()));
    let flushes = row["flush"]["count"].as_u64().unwrap();
    assert_eq!(row["ios"].as_u64().unwrap() + flushes, 8000, "what is read back does not count");
}

/// Nobody wrote the blocks of a new soft drive.
#[test]
fn wrong_content_is_named_and_fails_the_command() {
    let output = nvpoll(&["run", "soft:size=8m", "--verify", "--number-ios", "10", "--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &result["rows"][0];
    assert_eq!(row["verified"]["wrong"], 10);
    assert_eq!(result["rows"][0]["marks"][0]["kind"], "wrong-data");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("wrong data: 10 of 10 blocks"), "{errors}");
    assert!(errors.contains("holds nothing that --verify wrote"), "{errors}");
}

#[test]
fn what_cannot_be_done_together_is_refused() {
    for (arguments, what) in [
        (&["--bs", "4k", "--bssplit", "4k:8k"][..], "cannot be used with"),
        (&["--bssplit", "4k/50:8k/20"][..], "70 and not 100"),
        (&["--bssplit", "512:100"][..], "--bs 100"),
        (&["--suite", "quick", "--bssplit", "4k:8k"][..], "cannot be used with"),
        (&["--thinktime", "5", "--rate-iops", "10"][..], "--rate-iops"),
        (&["--thinktime-blocks", "0"][..], "--thinktime-blocks 0"),
        (&["--random-distribution", "zipf:-1"][..], "above 0"),
        (&["--buffer-compress-percentage", "101"][..], "at most 100"),
        (&["--verify", "--bssplit", "4k:6k"][..], "--verify: an I/O would end inside"),
        (&["--verify", "--zero-buffers"][..], "--verify: it fills"),
        (&["--verify"][..], "--verify keeps account"),
        (&["--numjobs", "4", "--offset-increment", "50%"][..], "past the target's end"),
    ] {
        let message = refusal(arguments);
        assert!(message.contains(what), "{arguments:?}: {message}");
    }
}

/// Two writes of everything and random rounds until steady, by the first stack, and each row says
/// whether its rounds were steady.
#[test]
fn targets_are_preconditioned() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let file = file.to_str().unwrap();
    let output = nvpoll(&[
        "compare",
        file,
        "--engines",
        "psync:buffered",
        "--rounds",
        "5",
        "--runtime",
        "50ms",
        "--ramp-time",
        "0",
        "--rw",
        "randread",
        "--precondition",
        "--destroy-data",
        file,
        "--json",
        "-",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let marks = result["marks"].as_array().unwrap();
    let mark = marks.iter().find(|mark| mark["kind"] == "preconditioned").expect("it is said");
    let text = mark["text"].as_str().unwrap();
    assert!(text.contains("2 sequential writes of the whole range, then "), "{text}");
    assert!(text.contains("steady: over the last 5 rounds"), "{text}");
    let steady = &result["rows"][0]["steady"];
    assert!(number(&steady["range_pct"]) >= 0.0 && steady["steady"].is_boolean(), "{steady}");
    // Not one byte of what was there is left.
    let content = std::fs::read(file).unwrap();
    assert!(content.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
}

#[test]
fn preconditioning_needs_leave_and_something_that_lasts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    let run = ["run", file.to_str().unwrap(), "--engine", "psync:buffered", "--precondition"];
    assert_eq!(nvpoll(&run).status.code(), Some(3), "not without --destroy-data");
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 7));
    let message = refusal(&["--precondition"]);
    assert!(message.contains("new for each measurement"), "{message}");
}

/// Sizes that differ and content that is checked: written, read back, and found again by a later run.
#[test]
fn content_of_several_sizes_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("target");
    std::fs::write(&file, vec![0; 4 << 20]).unwrap();
    let name = file.to_str().unwrap();
    let base =
        [name, "--engine", "io_uring:buffered", "--verify", "--iodepth", "8", "--numjobs", "2"];
    let run = |more: &[&str]| row(&[&base[..], more].concat());
    let split = ["--bssplit", "4k/50:16k/30:64k/20", "--number-ios", "3000"];
    let written = run(&[&["--rw", "randrw", "--destroy-data", name][..], &split].concat());
    let verified = &written["verified"];
    assert_eq!((&verified["wrong"], &written["errors"]), (&0.into(), &0.into()), "{verified}");
    assert!(number(&verified["checked"]) > 1024.0, "{verified}");
    let later = ["--rw", "randread", "--bssplit", "4k/10:8k/90", "--number-ios", "500"];
    let found = run(&later);
    assert_eq!(found["verified"]["wrong"], 0, "{}", found["verified"]);
    // One byte in 64 KiB.
    let mut content = std::fs::read(&file).unwrap();
    content.iter_mut().step_by(65_536).for_each(|byte| *byte ^= 1);
    std::fs::write(&file, content).unwrap();
    let output = nvpoll(&[&["run"], &base[..], &later].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the block of 4096 bytes at byte"), "{said}");
}
