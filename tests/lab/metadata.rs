//! Blocks that have more than data: metadata beside and behind it, protection information of each
//! type. Every block is written by the driver, read back by it, and looked at in the image; and what the
//! host protects the controller checks, and the other way round.

use crate::machine::{self, Lab, Ran};
use crate::pattern;
use std::fs;

/// A drive's options, and bytes of a block's data and metadata.
type Drive = (&'static str, usize, usize);

const OF_8_BYTES: &[Drive] = &[
    ("lba=512,ms=8", 512, 8),
    ("lba=512,ms=8,pi=1,mdts=3", 512, 8),
    ("lba=4096,ms=8,pi=2", 4096, 8),
    ("lba=512,ms=8,pi=3,mset=1", 512, 8),
];
const OF_MORE_BYTES: &[Drive] = &[
    ("lba=512,ms=16,mset=1,mdts=3", 512, 16),
    ("lba=4096,ms=64,mset=1,pi=1,pil=1", 4096, 64),
    ("lba=512,ms=16,pi=1", 512, 16),
    ("lba=4096,ms=16,pi=1,pif=2", 4096, 16),
    ("lba=4096,ms=64,mset=1,pi=3,pil=1,pif=2", 4096, 64),
];
const SIZE_BYTES: usize = 24 << 20;

#[test]
fn metadata_of_8_bytes_with_and_without_protection_information() {
    // The kernel's own paths to such a drive, and what of them does not go.
    let ran = check(
        OF_8_BYTES,
        "nvpoll compare $(drive D2 address) --engines io_uring,io_uring_cmd --rw randread --bs 4k --runtime 300ms --ramp-time 0 --rounds 1 2>&1 | sed 's/^/named: /' || true
        s=0; nvpoll compare $(drive D2 address) --rw randread --bs 4k --runtime 300ms --ramp-time 0 --rounds 1 2>&1 || s=$?; echo \"compare ended with $s\"\n",
    );
    let said = |words: &str| assert!(ran.stdout.contains(words), "{words:?} was not said");
    said("left out: engine io_uring_cmd: /dev/ng");
    said("is formatted with 8 bytes of metadata a block");
    said("compare ended with 0");
}

#[test]
fn metadata_of_more_bytes_and_the_guard_of_64_bits() {
    check(OF_MORE_BYTES, "");
}

/// Holds each of `drives` to all that is asked of one with metadata, on one machine, and runs `more` there.
fn check(drives: &[Drive], more: &str) -> Ran {
    let mut lab = Lab::new()
        .with("--binary", &format!("{}=contract", machine::contract().display()))
        .with("--binary", &format!("{}=pattern", machine::pattern().display()));
    let image = |number: usize| format!("image{number}");
    for (number, (options, ..)) in drives.iter().enumerate() {
        let path = lab.path(&image(number));
        let path = path.display();
        lab = lab.drive(&format!("serial=D{number},size={SIZE_BYTES},image={path},{options}"));
    }
    let mut script =
        String::from("export NVPOLL_CONTRACT_ENGINES=vfio NVPOLL_CONTRACT_VERBOSE=1\n");
    for (number, (options, data, metadata)) in drives.iter().enumerate() {
        // What lies on it is looked at whatever protection the blocks have: a few are written, then more.
        script += &format!("nvpoll bind $(drive D{number} address) >/dev/null\n");
        for _ in 0..2 {
            script += &format!(
                "nvpoll run $(drive D{number} address) --engine vfio --rw randwrite --bs {data} --number-ios 40 --destroy-data D{number} >/dev/null 2>/tmp/e && echo again || cat /tmp/e\n"
            );
        }
        // Every block is written once: QEMU's protection information of one that never was is wrong
        // where it shares a page of the image with one that was.
        let blocks = SIZE_BYTES / (data + metadata);
        script += &format!(
            "a=$(drive D{number} address)
             nvpoll run $a --rw write --bs {data} --iodepth 32 --number-ios {blocks} --destroy-data D{number} --json - 2>/dev/null | grep '\"metadata\"'
             NVPOLL_CONTRACT_DRIVES=$a contract --test-threads=1 --skip kernel:: 2>&1 | grep -c ': kept' | sed 's/^/kept /'
             pattern vfio $a write 3{number}; pattern vfio $a read 3{number}\n"
        );
        // Here by the host, there by the controller. The last to write is the controller, so that the
        // image shows whose the blocks are.
        if options.contains("pi=") {
            script += &format!(
                "pattern vfio:pi=host $a write 4{number}; pattern vfio $a read 4{number}; pattern vfio:pi=host $a read 4{number}
                 pattern vfio $a write 3{number}; pattern vfio:pi=host $a read 3{number}; pattern vfio $a read 3{number}
                 nvpoll run $a --rw randwrite --bs 64k --iodepth 8 --number-ios 200 --verify --pi host --destroy-data D{number} --json - 2>/dev/null | grep '\"metadata\"'
                 pattern vfio $a write 3{number}; pattern vfio $a read 3{number}\n"
            );
        }
        script += "nvpoll unbind $a >/dev/null\n";
    }
    script += more;
    let ran = lab.sh(&script);
    ran.is_fine();
    assert_eq!(ran.stdout.lines().filter(|line| *line == "again").count(), 2 * drives.len());
    let kept =
        ran.stdout.lines().filter_map(|line| line.strip_prefix("kept ")?.parse::<u32>().ok());
    let kept: Vec<u32> = kept.collect();
    assert!(kept.len() == drives.len() && kept.iter().all(|kept| *kept >= 12), "{kept:?}");
    let protected = drives.iter().filter(|(options, ..)| options.contains("pi=")).count();
    assert_eq!(ran.stdout.matches("vfio: checked").count(), drives.len() + 3 * protected);
    assert_eq!(ran.stdout.matches("vfio:pi=host: checked").count(), 2 * protected);
    assert_eq!(ran.stdout.matches(", by the host").count(), protected);
    for (number, (options, data, metadata)) in drives.iter().enumerate() {
        let bytes = fs::read(lab.path(&image(number))).unwrap();
        let blocks = bytes.len() / (data + metadata);
        let seed = 30 + number as u64;
        let written =
            bytes[..blocks * data].chunks_exact(*data).enumerate().filter(|(block, bytes)| {
                pattern::first_wrong(bytes, (block * data) as u64, seed).is_none()
            });
        let written = written.count();
        assert!(
            written * data > 2 << 20,
            "{options}: {written} blocks of the image are the driver's"
        );
        println!("checked: {options}: {written} blocks in the image");
    }
    ran
}
