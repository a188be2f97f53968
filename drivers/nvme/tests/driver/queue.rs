//! One queue pair: what it takes and what it rejects, its doorbells, its identifiers, its limits.

use crate::spy::Event;
use crate::support::*;
use nvpoll_nvme::limits::{COMMAND_BYTES_MAX, IO_BYTES_MAX};
use nvpoll_nvme::{DoorbellMode, NvmeError, PairOptions, QueuePair, Rejected};
use nvpoll_soft::{FaultAction, FaultRule};
use nvpoll_spec::{NvmOpcode, Status};
use std::collections::BTreeSet;
use std::time::Duration;

/// The stepped device keeps these completions until they are released.
const HOLD: FaultAction = FaultAction::Delay(Duration::ZERO);

#[test]
fn a_queue_is_full_at_its_depth_and_not_before() {
    let bench = Bench::new(options("soft:size=1M,mqes=16,stepped"));
    assert_eq!(QueuePair::depth_max(&bench.controller, &bench.namespace, 512), 15);
    let mut pair = bench.pair(15, 1);
    bench.soft.faults().add(FaultRule::all(HOLD).on_queue(1));
    for _ in 0..3 {
        for tag in 0..15 {
            assert_eq!(pair.push(tag, read(tag.into(), 1)), Ok(()));
            assert_eq!(pair.push(tag, read(tag.into(), 1)), Err(Rejected), "pushed, not kicked");
            assert_eq!(pair.push_whole(tag, NvmOpcode::READ, 0), Err(Rejected));
        }
        pair.kick();
        for tag in 0..=15 {
            assert_eq!(pair.push(tag, read(0, 1)), Err(Rejected), "in flight, or none");
            assert_eq!(pair.push(tag, FLUSH), Err(Rejected));
            assert_eq!(pair.push_whole(tag, NvmOpcode::WRITE, 0), Err(Rejected));
        }
        assert!(!pair.has_completion());
        assert_eq!(reap(&mut pair), []);
        bench.soft.release_held();
        assert!(pair.has_completion());
        let tags: Vec<u16> = reap(&mut pair).into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(tags, (0..15).collect::<Vec<_>>());
    }
}

#[test]
fn a_cut_io_is_in_flight_until_its_last_piece() {
    let bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
    let mut pair = bench.pair(2, 90);
    assert_eq!(pair.pieces_max(), 6);
    for held_block in [0, 20, 89] {
        let held = FaultRule::all(HOLD).for_blocks(held_block..=held_block);
        bench.soft.faults().add(held.for_opcode(NvmOpcode::WRITE.0));
        pair.push(1, write(0, 90)).unwrap();
        pair.kick();
        assert_eq!(reap(&mut pair), [], "one piece is missing");
        for io in [read(0, 90), read(0, 1), write(3, 17), FLUSH] {
            assert_eq!(pair.push(1, io), Err(Rejected), "{io:?}");
        }
        assert_eq!(run(&mut pair, 0, FLUSH), Status::SUCCESS, "another tag is free");
        bench.soft.release_held();
        assert_eq!(reap(&mut pair), [(1, Status::SUCCESS)], "counted as one");
        bench.soft.faults().clear();
        assert_eq!(run(&mut pair, 1, FLUSH), Status::SUCCESS);
    }
    // Three rounds of six pieces, and the flushes.
    assert_eq!(bench.log.take_commands(1).len(), 3 * 6 + 3 * 2);
}

