//! Metadata and protection information, against tuples worked out here, bit by bit.

mod common;

use common::*;
use nvpoll_mem::DmaBuf;
use nvpoll_soft::BlockMetadata;
use nvpoll_spec::{
    CHECK_APPLICATION, CHECK_GUARD, CHECK_REFERENCE, Cns, DatasetRange, Nvm, NvmOpcode,
    PROTECTION_ACTION, Status, SubmissionEntry,
};
use zerocopy::IntoBytes;

/// First block and length of what is moved.
const LBA: u64 = 0x11;
const BLOCKS: usize = 3;
const ALL_CHECKS: u32 = CHECK_GUARD | CHECK_APPLICATION | CHECK_REFERENCE;

/// T10's CRC-16, by long division.
fn crc16(bytes: &[u8]) -> u16 {
    let mut rest = 0u32;
    for byte in bytes {
        for bit in (0..8).rev() {
            let top = rest >> 15 & 1 ^ u32::from(byte >> bit) & 1;
            rest = (rest << 1 & 0xffff) ^ (top * 0x8bb7);
        }
    }
    rest as u16
}

/// A format, and a controller that has it.
struct Bench {
    pair: Pair,
    format: BlockMetadata,
    lba_bytes: usize,
    data: DmaBuf,
    metadata: DmaBuf,
    host: Host,
}

impl Bench {
    fn new(options: &str) -> Self {
        let mut host = Host::new(stepped(&format!("size=1M,{options}")));
        let soft = host.controller.options().clone();
        let pair = host.pair(1, 8);
        let (data, metadata) = (host.buffer(1 << 16), host.buffer(1 << 16));
        Self {
            pair,
            format: soft.metadata,
            lba_bytes: soft.lba_bytes as usize,
            data,
            metadata,
            host,
        }
    }

    /// Bytes of a block's metadata, and where the tuple is in there.
    fn ms(&self) -> usize {
        self.format.bytes.into()
    }

    fn tuple_at(&self) -> usize {
        if self.format.first { 0 } else { self.ms() - 8 }
    }

    /// `entry`, with this bench's memory and what CDW12, CDW14 and CDW15 are to have.
    fn ask(&mut self, mut entry: SubmissionEntry, cdw12: u32, reference: u32, tag: u32) -> Status {
        let address = self.data.iova(0);
        (entry.prp1, entry.mptr) = (address, self.metadata.iova(0));
        // An SGL data block of all that crosses the bus.
        let is_alone = self.ms() == 8 && self.format.protection != 0;
        let beside = match self.format.interleaved && !(is_alone && cdw12 & PROTECTION_ACTION != 0)
        {
            true => self.ms(),
            false => 0,
        };
        let blocks = usize::from(entry.blocks_z()) + 1;
        (entry.flags, entry.prp2) = (1 << 6, (blocks * (self.lba_bytes + beside)) as u64);
        entry.cdw12 |= cdw12;
        (entry.cdw14, entry.cdw15) = (reference, tag);
        code(self.pair.run(entry))
    }

    fn io(&mut self, opcode: NvmOpcode, cdw12: u32, reference: u32, tag: u32) -> Status {
        let entry = SubmissionEntry::io(opcode, 1, LBA, BLOCKS as u16 - 1);
        self.ask(entry, cdw12, reference, tag)
    }

    /// Puts blocks and metadata where a command takes them from, and `get` the other way.
    fn put(&self, blocks: &[(Vec<u8>, Vec<u8>)]) {
        for (index, (data, metadata)) in blocks.iter().enumerate() {
            let (at, beside) = self.places(index);
            self.data.write(at, data);
            match beside {
                Some(beside) => self.metadata.write(beside, metadata),
                None => self.data.write(at + self.lba_bytes, metadata),
            };
        }
    }

    fn get(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let get = |index| {
            let (mut data, mut metadata) = (vec![0; self.lba_bytes], vec![0; self.ms()]);
            let (at, beside) = self.places(index);
            self.data.read(at, &mut data);
            match beside {
                Some(beside) => self.metadata.read(beside, &mut metadata),
                None => self.data.read(at + self.lba_bytes, &mut metadata),
            };
            (data, metadata)
        };
        (0..BLOCKS).map(get).collect()
    }

