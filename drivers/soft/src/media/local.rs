//! Content that the device itself looks at, rather than hand it to the host.

use super::{Media, pieces, positional};
use nvpoll_spec::Status;
use zerocopy::IntoBytes;

impl Media {
    /// Copies what is at `offset` to `words`. What is kept nowhere reads as zeroes.
    pub(crate) fn get(&mut self, offset: u64, words: &mut [u64]) -> Result<(), Status> {
        words.fill(0);
        match self {
            Self::Null => {}
            Self::Ram(ram) => {
                let mut done = 0;
                for piece in pieces(offset, 8 * words.len() as u64) {
                    let target = words.get_mut(done..done + piece.words);
                    if let (Some(target), Some(from)) = (target, ram.chunk(piece)) {
                        target.copy_from_slice(from);
                    }
                    done += piece.words;
                }
            }
            Self::File(file) => {
                let read = positional::read(&file.file, words.as_mut_bytes(), offset);
                read.map_err(|_| Status::UNRECOVERED_READ)?;
            }
        }
        Ok(())
    }

    /// Copies `words` to `offset`.
    pub(crate) fn put(&mut self, offset: u64, words: &[u64]) -> Result<(), Status> {
        match self {
            Self::Null => {}
            Self::Ram(ram) => {
                let mut done = 0;
                for piece in pieces(offset, 8 * words.len() as u64) {
                    if ram.chunk(piece).is_none() {
                        ram.allocate(piece).ok_or(Status::WRITE_FAULT)?;
                    }
                    let from = words.get(done..done + piece.words);
                    if let (Some(from), Some(target)) = (from, ram.chunk_mut(piece)) {
                        target.copy_from_slice(from);
                    }
                    done += piece.words;
                }
            }
            Self::File(file) => {
                let written = positional::write(&file.file, words.as_bytes(), offset);
                written.map_err(|_| Status::WRITE_FAULT)?;
            }
        }
        Ok(())
    }
}
