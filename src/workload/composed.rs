//! The patterns that are more than one kind, one size, anywhere or in order: mixes, flushes, sizes
//! and places that differ. Apart from the plain ones, so that those pay nothing for them.

use super::distribution::{Places, scale};
use super::generator::Plain;
use super::rw::Rw;
use super::spec::Workload;
use nvpoll_engine::{Operation, OperationKind};
use rand_core::RngCore;

/// A draw of 63 bits is below this with certainty.
const ALWAYS: u64 = 1 << 63;

/// What a composed pattern needs beside the plain one's state.
#[derive(Clone, Debug)]
pub(super) struct Composed {
    is_random: bool,
    /// A draw of 63 bits below it reads; 0 never does, [`ALWAYS`] always.
    reads_below: u64,
    /// Writes from one flush to the next, and those left; 0: no flushes.
    fsync: u32,
    writes_to_flush: u32,
    /// Where random I/O goes, unless everywhere alike.
    places: Option<Box<Places>>,
    /// Sizes of reads and of writes, where they differ.
    sizes: Option<Box<[Sizes; 2]>>,
}

/// Sizes in bytes, each with the draws of 64 bits up to which it is taken.
#[derive(Clone, Debug)]
struct Sizes(Vec<(u64, u32)>);

impl Sizes {
    fn new(parts: &[(u32, u8)]) -> Self {
        let mut percent = 0_u32;
        let up_to = |(bytes, of): &(u32, u8)| {
            percent += u32::from(*of);
            ((u128::from(u64::MAX) * u128::from(percent.min(100)) / 100) as u64, *bytes)
        };
        Self(parts.iter().map(up_to).collect())
    }

    fn pick(&self, draw: u64) -> u32 {
        let found = self.0.iter().find(|(up_to, _)| draw <= *up_to).or(self.0.last());
        found.map_or(0, |(_, bytes)| *bytes)
    }
}

impl Composed {
    /// Of a worker that has `ios` units to itself or to share.
    pub(super) fn new(workload: &Workload, ios: u64) -> Self {
        let rw = workload.rw;
        let fsync = if rw.writes() { workload.fsync } else { 0 };
        let places = rw.is_random().then(|| {
            Places::new(&workload.random_distribution, ios, workload.unit_bytes(), workload.seed)
                .map(Box::new)
        });
        let sizes = workload.bssplit.as_ref();
        Self {
            is_random: rw.is_random(),
            reads_below: reads_below(workload),
            fsync,
            writes_to_flush: fsync,
            places: places.flatten(),
            sizes: sizes
                .map(|split| Box::new([false, true].map(|writes| Sizes::new(split.parts(writes))))),
        }
    }

    /// The next operation. What a flush says of offset and length means nothing.
    #[inline(never)]
    pub(super) fn next(&mut self, plain: &mut Plain) -> Operation {
        if self.fsync != 0 && self.writes_to_flush == 0 {
            self.writes_to_flush = self.fsync;
            return plain.operation(OperationKind::Flush, 0);
        }
        let (drawn_io, draw) = plain.draw();
        let kind = match draw >> 1 < self.reads_below {
            true => OperationKind::Read,
            false => {
                self.writes_to_flush = self.writes_to_flush.wrapping_sub(1);
                OperationKind::Write
            }
        };
        if let Some(sizes) = &self.sizes {
            let [reads, writes] = &**sizes;
            let of = if kind == OperationKind::Read { reads } else { writes };
            let bytes = of.pick(plain.rng.next_u64());
            return self.sized(plain, kind, bytes);
        }
        let io = match &self.places {
            _ if !self.is_random => plain.next_in_share(),
            None => drawn_io,
            Some(places) => places.next(&mut plain.rng),
        };
        plain.operation(kind, io)
    }

    /// An operation of `bytes` at a multiple of the smallest size.
    fn sized(&self, plain: &mut Plain, kind: OperationKind, bytes: u32) -> Operation {
        let units = u64::from(bytes).div_ceil(plain.bs_bytes.max(1).into()).max(1);
        let io = match &self.places {
            _ if !self.is_random => {
                // What does not fit any more begins anew.
                let fits = plain.next.saturating_add(units) <= plain.end;
                let io = if fits { plain.next } else { plain.first };
                plain.next = io + units;
                io
            }
            // Uniform over the places where it fits, with a draw of its own: the other one's range is
            // that of the smallest.
            None => scale(plain.rng.next_u64(), plain.ios.saturating_sub(units).saturating_add(1)),
            Some(places) => places.next(&mut plain.rng).min(plain.ios.saturating_sub(units)),
        };
        Operation { bytes, ..plain.operation(kind, io) }
    }
}

/// Reads' part of 2^63, rounded.
pub(super) fn reads_below(workload: &Workload) -> u64 {
    match workload.rw {
        Rw::Read | Rw::RandRead => ALWAYS,
        Rw::Write | Rw::RandWrite | Rw::Trim | Rw::RandTrim => 0,
        Rw::Rw | Rw::RandRw => {
            let percent = u128::from(workload.rwmixread.min(100));
            ((u128::from(ALWAYS) * percent + 50) / 100) as u64
        }
    }
}