    fn places(&self, index: usize) -> (usize, Option<usize>) {
        match self.format.interleaved {
            true => (index * (self.lba_bytes + self.ms()), None),
            false => (index * self.lba_bytes, Some(index * self.ms())),
        }
    }

    /// Blocks of some content with the tuples that belong to them.
    fn blocks(&self, seed: u64, application: u16, reference: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let block = |index: usize| {
            let data = pattern(seed + index as u64, self.lba_bytes);
            let mut metadata = pattern(!seed - index as u64, self.ms());
            let at = self.tuple_at();
            let guarded = [&data[..], if self.format.first { &[] } else { &metadata[..at] }];
            let guard = crc16(&guarded.concat());
            let counted = if self.format.protection == 3 { 0 } else { index as u32 };
            metadata[at..at + 2].copy_from_slice(&guard.to_be_bytes());
            metadata[at + 2..at + 4].copy_from_slice(&application.to_be_bytes());
            metadata[at + 4..at + 8]
                .copy_from_slice(&reference.wrapping_add(counted).to_be_bytes());
            (data, metadata)
        };
        (0..BLOCKS).map(block).collect()
    }

    fn clear(&self) {
        self.data.clear();
        self.metadata.clear();
    }

    /// The checks that a namespace of this type may be asked for.
    fn checks(&self) -> u32 {
        if self.format.protection == 3 { ALL_CHECKS & !CHECK_REFERENCE } else { ALL_CHECKS }
    }
}

/// Every place of metadata, every type and place of protection information.
fn formats() -> Vec<String> {
    let mut all = Vec::new();
    for (lba, ms) in [(512, 8), (4096, 8), (512, 16), (4096, 64)] {
        for mset in 0..=1 {
            for (pi, pil) in [(1, 0), (1, 1), (2, 0), (3, 0), (3, 1)] {
                all.push(format!("lba={lba},ms={ms},mset={mset},pi={pi},pil={pil}"));
            }
        }
    }
    all
}

#[test]
fn metadata_is_kept_beside_its_block() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("file={}", folder.path().join("media").display());
    for format in ["lba=512,ms=8", "lba=512,ms=8,mset=1", "lba=4096,ms=64,mset=1", "ms=24"] {
        for backing in ["backing=ram", &file] {
            let mut bench = Bench::new(&format!("{format},{backing}"));
            let bare = |bench: &Bench, seed: u64| {
                let block =
                    |n| (pattern(seed + n, bench.lba_bytes), pattern(!seed - n, bench.ms()));
                (0..BLOCKS as u64).map(block).collect::<Vec<_>>()
            };
            let first = bare(&bench, 10);
            bench.put(&first);
            assert_eq!(bench.io(NvmOpcode::WRITE, 0, 0, 0), Status::SUCCESS);
            // The neighbours' do not touch it.
            for lba in [LBA - BLOCKS as u64, LBA + BLOCKS as u64] {
                bench.put(&bare(&bench, 1000 + lba));
                let entry = SubmissionEntry::io(NvmOpcode::WRITE, 1, lba, BLOCKS as u16 - 1);
                assert_eq!(bench.ask(entry, 0, 0, 0), Status::SUCCESS);
            }
            bench.clear();
            assert_eq!(bench.io(NvmOpcode::READ, 0, 0, 0), Status::SUCCESS);
            assert_eq!(bench.get(), first, "{format},{backing}");
            let trim = DatasetRange { attributes: 0, blocks: BLOCKS as u32, lba: LBA };
            bench.data.write(0, trim.as_bytes());
            let mut entry = Nvm::deallocate(1, 0);
            entry.prp1 = bench.data.iova(0);
            assert_ok(bench.pair.run(entry));
            assert_eq!(bench.io(NvmOpcode::READ, 0, 0, 0), Status::SUCCESS);
            assert!(bench.get().concat_all().iter().all(|byte| *byte == 0), "trimmed: {format}");
            assert_eq!(bench.host.controller.dma_faults(), []);
        }
    }
}

trait ConcatAll {
    fn concat_all(&self) -> Vec<u8>;
}

