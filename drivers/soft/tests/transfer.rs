//! Data moves as it should, whatever its shape.

mod common;

use common::*;
use nvpoll_mem::DmaBuf;
use nvpoll_soft::SoftOptions;
use nvpoll_spec::{NSID_ALL, NvmOpcode, Status, SubmissionEntry};
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

fn write_and_read_back(options: SoftOptions) {
    let mut host = Host::new(options);
    let mut pair = host.pair(1, 16);
    let buffer = host.buffer(4096);
    for round in 0..100u64 {
        let data = pattern(round, 4096);
        buffer.write(0, &data);
        let lba = round * 8;
        assert_ok(pair.run(io(NvmOpcode::WRITE, lba, 8, buffer.iova(0), 0)));
        buffer.clear();
        assert_ok(pair.run(io(NvmOpcode::READ, lba, 8, buffer.iova(0), 0)));
        let mut back = vec![0; 4096];
        buffer.read(0, &mut back);
        assert_eq!(back, data, "round {round}");
    }
    assert_eq!(host.controller.dma_faults(), []);
}

#[test]
fn stepped_device_keeps_what_is_written() {
    write_and_read_back(stepped("size=16M"));
}

#[test]
fn threaded_device_keeps_what_is_written() {
    write_and_read_back("size=16M".parse().unwrap());
}

/// How a transfer's data lies in memory.
#[derive(Clone, Debug)]
struct Shape {
    /// CC.MPS: pages of 4 KiB shifted left by this.
    mps: u8,
    /// Dwords into the first page.
    offset_dwords: u32,
    /// Which page comes where: a permutation's seed.
    order: u64,
    /// Quadwords into the list's page at which the list begins.
    list_qwords: u32,
    lba: u64,
    blocks: u32,
}

fn shapes(blocks_max: u32) -> impl Strategy<Value = Shape> {
    let edges = prop_oneof![Just(0), Just(1), Just(511), Just(1023), 0u32..1024];
    let blocks = prop_oneof![1..=9u32, 1..=blocks_max, blocks_max - 8..=blocks_max];
    let list = prop_oneof![Just(0), Just(511), Just(510), 0u32..512];
    (0u8..=4, edges, any::<u64>(), list, 0u64..4096, blocks).prop_map(
        |(mps, offset_dwords, order, list_qwords, lba, blocks)| Shape {
            mps,
            offset_dwords,
            order,
            list_qwords,
            lba,
            blocks,
        },
    )
}

/// A transfer's memory: pages in no order, each with its neighbours free, and the list's pages.
struct Laid {
    pages: DmaBuf,
    lists: DmaBuf,
    prp1: u64,
    prp2: u64,
    /// Byte offset in `pages` of each run of data, and its length.
    runs: Vec<(usize, usize)>,
}

/// Lays `bytes` out as §4.3 says, from the specification's text and not from the device's code.
fn lay_out(host: &Host, shape: &Shape, bytes: usize) -> Laid {
    let page = 4096usize << shape.mps;
    let offset = shape.offset_dwords as usize * 4;
    let count = (offset + bytes).div_ceil(page);
    // Twice as many pages as are needed; the odd ones must stay as they are.
    let pages = aligned(&host.dma, 2 * count * page, page as u64);
    let place = |n: usize| {
        let n = (n as u64 + shape.order % 7919) * 7907 % 7919;
        n as usize
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|n| place(*n));
    let page_at = |n: usize| 2 * order[n] * page;
    let mut runs = Vec::new();
    let mut left = bytes;
    for n in 0..count {
        let start = if n == 0 { offset } else { 0 };
        let run = left.min(page - start);
        runs.push((page_at(n) + start, run));
        left -= run;
    }
    let prp1 = pages.iova(page_at(0) + offset);
    let lists = aligned(&host.dma, page * (2 + count / (page / 8 - 1)), page as u64);
    let slot = |at: usize| &lists.words()[at / 8];
    let prp2 = match count {
        1 => 0xdead_beef_dead_beef, // ignored
        2 => pages.iova(page_at(1)),
        _ => {
            let mut at = (shape.list_qwords as usize * 8) % page;
            let first = lists.iova(at);
            for n in 1..count {
                let last_slot = at % page == page - 8;
                if last_slot && n + 1 < count {
                    slot(at).store(lists.iova(at + 8), Relaxed);
                    at += 8;
                }
                slot(at).store(pages.iova(page_at(n)), Relaxed);
                at += 8;
            }
            first
        }
    };
    Laid { pages, lists, prp1, prp2, runs }
}

fn bytes_of(buffer: &DmaBuf) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes()];
    buffer.read(0, &mut bytes);
    bytes
}

