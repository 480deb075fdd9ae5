//! Output formats of benchmark rows.

use serde::Serialize;
use serde_json::Value;

use crate::output::{self, Format};

/// Writes rows to standard output, as they are measured.
pub(super) struct Rows<R: 'static> {
    format: Format,
    columns: Vec<Column<R>>,
    /// The names of the columns of CSV: the fields of a row, or of an object in it, such as `time_us_min`.
    csv: &'static str,
}

pub(super) struct Column<R> {
    pub(super) name: &'static str,
    unit: &'static str,
    pub(super) width: usize,
    /// Text is left-aligned, and numbers are right-aligned.
    is_text: bool,
    value: fn(&R) -> String,
}

impl<R> Column<R> {
    pub(super) fn number(
        name: &'static str,
        unit: &'static str,
        width: usize,
        value: fn(&R) -> String,
    ) -> Self {
        Self { name, unit, width, is_text: false, value }
    }

    pub(super) fn text(name: &'static str, width: usize, value: fn(&R) -> String) -> Self {
        Self { name, unit: "", width: width.max(name.len()), is_text: true, value }
    }
}

impl<R: Serialize> Rows<R> {
    /// Writes the header. A table begins with lines about the benchmark.
    pub(super) fn begin(
        format: Format,
        about: &[String],
        columns: Vec<Column<R>>,
        csv: &'static str,
    ) -> Self {
        let rows = Self { format, columns, csv };
        match format {
            Format::Table => {
                about.iter().for_each(|line| println!("# {line}"));
                print!("{}\n", rows.line('#', |column| column.name.to_owned()));
                if rows.columns.iter().any(|column| !column.unit.is_empty()) {
                    print!("{}\n", rows.line('#', |column| column.unit.to_owned()));
                }
            }
            Format::Json => {}
            Format::Csv => print!("{csv}\n"),
        }
        rows
    }

    pub(super) fn write(&self, row: &R) {
        match self.format {
            Format::Table => print!("{}\n", self.line(' ', |column| (column.value)(row))),
            Format::Json => output::row(row),
            Format::Csv => {
                let row = serde_json::to_value(row).expect("rows have no maps with odd keys");
                let value = |name: &str| row.pointer(&format!("/{}", name.replace("time_us_", "time_us/")));
                let values: Vec<_> = self.csv.split(',').map(|name| cell(value(name))).collect();
                print!("{}\n", values.join(","));
            }
        }
    }

    fn line(&self, first: char, cell: impl Fn(&Column<R>) -> String) -> String {
        let cells = self.columns.iter().map(|column| {
            let (cell, width) = (cell(column), column.width);
            if column.is_text { format!(" {cell:<width$}") } else { format!(" {cell:>width$}") }
        });
        let line: String = cells.collect();
        format!("{first}{}", line[1..].trim_end())
    }
}

/// Formats a value for CSV. No value contains commas or quotes.
fn cell(value: Option<&Value>) -> String {
    match value.expect("a column is a field of the row") {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // Without the decimal point of JSON: 1 and not 1.0.
        Value::Number(number) => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}
