//! `nvpoll report`: files of every kind become one report, its words follow from its figures, and what
//! cannot be read is refused by name.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PUBLISHED: &str = "windows-vs-linux-2025.csv";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report").join(name)
}

fn report<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvpoll")).arg("report").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn written<S: AsRef<std::ffi::OsStr>>(format: &str, files: impl IntoIterator<Item = S>) -> String {
    let mut arguments = vec!["--format".into(), format.into()];
    arguments.extend(files.into_iter().map(|file| file.as_ref().to_owned()));
    text(&report(arguments))
}

fn json<S: AsRef<std::ffi::OsStr>>(files: impl IntoIterator<Item = S>) -> Value {
    serde_json::from_str(&written("json", files)).unwrap()
}

fn highlights(report: &Value) -> Vec<String> {
    let list = report["highlights"].as_array().unwrap();
    list.iter().map(|highlight| highlight["text"].as_str().unwrap().to_owned()).collect()
}

fn refused<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = report(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(output.stdout.is_empty());
    errors
}

/// A copy of the sample result, changed.
fn changed(folder: &Path, name: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut value: Value = serde_json::from_slice(&fs::read(data("sample.json")).unwrap()).unwrap();
    change(&mut value);
    let path = folder.join(name);
    fs::write(&path, value.to_string()).unwrap();
    path
}

/// (stack, workload) of the rows that Little's law refutes.
fn refuted(report: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for block in report["blocks"].as_array().unwrap() {
        for row in block["rows"].as_array().unwrap() {
            let marks = row["marks"].as_array().unwrap();
            if marks.iter().any(|mark| mark["kind"] == "littles-law") {
                let name = |value: &Value| value.as_str().unwrap().to_owned();
                found.push((name(&row["stack"]), name(&block["title"])));
            }
        }
    }
    found
}

#[test]
fn the_published_table_gives_the_published_highlights() {
    let report = json([data(PUBLISHED)]);
    let found = highlights(&report);
    for wanted in [
        "Windows leads Linux in 3 of 4 read workloads",
        "Windows native leads all others in 3 of 4 read workloads",
        "Linux leads Windows in 3 of 4 write workloads",
        "Windows native has the lowest CPU of all in 3 of 4 read workloads",
    ] {
        assert!(found.iter().any(|text| text.starts_with(wanted)), "{wanted}\n{found:#?}");
    }
    let one = |kind: &str, workload: &str| {
        let list = report["highlights"].as_array().unwrap();
        let is_it = |highlight: &&Value| {
            highlight["kind"] == kind && highlight["workloads"] == serde_json::json!([workload])
        };
        list.iter().find(is_it).unwrap().clone()
    };
    let against = |highlight: &Value, of: &str| {
        let list = highlight["against"].as_array().unwrap();
        list.iter().find(|against| against["of"] == of).unwrap()["value"].as_f64().unwrap()
    };
    let random = one("lead", "randread 64k");
    assert_eq!(random["stack"], "Windows native");
    assert_eq!(against(&random, "Linux io_uring").round(), 17.0);
    let sequential = one("lead", "read 128k");
    assert_eq!(sequential["stack"], "Linux libaio");
    assert_eq!(against(&sequential, "Windows native").round(), 5.0);
    let cpu = one("cpu-points", "read 128k");
    assert_eq!(cpu["stack"], "Windows native");
    assert!((against(&cpu, "Linux io_uring") + 27.34).abs() < 1e-9, "points, not percent");
    assert!(
        cpu["text"].as_str().unwrap().contains("27.34 points less than Linux io_uring (76.90 %)")
    );
}

#[test]
fn other_figures_give_other_highlights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let table = fs::read_to_string(data(PUBLISHED)).unwrap();
    fs::write(
        &path,
        table.replace(
            "windows-native,randread,4k,10.058,2636516",
            "windows-native,randread,4k,9.0,2359296",
        ),
    )
    .unwrap();
    let found = highlights(&json([&path]));
    assert!(
        found.iter().any(|text| text.starts_with("Windows native leads all others in 2 of 4 read")),
        "{found:#?}"
    );
}

