//! Whether a target may be written.

use super::contents::{Contents, examine};
use super::subject::{Subject, What};
use crate::failure::Failure;
use nvpoll_engine::{EngineKind, OpenOptions};
use nvpoll_host::{Drive, Host};
use nvpoll_spec::PciAddress;

/// Checks that every target may be written, each with an engine that will write it: nothing uses it,
/// what lies on it could be seen, and `destroy_data` names it (a drive by its serial number, another
/// block device or a file by the name that was typed). Soft drives and files that this process made
/// need no leave.
///
/// `deed` says what is to be done with them, as a clause. A bound drive is opened, as `opening` says, and read through the userspace driver for that.
///
/// # Errors
/// [`Failure`] refused, with the evidence: what uses it, why it could not be examined, or what would
/// be lost and how to allow it.
pub fn check_writes(
    host: &Host,
    subjects: &[(EngineKind, &Subject)],
    destroy_data: &[String],
    opening: &OpenOptions,
    deed: &str,
) -> Result<(), Failure> {
    for (kind, subject) in subjects {
        if matches!(&subject.what, What::Soft(_) | What::Null | What::File { is_scratch: true, .. })
        {
            continue;
        }
        host.may_write(&subject.name, &host.resolve(&subject.name)?)?;
        let contents =
            examine(host, *kind, subject, opening).map_err(|why| unseen(subject, &why, deed))?;
        let (identity, kind) = match &subject.what {
            What::Drive { drive, .. } => drive_identity(host, drive, &contents, deed)?,
            _ => (subject.name.clone(), "name"),
        };
        if destroy_data.contains(&identity) {
            continue;
        }
        let given = match destroy_data {
            [] => String::new(),
            given => format!(" (--destroy-data {} names another)", given.join(", ")),
        };
        let lost = match contents.found.as_slice() {
            [] => "its data would be lost (no known signature is on it)".to_owned(),
            found => format!("its data would be lost: {}", found.join(", ")),
        };
        let name = &subject.name;
        return Err(Failure::refused(format!(
            "{name}: {deed}, and {lost}; to allow it, name the target by its {kind}: --destroy-data {identity}{given}"
        )));
    }
    Ok(())
}

/// What cannot be seen may be anything: no flag allows to write over it.
fn unseen(subject: &Subject, why: &str, deed: &str) -> Failure {
    let name = &subject.name;
    Failure::refused(format!(
        "{name}: {deed}, and what lies on it could not be examined: {why}; it counts as in use, and is not written"
    ))
}

/// What must be named to write a drive, and what that is: its serial number, or its address where
/// another drive of this machine has the same serial number.
fn drive_identity(
    host: &Host,
    drive: &Drive,
    contents: &Contents,
    deed: &str,
) -> Result<(String, &'static str), Failure> {
    let address = drive.address;
    let serial = match (&contents.serial, &drive.serial) {
        (Some(own), Some(recorded)) if own != recorded => {
            return Err(Failure::refused(format!(
                "{address}: the drive says that its serial number is {own}, and it was {recorded} when nvpoll took it; find out which drive this is (`nvpoll list`, `nvpoll identify {address}`)"
            )));
        }
        (Some(own), _) => own,
        (None, Some(serial)) => serial,
        (None, None) => "",
    };
    if serial.is_empty() {
        return Err(Failure::refused(format!(
            "{address}: {deed}, and the drive's serial number is not known, so that nobody can name it; give the drive to the kernel (`nvpoll unbind {address} --to nvme`) and let nvpoll bind it"
        )));
    }
    let all = host.drives()?.into_iter();
    let all: Vec<_> = all.map(|other| (other.address, other.serial)).collect();
    Ok(identity(address, serial, &all))
}

fn identity(
    address: PciAddress,
    serial: &str,
    all: &[(PciAddress, Option<String>)],
) -> (String, &'static str) {
    let is_same = |other: &&(PciAddress, Option<String>)| {
        other.0 != address && other.1.as_deref() == Some(serial)
    };
    match all.iter().find(is_same) {
        None => (serial.to_owned(), "serial number"),
        Some(_) => (address.to_string(), "address (another drive here has its serial number)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_that_two_drives_have_names_neither() {
        let at = |text: &str| text.parse::<PciAddress>().unwrap();
        let (first, second) = (at("0000:01:00.0"), at("0000:02:00.0"));
        let all = [(first, Some("S1".to_owned())), (second, Some("S10".to_owned()))];
        assert_eq!(identity(first, "S1", &all).0, "S1", "a common beginning is no match");
        let all = [(first, Some("S1".to_owned())), (second, Some("S1".to_owned()))];
        assert_eq!(identity(first, "S1", &all).0, "0000:01:00.0");
        assert_eq!(identity(second, "S1", &all).0, "0000:02:00.0");
    }
}
