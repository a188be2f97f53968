//! The knee of a ladder of depths: from where on more depth gives latency and hardly any I/Os a second.
//!
//! It is where IOPS by mean latency, *power*, is the greatest (L. Kleinrock, "Power and deterministic rules
//! of thumb for probabilistic problems in computer communications", ICC 1979): a drive that is not full gives
//! more IOPS at the same latency for more depth, and power rises; one that is full gives more latency at the same
//! IOPS, and it falls. Rounds decide which depths can be told from the best one: where the deepest cannot, there
//! is no knee on this ladder.

use super::figures::{rate, time};
use super::highlights::{Highlight, HighlightKind};
use super::marks::MarkKind;
use super::merged::{Block, Figures, Task};
use super::pairs::common;
use crate::measure::{Ratio, ratio};
use serde::Serialize;

/// Fewer depths are no ladder.
const DEPTHS_MIN: usize = 4;

/// Blocks that differ in their depth alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ladder {
    /// `randread 4k`.
    pub title: String,
    /// What was asked; its `iodepth` is not known, since it is each point's.
    pub workload: Task,
    /// One for each stack.
    pub stacks: Vec<Climb>,
}

/// One stack on a ladder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Climb {
    /// The stack.
    pub stack: String,
    /// The depths, from the least on, that were kept.
    pub points: Vec<Rung>,
    /// Where the knee is; `None` where the ladder does not show one.
    pub knee: Option<Knee>,
    /// The same in words, or why there is none.
    pub text: String,
}

/// One depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rung {
    /// I/Os in flight a worker, as asked.
    pub depth: u32,
    /// Number of the block, from 0.
    pub block: usize,
    /// Number of its row, from 0.
    pub row: usize,
    /// I/Os a second.
    pub iops: f64,
    /// Mean latency in nanoseconds.
    pub lat_mean_ns: f64,
    /// IOPS by mean latency in seconds.
    pub power: f64,
    /// The greatest power against this one's, round by round; `None` for the greatest itself.
    pub best: Option<Ratio>,
}

impl Rung {
    /// Whether the rounds cannot tell its power from the greatest.
    pub fn is_alike(&self) -> bool {
        self.best.is_none_or(|best| best.distinguishable == Some(false))
    }
}

/// Where the power is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Knee {
    /// The depth.
    pub depth: u32,
    /// The least and the greatest depth that the rounds cannot tell from it.
    pub between: [u32; 2],
    /// The ladder begins there: the knee may be at less.
    pub at_most: bool,
    /// I/Os a second there.
    pub iops: f64,
    /// Mean latency there, in nanoseconds.
    pub lat_mean_ns: f64,
    /// Its part of the most IOPS that any depth of the ladder has.
    pub of_most: f64,
    /// Whether there are rounds to say how sure that is.
    pub has_interval: bool,
}

/// All ladders among `blocks`, in the order of their first blocks.
pub(super) fn ladders(blocks: &[Block]) -> Vec<Ladder> {
    let mut groups: Vec<(Task, Vec<(u32, usize)>)> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let Some(depth) = block.workload.iodepth else { continue };
        let task = Task { iodepth: None, ..block.workload.clone() };
        match groups.iter_mut().find(|(known, _)| *known == task) {
            Some((_, steps)) => steps.push((depth, index)),
            None => groups.push((task, vec![(depth, index)])),
        }
    }
    groups.retain(|(_, steps)| steps.len() >= DEPTHS_MIN);
    groups
        .into_iter()
        .map(|(workload, mut steps)| {
            steps.sort_unstable();
            let mut names: Vec<&str> = Vec::new();
            for row in steps.iter().filter_map(|(_, at)| blocks.get(*at)).flat_map(|of| &of.rows) {
                if !names.contains(&row.stack.as_str()) {
                    names.push(&row.stack);
                }
            }
            let stacks = names.iter().map(|stack| climb(blocks, &steps, stack)).collect();
            Ladder { title: workload.title(), workload, stacks }
        })
        .collect()
}

fn power(iops: f64, lat_ns: f64) -> Option<f64> {
    Some(iops / (lat_ns / 1e9)).filter(|power| power.is_finite() && *power > 0.0)
}