const REFUTED: [(&str, &str); 7] = [
    ("Windows non-native", "randread 4k"),
    ("Windows native", "randread 4k"),
    ("Windows non-native", "randread 64k"),
    ("Windows native", "randread 64k"),
    ("Windows non-native", "read 128k"),
    ("Windows non-native", "write 64k"),
    ("Windows non-native", "write 128k"),
];

#[test]
fn littles_law_refutes_seven_published_rows() {
    let expected = REFUTED.map(|(stack, title)| (stack.to_owned(), title.to_owned()));
    let table = data(PUBLISHED);
    let report = json([&table]);
    assert_eq!(refuted(&report), expected, "held against the rows that agree");
    let reference = &report["sources"][0]["reference_depth"];
    assert!((reference["depth"].as_f64().unwrap() - 479.0).abs() < 1.0, "{reference}");
    assert_eq!((&reference["agreeing"], &reference["of"]), (&25.into(), &32.into()));
    let given = written("json", [Path::new("--reference-depth"), Path::new("480"), &table]);
    assert_eq!(refuted(&serde_json::from_str(&given).unwrap()), expected, "held against 480");
    let other = written("json", [Path::new("--reference-depth"), Path::new("290"), &table]);
    assert_ne!(refuted(&serde_json::from_str(&other).unwrap()).len(), 7, "the depth is heeded");
}

#[test]
fn a_conclusion_over_a_refuted_row_says_so() {
    let report = json([data(PUBLISHED)]);
    let list = report["highlights"].as_array().unwrap();
    let caveats = |wanted: &str| {
        let is_it = |highlight: &&Value| highlight["text"].as_str().unwrap().starts_with(wanted);
        list.iter().find(is_it).unwrap()["caveats"].to_string()
    };
    let leads = caveats("Windows native leads all others in 3 of 4 read");
    assert!(
        leads.contains("Windows native at randread 4k and Windows native at randread 64k"),
        "{leads}"
    );
    assert!(leads.contains("Little's law refutes"));
    assert_eq!(
        caveats("random 4k writes: Linux libaio does"),
        "[]",
        "and one over sound rows does not"
    );
    let page = written("markdown", [data(PUBLISHED)]);
    assert!(page.contains("Little's law refutes"));
}

#[test]
fn csv_comes_back_as_it_went() {
    let folder = tempfile::tempdir().unwrap();
    for file in [PUBLISHED, "sample.json", "fio-plus.json"] {
        let first = written("csv", [data(file)]);
        let path = folder.path().join("again.csv");
        fs::write(&path, &first).unwrap();
        assert_eq!(written("csv", [&path]), first, "{file}");
    }
    let published = folder.path().join("published.csv");
    fs::write(&published, written("csv", [data(PUBLISHED)])).unwrap();
    let (again, original) = (json([&published]), json([data(PUBLISHED)]));
    assert_eq!(highlights(&again), highlights(&original));
    assert_eq!(refuted(&again), refuted(&original));
    let text = fs::read_to_string(&published).unwrap();
    assert!(text.starts_with(
        "randread 4k,Windows non-native,Windows native,Linux libaio,Linux io_uring\n"
    ));
    assert!(
        text.contains("\nIOPS,1598959,2636516,2411000,2491000\n"),
        "metrics down, stacks across"
    );
    assert!(text.contains("\n\"CPU, whole machine (%)\",72.67,74.22,99.77,99.76\n"));
}

#[test]
fn markdown_has_metrics_down_and_stacks_across() {
    let text = written("markdown", [data(PUBLISHED)]);
    let mut lines = text.lines().skip_while(|line| *line != "## randread 4k").skip(2);
    let next = |lines: &mut dyn Iterator<Item = &str>| lines.next().unwrap().to_owned();
    assert_eq!(
        next(&mut lines),
        "|  | Windows non-native | Windows native | Linux libaio | Linux io\\_uring |"
    );
    assert_eq!(next(&mut lines), "| --- | ---: | ---: | ---: | ---: |");
    assert_eq!(next(&mut lines), "| Bandwidth (GiB/s) | 6.1000 | 10.058 | 9.1980 | 9.5040 |");
    assert_eq!(next(&mut lines), "| IOPS | 1,598,959 | 2,636,516 | 2,411,000 | 2,491,000 |");
}

