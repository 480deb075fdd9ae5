//! Output formats of benchmark rows.

use serde::Serialize;

use crate::output::{self, Format};

/// Writes rows to standard output, as they are measured.
pub(super) struct Rows<R: 'static> {
    format: Format,
    columns: Vec<Column<R>>,
    csv: &'static [CsvColumn<R>],
}

pub(super) struct Column<R> {
    pub(super) name: &'static str,
    unit: &'static str,
    pub(super) width: usize,
    /// Text is left-aligned, and numbers are right-aligned.
    is_text: bool,
    value: fn(&R) -> String,
}

/// A CSV column: its name, and the function that formats its value for a row. No value contains commas or quotes.
pub(super) type CsvColumn<R> = (&'static str, fn(&R) -> String);

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
        csv: &'static [CsvColumn<R>],
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
            Format::Csv => {
                let names: Vec<_> = csv.iter().map(|(name, _)| *name).collect();
                print!("{}\n", names.join(","));
            }
        }
        rows
    }

    pub(super) fn write(&self, row: &R) {
        match self.format {
            Format::Table => print!("{}\n", self.line(' ', |column| (column.value)(row))),
            Format::Json => output::row(row),
            Format::Csv => {
                let values: Vec<_> = self.csv.iter().map(|(_, value)| value(row)).collect();
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
