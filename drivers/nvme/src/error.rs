//! What can go wrong, and what to do about it.

use nvpoll_mem::{MemError, RegisterError};
use nvpoll_spec::Status;
use std::time::Duration;

/// A controller that does not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NvmeError {
    /// A wait ended without the awaited state.
    #[error("{location}: {what} did not happen within {} ms (CSTS {csts:#010x}); the controller does not answer: try a power cycle, or remove and rescan the PCI device", waited.as_millis())]
    Timeout {
        /// Which controller.
        location: String,
        /// What was awaited.
        what: &'static str,
        /// For how long.
        waited: Duration,
        /// Controller status as read last.
        csts: u32,
    },
    /// CSTS.CFS is set.
    #[error(
        "{location}: the controller reports a fatal error (CSTS {csts:#010x}, CFS set) while waiting for {what}; it needs a reset"
    )]
    Fatal {
        /// Which controller.
        location: String,
        /// What was awaited.
        what: &'static str,
        /// Controller status as read last.
        csts: u32,
    },
    /// Registers read as all ones: nothing answers on the bus.
    #[error(
        "{location}: the device is gone (registers read as all ones) while waiting for {what}; it was unplugged, its link is down, or somebody else turned it off"
    )]
    Gone {
        /// Which controller.
        location: String,
        /// What was awaited.
        what: &'static str,
    },
    /// Interrupts cannot be had.
    #[error("{0}")]
    Interrupts(#[from] nvpoll_pci::PciError),
    /// A command came back with an error.
    #[error("{location}: {command} failed: {status}")]
    Command {
        /// Which controller.
        location: String,
        /// Which command.
        command: String,
        /// What the controller said.
        status: Status,
    },
    /// The controller broke the queue protocol.
    #[error("{location}: {source}")]
    Protocol {
        /// Which controller.
        location: String,
        /// How.
        source: ProtocolError,
    },
    /// The controller or namespace is one that this driver does not drive.
    #[error("{location}: {reason}")]
    Unsupported {
        /// Which controller.
        location: String,
        /// What was seen and what to do.
        reason: String,
    },
    /// What was asked for does not fit the controller.
    #[error("{location}: {reason}")]
    Limit {
        /// Which controller.
        location: String,
        /// What was seen and what to do.
        reason: String,
    },
    /// A register lies outside the mapped BAR.
    #[error("{location}: {source}")]
    Register {
        /// Which controller.
        location: String,
        /// Which register.
        source: RegisterError,
    },
    /// Memory for the device could not be had.
    #[error("{location}: {source}")]
    Memory {
        /// Which controller.
        location: String,
        /// Why.
        source: MemError,
    },
}

/// A completion that cannot be: the run it belongs to is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No command with this identifier is outstanding: it completed before, or was never sent.
    #[error(
        "queue {qid}: a completion for CID {cid:#06x}, which is not outstanding (late, doubled or invented); the results of this run are void"
    )]
    UnknownCid {
        /// Which queue pair.
        qid: u16,
        /// The completion's CID.
        cid: u16,
    },
    /// The completion names another submission queue.
    #[error(
        "queue {qid}: a completion that names submission queue {sq_id}; the results of this run are void"
    )]
    WrongQueue {
        /// Which queue pair.
        qid: u16,
        /// The completion's SQID.
        sq_id: u16,
    },
}