#[test]
fn two_machines_with_the_same_stacks_stay_apart() {
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str, product: &str| {
        changed(folder.path(), name, |value| {
            value["environment"]["machine"]["product"] = product.into();
            for row in value["rows"].as_array_mut().unwrap() {
                row["drives"][0]["serial"] = format!("S-{product}").into();
            }
        })
    };
    let report = json([named("a.json", "Box A"), named("b.json", "Box B")]);
    let rows = report["blocks"][0]["rows"].as_array().unwrap();
    let stacks: Vec<&str> = rows.iter().map(|row| row["stack"].as_str().unwrap()).collect();
    assert_eq!(stacks.len(), 6, "nothing is lost");
    assert_eq!(stacks[0], "userspace vfio (Box A)");
    assert_eq!(stacks[3], "userspace vfio (Box B)");
    let pairs = report["blocks"][0]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 6, "three of each machine; none across drives that are not the same");
    assert!(pairs.iter().all(|pair| pair["method"] == "paired"));
    // The same product twice: the file name tells them apart.
    let report = json([named("c.json", "Box"), named("d.json", "Box")]);
    assert_eq!(report["sources"][0]["label"], "c");
    assert_eq!(report["blocks"][0]["rows"][3]["stack"], "userspace vfio (d)");
}

#[test]
fn one_drive_under_two_systems_is_compared_by_welch() {
    let folder = tempfile::tempdir().unwrap();
    let windows = changed(folder.path(), "w.json", |value| {
        value["environment"]["machine"]["os"] = "windows".into();
        for row in value["rows"].as_array_mut().unwrap() {
            let stack = row["stack"].as_str().unwrap().replace("Linux", "Windows");
            row["stack"] = stack.into();
        }
    });
    let report = json([data("sample.json"), windows]);
    let pairs = report["blocks"][0]["pairs"].as_array().unwrap();
    let pair = pairs
        .iter()
        .find(|pair| pair["stack"] == "Windows io_uring" && pair["of"] == "Linux io_uring")
        .unwrap();
    assert_eq!(pair["method"], "independent");
    assert_eq!(pair["iops"]["mean"], 1.0);
    assert_eq!(pair["iops"]["distinguishable"], false);
    assert!(pair["text"].as_str().unwrap().contains("not distinguishable"), "{pair}");
    assert!(pair["iops"]["least_detectable"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_cannot_be_told_apart_is_not_called_a_lead() {
    let report = json([data("sample.json")]);
    // By the sample libaio is within the spread of vfio, and io_uring 17 % below both.
    let pairs = report["blocks"][0]["pairs"].as_array().unwrap();
    let of = |stack: &str| {
        pairs.iter().find(|pair| pair["stack"] == stack && pair["of"] == "userspace vfio").unwrap()
    };
    assert_eq!(of("Linux libaio")["iops"]["distinguishable"], false);
    assert_eq!(of("Linux io_uring")["iops"]["distinguishable"], true);
    let found = highlights(&report);
    let none =
        |text: &&String| text.contains("leads all others") && text.contains("random 4k reads");
    assert!(!found.iter().any(|text| none(&text)), "{found:#?}");
    assert!(found.iter().any(|text| text.contains("not distinguishable")), "{found:#?}");
}

#[test]
fn an_outlier_round_is_shown_and_not_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), "o.json", |value| {
        let row = &mut value["rows"][0];
        let rounds = row["rounds"].as_array_mut().unwrap();
        let mut fourth = rounds[0].clone();
        fourth["round"] = 4.into();
        fourth["order"] = 99.into();
        fourth["iops"] = 6000.0.into();
        rounds.push(fourth);
    });
    let report = json([path]);
    let row = &report["blocks"][0]["rows"][0];
    let outside: Vec<bool> = row["rounds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|round| round["outlier"].as_bool().unwrap())
        .collect();
    assert_eq!(outside, [false, false, false, true]);
    let mark = row["marks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mark| mark["kind"] == "outlier-round")
        .unwrap();
    assert!(mark["text"].as_str().unwrap().starts_with("round 4 (6.000k IOPS) lies far"), "{mark}");
}

#[test]
fn every_wrong_file_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read_to_string(data("sample.json")).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let cut = file("cut.json", &whole[..whole.len() / 2]);
    let newer = file("newer.json", &whole.replace("nvpoll.result/1", "nvpoll.result/9"));
    let output = folder.path().join("out.csv");
    let files =
        [data(PUBLISHED), cut, newer, folder.path().join("none.json"), folder.path().to_owned()];
    let arguments =
        files.iter().map(|path| path.as_os_str()).chain(["--output".as_ref(), output.as_os_str()]);
    let errors = refused(arguments);
    for wanted in [
        "cut.json: not valid JSON",
        "newer.json: its schema is \"nvpoll.result/9\"; this nvpoll reads \"nvpoll.result/1\"",
        "none.json: cannot read it",
        "not a regular file",
    ] {
        assert!(errors.contains(wanted), "{wanted}\n{errors}");
    }
    assert!(!output.exists());
    let own = file("own.json", &written("json", [data("sample.json")]));
    assert!(refused([&own]).contains("its schema is \"nvpoll.report/1\""));
}

#[test]
fn several_formats_at_once_and_never_over_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.csv");
    fs::copy(data(PUBLISHED), &input).unwrap();
    let names = ["a.md", "b.csv", "c.json", "d.fio.json", "e.txt", "f.html"];
    let outputs: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
    let mut arguments = vec![input.as_os_str()];
    for output in &outputs {
        arguments.extend(["--output".as_ref(), output.as_os_str()]);
    }
    assert_eq!(text(&report(arguments)), "");
    for output in &outputs {
        assert!(fs::read_to_string(output).unwrap().len() > 500, "{}", output.display());
    }
    let before = fs::read(&input).unwrap();
    let message = refused([input.as_os_str(), "--output".as_ref(), input.as_os_str()]);
    assert!(message.contains("is one of the files that the report is made of"), "{message}");
    assert_eq!(fs::read(&input).unwrap(), before);
    let odd = folder.path().join("x.docx");
    assert!(
        refused([input.as_os_str(), "--output".as_ref(), odd.as_os_str()])
            .contains("says no format")
    );
}

