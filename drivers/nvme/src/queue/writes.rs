//! What a lane's writes do.

use nvpoll_spec::{FORCE_UNIT_ACCESS, NvmOpcode};

/// What a write does. The kernel's paths know all; an NVMe command is durable or not (FUA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WriteMode {
    /// It writes, perhaps to a cache that a power failure empties.
    #[default]
    Write,
    /// It is not done before its data is on the medium (`O_DSYNC`).
    Dsync,
    /// The same, and all that a file system notes of it (`O_SYNC`).
    Sync,
    /// It deallocates its blocks (Dataset Management), and moves no data.
    Deallocate,
}

impl WriteMode {
    /// Whether a write is durable when it is done.
    pub const fn is_durable(self) -> bool {
        matches!(self, Self::Dsync | Self::Sync)
    }

    /// CDW12 of a command with `opcode` beside its length: FUA in durable writes (§6.15).
    pub const fn cdw12(self, opcode: NvmOpcode) -> u32 {
        let is_write = opcode.0 == NvmOpcode::WRITE.0;
        if self.is_durable() && is_write { FORCE_UNIT_ACCESS } else { 0 }
    }
}
