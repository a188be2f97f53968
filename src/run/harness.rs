//! What the harness itself takes, measured in the same run as everything else: the loop with its generator,
//! clock and recorder over the engine that moves nothing.
//!
//! The harness has work of each I/O and work of each pass, which the I/Os of a pass share. So it is
//! measured with as many I/Os a pass as the workload has in flight, the least that it can take, and with
//! one, the most: an engine's own batches lie between.

use super::{Job, Measurement, Timing};
use crate::workload::Workload;
use crate::workload::units::Amount;
use nvpoll_engine::{EngineError, Target};
use serde::{Deserialize, Serialize};

/// Long enough for a million I/Os, and short beside a round.
const TIMING: Timing = Timing { ramp_s: 0.01, runtime_s: 0.06, number_ios: None };

/// Nanoseconds that the harness takes for an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HarnessNs<T> {
    /// With the whole depth completed in one pass.
    pub batched: T,
    /// With one I/O a pass.
    pub one_by_one: T,
}

/// Measures the harness with `workload`; `run` measures a job on the engine that moves nothing. The other
/// fields are `like`'s. `None` where a stop was asked for.
///
/// # Errors
/// When the measurement fails.
pub(super) fn measure(
    workload: &Workload,
    like: &Job<'_>,
    run: &mut dyn FnMut(&Job<'_>) -> Result<Measurement, EngineError>,
) -> Result<Option<HarnessNs<f64>>, EngineError> {
    let mut at = |iodepth| {
        let workload = unpaced(workload, iodepth);
        let seen = run(&Job {
            targets: &[(Target::Null, 1)],
            workload: &workload,
            timing: TIMING,
            instruments: false,
            drives_per_worker: 1,
            addresses: &[],
            ..*like
        })?;
        let ios = seen.recorder.count_all();
        Ok((!seen.stopped && ios > 0).then(|| seen.elapsed_s * 1e9 / ios as f64))
    };
    let one_by_one = at(1)?;
    let batched = if workload.iodepth == 1 { one_by_one } else { at(workload.iodepth)? };
    Ok(batched.zip(one_by_one).map(|(batched, one_by_one)| HarnessNs { batched, one_by_one }))
}

/// `workload` by one worker as fast as it goes, without what needs a target that keeps data, and anywhere:
/// the engine's target may be smaller than the drive that a range was named for.
fn unpaced(workload: &Workload, iodepth: u32) -> Workload {
    Workload {
        iodepth,
        numjobs: 1,
        offset: Amount::default(),
        size: None,
        offset_increment: Amount::default(),
        rate_iops: None,
        thinktime_us: 0,
        fsync: 0,
        verify: false,
        ..workload.clone()
    }
}