/// One stack's way up.
fn climb(blocks: &[Block], steps: &[(u32, usize)], stack: &str) -> Climb {
    let mut rungs: Vec<(Rung, &Figures)> = Vec::new();
    let mut not_kept = 0;
    for (depth, block) in steps {
        let rows = blocks.get(*block).map(|block| block.rows.as_slice()).unwrap_or_default();
        let Some(row) = rows.iter().position(|row| row.stack == stack) else { continue };
        let Some(figures) = rows.get(row) else { continue };
        if figures.marks.iter().any(|mark| mark.kind == MarkKind::DepthNotKept) {
            not_kept += 1;
            continue;
        }
        let means = figures.iops.zip(figures.lat_ns.as_ref());
        let means = means.map(|(iops, lat_ns)| (iops.mean, lat_ns.mean));
        let Some((iops, lat_mean_ns)) = means else { continue };
        let Some(power) = power(iops, lat_mean_ns) else { continue };
        let rung = Rung { depth: *depth, block: *block, row, iops, lat_mean_ns, power, best: None };
        rungs.push((rung, figures));
    }
    let best =
        rungs.iter().enumerate().max_by(|(_, (a, _)), (_, (b, _))| a.power.total_cmp(&b.power));
    if let Some((best, of_best)) = best.map(|(index, (_, figures))| (index, *figures)) {
        for (_, (rung, figures)) in rungs.iter_mut().enumerate().filter(|(at, _)| *at != best) {
            rung.best = against(of_best, figures);
        }
    }
    let points: Vec<Rung> = rungs.into_iter().map(|(rung, _)| rung).collect();
    let knee = if points.len() < DEPTHS_MIN { None } else { knee(&points) };
    let text = said(stack, &points, knee.as_ref(), not_kept);
    Climb { stack: stack.to_owned(), points, knee, text }
}

/// Power of `best` against that of `other`, over the rounds that both have.
fn against(best: &Figures, other: &Figures) -> Option<Ratio> {
    let (ours, theirs) = common(best, other, |round| power(round.iops?, round.lat_mean_ns?));
    let mean = |row: &Figures| power(row.iops?.mean, row.lat_ns.as_ref()?.mean);
    ratio(&ours, &theirs).or_else(|| ratio(&[mean(best)?], &[mean(other)?]))
}

fn knee(points: &[Rung]) -> Option<Knee> {
    let most = points.iter().map(|point| point.iops).fold(0.0, f64::max);
    let best = points.iter().max_by(|a, b| a.power.total_cmp(&b.power))?;
    let alike = || points.iter().filter(|point| point.is_alike()).map(|point| point.depth);
    let between = [alike().min()?, alike().max()?];
    let [first, last] = [points.first()?.depth, points.last()?.depth];
    (between[1] < last).then(|| Knee {
        depth: best.depth,
        between,
        at_most: between[0] == first,
        iops: best.iops,
        lat_mean_ns: best.lat_mean_ns,
        of_most: best.iops / most,
        has_interval: points.iter().filter_map(|point| point.best).all(|best| best.ci95.is_some()),
    })
}

fn said(stack: &str, points: &[Rung], knee: Option<&Knee>, not_kept: usize) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return match not_kept {
            0 => format!("{stack}: no knee, since nothing was measured"),
            kept => format!("{stack}: no knee to be seen, since it kept none of the {kept} depths"),
        };
    };
    if points.len() < DEPTHS_MIN {
        let kept = match points.len() {
            1 => "one depth".to_owned(),
            kept => format!("{kept} depths"),
        };
        return format!(
            "{stack}: no knee to be seen, since it kept its depth at {kept} alone, and it takes {DEPTHS_MIN}"
        );
    }
    let Some(knee) = knee else {
        let why = match last.best {
            None => "IOPS by latency still rise at the deepest",
            Some(_) => "these rounds cannot tell the best depth from the deepest",
        };
        return format!("{stack}: no knee within depths {} to {}: {why}", first.depth, last.depth);
    };
    let place = match (knee.at_most, knee.between) {
        (true, [from, to]) if from == to => {
            format!("at depth {from} or below, where the ladder begins")
        }
        (true, [_, to]) => format!("at depth {to} or below"),
        (false, [from, to]) if from == to => format!("at depth {}", knee.depth),
        (false, [from, to]) => {
            format!("between depths {from} and {to}, most likely {}", knee.depth)
        }
    };
    format!(
        "{stack}: the knee is {place}: {} IOPS at {}, {:.0} % of the most; more depth costs more latency than it gives IOPS",
        rate(knee.iops),
        time(knee.lat_mean_ns),
        knee.of_most * 100.0,
    )
}

