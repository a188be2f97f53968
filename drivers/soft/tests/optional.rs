//! The optional NVM commands, right and wrong, on each kind of backing.

mod common;

use common::*;
use nvpoll_mem::DmaBuf;
use nvpoll_spec::{CopyRange, DatasetRange, Nvm, NvmOpcode, Status, SubmissionEntry};
use zerocopy::IntoBytes;

const BLOCKS: u64 = 2048;

/// A controller of 1 MiB with one queue pair and a buffer of two pages.
fn bench(backing: &str) -> (Host, Pair, DmaBuf) {
    let comma = if backing.is_empty() { "" } else { "," };
    let mut host = Host::new(stepped(&format!("size=1M{comma}{backing}")));
    let pair = host.pair(1, 8);
    let buffer = host.buffer(8192);
    (host, pair, buffer)
}

fn at(mut entry: SubmissionEntry, buffer: &DmaBuf) -> SubmissionEntry {
    (entry.prp1, entry.prp2) = (buffer.iova(0), buffer.iova(4096));
    entry
}

fn ranges(list: &[(u64, u32)]) -> Vec<u8> {
    let range = |&(lba, blocks): &(u64, u32)| DatasetRange { attributes: 0, blocks, lba };
    list.iter().flat_map(|entry| range(entry).as_bytes().to_vec()).collect()
}

fn on_each_backing(test: impl Fn(Host, Pair, DmaBuf)) {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("backing=file,file={}", folder.path().join("media").display());
    for backing in ["", &file] {
        let (host, pair, buffer) = bench(backing);
        test(host, pair, buffer);
    }
}

#[test]
fn compare_finds_one_wrong_byte() {
    on_each_backing(|host, mut pair, buffer| {
        let data = pattern(5, 8192);
        buffer.write(0, &data);
        let run = |pair: &mut Pair, opcode| {
            code(pair.run(io(opcode, 24, 16, buffer.iova(0), buffer.iova(4096))))
        };
        assert_eq!(run(&mut pair, NvmOpcode::WRITE), Status::SUCCESS);
        assert_eq!(run(&mut pair, NvmOpcode::COMPARE), Status::SUCCESS);
        for wrong in [0, 4095, 8191] {
            buffer.write(wrong, &[!data[wrong]]);
            assert_eq!(run(&mut pair, NvmOpcode::COMPARE), Status::COMPARE_FAILURE, "byte {wrong}");
            buffer.write(wrong, &[data[wrong]]);
        }
        let beyond = io(NvmOpcode::COMPARE, BLOCKS - 1, 2, buffer.iova(0), 0);
        assert_eq!(code(pair.run(beyond)), Status::LBA_OUT_OF_RANGE);
        assert_eq!(host.controller.counters().compares, 1);
    });
}

#[test]
fn deallocated_blocks_read_as_zeroes_and_their_neighbours_stay() {
    on_each_backing(|host, mut pair, buffer| {
        let (prp1, prp2) = (buffer.iova(0), buffer.iova(4096));
        let data = pattern(6, 8192);
        buffer.write(0, &data);
        assert_ok(pair.run(io(NvmOpcode::WRITE, 0, 16, prp1, prp2)));
        buffer.write(0, &ranges(&[(1, 2), (5, 1), (9, 0)]));
        let hint = SubmissionEntry { cdw11: 1, ..at(Nvm::deallocate(1, 2), &buffer) };
        assert_ok(pair.run(hint));
        assert_eq!(host.controller.counters().trims, 0, "a hint deallocates nothing");
        assert_ok(pair.run(at(Nvm::deallocate(1, 2), &buffer)));
        let mut read = vec![0; 8192];
        assert_ok(pair.run(io(NvmOpcode::READ, 0, 16, prp1, prp2)));
        buffer.read(0, &mut read);
        for (block, (now, was)) in read.chunks(512).zip(data.chunks(512)).enumerate() {
            let zero = [1, 2, 5].contains(&block);
            assert!(now == if zero { &[0; 512] } else { was }, "block {block}");
        }
        let counters = host.controller.counters();
        assert_eq!((counters.trims, counters.trimmed_bytes), (1, 3 * 512));
    });
}

