//! What blocks have beside their data, for the model: worked out from the format alone, with CRCs of its
//! own.

use nvpoll_soft::{BlockMetadata, SoftOptions};
use nvpoll_spec::{GuardFormat, NvmOpcode};
use std::sync::LazyLock;

/// The remainders of each byte, by long division.
static CRC16: LazyLock<[u16; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        (0..8).fold((byte as u16) << 8, |rest, _| {
            let top = rest >> 15;
            (rest << 1) ^ (top * 0x8bb7)
        })
    })
});

fn crc16(parts: &[&[u8]]) -> u16 {
    let step = |rest: u16, byte: &u8| (rest << 8) ^ CRC16[usize::from((rest >> 8) as u8 ^ byte)];
    parts.iter().flat_map(|part| part.iter()).fold(0, step)
}

/// The 64-bit guard, bit by bit from each byte's lowest.
fn crc64(parts: &[&[u8]]) -> u64 {
    static TABLE: LazyLock<[u64; 256]> = LazyLock::new(|| {
        std::array::from_fn(|byte| {
            (0..8).fold(byte as u64, |rest, _| (rest >> 1) ^ ((rest & 1) * 0x9a6c_9329_ac4b_c9b5))
        })
    });
    let step = |rest: u64, byte: &u8| (rest >> 8) ^ TABLE[usize::from(rest as u8 ^ byte)];
    !parts.iter().flat_map(|part| part.iter()).fold(u64::MAX, step)
}

/// A format as the model sees it.
#[derive(Clone, Copy)]
pub struct Beside {
    pub format: BlockMetadata,
    pub block_bytes: usize,
    /// The host makes and checks protection information.
    pub by_host: bool,
}

impl Beside {
    pub fn new(soft: &SoftOptions, by_host: bool) -> Self {
        Self { format: soft.metadata, block_bytes: soft.lba_bytes as usize, by_host }
    }

    /// Bytes a block.
    pub fn bytes(&self) -> usize {
        self.format.bytes.into()
    }

    /// Bytes of a block's metadata that cross the bus.
    pub fn crossing(&self) -> usize {
        let is_controllers =
            self.format.protection != 0 && self.bytes() == self.tuple_bytes() && !self.by_host;
        if is_controllers { 0 } else { self.bytes() }
    }

    /// Bytes that stand between one block's data and the next one's.
    pub fn between(&self) -> usize {
        if self.format.interleaved { self.crossing() } else { 0 }
    }

    /// Bytes of a block in memory that MPTR names.
    pub fn separate(&self) -> usize {
        if self.format.interleaved { 0 } else { self.crossing() }
    }

    fn tuple(&self) -> std::ops::Range<usize> {
        let start = if self.format.first { 0 } else { self.bytes() - self.tuple_bytes() };
        start..start + self.tuple_bytes()
    }

    fn is_long(&self) -> bool {
        self.format.guard == GuardFormat::Bits64
    }

    fn tuple_bytes(&self) -> usize {
        if self.is_long() { 16 } else { 8 }
    }

    /// CDW3: the reference tag's upper half, where it has one.
    pub fn high(&self, lba: u64) -> u32 {
        let has = self.is_long() && matches!(self.format.protection, 1 | 2);
        if has { (lba >> 32) as u32 & 0xffff } else { 0 }
    }

    /// PRINFO in CDW12, and CDW14, of a command from `lba` on.
    pub fn words(&self, opcode: NvmOpcode, lba: u64) -> (u32, u32) {
        let by_whom = match (self.by_host, opcode) {
            (false, _) => 0b1111 << 26,
            (true, NvmOpcode::WRITE) => 0b0111 << 26,
            (true, _) => 0,
        };
        match self.format.protection {
            0 => (0, 0),
            3 => (by_whom & 0b1100 << 26, 0),
            _ => (by_whom & 0b1101 << 26, lba as u32),
        }
    }

    /// What a block that was never written has.
    pub fn unwritten(&self) -> Vec<u8> {
        let mut metadata = vec![0; self.bytes()];
        if self.format.protection != 0 {
            metadata[self.tuple()].fill(0xff);
        }
        metadata
    }

    /// Puts the tuple into `metadata` that belongs to `data` in block `lba`.
    pub fn protect(&self, data: &[u8], metadata: &mut [u8], lba: u64) {
        if self.format.protection == 0 {
            return;
        }
        let place = self.tuple();
        let before = if self.format.first { 0 } else { place.start };
        let reference = if self.format.protection == 3 { 0 } else { lba };
        let covered = [data, &metadata[..before]];
        let tuple = if self.is_long() {
            let reference = reference.to_be_bytes();
            [&crc64(&covered).to_be_bytes()[..], &[0, 0], &reference[2..]].concat()
        } else {
            let reference = (reference as u32).to_be_bytes();
            [&crc16(&covered).to_be_bytes()[..], &[0, 0], &reference].concat()
        };
        metadata[place].copy_from_slice(&tuple);
    }
}
