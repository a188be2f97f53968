//! From files to one report: which rows belong together, under which names, and what they say.

use super::highlights;
use super::input::{Input, InputRow};
use super::knee::{self, Ladder};
use super::marks::{Mark, MarkKind};
use super::merged::{Block, Figures, Merged, REPORT_SCHEMA, ReferenceDepth, Source, SourceKind};
use super::pairs;
use crate::measure::{LITTLES_TOLERANCE, LittlesLaw, median};
use std::collections::BTreeMap;
use std::path::Path;

impl Merged {
    /// One report of all inputs, in their order. Rows that count no I/Os in flight are held against
    /// `reference_depth`, or, without one, against the depth that most rows of their file agree on.
    pub fn new(inputs: Vec<Input>, reference_depth: Option<f64>) -> Self {
        let labels = labels(&inputs);
        let mut sources = Vec::new();
        let mut blocks: Vec<Block> = Vec::new();
        for (index, (input, label)) in inputs.into_iter().zip(labels).enumerate() {
            let Input { mut source, mut rows, .. } = input;
            source.label = label;
            source.marks.extend(no_rounds(&rows));
            source.reference_depth =
                hold_against_reference(&mut rows, source.kind, reference_depth);
            for row in rows {
                let mut figures = row.figures;
                figures.source = index;
                figures.in_flight.by_law = figures.by_law();
                match blocks.iter_mut().find(|block| block.workload == row.task) {
                    Some(block) => block.rows.push(figures),
                    None => blocks.push(Block {
                        title: row.task.title(),
                        workload: row.task,
                        rows: vec![figures],
                        pairs: Vec::new(),
                    }),
                }
            }
            sources.push(source);
        }
        let renames = renames(&blocks, &sources);
        for block in &mut blocks {
            name_apart(&mut block.rows, &renames);
            block.pairs = pairs::pairs(&block.rows, &sources);
            mark_apart(block);
        }
        let ladders = knee::ladders(&blocks);
        // Of many workloads each, so that they stand before what is of one.
        let mut highlights: Vec<_> = ladders.iter().flat_map(Ladder::highlights).collect();
        highlights.extend(highlights::highlights(&blocks, &sources));
        Self {
            schema: REPORT_SCHEMA,
            nvpoll: env!("CARGO_PKG_VERSION"),
            sources,
            highlights,
            blocks,
            ladders,
        }
    }

    /// The file that a row is from.
    pub fn source(&self, row: &Figures) -> Option<&Source> {
        self.sources.get(row.source)
    }
}

/// Marks what is held against nothing before it: a ratio between drives would be one of drives as much as
/// of stacks.
fn mark_apart(block: &mut Block) {
    let apart: Vec<String> = block
        .rows
        .iter()
        .skip(1)
        .filter(|row| block.to_first(&row.stack).is_none())
        .map(|row| row.stack.clone())
        .collect();
    let on = |row: &Figures| {
        row.target.clone().unwrap_or_else(|| "drives that its file does not name".to_owned())
    };
    let Some(first) = block.rows.first().map(|first| format!("{} on {}", first.stack, on(first)))
    else {
        return;
    };
    for row in block.rows.iter_mut().filter(|row| apart.contains(&row.stack)) {
        let text = format!(
            "ran on {}, and {first}: not known to be the same drives, so the two are not compared",
            on(row)
        );
        row.marks.push(Mark::new(MarkKind::DifferentTargets, text));
    }
}

/// What is to be said of a file that repeats nothing.
fn no_rounds(rows: &[InputRow]) -> Option<Mark> {
    let text = "one figure each, no repeats: nothing says how much the next run would differ, so no figure \
                has an interval";
    let single = rows.iter().all(|row| row.figures.rounds.len() < 2);
    single.then(|| Mark::new(MarkKind::NoRounds, text))
}

/// What tells the files apart: the machine where no two have the same, else more of it, at last the file's
/// name.
fn labels(inputs: &[Input]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let own = candidates(input);
        let differs = |number: &usize| {
            let mine = own.get(*number);
            let others = inputs.iter().enumerate().filter(|(other, _)| *other != index);
            mine.is_some_and(|mine| {
                others.clone().all(|(_, other)| candidates(other).get(*number) != Some(mine))
                    && mine.is_some()
            })
        };
        let label = (0..own.len()).find(differs).and_then(|number| own.get(number)?.clone());
        labels.push(
            label.unwrap_or_else(|| format!("{}, file {}", stem(&input.source.file), index + 1)),
        );
    }
    labels
}

/// Names that a file could go by, the shortest first; the last is its file name.
fn candidates(input: &Input) -> [Option<String>; 5] {
    let machine = input.source.environment.as_ref().map(|environment| &environment.machine);
    let product = machine.and_then(|machine| machine.product.clone());
    let cpu = machine.and_then(|machine| machine.cpu_model.clone());
    let system = machine.and_then(|machine| machine.os_name.clone());
    let kernel = machine.and_then(|machine| Some(format!("kernel {}", machine.kernel.as_ref()?)));
    [product, cpu, system, kernel, Some(stem(&input.source.file))]
}

fn stem(file: &str) -> String {
    let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    stem.unwrap_or_else(|| file.to_owned())
}

/// Names of stacks as (file, name in it), and what they are called in the report.
type Renames = BTreeMap<(usize, String), String>;

