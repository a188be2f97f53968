//! What no file may do: bring the program down, or be read as something that it is not.

use super::*;
use crate::report::table::Look;
use crate::report::{Format, Merged};
use clap::ValueEnum;
use proptest::prelude::*;

const FILES: [(&str, &[u8]); 4] = [
    ("a.csv", include_bytes!("../../../tests/report/windows-vs-linux-2025.csv")),
    ("b.json", include_bytes!("../../../tests/report/fio-jobs.json")),
    ("c.json", include_bytes!("../../../tests/report/fio-plus.json")),
    ("d.json", include_bytes!("../../../tests/report/sample.json")),
];

/// Reads, and where that works writes in every format.
fn use_all(name: &str, bytes: &[u8]) {
    let Ok(input) = Input::parse(bytes, Path::new(name)) else { return };
    let merged = Merged::new(vec![input.clone(), input], None);
    for format in Format::value_variants() {
        merged.write(*format, Look { width: Some(80), colour: false }).unwrap();
    }
    merged.fio_files().unwrap();
}

#[test]
fn whole_files_are_read() {
    for (name, bytes) in FILES {
        assert!(
            Input::parse(bytes, Path::new(name)).is_ok_and(|input| !input.rows.is_empty()),
            "{name}"
        );
        use_all(name, bytes);
    }
}

/// Numbers and words that break arithmetic and names.
const ODD: [&str; 14] = [
    "0",
    "-1",
    "1e308",
    "-1e308",
    "1e-320",
    "18446744073709551615",
    "null",
    "\"\"",
    "[]",
    "{}",
    "NaN",
    "\"\u{1b}[2J\"",
    "\"<script>\"",
    ",,\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_cut_or_changed_file_brings_nothing_down(
        file in 0..FILES.len(),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        is_cut in any::<bool>(),
    ) {
        let (name, bytes) = FILES[file];
        let mut bytes = bytes.to_vec();
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        use_all(name, &bytes);
    }

    /// A file stays whole but for one value, so that what is odd gets as deep as it can.
    #[test]
    fn odd_values_bring_nothing_down(
        file in 0..FILES.len(),
        which in any::<prop::sample::Index>(),
        odd in 0..ODD.len(),
    ) {
        let (name, bytes) = FILES[file];
        let text = std::str::from_utf8(bytes).unwrap();
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let mut starts = Vec::new();
        let mut before = ' ';
        for (at, c) in text.char_indices() {
            if c.is_ascii_digit() && !is_part(before) && !before.is_ascii_alphanumeric() {
                starts.push(at);
            }
            before = c;
        }
        let start = starts[which.index(starts.len())];
        let length = text[start..].find(|c| !is_part(c)).unwrap_or(text.len() - start);
        let changed = format!("{}{}{}", &text[..start], ODD[odd], &text[start + length..]);
        use_all(name, changed.as_bytes());
    }

    #[test]
    fn any_bytes_bring_nothing_down(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use_all("x", &bytes);
    }

    #[test]
    fn any_table_brings_nothing_down(
        cells in prop::collection::vec(
            prop::collection::vec("[a-z 0-9.,\"=;\u{e9}-]{0,12}", 0..5), 1..8)
    ) {
        let lines: Vec<String> = cells.iter().map(|cells| cells.join(",")).collect();
        use_all("x.csv", format!("randread 4k,a,b\n{}", lines.join("\n")).as_bytes());
        use_all("x.csv", format!("stack,rw,bs,bw_gib_s,iops,lat_mean_ms,cpu_total_pct\n{}", lines.join("\n")).as_bytes());
    }
}

fn refused(name: &str, text: &str) -> String {
    Input::parse(text.as_bytes(), Path::new(name)).unwrap_err().to_string()
}

const HEADER: &str = "stack,rw,bs,bw_gib_s,iops,lat_mean_ms,cpu_total_pct\n";

#[test]
fn a_bad_cell_is_named_by_line_and_column() {
    let with = |line: &str| refused("t.csv", &format!("{HEADER}a,read,4k,1,2,3,4\n{line}\n"));
    assert_eq!(with("b,read,4k,1,2,3"), "t.csv: line 3: has 6 cells where the header has 7");
    assert!(
        with("b,read,4k,1,,3,4")
            .starts_with("t.csv: line 3: the cell for iops is empty; write n/a")
    );
    assert!(with("b,read,4k,1,2 M,3,4").contains("line 3: iops is \"2 M\"; a number"));
    assert!(with("b,read,4k,1,-2,3,4").contains("iops is \"-2\""));
    assert!(with("b,read,4k,1,inf,3,4").contains("iops is \"inf\""));
    assert!(with("b,backwards,4k,1,2,3,4").contains("line 3: \"backwards\" is no access pattern"));
    assert!(with("b,read,4q,1,2,3,4").contains("\"4q\" is no size"));
    assert!(with("a,read,4k,9,9,9,9").contains("line 3: read 4k has a twice"));
    assert_eq!(
        refused("t.csv", "stack,rw,bs\n"),
        "t.csv: line 1: the header has no column bw_gib_s"
    );
    assert_eq!(refused("t.csv", HEADER), "t.csv: has no row to report");
    let unknown = format!("{HEADER}a,read,4k,n/a,2,n/a,n/a\n");
    let input = Input::parse(unknown.as_bytes(), Path::new("t.csv")).unwrap();
    assert_eq!(input.rows[0].figures.bw_bytes, None);
}