#[test]
fn diff_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let other = changed(folder.path(), "other.json", |value| {
        value["environment"]["machine"]["kernel"] = "6.18.0".into();
        value["environment"]["machine"]["governor"] = "powersave".into();
        for row in value["rows"].as_array_mut().unwrap() {
            for round in row["rounds"].as_array_mut().unwrap() {
                round["iops"] = (round["iops"].as_f64().unwrap() * 2.0).into();
            }
        }
        value["rows"].as_array_mut().unwrap().pop();
    });
    let arguments =
        ["--diff".into(), data("sample.json").into_os_string(), other.clone().into_os_string()];
    let plain = text(&report(&arguments));
    assert!(plain.contains("machine.kernel\n    A  6.12.48-amd64\n    B  6.18.0\n"), "{plain}");
    assert!(plain.contains("machine.governor\n    A  -\n    B  powersave\n"), "{plain}");
    assert!(
        plain.contains("randread 4k, depth 32, userspace vfio: ") && plain.contains("x 2.000 ("),
        "{plain}"
    );
    assert!(plain.contains("Only in A\n  randrw 64k"), "{plain}");
    let same = [
        "--diff".into(),
        data("sample.json").into_os_string(),
        data("sample.json").into_os_string(),
    ];
    let plain = text(&report(&same));
    assert!(plain.contains("nothing differs") && plain.contains("not distinguishable"), "{plain}");
    assert!(
        refused(["--diff".as_ref(), data("sample.json").as_os_str()])
            .contains("takes two files, and 1 are named")
    );
}

