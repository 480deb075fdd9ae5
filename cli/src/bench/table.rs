//! Rows as a table: as many columns as a line has room for.

use unisono::bench::{Row, Settings};
use unisono::{Algorithm, Choice, Communicator};

use crate::output;

/// A table that is being written, row by row.
pub(super) struct Table {
    columns: Vec<Column>,
    /// What the rows that were written last measure.
    operation: &'static str,
}

/// What one column shows.
struct Column {
    name: &'static str,
    unit: &'static str,
    width: usize,
    /// Text begins at the left, and numbers end at the right.
    is_text: bool,
    value: fn(&Row) -> String,
}

/// What is left out first where a line has no room.
const LEAST_NEEDED: [&str; 3] = ["algbw", "min", "model"];

impl Table {
    /// Writes the head. `route` is how arrays on GPUs travel.
    pub(super) fn begin(comm: &Communicator, settings: &Settings, route: Option<&str>) -> Self {
        let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
        let Settings { op, dtype, memory, .. } = settings;
        println!("# {ranks} ranks on {nodes} node(s) over {transport}; {op} of {dtype}, {memory} memory");
        println!("# times of the slowest rank, median and best; busbw as in nccl-tests");
        if let Some(route) = route {
            println!("# arrays on GPUs: {route}");
        }
        if comm.is_oversubscribed() {
            println!("# more ranks than cores take turns: times say little about the algorithms");
        }
        let table = Self { columns: columns(&settings.contenders, output::columns()), operation: "" };
        println!("{}", table.line('#', |column| column.name.to_owned()));
        println!("{}", table.line('#', |column| column.unit.to_owned()));
        table
    }

    pub(super) fn write(&mut self, row: &Row) {
        if self.operation != row.operation {
            println!("# {}", row.operation);
            self.operation = row.operation;
        }
        println!("{}", self.line(' ', |column| (column.value)(row)));
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

/// The columns of a table of these contenders, on lines of so many characters. What ran is shown where that may be another than was
/// asked for.
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