impl ConcatAll for Vec<(Vec<u8>, Vec<u8>)> {
    fn concat_all(&self) -> Vec<u8> {
        self.iter().flat_map(|(data, metadata)| [&data[..], metadata].concat()).collect()
    }
}

#[test]
fn the_controller_makes_what_it_should() {
    for format in formats() {
        let mut bench = Bench::new(&format);
        let reference = LBA as u32;
        let expected = bench.blocks(7, 0xabcd, reference);
        // What the host sends has no tuple, and where the tuple is all, no metadata.
        let mut sent = expected.clone();
        let at = bench.tuple_at();
        sent.iter_mut().for_each(|(_, metadata)| metadata[at..at + 8].fill(0x55));
        if bench.ms() == 8 {
            for (index, (data, _)) in sent.iter().enumerate() {
                bench.data.write(index * bench.lba_bytes, data);
            }
        } else {
            bench.put(&sent);
        }
        let made = bench.io(NvmOpcode::WRITE, PROTECTION_ACTION, reference, 0xabcd);
        assert_eq!(made, Status::SUCCESS, "{format}");
        bench.clear();
        let checks = bench.checks();
        let tag = 0xffff_abcd;
        assert_eq!(bench.io(NvmOpcode::READ, checks, reference, tag), Status::SUCCESS, "{format}");
        assert_eq!(bench.get(), expected, "{format}");
        assert_eq!(bench.io(NvmOpcode::VERIFY, checks, reference, tag), Status::SUCCESS);
        bench.clear();
        let stripped = bench.io(NvmOpcode::READ, checks | PROTECTION_ACTION, reference, tag);
        assert_eq!(stripped, Status::SUCCESS, "{format}");
        if bench.ms() == 8 {
            let (mut data, mut beside) = (vec![0; bench.lba_bytes * BLOCKS + 64], vec![0; 64]);
            bench.data.read(0, &mut data);
            bench.metadata.read(0, &mut beside);
            let only: Vec<u8> = expected.iter().flat_map(|(data, _)| data.clone()).collect();
            assert_eq!((&data[..only.len()], &data[only.len()..]), (&only[..], &[0; 64][..]));
            assert_eq!(beside, [0; 64], "{format}");
        } else {
            assert_eq!(bench.get(), expected, "{format}");
        }
        let wrong = bench.io(NvmOpcode::READ, CHECK_APPLICATION, reference, 0xffff_abcc);
        assert_eq!(wrong, Status::APPLICATION_CHECK, "{format}");
        let masked = bench.io(NvmOpcode::READ, CHECK_APPLICATION, reference, 0xfffe_abcc);
        assert_eq!(masked, Status::SUCCESS, "{format}");
    }
}

#[test]
fn what_the_host_made_is_checked() {
    for format in formats() {
        let mut bench = Bench::new(&format);
        let (reference, tag, checks) = (LBA as u32, 0xffff_1234, bench.checks());
        let good = bench.blocks(3, 0x1234, reference);
        bench.put(&good);
        assert_eq!(bench.io(NvmOpcode::WRITE, checks, reference, tag), Status::SUCCESS, "{format}");
        let at = bench.tuple_at();
        let cases = [
            (0, CHECK_GUARD, Status::GUARD_CHECK),
            (2, CHECK_APPLICATION, Status::APPLICATION_CHECK),
            (7, CHECK_REFERENCE & checks, Status::REFERENCE_CHECK),
        ];
        for (byte, check, status) in cases.into_iter().filter(|(_, check, _)| *check != 0) {
            let mut wrong = good.clone();
            wrong[BLOCKS - 1].1[at + byte] ^= 1;
            bench.put(&wrong);
            let said = bench.io(NvmOpcode::WRITE, check, reference, tag);
            assert_eq!(said, status, "{format}, byte {byte}");
            // Unasked it is kept as it came, and found when a read asks.
            let unasked = bench.io(NvmOpcode::WRITE, checks & !check, reference, tag);
            assert_eq!(unasked, Status::SUCCESS, "{format}, byte {byte}");
            assert_eq!(bench.io(NvmOpcode::READ, checks, reference, tag), status, "{format}");
            assert_eq!(bench.io(NvmOpcode::VERIFY, checks, reference, tag), status, "{format}");
            let by_pract = bench.io(NvmOpcode::READ, checks | PROTECTION_ACTION, reference, tag);
            assert_eq!(by_pract, status, "{format}");
            bench.clear();
            assert_eq!(bench.io(NvmOpcode::READ, 0, reference, tag), Status::SUCCESS);
            assert_eq!(bench.get(), wrong, "{format}, byte {byte}");
        }
        // One bit of the data, and of the metadata that the guard covers.
        let mut wrong = good.clone();
        wrong[1].0[100] ^= 1 << 3;
        bench.put(&wrong);
        assert_eq!(bench.io(NvmOpcode::WRITE, checks, reference, tag), Status::GUARD_CHECK);
        if bench.ms() > 8 {
            let (mut wrong, first) = (good.clone(), bench.format.first);
            let other = if first { 8 } else { 0 };
            wrong[0].1[other] ^= 1;
            bench.put(&wrong);
            let said = bench.io(NvmOpcode::WRITE, checks, reference, tag);
            let expected = if first { Status::SUCCESS } else { Status::GUARD_CHECK };
            assert_eq!(said, expected, "{format}");
        }
        escape(&mut bench, &format, good);
    }
}

