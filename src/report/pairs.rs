//! Every two rows that may be compared, and how sure the comparison is.
//!
//! Rounds of one run are paired: both stacks had round 3 within moments, and what moved both cancels.
//! Rounds of two runs are not, and are compared by Welch's t. A figure without rounds has no interval.

use super::figures::part;
use super::marks::same_drives_of;
use super::merged::{Figures, Method, Pair, RoundFigures, Source, SourceKind};
use super::model::{Drive, DriveKind};
use crate::measure::{Interval, Ratio, mean_interval, ratio, ratio_independent, resolution};

/// Whether two rows ran on the same hardware. Of two published rows the table says so; of two files
/// only serial numbers can.
pub(super) fn comparable(ours: &Figures, base: &Figures, sources: &[Source]) -> bool {
    let same_file = ours.source == base.source;
    match sources.get(ours.source).map(|source| source.kind) {
        Some(SourceKind::Published) => same_file,
        Some(_) if same_file => same_drives_of(&ours.drives, &base.drives),
        _ => same_serials(&ours.drives, &base.drives),
    }
}

/// Addresses and names mean nothing on another machine; serial numbers do.
fn same_serials(ours: &[Drive], base: &[Drive]) -> bool {
    let key = |drive: &Drive| {
        let real = matches!(drive.kind, DriveKind::Nvme | DriveKind::Block);
        drive.serial.clone().filter(|_| real).map(|serial| (serial, drive.model.clone()))
    };
    let keys = |drives: &[Drive]| {
        let mut keys: Vec<_> = drives.iter().map(key).collect::<Option<_>>()?;
        keys.sort();
        Some(keys)
    };
    !ours.is_empty() && keys(ours).is_some() && keys(ours) == keys(base)
}

/// Rows of a block up to which every pair is compared; of more, each row with the first one alone.
pub(super) const ALL_PAIRS_ROWS_MAX: usize = 48;

/// All pairs of a block, each row against those before it.
pub(super) fn pairs(rows: &[Figures], sources: &[Source]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let most = if rows.len() > ALL_PAIRS_ROWS_MAX { 1 } else { usize::MAX };
    for (index, ours) in rows.iter().enumerate() {
        let before = rows.iter().take(index).filter(|base| comparable(ours, base, sources));
        pairs.extend(before.take(most).map(|base| pair(ours, base)));
    }
    pairs
}

/// One row against another.
pub(super) fn pair(ours: &Figures, base: &Figures) -> Pair {
    let same_run = ours.source == base.source;
    let figures = |row: &Figures| usable(row).count();
    let rounds = [figures(ours), figures(base)];
    let method = match (same_run, rounds) {
        (_, [0 | 1, _] | [_, 0 | 1]) => Method::Single,
        (true, _) => Method::Paired,
        (false, _) => Method::Independent,
    };
    let certain = [ours, base].into_iter().filter_map(certain_to).fold(0.0, f64::max);
    let iops = compare(method, ours, base, |round| round.iops)
        .map(|ratio| ratio.resolved_to(certain))
        .or_else(|| single(ours.iops?.mean, base.iops?.mean));
    let lat_mean = compare(method, ours, base, |round| round.lat_mean_ns)
        .or_else(|| single(ours.lat_ns.as_ref()?.mean, base.lat_ns.as_ref()?.mean));
    let cpu_points = points(method, ours, base);
    let mut pair = Pair {
        stack: ours.stack.clone(),
        of: base.stack.clone(),
        method,
        rounds,
        iops,
        lat_mean,
        cpu_points,
        text: String::new(),
    };
    pair.text = text(&pair);
    pair
}

/// How far the row's I/Os a second are certain, as a part of them; `None` where nothing was counted.
fn certain_to(row: &Figures) -> Option<f64> {
    resolution(row.in_flight.counted?, row.ios? as f64, usable(row).count())
}

fn usable(row: &Figures) -> impl Iterator<Item = &RoundFigures> {
    let any_complete = row.rounds.iter().any(|round| round.complete);
    row.rounds.iter().filter(move |round| round.complete || !any_complete)
}

/// The values of both rows in the rounds that both have.
pub(super) fn common(
    ours: &Figures,
    base: &Figures,
    figure: impl Fn(&RoundFigures) -> Option<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let both = usable(ours).filter_map(|our| {
        let base = usable(base).find(|base| base.round == our.round)?;
        Some((figure(our)?, figure(base)?))
    });
    both.unzip()
}

fn compare(
    method: Method,
    ours: &Figures,
    base: &Figures,
    figure: impl Fn(&RoundFigures) -> Option<f64>,
) -> Option<Ratio> {
    match method {
        Method::Paired => {
            let (ours, base) = common(ours, base, figure);
            ratio(&ours, &base)
        }
        Method::Independent => {
            let values = |row| usable(row).filter_map(&figure).collect::<Vec<_>>();
            ratio_independent(&values(ours), &values(base))
        }
        Method::Single => None,
    }
}

fn single(ours: f64, base: f64) -> Option<Ratio> {
    ratio(&[ours], &[base])
}

fn points(method: Method, ours: &Figures, base: &Figures) -> Option<Interval> {
    if method == Method::Paired {
        let (ours, base) = common(ours, base, |round| round.machine_pct);
        let differences: Vec<f64> = ours.iter().zip(base).map(|(ours, base)| ours - base).collect();
        if let Some(interval) = mean_interval(&differences) {
            return Some(interval);
        }
    }
    let mean = ours.cpu.machine_pct?.mean - base.cpu.machine_pct?.mean;
    Some(Interval { mean, ci95: None }).filter(|interval| interval.mean.is_finite())
}

/// One sentence.
fn text(pair: &Pair) -> String {
    let Pair { stack, of, .. } = pair;
    let Some(iops) = pair.iops else {
        return format!("{stack} and {of}: no IOPS of both to compare");
    };
    let times = format!("{stack} does {} times the IOPS of {of}", part(iops.mean));
    let Some([low, high]) = iops.ci95 else {
        return format!(
            "{times}; one figure each, so nothing says how much the next run would differ"
        );
    };
    let interval = format!("95 % interval {} to {}", part(low), part(high));
    let least = iops.least_detectable.map_or_else(String::new, |least| {
        format!("; these rounds would have shown a difference of {:.1} %", least * 100.0)
    });
    match iops.distinguishable {
        Some(false) => {
            format!("{stack} and {of} are not distinguishable by IOPS ({interval}){least}")
        }
        _ => format!("{times} ({interval}){least}"),
    }
}
