//! The document in files and on standard output.

use super::model::{Report, SCHEMA};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Largest result file that is read. A row takes some kilobytes.
pub(super) const FILE_BYTES_MAX: u64 = 256 << 20;

/// A result that could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system said no.
    #[error("{}: {what}: {error}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Too large to be a result.
    #[error("{}: larger than {} MiB; this is no result of nvpoll", path.display(), FILE_BYTES_MAX >> 20)]
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// Not JSON, or cut off.
    #[error("{}: not valid JSON ({error}); the file is damaged or was never a result", path.display())]
    NotJson {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
    /// JSON of another kind or version.
    #[error("{}: {}; this nvpoll reads \"{SCHEMA}\"", path.display(), seen(found.as_deref()))]
    OtherSchema {
        /// Which file.
        path: PathBuf,
        /// The schema that it names.
        found: Option<String>,
    },
    /// Names the schema and does not keep to it.
    #[error("{}: says it is \"{SCHEMA}\" but does not keep to it: {error}", path.display())]
    Shape {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The report could not be put into JSON.
    #[error("the result could not be put into JSON: {0}")]
    Encode(serde_json::Error),
}

fn seen(found: Option<&str>) -> String {
    match found {
        Some(schema) => format!("its schema is \"{schema}\""),
        None => "it names no schema, so it is no result of nvpoll".to_owned(),
    }
}

impl Report {
    /// The document, indented, with a newline at its end.
    ///
    /// # Errors
    /// [`ReportError::Encode`].
    pub fn to_json(&self) -> Result<String, ReportError> {
        let mut text = serde_json::to_string_pretty(self).map_err(ReportError::Encode)?;
        text.push('\n');
        Ok(text)
    }

    /// Keeps it at `path`; see [`write_whole`].
    ///
    /// # Errors
    /// [`ReportError::Io`], [`ReportError::Encode`]; a file that was there before is then as it was.
    pub fn save(&self, path: &Path) -> Result<(), ReportError> {
        write_whole(path, &self.to_json()?)
    }

    /// The result that `path` holds.
    ///
    /// # Errors
    /// Any [`ReportError`] but `Encode`, with what the file is instead.
    pub fn load(path: &Path) -> Result<Self, ReportError> {
        let fail = |error| ReportError::Io {
            path: path.to_owned(),
            what: "cannot read the result",
            error,
        };
        let file = fs::File::open(path).map_err(fail)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ReportError::TooLarge { path: path.to_owned() });
        }
        Self::parse(&bytes, path)
    }

    /// The result in `bytes`, which came from `path`.
    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self, ReportError> {
        let path = path.to_owned();
        let value: serde_json::Value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(error) => return Err(ReportError::NotJson { path, error }),
        };
        let found = value.get("schema").and_then(|schema| schema.as_str());
        if found != Some(SCHEMA) {
            let found = found.map(str::to_owned);
            return Err(ReportError::OtherSchema { path, found });
        }
        // From the text once more, not from the value: the message then has line and column.
        serde_json::from_slice(bytes).map_err(|error| ReportError::Shape { path, error })
    }
}

/// Keeps `text` at `path`, whole or not at all: written under a temporary name beside it, brought to the
/// disk, renamed. A symbolic link stays one. What is no regular file (a pipe, /dev/stderr) is written to.
///
/// # Errors
/// [`ReportError::Io`]; a file that was there before is then as it was.
pub fn write_whole(path: &Path, text: &str) -> Result<(), ReportError> {
    super::check_destination(path)?;
    let fail = |what| move |error| ReportError::Io { path: path.to_owned(), what, error };
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            fs::write(path, text).map_err(fail("cannot write the result"))
        }
        Ok(_) => {
            let real = fs::canonicalize(path).map_err(fail("cannot find the file"))?;
            replace(&real, text).map_err(fail("cannot write the result"))
        }
        Err(_) => replace(path, text).map_err(fail("cannot write the result")),
    }
}

