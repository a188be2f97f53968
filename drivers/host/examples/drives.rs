//! The crate by hand: what the machine has, what uses it, take and give back.
//!
//! ```text
//! drives list [--json]             every drive
//! drives resolve NAME              what a name leads to
//! drives uses NAME                 what uses it; exit status 3 when something does
//! drives signatures NAME           what lies on it
//! drives may-take NAME [OPTION…]   whether take would be refused
//! drives take NAME [OPTION…]       take, print its nodes, wait for a line on stdin, give back
//!     --uio  --no-iommu  --shared  --stay (leave it taken)  --user UID
//! drives give-back ADDRESS [--to DRIVER]
//! drives leftovers                 what is recorded as taken
//! drives repair                    give back everything that a dead process left
//! ```
//!
//! Exit status: 0 done; 1 failed; 2 bad usage; 3 refused for safety.

use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("this shows the drives of a Linux machine");
    ExitCode::from(2)
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match linux::run(&words) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("drives: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use nvpoll_host::{
        Drive, GiveBackOptions, GivenBack, Host, HostError, TakeOptions, Target, UserDriver,
    };

    type Status = Result<u8, HostError>;

    pub(super) fn run(words: &[&str]) -> Status {
        let host = Host::system();
        match words {
            ["list"] => list(&host),
            ["list", "--json"] => {
                println!("{}", serde_json::to_string_pretty(&host.drives()?).unwrap_or_default());
                Ok(0)
            }
            ["resolve", name] => {
                println!("{}", describe(&host.resolve(name)?));
                Ok(0)
            }
            ["uses", name] => uses(&host, name),
            ["signatures", name] => signatures(&host, name),
            ["may-take", name, options @ ..] => {
                let (driver, options, _) = parse(options)?;
                host.may_take(&the_drive(&host, name)?, driver, &options)?;
                println!("it may be taken");
                Ok(0)
            }
            ["take", name, options @ ..] => take(&host, name, options),
            ["give-back", name, options @ ..] => {
                let to = match options {
                    ["--to", driver] => Some((*driver).to_owned()),
                    _ => None,
                };
                // A drive that was unplugged has a record and nothing else.
                let address = match name.parse() {
                    Ok(address) => address,
                    Err(_) => the_drive(&host, name)?.address,
                };
                report(&host.give_back(address, &GiveBackOptions { to })?);
                Ok(0)
            }
            ["leftovers"] => {
                host.leftovers()?.iter().for_each(|leftover| println!("{leftover}"));
                Ok(0)
            }
            ["repair"] => {
                for leftover in host.leftovers()?.iter().filter(|leftover| leftover.is_orphan()) {
                    report(&host.give_back(leftover.address, &GiveBackOptions::default())?);
                }
                Ok(0)
            }
            _ => Err(usage("see the head of its source")),
        }
    }

    fn usage(remedy: &str) -> HostError {
        HostError::Target {
            name: "drives".into(),
            seen: "no such command or option".into(),
            remedy: remedy.into(),
        }
    }

    fn list(host: &Host) -> Status {
        let survey = host.survey()?;
        for drive in host.drives()? {
            let driver = drive.driver.as_deref().unwrap_or("none");
            let group = drive.iommu_group.as_ref().map(|group| group.id);
            println!("{} driver {driver} group {group:?}", drive.summary());
            for namespace in &drive.namespaces {
                let nvpoll_host::Namespace { nsid, size_bytes, lba_bytes, .. } = namespace;
                let (node, generic) = (&namespace.node, &namespace.generic);
                let metadata = namespace.metadata_bytes;
                println!(
                    "  nsid {nsid} node {node:?} generic {generic:?} size {size_bytes} \
                     lba {lba_bytes} metadata {metadata:?} partitions {}",
                    namespace.partitions.len()
                );
            }
            survey.uses(&drive).iter().for_each(|found| println!("  in use: {found}"));
        }
        Ok(0)
    }

    fn describe(target: &Target) -> String {
        match target {
            Target::Drive { drive, namespace } => {
                format!("drive {} namespace {namespace:?}", drive.address)
            }
            Target::Block { node, size_bytes, lba_bytes, .. } => {
                format!("block {} size {size_bytes} lba {lba_bytes}", node.display())
            }
            Target::File { path, size_bytes } => {
                format!("file {} size {size_bytes}", path.display())
            }
        }
    }

    fn uses(host: &Host, name: &str) -> Status {
        let target = host.resolve(name)?;
        let uses = host.survey()?.uses_of(&target);
        uses.iter().for_each(|found| println!("{found}"));
        Ok(if uses.is_empty() { 0 } else { 3 })
    }

    fn signatures(host: &Host, name: &str) -> Status {
        match host.resolve(name)? {
            Target::Drive { drive, .. } => {
                for node in host.signatures(&drive)? {
                    for found in node.found {
                        println!("{}: {found}", node.node.display());
                    }
                }
            }
            Target::Block { node, .. } | Target::File { path: node, .. } => {
                for found in host.node_signatures(&node)? {
                    println!("{}: {found}", node.display());
                }
            }
        }
        Ok(0)
    }

    /// A drive by its serial number or any of its names.
    fn the_drive(host: &Host, name: &str) -> Result<Drive, HostError> {
        if let Some(drive) = host.drives()?.into_iter().find(|d| d.serial.as_deref() == Some(name))
        {
            return Ok(drive);
        }
        match host.resolve(name)? {
            Target::Drive { drive, .. } => Ok(*drive),
            _ => Err(usage("name a drive")),
        }
    }

    fn parse(words: &[&str]) -> Result<(UserDriver, TakeOptions, Option<u32>), HostError> {
        let mut driver = UserDriver::VfioPci;
        let mut options = TakeOptions::default();
        let mut user = None;
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--uio" => driver = UserDriver::UioPciGeneric,
                "--no-iommu" => options.allow_no_iommu = true,
                "--shared" => options.allow_shared = true,
                "--stay" => options.persistent = true,
                "--user" => user = words.next().and_then(|uid| uid.parse().ok()),
                _ => return Err(usage("see the head of its source")),
            }
        }
        Ok((driver, options, user))
    }

    fn take(host: &Host, name: &str, words: &[&str]) -> Status {
        let (driver, options, user) = parse(words)?;
        let taken = host.take(&the_drive(host, name)?, driver, &options)?;
        println!("taken {} by {:?} nodes {:?}", taken.address(), driver, taken.nodes());
        if let Some(uid) = user {
            println!("given to {uid}: {:?}", host.set_owner(&taken, uid, uid)?);
            println!("memlock {:?}", host.memlock()?);
        }
        if options.persistent {
            return Ok(0);
        }
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        report(&taken.give_back()?);
        Ok(0)
    }

    fn report(given: &GivenBack) {
        let GivenBack { address, outcome, driver, namespaces_back, missing, renamed } = given;
        println!(
            "given back {address} {outcome:?} driver {driver:?} all back {namespaces_back} \
             missing {missing:?} renamed {renamed:?}"
        );
    }
}
