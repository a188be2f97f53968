//! What is written: bytes that neither compress nor deduplicate, unless asked otherwise.

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// What compresses lies at the end of each such piece, so that a drive which compresses by the
/// block sees the same part in every block. The unit is fio's (`buffer_compress_chunk`).
const CHUNK_BYTES: usize = 512;

/// Sets the buffers' bytes apart from all other draws.
const SALT: u64 = 0x6e76_706f_6c6c;

/// What the buffers of writes hold. Names and meaning are fio's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Nothing but zeros.
    #[serde(default)]
    pub zero: bool,
    /// So much of each 512 bytes are zeros, in percent.
    #[serde(default)]
    pub compress_percentage: u8,
    /// Anew for each write; else once for each I/O in flight, before the measurement.
    #[serde(default)]
    pub refill: bool,
}

/// Makes one worker's buffers.
#[derive(Clone, Debug)]
pub struct Filler {
    rng: Xoshiro256PlusPlus,
    random: usize,
}

impl Filler {
    /// Of a worker's own bytes: `stream` is its number among all workers.
    pub fn new(buffers: Buffers, stream: u32) -> Self {
        let percent = if buffers.zero { 100 } else { buffers.compress_percentage.min(100) };
        Self {
            rng: Xoshiro256PlusPlus::seed_from_u64(u64::from(stream) ^ SALT),
            random: CHUNK_BYTES - CHUNK_BYTES * usize::from(percent) / 100,
        }
    }

    /// The next buffer.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(CHUNK_BYTES) {
            let (random, zeros) = chunk.split_at_mut(self.random.min(chunk.len()));
            self.rng.fill_bytes(random);
            zeros.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: Buffers, stream: u32) -> Vec<u8> {
        let mut bytes = vec![1; 4096 + 100];
        Filler::new(buffers, stream).fill(&mut bytes);
        bytes
    }

    #[test]
    fn random_by_default_and_other_bytes_for_each_worker_and_buffer() {
        let plain = Buffers::default();
        let mut filler = Filler::new(plain, 0);
        let mut buffers = [[0; 512]; 3];
        buffers.iter_mut().for_each(|bytes| filler.fill(bytes));
        assert!(buffers[0] != buffers[1] && buffers[1] != buffers[2]);
        assert_ne!(filled(plain, 0), filled(plain, 1));
        assert_eq!(filled(plain, 7), filled(plain, 7));
        let zeros = filled(plain, 0).iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 50, "{zeros} of 4196 random bytes are zero");
    }

    #[test]
    fn so_much_of_each_chunk_is_zeros() {
        for (percent, random) in [(0, 512), (50, 256), (75, 128), (100, 0)] {
            let bytes = filled(Buffers { compress_percentage: percent, ..Buffers::default() }, 0);
            for chunk in bytes.chunks_exact(512) {
                assert!(chunk[random..].iter().all(|byte| *byte == 0), "{percent}");
                let zeros = chunk[..random].iter().filter(|byte| **byte == 0).count();
                assert!(zeros < 20, "{percent}: {zeros}");
            }
        }
        assert!(filled(Buffers { zero: true, ..Buffers::default() }, 0).iter().all(|b| *b == 0));
    }
}
