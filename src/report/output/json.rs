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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::input::Input;
    use crate::report::sample;
    use std::path::Path;

    #[test]
    fn every_field_is_documented() {
        let manuals = [
            include_str!("../../../docs/REPORT.md"),
            include_str!("../../../docs/RESULT-FORMAT.md"),
        ];
        let published = Path::new("tests/report/windows-vs-linux-2025.csv");
        let mut found = Vec::new();
        for report in [sample::report(), sample::poor_report()] {
            let ours = Input::of(report, Path::new("result.json"));
            let merged = Merged::new(vec![ours, Input::read(published).unwrap()], None);
            let text = write(&merged).unwrap();
            sample::keys(&serde_json::from_str(&text).unwrap(), &mut found);
        }
        found.sort();
        found.dedup();
        assert!(found.len() > 120, "{}", found.len());
        let is_named =
            |key: &str| manuals.iter().any(|manual| manual.contains(&format!("`{key}`")));
        found.retain(|key| !is_named(key));
        assert!(found.is_empty(), "no manual has {found:?}");
    }
}
