//! `report`: result files, fio's JSON and published tables, as one report in any format.

use super::Done;
use super::out::{self, tell};
use crate::failure::Failure;
use crate::report::table::Look;
use crate::report::{Diff, Format, Input, Merged, write_whole};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};

/// Most files of one report.
const FILES_MAX: usize = 1000;

/// `nvpoll report`
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Results, fio's JSON, CSV tables
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The format [default: what the output's name says, else the table]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Where it goes, instead of stdout; may be given several times (page.html, table.md, figures.csv,
    /// report.json, jobs.fio.json, or a folder for fio's files)
    #[arg(long, short, value_name = "FILE")]
    pub output: Vec<PathBuf>,
    /// I/Os in flight that rows which count none are held against by Little's law [default: what most
    /// rows of their table agree on]
    #[arg(long, value_name = "N")]
    pub reference_depth: Option<f64>,
    /// Instead of a report: what differs between two files, in environment and figures
    #[arg(long, conflicts_with = "reference_depth")]
    pub diff: bool,
}

/// `nvpoll report`
pub fn report(args: &ReportArgs) -> Done {
    let targets = targets(args)?;
    if args.files.len() > FILES_MAX {
        let count = args.files.len();
        return Err(Failure::usage(format!("{count} files; at most {FILES_MAX} are possible")));
    }
    if args.reference_depth.is_some_and(|depth| !(depth.is_finite() && depth > 0.0)) {
        return Err(Failure::usage(
            "--reference-depth: a number of I/Os in flight above 0 is wanted",
        ));
    }
    let inputs = read(&args.files)?;
    if args.diff {
        return diff(inputs, &targets);
    }
    let merged = Merged::new(inputs, args.reference_depth);
    for target in &targets {
        write(&merged, target, &args.files)?;
    }
    Ok(0)
}

/// Where a format goes.
struct Target {
    format: Format,
    /// `None`: standard output.
    path: Option<PathBuf>,
}

fn targets(args: &ReportArgs) -> Result<Vec<Target>, Failure> {
    let [first, rest @ ..] = args.output.as_slice() else {
        return Ok(vec![Target { format: args.format.unwrap_or(Format::Table), path: None }]);
    };
    if args.format.is_some() && !rest.is_empty() {
        return Err(Failure::usage(
            "--format with several --output: name one file, or let each file's extension say its format",
        ));
    }
    let target = |path: &PathBuf| {
        let stdout = path.as_path() == Path::new("-");
        let default = if stdout { Some(Format::Table) } else { Format::of(path) };
        let format = args.format.or(default).ok_or_else(|| {
            Failure::usage(format!(
                "--output {}: its name says no format; end it in .md, .csv, .json, .fio.json, .html or .txt, or \
                 name one with --format",
                path.display()
            ))
        })?;
        Ok(Target { format, path: (!stdout).then(|| path.clone()) })
    };
    std::iter::once(first).chain(rest).map(target).collect()
}

/// Reads all, and says of all that cannot be read what they are: half a report would mislead.
fn read(files: &[PathBuf]) -> Result<Vec<Input>, Failure> {
    let (mut inputs, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        match Input::read(file) {
            Ok(input) => inputs.push(input),
            Err(error) => wrong.push(error.to_string()),
        }
    }
    if wrong.is_empty() {
        return Ok(inputs);
    }
    Err(Failure::usage(wrong.join("\nnvpoll: ")))
}

fn write(merged: &Merged, target: &Target, inputs: &[PathBuf]) -> Result<(), Failure> {
    let encode = |error: serde_json::Error| {
        Failure::failed(format!("the report could not be put into JSON: {error}"))
    };
    let Some(path) = &target.path else {
        let text = merged.write(target.format, Look::of_stdout()).map_err(encode)?;
        return out::result(format_args!("{text}"));
    };
    let is_folder = path.is_dir() || path.to_string_lossy().ends_with(['/', '\\']);
    if is_folder && target.format == Format::FioJson {
        for (name, text) in merged.fio_files().map_err(encode)? {
            save(&path.join(name), &text, inputs)?;
        }
    } else if is_folder {
        return Err(Failure::usage(format!(
            "--output {}: a folder; name a file in it",
            path.display()
        )));
    } else {
        let text = merged.write(target.format, Look::PLAIN).map_err(encode)?;
        save(path, &text, inputs)?;
    }
    tell!("nvpoll: {} written", path.display());
    Ok(())
}

/// Whole or not at all, and never over what the report is made of.
fn save(path: &Path, text: &str, inputs: &[PathBuf]) -> Result<(), Failure> {
    let real = fs::canonicalize(path).ok();
    if real.is_some() && inputs.iter().any(|input| fs::canonicalize(input).ok() == real) {
        return Err(Failure::usage(format!(
            "--output {}: is one of the files that the report is made of; name another",
            path.display()
        )));
    }
    if let Some(folder) =
        path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
    {
        fs::create_dir_all(folder).map_err(|error| {
            Failure::failed(format!("{}: cannot make the folder: {error}", folder.display()))
        })?;
    }
    write_whole(path, text).map_err(|error| Failure::failed(error.to_string()))
}

fn diff(inputs: Vec<Input>, targets: &[Target]) -> Done {
    let [a, b] = <[Input; 2]>::try_from(inputs).map_err(|inputs| {
        Failure::usage(format!("--diff: takes two files, and {} are named", inputs.len()))
    })?;
    let diff = Diff::new(a, b);
    for target in targets {
        let text = match target.format {
            Format::Table => diff.to_text(),
            Format::Json => diff.to_json().map_err(|error| Failure::failed(error.to_string()))?,
            _ => return Err(Failure::usage("--diff: is written as table or json")),
        };
        match &target.path {
            Some(path) => {
                write_whole(path, &text).map_err(|error| Failure::failed(error.to_string()))?
            }
            None => out::result(format_args!("{text}"))?,
        }
    }
    Ok(0)
}
