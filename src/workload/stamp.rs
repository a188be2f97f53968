//! What `--verify` writes: content that says which block it is of, and which write made it.
//!
//! Each 512 bytes have a header of their own (a mark, the byte offset, the write's generation, the run)
//! and are filled with bytes that follow from it, so that a block that was torn, moved, kept from an
//! earlier write or damaged is told from one that is right, and how it is wrong.

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::fmt;

/// Bytes with a header of their own, where the block size is a multiple.
const PIECE_BYTES: usize = 512;

/// The first eight bytes of a piece.
const MARK: u64 = u64::from_le_bytes(*b"nvpoll-v");

/// Header fields of eight bytes each: mark, offset, generation, run.
const HEADER_BYTES: usize = 32;

/// Which write a block's content is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The block's first byte on its target.
    pub offset: u64,
    /// How often this run has written the block, this time included.
    pub generation: u64,
    /// Tells runs apart.
    pub run: u64,
}

/// How a block is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Content of another place.
    OtherBlock {
        /// The byte offset that it says it is of.
        says: u64,
    },
    /// Content of an earlier write of this run.
    Stale {
        /// The generation that is there.
        found: u64,
        /// The one that was written last.
        expected: u64,
    },
    /// Content that another run wrote.
    OtherRun,
    /// Parts of several writes.
    Torn,
    /// Bytes that are none that were ever written there.
    Differs {
        /// How many of the piece.
        bytes: usize,
        /// The first of them, from the block's start.
        first: usize,
    },
    /// Nothing that `--verify` wrote.
    Unstamped,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherBlock { says } => write!(f, "holds the content of byte {says}"),
            Self::Stale { found, expected } => {
                write!(
                    f,
                    "is stale: holds write {found} of this block where write {expected} was the last"
                )
            }
            Self::OtherRun => f.write_str("holds what another run wrote"),
            Self::Torn => f.write_str("is torn: holds parts of different writes"),
            Self::Differs { bytes, first } => {
                write!(
                    f,
                    "differs in {bytes} bytes of a sector, the first at byte {first} of the block"
                )
            }
            Self::Unstamped => f.write_str("holds nothing that --verify wrote"),
        }
    }
}

impl Stamp {
    /// Fills a block.
    pub fn write(&self, block: &mut [u8]) {
        let size = piece_bytes(block.len());
        for (index, piece) in block.chunks_mut(size).enumerate() {
            self.piece(index * size).fill(piece);
        }
    }

    /// Holds a block against what was written.
    ///
    /// # Errors
    /// How the first wrong sector is wrong.
    pub fn check(&self, block: &[u8]) -> Result<(), Wrong> {
        let size = piece_bytes(block.len());
        let mut buffer = [0; PIECE_BYTES];
        for (index, piece) in block.chunks(size).enumerate() {
            let expected = self.piece(index * size);
            if !expected.is_content_of(piece, &mut buffer) {
                return Err(expected.how_wrong(piece, index * size, &mut buffer));
            }
        }
        Ok(())
    }

    /// Whether the block at `offset` is one that some write of some run made there.
    ///
    /// # Errors
    /// How it is wrong.
    pub fn check_any(block: &[u8], offset: u64) -> Result<(), Wrong> {
        let says = Self::read(block).ok_or(Wrong::Unstamped)?;
        let own = Self { offset, ..says };
        match own.check(block) {
            Err(Wrong::Stale { .. } | Wrong::OtherRun) => Err(Wrong::Torn),
            other => other,
        }
    }

