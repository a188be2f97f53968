//! Promises of this crate, on recorded machines with a kernel that reacts and fails.

mod change;
mod drives;
mod records;
mod targets;
mod uses;

use nvpoll_spec::PciAddress;

use crate::fake::Machine;
use crate::{Drive, Host};

const FIRST: &str = "0000:00:04.0";
const SECOND: &str = "0000:00:05.0";

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn drive(host: &Host, text: &str) -> Drive {
    host.drive(address(text)).unwrap()
}

/// A machine with one drive that has a group, a driver and one namespace.
fn plain() -> (Machine, Host) {
    machine(crate::fake::PLAIN)
}

fn machine(tree: &str) -> (Machine, Host) {
    let machine = Machine::new(tree);
    let host = machine.host();
    (machine, host)
}
