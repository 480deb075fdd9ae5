//! Output formats of benchmark rows.

use unisono::{Algorithm, Choice, Communicator};
use unisono_bench::{Row, Settings};

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
type CsvColumn = (&'static str, fn(&Row) -> String);

/// The CSV columns. No value contains commas or quotes.
const COLUMNS: [CsvColumn; 22] = [
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

/// A table with as many columns as fit on a line, written row by row.
pub(super) struct Table {
    columns: Vec<Column>,
    /// The operation of the latest row.
    operation: &'static str,
}

/// One column.
struct Column {
    name: &'static str,
    unit: &'static str,
    width: usize,
    /// Text is left-aligned, numbers are right-aligned.
    is_text: bool,
    value: fn(&Row) -> String,
}

/// The columns to drop, in this order, if a line is too narrow.
const LEAST_NEEDED: [&str; 3] = ["min", "model", "algbw"];

impl Table {
    /// Writes the header. `route` describes the route of GPU arrays.
    fn begin(comm: &Communicator, settings: &Settings, route: Option<&str>) -> Self {
        let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
        let Settings { op, dtype, memory, .. } = settings;
        println!("# {ranks} ranks on {nodes} node(s) over {transport}; {op} of {dtype}, {memory} memory");
        println!("# times of the slowest rank, median and best; algbw and busbw as in nccl-tests");
        if let Some(route) = route {
            println!("# arrays on GPUs: {route}");
        }
        if comm.is_oversubscribed() {
            println!("# oversubscribed (more ranks than cores): times say little about the algorithms");
        }
        let table = Self { columns: columns(settings, output::columns()), operation: "" };
        print!("{}\n", table.line('#', |column| column.name.to_owned()));
        print!("{}\n", table.line('#', |column| column.unit.to_owned()));
        table
    }

    fn write(&mut self, row: &Row) {
        if self.operation != row.operation {
            println!("# {}", row.operation);
            self.operation = row.operation;
        }
        print!("{}\n", self.line(' ', |column| (column.value)(row)));
    }

    fn line(&self, first: char, cell: impl Fn(&Column) -> String) -> String {
        let cells = self.columns.iter().map(|column| {
            let (cell, width) = (cell(column), column.width);
            if column.is_text { format!(" {cell:<width$}") } else { format!(" {cell:>width$}") }
        });
        let line: String = cells.collect();
        format!("{first}{}", line[1..].trim_end())
    }
}

/// The columns that fit on lines of `room` characters. The column `ran` appears only if a contender may run another algorithm than
/// the one requested.
fn columns(settings: &Settings, room: usize) -> Vec<Column> {
    let Settings { contenders, checks, overlap, .. } = settings;
    let mut columns = all(contenders);
    let are_chosen = contenders.iter().any(|choice| matches!(choice, Choice::Auto | Choice::Rules(_)));
    for (name, is_shown) in [("ran", are_chosen), ("overlap", *overlap), ("wrong", *checks)] {
        columns.retain(|column| column.name != name || is_shown);
    }
    for name in LEAST_NEEDED {
        let width: usize = columns.iter().map(|column| column.width + 1).sum();
        if width > room {
            columns.retain(|column| column.name != name);
        }
    }
    columns
}

fn shown(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

fn all(contenders: &[Choice]) -> Vec<Column> {
    let names = contenders.iter().map(|choice| choice.to_string().len()).max().unwrap_or(0);
    let algorithms = Algorithm::ALL.iter().map(|algorithm| algorithm.name().len()).max().unwrap_or(0);
    let number = |name, unit, width, value| Column { name, unit, width, is_text: false, value };
    let text = |name: &'static str, width: usize, value| Column {
        name,
        unit: "",
        width: width.max(name.len()),
        is_text: true,
        value,
    };
    vec![
        number("size", "(B)", 11, |row| row.bytes.to_string()),
        text("algorithm", names, |row| row.algorithm.clone()),
        text("ran", algorithms, |row| row.ran.to_owned()),
        number("time", "(us)", 10, |row| format!("{:.2}", row.time_us.p50)),
        number("min", "(us)", 10, |row| format!("{:.2}", row.time_us.min)),
        number("model", "(us)", 10, |row| shown(row.predicted_us, 2)),
        number("algbw", "(GB/s)", 8, |row| format!("{:.2}", row.algbw_gb_per_s)),
        number("busbw", "(GB/s)", 8, |row| format!("{:.2}", row.busbw_gb_per_s)),
        number("overlap", "(%)", 8, |row| shown(row.overlap_percent, 0)),
        number("wrong", "", 6, |row| shown(row.wrong.map(|wrong| wrong as f64), 0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::{DType, Memory, Operation, ReduceOp};

    fn columns_of(contenders: &[&str], room: usize) -> (Vec<&'static str>, usize) {
        let contenders: Vec<_> = contenders.iter().map(|name| name.parse().unwrap()).collect();
        let settings = Settings {
            contenders,
            operations: vec![Operation::AllReduce.into()],
            sizes_bytes: vec![8],
            dtype: DType::F32,
            op: ReduceOp::Sum,
            memory: Memory::Slice,
            iterations: None,
            warm_up: 3,
            checks: true,
            overlap: false,
        };
        let columns = columns(&settings, room);
        let width = columns.iter().map(|column| column.width + 1).sum::<usize>();
        (columns.iter().map(|column| column.name).collect(), width)
    }

    #[test]
    fn a_line_holds_what_it_has_room_for() {
        let algorithms: Vec<_> = Algorithm::ALL.map(Algorithm::name).to_vec();
        let with_auto = [&algorithms[..], &["auto"]].concat();
        for (contenders, room, left_out) in [
            (&algorithms, 80, &["ran", "min", "overlap"][..]),
            (&algorithms, 100, &["ran", "overlap"]),
            (&with_auto, 80, &["min", "model", "algbw", "overlap"]),
            (&with_auto, 100, &["min", "overlap"]),
            (&with_auto, 120, &["overlap"]),
            (&vec!["auto", "mpi"], 80, &["min", "model", "overlap"]),
        ] {
            let (shown, width) = columns_of(contenders, room);
            assert!(width <= room, "{shown:?} take {width} of {room}");
            let all: Vec<_> = all(&[]).iter().map(|column| column.name).collect();
            let missing: Vec<_> = all.into_iter().filter(|name| !shown.contains(name)).collect();
            assert_eq!(missing, left_out, "{contenders:?} in {room}");
        }
    }
}