#[test]
fn a_bad_block_is_named_too() {
    assert!(
        refused("t.csv", "read 4k,a,b\nIOPS,1\n")
            .contains("line 2: has 1 figures where the block has 2 stacks")
    );
    assert!(
        refused("t.csv", "read 4k,a\nSpeed,1\n")
            .contains("line 2: \"Speed\" is neither a metric nor a workload")
    );
    assert!(refused("t.csv", "read 4k,a\nIOPS,x\n").contains("line 2: IOPS of a is \"x\""));
    assert!(refused("t.csv", "a,b\n1,2\n").contains("neither JSON nor a table"));
    assert!(refused("t.csv", "").contains("neither JSON nor a table"));
    assert!(refused("t.png", "\u{0}PNG").contains("neither JSON nor a table"));
}

#[test]
fn fio_is_told_what_is_wrong_with_it() {
    let fio = |job: &str| {
        refused("f.json", &format!("{{\"fio version\": \"fio-3.42\", \"jobs\": [{job}]}}"))
    };
    assert!(fio("").contains("has no row"));
    assert!(fio("{}").contains("no \"jobname\""));
    assert!(
        fio(r#"{"jobname": "j", "job options": {"rw": "trimwrite"}}"#)
            .contains("job \"j\": rw=trimwrite")
    );
    assert!(
        fio(r#"{"jobname": "j", "job options": {"rw": "read", "bs": "x"}}"#)
            .contains("bs=x: no block size")
    );
    let lacking = r#"{"jobname": "j", "job options": {"rw": "read"}, "read": {}}"#;
    assert!(fio(lacking).contains("job \"j\": read has no number \"iops\""));
    let message = refused("f.json", r#"{"fio version": "fio-3.42", "client_stats": []}"#);
    assert!(message.contains("client_stats"), "{message}");
    assert!(refused("f.json", r#"{"fio version": "fio-3.42"}"#).contains("no list of \"jobs\""));
    assert!(refused("f.json", "[1]").contains("neither a result of nvpoll"));
}

#[test]
fn notes_before_fios_json_are_passed_over() {
    let json = std::str::from_utf8(FILES[1].1).unwrap();
    let text =
        format!("note: both iodepth >= 1 and synchronous I/O engine are selected\nfio: x\n{json}");
    assert!(Input::parse(text.as_bytes(), Path::new("f.json")).is_ok());
}

fn rows(file: usize) -> Vec<InputRow> {
    Input::parse(FILES[file].1, Path::new(FILES[file].0)).unwrap().rows
}

/// Against fio's own figures, added up by hand from the files.
#[test]
fn fios_clones_add_up() {
    let value: serde_json::Value = serde_json::from_slice(FILES[1].1).unwrap();
    let read = |job: usize, path: &str| value["jobs"][job].pointer(path).unwrap().as_f64().unwrap();
    let rows = rows(1);
    assert_eq!(rows.len(), 2, "two clones and a mixed job");
    let clones = &rows[0].figures;
    let iops = read(0, "/read/iops") + read(1, "/read/iops");
    assert!((clones.iops.unwrap().mean - iops).abs() < 1e-6);
    let bytes = read(0, "/read/bw_bytes") + read(1, "/read/bw_bytes");
    assert!((clones.bw_bytes.unwrap().mean - bytes).abs() < 1e-6);
    let (n, m) = (read(0, "/read/lat_ns/N"), read(1, "/read/lat_ns/N"));
    let mean = (read(0, "/read/lat_ns/mean") * n + read(1, "/read/lat_ns/mean") * m) / (n + m);
    let lat_ns = clones.lat_ns.as_ref().unwrap();
    assert!((lat_ns.mean - mean).abs() < 1e-3, "lat, not clat");
    assert!(lat_ns.percentiles.is_empty(), "percentiles of clones cannot be joined");
    assert_eq!(clones.in_flight.asked, Some(8.0));
    assert!(
        (clones.cpu.job_sys_pct.unwrap() - read(0, "/sys_cpu") - read(1, "/sys_cpu")).abs() < 1e-9
    );
    assert_eq!(clones.cpu.machine_pct, None, "fio does not have it");
    let mixed = &rows[1].figures;
    assert_eq!(mixed.sides.len(), 2);
    assert!(
        (mixed.iops.unwrap().mean - read(2, "/read/iops") - read(2, "/write/iops")).abs() < 1e-6
    );
    assert_eq!(rows[1].task.rwmixread, Some(70));
    assert_eq!(mixed.in_flight.asked, Some(1.0), "a synchronous engine has one in flight");
}

#[test]
fn histograms_give_the_percentiles_that_fio_gives() {
    let value: serde_json::Value = serde_json::from_slice(FILES[2].1).unwrap();
    let list = &value["jobs"][0]["read"]["lat_ns"]["percentile"];
    let rows = rows(2);
    let lat_ns = rows[0].figures.lat_ns.as_ref().unwrap();
    for (name, key) in [
        ("p50", "50.000000"),
        ("p99", "99.000000"),
        ("p99.9", "99.900000"),
        ("p99.99", "99.990000"),
    ] {
        let (ours, theirs) = (lat_ns.percentile(name).unwrap().ns, list[key].as_f64().unwrap());
        // A bin is 1/64 wide, and fio interpolates nothing either.
        assert!((ours / theirs - 1.0).abs() < 0.02, "{name}: {ours} where fio has {theirs}");
    }
    let last = lat_ns.percentile("p99.999").unwrap();
    assert_eq!(last.supported, Some(false), "less than a million I/Os");
    assert!(
        !rows[0].figures.marks.iter().any(|mark| mark.kind == crate::report::MarkKind::Percentiles)
    );
}