impl Ladder {
    /// A sentence for each stack.
    pub(super) fn highlights(&self) -> impl Iterator<Item = Highlight> {
        self.stacks.iter().map(|climb| Highlight {
            kind: HighlightKind::Knee,
            text: format!("{}, {}", self.workload.words(), climb.text),
            stack: climb.stack.clone(),
            against: Vec::new(),
            workloads: vec![self.title.clone()],
            out_of: 1,
            caveats: climb
                .knee
                .filter(|knee| !knee.has_interval)
                .map(|_| {
                    "one round each: nothing says whether the next would have it elsewhere"
                        .to_owned()
                })
                .into_iter()
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::Input;
    use super::super::merged::Merged;
    use super::super::{Report, sample};
    use super::*;
    use crate::workload::{Rw, Workload};
    use std::path::Path;

    /// Rounds of a drive that needs `service_us` an I/O and does at most `most` IOPS, at depths 1 to 64, with
    /// each round off by up to `noise` percent.
    fn climb(service_us: u64, most: u64, rounds: u32, noise: i64) -> Climb {
        let mut results = Vec::new();
        for round in 1..=rounds {
            for (step, depth) in [1, 2, 4, 8, 16, 32, 64].into_iter().enumerate() {
                let ideal = (1_000_000 * depth / service_us).min(most) as i64;
                let off = (i64::from(round) * 7 + step as i64 * 5) % 11 - 5;
                let iops = (ideal + ideal * off * noise / 500).max(1) as u64;
                let workload = Workload::new(Rw::RandRead, 4096, depth as u32);
                results.push(sample::round(round, &workload, "vfio", iops, depth));
            }
        }
        let report = Report::assemble(sample::plan(), sample::environment(), &results, true);
        let merged = Merged::new(vec![Input::of(report, Path::new("x.json"))], None);
        let [ladder] = merged.ladders.as_slice() else { panic!("{:?}", merged.ladders) };
        assert!(merged.highlights.iter().any(|highlight| highlight.kind == HighlightKind::Knee));
        ladder.stacks[0].clone()
    }

    #[test]
    fn the_knee_is_where_the_drive_is_full() {
        // 1000 us an I/O and 8000 IOPS at most: full with 8 in flight.
        let found = climb(1000, 8000, 3, 1);
        let knee = found.knee.unwrap();
        assert_eq!((knee.depth, knee.between, knee.at_most), (8, [8, 8], false), "{found:?}");
        assert!(knee.has_interval && knee.of_most > 0.97);
        assert!(found.text.contains("the knee is at depth 8: "), "{}", found.text);
        assert!(
            found.text.contains(", 99 % of the most;") || found.text.contains(", 100 % of"),
            "{}",
            found.text
        );
        // Between two depths: 12 in flight are full, so that 8 and 16 have nearly the same power.
        let found = climb(1000, 11_400, 3, 8);
        let knee = found.knee.unwrap();
        assert_eq!(knee.between, [8, 16], "{found:?}");
        assert!(found.text.contains("between depths 8 and 16"), "{}", found.text);
    }

    #[test]
    fn a_ladder_without_one_says_so() {
        let found = climb(1000, 1_000_000, 3, 1);
        assert_eq!(found.knee, None);
        assert!(
            found
                .text
                .ends_with("within depths 1 to 64: IOPS by latency still rise at the deepest")
        );
        let noisy = climb(1000, 45_000, 3, 60);
        assert_eq!(noisy.knee, None, "{noisy:?}");
        assert!(noisy.text.contains("no knee within depths 1 to 64"), "{}", noisy.text);
    }

    #[test]
    fn one_that_is_full_from_the_start_says_that() {
        let found = climb(1000, 1000, 3, 1);
        let knee = found.knee.unwrap();
        assert_eq!((knee.depth, knee.at_most), (1, true));
        assert!(found.text.contains("at depth 1 or below"), "{}", found.text);
    }

    #[test]
    fn one_round_has_no_interval_and_says_it() {
        let found = climb(1000, 8000, 1, 0);
        let knee = found.knee.unwrap();
        assert_eq!((knee.depth, knee.has_interval), (8, false));
        let ladder = Ladder {
            title: "x".to_owned(),
            workload: Task::new(Rw::RandRead, 4096),
            stacks: vec![found],
        };
        assert!(ladder.highlights().all(|highlight| highlight.caveats.len() == 1));
    }

    #[test]
    fn what_keeps_no_depth_climbs_no_ladder() {
        let mut results = Vec::new();
        for depth in [1, 2, 4, 8, 16] {
            let workload = Workload::new(Rw::RandRead, 4096, depth);
            results.push(sample::round(1, &workload, "psync", 10_000, 1));
        }
        let report = Report::assemble(sample::plan(), sample::environment(), &results, true);
        let merged = Merged::new(vec![Input::of(report, Path::new("x.json"))], None);
        let found = &merged.ladders[0].stacks[0];
        assert_eq!((found.points.len(), found.knee), (1, None));
        assert!(found.text.contains("kept its depth at one depth alone"), "{}", found.text);
    }
}
