//! What the driver promises, against two controllers in software: the soft controller, which moves
//! data and errs on demand, and [`fake`], a register file that says whatever a test has it say.
//!
//! Both are looked at through [`spy`], which sees every register access, doorbell, mapping and
//! command that passes between the driver and the device, and so knows in which order things
//! happened. Nothing here waits for a time to pass but the tests of the driver's own bounds.

mod beside;
mod bring_up;
mod commands;
mod durable;
mod faults;
mod identify;
mod model;
mod order;
mod protect;
mod queue;
mod queues;
mod quirks;
mod shadow;
mod support;
mod transfer;
mod trim;
mod zones;

mod fake;
mod spy;
