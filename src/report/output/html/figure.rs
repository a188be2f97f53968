//! Figures with their place in the JSON, and notes with their numbers.

use crate::report::figures::{gib_s, part, rate, significant, time};
use crate::report::marks::Mark;
use crate::report::merged::Merged;
use maud::{Markup, html};

/// A figure: what is read, what it is exactly, and where it stands in the JSON.
pub(super) fn at(value: f64, text: &str, pointer: &str) -> Markup {
    html! { span.n data-value=(exact(value)) data-at=(pointer) { (text) } }
}

/// A number as JSON has it.
pub(super) fn exact(value: f64) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}

pub(super) fn rate_at(value: f64, pointer: &str) -> Markup {
    at(value, &rate(value), pointer)
}

pub(super) fn time_at(ns: f64, pointer: &str) -> Markup {
    at(ns, &time(ns), pointer)
}

pub(super) fn gib_at(bytes: f64, pointer: &str) -> Markup {
    at(bytes, &gib_s(bytes), pointer)
}

pub(super) fn part_at(value: f64, pointer: &str) -> Markup {
    at(value, &part(value), pointer)
}

pub(super) fn fixed_at(value: f64, pointer: &str) -> Markup {
    at(value, &format!("{value:.2}"), pointer)
}

pub(super) fn digits_at(value: f64, pointer: &str) -> Markup {
    at(value, &significant(value, 4), pointer)
}

/// Marks of rows, numbered in the order in which they are met; equal ones are one.
pub(super) struct Notes<'a> {
    texts: Vec<&'a str>,
}

impl<'a> Notes<'a> {
    pub(super) fn of(merged: &'a Merged) -> Self {
        let mut texts: Vec<&str> = Vec::new();
        for mark in merged.blocks.iter().flat_map(|block| &block.rows).flat_map(|row| &row.marks) {
            if !texts.contains(&mark.text.as_str()) {
                texts.push(&mark.text);
            }
        }
        Self { texts }
    }

    /// Links to the notes of a row.
    pub(super) fn links(&self, marks: &[Mark]) -> Markup {
        let numbers = marks.iter().filter_map(|mark| self.number(&mark.text));
        html! {
            @for number in numbers { a.note href={ "#note-" (number) } aria-label={ "Note " (number) } { (number) } " " }
        }
    }

    fn number(&self, text: &str) -> Option<usize> {
        self.texts.iter().position(|known| *known == text).map(|index| index + 1)
    }

    /// All notes, each with the rows that it is about.
    pub(super) fn section(&self, merged: &Merged) -> Markup {
        html! {
            section aria-labelledby="notes" {
                h2 #notes { "Notes" }
                @if self.texts.is_empty() { p { "Nothing speaks against any row." } }
                ol.notes {
                    @for (index, text) in self.texts.iter().enumerate() {
                        li id={ "note-" (index + 1) } {
                            (text) " "
                            span.small { (rows(merged, text)) }
                        }
                    }
                }
            }
        }
    }
}

/// `Windows native (randread 4k)`, and so on.
fn rows(merged: &Merged, text: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    for block in &merged.blocks {
        for row in block.rows.iter().filter(|row| row.marks.iter().any(|mark| mark.text == text)) {
            found.push(format!("{} ({})", row.stack, block.workload.short()));
        }
    }
    found.join(", ")
}
