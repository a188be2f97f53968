//! `identify`: what a controller and its namespaces say of themselves.

use super::Done;
use super::args::IdentifyArgs;
use super::out::say;
use crate::failure::Failure;
use crate::preflight::{self, Subject, What};
use nvpoll_engine::OpenOptions;
use nvpoll_engine::inspect::{Inspection, inspect};
use nvpoll_host::Host;

/// `nvpoll identify`
pub fn identify(args: &IdentifyArgs) -> Done {
    let host = Host::system();
    let subject = Subject::resolve(&host, &args.target)?;
    let target = match &subject.what {
        What::Soft(options) => nvpoll_engine::Target::Soft(options.clone()),
        What::Drive { drive, .. } if subject.is_bound() => {
            preflight::check_undriven(&host, drive)?;
            nvpoll_engine::Target::Pci(drive.address)
        }
        What::Drive { drive, .. } => match &drive.controller {
            Some(name) => nvpoll_engine::Target::Path(format!("/dev/{name}").into()),
            None => {
                return Err(Failure::usage(format!(
                    "{}: neither the kernel nor a userspace driver has this drive; `nvpoll bind {}` takes it",
                    args.target, drive.address
                )));
            }
        },
        _ => {
            return Err(Failure::usage(format!(
                "{} is {}, not an NVMe controller; name a drive or soft[:options]",
                args.target,
                subject.describe()
            )));
        }
    };
    let opening = OpenOptions {
        transport: args.transport.options(),
        quirks: args.transport.quirks,
        ..OpenOptions::default()
    };
    let inspection = inspect(&target, &opening)?;
    if args.json {
        let text = serde_json::to_string_pretty(&inspection);
        say!("{}", text.map_err(|error| Failure::failed(error.to_string()))?)?;
    } else {
        print(&inspection)?;
    }
    Ok(0)
}

fn print(inspection: &Inspection) -> Result<(), Failure> {
    say!("read through: {}", inspection.through)?;
    for section in &inspection.sections {
        say!("\n{}", section.title)?;
        for (name, value) in &section.facts {
            say!("  {name:<34} {value}")?;
        }
    }
    Ok(())
}
