//! A namespace as I/O needs it.

use crate::{Metadata, NvmeError, Zones};
use nvpoll_spec::NamespaceIdentity;

/// Smallest and largest block that the driver moves, as powers of two: 512 bytes to 64 KiB.
const BLOCK_LOG2: std::ops::RangeInclusive<u8> = 9..=16;

/// What a namespace holds and in which units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// NSID.
    pub nsid: u32,
    /// NSZE: size in logical blocks.
    pub blocks: u64,
    /// Bytes in a logical block, a power of two.
    pub block_bytes: u32,
    /// The same as a shift.
    pub block_log2: u8,
    /// What a block has beside its data.
    pub metadata: Option<Metadata>,
    /// What its zones are, where it has some: a write then lands at a zone's write pointer alone.
    pub zones: Option<Zones>,
}

impl Namespace {
    /// Reads what I/O needs out of an Identify Namespace page.
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] for an inactive namespace, a format that does not exist, and blocks
    /// or metadata of sizes that the driver does not move.
    pub fn new(location: &str, nsid: u32, page: &NamespaceIdentity) -> Result<Self, NvmeError> {
        let unsupported = |reason: String| {
            Err(NvmeError::Unsupported {
                location: location.to_owned(),
                reason: format!("namespace {nsid} {reason}"),
            })
        };
        if page.blocks == 0 {
            return unsupported(
                "is not active (NSZE is 0); name one that `nvpoll identify` lists".into(),
            );
        }
        let Some(format) = page.format_in_use() else {
            let (format, formats) = (page.format, u32::from(page.formats_z) + 1);
            return unsupported(format!(
                "says it uses LBA format {format:#x} of {formats}; its Identify page is not valid"
            ));
        };
        if !BLOCK_LOG2.contains(&format.data_log2) {
            let log2 = format.data_log2;
            return unsupported(format!(
                "has blocks of 2^{log2} bytes; 512 bytes to 64 KiB are driven"
            ));
        }
        let metadata = match Metadata::new(page, format.metadata_bytes) {
            Ok(metadata) => metadata,
            Err(reason) => return unsupported(reason),
        };
        let block_bytes = 1 << format.data_log2;
        if page.blocks.checked_mul(u64::from(block_bytes)).is_none() {
            let blocks = page.blocks;
            return unsupported(format!(
                "says it has {blocks} blocks, more than 2^64 bytes; its Identify page is not valid"
            ));
        }
        let (blocks, block_log2) = (page.blocks, format.data_log2);
        Ok(Self { nsid, blocks, block_bytes, block_log2, metadata, zones: None })
    }

    /// The same where the host makes and checks protection information.
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] where its blocks have none.
    pub fn protected_by_host(self, location: &str) -> Result<Self, NvmeError> {
        let Some(metadata) = self.metadata.and_then(Metadata::protected_by_host) else {
            return Err(NvmeError::Unsupported {
                location: location.to_owned(),
                reason: format!(
                    "namespace {} has no protection information that the host could make (DPS is 0); leave out pi=host, or format it with some (nvpoll format --pi erases the drive)",
                    self.nsid
                ),
            });
        };
        Ok(Self { metadata: Some(metadata), ..self })
    }

    /// Bytes that a block takes in a buffer: its data, and metadata that comes behind it.
    pub fn memory_bytes(&self) -> u32 {
        self.block_bytes + self.metadata.map_or(0, Metadata::interleaved_bytes)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks << self.block_log2
    }
}