/// Puts `text` in the place of `path` at once.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".nvpoll-").suffix(".json");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Less what the umask takes away: a result is for others to read.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|failed| failed.error)?;
    sync_folder(folder)
}

/// Makes the rename itself lasting. Windows has no such thing.
fn sync_folder(folder: &Path) -> io::Result<()> {
    #[cfg(unix)]
    fs::File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn refused(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        fs::write(&path, text).unwrap();
        let message = Report::load(&path).unwrap_err().to_string();
        let (before, after) = message.split_once("r.json: ").unwrap();
        assert!(Path::new(before).is_absolute(), "names the file: {message}");
        after.to_owned()
    }

    #[test]
    fn kept_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        for report in [sample::report(), sample::poor_report()] {
            report.save(&path).unwrap();
            assert_eq!(Report::load(&path).unwrap(), report);
        }
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "no temporary file stays: {left:?}");
    }

    /// The file that the tests of `nvpoll report` start from. It is as the sample is now.
    #[test]
    fn the_sample_file_is_the_sample() {
        let path = format!("{}/tests/report/sample.json", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("NVPOLL_BLESS").is_some() {
            sample::report().save(Path::new(&path)).unwrap();
        }
        assert_eq!(Report::load(Path::new(&path)).unwrap(), sample::report());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_a_device_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let [real, link] = ["real.json", "link.json"].map(|name| folder.path().join(name));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let report = sample::report();
        report.save(&link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(Report::load(&real).unwrap(), report);
        report.save(Path::new("/dev/null")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[cfg(unix)]
    #[test]
    fn readable_for_others_as_the_umask_allows() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let [ours, plain] = ["ours.json", "plain.json"].map(|name| folder.path().join(name));
        sample::report().save(&ours).unwrap();
        fs::write(&plain, "").unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn what_fails_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no/such/folder/r.json");
        let message = sample::report().save(&missing).unwrap_err().to_string();
        assert!(message.contains("cannot write the result"), "{message}");
        let message = Report::load(&missing).unwrap_err().to_string();
        assert!(message.contains("cannot read the result"), "{message}");
    }

    #[test]
    fn other_files_are_told_from_results() {
        assert!(refused("").starts_with("not valid JSON (EOF"));
        assert!(refused("fio: note\n{}").starts_with("not valid JSON ("));
        let whole = sample::report().to_json().unwrap();
        assert!(refused(&whole[..whole.len() / 2]).contains("damaged"));
        let message = refused(r#"{"fio version": "fio-3.42", "jobs": []}"#);
        assert!(message.starts_with("it names no schema"), "{message}");
        let message = refused(r#"{"schema": "nvpoll.result/2"}"#);
        assert!(message.starts_with("its schema is \"nvpoll.result/2\"; this nvpoll reads"));
        let message = refused(r#"{"schema": "nvpoll.result/1", "complete": "yes"}"#);
        assert!(message.contains("does not keep to it") && message.contains("line 1"), "{message}");
        assert!(refused("[1, 2]").starts_with("it names no schema"));
    }

    #[test]
    fn results_without_a_series_are_read() {
        let mut value = serde_json::to_value(sample::report()).unwrap();
        let round = value["rows"][0]["rounds"][0].as_object_mut().unwrap();
        assert!(round.remove("series").is_some_and(|series| series["ios"].is_array()));
        let report = Report::parse(value.to_string().as_bytes(), Path::new("x")).unwrap();
        assert_eq!(report.rows[0].rounds[0].series, None);
        // Lists that do not fit each other harm nobody.
        let series = serde_json::json!({"step_s": 0.0, "ios": [1, 2, 3], "bytes": [], "lat_mean_ns": [null], "lat_max_ns": []});
        value["rows"][0]["rounds"][0]["series"] = series;
        let report = Report::parse(value.to_string().as_bytes(), Path::new("x")).unwrap();
        let round = &report.rows[0].rounds[0];
        assert_eq!(round.series.as_ref().unwrap().all(round.elapsed_s).len(), 3);
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over() {
        let mut value = serde_json::to_value(sample::report()).unwrap();
        value["new"] = 1.into();
        value["rows"][0]["new"] = "x".into();
        value["rows"][0]["drives"][0]["kind"] = "tape".into();
        value["rows"][0]["marks"] = serde_json::json!([{"kind": "too-cold", "text": "It froze"}]);
        let report = Report::parse(value.to_string().as_bytes(), Path::new("x")).unwrap();
        assert_eq!(report.rows[0].drives[0].kind, crate::report::DriveKind::Unknown);
        let kind = &report.rows[0].marks[0].kind;
        assert_eq!(*kind, crate::report::MarkKind::Other("too-cold".to_owned()));
        assert_eq!(serde_json::to_string(kind).unwrap(), "\"too-cold\"");
    }

    /// The names that result files are promised to have.
    #[test]
    fn promised_fields_have_their_types() {
        let text = sample::report().to_json().unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf"), "no word of JSON");
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["schema"], "nvpoll.result/1");
        assert!(report["environment"].is_object() && report["plan"].is_object());
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            for name in ["stack", "engine", "target"] {
                assert!(row[name].is_string(), "{name}");
            }
            for name in ["drives", "rounds", "marks"] {
                assert!(row[name].is_array(), "{name}");
            }
            let workload = &row["workload"];
            assert!(workload["name"].is_string() && workload["rw"].is_string());
            for name in ["bs", "iodepth", "numjobs"] {
                assert!(workload[name].is_u64(), "{name}");
            }
            for name in ["iops", "bw_bytes"] {
                assert!(row[name]["mean"].is_f64());
                let ends = row[name]["ci95"].as_array().unwrap();
                assert!(ends.len() == 2 && ends.iter().all(|end| end.is_f64()), "{name}");
            }
            let latency = &row["lat_ns"];
            assert!(latency["mean"].is_f64());
            for name in ["min", "max", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "count"] {
                assert!(latency[name].is_u64(), "{name}");
            }
            for name in ["machine_pct", "user_s", "sys_s", "ns_per_io"] {
                assert!(row["cpu"][name].is_f64(), "{name}");
            }
            assert!(row["in_flight_mean"].is_f64() && row["errors"].is_u64());
        }
        let ratio = &rows[1]["ratio"];
        assert!(ratio["of"].is_string() && ratio["mean"].is_f64() && ratio["ci95"].is_array());
        assert!(ratio["distinguishable"].is_boolean());
    }

    #[test]
    fn what_is_not_known_is_null_and_not_left_out() {
        let text = sample::poor_report().to_json().unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let [soft, _, failed] = report["rows"].as_array().unwrap().as_slice() else { panic!() };
        assert!(soft["iops"]["ci95"].is_null() && soft["iops"]["mean"].is_f64());
        for row_null in ["iops", "lat_ns", "in_flight_mean", "polls", "ratio", "flush"] {
            assert!(failed.get(row_null).is_some_and(|value| value.is_null()), "{row_null}");
        }
        assert!(failed["cpu"]["machine_pct"].is_null());
        assert_eq!(report["complete"], false);
    }

    #[test]
    fn every_field_is_documented() {
        let manual = include_str!("../../docs/RESULT-FORMAT.md");
        let mut found = Vec::new();
        for mut report in [sample::report(), sample::poor_report()] {
            report.rows[0].flush =
                Some(crate::report::Flushes { count: 1, min_ns: 1.0, mean_ns: 1.0, max_ns: 1.0 });
            sample::keys(&serde_json::to_value(report).unwrap(), &mut found);
        }
        found.sort();
        found.dedup();
        assert!(found.len() > 80, "{}", found.len());
        for key in found {
            assert!(manual.contains(&format!("`{key}`")), "RESULT-FORMAT.md lacks `{key}`");
        }
    }
}
