//! The table for the terminal: a block for each workload, a line for each stack.

use super::accounts::{self, not_available};
use super::columns::{Block, Column, Lat, Line, columns, fit, lay_out, name_columns, wrap};
use super::input::Input;
use super::marks::{Mark, MarkKind};
use super::merged::Merged;
use super::model::{Report, Row, Side};
use crate::workload::{Workload, units::format_size};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::Path;

/// How a table is to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Columns of the terminal; `None` for as wide as it comes.
    pub width: Option<usize>,
    /// Whether escape codes may be used.
    pub colour: bool,
}

impl Look {
    /// As wide as it comes, without escape codes: for files and pipes.
    pub const PLAIN: Self = Self { width: None, colour: false };

    /// For standard output: the terminal's width and colours, [`PLAIN`](Self::PLAIN) where it is
    /// none. `NO_COLOR` and `TERM=dumb` are heeded.
    pub fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Self::PLAIN;
        }
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        Self { width: width.filter(|width| *width > 0), colour: !no_color && !dumb }
    }

    pub(super) fn bold(self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The whole report as text, ending in a newline.
pub fn render(report: &Report, look: Look) -> String {
    let mut notes = Notes::default();
    let of_workload = report.rows.chunk_by(|a, b| a.workload == b.workload);
    let blocks: Vec<Block> = of_workload.map(|rows| block(rows, &mut notes)).collect();
    let columns = fit(columns(&blocks), look.width);
    let mut text = wrap(&heading(report), look.width) + "\n";
    // That it is a virtual machine stands in the heading.
    for mark in report.marks.iter().filter(|mark| mark.kind != MarkKind::VirtualMachine) {
        text += &format!("{}\n", wrap(&mark.text, look.width));
    }
    for block in &blocks {
        text += &format!("\n{}\n{}\n", look.bold(&block.title), lay_out(block, &columns));
    }
    for line in knees(report) {
        text += &format!("\n{}\n", wrap(&line, look.width));
    }
    if let Some(legend) = legend(report, &columns) {
        text += &format!("\n{}\n", wrap(&legend, look.width));
    }
    text + &notes.render(look)
}

/// Where the knee of each ladder of depths is, a sentence a stack.
fn knees(report: &Report) -> Vec<String> {
    let depths: BTreeSet<u32> = report.rows.iter().map(|row| row.workload.iodepth).collect();
    if depths.len() < 2 {
        return Vec::new();
    }
    let merged = Merged::new(vec![Input::of(report.clone(), Path::new(""))], None);
    merged
        .ladders
        .iter()
        .flat_map(|ladder| {
            ladder.stacks.iter().map(|climb| format!("{}, {}", ladder.workload.words(), climb.text))
        })
        .collect()
}

/// Where and with what, in a line.
fn heading(report: &Report) -> String {
    let environment = &report.environment;
    let machine = &environment.machine;
    let system = match (&machine.os_name, &machine.kernel) {
        (Some(name), Some(kernel)) => format!("{name}, kernel {kernel}"),
        (Some(one), None) | (None, Some(one)) => one.clone(),
        (None, None) => machine.os.clone(),
    };
    let mut parts = vec![format!("nvpoll {}", environment.nvpoll), system];
    parts.extend(machine.cpu_model.clone());
    parts.extend(machine.processors.map(|count| counted(count, "processor")));
    parts.extend((machine.virtual_machine == Some(true)).then(|| "virtual machine".to_owned()));
    parts.extend(machine.native_nvme_asked.map(|asked| {
        let asked = if asked { "asked for" } else { "not asked for" };
        format!("native NVMe {asked} in the registry")
    }));
    parts.push(environment.date.clone());
    let partial = if report.complete { "" } else { "PARTIAL RESULT, not all was measured. " };
    format!("{partial}{}", parts.join(", "))
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What the columns mean, as far as it is not plain.
fn legend(report: &Report, columns: &[Column]) -> Option<String> {
    let rounds = report.rows.iter().map(|row| row.rounds.len()).max()?;
    let has = |names: &[&str]| columns.iter().any(|column| names.contains(&column.header));
    let mut parts = Vec::new();
    if rounds == 1 {
        parts.push("One round each: nothing says how much the next would differ.".to_owned());
    } else if has(&[name_columns::PLUS_MINUS]) {
        parts.push(format!("±: 95 % interval of the mean over {rounds} rounds."));
    }
    if has(&[name_columns::RATIO]) {
        parts.push(
            "vs first: IOPS against the first line's on the same target, round by round."
                .to_owned(),
        );
    }
    let is_noise = |row: &Row| row.ratio.as_ref()?.ratio.distinguishable.map(|sure| !sure);
    if report.rows.iter().any(|row| is_noise(row) == Some(true)) {
        parts.push("= noise: these rounds cannot tell it from the first.".to_owned());
    }
    if has(&[name_columns::CPU, name_columns::CPU_PER_IO]) {
        parts.push("CPU: the whole machine's, the kernel's own work included.".to_owned());
    }
    if has(&["µJ/IO"]) {
        parts.push("µJ/IO: the processors' energy, an idle machine's included.".to_owned());
    }
    let missing = not_available(report.rows.iter().filter_map(|row| row.accounts.as_ref()));
    if !missing.is_empty() {
        parts.push(format!("Not available here: {}.", missing.join("; ")));
    }
    parts.extend(accounts::harness(report.rows.iter()));
    parts.extend(verified(report));
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// What `--verify` came to; a row with wrong blocks has a note of its own as well.
fn verified(report: &Report) -> Option<String> {
    let mut rows = report.rows.iter().filter_map(|row| row.verified.as_ref());
    let mut all = rows.next()?.clone();
    rows.for_each(|other| all.merge(other));
    let found = match all.wrong {
        0 => "every one as it was written".to_owned(),
        wrong => format!("{wrong} of them wrong"),
    };
    let left = match all.not_read {
        0 => String::new(),
        left => format!("; {left} that were written were not read back"),
    };
    Some(format!("--verify: {} blocks checked, {found}{left}.", all.checked))
}

/// Marks, numbered in the order in which they are first met; equal ones are one.
#[derive(Default)]
pub(super) struct Notes {
    texts: Vec<String>,
}

impl Notes {
    /// The numbers of `marks`: `1,3-5`.
    pub(super) fn number(&mut self, marks: &[Mark]) -> Option<String> {
        let mut numbers = Vec::new();
        for mark in marks {
            let known = self.texts.iter().position(|text| *text == mark.text);
            let index = known.unwrap_or_else(|| {
                self.texts.push(mark.text.clone());
                self.texts.len() - 1
            });
            numbers.push(index + 1);
        }
        numbers.sort_unstable();
        let runs = numbers.chunk_by(|a, b| a + 1 == *b).filter_map(|run| match run {
            [one] => Some(one.to_string()),
            run => Some(format!("{}-{}", run.first()?, run.last()?)),
        });
        let words: Vec<String> = runs.collect();
        (!words.is_empty()).then(|| words.join(","))
    }

    /// Each on a line of its own, broken so that the numbers stand out.
    pub(super) fn render(&self, look: Look) -> String {
        if self.texts.is_empty() {
            return String::new();
        }
        let mut rendered = format!("\n{}\n", look.bold("Notes"));
        for (number, text) in (1..).zip(&self.texts) {
            let narrower = look.width.map(|width| width.saturating_sub(4));
            let text = wrap(text, narrower).replace('\n', "\n    ");
            rendered += &format!("{number:>2}  {text}\n");
        }
        rendered
    }
}

/// Rows of one workload.
fn block(rows: &[Row], notes: &mut Notes) -> Block {
    let title = rows.first().map(title).unwrap_or_default();
    let mut all = Vec::new();
    for row in rows {
        let is_to = |other: &Row| other.ratio.as_ref().is_some_and(|ratio| ratio.of == row.stack);
        let is_base = row.ratio.is_none() && rows.iter().any(is_to);
        all.push(Line {
            stack: row.stack.clone(),
            iops: row.iops,
            bw_bytes: row.bw_bytes,
            lat: row.lat_ns.as_ref().map(Lat::from),
            machine_pct: row.cpu.machine_pct,
            ns_per_io: row.cpu.ns_per_io,
            in_flight: row.in_flight_mean,
            accounts: accounts::of_row(row),
            ratio: row.ratio.as_ref().map(|ratio| ratio.ratio),
            is_base,
            is_part: false,
            on: row.target.clone(),
            notes: notes.number(&row.marks),
        });
        let sides = [("reads", &row.read), ("writes", &row.write)];
        all.extend(sides.into_iter().filter_map(|(name, side)| Some(part(name, side.as_ref()?))));
    }
    Block { title, lines: all }
}

/// The line of one direction, below its row's.
fn part(name: &str, side: &Side) -> Line {
    Line {
        stack: format!("  {name}"),
        iops: side.iops,
        bw_bytes: side.bw_bytes,
        lat: side.lat_ns.as_ref().map(Lat::from),
        is_part: true,
        ..Line::default()
    }
}

/// `randread 4k, depth 32, 4 workers`.
fn title(row: &Row) -> String {
    let workload = &row.workload;
    let plain = Workload::new(workload.rw, workload.bs_bytes, workload.iodepth)
        .split(workload.bssplit.clone());
    let mut parts = Vec::new();
    parts.extend((workload.name != plain.name).then(|| format!("{}:", workload.name)));
    let size = workload
        .bssplit
        .as_ref()
        .map_or_else(|| format_size(workload.bs_bytes.into()), |split| format!("of {split}"));
    parts.push(format!("{} {size}", workload.rw));
    let mut more = vec![format!("depth {}", workload.iodepth)];
    if workload.rw.is_mixed() {
        more.push(format!("{} % reads", workload.rwmixread));
    }
    if workload.numjobs > 1 {
        more.push(counted(workload.numjobs, "worker"));
    }
    if row.drives.len() > 1 {
        more.push(format!("{} drives", row.drives.len()));
    }
    if workload.fsync > 0 && workload.rw.writes() {
        more.push(format!("a flush every {}", counted(workload.fsync, "write")));
    }
    more.extend(workload.peculiarities());
    if workload.offset != plain.offset {
        more.push(format!("from {}", workload.offset));
    }
    more.extend(workload.size.map(|size| format!("over {size}")));
    format!("{}, {}", parts.join(" "), more.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn at(width: usize) -> Look {
        Look { width: Some(width), colour: false }
    }

    /// Holds `text` against the file that was looked at and found good. After a wanted change, set
    /// NVPOLL_BLESS, run the tests once, and look at what `git diff` shows.
    fn golden(name: &str, text: &str) {
        let path = format!("{}/src/report/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("NVPOLL_BLESS").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert!(text == expected, "{path} has\n{expected}\nand this is\n{text}");
    }

    #[test]
    fn a_comparison() {
        let report = sample::report();
        golden("comparison.txt", &render(&report, Look::PLAIN));
        golden("comparison-80.txt", &render(&report, at(80)));
    }

    #[test]
    fn a_poor_result() {
        let report = sample::poor_report();
        golden("poor.txt", &render(&report, Look::PLAIN));
        golden("poor-80.txt", &render(&report, at(80)));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for report in [sample::report(), sample::poor_report()] {
            for width in 60..200 {
                for line in render(&report, at(width)).lines() {
                    assert!(line.chars().count() <= width, "{width}: {line}");
                    assert_eq!(line, line.trim_end());
                }
            }
        }
    }

    #[test]
    fn one_stack_has_nothing_to_be_compared_with() {
        let mut report = sample::report();
        report.rows.retain(|row| row.engine == "vfio");
        let text = render(&report, Look::PLAIN);
        assert!(!text.contains("first"), "{text}");
    }

    #[test]
    fn what_is_not_available_has_no_column() {
        let mut report = sample::report();
        report.rows.iter_mut().for_each(|row| row.cpu = Default::default());
        let text = render(&report, Look::PLAIN);
        assert!(!text.contains("CPU"), "{text}");
    }

    #[test]
    fn what_was_verified_is_said() {
        let mut report = sample::report();
        let seen = |checked, wrong, not_read| {
            Some(crate::run::Verified { checked, wrong, not_read, first: Vec::new() })
        };
        report.rows[0].verified = seen(100, 0, 0);
        assert_eq!(
            verified(&report).unwrap(),
            "--verify: 100 blocks checked, every one as it was written."
        );
        report.rows[1].verified = seen(20, 3, 5);
        let text = "--verify: 120 blocks checked, 3 of them wrong; 5 that were written were not read back.";
        assert_eq!(verified(&report).unwrap(), text);
        assert!(render(&report, Look::PLAIN).contains(text));
    }

    #[test]
    fn nothing_at_all() {
        let mut report = sample::report();
        report.rows.clear();
        assert_eq!(render(&report, at(80)).lines().count(), 2, "the heading alone");
    }

    #[test]
    fn escape_codes_only_when_asked() {
        let report = sample::poor_report();
        assert!(!render(&report, at(100)).contains('\x1b'));
        let coloured = render(&report, Look { width: None, colour: true });
        assert!(coloured.contains("\x1b[1mrandread 4k, depth 1\x1b[0m"));
    }

    #[test]
    fn titles_say_what_differs_from_the_plain() {
        let mut row = sample::report().rows.remove(0);
        assert_eq!(title(&row), "randread 4k, depth 32");
        row.workload.name = "boot storm".to_owned();
        row.workload.rw = crate::workload::Rw::RandRw;
        row.workload.fsync = 8;
        row.workload.numjobs = 4;
        row.workload.offset = "50%".parse().unwrap();
        row.workload.size = Some("1g".parse().unwrap());
        row.drives.push(row.drives[0].clone());
        assert_eq!(
            title(&row),
            "boot storm: randrw 4k, depth 32, 50 % reads, 4 workers, 2 drives, \
             a flush every 8 writes, from 50%, over 1g"
        );
    }

    #[test]
    fn notes_are_numbered_in_runs() {
        let mark = |text: &str| Mark::new(crate::report::MarkKind::Errors, text);
        let mut notes = Notes::default();
        assert_eq!(notes.number(&[]), None);
        assert_eq!(notes.number(&["a", "b", "c"].map(mark)), Some("1-3".to_owned()));
        assert_eq!(notes.number(&["e", "a", "b"].map(mark)), Some("1-2,4".to_owned()));
        assert_eq!(notes.number(&["b"].map(mark)), Some("2".to_owned()));
    }
}
