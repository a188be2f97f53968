//! What the figures say, in words, each sentence computed from rows and naming what speaks against it.
//!
//! Stacks are compared only where they ran on the same drives and the same workload. A lead is a higher
//! mean of IOPS; where the rounds cannot tell the first two apart nobody leads.

use super::marks::MarkKind;
use super::merged::{Block, Direction, Figures, Pair, Source};
use super::pairs::{ALL_PAIRS_ROWS_MAX, comparable, pair};
use serde::Serialize;
use std::collections::BTreeSet;

/// One sentence, and the figures in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Highlight {
    /// For programs.
    pub kind: HighlightKind,
    /// For people.
    pub text: String,
    /// Whom it is about.
    pub stack: String,
    /// With whom it is compared, a stack or a system, and by how much; empty for all others.
    pub against: Vec<Against>,
    /// Workloads of which it holds, by title.
    pub workloads: Vec<String>,
    /// How many workloads it could have held of.
    pub out_of: usize,
    /// What speaks against it; empty where nothing does.
    pub caveats: Vec<String>,
}

/// Whom a sentence compares with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// A stack or a system.
    pub of: String,
    /// Percent more IOPS for a lead, points for processor use (negative: less).
    pub value: Option<f64>,
}

impl Against {
    fn new(of: &str, value: Option<f64>) -> Self {
        Self { of: of.to_owned(), value }
    }
}

/// Kinds of highlights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HighlightKind {
    /// A system does more IOPS than another in so many workloads, each by its best stack.
    SystemLeads,
    /// A stack does more IOPS than all others in so many workloads.
    StackLeads,
    /// By how much, in one workload.
    Lead,
    /// A stack has the lowest CPU of all in so many workloads.
    LowestCpu,
    /// Points of CPU between the leader of a workload and another.
    CpuPoints,
    /// The rounds cannot tell the first two apart.
    NotDistinguishable,
    /// From which depth on a stack gains little IOPS for much latency.
    Knee,
}

/// More systems than this are not held against each other: nobody reads that many sentences.
const FAMILIES_MAX: usize = 12;

/// Stacks that a sentence on CPU names at most.
const NAMED_MAX: usize = 8;

/// Rows of one workload that ran on the same drives, two at least with IOPS.
struct Contest<'a> {
    block: &'a Block,
    rows: Vec<&'a Figures>,
}

impl<'a> Contest<'a> {
    fn iops(row: &Figures) -> f64 {
        row.iops.map_or(0.0, |iops| iops.mean)
    }

    /// The most IOPS; where they are equal (published figures are rounded) the most bytes, then the first.
    fn best(&self, of: impl Fn(&Figures) -> bool) -> Option<&'a Figures> {
        let bytes = |row: &Figures| row.bw_bytes.map_or(0.0, |bytes| bytes.mean);
        let rows = self.rows.iter().rev().copied().filter(|row| of(row));
        rows.max_by(|a, b| {
            Self::iops(a).total_cmp(&Self::iops(b)).then(bytes(a).total_cmp(&bytes(b)))
        })
    }

    /// Who is ahead of all others, the best of those, and by how much; nobody where the rounds do not tell.
    fn leader(&self) -> Option<(&'a Figures, &'a Figures, Pair)> {
        let first = self.best(|_| true)?;
        let second = self.best(|row| row.stack != first.stack)?;
        Some((first, second, pair(first, second)))
    }
}

/// Whether a pair's order means anything.
fn is_sure(pair: &Pair) -> bool {
    pair.iops.is_some_and(|iops| iops.mean > 1.0 && iops.distinguishable != Some(false))
}

/// Percent by which the first of a pair is ahead.
fn percent(pair: &Pair) -> f64 {
    pair.iops.map_or(0.0, |iops| (iops.mean - 1.0) * 100.0)
}

/// All highlights, the broadest first.
pub(super) fn highlights(blocks: &[Block], sources: &[Source]) -> Vec<Highlight> {
    let contests: Vec<Contest<'_>> =
        blocks.iter().flat_map(|block| contests(block, sources)).collect();
    let mut found = Vec::new();
    for side in Direction::ALL {
        let of_side: Vec<&Contest<'_>> =
            contests.iter().filter(|contest| contest.block.workload.side() == side).collect();
        found.extend(system_leads(&of_side, side));
        found.extend(stack_leads(&of_side, side));
        found.extend(lowest_cpu(&of_side, side));
    }
    for contest in &contests {
        found.extend(lead(contest));
        found.extend(cpu_points(contest));
    }
    found
}

