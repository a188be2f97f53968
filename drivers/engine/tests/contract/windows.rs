//! Windows has no targets that are neither files nor disks, and none can be made for a test.

use crate::cases::Case;

/// The targets of `engine`, where they are neither files nor disks.
pub fn cases(_engine: &str, _driver: Option<&str>) -> Option<Vec<Case>> {
    None
}

/// Disks that are made for the test.
pub fn made(_engine: &str) -> Vec<Case> {
    Vec::new()
}
