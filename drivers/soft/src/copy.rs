//! Copies between the host's memory, seen as atomic words, and the device's own.
//!
//! A data pointer is aligned to 4 bytes (§4.3), words are 8: so everything here counts in dwords,
//! and there is a fast path for when both sides and the length are even. Half a word of the host's
//! memory is exchanged by compare-and-swap, because the other half may be somebody else's.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[inline]
fn half(word: u64, dword: usize) -> u64 {
    word >> (dword % 2 * 32) & 0xffff_ffff
}

fn with_half(word: u64, dword: usize, value: u64) -> u64 {
    let shift = dword % 2 * 32;
    word & !(0xffff_ffff << shift) | value << shift
}

/// Copies `dwords` from `local` to `host`. What lies beyond either end is left out: callers have
/// checked the lengths, and a device does not panic.
#[inline]
pub(crate) fn to_host(
    host: &[AtomicU64],
    host_dword: usize,
    local: &[u64],
    local_dword: usize,
    dwords: usize,
) {
    if (host_dword | local_dword | dwords).is_multiple_of(2) {
        let host = host.get(host_dword / 2..).unwrap_or(&[]);
        let local = local.get(local_dword / 2..).unwrap_or(&[]);
        for (host, local) in host.iter().zip(local).take(dwords / 2) {
            host.store(*local, Relaxed);
        }
    } else {
        to_host_uneven(host, host_dword, local, local_dword, dwords);
    }
}

#[cold]
fn to_host_uneven(
    host: &[AtomicU64],
    host_dword: usize,
    local: &[u64],
    local_dword: usize,
    dwords: usize,
) {
    let get = |dword: usize| local.get(dword / 2).map(|word| half(*word, dword));
    let mut done = 0;
    while done < dwords {
        let (to, from) = (host_dword + done, local_dword + done);
        let (Some(word), Some(low)) = (host.get(to / 2), get(from)) else { return };
        match get(from + 1) {
            Some(high) if to % 2 == 0 && dwords - done >= 2 => {
                word.store(low | high << 32, Relaxed);
                done += 2;
            }
            _ => {
                let set = |old| Some(with_half(old, to, low));
                // The closure always returns a value, so this cannot fail.
                let _ = word.fetch_update(Relaxed, Relaxed, set);
                done += 1;
            }
        }
    }
}

/// Copies `dwords` from `host` to `local`, as [`to_host`] does the other way.
#[inline]
pub(crate) fn from_host(
    host: &[AtomicU64],
    host_dword: usize,
    local: &mut [u64],
    local_dword: usize,
    dwords: usize,
) {
    if (host_dword | local_dword | dwords).is_multiple_of(2) {
        let host = host.get(host_dword / 2..).unwrap_or(&[]);
        let local = local.get_mut(local_dword / 2..).unwrap_or(&mut []);
        for (local, host) in local.iter_mut().zip(host).take(dwords / 2) {
            *local = host.load(Relaxed);
        }
    } else {
        from_host_uneven(host, host_dword, local, local_dword, dwords);
    }
}

#[cold]
fn from_host_uneven(
    host: &[AtomicU64],
    host_dword: usize,
    local: &mut [u64],
    local_dword: usize,
    dwords: usize,
) {
    for done in 0..dwords {
        let (from, to) = (host_dword + done, local_dword + done);
        let Some(value) = host.get(from / 2).map(|word| half(word.load(Relaxed), from)) else {
            return;
        };
        let Some(word) = local.get_mut(to / 2) else { return };
        *word = with_half(*word, to, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dwords_of(words: &[u64]) -> Vec<u64> {
        words.iter().flat_map(|word| [word & 0xffff_ffff, word >> 32]).collect()
    }

    proptest! {
        /// Every shift and length, both ways, against a copy of a plain array of dwords.
        #[test]
        fn as_an_array_of_dwords(host_at in 0usize..9, local_at in 0usize..9, dwords in 0usize..23) {
            let host: Vec<u64> = (0..16).map(|n| 0x1111_0000_2222_0000 + n * 0x1_0000_0001).collect();
            let local: Vec<u64> = host.iter().map(|word| !word).collect();
            let atomics: Vec<_> = host.iter().map(|word| AtomicU64::new(*word)).collect();

            let mut expected = dwords_of(&host);
            expected[host_at..][..dwords].copy_from_slice(&dwords_of(&local)[local_at..][..dwords]);
            to_host(&atomics, host_at, &local, local_at, dwords);
            let now: Vec<_> = atomics.iter().map(|word| word.load(Relaxed)).collect();
            prop_assert_eq!(dwords_of(&now), expected);

            let mut target = vec![0x7777_7777_8888_8888; 16];
            let mut expected = dwords_of(&target);
            expected[local_at..][..dwords].copy_from_slice(&dwords_of(&now)[host_at..][..dwords]);
            from_host(&atomics, host_at, &mut target, local_at, dwords);
            prop_assert_eq!(dwords_of(&target), expected);
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let host = [AtomicU64::new(1), AtomicU64::new(2)];
        to_host(&host, 2, &[7, 8, 9], 0, 6);
        to_host(&host, 3, &[7, 8, 9], 0, 5);
        to_host(&host, usize::MAX / 2, &[7], 0, 1);
        let mut local = [0; 1];
        from_host(&host, 0, &mut local, 0, 5);
        from_host(&host, 0, &mut local, 9, 4);
        assert_eq!(local, [1]);
    }
}