#[test]
fn what_lies_outside_is_rejected() {
    let bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
    for io_blocks in [8, 40] {
        let mut pair = bench.pair(2, io_blocks);
        for io in [
            read(2048, 1),
            read(2048 - u64::from(io_blocks) + 1, io_blocks),
            read(0, 0),
            read(0, io_blocks + 1),
            read(0, u32::MAX),
            read(0, 1 << 16),
            read(u64::MAX, 1),
            read(u64::MAX - u64::from(io_blocks) + 1, io_blocks),
            read(1 << 63, 1),
        ] {
            assert_eq!(pair.push(0, io), Err(Rejected), "{io:?}");
        }
        let last = 2048 - u64::from(io_blocks);
        for lba in [last + 1, 2047, 2048, 1 << 63, u64::MAX - u64::from(io_blocks) + 1, u64::MAX] {
            assert_eq!(pair.push_whole(0, NvmOpcode::WRITE, lba), Err(Rejected), "{lba}");
        }
        assert_eq!(pair.push_whole(2, NvmOpcode::READ, 0), Err(Rejected), "no such tag");
        pair.kick();
        pair.push_whole(0, NvmOpcode::READ, last).unwrap();
        pair.push_whole(1, NvmOpcode::FLUSH, u64::MAX).unwrap();
        pair.kick();
        assert_eq!(reap(&mut pair), [(0, Status::SUCCESS), (1, Status::SUCCESS)]);
        assert_eq!(run(&mut pair, 0, read(last, io_blocks)), Status::SUCCESS);
        assert_eq!(run(&mut pair, 1, read(2047, 1)), Status::SUCCESS);
    }
    assert_eq!(bench.soft.counters().failed, 0);
}

#[test]
fn one_doorbell_a_batch() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let mut pair = bench.pair(8, 1);
    bench.log.take_events();
    pair.kick();
    assert_eq!(reap(&mut pair), []);
    assert_eq!(bench.log.take_events(), [], "nothing to tell");
    for tag in 0..8 {
        pair.push(tag, read(0, 1)).unwrap();
    }
    assert_eq!(bench.log.take_events(), []);
    pair.kick();
    pair.kick();
    assert_eq!(bench.log.take_events(), [Event::Tail(1)]);
    assert_eq!(reap(&mut pair).len(), 8);
    assert_eq!(bench.log.take_events(), [Event::Head(1)]);
    assert_eq!(pair.doorbell_writes(), 2);
}

#[test]
fn one_doorbell_for_each_command_and_completion() {
    for (io_blocks, pieces) in [(1, 1), (40, 3)] {
        let mut bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
        bench.doorbells = DoorbellMode::Each;
        let mut pair = bench.pair(8, io_blocks);
        assert_eq!(pair.pieces_max(), pieces);
        bench.log.take_events();
        pair.push_whole(0, NvmOpcode::READ, 0).unwrap();
        pair.push(1, write(2048 - u64::from(io_blocks), io_blocks)).unwrap();
        pair.push(2, read(5, 1)).unwrap();
        pair.push(3, FLUSH).unwrap();
        assert_eq!(bench.log.take_events(), [Event::Tail(1); 4], "each I/O is on its way");
        for io in [read(0, io_blocks), read(2048, io_blocks), read(0, io_blocks + 1)] {
            assert_eq!(pair.push(0, io), Err(Rejected));
        }
        assert_eq!(pair.push_whole(8, NvmOpcode::READ, 0), Err(Rejected));
        pair.kick();
        assert_eq!(bench.log.take_events(), [], "nothing is left to tell");
        assert_eq!(reap(&mut pair).len(), 4);
        let completions = 2 * usize::from(pieces) + 2;
        assert_eq!(bench.log.take_events(), vec![Event::Head(1); completions]);
        assert_eq!(pair.doorbell_writes(), 4 + completions as u64);
    }
}

/// Two entries, the least that a queue may have: the ring wraps with each I/O, and in the end the
/// identifiers, of which a slot has 32,768, do so as well.
#[test]
fn the_shallowest_queue_goes_round_and_round() {
    let bench = Bench::new(options("soft:size=64k,mqes=2,stepped"));
    let mut pair = bench.pair(1, 8);
    assert!(matches!(bench.try_pair(2, 8), Err(NvmeError::Limit { .. })));
    let mut cids = BTreeSet::new();
    for round in 0..70_000u64 {
        let data = round.to_le_bytes();
        pair.fill(0, &data);
        assert_eq!(run(&mut pair, 0, write(round % 16, 1)), Status::SUCCESS);
        let [command] = bench.log.take_commands(1)[..] else { panic!("one command") };
        cids.insert(command.cid);
        if round % 1000 == 0 {
            assert_eq!(run(&mut pair, 0, read(round % 16, 1)), Status::SUCCESS);
            let mut back = [0; 8];
            pair.copy_out(0, &mut back);
            assert_eq!(back, data);
            bench.log.take_commands(1);
            bench.log.take_events();
        }
    }
    assert_eq!(cids.len(), 32_768, "no generation was left out");
    assert!(!cids.contains(&0xffff));
}

