//! Benchmark rows as a table with as many columns as fit on a line.

use unisono::{Algorithm, Choice, Communicator};
use unisono_bench::{Row, Settings};

use crate::output;

/// A table, written row by row.
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
const LEAST_NEEDED: [&str; 3] = ["algbw", "min", "model"];

impl Table {
    /// Writes the header. `route` describes the route of GPU arrays.
    pub(super) fn begin(comm: &Communicator, settings: &Settings, route: Option<&str>) -> Self {
        let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
        let Settings { op, dtype, memory, .. } = settings;
        println!("# {ranks} ranks on {nodes} node(s) over {transport}; {op} of {dtype}, {memory} memory");
        println!("# times of the slowest rank, median and best; busbw as in nccl-tests");
        if let Some(route) = route {
            println!("# arrays on GPUs: {route}");
        }
        if comm.is_oversubscribed() {
            println!("# oversubscribed (more ranks than cores): times say little about the algorithms");
        }
        let table = Self { columns: columns(&settings.contenders, output::columns()), operation: "" };
        print!("{}\n", table.line('#', |column| column.name.to_owned()));
        print!("{}\n", table.line('#', |column| column.unit.to_owned()));
        table
    }

    pub(super) fn write(&mut self, row: &Row) {
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
fn columns(contenders: &[Choice], room: usize) -> Vec<Column> {
    let mut columns = all(contenders);
    let are_chosen = contenders.iter().any(|choice| matches!(choice, Choice::Auto | Choice::Rules(_)));
    columns.retain(|column| column.name != "ran" || are_chosen);
    for name in LEAST_NEEDED {
        let width: usize = columns.iter().map(|column| column.width + 1).sum();
        if width > room {
            columns.retain(|column| column.name != name);
        }
    }
    columns
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
        number("model", "(us)", 10, |row| {
            row.predicted_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"))
        }),
        number("algbw", "(GB/s)", 8, |row| format!("{:.2}", row.algbw_gb_per_s)),
        number("busbw", "(GB/s)", 8, |row| format!("{:.2}", row.busbw_gb_per_s)),
        number("wrong", "", 6, |row| row.wrong.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(contenders: &[&str], room: usize) -> (Vec<&'static str>, usize) {
        let contenders: Vec<_> = contenders.iter().map(|name| name.parse().unwrap()).collect();
        let columns = columns(&contenders, room);
        let width = columns.iter().map(|column| column.width + 1).sum::<usize>();
        (columns.iter().map(|column| column.name).collect(), width)
    }

    #[test]
    fn a_line_holds_what_it_has_room_for() {
        let algorithms: Vec<_> = Algorithm::ALL.map(Algorithm::name).to_vec();
        let with_auto = [&algorithms[..], &["auto"]].concat();
        for (contenders, room, left_out) in [
            (&algorithms, 80, &["ran", "algbw"][..]),
            (&algorithms, 100, &["ran"]),
            (&with_auto, 80, &["min", "model", "algbw"]),
            (&with_auto, 100, &["algbw"]),
            (&with_auto, 120, &[]),
        ] {
            let (shown, width) = shown(contenders, room);
            assert!(width <= room, "{shown:?} take {width} of {room}");
            let all: Vec<_> = all(&[]).iter().map(|column| column.name).collect();
            let missing: Vec<_> = all.into_iter().filter(|name| !shown.contains(name)).collect();
            assert_eq!(missing, left_out, "{contenders:?} in {room}");
        }
    }
}
