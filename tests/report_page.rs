//! The HTML page: every number on it is the JSON's, nothing on it comes from elsewhere, and no file can put
//! anything but text on it.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report").join(name)
}

fn written(format: &str, files: &[PathBuf]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvpoll"));
    let output = command.args(["report", "--format", format]).args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

/// Exact value, place in the JSON, and what is read, of every figure.
fn figures(page: &str) -> Vec<(f64, String, String)> {
    let mut found = Vec::new();
    for piece in page.split('<').filter(|piece| piece.contains("data-at=")) {
        let (tag, text) = piece.split_once('>').unwrap();
        let value = attribute(tag, "data-value").unwrap().parse().unwrap();
        found.push((value, attribute(tag, "data-at").unwrap().to_owned(), text.trim().to_owned()));
    }
    found
}

/// What a figure's text says, and how far that may be off by its last digit.
fn read(text: &str) -> (f64, f64) {
    let text = text.replace('−', "-");
    let end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let times = match unit.trim() {
        "" => 1.0,
        "%" => 1.0,
        "ns" => 1.0,
        "k" | "µs" => 1e3,
        "M" | "ms" => 1e6,
        "G" | "s" => 1e9,
        other => panic!("unit {other} of {text}"),
    };
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let last = 10_f64.powi(-i32::try_from(decimals).unwrap());
    (number.parse::<f64>().unwrap() * times, last * times * 0.5001)
}

#[test]
fn every_number_on_the_page_is_the_jsons() {
    for files in [
        vec![data("windows-vs-linux-2025.csv")],
        vec![data("sample.json"), data("fio-jobs.json"), data("fio-plus.json")],
    ] {
        let page = written("html", &files);
        let json: Value = serde_json::from_str(&written("json", &files)).unwrap();
        let found = figures(&page);
        assert!(found.len() > 150, "{}", found.len());
        for (value, pointer, text) in found {
            let expected =
                json.pointer(&pointer).unwrap_or_else(|| panic!("{pointer} is not in the JSON"));
            assert_eq!(expected.as_f64(), Some(value), "{pointer}");
            let (mut seen, mut tolerance) = read(&text);
            // Shown in another unit than the JSON has.
            let shown_as = if pointer.contains("bw_bytes") { 1_073_741_824.0 } else { 1.0 };
            let part = if pointer.ends_with("least_detectable") { 0.01 } else { 1.0 };
            seen *= shown_as * part;
            tolerance *= shown_as * part;
            assert!((seen - value).abs() <= tolerance, "{pointer} is {value} and reads {text}");
        }
        for cell in page.split("<td class=\"f").skip(1) {
            let cell = cell.split_once("</td>").unwrap().0;
            let text = cell.split_once('>').unwrap().1;
            let is_figure = text.contains("data-at=")
                || ["n/a", "not available here", "none", "–", "first"].contains(&text);
            assert!(is_figure, "a number without its place: {text}");
        }
        for highlight in json["highlights"].as_array().unwrap() {
            let text = highlight["text"].as_str().unwrap().replace('&', "&amp;");
            assert!(page.contains(&text), "{text}");
        }
    }
}

#[test]
fn every_mark_has_its_sentence() {
    let files = [data("windows-vs-linux-2025.csv")];
    let page = written("html", &files);
    let json: Value = serde_json::from_str(&written("json", &files)).unwrap();
    let mut count = 0;
    for row in json["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|block| block["rows"].as_array().unwrap())
    {
        for mark in row["marks"].as_array().unwrap() {
            assert!(page.contains(mark["text"].as_str().unwrap()));
            count += 1;
        }
    }
    assert_eq!(count, 7);
    assert!(page.contains("href=\"#note-7\"") && page.contains("id=\"note-7\""));
    assert!(page.contains("Windows native †") && !page.contains("Linux libaio †"));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = written("html", &[data("windows-vs-linux-2025.csv"), data("sample.json")]);
    for foreign in
        ["http:", "https:", "<script", "<img", " src=", "@import", "url(", "onload", "javascript:"]
    {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("lang=\"en\""));
    assert!(page.contains("default-src 'none'"), "and the browser is told so");
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    let charts = page.matches("<svg class=\"chart\"").count();
    assert!(charts > 30, "{charts}");
    assert_eq!(page.matches("role=\"img\"").count(), charts);
    assert_eq!(page.matches("<desc ").count(), charts, "each says in words what it shows");
}

#[test]
fn names_from_files_are_text_and_no_markup() {
    let folder = tempfile::tempdir().unwrap();
    let evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\u{1b}[2J";
    let mut value: Value = serde_json::from_slice(&fs::read(data("sample.json")).unwrap()).unwrap();
    let machine = &mut value["environment"]["machine"];
    for key in ["os", "os_name", "kernel", "product", "cpu_model", "governor", "kernel_parameters"]
    {
        machine[key] = evil.into();
    }
    machine["mitigations"] = serde_json::json!({ evil: evil });
    value["environment"]["date"] = evil.into();
    value["environment"]["command_line"] = serde_json::json!([evil]);
    for row in value["rows"].as_array_mut().unwrap() {
        row["stack"] = format!("{evil}{}", row["engine"]).into();
        row["target"] = evil.into();
        row["drives"][0]["model"] = evil.into();
        row["workload"]["name"] = evil.into();
        row["facts"] = serde_json::json!({ evil: evil });
        row["marks"] = serde_json::json!([{ "kind": "odd", "text": evil }]);
    }
    let path = folder.path().join("evil.json");
    fs::write(&path, value.to_string()).unwrap();
    let page = written("html", std::slice::from_ref(&path));
    assert!(page.contains("&lt;script&gt;alert(1)"));
    for markup in ["<script", "<img", "\"'>"] {
        assert!(!page.contains(markup), "{markup}");
    }
    let markdown = written("markdown", std::slice::from_ref(&path));
    assert!(!markdown.contains("<script") && !markdown.contains("<img"));
    let table = written("table", std::slice::from_ref(&path));
    assert!(!table.contains('\u{1b}'), "no escape code of a file reaches the terminal");
}