/// The deepest queue there is: one bit of the identifier is left for the generation.
#[test]
fn the_deepest_queue_completes_in_one_pass() {
    let bench = Bench::new(options("soft:size=16M,mqes=65536,stepped"));
    let depth_max = QueuePair::depth_max(&bench.controller, &bench.namespace, 512);
    assert_eq!(depth_max, 0x7fff);
    let mut pair = bench.pair(0x7fff, 1);
    for _ in 0..3 {
        for tag in 0..0x7fff {
            pair.push(tag, read(tag.into(), 1)).unwrap();
        }
        pair.kick();
        let cids = bench.log.take_commands(1).into_iter().map(|command| command.cid);
        let cids: BTreeSet<u16> = cids.collect();
        assert_eq!(cids.len(), 0x7fff, "identifiers are unique");
        assert!(!cids.contains(&0xffff));
        let mut tags: Vec<u16> = reap(&mut pair).into_iter().map(|(tag, _)| tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..0x7fff).collect::<Vec<_>>());
    }
}

/// 64 MiB from one tag, in as many commands as the driver's own limit makes of them.
#[test]
fn the_longest_io_moves_every_byte() {
    let bench = Bench::new(options("soft:size=65M,mdts=0,lba=4k,stepped"));
    let (bytes, blocks) = (IO_BYTES_MAX as usize, IO_BYTES_MAX / 4096);
    let mut pair = bench.pair(1, blocks);
    assert_eq!(u32::from(pair.pieces_max()), IO_BYTES_MAX / COMMAND_BYTES_MAX);
    let mut data = vec![0; bytes];
    Random(1).fill(&mut data);
    pair.fill(0, &data);
    assert_eq!(run(&mut pair, 0, write(256, blocks)), Status::SUCCESS);
    pair.fill(0, &vec![0; bytes]);
    assert_eq!(run(&mut pair, 0, read(256, blocks)), Status::SUCCESS);
    let mut back = vec![0; bytes];
    pair.copy_out(0, &mut back);
    assert!(back == data);
    assert_eq!(bench.soft.counters().written_bytes, bytes as u64);
}

#[test]
fn what_does_not_fit_says_what_would() {
    let bench = Bench::new(options("soft:size=1G,mqes=32,mdts=16k,lba=4k,stepped"));
    let refused = |depth, io_bytes| {
        let options = PairOptions { depth, io_bytes, ..PairOptions::default() };
        match QueuePair::new(&bench.controller, &bench.namespace, options) {
            Err(NvmeError::Limit { reason, .. }) => reason,
            other => panic!("depth {depth}, {io_bytes} bytes: {other:?}"),
        }
    };
    for (depth, io_bytes, says) in [
        (0, 4096, "1 to 31 is possible"),
        (32, 4096, "1 to 31 is possible"),
        (u16::MAX, 4096, "1 to 31 is possible"),
        (4, 131_072, "1 to 3 is possible"),
        (1, 0, "a multiple of the block size, 4096"),
        (1, 4097, "a multiple of the block size, 4096"),
        (1, u32::MAX - 4095, "at most 67108864"),
        (1, 67_108_864, "takes 4096 commands"),
        (1, 32 * 16_384, "takes 32 commands"),
    ] {
        let reason = refused(depth, io_bytes);
        assert!(reason.contains(says), "{reason}");
    }
    assert_eq!(bench.log.take_commands(0), [], "all before the device heard of it");
    drop(bench.pair(1, 31 * 4));
    drop(bench.pair(31, 1));
}

#[test]
fn buffers_are_cut_at_their_end_and_only_those_of_tags_are_touched() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let mut pair = bench.pair(2, 8);
    pair.fill(0, &[1; 10_000]);
    pair.fill(1, &[2; 4096]);
    pair.fill(2, &[3; 4096]);
    pair.fill(u16::MAX, &[3; 4096]);
    let mut data = [9; 5000];
    pair.copy_out(0, &mut data);
    assert!(data[..4096] == [1; 4096] && data[4096..] == [9; 904]);
    pair.copy_out(1, &mut data);
    assert_eq!(data[..4096], [2; 4096]);
    pair.copy_out(2, &mut data);
    assert_eq!(data[..4096], [2; 4096], "a tag that is none changes nothing");
}
