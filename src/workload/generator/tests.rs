//! What comes out, held against chance and arithmetic.

use super::super::composed::reads_below;
use super::super::rw::Rw;
use super::*;
use OperationKind::{Flush, Read, Write};

const BS: u32 = 4096;

fn workload(rw: Rw) -> Workload {
    Workload { seed: 7, ..Workload::new(rw, BS, 32) }
}

fn generator(rw: Rw, offset_bytes: u64, ios: u64) -> Generator {
    Generator::new(&workload(rw), Span { offset_bytes, ios }, 0, 0)
}

fn take(generator: &mut Generator, n: usize) -> Vec<Operation> {
    (0..n).map(|_| generator.next()).collect()
}

/// Sum of (seen - expected)^2 / expected over equally likely cells.
fn chi_square(cells: &[u64]) -> f64 {
    let expected = cells.iter().sum::<u64>() as f64 / cells.len() as f64;
    cells.iter().map(|seen| (*seen as f64 - expected).powi(2) / expected).sum()
}

#[test]
fn random_blocks_are_uniform() {
    // The second count is no power of two and far from one; the third is beyond 2^32.
    for ios in [256, 1_000_003, 7_500_000_001] {
        let mut cells = [0_u64; 256];
        for operation in take(&mut generator(Rw::RandRead, 0, ios), 256_000) {
            let io = operation.offset / u64::from(BS);
            cells[(u128::from(io) * 256 / u128::from(ios)) as usize] += 1;
        }
        // 255 degrees of freedom: above 341 once in 5,000 (and the seed is fixed).
        let sum = chi_square(&cells);
        assert!(sum < 341.0, "{ios}: {sum}");
        assert!(sum > 180.0, "{ios}: {sum}: more even than chance");
    }
}

#[test]
fn blocks_beyond_2_to_the_32_are_reached_down_to_the_odd_ones() {
    let ios = 3 << 32;
    let operations = take(&mut generator(Rw::RandRead, 0, ios), 3000);
    let blocks = operations.iter().map(|operation| operation.offset / u64::from(BS));
    let upper = blocks.clone().filter(|block| *block >= 1 << 32).count();
    assert!((1850..2150).contains(&upper), "two thirds of 3000: {upper}");
    let odd = blocks.filter(|block| block % 2 == 1).count();
    assert!((1350..1650).contains(&odd), "half of 3000: {odd}");
}

#[test]
fn every_block_from_the_first_to_the_last_and_none_beside() {
    let (offset, ios) = (8192 + 512, 64);
    for rw in [Rw::RandRead, Rw::Read, Rw::RandRw, Rw::Write] {
        let mut seen = [false; 64];
        for operation in take(&mut generator(rw, offset, ios), 2000) {
            let from_start = operation.offset - offset;
            assert_eq!((from_start % u64::from(BS), operation.bytes), (0, BS));
            seen[(from_start / u64::from(BS)) as usize] = true;
        }
        assert!(seen.iter().all(|seen| *seen), "{rw}");
    }
}

#[test]
fn a_range_of_one_block() {
    for rw in Rw::ALL {
        let operations = take(&mut generator(rw, 4096, 1), 10);
        assert!(operations.iter().all(|operation| operation.offset == 4096), "{rw}");
    }
}

#[test]
fn the_seed_alone_decides() {
    let with_seed = |seed| {
        let workload = Workload { seed, ..workload(Rw::RandRw) };
        take(&mut Generator::new(&workload, Span { offset_bytes: 0, ios: 1 << 30 }, 0, 3), 100)
    };
    assert_eq!(with_seed(1), with_seed(1));
    assert_ne!(with_seed(1), with_seed(2));
}

