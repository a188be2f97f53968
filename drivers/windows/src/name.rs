//! What a path means to Windows.

use std::path::Path;

/// A path as a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `\\.\PhysicalDrive1`: the whole disk of this number.
    Disk(u32),
    /// `\\.\X:`: the volume of this letter, in upper case.
    Volume(char),
    /// Anything else: a file, or nothing.
    File,
}

impl Name {
    /// What `path` means. Windows does not tell upper and lower case apart, nor `\\.\` and `\\?\`.
    pub fn of(path: &Path) -> Self {
        let Some(text) = path.to_str() else { return Self::File };
        let bytes = text.as_bytes();
        let is_device = matches!(bytes, [b'\\', b'\\', b'.' | b'?', b'\\', ..]);
        let Some(rest) = text.get(4..).filter(|_| is_device) else { return Self::File };
        let drive = rest.get(..13).filter(|word| word.eq_ignore_ascii_case("PhysicalDrive"));
        if drive.is_some() {
            let digits = rest.get(13..).unwrap_or_default();
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            return digits.parse().ok().filter(|_| plain).map_or(Self::File, Self::Disk);
        }
        match rest.as_bytes() {
            [letter, b':'] if letter.is_ascii_alphabetic() => {
                Self::Volume(char::from(letter.to_ascii_uppercase()))
            }
            _ => Self::File,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_volumes_and_files() {
        for (text, name) in [
            (r"\\.\PhysicalDrive0", Name::Disk(0)),
            (r"\\?\physicaldrive12", Name::Disk(12)),
            (r"\\.\x:", Name::Volume('X')),
            (r"\\.\PhysicalDrive", Name::File),
            (r"\\.\PhysicalDrive+1", Name::File),
            (r"\\.\PhysicalDrive1x", Name::File),
            (r"\\.\PhysicalDrive99999999999", Name::File),
            (r"\\.\X:\file", Name::File),
            (r"\\?\C:\file", Name::File),
            (r"C:\PhysicalDrive1", Name::File),
            (r"X:", Name::File),
            ("", Name::File),
            (r"\\.\ä:", Name::File),
        ] {
            assert_eq!(Name::of(Path::new(text)), name, "{text}");
        }
    }
}
