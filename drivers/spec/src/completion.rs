//! Completion queue entries (§4.6).

use crate::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One completion queue entry, 16 bytes (§4.6, Figure 121).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CompletionEntry {
    /// DW0: the command's own result.
    pub result: u32,
    /// DW1: reserved, or the result's upper half.
    pub dw1: u32,
    /// SQHD: how far the controller has fetched from the submission queue.
    pub sq_head: u16,
    /// SQID: the submission queue that the command came from.
    pub sq_id: u16,
    /// CID: which command completed.
    pub cid: u16,
    /// Phase tag in bit 0, status field in bits 15:1.
    pub status_phase: u16,
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);

impl CompletionEntry {
    /// The status field.
    pub const fn status(&self) -> Status {
        Status::from_entry(self.status_phase)
    }

    /// The phase tag.
    pub const fn phase(&self) -> bool {
        self.status_phase & 1 != 0
    }

    /// Both words as they stand in the queue. The second one carries the phase tag and so is the
    /// one to store last and to load first.
    pub fn to_words(self) -> [u64; 2] {
        zerocopy::transmute!(self)
    }

    /// The entry that two words from a queue hold.
    pub fn from_words(words: [u64; 2]) -> Self {
        zerocopy::transmute!(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_bytes() {
        let entry = CompletionEntry {
            result: 0x0403_0201,
            dw1: 0,
            sq_head: 0x1122,
            sq_id: 0x3344,
            cid: 0x5566,
            status_phase: 0x0281 << 1 | 1,
        };
        let bytes = [1, 2, 3, 4, 0, 0, 0, 0, 0x22, 0x11, 0x44, 0x33, 0x66, 0x55, 0x03, 0x05];
        assert_eq!(entry.as_bytes(), bytes);
        assert_eq!(entry.to_words()[1], 0x0503_5566_3344_1122);
        assert!(entry.phase());
        assert_eq!(entry.status(), Status::new(2, 0x81));
        assert_eq!(CompletionEntry::from_words(entry.to_words()), entry);
    }
}
