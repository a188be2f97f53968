//! Where a result may be written to.

use super::ReportError;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Refuses a device: a block device would lose its data, and a path through which a drive is
/// driven takes no text. Pipes, terminals and `/dev/null` are fine.
///
/// # Errors
/// [`ReportError::Io`], that it is a device.
pub fn check_destination(path: &Path) -> Result<(), ReportError> {
    let device =
        || Error::new(ErrorKind::InvalidInput, "a block device; its data would be overwritten");
    let what = "the result is not written here, name a file";
    if is_device_name(path) {
        return Err(ReportError::Io { path: path.to_owned(), what, error: device() });
    }
    // What is not there yet is a file to be made.
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    let error = if is_block_device(&found) {
        device()
    } else if found.is_dir() {
        Error::from(ErrorKind::IsADirectory)
    } else {
        return Ok(());
    };
    Err(ReportError::Io { path: path.to_owned(), what, error })
}

#[cfg(unix)]
fn is_block_device(found: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_block_device()
}

#[cfg(not(unix))]
fn is_block_device(_: &fs::Metadata) -> bool {
    false
}

/// Whether the name alone says that it is a disk or a volume.
#[cfg(windows)]
fn is_device_name(path: &Path) -> bool {
    nvpoll_windows::Name::of(path) != nvpoll_windows::Name::File
}

#[cfg(not(windows))]
fn is_device_name(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_pipes_take_a_result_and_folders_do_not() {
        let folder = tempfile::tempdir().unwrap();
        check_destination(&folder.path().join("new.json")).unwrap();
        #[cfg(unix)]
        check_destination(Path::new("/dev/null")).unwrap();
        #[cfg(windows)]
        check_destination(Path::new(r"\\.\PhysicalDrive0")).unwrap_err();
        let error = check_destination(folder.path()).unwrap_err().to_string();
        assert!(error.contains("name a file"), "{error}");
    }
}
