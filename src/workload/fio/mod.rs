//! fio's job files: sections, and what they inherit. [`job`] has the keys.
//!
//! The format is fio's (its HOWTO, "Job file format"): `[global]` sections hold for the jobs below
//! them, any other section is a job, `;` and `#` begin a comment anywhere in a line, a key without a
//! value is a flag.
//!
//! # What it does not do
//!
//! It runs no two jobs at once: each job is a row of its own, so that jobs after the first must wait
//! (`stonewall`) as they would in fio. It opens nothing that a file names, substitutes no `${VAR}` and
//! includes no other file.

mod job;

use super::suite::{FileName, Suite, SuiteError, SuiteTiming};
use job::Job;
use std::path::Path;

/// A line that says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Section(&'a str),
    /// A key, and its value where it has one.
    Key(&'a str, Option<&'a str>),
}

/// The suite of `text`, which came from `path`.
///
/// # Errors
/// [`SuiteError::Line`] with the line, the key, and what to do.
pub(super) fn parse(text: &str, path: &Path) -> Result<Suite, SuiteError> {
    let mut sections = Sections::default();
    for (number, raw) in (1..).zip(text.lines()) {
        let parsed = read_line(raw).and_then(|line| match line {
            Some(line) => sections.take(number, line),
            None => Ok(()),
        });
        parsed.map_err(|what| SuiteError::line(path, number, what))?;
    }
    sections.suite(path)
}

/// What `raw` says; `None` where that is nothing.
fn read_line(raw: &str) -> Result<Option<Line<'_>>, String> {
    let said = raw.split([';', '#']).next().unwrap_or_default().trim();
    if said.is_empty() {
        return Ok(None);
    }
    if let Some(name) = said.strip_prefix('[') {
        let name = name.strip_suffix(']').ok_or("a section that is not closed with ]")?.trim();
        return match name {
            "" => Err("a section without a name".to_owned()),
            name => Ok(Some(Line::Section(name))),
        };
    }
    if said.contains('$') {
        return Err(format!(
            "\"{said}\": nvpoll substitutes no variables, so that the file alone says what runs; write the value"
        ));
    }
    let (key, value) = match said.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (said, None),
    };
    Ok(Some(Line::Key(key, value)))
}

/// The keys of a section, with their lines.
#[derive(Clone, Debug, Default)]
struct Section {
    name: String,
    line: usize,
    keys: Vec<(usize, String, Option<String>)>,
}

#[derive(Debug, Default)]
struct Sections {
    all: Vec<Section>,
}

impl Sections {
    fn take(&mut self, number: usize, line: Line<'_>) -> Result<(), String> {
        match line {
            Line::Section(name) => {
                self.all.push(Section { name: name.to_owned(), line: number, keys: Vec::new() });
            }
            Line::Key(key, value) => {
                let section = self.all.last_mut();
                let section = section.ok_or_else(|| {
                    format!("\"{key}\" stands before any section; begin with [global] or a job's")
                })?;
                section.keys.push((number, key.to_owned(), value.map(str::to_owned)));
            }
        }
        Ok(())
    }

    fn suite(self, path: &Path) -> Result<Suite, SuiteError> {
        let mut global = Job::default();
        let mut jobs = Vec::new();
        for section in &self.all {
            if section.name == "global" {
                global.take(section, path)?;
                continue;
            }
            let mut job = global.clone();
            job.name.clone_from(&section.name);
            job.line = section.line;
            job.take(section, path)?;
            jobs.push(job);
        }
        let Some(first) = jobs.first() else {
            return Err(SuiteError::line(path, 1, "there is no job section in it"));
        };
        if let Some(job) = jobs.iter().skip(1).find(|job| !job.waits) {
            let what = format!(
                "job [{}] would run at the same time as the one before it, which nvpoll does not do; give it stonewall, or numjobs if they are the same",
                job.name
            );
            return Err(SuiteError::line(path, job.line, what));
        }
        if let Some(job) = jobs.iter().find(|job| job.timing != first.timing) {
            let what = format!(
                "job [{}] has another runtime, ramp_time or number_ios than [{}]; nvpoll measures all rows of a suite alike",
                job.name, first.name
            );
            return Err(SuiteError::line(path, job.line, what));
        }
        finish(&jobs, first.timing, path)
    }
}

fn finish(jobs: &[Job], timing: SuiteTiming, path: &Path) -> Result<Suite, SuiteError> {
    let at =
        |job: &Job, what| SuiteError::line(path, job.line, format!("job [{}]: {what}", job.name));
    let mut notes: Vec<String> = Vec::new();
    let mut filenames: Vec<FileName> = Vec::new();
    let mut workloads = Vec::new();
    for job in jobs {
        workloads.push(job.workload().map_err(|what| at(job, what))?);
        for note in job.all_notes() {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        filenames.extend(job.filename.clone().filter(|name| !filenames.contains(name)));
    }
    Ok(Suite { name: Suite::name_of(path), workloads, timing, filenames, notes })
}

#[cfg(test)]
mod tests;
