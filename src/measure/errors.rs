//! How I/Os failed: a tally by status, of fixed size.

use nvpoll_engine::IoStatus;

/// Different statuses told apart; what comes after them is counted without its name.
pub const ERROR_KINDS_MAX: usize = 16;

/// Offsets kept for each status.
pub const FIRST_OFFSETS_MAX: usize = 4;

/// Failures of one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorKind {
    /// How they ended.
    pub status: IoStatus,
    /// How many.
    pub count: u64,
    offsets: [u64; FIRST_OFFSETS_MAX],
}

impl ErrorKind {
    const NONE: Self = Self { status: IoStatus::OK, count: 0, offsets: [0; FIRST_OFFSETS_MAX] };

    /// Byte offsets of the first of them.
    pub fn offsets(&self) -> &[u64] {
        let kept = self.count.min(FIRST_OFFSETS_MAX as u64) as usize;
        self.offsets.get(..kept).unwrap_or(&self.offsets)
    }
}

/// Failures by status. Allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorTally {
    /// Filled from the front; a slot with a count of 0 ends it.
    kinds: [ErrorKind; ERROR_KINDS_MAX],
    total: u64,
}

impl Default for ErrorTally {
    fn default() -> Self {
        Self { kinds: [ErrorKind::NONE; ERROR_KINDS_MAX], total: 0 }
    }
}

impl ErrorTally {
    /// Counts one failure at byte `offset`.
    pub fn add(&mut self, status: IoStatus, offset: u64) {
        self.total = self.total.wrapping_add(1);
        if let Some(kind) = self.slot(status) {
            if let Some(slot) = kind.offsets.get_mut(kind.count as usize) {
                *slot = offset;
            }
            kind.count = kind.count.wrapping_add(1);
        }
    }

    /// The slot of `status`, a fresh one if it has none yet, `None` when all are taken.
    fn slot(&mut self, status: IoStatus) -> Option<&mut ErrorKind> {
        let kind = self.kinds.iter_mut().find(|kind| kind.count == 0 || kind.status == status)?;
        kind.status = status;
        Some(kind)
    }

    /// Adds another worker's failures; of its first offsets those that there is room for.
    pub fn merge(&mut self, other: &Self) {
        self.total = self.total.wrapping_add(other.total);
        for from in other.kinds() {
            let Some(to) = self.slot(from.status) else { continue };
            let kept = to.offsets().len();
            for (slot, offset) in to.offsets.iter_mut().skip(kept).zip(from.offsets()) {
                *slot = *offset;
            }
            to.count = to.count.wrapping_add(from.count);
        }
    }

    /// All failures.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Failures of statuses past the first [`ERROR_KINDS_MAX`].
    pub fn unnamed(&self) -> u64 {
        self.kinds().iter().fold(self.total, |left, kind| left.wrapping_sub(kind.count))
    }

    /// Failures by status, in the order of their first appearance.
    pub fn kinds(&self) -> &[ErrorKind] {
        let used = self.kinds.iter().take_while(|kind| kind.count > 0).count();
        self.kinds.get(..used).unwrap_or(&self.kinds)
    }
}
