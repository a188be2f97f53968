//! Protection information (§8.3; the 64-bit guard as in the NVM Command Set Specification 1.0, §5.2):
//! the tuple that a block's metadata holds, and the guards in it.

use core::fmt;

/// PRACT in CDW12 (§6.9, Figure 375): the controller makes protection information or strips it.
pub const PROTECTION_ACTION: u32 = 1 << 29;
/// PRCHK in CDW12: the guard is checked.
pub const CHECK_GUARD: u32 = 1 << 28;
/// PRCHK in CDW12: the application tag is checked, as CDW15 says.
pub const CHECK_APPLICATION: u32 = 1 << 27;
/// PRCHK in CDW12: the reference tag is checked.
pub const CHECK_REFERENCE: u32 = 1 << 26;

/// Slices of the guards' tables: bytes that are looked up at a time.
const SLICES: usize = 8;
/// The polynomial of T10's CRC-16, x^16 left out.
const CRC16: u16 = 0x8bb7;
/// The polynomial of the 64-bit CRC, with the highest power in bit 0.
const CRC64: u64 = 0x9a6c_9329_ac4b_c9b5;

static CRC16_TABLES: [[u16; 256]; SLICES] = crc16_tables();
static CRC64_TABLES: [[u64; 256]; SLICES] = crc64_tables();

const fn crc16_tables() -> [[u16; 256]; SLICES] {
    let mut tables = [[0; 256]; SLICES];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ CRC16 } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut slice = 1;
    while slice < SLICES {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[slice - 1][byte];
            tables[slice][byte] = before << 8 ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}

const fn crc64_tables() -> [[u64; 256]; SLICES] {
    let mut tables = [[0; 256]; SLICES];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u64, 0);
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ CRC64 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut slice = 1;
    while slice < SLICES {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[slice - 1][byte];
            tables[slice][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}

fn crc16(mut crc: u16, bytes: &[u8]) -> u16 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &CRC16_TABLES;
    let (eights, rest) = bytes.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in eights {
        let [first, second] = crc.to_be_bytes();
        crc = t7[usize::from(a ^ first)]
            ^ t6[usize::from(b ^ second)]
            ^ t5[usize::from(c)]
            ^ t4[usize::from(d)]
            ^ t3[usize::from(e)]
            ^ t2[usize::from(f)]
            ^ t1[usize::from(g)]
            ^ t0[usize::from(h)];
    }
    for byte in rest {
        crc = crc << 8 ^ t0[usize::from(byte ^ (crc >> 8) as u8)];
    }
    crc
}

fn crc64(mut crc: u64, bytes: &[u8]) -> u64 {
    let [t0, t1, t2, t3, t4, t5, t6, t7] = &CRC64_TABLES;
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let [a, b, c, d, e, f, g, h] = (crc ^ u64::from_le_bytes(*eight)).to_le_bytes();
        crc = t7[usize::from(a)]
            ^ t6[usize::from(b)]
            ^ t5[usize::from(c)]
            ^ t4[usize::from(d)]
            ^ t3[usize::from(e)]
            ^ t2[usize::from(f)]
            ^ t1[usize::from(g)]
            ^ t0[usize::from(h)];
    }
    for byte in rest {
        crc = crc >> 8 ^ t0[usize::from(byte ^ crc as u8)];
    }
    crc
}

/// PIF: how long the guard is, and with it the tuple and the reference tag (the storage tag has no bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GuardFormat {
    /// 16-bit guard, a tuple of 8 bytes, reference tags of 32 bits.
    #[default]
    Bits16,
    /// 64-bit guard, a tuple of 16 bytes, reference tags of 48 bits.
    Bits64,
}

impl GuardFormat {
    /// Bytes of the tuple in a block's metadata.
    pub const fn tuple_bytes(self) -> usize {
        match self {
            Self::Bits16 => 8,
            Self::Bits64 => 16,
        }
    }

    /// The bits of a reference tag.
    pub const fn reference_mask(self) -> u64 {
        match self {
            Self::Bits16 => 0xffff_ffff,
            Self::Bits64 => 0xffff_ffff_ffff,
        }
    }

    /// The guard of `data` and, behind it, what metadata stands before the tuple.
    pub fn guard(self, data: &[u8], before: &[u8]) -> u64 {
        match self {
            Self::Bits16 => crc16(crc16(0, data), before).into(),
            Self::Bits64 => !crc64(crc64(u64::MAX, data), before),
        }
    }
}

impl fmt::Display for GuardFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bits16 => "16-bit guard",
            Self::Bits64 => "64-bit guard",
        })
    }
}

/// One block's protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionTuple {
    /// The guard: a CRC of the data.
    pub guard: u64,
    /// The application tag.
    pub application: u16,
    /// The reference tag.
    pub reference: u64,
}

