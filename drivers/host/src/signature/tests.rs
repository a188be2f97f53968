//! Each format by its magic bytes, laid where its own tools put them.

use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A device of mostly zeroes that checks how it is read.
struct Image {
    size: u64,
    parts: BTreeMap<u64, Vec<u8>>,
    bytes_read: u64,
}

impl Image {
    fn new(size: u64, parts: &[(u64, &[u8])]) -> Self {
        let parts = parts.iter().map(|(offset, bytes)| (*offset, bytes.to_vec())).collect();
        Self { size, parts, bytes_read: 0 }
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset + out.len() as u64;
        assert_eq!(offset % (64 * KIB), 0, "not at a multiple");
        assert!(out.len() as u64 == 64 * KIB || end == self.size, "neither a piece nor the end");
        self.bytes_read += out.len() as u64;
        out.fill(0);
        for (&start, bytes) in &self.parts {
            for (index, &byte) in bytes.iter().enumerate() {
                let at = start + index as u64;
                if (offset..end).contains(&at) {
                    out[(at - offset) as usize] = byte;
                }
            }
        }
        Ok(())
    }

    fn scan(&mut self) -> Vec<Signature> {
        let size = self.size;
        scan(|offset, out| self.read_at(offset, out), size).unwrap()
    }
}

fn names(size: u64, parts: &[(u64, &[u8])]) -> Vec<(&'static str, u64)> {
    let found = Image::new(size, parts).scan();
    found.iter().map(|signature| (signature.name, signature.offset)).collect()
}

#[test]
fn an_empty_device_has_none_whatever_its_size() {
    for size in [0, 1, 511, 512, 4 * KIB, 64 * KIB, 64 * KIB + 512, MIB, 300 * GIB] {
        assert_eq!(names(size, &[]), [], "{size}");
    }
}

#[test]
fn formats_with_one_magic() {
    let f2fs = 0xf2f5_2010_u32.to_le_bytes();
    let bcache = [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48];
    let bcache = [&bcache[..], &[0xba, 0x6d, 0x81]].concat();
    let bcachefs = [0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80];
    let bcachefs = [&bcachefs[..], &[0x3d, 0xf7, 0xef]].concat();
    let cases: &[(&str, u64, &[u8])] = &[
        ("xfs", 0, b"XFSB"),
        ("btrfs", 64 * KIB + 64, b"_BHRfS_M"),
        ("btrfs (mirror superblock)", 64 * MIB + 64, b"_BHRfS_M"),
        ("btrfs (mirror superblock)", 256 * GIB + 64, b"_BHRfS_M"),
        ("exFAT", 3, b"EXFAT   "),
        ("NTFS", 3, b"NTFS    "),
        ("BitLocker", 3, b"-FVE-FS-"),
        ("f2fs", KIB, &f2fs),
        ("f2fs (second superblock)", 5 * KIB, &f2fs),
        ("zonefs", 0, b"SFOZ"),
        ("Oracle ASM", 32, b"ORCLDISK"),
        ("Ceph BlueStore", 0, b"bluestore block device"),
        ("bcache", 4 * KIB + 24, &bcache),
        ("bcachefs", 4 * KIB + 24, &bcachefs),
        ("swap", 4086, b"SWAPSPACE2"),
        ("swap", 65526, b"SWAPSPACE2"),
        ("hibernated system in swap", 4086, b"S1SUSPEND\0"),
        ("LUKS2 (second header)", 16 * KIB, b"SKUL\xba\xbe"),
        ("LUKS2 (second header)", 4 * MIB, b"SKUL\xba\xbe"),
        ("Intel RST/VROC RAID member", 300 * GIB - 1024, b"Intel Raid ISM Cfg Sig. 1.3"),
    ];
    for (name, offset, magic) in cases {
        assert_eq!(names(300 * GIB, &[(*offset, magic)]), [(*name, *offset)], "{name}");
    }
}

#[test]
fn the_ext_family_by_its_features() {
    let ext = |compatible: u32, incompatible: u32, read_only: u32| {
        let features = [compatible, incompatible, read_only].map(u32::to_le_bytes).concat();
        let parts: &[(u64, &[u8])] =
            &[(1080, &[0x53, 0xef]), (1024 + 92, &features), (1024 + 120, b"data\0old")];
        let found = Image::new(MIB, parts).scan();
        assert_eq!(found[0].label.as_deref(), Some("data"));
        assert_eq!((found.len(), found[0].offset), (1, 1080));
        found[0].name
    };
    assert_eq!(ext(0, 0x2, 0x3), "ext2");
    assert_eq!(ext(0x4, 0x2 | 0x4, 0x3), "ext3");
    assert_eq!(ext(0x3c, 0x2c2, 0x46b), "ext4");
    assert_eq!(ext(0x4, 0x2, 0x8), "ext4");
    assert_eq!(ext(0, 0x8, 0), "ext journal");
}

#[test]
fn partition_tables_are_counted_once() {
    let efi: &[u8] = b"EFI PART";
    let boot: &[u8] = &[0x55, 0xaa];
    let protective: &[u8] = &[0xee];
    let size = GIB;
    let gpt = [(450, protective), (510, boot), (512, efi), (size - 512, efi)];
    assert_eq!(names(size, &gpt), [("GPT", 512), ("GPT (backup)", size - 512)]);
    let wide = [(450, protective), (510, boot), (4096, efi), (size - 4096, efi)];
    assert_eq!(names(size, &wide), [("GPT", 4096), ("GPT (backup)", size - 4096)]);
    let wiped = [(450, protective), (510, boot)];
    assert_eq!(names(size, &wiped), [("protective MBR without its GPT", 510)]);
    let backup = [(size - 512, efi)];
    assert_eq!(names(size, &backup), [("GPT (backup)", size - 512)]);
    let linux: &[u8] = &[0x83];
    assert_eq!(names(size, &[(450, linux), (510, boot)]), [("MBR partition table", 510)]);
    let hybrid = [(450, protective), (466, linux), (510, boot), (512, efi)];
    assert_eq!(names(size, &hybrid), [("MBR partition table", 510), ("GPT", 512)]);
    assert_eq!(names(size, &[(510, boot)]), [("boot sector", 510)]);
}

