//! What lies on a drive: file systems, RAID members, partition tables, known by their magic
//! bytes. Nothing is mounted or trusted; a signature says that somebody once put data here.

mod magic;
mod probes;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io;

use serde::Serialize;

use crate::limits;

/// Something that was recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// What it is, as its users call it: `ext4`, `LVM2 physical volume`.
    pub name: &'static str,
    /// Where its magic bytes lie, in bytes from the start.
    pub offset: u64,
    /// Its label or name, where it has one.
    pub label: Option<String>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if let Some(label) = &self.label {
            write!(f, " {label:?}")?;
        }
        write!(f, " at byte {}", self.offset)
    }
}

/// Reads for the probes: whole pieces at multiples of a piece, as a drive can, each once.
struct Reader<R> {
    read_at: R,
    size: u64,
    /// What was read, by offset. The probes' places bound it, at about 2 MiB.
    pieces: BTreeMap<u64, Vec<u8>>,
}

const PIECE_BYTES: u64 = limits::SIGNATURE_READ_BYTES as u64;

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()>> Reader<R> {
    /// The piece that holds `offset`, and where it starts; shorter at the end.
    fn piece(&mut self, offset: u64) -> io::Result<(u64, &[u8])> {
        let start = offset - offset % PIECE_BYTES;
        let piece = match self.pieces.entry(start) {
            Entry::Occupied(piece) => piece.into_mut(),
            Entry::Vacant(place) => {
                let len = (self.size - start).min(PIECE_BYTES);
                let mut bytes = vec![0; len as usize];
                (self.read_at)(start, &mut bytes)?;
                place.insert(bytes)
            }
        };
        Ok((start, piece))
    }

    /// `len` bytes at `offset`; `None` where they would reach past the end.
    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        let end = match offset.checked_add(len as u64) {
            Some(end) if end <= self.size => end,
            _ => return Ok(None),
        };
        let mut out = Vec::with_capacity(len);
        let mut at = offset;
        while at < end {
            let (start, piece) = self.piece(at)?;
            let from = (at - start) as usize;
            let to = ((end - start) as usize).min(piece.len());
            out.extend_from_slice(piece.get(from..to).unwrap_or_default());
            at = start + to as u64;
        }
        Ok(Some(out))
    }
}

/// Looks for everything that is known on a device of `size` bytes, in order of offset.
///
/// `read_at(offset, bytes)` fills the buffer from `offset` on. Both are multiples of 64 KiB,
/// except that the last piece ends with the device: so a drive with any usual logical block can
/// be read through any driver. About 1.5 MiB are read, spread over the device.
///
/// # Errors
/// The first error of `read_at`: what could not be read counts as in use.
pub fn scan(
    read_at: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    size: u64,
) -> io::Result<Vec<Signature>> {
    let mut reader = Reader { read_at, size, pieces: BTreeMap::new() };
    let mut found = Vec::new();
    for probe in probes::ALL {
        probe(&mut Device(&mut reader), &mut found)?;
    }
    found.sort_by_key(|signature| signature.offset);
    found.dedup();
    Ok(found)
}

/// What a probe sees of a device.
struct Device<'a>(&'a mut dyn Source);

trait Source {
    fn size(&self) -> u64;
    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>>;
}

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()>> Source for Reader<R> {
    fn size(&self) -> u64 {
        self.size
    }

    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        Reader::bytes(self, offset, len)
    }
}

impl Device<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn bytes(&mut self, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        self.0.bytes(offset, len)
    }

    fn has(&mut self, offset: u64, magic: &[u8]) -> io::Result<bool> {
        Ok(self.bytes(offset, magic.len())?.is_some_and(|bytes| bytes == magic))
    }

    fn u8(&mut self, offset: u64) -> io::Result<Option<u8>> {
        Ok(self.bytes(offset, 1)?.and_then(|bytes| bytes.first().copied()))
    }

    fn u16_le(&mut self, offset: u64) -> io::Result<Option<u16>> {
        Ok(self.array(offset)?.map(u16::from_le_bytes))
    }

    fn u32_le(&mut self, offset: u64) -> io::Result<Option<u32>> {
        Ok(self.array(offset)?.map(u32::from_le_bytes))
    }

    fn u64_le(&mut self, offset: u64) -> io::Result<Option<u64>> {
        Ok(self.array(offset)?.map(u64::from_le_bytes))
    }

    fn array<const N: usize>(&mut self, offset: u64) -> io::Result<Option<[u8; N]>> {
        Ok(self.bytes(offset, N)?.and_then(|bytes| bytes.try_into().ok()))
    }

    /// A fixed field of text, up to the first NUL, blanks off; `None` when it is empty.
    fn label(&mut self, offset: u64, len: usize) -> io::Result<Option<String>> {
        let bytes = self.bytes(offset, len)?.unwrap_or_default();
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).trim().to_owned();
        Ok((!text.is_empty()).then_some(text))
    }
}

#[cfg(test)]
mod tests;
