//! Whether a target may be written.

use super::subject::{Subject, What};
use crate::failure::Failure;
#[cfg(target_os = "linux")]
use nvpoll_host::{Drive, Host};

/// Checks that every target may be written: nothing uses it, and `destroy_data` names it (a drive
/// by its serial number, another block device or a file by the name that was typed). Soft drives
/// and files that this process made need no leave.
///
/// # Errors
/// [`Failure`] refused, with the evidence: what uses it, or what would be lost and how to allow it.
#[cfg(target_os = "linux")]
pub fn check_writes(
    host: &Host,
    subjects: &[&Subject],
    destroy_data: &[String],
) -> Result<(), Failure> {
    for subject in subjects {
        let (identity, kind) = match &subject.what {
            What::Soft(_) | What::Null | What::File { is_scratch: true, .. } => continue,
            What::Drive { drive, .. } => (serial(drive)?, "serial number"),
            What::Block { .. } | What::File { .. } => (subject.name.clone(), "name"),
        };
        check_unused(host, subject)?;
        if destroy_data.contains(&identity) {
            continue;
        }
        let given = match destroy_data {
            [] => String::new(),
            given => format!(" (--destroy-data {} names another)", given.join(", ")),
        };
        let lost = what_lies_on(host, subject);
        let name = &subject.name;
        return Err(Failure::refused(format!(
            "{name}: this workload writes, and {lost}; to allow it, name the target by its {kind}: --destroy-data {identity}{given}"
        )));
    }
    Ok(())
}

/// The serial number that must be named.
#[cfg(target_os = "linux")]
fn serial(drive: &Drive) -> Result<String, Failure> {
    let recorded = drive.record.as_ref().and_then(|record| record.serial.clone());
    drive.serial.clone().or(recorded).ok_or_else(|| {
        let address = drive.address;
        Failure::refused(format!(
            "{address}: this workload writes, and the drive's serial number is not known, so that nobody can name it; give the drive to the kernel (`nvpoll unbind {address} --to nvme`) and let nvpoll bind it"
        ))
    })
}

#[cfg(target_os = "linux")]
fn check_unused(host: &Host, subject: &Subject) -> Result<(), Failure> {
    let target = host.resolve(&subject.name)?;
    let uses = host.survey()?.uses_of(&target);
    if uses.is_empty() {
        return Ok(());
    }
    let listed: Vec<String> = uses.iter().map(ToString::to_string).collect();
    let name = &subject.name;
    Err(Failure::refused(format!(
        "{name} is in use and is not written: {}; end these uses first",
        listed.join("; ")
    )))
}

/// What would be lost, as far as it can be seen: a clause.
#[cfg(target_os = "linux")]
fn what_lies_on(host: &Host, subject: &Subject) -> String {
    let nodes = match &subject.what {
        What::Drive { drive, .. } => host.signatures(drive),
        What::Block { node: path, .. } | What::File { path, .. } => host
            .node_signatures(path)
            .map(|found| vec![nvpoll_host::NodeSignatures { node: path.clone(), found }]),
        What::Soft(_) | What::Null => Ok(Vec::new()),
    };
    let nodes = match nodes {
        Ok(nodes) => nodes,
        Err(error) => return format!("what is on it could not be examined ({error})"),
    };
    let mut found = Vec::new();
    for node in &nodes {
        for signature in &node.found {
            found.push(format!("{} on {}", signature, node.node.display()));
        }
    }
    match (found.is_empty(), nodes.is_empty()) {
        (false, _) => format!("its data would be lost: {}", found.join(", ")),
        (true, false) => "its data would be lost (no known signature is on it)".to_owned(),
        (true, true) => "its data would be lost (the kernel does not see it now)".to_owned(),
    }
}
