//! The hands that take drives from the kernel and give them back.

use super::session::{Column, Hands, Observer};
use crate::failure::Failure;
use crate::preflight::{self, Subject, What};
use nvpoll_engine::Target;
use nvpoll_host::{Drive, Hold, Host, HostError, Outcome, TakeOptions, Taken, UserDriver};
use nvpoll_spec::PciAddress;
use std::io::ErrorKind;

/// Takes drives through `nvpoll-host`. What it took goes back when it is dropped, on every way out
/// of the process but a kill; after that, `nvpoll unbind --all` does.
///
/// Before a stack writes through the kernel it looks once more whether anything uses what is
/// written: a drive that came back may have been mounted since. While it writes, the engine's own
/// exclusive open keeps others from that.
#[derive(Debug)]
pub struct HostHands {
    host: Host,
    options: TakeOptions,
    writes: bool,
    taken: Vec<Taken>,
    /// Of drives that were bound before, by their addresses.
    holds: Vec<(PciAddress, Hold)>,
}

impl HostHands {
    /// Hands that hold nothing yet and take as `options` say, for a plan that `writes` or does not.
    pub fn new(host: Host, options: TakeOptions, writes: bool) -> Self {
        Self { host, options, writes, taken: Vec::new(), holds: Vec::new() }
    }

    /// Becomes the one nvpoll process on every bound drive of `columns`, before it is opened.
    ///
    /// # Errors
    /// When another process is, with its name and id.
    pub fn hold_bound(&mut self, columns: &[Column]) -> Result<(), Failure> {
        let subjects = columns.iter().flat_map(|column| &column.subjects);
        for subject in subjects.filter(|subject| subject.is_bound()) {
            let What::Drive { drive, .. } = &subject.what else { continue };
            if self.holds.iter().any(|(held, _)| *held == drive.address) {
                continue;
            }
            match self.host.hold(drive.address) {
                Ok(hold) => self.holds.push((drive.address, hold)),
                // A user to whom the node was given but no lock: the kernel keeps two apart.
                Err(HostError::Io { ref source, .. }) if is_refusal(source.kind()) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        drive: &Drive,
        driver: UserDriver,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        if self.taken.iter().any(|taken| taken.address() == drive.address) {
            return Ok(());
        }
        self.host.check_same(drive)?;
        preflight::contents_of(&self.host, &self.host.drive(drive.address)?)?;
        observer.doing(&format!("taking {} from the kernel for {}", drive.address, driver.name()));
        self.taken.push(self.host.take(drive, driver, &self.options)?);
        Ok(())
    }

    /// Looks once more at what a kernel engine is about to write.
    fn check_unused(&self, column: &Column) -> Result<(), Failure> {
        for subject in &column.subjects {
            let target = match &subject.what {
                What::Soft(_) | What::Null | What::File { is_scratch: true, .. } => continue,
                What::Drive { drive, nsid } => nvpoll_host::Target::Drive {
                    drive: Box::new(self.host.drive(drive.address)?),
                    namespace: Some(*nsid),
                },
                What::Block { .. } | What::File { .. } => self.host.resolve(&subject.name)?,
            };
            self.host.may_write(&subject.name, &target)?;
        }
        Ok(())
    }
}

fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

impl Hands for HostHands {
    fn ready(&mut self, column: &Column, observer: &mut dyn Observer) -> Result<(), Failure> {
        let Some(driver) = column.kind.info().driver.and_then(UserDriver::from_name) else {
            self.give_back(observer)?;
            return if self.writes { self.check_unused(column) } else { Ok(()) };
        };
        if self.taken.iter().any(|taken| taken.driver() != driver) {
            self.give_back(observer)?;
        }
        for subject in column.subjects.iter().filter(|subject| !subject.is_bound()) {
            if let Subject { what: What::Drive { drive, .. }, .. } = subject {
                self.take(drive, driver, observer)?;
            }
        }
        Ok(())
    }

    fn targets(&self, column: &Column) -> Result<Vec<(Target, u32)>, Failure> {
        for subject in &column.subjects {
            if let What::Drive { drive, .. } = &subject.what {
                self.host.check_same(drive)?;
            }
        }
        let subjects = column.subjects.iter();
        subjects.map(|subject| subject.engine_target(&self.host, column.kind)).collect()
    }

    fn give_back(&mut self, observer: &mut dyn Observer) -> Result<(), Failure> {
        let mut failures = Vec::new();
        // The kernel hands out the lowest free name, so that this order gives each drive its own.
        let by_number =
            |name: &Option<String>| name.as_ref().map(|name| (name.len(), name.clone()));
        self.taken.sort_by_key(|taken| by_number(&taken.found().controller));
        for taken in self.taken.drain(..) {
            let address = taken.address();
            observer.doing(&format!("giving {address} back"));
            match taken.give_back() {
                Ok(given) if given.outcome == Outcome::Gone => {
                    observer.warn(&format!("{address} is gone; nothing is left to give back"));
                }
                Ok(given) if given.namespaces_back => {
                    for (from, to) in &given.renamed {
                        let (from, to) = (from.display(), to.display());
                        observer.warn(&format!(
                            "{address} came back under another name: {from} is now {to}"
                        ));
                    }
                }
                Ok(given) => {
                    let missing: Vec<String> =
                        given.missing.iter().map(|node| node.display().to_string()).collect();
                    failures.push(format!(
                        "{address} is back with {}, but {} did not come back; look at the kernel's log",
                        given.driver.as_deref().unwrap_or("no driver"),
                        missing.join(", ")
                    ));
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Failure::failed(failures.join("; "))) }
    }
}

impl Drop for HostHands {
    fn drop(&mut self) {
        for (address, hold) in self.holds.drain(..) {
            // The lock file of a handed-over drive is its user's, and stays with its record.
            if matches!(self.host.record(address), Ok(None)) {
                hold.remove();
            }
        }
    }
}
