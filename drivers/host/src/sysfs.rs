//! Small readers of sysfs and procfs. A file that is not there is `None`, not an error.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::limits;

/// An attribute's text without the newline; `None` when the file is not there, the device is
/// going away, or the kernel has no value (many attributes answer ENODEV or EINVAL then).
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    let bytes = read(path.as_ref(), limits::ATTRIBUTE_BYTES_MAX).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.trim_end_matches(['\n', '\0', ' ']).to_owned())
}

/// An attribute's text, or `None` when it is empty or the kernel prints a null pointer.
pub(crate) fn value(path: impl AsRef<Path>) -> Option<String> {
    text(path).filter(|text| !text.is_empty() && text != "(null)")
}

/// A decimal number.
pub(crate) fn number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path)?.trim().parse().ok()
}

/// A number in hex, with `0x` in front or without.
pub(crate) fn hex(path: impl AsRef<Path>) -> Option<u32> {
    let text = text(path)?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

/// At most `bytes_max` bytes of a file; more is an error, since half a table is a wrong table.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

/// The last part of what a link points to: a driver's or a group's name.
pub(crate) fn link_name(path: impl AsRef<Path>) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// The names in a folder, sorted; none when the folder is not there.
pub(crate) fn names(path: impl AsRef<Path>) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is no UTF-8 is none of the kernel's.
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The names in a folder whose absence or refusal means "none" (an optional feature's folder).
pub(crate) fn names_or_none(path: impl AsRef<Path>) -> Vec<String> {
    names(path).unwrap_or_default()
}

/// Undoes the octal escapes (`\040`) of mount tables and `/proc/swaps`.
pub(crate) fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if byte == b'\\' => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        out.push(octal.unwrap_or(byte));
        rest = tail.get(if octal.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A path's canonical form, or the path itself where it cannot be followed.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape(r"/mnt/a\040b\134c"), r"/mnt/a b\c");
        assert_eq!(unescape(r"/mnt/\04"), r"/mnt/\04");
        assert_eq!(unescape(r"\777"), r"\777");
        assert_eq!(unescape(""), "");
    }

    #[test]
    fn values_that_say_none_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("driver_override");
        for (text, want) in [("(null)\n", None), ("\n", None), ("vfio-pci\n", Some("vfio-pci"))] {
            fs::write(&path, text).unwrap();
            assert_eq!(value(&path).as_deref(), want);
        }
        assert_eq!(value(dir.path().join("missing")), None);
    }

    #[test]
    fn a_file_past_its_limit_is_an_error_not_a_half() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long");
        fs::write(&path, [b'x'; 11]).unwrap();
        assert_eq!(read(&path, 11).unwrap().len(), 11);
        assert_eq!(read(&path, 10).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
