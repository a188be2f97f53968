//! Where and with what: a column a file, a line a fact.

use crate::report::environment::Environment;
use crate::report::merged::{Merged, Source};
use crate::workload::units::format_size;
use maud::{Markup, html};
use std::collections::BTreeMap;

/// One fact of a file.
type Fact = fn(&Environment) -> Option<String>;

const FACTS: [(&str, Fact); 18] = [
    ("System", |of| of.machine.os_name.clone().or_else(|| Some(of.machine.os.clone()))),
    ("Kernel", |of| of.machine.kernel.clone()),
    ("Kernel parameters", |of| {
        of.machine.kernel_parameters.clone().filter(|words| !words.is_empty())
    }),
    ("Machine", |of| of.machine.product.clone()),
    ("Processor", |of| of.machine.cpu_model.clone()),
    ("Processors online", |of| Some(of.machine.processors?.to_string())),
    ("Two threads a core", |of| Some(yes_no(of.machine.smt?))),
    ("NUMA nodes", |of| Some(of.machine.numa_nodes?.to_string())),
    ("Memory", |of| Some(format_size(of.machine.memory_bytes?))),
    ("Frequency governor", |of| of.machine.governor.clone()),
    ("Virtual machine", |of| Some(yes_no(of.machine.virtual_machine?))),
    ("IOMMU groups", |of| Some(of.machine.iommu_groups?.to_string())),
    ("NVMe poll queues", |of| of.machine.nvme_poll_queues.clone()),
    ("Native NVMe asked for", |of| Some(yes_no(of.machine.native_nvme_asked?))),
    ("Clock", |of| {
        Some(if of.clock.counter { "processor's counter" } else { "system's clock" }.to_owned())
    }),
    ("Measured at", |of| Some(of.date.clone())),
    ("nvpoll", |of| Some(of.nvpoll.clone())),
    ("Command", |of| Some(of.command_line.join(" "))),
];

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

/// The section.
pub(super) fn section(merged: &Merged) -> Markup {
    html! {
        section aria-labelledby="environment" {
            h2 #environment { "Environment" }
            div.scroll tabindex="0" role="region" aria-labelledby="environment" {
                table.environment {
                    thead { tr {
                        td {}
                        @for source in &merged.sources { th scope="col" { (source.label) } }
                    } }
                    tbody {
                        (line("File", merged, |source| Some(source.file.clone())))
                        (line("Kind", merged, |source| Some(source.kind.words().to_owned())))
                        @for (name, fact) in FACTS {
                            (line(name, merged, |source| source.environment.as_ref().and_then(fact)))
                        }
                        (line("Drives", merged, |source| drives(merged, source)))
                        (line("Other facts", merged, |source| facts(&source.facts)))
                    }
                }
            }
            @for (index, source) in merged.sources.iter().enumerate() { (details(merged, index, source)) }
        }
    }
}

fn line(name: &str, merged: &Merged, fact: impl Fn(&Source) -> Option<String>) -> Markup {
    let cells: Vec<Option<String>> = merged.sources.iter().map(fact).collect();
    html! {
        @if cells.iter().any(Option::is_some) {
            tr {
                th scope="row" { (name) }
                @for cell in &cells { td { (cell.as_deref().unwrap_or("not stated")) } }
            }
        }
    }
}

fn facts(facts: &BTreeMap<String, String>) -> Option<String> {
    let words: Vec<String> = facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Every drive of a file's rows once.
fn drives(merged: &Merged, source: &Source) -> Option<String> {
    let index = merged.sources.iter().position(|other| std::ptr::eq(other, source))?;
    let rows = merged.blocks.iter().flat_map(|block| &block.rows).filter(|row| row.source == index);
    let mut found: Vec<String> = Vec::new();
    for drive in rows.flat_map(|row| &row.drives) {
        let more =
            [&drive.model, &drive.serial, &drive.firmware, &drive.address].into_iter().flatten();
        let mut words: Vec<String> = vec![drive.target.clone()];
        words.extend(more.filter(|word| **word != drive.target).cloned());
        words.extend(drive.size_bytes.map(format_size));
        words.extend(drive.block_bytes.map(|bytes| format!("blocks of {bytes}")));
        let text = words.join(", ");
        if !found.contains(&text) {
            found.push(text);
        }
    }
    (!found.is_empty()).then(|| found.join("; "))
}

/// What is long: mitigations, and how each engine ran.
fn details(merged: &Merged, index: usize, source: &Source) -> Markup {
    let mitigations = source.environment.as_ref().and_then(|of| of.machine.mitigations.as_ref());
    let mut stacks: BTreeMap<&str, String> = BTreeMap::new();
    for row in merged.blocks.iter().flat_map(|block| &block.rows).filter(|row| row.source == index)
    {
        if let Some(text) = facts(&row.facts) {
            stacks.insert(&row.stack, text);
        }
    }
    html! {
        @if mitigations.is_some_and(|list| !list.is_empty()) || !stacks.is_empty() {
            details {
                summary { "More of " (source.label) }
                dl.facts {
                    @for (stack, text) in &stacks { dt { (stack) } dd { (text) } }
                    @for (name, text) in mitigations.into_iter().flatten() { dt { (name) } dd { (text) } }
                }
            }
        }
    }
}
