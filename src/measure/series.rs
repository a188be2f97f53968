//! What a window was like second by second.
//!
//! A worker adds nothing to an I/O for it: once a second its recorder is summed up, and what came since the
//! last time is a point.

/// Most points of a series. When it is full every two become one, and a step is twice as long: a window of
/// five minutes has steps of a second, one of an hour steps of 16 seconds.
const POINTS_MAX: usize = 300;

/// What was recorded in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// I/Os.
    pub ios: u64,
    /// Their bytes, where I/Os differ in size; else they are not counted.
    pub bytes: u64,
    /// The sum of their latencies, in ticks.
    pub ticks: u64,
    /// The longest of them, in ticks.
    pub max_ticks: u64,
}

impl Point {
    pub(super) const EMPTY: Self = Self { ios: 0, bytes: 0, ticks: 0, max_ticks: 0 };

    /// What was added to a sum since it was `before`. The longest is the step's own already.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            ios: self.ios.wrapping_sub(before.ios),
            bytes: self.bytes.wrapping_sub(before.bytes),
            ticks: self.ticks.wrapping_sub(before.ticks),
            max_ticks: self.max_ticks,
        }
    }

    fn add(&mut self, other: &Self) {
        self.ios = self.ios.wrapping_add(other.ios);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.ticks = self.ticks.wrapping_add(other.ticks);
        self.max_ticks = self.max_ticks.max(other.max_ticks);
    }
}

/// Points in their order, all of a step's length but for the last. Fixed in size, so that nothing is
/// allocated after it is made.
#[derive(Clone, Debug)]
pub struct Series {
    points: Box<[Point; POINTS_MAX]>,
    used: usize,
    step_s: u64,
}

impl Series {
    pub(super) fn new() -> Self {
        Self { points: Box::new([Point::EMPTY; POINTS_MAX]), used: 0, step_s: 1 }
    }

    /// Seconds of a step: a power of two.
    pub fn step_s(&self) -> u64 {
        self.step_s
    }

    /// The points. A last one that is shorter than a step has what there was until the window closed.
    pub fn points(&self) -> &[Point] {
        self.points.get(..self.used).unwrap_or_default()
    }

    pub(super) fn push(&mut self, point: Point) {
        if let Some(place) = self.points.get_mut(self.used) {
            *place = point;
            self.used += 1;
        }
        if self.used == POINTS_MAX {
            self.fold();
        }
    }

    /// Makes one point of every two.
    fn fold(&mut self) {
        for number in 0..self.used.div_ceil(2) {
            let of = |index: usize| self.points.get(index).filter(|_| index < self.used);
            let mut sum = of(number * 2).copied().unwrap_or(Point::EMPTY);
            sum.add(of(number * 2 + 1).unwrap_or(&Point::EMPTY));
            if let Some(place) = self.points.get_mut(number) {
                *place = sum;
            }
        }
        self.used = self.used.div_ceil(2);
        self.step_s = self.step_s.saturating_mul(2);
    }

    /// Adds what another worker saw in the same steps.
    pub(super) fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        // Each time one of two doubles, and neither is longer than a window.
        while self.step_s < other.step_s {
            self.fold();
        }
        while other.step_s < self.step_s {
            other.fold();
        }
        for (index, point) in other.points().iter().enumerate() {
            match self.points.get_mut(index) {
                Some(own) if index < self.used => own.add(point),
                Some(place) => *place = *point,
                None => {}
            }
        }
        self.used = self.used.max(other.used);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, Recorder};
    use super::*;

    fn recorder(steps: &[&[u64]]) -> Recorder {
        let mut recorder = Recorder::new();
        for latencies in steps {
            latencies.iter().for_each(|ticks| recorder.record(Direction::Read, *ticks));
            recorder.cut();
        }
        recorder
    }

    fn ios(recorder: &Recorder) -> Vec<u64> {
        recorder.series().points().iter().map(|point| point.ios).collect()
    }

    #[test]
    fn a_point_is_what_came_since_the_last_one() {
        let mut recorder = recorder(&[&[10, 900], &[], &[7]]);
        recorder.record(Direction::Write, 5);
        recorder.add_bytes(Direction::Write, 4096);
        recorder.cut();
        let points = recorder.series().points();
        let point = |ios, bytes, ticks, max_ticks| Point { ios, bytes, ticks, max_ticks };
        let expected =
            [point(2, 0, 910, 900), Point::EMPTY, point(1, 0, 7, 7), point(1, 4096, 5, 5)];
        assert_eq!(points, expected);
        // The whole knows its extremes all the same.
        let all = recorder.latency(None, 1.0).unwrap();
        assert_eq!((all.min_ns, all.max_ns, all.count), (5, 900, 4));
    }

    #[test]
    fn a_long_series_has_wider_steps_and_loses_nothing() {
        let mut recorder = Recorder::new();
        for step in 0..1500_u64 {
            (0..=step % 3).for_each(|_| recorder.record(Direction::Read, 1 + step));
            if (step + 1).is_multiple_of(recorder.series().step_s()) {
                recorder.cut();
            }
        }
        recorder.cut();
        let series = recorder.series();
        assert_eq!((series.step_s(), series.points().len()), (8, 188));
        assert_eq!(ios(&recorder).iter().sum::<u64>(), recorder.count_all());
        // Steps 0 to 7: one I/O, two, three, one, …
        assert_eq!((ios(&recorder)[0], series.points()[0].max_ticks), (15, 8));
        let ticks: u64 = series.points().iter().map(|point| point.ticks).sum();
        let mean = recorder.latency(None, 1.0).unwrap().mean_ns;
        assert!((ticks as f64 / recorder.count_all() as f64 - mean).abs() < 1e-6);
    }

    #[test]
    fn workers_add_up_however_long_each_ran() {
        let mut short = recorder(&[&[3], &[4, 5]]);
        let long: Vec<&[u64]> = vec![&[100]; 301];
        let long = recorder(&long);
        assert_eq!((long.series().step_s(), long.series().points().len()), (2, 151));
        short.merge(&long);
        assert_eq!(ios(&short)[..3], [5, 2, 2]);
        assert_eq!(ios(&short).iter().sum::<u64>(), short.count_all());
        let mut other = long.clone();
        other.merge(&recorder(&[&[3], &[4, 500]]));
        assert_eq!((ios(&other)[0], other.series().points()[0].max_ticks), (5, 500));
        assert_eq!(ios(&other), ios(&short));
    }
}
