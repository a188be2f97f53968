//! `nvpoll rerun`: the plan in a result runs again as it stands there, what came out is held against what
//! came out then, and no leave to write is taken from a file.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn nvpoll(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    command.current_dir(folder).args(arguments).output().unwrap()
}

fn ok(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

#[test]
fn the_same_plan_runs_and_old_and_new_stand_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let soft = "soft:size=64m,iops=20k";
    let compare = ["compare", soft, "--engines", "soft", "--rw", "randread", "--bs", "8k"];
    let times = ["--iodepth", "4", "--rounds", "3", "--runtime", "200ms", "--ramp-time", "50ms"];
    let rest = ["--randseed", "5", "--json", "old.json"];
    ok(&nvpoll(folder, &[&compare[..], &times, &rest].concat()));
    let text = ok(&nvpoll(folder, &["rerun", "old.json", "--json", "new.json"]));
    let (old, new) = (json(folder, "old.json"), json(folder, "new.json"));
    assert_eq!(old["plan"], new["plan"]);
    assert_eq!(new["rows"][0]["rounds"].as_array().unwrap().len(), 3);
    assert_eq!(new["rows"][0]["workload"]["seed"], 5);
    assert!(text.starts_with("nvpoll rerun: old.json, measured 20"), "{text}");
    for part in ["A  old.json", "B  new.json", "Environment", "Figures, B against A"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let figures = text.split("Figures, B against A").nth(1).unwrap();
    // Which of the two it is, is the machine's to say.
    let said = figures.contains("not distinguishable (")
        || figures.contains(": x ")
        || figures.contains(", x ");
    assert!(figures.contains(" -> ") && said, "{figures}");
}

#[test]
fn leave_to_write_is_not_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("disk"), vec![7; 1 << 20]).unwrap();
    let run = ["run", "disk", "--engine", "psync", "--rw", "write", "--number-ios", "10"];
    let leave = ["--destroy-data", "disk"];
    ok(&nvpoll(folder, &[&run[..], &leave, &["--json", "old.json"]].concat()));
    fs::write(folder.join("disk"), vec![7; 1 << 20]).unwrap();
    let refused = nvpoll(folder, &["rerun", "old.json"]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{errors}");
    assert!(errors.contains("--destroy-data disk"), "{errors}");
    assert_eq!(fs::read(folder.join("disk")).unwrap(), vec![7; 1 << 20]);
    ok(&nvpoll(folder, &[&["rerun", "old.json"][..], &leave].concat()));
    assert_ne!(fs::read(folder.join("disk")).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn what_is_no_result_or_would_be_overwritten_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("other.json"), "{}").unwrap();
    ok(&nvpoll(folder, &["run", "null", "--number-ios", "10", "--json", "old.json"]));
    let mut strange = json(folder, "old.json");
    strange["plan"]["stacks"][0]["engine"] = "warp".into();
    fs::write(folder.join("strange.json"), strange.to_string()).unwrap();
    strange["plan"] = Value::Null;
    fs::write(folder.join("empty.json"), strange.to_string()).unwrap();
    for (arguments, what) in [
        (&["rerun", "missing.json"][..], "missing.json: cannot read the result"),
        (&["rerun", "other.json"], "other.json: it names no schema"),
        (&["rerun", "strange.json"], "strange.json: "),
        (&["rerun", "empty.json"], "empty.json: this version cannot run its plan again"),
        (&["rerun", "old.json", "--json", "old.json"], "--json old.json: this is the result"),
        (&["rerun", "old.json", "--json", "-"], "--json -: rerun puts its comparison on stdout"),
    ] {
        let output = nvpoll(folder, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.starts_with(&format!("nvpoll: {what}")), "{arguments:?}: {errors}");
    }
}