impl ProtectionTuple {
    /// The tuple in `bytes`, which are as long as the format's.
    pub fn read(format: GuardFormat, bytes: &[u8]) -> Option<Self> {
        match (format, bytes) {
            (GuardFormat::Bits16, &[g0, g1, a0, a1, r0, r1, r2, r3]) => Some(Self {
                guard: u16::from_be_bytes([g0, g1]).into(),
                application: u16::from_be_bytes([a0, a1]),
                reference: u32::from_be_bytes([r0, r1, r2, r3]).into(),
            }),
            (
                GuardFormat::Bits64,
                &[g0, g1, g2, g3, g4, g5, g6, g7, a0, a1, r0, r1, r2, r3, r4, r5],
            ) => Some(Self {
                guard: u64::from_be_bytes([g0, g1, g2, g3, g4, g5, g6, g7]),
                application: u16::from_be_bytes([a0, a1]),
                reference: u64::from_be_bytes([0, 0, r0, r1, r2, r3, r4, r5]),
            }),
            _ => None,
        }
    }

    /// Stores the tuple in `bytes`, which are as long as the format's; others are left alone.
    pub fn write(self, format: GuardFormat, bytes: &mut [u8]) {
        let (guard, application) = (self.guard.to_be_bytes(), self.application.to_be_bytes());
        let (guard, reference) = match format {
            GuardFormat::Bits16 => (&guard[6..], &self.reference.to_be_bytes()[4..]),
            GuardFormat::Bits64 => (&guard[..], &self.reference.to_be_bytes()[2..]),
        };
        if bytes.len() == format.tuple_bytes() {
            let all = guard.iter().chain(&application).chain(reference);
            for (byte, value) in bytes.iter_mut().zip(all) {
                *byte = *value;
            }
        }
    }

    /// Whether this one says that nothing is to be checked: an application tag of all ones, and for
    /// type 3 a reference tag of all ones as well (§8.3.1.5).
    pub const fn is_unchecked(&self, kind: u8, format: GuardFormat) -> bool {
        self.application == 0xffff && (kind != 3 || self.reference == format.reference_mask())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A CRC bit by bit, as its definition has it: the remainder of a division of polynomials.
    fn slow16(bytes: &[u8]) -> u64 {
        let step = |crc: u32, byte: u8| {
            (0..8).fold(crc ^ u32::from(byte) << 8, |crc, _| {
                if crc & 0x8000 != 0 { (crc << 1 ^ 0x1_8bb7) & 0xffff } else { crc << 1 }
            })
        };
        bytes.iter().fold(0, |crc, byte| step(crc, *byte)).into()
    }

    #[test]
    fn guards_of_known_texts() {
        // The check values of CRC-16/T10-DIF and CRC-64/NVME, and the specification's for 4,096 bytes
        // of zeroes and of ones (NVM Command Set Specification 1.0, Figure 109).
        let (short, long) = (GuardFormat::Bits16, GuardFormat::Bits64);
        assert_eq!(short.guard(b"123456789", b""), 0xd0db);
        assert_eq!(long.guard(b"123456789", b""), 0xae8b_1486_0a79_9888);
        assert_eq!(long.guard(&[0; 4096], b""), 0x6482_d367_eb22_b64e);
        assert_eq!(long.guard(&[0xff; 4096], b""), 0xc0dd_ba73_02ec_a3ac);
        assert_eq!(short.guard(&[0; 512], b""), 0);
    }

    #[test]
    fn guards_do_not_depend_on_the_cut() {
        let bytes: Vec<u8> = (0..61u32).map(|n| (n * 77 + 13) as u8).collect();
        assert_eq!(GuardFormat::Bits16.guard(&bytes, b""), slow16(&bytes));
        for at in 0..bytes.len() {
            let (data, before) = bytes.split_at(at);
            for format in [GuardFormat::Bits16, GuardFormat::Bits64] {
                assert_eq!(format.guard(data, before), format.guard(&bytes, b""), "{at}");
            }
        }
    }

    #[test]
    fn golden_bytes() {
        let tuple = ProtectionTuple { guard: 0x0102, application: 0x0304, reference: 0x0506_0708 };
        let mut bytes = [0; 8];
        tuple.write(GuardFormat::Bits16, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ProtectionTuple::read(GuardFormat::Bits16, &bytes), Some(tuple));
        let tuple = ProtectionTuple {
            guard: 0x0102_0304_0506_0708,
            application: 0x090a,
            reference: 0x0b0c_0d0e_0f10,
        };
        let mut bytes = [0; 16];
        tuple.write(GuardFormat::Bits64, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(n, byte)| usize::from(*byte) == n + 1));
        assert_eq!(ProtectionTuple::read(GuardFormat::Bits64, &bytes), Some(tuple));
        assert_eq!(ProtectionTuple::read(GuardFormat::Bits16, &bytes), None);
    }

    #[test]
    fn all_ones_are_not_checked() {
        let of = |application, reference| ProtectionTuple { guard: 0, application, reference };
        for kind in [1, 2] {
            assert!(of(0xffff, 0).is_unchecked(kind, GuardFormat::Bits16));
            assert!(!of(0xfffe, 0xffff_ffff).is_unchecked(kind, GuardFormat::Bits16));
        }
        assert!(of(0xffff, 0xffff_ffff).is_unchecked(3, GuardFormat::Bits16));
        assert!(!of(0xffff, 0xffff_ffff).is_unchecked(3, GuardFormat::Bits64));
        assert!(!of(0xffff, 0).is_unchecked(3, GuardFormat::Bits16));
        assert!(!of(0, 0xffff_ffff).is_unchecked(3, GuardFormat::Bits16));
    }
}
