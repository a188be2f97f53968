//! The probes: one function a format, or one over a table for formats that need no closer look.

use std::io;

use super::magic::{ALL as MAGICS, FROM_END};
use super::{Device, Signature};

type Found = Vec<Signature>;

/// All of them. Their order does not matter: what they find is sorted.
pub(super) const ALL: &[fn(&mut Device<'_>, &mut Found) -> io::Result<()>] =
    &[magics, magics_from_end, boot_sector, gpt, ext, swap, lvm, md, luks, zfs];

fn add(found: &mut Found, name: &'static str, offset: u64, label: Option<String>) {
    found.push(Signature { name, offset, label });
}

fn magics(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    for magic in MAGICS {
        if device.has(magic.offset, magic.bytes)? {
            let label = match magic.label {
                Some((offset, len)) => device.label(offset, len)?,
                None => None,
            };
            add(found, magic.name, magic.offset, label);
        }
    }
    Ok(())
}

fn magics_from_end(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    for magic in FROM_END {
        let Some(offset) = device.size().checked_sub(magic.back) else { continue };
        if device.has(offset, magic.bytes)? {
            add(found, magic.name, offset, None);
        }
    }
    Ok(())
}

/// The primary GPT header lies in logical block 1 (UEFI 5.3.2), of 512 or 4096 bytes.
fn gpt(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    for offset in [512, 4096] {
        if device.has(offset, b"EFI PART")? {
            add(found, "GPT", offset, None);
        }
    }
    Ok(())
}

/// The first sector: a FAT file system, an MBR, or the MBR that only protects a GPT.
fn boot_sector(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    if !device.has(510, &[0x55, 0xaa])? {
        return Ok(());
    }
    let other = device.bytes(3, 8)?.unwrap_or_default();
    if [&b"NTFS    "[..], b"EXFAT   ", b"-FVE-FS-"].contains(&other.as_slice()) {
        return Ok(()); // They end their first sector in the same way.
    }
    if is_fat(device)? {
        // FAT32 has its label at 71, FAT12 and FAT16 at 43.
        let wide = device.has(82, b"FAT32   ")?;
        let label = device.label(if wide { 71 } else { 43 }, 11)?;
        add(found, "FAT", 0, label.filter(|label| label != "NO NAME"));
        return Ok(());
    }
    let mut kinds = Vec::new();
    for entry in 0..4 {
        kinds.push(device.u8(446 + 16 * entry + 4)?.unwrap_or(0));
    }
    let protective = kinds.contains(&0xee) && kinds.iter().all(|&kind| kind == 0 || kind == 0xee);
    let gpt = device.has(512, b"EFI PART")? || device.has(4096, b"EFI PART")?;
    match (protective, kinds.iter().any(|&kind| kind != 0)) {
        (true, _) if gpt => {} // A part of the GPT.
        (true, _) => add(found, "protective MBR without its GPT", 510, None),
        (false, true) => add(found, "MBR partition table", 510, None),
        (false, false) => add(found, "boot sector", 510, None),
    }
    Ok(())
}

/// A BIOS parameter block that makes sense, or the name that mkfs leaves beside it.
fn is_fat(device: &mut Device<'_>) -> io::Result<bool> {
    for (offset, name) in
        [(82, b"FAT32   "), (54, b"FAT12   "), (54, b"FAT16   "), (54, b"FAT     ")]
    {
        if device.has(offset, name)? {
            return Ok(true);
        }
    }
    let jump = device.u8(0)?.unwrap_or(0);
    let sector = device.u16_le(11)?.unwrap_or(0);
    let cluster = device.u8(13)?.unwrap_or(0);
    let reserved = device.u16_le(14)?.unwrap_or(0);
    let fats = device.u8(16)?.unwrap_or(0);
    let media = device.u8(21)?.unwrap_or(0);
    Ok(matches!(jump, 0xeb | 0xe9)
        && matches!(sector, 512 | 1024 | 2048 | 4096)
        && cluster.is_power_of_two()
        && reserved >= 1
        && matches!(fats, 1 | 2)
        && (media == 0xf0 || media >= 0xf8))
}

/// The superblock at 1 KiB (fs/ext4/ext4.h, `struct ext4_super_block`).
fn ext(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    const SUPER: u64 = 1024;
    // What ext3 knows: filetype, recover, journal device, meta_bg / sparse_super, large_file, btree.
    const EXT3_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x8 | 0x10;
    const EXT3_READ_ONLY: u32 = 0x1 | 0x2 | 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    const HAS_JOURNAL: u32 = 0x4;
    let magic = SUPER + 0x38;
    if !device.has(magic, &[0x53, 0xef])? {
        return Ok(());
    }
    let compatible = device.u32_le(SUPER + 0x5c)?.unwrap_or(0);
    let incompatible = device.u32_le(SUPER + 0x60)?.unwrap_or(0);
    let read_only = device.u32_le(SUPER + 0x64)?.unwrap_or(0);
    let name = if incompatible & JOURNAL_DEVICE != 0 {
        "ext journal"
    } else if incompatible & !EXT3_INCOMPATIBLE != 0 || read_only & !EXT3_READ_ONLY != 0 {
        "ext4"
    } else if compatible & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    let label = device.label(SUPER + 0x78, 16)?;
    add(found, name, magic, label);
    Ok(())
}

/// The last ten bytes of the first page, whatever the page size of the machine that made it; a
/// hibernated system leaves another word there (kernel/power/swap.c).
fn swap(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    for page in [4u64 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10] {
        let offset = page - 10;
        let magic = device.bytes(offset, 10)?.unwrap_or_default();
        let name = match magic.as_slice() {
            b"SWAPSPACE2" | b"SWAP-SPACE" => "swap",
            b"S1SUSPEND\0" | b"S2SUSPEND\0" | b"ULSUSPEND\0" | b"LINHIB0001" => {
                "hibernated system in swap"
            }
            _ => continue,
        };
        let label = device.label(1024 + 28, 16)?;
        add(found, name, offset, label);
    }
    Ok(())
}

/// The label lies in one of the first four sectors (lib/label/label.h of LVM2).
fn lvm(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    for sector in 0..4 {
        let offset = sector * 512;
        if device.has(offset, b"LABELONE")? && device.has(offset + 24, b"LVM2 001")? {
            add(found, "LVM2 physical volume", offset, None);
        }
    }
    Ok(())
}

/// Version 1.0 lies 8 to 12 KiB before the end, 1.1 at the start, 1.2 at 4 KiB; 0.90 in the last
/// whole 64 KiB, in the byte order of the machine that made it (include/uapi/linux/raid/md_p.h).
fn md(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    const MAGIC: u32 = 0xa92b_4efc;
    let size = device.size();
    let last = size.checked_sub(8 << 10).map(|offset| offset & !0xfff);
    let places = [
        ("md RAID 1.0 member", last),
        ("md RAID 1.1 member", Some(0)),
        ("md RAID 1.2 member", Some(4 << 10)),
    ];
    for (name, offset) in places {
        let Some(offset) = offset else { continue };
        if device.u32_le(offset)? == Some(MAGIC) && device.u32_le(offset + 4)? == Some(1) {
            let label = device.label(offset + 32, 32)?;
            add(found, name, offset, label);
        }
    }
    if let Some(offset) = (size & !0xffff).checked_sub(64 << 10) {
        let old = device.u32_le(offset)?;
        if old == Some(MAGIC) || old == Some(MAGIC.swap_bytes()) {
            add(found, "md RAID 0.90 member", offset, None);
        }
    }
    Ok(())
}

/// The header, and the second header that LUKS 2 keeps at a power of two (LUKS2 on-disk format,
/// section 2.1).
fn luks(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    if device.has(0, b"LUKS\xba\xbe")? {
        let version = device.array(6)?.map(u16::from_be_bytes);
        let label = if version == Some(2) { device.label(24, 48)? } else { None };
        let name = match version {
            Some(1) => "LUKS1",
            Some(2) => "LUKS2",
            _ => "LUKS",
        };
        add(found, name, 0, label);
    }
    for shift in 14..=22 {
        if device.has(1 << shift, b"SKUL\xba\xbe")? {
            add(found, "LUKS2 (second header)", 1 << shift, None);
        }
    }
    Ok(())
}

/// Four labels of 256 KiB, two at each end of what is left when rounded down to 256 KiB; in each
/// a ring of uberblocks from 128 KiB on, of at least 1 KiB each, in either byte order
/// (vdev_impl.h and uberblock_impl.h of OpenZFS).
fn zfs(device: &mut Device<'_>, found: &mut Found) -> io::Result<()> {
    const LABEL: u64 = 256 << 10;
    const RING: u64 = 128 << 10;
    const UBERBLOCK: u64 = 1 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let end = device.size() / LABEL * LABEL;
    let mut labels = vec![Some(0), Some(LABEL), end.checked_sub(2 * LABEL), end.checked_sub(LABEL)];
    labels.dedup();
    for start in labels.into_iter().flatten() {
        for slot in 0..RING / UBERBLOCK {
            let offset = start + RING + slot * UBERBLOCK;
            let word = device.u64_le(offset)?;
            if word == Some(MAGIC) || word == Some(MAGIC.swap_bytes()) {
                add(found, "ZFS member", offset, None);
                break; // One uberblock tells; a ring is full of them.
            }
        }
    }
    Ok(())
}
