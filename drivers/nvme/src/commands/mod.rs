//! The rarer commands, each sent by itself and waited for: nothing here is on the way of an I/O.
//!
//! [`Commands`] has the NVM commands beyond Read, Write and Flush, and in `zones.rs` those of zoned
//! namespaces; `logs.rs`, `features.rs`, `format.rs` and `events.rs` give [`Controller`] the admin
//! commands. What a controller does not offer (ONCS, OAES,
//! APSTA) is refused here, before anything is sent.

mod events;
mod features;
mod format;
mod logs;
mod zones;

pub use features::Apst;
pub use format::{FormatWish, SecureErase};
pub use zones::Zones;

use crate::limits::COMMAND_WAIT;
use crate::{Controller, Namespace, NvmeError, PairOptions, QueuePair};
use nvpoll_pci::Function;
use nvpoll_spec::{
    CopyRange, DatasetRange, FORCE_UNIT_ACCESS, Nvm, NvmOpcode, OptionalCommands, Status,
    SubmissionEntry,
};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A queue pair for one command at a time, of any kind, on one namespace.
///
/// Blocks are counted in the namespace's logical blocks. Lengths that a command has no field for are
/// refused, not cut: a caller sees each command's own status.
#[derive(Debug)]
pub struct Commands<F: Function> {
    pair: QueuePair<F>,
    namespace: Namespace,
    controller: Arc<Controller<F>>,
    optional: OptionalCommands,
    data_bytes_max: u32,
    writable: bool,
}

impl<F: Function> Commands<F> {
    /// Makes the queue pair. Without `writable`, commands that change the medium are refused.
    ///
    /// # Errors
    /// As of [`QueuePair::new`]; [`NvmeError::Unsupported`] for a namespace with metadata, which these
    /// commands would need words for that are not made here.
    pub fn new(
        controller: &Arc<Controller<F>>,
        namespace: &Namespace,
        writable: bool,
    ) -> Result<Self, NvmeError> {
        if namespace.metadata.is_some() {
            let nsid = namespace.nsid;
            return Err(controller.unsupported(format!(
                "namespace {nsid} has metadata; other commands than read, write and flush are sent to namespaces without"
            )));
        }
        let block_bytes = namespace.block_bytes;
        // Room for the longest list of ranges as well (Dataset Management: 256 of 16 bytes).
        let data_bytes_max = (controller.command_bytes_max() / block_bytes * block_bytes)
            .max(4096u32.next_multiple_of(block_bytes));
        let options = PairOptions { depth: 1, io_bytes: data_bytes_max, ..PairOptions::default() };
        Ok(Self {
            pair: QueuePair::new(controller, namespace, options)?,
            namespace: *namespace,
            controller: Arc::clone(controller),
            optional: controller.identity().optional_commands(),
            data_bytes_max,
            writable,
        })
    }

    /// Reads from block `lba` on; `data` is whole blocks.
    ///
    /// # Errors
    /// When the range or the length does not fit, or the controller reports an error.
    pub fn read(&mut self, lba: u64, data: &mut [u8]) -> Result<(), NvmeError> {
        let blocks = self.blocks_of("Read", data)?;
        self.ranged("Read", NvmOpcode::READ, lba, blocks, data.len())?;
        self.pair.copy_out(0, data);
        Ok(())
    }

    /// Writes from block `lba` on; with `fua` not done before it is on the medium.
    ///
    /// # Errors
    /// As of [`read`](Self::read); and when writing is not allowed.
    pub fn write(&mut self, lba: u64, data: &[u8], fua: bool) -> Result<(), NvmeError> {
        self.may_write("Write")?;
        let blocks_z = zero_based(self.blocks_of("Write", data)?);
        self.check_range("Write", lba, u64::from(blocks_z) + 1)?;
        self.pair.fill(0, data);
        let mut entry = SubmissionEntry::io(NvmOpcode::WRITE, self.namespace.nsid, lba, blocks_z);
        if fua {
            entry.cdw12 |= FORCE_UNIT_ACCESS;
        }
        self.send("Write", entry, data.len())
    }

