//! Protection information that the host makes and checks (`pi=host`): PRACT is clear, and tuples cross the
//! bus with the data.
//!
//! Who gets blocks checks them: the controller what it is to write (PRCHK: guard and reference tag), the
//! host what it has read (guard, application tag and reference tag). The application tag is zero, as where
//! the controller makes the tuple for this driver. What differs is reported as the controller would report it, and
//! marked as [found by the host](Status::found_by_host).

use crate::metadata::Metadata;
use nvpoll_mem::DmaBuf;
use nvpoll_spec::{GuardFormat, ProtectionTuple, Status};
use std::fmt;
use std::str::FromStr;

/// Who makes and checks protection information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProtectionMode {
    /// The controller (PRACT).
    #[default]
    Controller,
    /// The host.
    Host,
}

impl ProtectionMode {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::Controller, Self::Host];

    /// Its name on the command line and in result files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for ProtectionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ProtectionMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("nobody called \"{name}\" makes protection information; there are {names}")
        })
    }
}

/// Where the blocks of each tag and what is beside them are in memory.
#[derive(Debug)]
pub(crate) struct BlockPlaces {
    pub data: DmaBuf,
    /// Bytes from one tag's data to the next's, and from a block's to the next's.
    pub data_stride: usize,
    pub data_step: usize,
    /// Bytes of a block's data.
    pub block_bytes: usize,
    pub metadata: DmaBuf,
    /// Where the first tag's metadata begins, and the same distances.
    pub metadata_start: usize,
    pub metadata_stride: usize,
    pub metadata_step: usize,
}

/// What an I/O in flight has read, or is about to: nothing for any other.
#[derive(Clone, Copy, Default)]
struct Flight {
    lba: u64,
    blocks: u32,
}

/// One queue pair's protection information.
pub(crate) struct HostProtection {
    kind: u8,
    guard: GuardFormat,
    /// Where the tuple is in a block's metadata, and how much before it the guard covers.
    tuple: usize,
    covered: usize,
    checks: bool,
    places: BlockPlaces,
    flights: Box<[Flight]>,
    /// One block and its metadata, out of the device's reach while they are looked at.
    block: Box<[u8]>,
    metadata: Box<[u8]>,
}

impl HostProtection {
    pub fn new(metadata: Metadata, checks: bool, tags: u16, places: BlockPlaces) -> Self {
        let bytes = usize::from(metadata.bytes);
        let tuple = if metadata.first { 0 } else { bytes - metadata.guard.tuple_bytes() };
        Self {
            kind: metadata.protection,
            guard: metadata.guard,
            tuple,
            covered: if metadata.first { 0 } else { tuple },
            checks,
            flights: vec![Flight::default(); tags.into()].into(),
            block: vec![0; places.block_bytes].into(),
            metadata: vec![0; bytes].into(),
            places,
        }
    }

    /// A read of `blocks` from `lba` on, to block `first` of `tag`'s buffer: remembered until it ends.
    pub fn begin_read(&mut self, tag: u16, first: u32, lba: u64, blocks: u32) {
        if let Some(flight) = self.flights.get_mut(usize::from(tag)).filter(|_| self.checks) {
            if first == 0 {
                *flight = Flight { lba, blocks: 0 };
            }
            flight.blocks += blocks;
        }
    }

    /// Makes the tuples of a write of `blocks` to `lba`, from block `first` of `tag`'s buffer on.
    pub fn protect(&mut self, tag: u16, first: u32, lba: u64, blocks: u32) {
        for block in 0..blocks {
            let beside = self.take(tag, first + block);
            let (guard, reference) = (self.guard(), self.reference(lba + u64::from(block)));
            let tuple = ProtectionTuple { guard, application: 0, reference };
            let end = self.tuple + self.guard.tuple_bytes();
            let bytes = self.metadata.get_mut(self.tuple..end).unwrap_or(&mut []);
            tuple.write(self.guard, bytes);
            self.places.metadata.write(beside + self.tuple, bytes);
        }
    }

    /// How `tag`'s I/O ended, which the controller completed with `status`: a read is checked, up to the
    /// first block that is not what it should be.
    pub fn end(&mut self, tag: u16, status: Status) -> Status {
        let flight = self.flights.get_mut(usize::from(tag)).map(std::mem::take);
        let Some(Flight { lba, blocks }) = flight.filter(|_| status.is_success()) else {
            return status;
        };
        for block in 0..blocks {
            self.take(tag, block);
            if let Some(wrong) = self.wrong(lba + u64::from(block)) {
                return wrong.found_by_host();
            }
        }
        status
    }

    /// Copies a block and its metadata; returns where the metadata is.
    fn take(&mut self, tag: u16, block: u32) -> usize {
        let (tag, block, places) = (usize::from(tag), block as usize, &self.places);
        places.data.read(tag * places.data_stride + block * places.data_step, &mut self.block);
        let beside =
            places.metadata_start + tag * places.metadata_stride + block * places.metadata_step;
        places.metadata.read(beside, &mut self.metadata);
        beside
    }

    fn guard(&self) -> u64 {
        self.guard.guard(&self.block, self.metadata.get(..self.covered).unwrap_or(&[]))
    }

    /// Type 3 has no reference tag that means anything; it is written as zero.
    fn reference(&self, lba: u64) -> u64 {
        if self.kind == 3 { 0 } else { lba & self.guard.reference_mask() }
    }

    /// What is wrong with the block that was taken, in the order in which a controller looks.
    fn wrong(&self, lba: u64) -> Option<Status> {
        let end = self.tuple + self.guard.tuple_bytes();
        let bytes = self.metadata.get(self.tuple..end).unwrap_or(&[]);
        let tuple = ProtectionTuple::read(self.guard, bytes)?;
        if tuple.is_unchecked(self.kind, self.guard) {
            None
        } else if tuple.guard != self.guard() {
            Some(Status::GUARD_CHECK)
        } else if tuple.application != 0 {
            Some(Status::APPLICATION_CHECK)
        } else if self.kind != 3 && tuple.reference != self.reference(lba) {
            Some(Status::REFERENCE_CHECK)
        } else {
            None
        }
    }
}
