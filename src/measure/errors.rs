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

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(errors: &[(i32, u64)]) -> ErrorTally {
        let mut tally = ErrorTally::default();
        errors.iter().for_each(|&(errno, offset)| tally.add(IoStatus::errno(errno), offset));
        tally
    }

    #[test]
    fn by_status_with_the_first_offsets() {
        let tally = tally(&[(5, 10), (5, 20), (61, 7), (5, 30), (5, 40), (5, 50)]);
        assert_eq!((tally.total(), tally.unnamed()), (6, 0));
        let [eio, enodata] = tally.kinds() else { panic!("{tally:?}") };
        assert_eq!((eio.status, eio.count), (IoStatus::errno(5), 5));
        assert_eq!(eio.offsets(), [10, 20, 30, 40]);
        assert_eq!((enodata.status, enodata.offsets()), (IoStatus::errno(61), &[7][..]));
    }

    #[test]
    fn more_kinds_than_slots_are_counted_without_name() {
        let errors: Vec<(i32, u64)> = (1..=20).map(|errno| (errno, 0)).collect();
        let mut first = tally(&errors);
        assert_eq!((first.total(), first.kinds().len(), first.unnamed()), (20, 16, 4));
        first.merge(&tally(&[(99, 1), (1, 2)]));
        assert_eq!((first.total(), first.kinds().len(), first.unnamed()), (22, 16, 5));
    }

    #[test]
    fn merging_keeps_as_many_offsets_as_fit() {
        let mut ours = tally(&[(5, 1), (5, 2), (5, 3)]);
        ours.merge(&tally(&[(28, 9), (5, 4), (5, 5)]));
        assert_eq!(ours.total(), 6);
        assert_eq!(ours.kinds()[0].offsets(), [1, 2, 3, 4]);
        assert_eq!((ours.kinds()[0].count, ours.kinds()[1].offsets()), (5, &[9][..]));
        assert_eq!(ErrorTally::default().kinds(), []);
    }
}