    /// Makes earlier completed writes durable.
    ///
    /// # Errors
    /// When the controller reports an error.
    pub fn flush(&mut self) -> Result<(), NvmeError> {
        let entry = SubmissionEntry::io(NvmOpcode::FLUSH, self.namespace.nsid, 0, 0);
        self.send("Flush", entry, 0)
    }

    /// Whether `data` is what the medium has from block `lba` on (§6.6).
    ///
    /// # Errors
    /// When the controller has no Compare, or as of [`read`](Self::read).
    pub fn compare(&mut self, lba: u64, data: &[u8]) -> Result<bool, NvmeError> {
        self.offered("Compare", 0, self.optional.compare())?;
        let blocks = self.blocks_of("Compare", data)?;
        self.check_range("Compare", lba, blocks.into())?;
        self.pair.fill(0, data);
        match self.ranged("Compare", NvmOpcode::COMPARE, lba, blocks, data.len()) {
            Ok(()) => Ok(true),
            Err(NvmeError::Command { status, .. })
                if Status::new(status.code_type().0, status.code()) == Status::COMPARE_FAILURE =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Has the controller read `blocks` and check them, without handing them out (§6.14).
    ///
    /// # Errors
    /// When the controller has no Verify, the range does not fit, or the blocks cannot be read.
    pub fn verify(&mut self, lba: u64, blocks: u32) -> Result<(), NvmeError> {
        self.offered("Verify", 7, self.optional.verify())?;
        self.ranged("Verify", NvmOpcode::VERIFY, lba, blocks, 0)
    }

    /// Makes `blocks` read as zeroes; with `deallocate` the controller should free them too (§6.17).
    ///
    /// # Errors
    /// When the controller has no Write Zeroes, writing is not allowed, or the range does not fit.
    pub fn write_zeroes(
        &mut self,
        lba: u64,
        blocks: u32,
        deallocate: bool,
    ) -> Result<(), NvmeError> {
        self.offered("Write Zeroes", 3, self.optional.write_zeroes())?;
        self.may_write("Write Zeroes")?;
        self.check_length("Write Zeroes", lba, blocks)?;
        let nsid = self.namespace.nsid;
        self.send("Write Zeroes", Nvm::write_zeroes(nsid, lba, zero_based(blocks), deallocate), 0)
    }

    /// Marks `blocks` so that reading them fails, until they are written (§6.16).
    ///
    /// # Errors
    /// When the controller has no Write Uncorrectable, writing is not allowed, or the range does not
    /// fit.
    pub fn write_uncorrectable(&mut self, lba: u64, blocks: u32) -> Result<(), NvmeError> {
        const NAME: &str = "Write Uncorrectable";
        self.offered(NAME, 1, self.optional.write_uncorrectable())?;
        self.may_write(NAME)?;
        self.ranged(NAME, NvmOpcode::WRITE_UNCORRECTABLE, lba, blocks, 0)
    }

    /// Deallocates up to 256 ranges of first block and length (§6.7). What they read as afterwards is
    /// the namespace's DLFEAT.
    ///
    /// # Errors
    /// When the controller has no Dataset Management, writing is not allowed, there is no range or
    /// too many, or one does not fit.
    pub fn deallocate(&mut self, ranges: &[(u64, u32)]) -> Result<(), NvmeError> {
        const NAME: &str = "Dataset Management";
        self.offered(NAME, 2, self.optional.dataset_management())?;
        self.may_write(NAME)?;
        let ranges_z = self.count_z(NAME, ranges.len(), 256)?;
        for &(lba, blocks) in ranges {
            self.check_range(NAME, lba, blocks.into())?;
        }
        let range = |&(lba, blocks): &_| DatasetRange { attributes: 0, blocks, lba };
        let list: Vec<DatasetRange> = ranges.iter().map(range).collect();
        self.pair.fill(0, list.as_bytes());
        let entry = Nvm::deallocate(self.namespace.nsid, ranges_z);
        self.send(NAME, entry, list.as_bytes().len())
    }

    /// Copies `sources`, ranges of first block and length, one behind the other to block `lba` on
    /// (descriptor format 0). The controller's limits for that are in its Identify Namespace page.
    ///
    /// # Errors
    /// When the controller has no Copy, writing is not allowed, there is no range or too many, or one
    /// does not fit.
    pub fn copy(&mut self, lba: u64, sources: &[(u64, u32)]) -> Result<(), NvmeError> {
        self.offered("Copy", 8, self.optional.copy())?;
        self.may_write("Copy")?;
        let ranges_z = self.count_z("Copy", sources.len(), 128)?;
        let mut total = 0;
        for &(lba, blocks) in sources {
            self.check_length("Copy", lba, blocks)?;
            total += u64::from(blocks);
        }
        self.check_range("Copy", lba, total)?;
        let range = |&(lba, blocks): &(u64, u32)| CopyRange::new(lba, zero_based(blocks));
        let list: Vec<CopyRange> = sources.iter().map(range).collect();
        self.pair.fill(0, list.as_bytes());
        let entry = Nvm::copy(self.namespace.nsid, lba, ranges_z);
        self.send("Copy", entry, list.as_bytes().len())
    }

    /// Sends a command whose only words are SLBA and NLB.
    fn ranged(
        &mut self,
        name: &str,
        opcode: NvmOpcode,
        lba: u64,
        blocks: u32,
        data_bytes: usize,
    ) -> Result<(), NvmeError> {
        self.check_length(name, lba, blocks)?;
        let entry = SubmissionEntry::io(opcode, self.namespace.nsid, lba, zero_based(blocks));
        self.send(name, entry, data_bytes)
    }

    fn send(
        &mut self,
        name: &str,
        entry: SubmissionEntry,
        data_bytes: usize,
    ) -> Result<(), NvmeError> {
        self.pair.run_alone(name, entry, data_bytes, COMMAND_WAIT).map(|_| ())
    }

    fn offered(&self, name: &str, bit: u8, is_offered: bool) -> Result<(), NvmeError> {
        if is_offered {
            return Ok(());
        }
        Err(self
            .controller
            .unsupported(format!("the controller has no {name} command (ONCS bit {bit} is 0)")))
    }

    fn may_write(&self, name: &str) -> Result<(), NvmeError> {
        if self.writable {
            return Ok(());
        }
        Err(self.controller.limit(format!("{name} was not sent: it was opened for reading only")))
    }

    /// A data buffer's length in blocks.
    fn blocks_of(&self, name: &str, data: &[u8]) -> Result<u32, NvmeError> {
        let (block_bytes, bytes_max) = (self.namespace.block_bytes, self.data_bytes_max);
        match u32::try_from(data.len()) {
            Ok(bytes) if bytes % block_bytes == 0 && bytes <= bytes_max => Ok(bytes / block_bytes),
            _ => Err(self.controller.limit(format!(
                "{name} of {} bytes was not sent: it takes whole blocks of {block_bytes} bytes, at most {bytes_max}",
                data.len()
            ))),
        }
    }

    /// At least one block and no more than NLB can say, all inside of the namespace.
    fn check_length(&self, name: &str, lba: u64, blocks: u32) -> Result<(), NvmeError> {
        if !(1..=1 << 16).contains(&blocks) {
            return Err(self.controller.limit(format!(
                "{name} of {blocks} blocks was not sent: a command has 1 to 65536"
            )));
        }
        self.check_range(name, lba, blocks.into())
    }

    fn check_range(&self, name: &str, lba: u64, blocks: u64) -> Result<(), NvmeError> {
        let size = self.namespace.blocks;
        if lba.checked_add(blocks).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(self.controller.limit(format!(
            "{name} of {blocks} blocks from {lba} on was not sent: the namespace has {size}"
        )))
    }

    /// A count of ranges as its zero-based field.
    fn count_z(&self, name: &str, count: usize, most: usize) -> Result<u8, NvmeError> {
        let z = count.checked_sub(1).filter(|_| count <= most && count * 16 <= 4096);
        z.and_then(|z| u8::try_from(z).ok()).ok_or_else(|| {
            let reason = format!("{name} of {count} ranges was not sent: it takes 1 to {most}");
            self.controller.limit(reason)
        })
    }
}

/// NLB: zero-based, of a length that was checked.
fn zero_based(blocks: u32) -> u16 {
    blocks.wrapping_sub(1) as u16
}
