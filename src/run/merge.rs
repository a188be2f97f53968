//! What the lanes saw, as one measurement.

use super::aside::Aside;
use super::layout::LanePlan;
use super::{Job, LaneOutcome, LaneSeen, Measurement, Verified, instruments};
use crate::measure::{Clock, Doorbells, InstrumentsSeen, Recorder, StageRecorder};
use nvpoll_engine::{Caution, Engine, EngineError};

/// The lanes' outcomes as one measurement.
///
/// # Errors
/// The first lane's that failed.
pub(super) fn merge<E: Engine>(
    job: &Job<'_>,
    engines: &[E],
    plans: &[LanePlan],
    outcomes: Vec<LaneOutcome>,
    clock: &Clock,
    aside: Aside,
) -> Result<Measurement, EngineError> {
    let mut recorder = Recorder::new();
    let mut iops_by_target = vec![0.0; engines.len()];
    let (mut elapsed_s, mut in_flight_mean, mut polls, mut stopped) = (0.0f64, 0.0, (0, 0), false);
    let mut verified: Option<Verified> = None;
    let (mut doorbells, mut stages) = (None::<Doorbells>, None::<StageRecorder>);
    for (plan, outcome) in plans.iter().zip(outcomes) {
        let lane = outcome?;
        if let Some(checked) = &lane.verified {
            verified.get_or_insert_default().merge(checked);
        }
        let shares = lane.shares();
        let LaneSeen { recorder: seen, result: lane, doorbells: rung, stages: timed, .. } = lane;
        if let Some(rung) = rung {
            let sum = doorbells.get_or_insert_default();
            sum.writes = sum.writes.saturating_add(rung.writes);
            sum.ios = sum.ios.saturating_add(rung.ios);
        }
        if let Some(timed) = timed {
            stages.get_or_insert_default().merge(&timed);
        }
        let lane_s = clock.to_s(lane.elapsed_ticks);
        if lane.elapsed_ticks > 0 {
            for (target, share) in iops_by_target[plan.targets.clone()].iter_mut().zip(shares) {
                *target += share * seen.count_all() as f64 / lane_s;
            }
            in_flight_mean += lane.in_flight_ticks as f64 / lane.elapsed_ticks as f64;
        }
        elapsed_s = elapsed_s.max(lane_s);
        polls = (polls.0 + lane.useful_polls, polls.1 + lane.empty_polls);
        stopped |= lane.stopped;
        recorder.merge(&seen);
    }
    let rate: f64 = iops_by_target.iter().sum();
    if rate > 0.0 {
        elapsed_s = recorder.count_all() as f64 / rate;
    }
    let instruments = stages.map(|stages| instruments_seen(job, clock, stages)).transpose()?;
    Ok(Measurement {
        verified,
        ns_per_tick: clock.ns_per_tick(),
        iops_by_target,
        elapsed_s,
        in_flight_mean,
        polls,
        doorbells,
        instruments,
        cpu: aside.cpu.per(recorder.count_all()),
        accounts: aside.accounts,
        conditions: aside.conditions,
        facts: facts(engines),
        cautions: cautions(engines),
        geometries: engines.iter().map(|engine| engine.geometry(job.workload.bs_bytes)).collect(),
        stopped,
        recorder,
    })
}

/// What the instruments saw, and what they cost in batches like these.
fn instruments_seen(
    job: &Job<'_>,
    clock: &Clock,
    stages: StageRecorder,
) -> Result<InstrumentsSeen, EngineError> {
    let batch = stages.batch_mean().unwrap_or(1.0).round().clamp(1.0, f64::from(u16::MAX));
    let cost_ns_per_io = instruments::cost_ns_per_io(clock, batch as u16, job.is_each())?;
    Ok(InstrumentsSeen { stages, cost_ns_per_io })
}

/// What speaks against the figures on any of the targets, each once.
fn cautions<E: Engine>(engines: &[E]) -> Vec<Caution> {
    let mut cautions = Vec::new();
    for caution in engines.iter().flat_map(Engine::cautions) {
        if !cautions.contains(&caution) {
            cautions.push(caution);
        }
    }
    cautions
}

/// How the engine ran on its targets: a value that differs between them is all of theirs.
fn facts<E: Engine>(engines: &[E]) -> Vec<(String, String)> {
    let mut facts: Vec<(String, Vec<String>)> = Vec::new();
    for (name, value) in engines.iter().flat_map(Engine::facts) {
        match facts.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => facts.push((name.to_owned(), vec![value])),
        }
    }
    facts.into_iter().map(|(name, values)| (name, values.join(", "))).collect()
}
