//! The whole report as one document (docs/REPORT.md).

use crate::report::merged::Merged;

/// The document, indented, with a newline at its end.
///
/// # Errors
/// When a figure is no number that JSON has.
pub(super) fn write(merged: &Merged) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(merged)?;
    text.push('\n');
    Ok(text)
}
