//! `--suite`: built-in lists, TOML files and fio job files give the rows that they say, on any number of
//! drives, and what cannot be followed stops the command before anything runs.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SOFT: [&str; 2] = ["soft:size=64m,serial=A", "soft:size=64m,serial=B"];

fn nvpoll(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    command.current_dir(folder).args(arguments).output().unwrap()
}

fn measured(folder: &Path, arguments: &[&str]) -> (Value, String) {
    let arguments = [arguments, &["--json", "-"]].concat();
    let output = nvpoll(folder, &arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    (serde_json::from_slice(&output.stdout).unwrap(), errors)
}

fn names(result: &Value) -> Vec<&str> {
    let rows = result["rows"].as_array().unwrap().iter();
    rows.map(|row| row["workload"]["name"].as_str().unwrap()).collect()
}

#[test]
fn the_review_runs_on_several_drives_as_one_system() {
    let folder = tempfile::tempdir().unwrap();
    let short = ["--suite", "review", "--number-ios", "200"];
    let (result, _) = measured(folder.path(), &[&["run", SOFT[0], SOFT[1]][..], &short].concat());
    assert_eq!(result["plan"]["suite"], "review");
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!(row["ios"], 400, "200 of each drive's worker");
        assert_eq!(row["in_flight_asked"], 64.0);
        let by_drive = row["iops_by_drive"].as_array().unwrap();
        let each: Vec<f64> = by_drive.iter().map(|iops| iops["mean"].as_f64().unwrap()).collect();
        assert_eq!(each.len(), 2);
        assert!(each.iter().all(|iops| *iops > 0.0), "{each:?}");
        let iops = row["iops"]["mean"].as_f64().unwrap();
        let sum: f64 = each.iter().sum();
        assert!((sum / iops - 1.0).abs() < 1e-9, "the drives' sum: {sum} and {iops}");
        let rounds = row["rounds"].as_array().unwrap();
        assert_eq!(rounds[0]["iops_by_drive"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn a_toml_file_says_what_runs_and_the_command_line_goes_before_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("mine.toml"),
        "number_ios = 50\n[defaults]\niodepth = 4\nsize = \"1m\"\n\
         [[workload]]\nname = \"pages\"\nrw = \"randread\"\nbs = \"8k\"\n\
         [[workload]]\nrw = \"read\"\nseed = 7\n",
    )
    .unwrap();
    let run = ["run", SOFT[0], "--suite", "mine.toml"];
    let (result, _) = measured(folder.path(), &run);
    assert_eq!(names(&result), ["pages", "read-4k-qd4"]);
    let pages = &result["rows"][0];
    assert_eq!((&pages["ios"], &pages["workload"]["bs"]), (&50.into(), &8192.into()));
    assert_eq!(result["rows"][1]["workload"]["seed"], 7);
    let typed = ["--number-ios", "10", "--randseed", "9", "--size", "2m"];
    let (result, _) = measured(folder.path(), &[&run[..], &typed].concat());
    for row in result["rows"].as_array().unwrap() {
        let workload = &row["workload"];
        let seen = (&row["ios"], &workload["seed"], &workload["size"], &workload["iodepth"]);
        assert_eq!(seen, (&10.into(), &9.into(), &(2 << 20).into(), &4.into()));
    }
}

#[test]
fn a_fio_file_runs_job_by_job_and_says_what_it_does_in_another_way() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("disk"), vec![7; 1 << 20]).unwrap();
    fs::write(
        folder.path().join("jobs.fio"),
        "[global]\nioengine=libaio\ndirect=1\ntime_based\nruntime=1\nnumber_ios=40\nfilename=./disk\n\
         [small]\nrw=randread\nbs=4k\n[large]\nstonewall\nrw=read\nbs=64k\n",
    )
    .unwrap();
    let run = ["run", "disk", "--engine", "psync", "--suite", "jobs.fio"];
    let (result, errors) = measured(folder.path(), &run);
    assert_eq!(names(&result), ["small", "large"]);
    assert_eq!(result["rows"][1]["workload"]["bs"], 65536);
    assert!(errors.contains("note: jobs.fio: ioengine=libaio is not followed"), "{errors}");
}

/// Never to what the file names.
#[test]
fn what_a_fio_file_names_is_no_target_unless_the_command_line_names_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("precious"), vec![7; 1 << 20]).unwrap();
    let job = "[wipe]\ndirect=1\ntime_based\nfilename=precious\nrw=write\n";
    fs::write(folder.path().join("jobs.fio"), job).unwrap();
    let run = ["run", SOFT[0], "--suite", "jobs.fio", "--destroy-data", "precious"];
    let output = nvpoll(folder.path(), &run);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("jobs.fio:4: filename=precious is no target"), "{errors}");
    assert_eq!(fs::read(folder.path().join("precious")).unwrap(), vec![7; 1 << 20]);
    let output = nvpoll(
        folder.path(),
        &["run", "precious", SOFT[0], "--engine", "psync", "--suite", "jobs.fio"],
    );
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("jobs.fio:4: filename leaves out soft"), "{errors}");
}

#[test]
fn an_unknown_key_stops_everything_by_file_line_and_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.fio"), "[a]\nrw=read\niodpeth=3\n").unwrap();
    fs::write(folder.path().join("bad.toml"), "[[workload]]\nrw = \"read\"\niodpeth = 3\n")
        .unwrap();
    for name in ["bad.fio", "bad.toml"] {
        let output = nvpoll(folder.path(), &["run", SOFT[0], "--suite", name]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(output.stdout.is_empty());
        let line = format!("nvpoll: --suite: {name}:3: ");
        assert!(errors.starts_with(&line) && errors.contains("iodpeth"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}