/// A stack that two files have bears its file's label, in every block: a column keeps its name.
fn renames(blocks: &[Block], sources: &[Source]) -> Renames {
    let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for row in blocks.iter().flat_map(|block| &block.rows) {
        let of = files.entry(&row.stack_in_file).or_default();
        if !of.contains(&row.source) {
            of.push(row.source);
        }
    }
    let shared = files.into_iter().filter(|(_, of)| of.len() > 1);
    shared
        .flat_map(|(stack, of)| of.into_iter().map(move |source| (source, stack)))
        .filter_map(|(source, stack)| {
            let label = &sources.get(source)?.label;
            Some(((source, stack.to_owned()), format!("{stack} ({label})")))
        })
        .collect()
}

/// Gives every row of a block a name of its own.
fn name_apart(rows: &mut [Figures], renames: &Renames) {
    for row in rows.iter_mut() {
        if let Some(name) = renames.get(&(row.source, row.stack_in_file.clone())) {
            row.stack.clone_from(name);
        }
    }
    let telling: [fn(&Figures) -> Option<String>; 2] = [
        |row| row.facts.get("jobname").map(|job| format!("job {job}")),
        |row| row.target.as_ref().map(|target| format!("on {target}")),
    ];
    for tell in telling {
        let doubled = doubled(rows);
        for row in rows.iter_mut().filter(|row| doubled.contains(&row.stack)) {
            if let Some(more) = tell(row) {
                row.stack = format!("{}, {more}", row.stack);
            }
        }
    }
    // Nothing tells them apart: numbered, since no row may be lost behind another.
    for name in doubled(rows) {
        let same = rows.iter_mut().filter(|row| row.stack == name);
        for (number, row) in (1..).zip(same) {
            row.stack = format!("{name} #{number}");
        }
    }
}

fn doubled(rows: &[Figures]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.stack).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name.to_owned()).collect()
}

/// Marks the rows of a published table whose IOPS and latency contradict its depth.
fn hold_against_reference(
    rows: &mut [InputRow],
    kind: SourceKind,
    given: Option<f64>,
) -> Option<ReferenceDepth> {
    if kind != SourceKind::Published {
        return None;
    }
    for row in rows.iter_mut() {
        row.figures.marks.extend(counted_law(&row.figures));
    }
    let uncounted = |row: &&InputRow| row.figures.in_flight.counted.is_none();
    let laws: Vec<f64> =
        rows.iter().filter(uncounted).filter_map(|row| row.figures.by_law()).collect();
    let reference = match given {
        Some(depth) => reference(&laws, depth, true),
        None => agreed(&laws)?,
    };
    if laws.is_empty() {
        return None;
    }
    for row in rows.iter_mut().filter(|row| row.figures.in_flight.counted.is_none()) {
        row.figures.marks.extend(refuted(&row.figures, &reference));
    }
    Some(reference)
}

fn agrees(law: f64, depth: f64) -> bool {
    (law / depth - 1.0).abs() <= LITTLES_TOLERANCE
}

fn reference(laws: &[f64], depth: f64, given: bool) -> ReferenceDepth {
    let agreeing = laws.iter().filter(|law| agrees(**law, depth)).count();
    ReferenceDepth { depth, given, agreeing, of: laws.len() }
}

/// The depth around which most rows lie: the median of those that agree. More than half must, and two
/// at least: of less no depth can be told.
fn agreed(laws: &[f64]) -> Option<ReferenceDepth> {
    let near = |centre: &f64| laws.iter().filter(|law| agrees(**law, *centre)).count();
    let centre = laws.iter().copied().max_by_key(near)?;
    let together: Vec<f64> = laws.iter().copied().filter(|law| agrees(*law, centre)).collect();
    let depth = median(&together)?;
    let found = reference(laws, depth, false);
    (found.agreeing > 1 && found.agreeing * 2 > laws.len()).then_some(found)
}

fn refuted(figures: &Figures, reference: &ReferenceDepth) -> Option<Mark> {
    let law =
        LittlesLaw::check(figures.iops?.mean, figures.lat_ns.as_ref()?.mean, reference.depth)?;
    let what = match reference.given {
        true => format!("the depth was {:.0}", reference.depth),
        false => format!(
            "{} of {} rows of this table have {:.0}",
            reference.agreeing, reference.of, reference.depth
        ),
    };
    let text = format!(
        "IOPS x mean latency gives {:.0} I/Os in flight, but {what} ({:+.0} %): the depth was not kept, or \
         the latency is wrong",
        law.expected,
        law.deviation() * 100.0
    );
    (!law.holds()).then(|| Mark::new(MarkKind::LittlesLaw, text))
}

/// A table that has the I/Os in flight is held against those.
fn counted_law(figures: &Figures) -> Option<Mark> {
    let counted = figures.in_flight.counted?;
    let law = LittlesLaw::check(figures.iops?.mean, figures.lat_ns.as_ref()?.mean, counted)?;
    let text = format!(
        "IOPS x mean latency gives {:.1} I/Os in flight, but the table has {counted:.1} ({:+.0} %): the \
         latency or the depth is not what it says",
        law.expected,
        law.deviation() * 100.0
    );
    (!law.holds()).then(|| Mark::new(MarkKind::LittlesLaw, text))
}