#[test]
fn fios_json_as_it_is_read_by_scripts() {
    let document: Value =
        serde_json::from_str(&written("fio-json", [data("sample.json")])).unwrap();
    assert!(document["fio version"].as_str().unwrap().starts_with("nvpoll-"));
    let jobs = document["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 6);
    let job = &jobs[0];
    let options = &job["job options"];
    for (key, value) in [
        ("rw", "randread"),
        ("bs", "4k"),
        ("iodepth", "32"),
        ("numjobs", "1"),
        ("ioengine", "vfio"),
    ] {
        assert_eq!(options[key], value, "{key}");
    }
    let ours: Value = json([data("sample.json")]);
    let row = &ours["blocks"][0]["rows"][0];
    let read = &job["read"];
    assert_eq!(read["iops"], row["iops"]["mean"]);
    assert_eq!(read["lat_ns"]["mean"], row["lat_ns"]["mean"]);
    assert_eq!(read["lat_ns"]["percentile"]["99.900000"], row["lat_ns"]["percentiles"][3]["ns"]);
    // Two seconds of each of three rounds.
    assert_eq!((&read["iops_samples"], &read["bw_samples"]), (&6.into(), &6.into()));
    assert!(
        read["iops_stddev"].as_f64().unwrap() > 0.0
            && read["lat_ns"]["stddev"].as_f64().unwrap() > 0.0
    );
    assert_eq!(
        read["bw"].as_f64().unwrap(),
        (row["bw_bytes"]["mean"].as_f64().unwrap() / 1024.0).round()
    );
    assert_eq!(job["write"]["total_ios"], 0);
    let unknown = job["nvpoll"]["not_measured"].to_string();
    assert!(unknown.contains("slat_ns") && !unknown.contains("usr_cpu"), "{unknown}");
    // And we read it ourselves.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    fs::write(&path, document.to_string()).unwrap();
    let again = json([&path]);
    assert_eq!(again["blocks"][0]["rows"][0]["iops"]["mean"], row["iops"]["mean"]);
}

#[test]
fn a_folder_of_fios_files_has_one_for_each_workload_and_stack() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        data("sample.json").into_os_string(),
        "--format".into(),
        "fio-json".into(),
        "--output".into(),
        folder.path().as_os_str().to_owned(),
    ];
    text(&report(arguments));
    let names = |path: &Path| {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(folder.path()), ["Linux-io_uring", "Linux-libaio", "userspace-vfio"]);
    assert_eq!(
        names(&folder.path().join("Linux-libaio")),
        ["randread-4k-depth-32.json", "randrw-64k-depth-8-75-reads-2-workers.json"]
    );
}

#[test]
fn a_huge_file_is_refused_and_a_large_one_ends() {
    let folder = tempfile::tempdir().unwrap();
    let huge = folder.path().join("huge.json");
    fs::File::create(&huge).unwrap().set_len(257 << 20).unwrap();
    assert!(refused([&huge]).contains("larger than 256 MiB"));
    let header = "stack,rw,bs,bw_gib_s,iops,lat_mean_ms,cpu_total_pct\n";
    let table = |name: &str, lines: &dyn Fn(u32) -> String, count: u32| {
        let path = folder.path().join(name);
        let lines: String = (0..count).map(lines).collect();
        fs::write(&path, format!("{header}{lines}")).unwrap();
        path
    };
    let wide = |number: u32| format!("s{number} x,read,4k,1,{},1,1\n", 100_000 + number);
    let long = |number: u32| format!("s{number} x,read,{}k,1,1000,1,1\n", number / 2 + 1);
    assert!(refused([&table("many.csv", &wide, 10_001)]).contains("are too many"));
    for path in [table("wide.csv", &wide, 3000), table("long.csv", &long, 3000)] {
        let started = std::time::Instant::now();
        for format in ["table", "html", "json"] {
            assert!(written(format, [&path]).len() > 100_000);
        }
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    }
}

/// A line a second, of which the I/Os add up to the JSON's.
#[test]
fn the_series_as_csv() {
    let text = written("series-csv", [data("sample.json")]);
    let mut lines = text.lines();
    let header = "workload,stack,round,from_s,length_s,ios,iops,bytes,lat_mean_ms,lat_max_ms";
    assert_eq!(lines.next(), Some(header));
    let first: Vec<&str> = lines.clone().next().unwrap().split(',').collect();
    assert_eq!(first[..5], ["randread 4k iodepth=32 numjobs=1", "userspace vfio", "1", "0", "1"]);
    let sum: u64 =
        lines.clone().map(|line| line.split(',').nth(5).unwrap().parse::<u64>().unwrap()).sum();
    let ours: Value = json([data("sample.json")]);
    let blocks = ours["blocks"].as_array().unwrap();
    let rows = blocks.iter().flat_map(|block| block["rows"].as_array().unwrap());
    assert_eq!(sum, rows.map(|row| row["ios"].as_u64().unwrap()).sum::<u64>());
    // Six rows, three rounds, two seconds.
    assert_eq!(lines.count(), 36);
    let published = written("series-csv", [data("windows-vs-linux-2025.csv")]);
    assert_eq!(published, format!("{header}\n"), "nothing is made up where there is none");
}