/// Writes through one shape, reads back through another, and compares every byte of every page.
fn round_trip(options: SoftOptions, write: &Shape, read: &Shape) {
    let lba_bytes = options.lba_bytes as usize;
    let controller = nvpoll_soft::SoftController::start(options).unwrap();
    let mut cc = enabled();
    cc.set_page_size(write.mps);
    let mut host = Host::over(std::sync::Arc::clone(&controller), cc, 16);
    let mut pair = host.pair(1, 16);

    let bytes = write.blocks as usize * lba_bytes;
    let data = pattern(write.order, bytes);
    let source = lay_out(&host, write, bytes);
    let mut image = vec![0; source.pages.bytes()];
    let mut rest = &data[..];
    for (at, run) in &source.runs {
        image[*at..][..*run].copy_from_slice(&rest[..*run]);
        rest = &rest[*run..];
    }
    source.pages.write(0, &image);
    let entry = io(NvmOpcode::WRITE, write.lba, write.blocks, source.prp1, source.prp2);
    assert_ok(pair.run(entry));
    assert_eq!(bytes_of(&source.pages), image, "a write changed the host's memory");

    // One block before and behind are read as well: they were never written.
    let lba = write.lba.saturating_sub(1);
    let before = (write.lba - lba) as usize * lba_bytes;
    let blocks = write.blocks + (write.lba - lba) as u32 + 1;
    let bytes = blocks as usize * lba_bytes;
    let target = lay_out(&host, &Shape { mps: write.mps, ..read.clone() }, bytes);
    let mut expected = vec![0xee; target.pages.bytes()];
    target.pages.write(0, &expected);
    let mut content = vec![0; before];
    content.extend(&data);
    content.resize(bytes, 0);
    let mut rest = &content[..];
    for (at, run) in &target.runs {
        expected[*at..][..*run].copy_from_slice(&rest[..*run]);
        rest = &rest[*run..];
    }
    assert_ok(pair.run(io(NvmOpcode::READ, lba, blocks, target.prp1, target.prp2)));
    let seen = bytes_of(&target.pages);
    let wrong = seen.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "first wrong byte of the host's memory");
    assert_eq!(controller.dma_faults(), []);
    drop((source.lists, target.lists));
}

proptest! {
    #![proptest_config(cases(192))]

    /// Every offset, page size, list start and chain, against a plain copy.
    #[test]
    fn any_shape_moves_every_byte(write in shapes(1024), read in shapes(1024)) {
        round_trip(stepped("size=8M,mdts=0"), &write, &read);
    }

}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn any_shape_through_a_file(write in shapes(1024), read in shapes(1024)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options = SoftOptions {
            backing: nvpoll_soft::Backing::File(file.path().into()),
            ..stepped("size=8M,mdts=0")
        };
        round_trip(options, &write, &read);
    }
}

/// 4 KiB blocks, lists that chain over three pages, and a chunk's border inside of it.
#[test]
fn a_transfer_of_eight_megabytes() {
    let shape =
        Shape { mps: 0, offset_dwords: 1, order: 3, list_qwords: 300, lba: 300, blocks: 2048 };
    round_trip(stepped("size=32M,lba=4096,mdts=0"), &shape, &shape);
}

#[test]
fn prps_that_break_the_rules_are_told() {
    let mut host = Host::new(stepped("size=8M"));
    let mut pair = host.pair(1, 8);
    let data = host.buffer(65_536);
    let list = host.buffer(8192);
    let fill = |skew: u64| {
        for n in 0..16 {
            let skew = if n == 3 { skew } else { 0 };
            list.words()[n].store(data.iova(n * 4096) + skew, Relaxed);
        }
    };
    let page = data.iova(0);
    let mut check = |blocks, prp1, prp2, expected: Status| {
        let completion = pair.run(io(NvmOpcode::READ, 0, blocks, prp1, prp2));
        assert_eq!(code(completion), expected, "{blocks} {prp1:#x} {prp2:#x}");
    };
    let invalid = Status::INVALID_PRP_OFFSET;
    fill(0);
    check(8, page + 4, page + 4096, Status::SUCCESS);
    check(1, page + 1, 0, invalid);
    check(1, page + 2, 0, invalid);
    check(8, page + 512, page + 4096 + 4, invalid);
    check(16, page, page + 4096 + 512, invalid);
    check(24, page, list.iova(8), Status::SUCCESS);
    check(24, page, list.iova(8) + 4, invalid);
    check(64, page, list.iova(8), Status::SUCCESS);
    fill(8);
    check(64, page, list.iova(8), invalid);
    check(24, page, list.iova(8), Status::SUCCESS);
    // A chain whose next list does not begin at a page's start.
    list.words()[511].store(list.iova(4096 + 8), Relaxed);
    check(64, page, list.iova(4096 - 8), invalid);
    assert_eq!(host.controller.dma_faults(), []);
}