    /// What a piece says that it is; `None` without the mark.
    fn read(piece: &[u8]) -> Option<Self> {
        let field = |index: usize| {
            let bytes = piece.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        (field(0)? == MARK)
            .then(|| Some(Self { offset: field(1)?, generation: field(2)?, run: field(3)? }))?
    }

    const fn piece(&self, at: usize) -> Self {
        Self { offset: self.offset.wrapping_add(at as u64), ..*self }
    }

    fn fill(&self, piece: &mut [u8]) {
        let fields = [MARK, self.offset, self.generation, self.run];
        let (header, body) = piece.split_at_mut(HEADER_BYTES.min(piece.len()));
        for (bytes, field) in header.chunks_exact_mut(8).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        let seed = fields.into_iter().fold(0, |seed: u64, field| {
            (seed ^ field).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(body);
    }

    fn is_content_of(&self, piece: &[u8], buffer: &mut [u8; PIECE_BYTES]) -> bool {
        // Blocks that are no multiple of a piece are one, and may be longer.
        match buffer.get_mut(..piece.len()) {
            Some(buffer) => {
                self.fill(buffer);
                buffer == piece
            }
            None => {
                let mut long = vec![0; piece.len()];
                self.fill(&mut long);
                long == piece
            }
        }
    }

    /// `piece`, which begins at byte `at` of its block, is not of this write.
    fn how_wrong(&self, piece: &[u8], at: usize, buffer: &mut [u8; PIECE_BYTES]) -> Wrong {
        let says = Self::read(piece);
        if let Some(says) = says.filter(|says| says.is_content_of(piece, buffer)) {
            return match says {
                _ if says.run != self.run => Wrong::OtherRun,
                _ if says.offset != self.offset => Wrong::OtherBlock { says: says.offset },
                _ => Wrong::Stale { found: says.generation, expected: self.generation },
            };
        }
        let mut expected = vec![0; piece.len()];
        self.fill(&mut expected);
        let differs = |(ours, theirs): (&u8, &u8)| ours != theirs;
        let bytes = expected.iter().zip(piece).filter(|pair| differs(*pair)).count();
        if says.is_none() && bytes > piece.len() / 2 {
            return Wrong::Unstamped;
        }
        let first = expected.iter().zip(piece).position(differs).unwrap_or(0);
        Wrong::Differs { bytes, first: at + first }
    }
}

const fn piece_bytes(block_bytes: usize) -> usize {
    match block_bytes {
        0 => 1,
        _ if block_bytes.is_multiple_of(PIECE_BYTES) => PIECE_BYTES,
        _ => block_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { offset: 1 << 40, generation: 5, run: 77 };

    fn block(stamp: Stamp, bytes: usize) -> Vec<u8> {
        let mut block = vec![0; bytes];
        stamp.write(&mut block);
        block
    }

    #[test]
    fn what_was_written_is_right() {
        for bytes in [64, 100, 512, 520, 4096, 131_072] {
            let block = block(STAMP, bytes);
            assert_eq!(STAMP.check(&block), Ok(()), "{bytes}");
            assert_eq!(Stamp::check_any(&block, STAMP.offset), Ok(()), "{bytes}");
        }
    }

    #[test]
    fn what_is_wrong_says_how() {
        let other = |change: fn(&mut Stamp)| {
            let mut stamp = STAMP;
            change(&mut stamp);
            block(stamp, 4096)
        };
        let check = |block: &[u8]| STAMP.check(block).unwrap_err();
        let stale = Wrong::Stale { found: 4, expected: 5 };
        assert_eq!(check(&other(|stamp| stamp.generation = 4)), stale);
        let moved = Wrong::OtherBlock { says: (1 << 40) + 4096 };
        assert_eq!(check(&other(|stamp| stamp.offset += 4096)), moved);
        assert_eq!(check(&other(|stamp| stamp.run = 1)), Wrong::OtherRun);
        assert_eq!(check(&[0; 4096]), Wrong::Unstamped);
        let mut damaged = block(STAMP, 4096);
        damaged[1000] ^= 1;
        damaged[1007] ^= 0x80;
        assert_eq!(check(&damaged), Wrong::Differs { bytes: 2, first: 1000 });
        let mut damaged = block(STAMP, 4096);
        damaged[3] ^= 1;
        assert_eq!(check(&damaged), Wrong::Differs { bytes: 1, first: 3 }, "in the mark");
        // The second half of an earlier write.
        let mut torn = block(STAMP, 4096);
        torn[2048..].copy_from_slice(&other(|stamp| stamp.generation = 4)[2048..]);
        assert_eq!(check(&torn), stale);
        assert_eq!(Stamp::check_any(&torn, STAMP.offset), Err(Wrong::Torn));
        let moved = Stamp::check_any(&block(STAMP, 4096), 0);
        assert_eq!(moved, Err(Wrong::OtherBlock { says: 1 << 40 }));
        assert_eq!(Stamp::check_any(&[0; 512], 0), Err(Wrong::Unstamped));
    }

    #[test]
    fn it_neither_compresses_nor_repeats() {
        let mut seen = std::collections::HashSet::new();
        for generation in 1..20 {
            for piece in block(Stamp { generation, ..STAMP }, 4096).chunks_exact(8) {
                seen.insert(piece.to_vec());
            }
        }
        // Of 512 words a block 8 times 4 are headers, which repeat.
        assert!(seen.len() > 19 * 480, "{}", seen.len());
    }
}
