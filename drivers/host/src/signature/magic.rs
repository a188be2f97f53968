//! Formats that their magic bytes at fixed places tell apart, without a closer look.

/// One format: its name, where its magic lies from the start, the magic, and where its label.
pub(super) struct Magic {
    pub(super) name: &'static str,
    pub(super) offset: u64,
    pub(super) bytes: &'static [u8],
    pub(super) label: Option<(u64, usize)>,
}

const fn plain(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes, label: None }
}

const fn labelled(
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
    label: (u64, usize),
) -> Magic {
    Magic { name, offset, bytes, label: Some(label) }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The table. Offsets are those of the formats' own headers: in the kernel's source
/// `fs/*/*_fs.h`, `include/uapi/linux/{btrfs_tree,raid/md_p,magic}.h`, and for the rest each
/// project's description of its on-disk format.
pub(super) const ALL: &[Magic] = &[
    labelled("xfs", 0, b"XFSB", (108, 12)),
    labelled("btrfs", 64 * KIB + 64, b"_BHRfS_M", (64 * KIB + 299, 256)),
    plain("btrfs (mirror superblock)", 64 * MIB + 64, b"_BHRfS_M"),
    plain("btrfs (mirror superblock)", 256 * GIB + 64, b"_BHRfS_M"),
    plain("exFAT", 3, b"EXFAT   "),
    plain("NTFS", 3, b"NTFS    "),
    plain("BitLocker", 3, b"-FVE-FS-"),
    plain("f2fs", KIB, &0xf2f5_2010_u32.to_le_bytes()),
    plain("f2fs (second superblock)", 5 * KIB, &0xf2f5_2010_u32.to_le_bytes()),
    plain("zonefs", 0, &0x5a4f_4653_u32.to_le_bytes()),
    plain("erofs", KIB, &0xe0f5_e1e2_u32.to_le_bytes()),
    plain("squashfs", 0, b"hsqs"),
    plain("ISO 9660", 32 * KIB + 1, b"CD001"),
    plain("APFS container", 32, b"NXSB"),
    plain("JFS", 32 * KIB, b"JFS1"),
    plain("ReiserFS", 64 * KIB + 52, b"ReIsEr"),
    plain("NILFS2", KIB + 6, &0x3434_u16.to_le_bytes()),
    plain("GFS2", 64 * KIB, &0x0116_1970_u32.to_be_bytes()),
    plain("OCFS2", 4 * KIB * 2, b"OCFSV2"),
    plain("OCFS2", KIB * 2, b"OCFSV2"),
    plain("VMFS", MIB, &0xc001_d00d_u32.to_le_bytes()),
    plain("VMFS 6", 2 * MIB, &0xc001_d00d_u32.to_le_bytes()),
    plain("Ceph BlueStore", 0, b"bluestore block device"),
    labelled("Oracle ASM", 32, b"ORCLDISK", (72, 32)),
    plain("Stratis", 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
    plain("VDO", 0, b"dmvdo001"),
    plain(
        "bcache",
        4 * KIB + 24,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
    ),
    plain(
        "bcachefs",
        4 * KIB + 24,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d,
            0xf7, 0xef,
        ],
    ),
];

/// Magic bytes that lie at a distance from the end.
pub(super) struct FromEnd {
    pub(super) name: &'static str,
    pub(super) back: u64,
    pub(super) bytes: &'static [u8],
}

pub(super) const FROM_END: &[FromEnd] = &[
    FromEnd { name: "Intel RST/VROC RAID member", back: KIB, bytes: b"Intel Raid ISM Cfg Sig. " },
    FromEnd {
        name: "Intel RST/VROC RAID member",
        back: 8 * KIB,
        bytes: b"Intel Raid ISM Cfg Sig. ",
    },
    FromEnd { name: "DDF RAID member", back: 512, bytes: &0xde11_de11_u32.to_be_bytes() },
    FromEnd { name: "DDF RAID member", back: 4 * KIB, bytes: &0xde11_de11_u32.to_be_bytes() },
    FromEnd { name: "GPT (backup)", back: 512, bytes: b"EFI PART" },
    FromEnd { name: "GPT (backup)", back: 4 * KIB, bytes: b"EFI PART" },
];
