//! Output formats of benchmark rows.

use unisono::Communicator;
use unisono_bench::{Row, Settings};

use super::table::Table;
use crate::output::{self, Format};

/// Writes rows to standard output.
pub(super) enum Rows {
    Table(Table),
    Json,
    Csv,
}

impl Rows {
    /// Writes the header. `route` describes the route of GPU arrays.
    pub(super) fn begin(
        format: Format,
        comm: &Communicator,
        settings: &Settings,
        route: Option<&str>,
    ) -> Self {
        match format {
            Format::Table => Self::Table(Table::begin(comm, settings, route)),
            Format::Json => Self::Json,
            Format::Csv => {
                print!("{}\n", COLUMNS.map(|(name, _)| name).join(","));
                Self::Csv
            }
        }
    }

    pub(super) fn write(&mut self, row: &Row) {
        match self {
            Self::Table(table) => table.write(row),
            Self::Json => {
                output::row(row);
            }
            Self::Csv => print!("{}\n", COLUMNS.map(|(_, value)| value(row)).join(",")),
        }
    }

    /// Writes the footer after the last row, if no result was wrong.
    pub(super) fn end(&self, rows: usize, are_checked: bool) {
        if let Self::Table(_) = self {
            let checked = if are_checked { "no element wrong" } else { "results not checked" };
            println!("# {rows} rows, {checked}");
        }
    }
}

/// A CSV column: its name, and its value for a row.
type Column = (&'static str, fn(&Row) -> String);

/// The CSV columns. No value contains commas or quotes.
const COLUMNS: [Column; 22] = [
    ("algorithm", |row| row.algorithm.clone()),
    ("ran", |row| row.ran.to_owned()),
    ("bytes", |row| row.bytes.to_string()),
    ("count", |row| row.count.to_string()),
    ("dtype", |row| row.dtype.to_owned()),
    ("op", |row| row.op.to_owned()),
    ("ranks", |row| row.ranks.to_string()),
    ("nodes", |row| row.nodes.to_string()),
    ("transport", |row| row.transport.to_owned()),
    ("memory", |row| row.memory.to_owned()),
    ("time_us_min", |row| row.time_us.min.to_string()),
    ("time_us_p50", |row| row.time_us.p50.to_string()),
    ("time_us_p95", |row| row.time_us.p95.to_string()),
    ("time_us_max", |row| row.time_us.max.to_string()),
    ("skew_percent", |row| row.skew_percent.to_string()),
    ("algbw_gb_per_s", |row| row.algbw_gb_per_s.to_string()),
    ("busbw_gb_per_s", |row| row.busbw_gb_per_s.to_string()),
    ("wrong", |row| text(row.wrong)),
    ("predicted_us", |row| text(row.predicted_us)),
    ("oversubscribed", |row| row.oversubscribed.to_string()),
    ("operation", |row| row.operation.to_owned()),
    ("overlap_percent", |row| text(row.overlap_percent)),
];

/// A value, or nothing.
fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
