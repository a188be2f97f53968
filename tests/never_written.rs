//! Reads of what was never written are marked, where it can be known.

use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

fn marks(folder: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    let rest = ["--number-ios", "50", "--json", "-"];
    let output =
        command.current_dir(folder).arg("run").args(arguments).args(rest).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let marks = result["rows"][0]["marks"].as_array().unwrap();
    let of_kind = marks.iter().filter(|mark| mark["kind"] == "never-written");
    of_kind.map(|mark| mark["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_soft_drive_in_memory_and_a_file_with_holes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    let mut whole = File::create(folder.join("whole")).unwrap();
    whole.write_all(&vec![7; 1 << 20]).unwrap();
    whole.sync_all().unwrap();
    let psync = ["--engine", "psync"];
    let of = |arguments: &[&str]| marks(folder, arguments).join("; ");
    assert!(of(&["soft"]).starts_with("soft is new for each measurement"));
    assert!(of(&["soft", "--rw", "randrw"]).starts_with("soft is new"));
    assert_eq!(of(&["soft", "--rw", "randwrite"]), "");
    assert_eq!(of(&["soft:backing=file,file=whole,size=1m"]), "");
    assert_eq!(of(&["null"]), "");
    let text = of(&[&["sparse"][..], &psync].concat());
    assert!(text.starts_with("100 % of sparse was never written"), "{text}");
    assert_eq!(of(&[&["whole"][..], &psync].concat()), "");
}
