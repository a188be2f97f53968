//! A lane whose writes deallocate: the right blocks and no others, in one command each, on any shape
//! of queue.

use crate::fake::{Character, Fake};
use crate::support::*;
use nvpoll_nvme::{
    Controller, DoorbellMode, NvmeError, Options, PairOptions, QueuePair, WriteMode,
};
use nvpoll_spec::{DatasetRange, NvmOpcode, Status};
use zerocopy::IntoBytes;

const BLOCKS: u64 = 256;

fn bench(text: &str, doorbells: DoorbellMode) -> Bench {
    let mut bench = Bench::new(options(text));
    bench.doorbells = doorbells;
    bench.writes = WriteMode::Deallocate;
    bench
}

/// Fills the namespace through a pair that writes.
fn fill(bench: &mut Bench) -> Vec<u8> {
    bench.writes = WriteMode::Write;
    let block = bench.namespace.block_bytes as usize;
    let mut pair = bench.pair(1, BLOCKS as u32);
    let mut data = vec![0; BLOCKS as usize * block];
    Random(9).fill(&mut data);
    pair.fill(0, &data);
    assert_eq!(run(&mut pair, 0, write(0, BLOCKS as u32)), Status::SUCCESS);
    bench.writes = WriteMode::Deallocate;
    data
}

fn content(pair: &mut Pair, bytes: usize) -> Vec<u8> {
    assert_eq!(run(pair, 0, read(0, BLOCKS as u32)), Status::SUCCESS);
    let mut data = vec![0; bytes];
    pair.copy_out(0, &mut data);
    data
}

/// Random trims and reads against a model; with an MDTS of two pages, reads are cut and trims are not.
#[test]
fn what_is_trimmed_reads_as_zeroes_and_nothing_else_changes() {
    for doorbells in DoorbellMode::ALL {
        for shape in ["lba=512", "lba=512,mdts=8k", "lba=4096,mdts=8k"] {
            let block = if shape.starts_with("lba=4096") { 4096 } else { 512 };
            let text = format!("soft:size={},{shape},stepped", BLOCKS * block as u64);
            let mut bench = bench(&text, doorbells);
            let mut model = fill(&mut bench);
            let mut pair = bench.pair(4, BLOCKS as u32);
            let mut random = Random(3);
            for turn in 0..60 {
                let lba = random.below(BLOCKS);
                let blocks = 1 + random.below((BLOCKS - lba).min(40));
                bench.log.take_commands(1);
                let tag = random.below(4) as u16;
                let io = write(lba, blocks as u32);
                assert_eq!(run(&mut pair, tag, io), Status::SUCCESS, "{text} {turn}");
                model[lba as usize * block..][..blocks as usize * block].fill(0);
            }
            assert!(content(&mut pair, model.len()) == model, "{text}, {doorbells}");
            let counters = bench.soft.counters();
            assert_eq!((counters.trims, counters.failed), (60, 0));
        }
    }
}

#[test]
fn the_entry_is_dataset_management_with_the_tags_own_range() {
    let bench = bench("soft:size=1M,stepped", DoorbellMode::Batch);
    let mut pair = bench.pair(3, 8);
    bench.log.take_commands(1);
    let mut addresses = Vec::new();
    for tag in 0..3 {
        pair.fill(tag, &[0xaa; 4096]);
        pair.push(tag, write(100 + u64::from(tag), 8)).unwrap();
        let again = pair.push(tag, write(0, 1));
        assert!(again.is_err(), "its last one is in flight");
    }
    pair.kick();
    for entry in bench.log.take_commands(1) {
        assert_eq!((entry.opcode, entry.nsid), (NvmOpcode::DATASET_MANAGEMENT.0, 1));
        assert_eq!((entry.cdw10, entry.cdw11, entry.cdw12), (0, 4, 0));
        let tag = u64::from(entry.cid & 3);
        let range = DatasetRange { attributes: 0, blocks: 8, lba: 100 + tag };
        let words = [bench.log.word(entry.prp1), bench.log.word(entry.prp1 + 8)];
        assert_eq!(words.as_bytes(), range.as_bytes());
        addresses.push(entry.prp1);
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 3);
    assert_eq!(reap(&mut pair).len(), 3);
    let mut kept = [0; 4096];
    pair.copy_out(0, &mut kept);
    assert_eq!(kept, [0xaa; 4096], "a buffer keeps what it holds");
    for io in [write(2048, 1), write(2041, 8), write(0, 9), write(0, 0), write(u64::MAX, 1)] {
        assert!(pair.push(0, io).is_err(), "{io:?}");
    }
    assert_eq!(run(&mut pair, 0, FLUSH), Status::SUCCESS);
}

#[test]
fn a_controller_that_does_not_deallocate_is_refused() {
    let controller = Controller::open(Fake::new(Character::default()), Options::default()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let options = PairOptions {
        depth: 1,
        io_bytes: 4096,
        writes: WriteMode::Deallocate,
        ..PairOptions::default()
    };
    match QueuePair::new(&controller, &namespace, options) {
        Err(NvmeError::Unsupported { reason, .. }) => assert!(reason.contains("ONCS bit 2")),
        other => panic!("{other:?}"),
    }
}