/// Rows of a block in groups that ran on the same drives.
fn contests<'a>(block: &'a Block, sources: &[Source]) -> Vec<Contest<'a>> {
    let mut groups: Vec<Vec<&'a Figures>> = Vec::new();
    // Of so many, sentences say nothing that the table does not.
    if block.rows.len() > ALL_PAIRS_ROWS_MAX {
        return Vec::new();
    }
    for row in block.rows.iter().filter(|row| Contest::iops(row) > 0.0) {
        let fits = |group: &&mut Vec<&Figures>| {
            group.first().is_some_and(|first| comparable(row, first, sources))
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.into_iter().filter(|rows| rows.len() > 1).map(|rows| Contest { block, rows }).collect()
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// `a, b and c`.
fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

fn n_of(count: usize, out_of: usize, side: Direction) -> String {
    let workloads = if out_of == 1 { "workload" } else { "workloads" };
    if count == out_of && out_of > 1 {
        return format!("all {out_of} {} {workloads}", side.adjective());
    }
    format!("{count} of {out_of} {} {workloads}", side.adjective())
}

/// What a conclusion over these rows has to say of them.
fn caveats<'a>(rows: impl Iterator<Item = (&'a Block, &'a Figures)>) -> Vec<String> {
    let mut refuted: Vec<String> = Vec::new();
    let mut other: Vec<String> = Vec::new();
    for (block, row) in rows {
        let at = format!("{} at {}", row.stack, block.title);
        let has = |kind: &MarkKind| row.marks.iter().any(|mark| mark.kind == *kind);
        if has(&MarkKind::LittlesLaw) && !refuted.contains(&at) {
            refuted.push(at.clone());
        }
        let serious = [
            (MarkKind::Incomplete, "not measured to the end"),
            (MarkKind::Errors, "with failed operations"),
            (MarkKind::DepthNotKept, "below the asked depth"),
            (MarkKind::BandwidthMismatch, "with a bandwidth that its IOPS contradict"),
            (MarkKind::Concurrent, "with other jobs running"),
        ];
        for (_, words) in serious.iter().filter(|(kind, _)| has(kind)) {
            let text = format!("{at} is {words}");
            if !other.contains(&text) {
                other.push(text);
            }
        }
    }
    let mut caveats = Vec::new();
    if !refuted.is_empty() {
        let verb = if refuted.len() == 1 { "is a row" } else { "are rows" };
        let depth =
            "whose depth or latency Little's law refutes, so it may compare different depths";
        caveats.push(format!("{} {verb} {depth}", list(&refuted)));
    }
    caveats.extend(other);
    caveats
}

/// One system against each other one, by the best stack of each.
fn system_leads(contests: &[&Contest<'_>], side: Direction) -> Vec<Highlight> {
    let families =
        distinct(contests.iter().flat_map(|contest| contest.rows.iter().map(|row| row.family())));
    if families.len() > FAMILIES_MAX {
        return Vec::new();
    }
    let stacks: Vec<usize> = families.iter().map(|family| stacks_of(contests, family)).collect();
    let is_single = |index: usize| stacks.get(index).is_some_and(|count| *count < 2);
    let mut found = Vec::new();
    for (index, ours) in families.iter().enumerate() {
        for (other, theirs) in families.iter().enumerate().skip(index + 1) {
            let both: Vec<_> = contests
                .iter()
                .filter_map(|contest| {
                    let ours = contest.best(|row| row.family() == *ours)?;
                    let theirs = contest.best(|row| row.family() == *theirs)?;
                    Some((contest.block, ours, theirs))
                })
                .collect();
            // Where each has one stack, its own sentence says it.
            if both.is_empty() || (is_single(index) && is_single(other)) {
                continue;
            }
            found.extend(system_lead(&both, ours, theirs, side));
        }
    }
    found
}

/// Stacks that a system has in these workloads.
fn stacks_of(contests: &[&Contest<'_>], family: &str) -> usize {
    let rows = contests.iter().flat_map(|contest| &contest.rows);
    let own = rows.filter(|row| row.family() == family).map(|row| row.stack.as_str());
    own.collect::<BTreeSet<_>>().len()
}

type Bests<'a> = (&'a Block, &'a Figures, &'a Figures);

fn system_lead(both: &[Bests<'_>], ours: &str, theirs: &str, side: Direction) -> Option<Highlight> {
    let ahead = |turned: bool| -> Vec<&Bests<'_>> {
        let is_ahead = |(_, ours, theirs): &&Bests<'_>| {
            let pair = if turned { pair(theirs, ours) } else { pair(ours, theirs) };
            is_sure(&pair)
        };
        both.iter().filter(is_ahead).collect()
    };
    let (first, second) = (ahead(false), ahead(true));
    let (leads, leader, other) =
        if second.len() > first.len() { (second, theirs, ours) } else { (first, ours, theirs) };
    if leads.is_empty() {
        return None;
    }
    let titles: Vec<String> = leads.iter().map(|(block, _, _)| block.workload.words()).collect();
    let text = format!(
        "{leader} leads {other} in {}, each by its best stack: {}",
        n_of(leads.len(), both.len(), side),
        list(&titles)
    );
    Some(Highlight {
        kind: HighlightKind::SystemLeads,
        text,
        stack: leader.to_owned(),
        against: vec![Against::new(other, None)],
        workloads: leads.iter().map(|(block, _, _)| block.title.clone()).collect(),
        out_of: both.len(),
        caveats: caveats(
            both.iter().flat_map(|(block, ours, theirs)| [(*block, *ours), (*block, *theirs)]),
        ),
    })
}

/// Each stack that is ahead of all others somewhere.
fn stack_leads(contests: &[&Contest<'_>], side: Direction) -> Vec<Highlight> {
    let leaders: Vec<_> = contests
        .iter()
        .filter_map(|contest| {
            let (first, second, pair) = contest.leader()?;
            is_sure(&pair).then_some((contest.block, first, second))
        })
        .collect();
    let names = distinct(leaders.iter().map(|(_, first, _)| first.stack.as_str()));
    let mut found: Vec<Highlight> = names
        .into_iter()
        .map(|stack| {
            let own: Vec<_> = leaders.iter().filter(|(_, first, _)| first.stack == stack).collect();
            let titles: Vec<String> =
                own.iter().map(|(block, _, _)| block.workload.words()).collect();
            let text = format!(
                "{stack} leads all others in {}: {}",
                n_of(own.len(), contests.len(), side),
                list(&titles)
            );
            Highlight {
                kind: HighlightKind::StackLeads,
                text,
                stack: stack.to_owned(),
                against: Vec::new(),
                workloads: own.iter().map(|(block, _, _)| block.title.clone()).collect(),
                out_of: contests.len(),
                caveats: caveats(
                    own.iter()
                        .flat_map(|(block, first, second)| [(*block, *first), (*block, *second)]),
                ),
            }
        })
        .collect();
    found.sort_by_key(|highlight| std::cmp::Reverse(highlight.workloads.len()));
    found
}

fn cpu(row: &Figures) -> Option<f64> {
    row.cpu.machine_pct.map(|pct| pct.mean)
}

/// Each stack with the lowest CPU of all somewhere.
fn lowest_cpu(contests: &[&Contest<'_>], side: Direction) -> Vec<Highlight> {
    let lowest: Vec<_> = contests
        .iter()
        .filter_map(|contest| {
            let mut rows: Vec<(&Figures, f64)> =
                contest.rows.iter().map(|row| Some((*row, cpu(row)?))).collect::<Option<_>>()?;
            rows.sort_by(|(_, a), (_, b)| a.total_cmp(b));
            let [(first, least), (second, next), ..] = rows.as_slice() else { return None };
            let points = pair(first, second).cpu_points?;
            let untold = points.ci95.is_some_and(|[low, high]| low <= 0.0 && high >= 0.0);
            (least < next && !untold).then_some((contest.block, *first))
        })
        .collect();
    let names = distinct(lowest.iter().map(|(_, row)| row.stack.as_str()));
    let with_cpu =
        contests.iter().filter(|contest| contest.rows.iter().all(|row| cpu(row).is_some())).count();
    names
        .into_iter()
        .map(|stack| {
            let own: Vec<_> = lowest.iter().filter(|(_, row)| row.stack == stack).collect();
            let text =
                format!("{stack} has the lowest CPU of all in {}", n_of(own.len(), with_cpu, side));
            Highlight {
                kind: HighlightKind::LowestCpu,
                text,
                stack: stack.to_owned(),
                against: Vec::new(),
                workloads: own.iter().map(|(block, _)| block.title.clone()).collect(),
                out_of: with_cpu,
                caveats: caveats(own.iter().map(|(block, row)| (*block, *row))),
            }
        })
        .collect()
}

/// Who leads a workload, against the best of another system where there is one, and by how much.
fn lead(contest: &Contest<'_>) -> Option<Highlight> {
    let (first, second, _) = contest.leader()?;
    let rival = contest.best(|row| row.family() != first.family()).unwrap_or(second);
    let between = pair(first, rival);
    let title = contest.block.workload.words();
    let (ours, theirs, more) = (&first.stack, &rival.stack, percent(&between));
    let (kind, text) = match is_sure(&between) {
        true => {
            let text = format!(
                "{title}: {ours} does {more:.1} % more IOPS than {theirs}{}",
                interval(&between)
            );
            (HighlightKind::Lead, text)
        }
        false => {
            let text = format!(
                "{title}: {ours} and {theirs} are not distinguishable by IOPS{}",
                interval(&between)
            );
            (HighlightKind::NotDistinguishable, text)
        }
    };
    Some(of_contest(contest, kind, text, first, vec![(rival, Some(more))]))
}

fn of_contest(
    contest: &Contest<'_>,
    kind: HighlightKind,
    text: String,
    stack: &Figures,
    against: Vec<(&Figures, Option<f64>)>,
) -> Highlight {
    let rows = std::iter::once(stack).chain(against.iter().map(|(row, _)| *row));
    Highlight {
        kind,
        text,
        stack: stack.stack.clone(),
        workloads: vec![contest.block.title.clone()],
        out_of: 1,
        caveats: caveats(rows.map(|row| (contest.block, row))),
        against: against.iter().map(|(row, value)| Against::new(&row.stack, *value)).collect(),
    }
}

/// The stack with the lowest CPU of a workload against each of the other systems, or against all others.
fn cpu_points(contest: &Contest<'_>) -> Option<Highlight> {
    let with_cpu = contest.rows.iter().filter_map(|row| Some((*row, cpu(row)?)));
    let (first, least) = with_cpu.clone().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let others = || with_cpu.clone().filter(|(row, _)| row.stack != first.stack);
    let elsewhere: Vec<_> = others().filter(|(row, _)| row.family() != first.family()).collect();
    let others = if elsewhere.is_empty() { others().collect() } else { elsewhere };
    let against: Vec<(&Figures, Option<f64>)> = others
        .into_iter()
        .filter_map(|(row, _)| Some((row, pair(first, row).cpu_points?)))
        .filter(|(_, points)| points.ci95.is_none_or(|[_, high]| high < 0.0))
        .map(|(row, points)| (row, Some(points.mean)))
        .take(NAMED_MAX)
        .collect();
    let words: Vec<String> = against
        .iter()
        .map(|(row, points)| {
            let theirs = cpu(row).unwrap_or_default();
            let less = points.unwrap_or_default().abs();
            format!("{less:.2} points less than {} ({theirs:.2} %)", row.stack)
        })
        .collect();
    let text = format!(
        "{}: of the machine's CPU {} uses {least:.2} %, {}",
        contest.block.workload.words(),
        first.stack,
        list(&words)
    );
    (!against.is_empty())
        .then(|| of_contest(contest, HighlightKind::CpuPoints, text, first, against))
}

fn interval(pair: &Pair) -> String {
    let ends = pair.iops.and_then(|iops| iops.ci95);
    ends.map_or_else(String::new, |[low, high]| {
        format!(" (95 % interval {:+.1} to {:+.1} %)", (low - 1.0) * 100.0, (high - 1.0) * 100.0)
    })
}
