//! Protection information made and checked by the host: who finds what is wrong, and says it how.

use crate::support::*;
use nvpoll_nvme::NvmeError;
use nvpoll_spec::Status;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

const BLOCKS: u64 = 64;

/// A soft controller whose medium is a file: blocks first, then their metadata, with tuples inverted.
struct Medium {
    path: PathBuf,
    block_bytes: u64,
    metadata_bytes: u64,
    /// Where the tuple is in a block's metadata.
    tuple: u64,
    _folder: tempfile::TempDir,
}

impl Medium {
    fn new(format: &str, block_bytes: u64, metadata_bytes: u64, tuple: u64) -> (Self, Bench) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("medium");
        let size = BLOCKS * block_bytes;
        let text = format!(
            "soft:size={size},lba={block_bytes},ms={metadata_bytes},{format},mdts=8k,stepped,file={}",
            path.display()
        );
        let mut bench = Bench::new(options(&text));
        bench.by_host = true;
        (Self { path, block_bytes, metadata_bytes, tuple, _folder: folder }, bench)
    }

    /// Flips a bit of the medium.
    fn flip(&self, at: u64) {
        let mut file = File::options().read(true).write(true).open(&self.path).unwrap();
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut byte).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[byte[0] ^ 1]).unwrap();
    }

    /// Where byte `byte` of a block's tuple is.
    fn tuple(&self, lba: u64, byte: u64) -> u64 {
        BLOCKS * self.block_bytes + lba * self.metadata_bytes + self.tuple + byte
    }
}

const FORMATS: [(&str, u64, u64, u64); 9] = [
    ("pi=1,pif=2", 512, 16, 0),
    ("pi=3,pif=2,mset=1,pil=1", 4096, 64, 0),
    ("pi=1", 512, 8, 0),
    ("pi=1,mset=1", 4096, 8, 0),
    ("pi=2,mset=1", 512, 16, 8),
    ("pi=3", 512, 8, 0),
    ("pi=3,mset=1,pil=1", 512, 64, 0),
    ("pi=1,pil=1", 4096, 64, 0),
    ("pi=2", 512, 64, 56),
];

#[test]
fn one_wrong_bit_is_found_by_whoever_reads() {
    for (format, block_bytes, metadata_bytes, tuple) in FORMATS {
        let (medium, mut bench) = Medium::new(format, block_bytes, metadata_bytes, tuple);
        // With MDTS of 8 KiB, 20 blocks are several commands, and the wrong block is in the last.
        let (lba, blocks) = (7, 20);
        let wrong = lba + u64::from(blocks) - 1;
        let mut host = bench.pair(2, blocks);
        bench.by_host = false;
        let mut controller = bench.pair(2, blocks);
        let mut data = vec![0; blocks as usize * block_bytes as usize];
        Random(block_bytes ^ metadata_bytes).fill(&mut data);
        host.fill(1, &data);
        assert_eq!(run(&mut host, 1, write(lba, blocks)), Status::SUCCESS, "{format}");
        for pair in [&mut host, &mut controller] {
            assert_eq!(run(pair, 0, read(lba, blocks)), Status::SUCCESS, "{format}");
            let mut back = vec![0; data.len()];
            pair.copy_out(0, &mut back);
            assert!(back == data, "{format}");
        }
        let reference =
            if format.starts_with("pi=3") { None } else { Some(Status::REFERENCE_CHECK) };
        let (at, last) = if format.contains("pif=2") { (8, 15) } else { (2, 7) };
        for (place, host_says, controller_says) in [
            (wrong * block_bytes + 77, Some(Status::GUARD_CHECK), Some(Status::GUARD_CHECK)),
            (medium.tuple(wrong, 1), Some(Status::GUARD_CHECK), Some(Status::GUARD_CHECK)),
            // The driver does not ask the controller for the application tag.
            (medium.tuple(wrong, at + 1), Some(Status::APPLICATION_CHECK), None),
            (medium.tuple(wrong, last), reference, reference),
        ] {
            medium.flip(place);
            let said = run(&mut host, 0, read(lba, blocks));
            let expected = host_says.map_or(Status::SUCCESS, Status::found_by_host);
            assert_eq!(said, expected, "{format}, byte {place} by the host");
            let said = run(&mut controller, 0, read(lba, blocks));
            assert_eq!(said, controller_says.unwrap_or_default(), "{format}, byte {place}");
            // The blocks before are as they were, and a flush under the same tag reads nothing.
            assert_eq!(run(&mut host, 0, read(lba, blocks - 1)), Status::SUCCESS, "{format}");
            assert_eq!(run(&mut host, 0, FLUSH), Status::SUCCESS);
            medium.flip(place);
        }
        assert_eq!(run(&mut host, 0, read(lba, blocks)), Status::SUCCESS, "{format}");
    }
}

#[test]
fn the_host_checks_what_the_controller_made_and_leaves_alone_what_was_never_written() {
    for (format, block_bytes, metadata_bytes, tuple) in FORMATS {
        let (_medium, mut bench) = Medium::new(format, block_bytes, metadata_bytes, tuple);
        let mut host = bench.pair(1, 8);
        bench.by_host = false;
        let mut controller = bench.pair(1, 8);
        assert_eq!(run(&mut host, 0, read(40, 8)), Status::SUCCESS, "{format}");
        controller.fill(0, &vec![0xa5; 8 * block_bytes as usize]);
        assert_eq!(run(&mut controller, 0, write(40, 8)), Status::SUCCESS, "{format}");
        assert_eq!(run(&mut host, 0, read(38, 8)), Status::SUCCESS, "{format}");
    }
}

/// The controller refuses I/O on such formats until the host has said that it knows them.
#[test]
fn a_guard_of_64_bits_is_read_at_identify_and_said() {
    let bench = Bench::new(options("soft:size=1M,ms=16,pi=1,pif=2,stepped"));
    let metadata = bench.namespace.metadata.unwrap().to_string();
    assert!(metadata.contains("type 1 with a 64-bit guard, by the controller"), "{metadata}");
    let mut pair = bench.pair(1, 8);
    assert_eq!(run(&mut pair, 0, write(3, 8)), Status::SUCCESS);
    assert_eq!(run(&mut pair, 0, read(3, 8)), Status::SUCCESS);
}

#[test]
fn there_has_to_be_some() {
    for format in ["soft:size=1M,stepped", "soft:size=1M,ms=8,stepped"] {
        let mut bench = Bench::new(options(format));
        bench.by_host = true;
        let Err(NvmeError::Unsupported { reason, .. }) = bench.try_pair(1, 8) else {
            panic!("{format} was taken")
        };
        assert!(reason.contains("DPS is 0"), "{reason}");
    }
}
