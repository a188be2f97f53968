//! A pattern in which every eight bytes are a function of their own offset and a seed.

/// The word at byte `offset`, a multiple of eight: SplitMix64's finaliser.
fn word(offset: u64, seed: u64) -> u64 {
    let mut z = (offset / 8).wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `data`, whose first byte stands at `offset`.
pub fn fill(data: &mut [u8], offset: u64, seed: u64) {
    for (at, chunk) in (offset..).step_by(8).zip(data.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&word(at, seed).to_le_bytes());
    }
}

/// Offset of the first eight bytes that are not the pattern's.
pub fn first_wrong(data: &[u8], offset: u64, seed: u64) -> Option<u64> {
    (offset..)
        .step_by(8)
        .zip(data.chunks_exact(8))
        .find_map(|(at, chunk)| (chunk != word(at, seed).to_le_bytes()).then_some(at))
}