/// An application tag of all ones switches the checks off; for type 3 only with such a reference.
fn escape(bench: &mut Bench, format: &str, mut blocks: Vec<(Vec<u8>, Vec<u8>)>) {
    let (at, checks) = (bench.tuple_at(), bench.checks());
    let kind = bench.format.protection;
    for (_, metadata) in &mut blocks {
        metadata[at] ^= 1;
        metadata[at + 2..at + 4].fill(0xff);
        metadata[at + 4] = 0x77;
    }
    bench.put(&blocks);
    let said = bench.io(NvmOpcode::WRITE, checks, LBA as u32, 0);
    assert_eq!(said, if kind == 3 { Status::GUARD_CHECK } else { Status::SUCCESS }, "{format}");
    blocks.iter_mut().for_each(|(_, metadata)| metadata[at + 4..at + 8].fill(0xff));
    bench.put(&blocks);
    assert_eq!(bench.io(NvmOpcode::WRITE, checks, LBA as u32, 0), Status::SUCCESS, "{format}");
    bench.clear();
    assert_eq!(bench.io(NvmOpcode::READ, checks, LBA as u32, 0), Status::SUCCESS, "{format}");
    assert_eq!(bench.get(), blocks, "{format}");
}

#[test]
fn what_was_never_written_is_not_checked_and_zeroes_are_protected_when_asked() {
    for format in formats() {
        let mut bench = Bench::new(&format);
        let (at, checks, reference) = (bench.tuple_at(), bench.checks(), LBA as u32);
        let unwritten = |bench: &mut Bench| {
            bench.clear();
            let status = bench.io(NvmOpcode::READ, checks, reference, 0xffff_0042);
            assert_eq!(status, Status::SUCCESS, "{format}");
            for (data, mut metadata) in bench.get() {
                assert_eq!(metadata[at..at + 8], [0xff; 8], "{format}");
                metadata[at..at + 8].fill(0);
                assert!(data.iter().chain(&metadata).all(|byte| *byte == 0), "{format}");
            }
        };
        unwritten(&mut bench);
        let zeroes = |bench: &mut Bench, cdw12| {
            let entry = Nvm::write_zeroes(1, LBA, BLOCKS as u16 - 1, false);
            assert_eq!(bench.ask(entry, cdw12, reference, 0x42), Status::SUCCESS);
            assert_eq!(bench.io(NvmOpcode::READ, 0, 0, 0), Status::SUCCESS);
            bench.get()
        };
        for (index, (data, metadata)) in
            zeroes(&mut bench, PROTECTION_ACTION).into_iter().enumerate()
        {
            let counted = if bench.format.protection == 3 { 0 } else { index as u8 };
            assert!(data.iter().all(|byte| *byte == 0));
            let tuple = [0, 0, 0, 0x42, 0, 0, 0, LBA as u8 + counted];
            assert_eq!(metadata[at..at + 8], tuple, "{format}");
        }
        let checked = bench.io(NvmOpcode::READ, checks, reference, 0xffff_0042);
        assert_eq!(checked, Status::SUCCESS, "{format}");
        assert!(zeroes(&mut bench, 0).concat_all().iter().all(|byte| *byte == 0), "{format}");
        let trim = DatasetRange { attributes: 0, blocks: BLOCKS as u32, lba: LBA };
        bench.data.write(0, trim.as_bytes());
        let mut entry = Nvm::deallocate(1, 0);
        entry.prp1 = bench.data.iova(0);
        assert_ok(bench.pair.run(entry));
        unwritten(&mut bench);
    }
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut one = Bench::new("ms=8,pi=1");
    assert_eq!(one.io(NvmOpcode::READ, CHECK_REFERENCE, 5, 0), Status::INVALID_PROTECTION);
    let entry = SubmissionEntry::io(NvmOpcode::READ, 1, 2047, 1);
    assert_eq!(one.ask(entry, 0, 0, 0), Status::LBA_OUT_OF_RANGE);
    for opcode in [NvmOpcode::COMPARE, NvmOpcode::COPY] {
        assert_eq!(one.io(opcode, 0, 0, 0), Status::INVALID_OPCODE, "not offered");
    }
    let mut two = Bench::new("ms=8,pi=2");
    assert_eq!(two.io(NvmOpcode::READ, CHECK_REFERENCE, 5, 0), Status::SUCCESS);
    let mut three = Bench::new("ms=8,pi=3");
    let refused = three.io(NvmOpcode::READ, CHECK_REFERENCE, LBA as u32, 0);
    assert_eq!(refused, Status::INVALID_PROTECTION);
    // MPTR: a multiple of 4, all of it mapped, and looked at only where metadata crosses the bus.
    let mut entry = SubmissionEntry::io(NvmOpcode::READ, 1, 0, 0);
    (entry.prp1, entry.mptr) = (one.data.iova(0), one.metadata.iova(0) + 2);
    assert_eq!(code(one.pair.run(entry)), Status::INVALID_FIELD);
    entry.mptr = 1 << 60;
    assert_eq!(code(one.pair.run(entry)), Status::DATA_TRANSFER);
    assert_eq!(one.host.controller.dma_faults().len(), 1);
    entry.cdw12 |= PROTECTION_ACTION;
    assert_ok(one.pair.run(entry));
    // MDTS counts metadata that is in the data's buffer (§5.15.2.2), and no other.
    for (format, fits) in [("ms=8,mset=1", 15), ("ms=8", 16), ("ms=8,mset=1,pi=1", 15)] {
        let mut bench = Bench::new(&format!("mdts=8k,{format}"));
        let length = |blocks: u16| SubmissionEntry::io(NvmOpcode::READ, 1, 0, blocks - 1);
        assert_eq!(bench.ask(length(fits), 0, 0, 0), Status::SUCCESS, "{format}");
        assert_eq!(bench.ask(length(fits + 1), 0, 0, 0), Status::INVALID_FIELD, "{format}");
    }
}

#[test]
fn identify_says_what_there_is() {
    let page = |options: &str| {
        let mut host = Host::new(stepped(options));
        let namespace = host.identify(Cns::NAMESPACE, 1).unwrap();
        let controller = host.identify(Cns::CONTROLLER, 0).unwrap();
        // FLBAS, MC, DPC, DPS, MS; ONCS.
        let format: [u8; 6] = [26, 27, 28, 29, 128, 129].map(|at| namespace[at]);
        (format, u16::from_le_bytes([controller[520], controller[521]]))
    };
    assert_eq!(page(""), ([0; 6], 0b1_1000_1101));
    assert_eq!(page("ms=8"), ([0, 2, 0, 0, 8, 0], 0b1000_1100));
    assert_eq!(page("ms=264,mset=1,pi=2"), ([0x10, 1, 0x12, 2, 8, 1], 0b1000_1100));
    assert_eq!(page("ms=16,pi=3,pil=1"), ([0, 2, 0x0c, 0x0b, 16, 0], 0b1000_1100));
}
