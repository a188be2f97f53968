//! A lane whose writes are durable: FUA in each write's commands, in no other, on any shape of queue.

use crate::support::*;
use nvpoll_nvme::{DoorbellMode, WriteMode};
use nvpoll_spec::{FORCE_UNIT_ACCESS, NvmOpcode, Status, SubmissionEntry};

/// What the device was sent: the commands with FUA, and all.
fn forced(commands: &[SubmissionEntry]) -> (Vec<NvmOpcode>, usize) {
    let has = |entry: &&SubmissionEntry| entry.cdw12 & FORCE_UNIT_ACCESS != 0;
    let opcodes = commands.iter().filter(has).map(|entry| NvmOpcode(entry.opcode));
    (opcodes.collect(), commands.len())
}

#[test]
fn each_write_has_fua_and_nothing_else_has() {
    for doorbells in DoorbellMode::ALL {
        for (shape, commands) in [
            ("lba=512", 1),
            ("lba=512,mdts=8k", 4),
            ("lba=4096", 1),
            ("ms=8,pi=1", 1),
            ("ms=16,mset=1", 1),
        ] {
            for writes in [WriteMode::Write, WriteMode::Dsync, WriteMode::Sync] {
                let mut bench = Bench::new(options(&format!("soft:size=1M,{shape},stepped")));
                (bench.doorbells, bench.writes) = (doorbells, writes);
                let blocks = 32768 / bench.namespace.block_bytes;
                let mut pair = bench.pair(2, blocks);
                let mut data = vec![0; 32768];
                Random(5).fill(&mut data);
                pair.fill(0, &data);
                bench.log.take_commands(1);
                // Of the full length, and shorter, at another place.
                assert_eq!(run(&mut pair, 0, write(0, blocks)), Status::SUCCESS, "{shape}");
                assert_eq!(run(&mut pair, 1, write(u64::from(blocks), 1)), Status::SUCCESS);
                let (seen, all) = forced(&bench.log.take_commands(1));
                let wanted = if writes == WriteMode::Write { 0 } else { commands + 1 };
                assert_eq!(all, commands + 1, "{shape}");
                assert_eq!(seen, vec![NvmOpcode::WRITE; wanted], "{shape} {writes:?} {doorbells}");
                assert_eq!(run(&mut pair, 1, read(0, blocks)), Status::SUCCESS);
                assert_eq!(run(&mut pair, 0, FLUSH), Status::SUCCESS);
                assert_eq!(forced(&bench.log.take_commands(1)).0, [], "{shape}");
                let mut back = vec![0; 32768];
                pair.copy_out(1, &mut back);
                assert!(back == data, "{shape} {writes:?}");
                assert_eq!(bench.soft.counters().forced_writes, wanted as u64);
            }
        }
    }
}