#[test]
fn commands_outside_of_the_namespace_and_the_limits() {
    let mut host = Host::new(stepped("size=1M,lba=4096,mdts=128k"));
    let mut pair = host.pair(1, 8);
    let data = host.buffer(4096);
    let at = data.iova(0);
    let field = Status::INVALID_FIELD;
    let range = Status::LBA_OUT_OF_RANGE;
    let read = |lba, blocks| io(NvmOpcode::READ, lba, blocks, at, 0);
    let zero = |lba, blocks| io(NvmOpcode::WRITE_ZEROES, lba, blocks, 0, 0);
    let mut odd = read(0, 1);
    odd.flags = 1;
    // An SGL data block as long as the data; then too short, of another type, for metadata as well, and odd.
    let sgl = |flags, at, rest| SubmissionEntry { flags, ..io(NvmOpcode::READ, 0, 1, at, rest) };
    let of = |nsid, entry| SubmissionEntry { nsid, ..entry };
    for (entry, expected) in [
        (read(255, 1), Status::SUCCESS),
        (read(256, 1), range),
        (read(255, 2), range),
        (read(u64::MAX, 1), range),
        (read(u64::MAX / 4096 + 1, 1), range),
        (read((1 << 52) - 1, 1), range),
        (read(0, 33), field),
        (odd, field),
        (sgl(0x40, at, 4096), Status::SUCCESS),
        (sgl(0x40, at, 4092), Status::INVALID_SGL_LENGTH),
        (sgl(0x40, at, 8192), Status::INVALID_SGL_LENGTH),
        (sgl(0x40, at, 4096 | 2 << 60), Status::INVALID_SGL_TYPE),
        (sgl(0x80, at, 4096), field),
        (sgl(0xc0, at, 4096), field),
        (sgl(0x40, at + 2, 4096), Status::INVALID_SGL_LENGTH),
        (of(0, read(0, 1)), Status::INVALID_NAMESPACE),
        (of(2, read(0, 1)), Status::INVALID_NAMESPACE),
        (of(NSID_ALL, read(0, 1)), Status::INVALID_NAMESPACE),
        (zero(0, 256), Status::SUCCESS),
        (zero(1, 256), range),
        (of(2, zero(0, 1)), Status::INVALID_NAMESPACE),
        (SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0), Status::SUCCESS),
        (SubmissionEntry::io(NvmOpcode::FLUSH, NSID_ALL, 0, 0), Status::SUCCESS),
        (SubmissionEntry::io(NvmOpcode::FLUSH, 0, 0, 0), Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(code(pair.run(entry)), expected, "{entry:?}");
    }
    let counters = host.controller.counters();
    assert_eq!((counters.flushes, counters.write_zeroes), (2, 1));
}

fn zeroes_over_data(options: SoftOptions) {
    let mut host = Host::new(options);
    let mut pair = host.pair(1, 8);
    let data = host.buffer(4096);
    let ones = vec![0xff; 4096];
    let blocks = host.controller.options().size_bytes / 4096;
    for block in 0..blocks {
        data.write(0, &ones);
        assert_ok(pair.run(io(NvmOpcode::WRITE, block * 8, 8, data.iova(0), 0)));
    }
    // From the middle of one chunk, over a whole one, into a third.
    let (first, count) = (1_003u64, 10_001u32);
    assert_ok(pair.run(io(NvmOpcode::WRITE_ZEROES, first, count, 0, 0)));
    for block in 0..blocks * 8 {
        assert_ok(pair.run(io(NvmOpcode::READ, block, 1, data.iova(0), 0)));
        let zero = (first..first + u64::from(count)).contains(&block);
        let expected = if zero { 0 } else { u64::MAX };
        assert!(
            data.words()[..64].iter().all(|word| word.load(Relaxed) == expected),
            "block {block}"
        );
    }
}

#[test]
fn write_zeroes_in_memory() {
    zeroes_over_data(stepped("size=8M"));
}

#[test]
fn write_zeroes_in_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let backing = nvpoll_soft::Backing::File(file.path().into());
    zeroes_over_data(SoftOptions { backing, ..stepped("size=8M") });
}

#[test]
fn null_touches_no_data() {
    let mut host = Host::new(stepped("size=1024t,backing=null"));
    let mut pair = host.pair(1, 8);
    let data = host.buffer(4096);
    data.write(0, &[0x5a; 4096]);
    let last = (1 << 41) - 8;
    assert_ok(pair.run(io(NvmOpcode::WRITE, last, 8, data.iova(0), 0)));
    assert_ok(pair.run(io(NvmOpcode::READ, last, 8, data.iova(0), 0)));
    assert_eq!(bytes_of(&data), [0x5a; 4096]);
    let fault = pair.run(io(NvmOpcode::READ, 0, 8, data.iova(4096), 0));
    assert_eq!(code(fault), Status::DATA_TRANSFER, "but memory is still checked");
}

/// A petabyte of memory costs what was written to it.
#[test]
fn memory_is_sparse() {
    let mut host = Host::new(stepped("size=1024t"));
    let mut pair = host.pair(1, 8);
    let data = host.buffer(4096);
    for lba in [0, 1 << 40, (1 << 41) - 1] {
        let written = pattern(lba, 512);
        data.write(0, &written);
        assert_ok(pair.run(io(NvmOpcode::WRITE, lba, 1, data.iova(0), 0)));
        data.clear();
        assert_ok(pair.run(io(NvmOpcode::READ, lba, 1, data.iova(0), 0)));
        assert_eq!(bytes_of(&data)[..512], written);
        assert_ok(pair.run(io(NvmOpcode::READ, lba ^ 4096, 1, data.iova(0), 0)));
        assert_eq!(bytes_of(&data)[..512], [0; 512]);
    }
}
