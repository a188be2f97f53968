//! The hands that take drives from the kernel and give them back.

use super::session::{Column, Hands, Observer};
use crate::failure::Failure;
use crate::preflight::{Subject, What};
use nvpoll_engine::Target;
use nvpoll_host::{Drive, Host, TakeOptions, Taken, UserDriver};

/// Takes drives through `nvpoll-host`. What it took goes back when it is dropped, on every way out
/// of the process but a kill; after that, `nvpoll unbind --all` does.
#[derive(Debug)]
pub struct HostHands {
    host: Host,
    options: TakeOptions,
    taken: Vec<Taken>,
}

impl HostHands {
    /// Hands that hold nothing, and take as `options` say.
    pub fn new(host: Host, options: TakeOptions) -> Self {
        Self { host, options, taken: Vec::new() }
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
        observer.doing(&format!("taking {} from the kernel for {}", drive.address, driver.name()));
        self.taken.push(self.host.take(drive, driver, &self.options)?);
        Ok(())
    }
}

impl Hands for HostHands {
    fn ready(&mut self, column: &Column, observer: &mut dyn Observer) -> Result<(), Failure> {
        let Some(driver) = column.kind.info().driver.and_then(UserDriver::from_name) else {
            return self.give_back(observer);
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
