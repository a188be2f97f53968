//! The stages of a row's I/Os: from what the instruments of its rounds saw to figures.

use super::RoundResult;
use super::figures::{significant, time};
use super::marks::{Mark, MarkKind};
use super::model::{LatNs, Polls, Row, StageNs, Stages};
use crate::measure::{Stage, StageRecorder};

/// The stages of all `rounds` together, whose latencies together are `lat`; `None` where a round had
/// no instruments.
pub(super) fn of(rounds: &[&RoundResult], lat: Option<LatNs>) -> Option<Stages> {
    let mut all = StageRecorder::default();
    let mut cost_ns_per_io: f64 = 0.0;
    for round in rounds {
        let seen = round.instruments.as_ref()?;
        all.merge(&seen.stages);
        cost_ns_per_io = cost_ns_per_io.max(seen.cost_ns_per_io);
    }
    let ns_per_tick = rounds.first()?.ns_per_tick;
    let summary = |stage| all.stage(stage).latency(None, ns_per_tick);
    let stage = |stage| {
        let summary = summary(stage)?;
        let at = |percent| summary.percentile(percent).map(|percentile| percentile.ns);
        let (p50, p99) = (at(50.0)?, at(99.0)?);
        Some(StageNs { mean: summary.mean_ns, p50, p99, max: summary.max_ns })
    };
    let [build_ns, device_ns, detect_ns, reap_ns] = Stage::ALL.map(stage);
    let (build_ns, device_ns) = (build_ns?, device_ns?);
    let (detect_ns, reap_ns) = (detect_ns?, reap_ns?);
    let timed = build_ns.mean + device_ns.mean + detect_ns.mean + reap_ns.mean;
    Some(Stages {
        ios: summary(Stage::Build)?.count,
        build_ns,
        device_ns,
        detect_ns,
        reap_ns,
        loop_ns_mean: lat?.mean - timed,
        batch_mean: all.batch_mean()?,
        cost_ns_per_io,
    })
}

/// The stages as a note below the table, which says at once that the row was measured with them.
pub(super) fn mark(row: &Row) -> Option<Mark> {
    let stages = row.stages.as_ref()?;
    let lat = row.lat_ns.as_ref()?;
    let polls = row.polls.map_or_else(String::new, |Polls { useful, empty }| {
        let useful_pct = useful as f64 / useful.saturating_add(empty).max(1) as f64 * 100.0;
        format!(", {} % of the looks useful", significant(useful_pct, 3))
    });
    let doorbells = row.doorbell_writes_per_io.map_or_else(String::new, |writes| {
        format!(", {} doorbell writes an I/O", significant(writes, 3))
    });
    let text = format!(
        "with instruments, which cost {} an I/O: of a mean latency of {} it took {} to build the batch and write its doorbell, {} until the last look in vain (the device), {} until the look that found it, {} to reap the batch, {} in the loop; {} I/Os a batch{doorbells}{polls}",
        time(stages.cost_ns_per_io),
        time(lat.mean),
        time(stages.build_ns.mean),
        time(stages.device_ns.mean),
        time(stages.detect_ns.mean),
        time(stages.reap_ns.mean),
        time(stages.loop_ns_mean),
        significant(stages.batch_mean, 3),
    );
    Some(Mark::new(MarkKind::Instruments, text))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use crate::measure::Direction;
    use crate::measure::InstrumentsSeen;
    use crate::workload::{Rw, Workload};

    #[test]
    fn stages_and_the_loops_rest_are_the_mean_latency() {
        let workload = Workload::new(Rw::RandRead, 4096, 4);
        let mut round = sample::round(1, &workload, "vfio", 1000, 4);
        let mut stages = StageRecorder::default();
        stages.record([10, 500, 30, 20]);
        stages.record([30, 700, 10, 40]);
        stages.record_send(2);
        round.recorder = crate::measure::Recorder::new();
        [700, 900].iter().for_each(|ticks| round.recorder.record(Direction::Read, *ticks));
        round.ns_per_tick = 2.0;
        round.instruments = Some(InstrumentsSeen { stages, cost_ns_per_io: 3.0 });
        let rounds = [round];
        let report =
            crate::report::Report::assemble(sample::plan(), sample::environment(), &rounds, true);
        let row = &report.rows[0];
        let stages = row.stages.unwrap();
        assert_eq!((stages.ios, stages.batch_mean, stages.cost_ns_per_io), (2, 2.0, 3.0));
        assert_eq!((stages.build_ns.mean, stages.device_ns.max), (40.0, 1400));
        let sum = [stages.build_ns, stages.device_ns, stages.detect_ns, stages.reap_ns]
            .map(|stage| stage.mean)
            .into_iter()
            .sum::<f64>();
        assert_eq!(sum + stages.loop_ns_mean, row.lat_ns.as_ref().unwrap().mean);
        assert_eq!(stages.loop_ns_mean, 1600.0 - 1340.0);
        let mark = row.marks.iter().find(|mark| mark.kind == MarkKind::Instruments).unwrap();
        assert!(mark.text.contains("cost 3.00 ns an I/O"), "{}", mark.text);
        assert!(mark.text.contains("260 ns in the loop; 2.00 I/Os a batch"), "{}", mark.text);
        assert!(mark.text.contains("25.0 % of the looks useful"), "{}", mark.text);
    }

    #[test]
    fn a_round_without_instruments_leaves_the_row_without() {
        assert!(sample::report().rows.iter().all(|row| row.stages.is_none()));
    }
}
