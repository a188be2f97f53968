//! What a report is written as.

pub mod csv;
mod fio_json;
mod html;
mod json;
mod markdown;
mod series_csv;
mod text;

use super::merged::Merged;
use super::table::Look;
use std::path::Path;

/// Formats of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The terminal's table
    Table,
    /// Metrics down, stacks across, a block a workload
    Markdown,
    /// The same as CSV, which `nvpoll report` reads again
    Csv,
    /// Every round second by second, as CSV
    SeriesCsv,
    /// Everything, as one JSON document
    Json,
    /// What fio writes; as a folder, one file a workload and stack, as fio-plot wants them
    FioJson,
    /// One page with charts, that needs neither network nor script
    Html,
}

impl Format {
    /// The format that a file's name says.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let ends = [
            (".fio.json", Self::FioJson),
            (".json", Self::Json),
            (".series.csv", Self::SeriesCsv),
            (".csv", Self::Csv),
            (".html", Self::Html),
            (".htm", Self::Html),
            (".md", Self::Markdown),
            (".markdown", Self::Markdown),
            (".txt", Self::Table),
        ];
        ends.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| format)
    }
}

impl Merged {
    /// The report as text, ending in a newline. `look` is for the table alone.
    ///
    /// # Errors
    /// When it cannot be put into JSON.
    pub fn write(&self, format: Format, look: Look) -> Result<String, serde_json::Error> {
        Ok(match format {
            Format::Table => text::write(self, look),
            Format::Markdown => markdown::write(self),
            Format::Csv => csv::write(self),
            Format::SeriesCsv => series_csv::write(self),
            Format::Json => json::write(self)?,
            Format::FioJson => fio_json::write(self)?,
            Format::Html => html::write(self),
        })
    }

    /// fio's JSON, a file each: relative path and text.
    ///
    /// # Errors
    /// When it cannot be put into JSON.
    pub fn fio_files(&self) -> Result<Vec<(std::path::PathBuf, String)>, serde_json::Error> {
        fio_json::files(self)
    }
}