#[test]
fn deallocate_refuses_and_then_changes_nothing() {
    let (host, mut pair, buffer) = bench("");
    for (list, expected) in [
        (vec![(0, 1), (BLOCKS, 1)], Status::LBA_OUT_OF_RANGE),
        (vec![(0, 1), (u64::MAX, 1)], Status::LBA_OUT_OF_RANGE),
        (vec![(0, 1), (1, BLOCKS as u32)], Status::LBA_OUT_OF_RANGE),
    ] {
        buffer.write(0, &ranges(&list));
        let completion = pair.run(at(Nvm::deallocate(1, 1), &buffer));
        assert_eq!(code(completion), expected, "{list:?}");
        assert!(completion.status().do_not_retry());
    }
    let completion = pair.run(at(Nvm::deallocate(2, 0), &buffer));
    assert_eq!(code(completion), Status::INVALID_NAMESPACE);
    let nowhere = SubmissionEntry { prp1: 0x1000, ..Nvm::deallocate(1, 0) };
    assert_eq!(code(pair.run(nowhere)), Status::DATA_TRANSFER);
    assert_eq!(host.controller.counters().trimmed_bytes, 0);
}

#[test]
fn copy_gathers_its_ranges() {
    on_each_backing(|host, mut pair, buffer| {
        let (prp1, prp2) = (buffer.iova(0), buffer.iova(4096));
        let data = pattern(7, 8192);
        buffer.write(0, &data);
        assert_ok(pair.run(io(NvmOpcode::WRITE, 100, 16, prp1, prp2)));
        let list = [CopyRange::new(104, 3), CopyRange::new(100, 0), CopyRange::new(115, 0)];
        buffer.write(0, list.as_bytes());
        assert_ok(pair.run(at(Nvm::copy(1, 200, 2), &buffer)));
        let mut read = vec![0; 6 * 512];
        assert_ok(pair.run(io(NvmOpcode::READ, 200, 6, prp1, prp2)));
        buffer.read(0, &mut read);
        let block = |n: usize| &data[512 * n..][..512];
        let expected = [block(4), block(5), block(6), block(7), block(0), block(15)].concat();
        assert!(read == expected);
        assert_eq!(host.controller.counters().copies, 1);
    });
}

#[test]
fn copy_refuses() {
    let (host, mut pair, buffer) = bench("");
    let run = |pair: &mut Pair, list: &[CopyRange], entry: SubmissionEntry| {
        buffer.write(0, list.as_bytes());
        code(pair.run(at(entry, &buffer)))
    };
    let one = [CopyRange::new(0, 0)];
    let long = [CopyRange::new(0, 1024)];
    for (list, entry, expected) in [
        (&one[..], Nvm::copy(1, BLOCKS, 0), Status::LBA_OUT_OF_RANGE),
        (&[CopyRange::new(BLOCKS, 0)], Nvm::copy(1, 0, 0), Status::LBA_OUT_OF_RANGE),
        (&[CopyRange::new(u64::MAX, 0)], Nvm::copy(1, 0, 0), Status::LBA_OUT_OF_RANGE),
        (&long, Nvm::copy(1, 0, 0), Status::COMMAND_SIZE_LIMIT),
        (&[CopyRange::new(0, 1023); 5], Nvm::copy(1, 0, 4), Status::COMMAND_SIZE_LIMIT),
        (&one, Nvm::copy(1, 0, 16), Status::COMMAND_SIZE_LIMIT),
        (&one, Nvm::copy(7, 0, 0), Status::INVALID_NAMESPACE),
        (&one, SubmissionEntry { cdw12: 1 << 8, ..Nvm::copy(1, 0, 0) }, Status::INVALID_FIELD),
    ] {
        assert_eq!(run(&mut pair, list, entry), expected, "{entry:?}");
    }
    assert_eq!(host.controller.counters().copies, 0);
}

#[test]
fn verify_moves_nothing_and_is_not_bound_by_mdts() {
    on_each_backing(|host, mut pair, _| {
        let whole = SubmissionEntry::io(NvmOpcode::VERIFY, 1, 0, (BLOCKS - 1) as u16);
        assert_ok(pair.run(whole));
        let beyond = SubmissionEntry::io(NvmOpcode::VERIFY, 1, 1, (BLOCKS - 1) as u16);
        assert_eq!(code(pair.run(beyond)), Status::LBA_OUT_OF_RANGE);
        let counters = host.controller.counters();
        assert_eq!((counters.verifies, counters.read_bytes), (1, 0));
    });
}
