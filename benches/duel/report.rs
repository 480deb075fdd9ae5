//! The output: aligned columns, or one JSON object per line.

use clap::ValueEnum;
use serde_json::json;
use unisono::size;

use super::arena::Contender;
use super::case::Case;
use super::measure::Row;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns
    Table,
    /// One JSON object per line
    Json,
}

/// The columns of times, with the contenders' names in JSON.
const CONTENDERS: [(Contender, &str); 6] = [
    (Contender::Registered, "registered"),
    (Contender::Slices, "slices"),
    (Contender::Planned, "planned"),
    (Contender::Mpi, "mpi"),
    (Contender::FloorJoint, "floor_joint"),
    (Contender::FloorExchange, "floor_exchange"),
];

impl Format {
    pub(crate) fn begin(self, ranks: usize) {
        if self == Self::Table {
            println!("# {}, {ranks} ranks, f32, sum", unisono::mpi_library_version());
            println!(
                "# µs per call of the slowest rank, medians over rounds; ratios are medians of the ratios within a round, above 1 if Unisono is faster"
            );
        }
    }

    /// Prints the title of the next rows.
    pub(crate) fn title(self, case: &Case) {
        if self == Self::Table {
            println!("\n# {}, {}, {}", case.operation.name(), case.place.name(), case.state.name());
            println!(
                "#{:>7} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7} {:>7} {:>8} {:>8} {:>7}",
                "bytes",
                "registered",
                "slices",
                "planned",
                "MPI's",
                "joint",
                "exchange",
                "MPI/r",
                "MPI/s",
                "floor/r",
                "floor/s",
                "rounds"
            );
        }
    }

    pub(crate) fn row(self, row: &Row) {
        match self {
            Self::Table => println!("{}", line(row)),
            Self::Json => println!("{}", object(row)),
        }
    }
}

/// Returns the ratios of a row: MPI's time over Unisono's, and the bare loop's over Unisono's, each for registered
/// memory and slices.
fn ratios(row: &Row) -> [Option<f64>; 4] {
    let (registered, slices) = (Contender::Registered, Contender::Slices);
    [
        row.ratio(Contender::Mpi, registered),
        row.ratio(Contender::Mpi, slices),
        row.ratio(row.floor(), registered),
        row.ratio(Contender::FloorExchange, slices),
    ]
}

fn line(row: &Row) -> String {
    let number = |value: Option<f64>, width: usize| {
        value.map_or_else(|| format!(" {:>width$}", "-"), |value| format!(" {value:>width$.2}"))
    };
    let mut line = format!("{:>8}", size::text(row.case.size_bytes));
    for (contender, _) in CONTENDERS {
        line += &number(row.time_us(contender), 11);
    }
    for (ratio, width) in ratios(row).into_iter().zip([7, 7, 8, 8]) {
        line += &number(ratio, width);
    }
    line + &format!(" {:>7}", row.rounds())
}

fn object(row: &Row) -> serde_json::Value {
    let times: serde_json::Map<_, _> = CONTENDERS
        .into_iter()
        .filter_map(|(contender, name)| Some((name.to_owned(), json!(row.time_us(contender)?))))
        .collect();
    let [mpi_registered, mpi_slices, floor_registered, floor_slices] = ratios(row);
    json!({
        "mpi": unisono::mpi_library_version(),
        "operation": row.case.operation,
        "place": row.case.place,
        "state": row.case.state,
        "bytes": row.case.size_bytes,
        "ranks": row.ranks,
        "rounds": row.rounds(),
        "calls": row.calls,
        "time_us": times,
        "ratio": {
            "mpi_to_registered": mpi_registered,
            "mpi_to_slices": mpi_slices,
            "floor_to_registered": floor_registered,
            "floor_to_slices": floor_slices,
        },
    })
}