#[test]
fn fat_is_no_partition_table() {
    let fat32: &[(u64, &[u8])] = &[(82, b"FAT32   "), (71, b"EFI        "), (510, &[0x55, 0xaa])];
    let found = Image::new(MIB, fat32).scan();
    assert_eq!((found[0].name, found[0].label.as_deref()), ("FAT", Some("EFI")));
    assert_eq!(found.len(), 1);
    // By its parameter block alone: 512-byte sectors, 4 of them a cluster, 2 tables.
    let bare: &[(u64, &[u8])] =
        &[(0, &[0xeb, 0x3c, 0x90]), (11, &[0, 2, 4, 1, 0, 2]), (21, &[0xf8]), (510, &[0x55, 0xaa])];
    assert_eq!(names(MIB, bare), [("FAT", 0)]);
    let ntfs: &[(u64, &[u8])] = &[(3, b"NTFS    "), (510, &[0x55, 0xaa])];
    assert_eq!(names(MIB, ntfs), [("NTFS", 3)]);
}

#[test]
fn lvm_in_each_of_its_sectors() {
    for sector in 0..4 {
        let label: &[u8] = b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001";
        assert_eq!(names(MIB, &[(sector * 512, label)]), [("LVM2 physical volume", sector * 512)]);
    }
    assert_eq!(names(MIB, &[(512, b"LABELONE")]), []);
}

#[test]
fn md_by_version_and_place() {
    let magic = 0xa92b_4efc_u32;
    let mut super1 = [magic.to_le_bytes(), 1u32.to_le_bytes()].concat();
    super1.resize(32, 0);
    super1.extend(b"host:0");
    let size = GIB + 5 * 512;
    // mdadm: (sectors - 16) rounded down to 8 sectors.
    let last = ((size / 512 - 16) & !7) * 512;
    let cases =
        [("md RAID 1.0 member", last), ("md RAID 1.1 member", 0), ("md RAID 1.2 member", 4096)];
    for (name, offset) in cases {
        let found = Image::new(size, &[(offset, &super1)]).scan();
        assert_eq!((found[0].name, found[0].offset), (name, offset));
        assert_eq!(found[0].label.as_deref(), Some("host:0"));
    }
    let old = (size & !0xffff) - 64 * KIB;
    for bytes in [magic.to_le_bytes(), magic.to_be_bytes()] {
        assert_eq!(names(size, &[(old, &bytes)]), [("md RAID 0.90 member", old)]);
    }
}

#[test]
fn luks_by_version() {
    let luks = |version: u8| [&b"LUKS\xba\xbe\0"[..], &[version]].concat();
    assert_eq!(names(MIB, &[(0, &luks(1))]), [("LUKS1", 0)]);
    let found = Image::new(MIB, &[(0, &luks(2)), (24, b"secrets")]).scan();
    assert_eq!((found[0].name, found[0].label.as_deref()), ("LUKS2", Some("secrets")));
}

#[test]
fn zfs_by_any_of_its_four_labels() {
    let size = GIB + 100 * KIB;
    let end = size / (256 * KIB) * (256 * KIB);
    for (index, label) in [0, 256 * KIB, end - 512 * KIB, end - 256 * KIB].into_iter().enumerate() {
        // The ring's slot is any of those that the transaction group's number picks.
        let slot = label + 128 * KIB + index as u64 * 31 * KIB;
        for bytes in [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()] {
            assert_eq!(names(size, &[(slot, &bytes)]), [("ZFS member", slot)]);
        }
    }
}

#[test]
fn several_are_all_told_in_order() {
    let parts: &[(u64, &[u8])] = &[(64 * KIB + 64, b"_BHRfS_M"), (0, b"XFSB")];
    assert_eq!(names(MIB, parts), [("xfs", 0), ("btrfs", 64 * KIB + 64)]);
    let text = Image::new(MIB, &[(0, b"XFSB"), (108, b"data")]).scan()[0].to_string();
    assert_eq!(text, "xfs \"data\" at byte 0");
}

#[test]
fn little_is_read_and_nothing_twice() {
    let mut image = Image::new(3000 * GIB, &[]);
    image.scan();
    assert!(image.bytes_read <= 3 * MIB, "{} bytes", image.bytes_read);
}

#[test]
fn an_error_is_told() {
    let error = scan(|_, _| Err(io::Error::other("no medium")), MIB).unwrap_err();
    assert_eq!(error.to_string(), "no medium");
}

proptest! {
    /// Whatever a device holds, of whatever size: an answer, no panic.
    #[test]
    fn any_bytes_have_an_answer(size in 0u64..3 * MIB, seed in any::<u64>()) {
        let read_at = |offset: u64, out: &mut [u8]| {
            for (index, byte) in out.iter_mut().enumerate() {
                let at = offset + index as u64;
                *byte = (at.wrapping_mul(seed | 1) >> 32) as u8;
            }
            Ok(())
        };
        for signature in scan(read_at, size).unwrap() {
            prop_assert!(signature.offset < size);
        }
    }
}
