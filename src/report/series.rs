//! A round's series, of ticks made seconds and of counts bytes.

use super::model::RoundSeries;
use crate::measure::Recorder;

impl RoundSeries {
    /// What `recorder` saw, step by step, in ticks of `ns_per_tick`; all its I/Os are of `bs_bytes` unless
    /// they were counted. `None` where there is no step.
    pub(super) fn of(recorder: &Recorder, ns_per_tick: f64, bs_bytes: Option<u32>) -> Option<Self> {
        let series = recorder.series();
        let points = series.points();
        let mean = |ticks: u64, ios: u64| {
            Some(ticks as f64 / ios as f64 * ns_per_tick).filter(|mean| mean.is_finite())
        };
        let longest = |ticks: u64| (ticks as f64 * ns_per_tick).round() as u64;
        (!points.is_empty()).then(|| Self {
            step_s: series.step_s() as f64,
            ios: points.iter().map(|point| point.ios).collect(),
            bytes: points
                .iter()
                .map(|point| bs_bytes.map_or(point.bytes, |bs| point.ios.saturating_mul(bs.into())))
                .collect(),
            lat_mean_ns: points.iter().map(|point| mean(point.ticks, point.ios)).collect(),
            lat_max_ns: points
                .iter()
                .map(|point| (point.ios > 0).then(|| longest(point.max_ticks)))
                .collect(),
        })
    }
}