#[test]
fn a_stream_is_the_same_as_one_at_a_time() {
    struct Until(Vec<Operation>, usize);
    impl Consumer for Until {
        fn consume(&mut self, operation: Operation) -> ControlFlow<()> {
            self.0.push(operation);
            if self.0.len() < self.1 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }
    for (rw, fsync) in Rw::ALL.into_iter().flat_map(|rw| [(rw, 0), (rw, 3)]) {
        let workload = Workload { fsync, ..workload(rw) };
        let span = Span { offset_bytes: 4096, ios: 50 };
        let mut single = Generator::new(&workload, span, 0, 0);
        let mut streamed = single.clone();
        // In two goes: the second begins where the first one ended.
        let mut seen = Until(Vec::new(), 70);
        streamed.stream(&mut seen);
        seen.1 = 100;
        streamed.stream(&mut seen);
        assert_eq!(seen.0, take(&mut single, 100), "{rw}, {fsync}");
    }
}

#[test]
fn no_two_workers_have_the_same_stream() {
    let span = Span { offset_bytes: 0, ios: 1 << 40 };
    let mut offsets = Vec::new();
    for stream in 0..64 {
        let mut generator = Generator::new(&workload(Rw::RandRead), span, 0, stream);
        offsets.extend(take(&mut generator, 100).iter().map(|operation| operation.offset));
    }
    offsets.sort();
    offsets.dedup();
    // 6,400 draws of 2^40 share one by chance in one of 50,000 runs.
    assert_eq!(offsets.len(), 6400);
}

#[test]
fn a_mix_is_as_asked_and_has_nothing_to_do_with_the_block() {
    // Beyond 2^32 blocks a draw's lower half alone would tie the direction to the block.
    for (rw, ios) in [(Rw::RandRw, 1 << 20), (Rw::RandRw, 3 << 33), (Rw::Rw, 50_001)] {
        let workload = Workload { rwmixread: 70, ..workload(rw) };
        let span = Span { offset_bytes: 0, ios };
        let operations = take(&mut Generator::new(&workload, span, 0, 0), 100_000);
        let reads = |of: &dyn Fn(u64) -> bool| {
            let chosen = operations.iter().filter(|op| of(op.offset / u64::from(BS)));
            let (all, reads) = chosen.fold((0.0, 0.0), |(all, reads), op| {
                (all + 1.0, reads + f64::from(u8::from(op.kind == Read)))
            });
            reads / all
        };
        for part in [
            reads(&|_| true),
            reads(&|block| block % 2 == 0),
            reads(&|block| block % 2 == 1),
            reads(&|block| block % 7 == 3),
            reads(&|block| block >= ios / 2),
        ] {
            assert!((part - 0.7).abs() < 0.02, "{rw} of {ios}: {part}");
        }
    }
}

#[test]
fn the_ends_of_a_mix_are_exact() {
    for (percent, kind) in [(0, Write), (100, Read)] {
        let workload = Workload { rwmixread: percent, ..workload(Rw::RandRw) };
        let span = Span { offset_bytes: 0, ios: 1 << 30 };
        let operations = take(&mut Generator::new(&workload, span, 0, 0), 10_000);
        assert!(operations.iter().all(|operation| operation.kind == kind), "{percent}");
    }
    assert_eq!(reads_below(&workload(Rw::RandRead)), 1 << 63, "no 63 bits reach it");
}

#[test]
fn one_direction_is_one_direction() {
    for (rw, kind) in
        [(Rw::Read, Read), (Rw::RandRead, Read), (Rw::Write, Write), (Rw::RandWrite, Write)]
    {
        let operations = take(&mut generator(rw, 0, 1 << 20), 1000);
        assert!(operations.iter().all(|operation| operation.kind == kind), "{rw}");
    }
}

#[test]
fn sequential_workers_share_the_range_without_gap_or_overlap() {
    let workload = Workload { numjobs: 3, ..workload(Rw::Read) };
    let span = Span { offset_bytes: 4096, ios: 10 };
    let blocks = |worker| {
        let mut generator = Generator::new(&workload, span, worker, worker);
        let operations = take(&mut generator, 5);
        operations.iter().map(|operation| operation.offset / 4096 - 1).collect::<Vec<_>>()
    };
    assert_eq!(blocks(0), [0, 1, 2, 0, 1]);
    assert_eq!(blocks(1), [3, 4, 5, 3, 4]);
    assert_eq!(blocks(2), [6, 7, 8, 9, 6]);
}

#[test]
fn shares_cover_the_range_whatever_the_numbers() {
    for ios in [1, 2, 7, 1000, u64::MAX] {
        for workers in [1, 2, 3, 7, 1024] {
            let shares = (0..workers).map(|worker| share(ios, worker, workers));
            let shares: Vec<_> = shares.collect();
            assert_eq!((shares[0].0, shares[shares.len() - 1].1), (0, ios));
            assert!(shares.iter().all(|(first, end)| first < end && *end <= ios));
            if ios >= workers.into() {
                assert!(shares.windows(2).all(|pair| pair[0].1 == pair[1].0));
            }
        }
    }
    assert_eq!(share(10, 9, 3), (9, 10), "a worker that there is not stays inside");
}

#[test]
fn a_flush_after_every_so_many_writes() {
    let kinds = |rw, rwmixread| {
        let workload = Workload { fsync: 3, rwmixread, ..workload(rw) };
        let span = Span { offset_bytes: 0, ios: 100 };
        let operations = take(&mut Generator::new(&workload, span, 0, 0), 1000);
        operations.iter().map(|operation| operation.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(Rw::Write, 50)[..8], [Write, Write, Write, Flush, Write, Write, Write, Flush]);
    assert!(!kinds(Rw::RandRead, 50).contains(&Flush), "nothing to flush");
    let mixed = kinds(Rw::RandRw, 50);
    for between in mixed.split(|kind| *kind == Flush).rev().skip(1) {
        assert_eq!(between.iter().filter(|kind| **kind == Write).count(), 3);
    }
}
