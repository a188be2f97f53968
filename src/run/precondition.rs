//! Brings drives to the state in which their figures last, before anything is measured: two full
//! sequential writes, then random writes until they are steady (SNIA PTS, workload-independent and
//! -dependent preconditioning). The state is the drive's, so that it is brought about once, by the first
//! stack, for all.

use super::session::Observer;
use super::{Live, Measurement, Timing};
use crate::failure::{Failure, FailureKind};
use crate::measure::Steadiness;
use crate::report::{Mark, MarkKind};
use crate::workload::{Rw, Workload};
use std::time::{Duration, Instant};

/// How often the whole range is written in order.
const PASSES: u64 = 2;
/// Most rounds of random writes (PTS 2.0).
const ROUNDS_MAX: u32 = 25;
/// Sizes that are tried for the sequential writes: some paths take no large ones in one piece.
const SEQUENTIAL_BYTES: [u32; 3] = [128 << 10, 16 << 10, 4 << 10];
/// Depth, where the path has it.
const DEPTH: u32 = 32;
/// Size of the random writes, where the target's blocks are no larger.
const RANDOM_BYTES: u32 = 4096;
/// From one word of progress to the next.
const WORD_EVERY: Duration = Duration::from_millis(500);

/// Measures a workload for so long; the callback gets live figures.
pub(super) type Run<'a> =
    dyn FnMut(&Workload, Timing, &mut dyn FnMut(Live)) -> Result<Measurement, Failure> + 'a;

/// Preconditions the targets that `run` drives; `round_s` is how long a round of random writes takes.
/// Returns what was done, for the report; `None` where a stop was asked for.
///
/// # Errors
/// When a target cannot be written.
pub(super) fn precondition(
    run: &mut Run<'_>,
    round_s: f64,
    observer: &mut dyn Observer,
) -> Result<Option<Mark>, Failure> {
    let probe = Workload::new(Rw::RandRead, RANDOM_BYTES, 1);
    let one = Timing { ramp_s: 0.0, runtime_s: 1.0, number_ios: Some(1) };
    let seen = run(&probe, one, &mut |_| {})?;
    let targets = &seen.geometries;
    let size_bytes = targets.iter().map(|target| target.size_bytes).max().unwrap_or(0);
    let depth = targets.iter().map(|target| target.depth_max).fold(DEPTH, u32::min).max(1);
    let block_bytes = targets.iter().map(|target| target.block_bytes).max().unwrap_or(1);
    let Some(text) = sequential(run, size_bytes, depth, observer)? else { return Ok(None) };
    let bytes = RANDOM_BYTES.max(block_bytes);
    let workload = Workload::new(Rw::RandWrite, bytes, depth);
    let timing = Timing { ramp_s: 0.0, runtime_s: round_s, number_ios: None };
    let mut rounds = Vec::new();
    let mut steadiness = None;
    for round in 1..=ROUNDS_MAX {
        let left_s = f64::from(ROUNDS_MAX - round + 1) * round_s;
        observer.doing(&format!(
            "preconditioning: random writes until steady, round {round}, at most {} left",
            time(left_s)
        ));
        let measured = run(&workload, timing, &mut |_| {})?;
        if measured.stopped {
            return Ok(None);
        }
        rounds.push(measured.iops_by_target.iter().sum());
        steadiness = Steadiness::of(&rounds);
        if steadiness.is_some_and(|seen| seen.steady) {
            break;
        }
    }
    let state = steadiness.map_or_else(|| "not known".to_owned(), |seen| seen.sentence());
    Ok(Some(Mark::new(
        MarkKind::Preconditioned,
        format!(
            "preconditioned: {text}, then {} rounds of {round_s} s of random writes of {bytes} bytes; {state}",
            rounds.len()
        ),
    )))
}

/// Writes the whole range in order, with the largest size that the path takes; in words, or `None`
/// after a stop.
fn sequential(
    run: &mut Run<'_>,
    size_bytes: u64,
    depth: u32,
    observer: &mut dyn Observer,
) -> Result<Option<String>, Failure> {
    let mut refused = Failure::failed("preconditioning: nothing was written");
    for bytes in SEQUENTIAL_BYTES {
        let ios = (size_bytes / u64::from(bytes)).max(1).saturating_mul(PASSES);
        let timing = Timing { ramp_s: 0.0, runtime_s: 1.0, number_ios: Some(ios) };
        let (start, mut last) = (Instant::now(), None::<Instant>);
        let mut word = |live: Live| {
            if last.is_none_or(|last| last.elapsed() >= WORD_EVERY) {
                last = Some(Instant::now());
                observer.doing(&progress(live.part, start.elapsed()));
            }
        };
        match run(&Workload::new(Rw::Write, bytes, depth), timing, &mut word) {
            Ok(measured) if measured.stopped => return Ok(None),
            Ok(_) => {
                return Ok(Some(format!("{PASSES} sequential writes of the whole range")));
            }
            Err(failure) if failure.kind == FailureKind::Usage => refused = failure,
            Err(failure) => return Err(failure),
        }
    }
    Err(refused)
}

fn progress(part: f64, elapsed: Duration) -> String {
    let what = format!("preconditioning: writing all of it {PASSES} times, {:.0} %", part * 100.0);
    let left_s = elapsed.as_secs_f64() * (1.0 / part - 1.0);
    if part > 0.0 && left_s.is_finite() { format!("{what}, {} left", time(left_s)) } else { what }
}

fn time(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_left() {
        let text = progress(0.25, Duration::from_secs(10));
        assert_eq!(text, "preconditioning: writing all of it 2 times, 25 %, 30 s left");
        assert!(progress(0.0, Duration::from_secs(1)).ends_with("0 %"));
        assert!(progress(0.5, Duration::from_secs(600)).ends_with("10 min left"));
        assert!(progress(0.01, Duration::from_secs(3600)).ends_with("99.0 h left"));
    }
}
