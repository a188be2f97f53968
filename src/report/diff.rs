//! Two results held against each other: what differs in their surroundings, and in their figures.

use super::figures::{part, rate};
use super::input::Input;
use super::merged::{Block, Figures, Merged, Method, Pair};
use super::pairs::pair;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// How deep into a file it looks; deeper values are compared whole.
const DEPTH_MAX: usize = 32;

/// What differs between two files.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// Both files, as they were named.
    pub files: [String; 2],
    /// Values that differ, by their path in the files.
    pub environment: Vec<Difference>,
    /// Rows of the same workload and stack.
    pub figures: Vec<RowDifference>,
    /// Rows that one of them has alone: workload and stack.
    pub only: [Vec<String>; 2],
}

/// One value that differs; `null` where a file has none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// `machine.kernel`.
    pub what: String,
    /// The first file's.
    pub a: Value,
    /// The second file's.
    pub b: Value,
}

/// The second file's figures against the first's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowDifference {
    /// The workload's title.
    pub workload: String,
    /// The stack, as both files have it.
    pub stack: String,
    /// IOPS of both.
    pub iops: [Option<f64>; 2],
    /// The comparison.
    pub pair: Pair,
}

impl Diff {
    /// Holds `b` against `a`.
    pub fn new(a: Input, b: Input) -> Self {
        let files = [a.source.file.clone(), b.source.file.clone()];
        let environment = differences(&surroundings(&a), &surroundings(&b));
        let blocks = Merged::new(vec![a, b], None).blocks;
        let figures = blocks.iter().flat_map(rows).collect();
        let only = [0, 1].map(|source| alone(&blocks, source));
        Self { files, environment, figures, only }
    }

    /// For people, ending in a newline.
    pub fn to_text(&self) -> String {
        let [a, b] = &self.files;
        let mut text = format!("A  {a}\nB  {b}\n\nEnvironment\n");
        for difference in &self.environment {
            text += &format!(
                "  {}\n    A  {}\n    B  {}\n",
                difference.what,
                plain(&difference.a),
                plain(&difference.b)
            );
        }
        if self.environment.is_empty() {
            text += "  nothing differs\n";
        }
        text += "\nFigures, B against A\n";
        for row in &self.figures {
            let [a, b] = row.iops.map(|iops| iops.map_or_else(|| "-".to_owned(), rate));
            text += &format!(
                "  {}, {}: {a} -> {b} IOPS, {}\n",
                row.workload,
                row.stack,
                verdict(&row.pair)
            );
        }
        if self.figures.is_empty() {
            text += "  no workload and stack is in both\n";
        }
        for (name, only) in ["A", "B"].into_iter().zip(&self.only) {
            if !only.is_empty() {
                text += &format!("\nOnly in {name}\n");
                only.iter().for_each(|row| text += &format!("  {row}\n"));
            }
        }
        text
    }

    /// For programs.
    ///
    /// # Errors
    /// When it cannot be put into JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

fn verdict(pair: &Pair) -> String {
    let Some(iops) = pair.iops else { return "no ratio".to_owned() };
    match (iops.ci95, iops.distinguishable) {
        (Some([low, high]), Some(false)) => {
            format!("not distinguishable ({} to {})", part(low), part(high))
        }
        (Some([low, high]), _) => {
            format!("x {} ({} to {})", part(iops.mean), part(low), part(high))
        }
        (None, _) => format!("x {}, no interval (needs two rounds of each)", part(iops.mean)),
    }
}

/// All that a file says beside its figures.
fn surroundings(input: &Input) -> Value {
    let Some(report) = &input.report else {
        return serde_json::json!({ "facts": input.source.facts });
    };
    let mut stacks = serde_json::Map::new();
    for row in &report.rows {
        let value = serde_json::json!({ "facts": row.facts, "drives": row.drives });
        stacks.insert(row.stack.clone(), value);
    }
    let mut value = serde_json::json!({ "plan": report.plan, "stacks": stacks });
    let environment = serde_json::to_value(&report.environment).ok();
    if let (Some(all), Some(Value::Object(environment))) = (value.as_object_mut(), environment) {
        all.extend(environment);
    }
    value
}

fn differences(a: &Value, b: &Value) -> Vec<Difference> {
    let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
    flatten(a, String::new(), 0, &mut left);
    flatten(b, String::new(), 0, &mut right);
    let paths: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let of =
        |side: &BTreeMap<String, Value>, path: &String| side.get(path).cloned().unwrap_or_default();
    let all = paths.into_iter().map(|path| Difference {
        what: path.clone(),
        a: of(&left, path),
        b: of(&right, path),
    });
    all.filter(|difference| difference.a != difference.b).collect()
}

/// Every value by its path. What a clock measured of itself differs always and says nothing.
fn flatten(value: &Value, path: String, depth: usize, into: &mut BTreeMap<String, Value>) {
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if depth < DEPTH_MAX => {
            for (name, value) in fields {
                flatten(value, below(name), depth + 1, into);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object()) && depth < DEPTH_MAX => {
            for (index, value) in items.iter().enumerate() {
                flatten(value, below(&index.to_string()), depth + 1, into);
            }
        }
        value if ["clock.ns_per_tick", "clock.read_cost_ns", "date"].contains(&path.as_str()) => {
            let _ = value;
        }
        value => {
            into.insert(path, value.clone());
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        value => value.to_string(),
    }
}

/// Rows that both files have, the second's against the first's, whatever drives they ran on: those are
/// among the surroundings.
fn rows(block: &Block) -> Vec<RowDifference> {
    let of = |source: usize| block.rows.iter().filter(move |row| row.source == source);
    let both = of(1).filter_map(|b| {
        let a = of(0).find(|a| a.stack_in_file == b.stack_in_file)?;
        let mut pair = pair(b, a);
        // One file under two names is still two runs.
        debug_assert!(pair.method != Method::Paired);
        pair.text = verdict(&pair);
        let iops = [a, b].map(|row| row.iops.map(|iops| iops.mean));
        Some(RowDifference {
            workload: block.title.clone(),
            stack: b.stack_in_file.clone(),
            iops,
            pair,
        })
    });
    both.collect()
}

fn alone(blocks: &[Block], source: usize) -> Vec<String> {
    let mut found = Vec::new();
    for block in blocks {
        let has = |row: &Figures| {
            block
                .rows
                .iter()
                .any(|other| other.source != source && other.stack_in_file == row.stack_in_file)
        };
        let own = block.rows.iter().filter(|row| row.source == source && !has(row));
        found.extend(own.map(|row| format!("{}, {}", block.title, row.stack_in_file)));
    }
    found
}
