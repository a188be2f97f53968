//! `identify`: what a controller and its namespaces say of themselves.

use super::Done;
use super::args::IdentifyArgs;
use super::out::say;
use crate::failure::Failure;
use crate::preflight::{self, Host, Subject};
use nvpoll_engine::OpenOptions;
use nvpoll_engine::inspect::{Inspection, inspect};

/// `nvpoll identify`
pub fn identify(args: &IdentifyArgs) -> Done {
    let host = Host::system();
    let subject = Subject::resolve(&host, &args.target)?;
    let target = preflight::controller(&host, &subject)?;
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
