//! `unisono bench --wire`: all-reduces that are compressed between nodes, beside an ordinary one.

use unisono::Communicator;
use unisono_bench::compressed::{Row, measure};

use super::Args;
use crate::Failure;
use crate::output::Format;

/// A CSV column: its name, and its value for a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 13] = [
    ("wire", |row| row.wire.clone()),
    ("bytes", |row| row.bytes.to_string()),
    ("count", |row| row.count.to_string()),
    ("ranks", |row| row.ranks.to_string()),
    ("nodes", |row| row.nodes.to_string()),
    ("transport", |row| row.transport.to_owned()),
    ("time_us_min", |row| row.time_us.min.to_string()),
    ("time_us_p50", |row| row.time_us.p50.to_string()),
    ("time_us_p95", |row| row.time_us.p95.to_string()),
    ("time_us_max", |row| row.time_us.max.to_string()),
    ("algbw_gb_per_s", |row| row.algbw_gb_per_s.to_string()),
    ("relative_error", |row| row.relative_error.to_string()),
    ("largest_error", |row| row.largest_error.to_string()),
];

pub(super) fn on_rank(comm: &mut Communicator, args: &Args) -> Result<(), Failure> {
    let format = args.format;
    let talks = comm.rank() == 0;
    let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
    if nodes == 1 {
        let why = "--wire compares formats between nodes, and all ranks share a node: start them on several, or declare \
                   nodes, as UNISONO_NODES=1,1 does";
        return Err(Failure::refusal(talks, why));
    }
    if talks {
        match format {
            Format::Table => {
                println!("# {ranks} ranks on {nodes} nodes over {transport}; all-reduce, sum of f32");
                println!(
                    "# times of the slowest rank, median and best; errors of the first result: its norm over the sum's,"
                );
                println!("# and the largest over the sum's root mean square");
                println!(
                    "{}",
                    line(["#  size (B)", "wire", "time (us)", "min (us)", "GB/s", "error", "largest"])
                );
            }
            Format::Json => {}
            Format::Csv => print!("{}\n", COLUMNS.map(|(name, _)| name).join(",")),
        }
    }
    measure(comm, &args.wire, &args.bytes.0, (args.warm_up, args.iterations), |row| {
        if talks {
            write(&row, format);
        }
    })?;
    Ok(())
}

fn write(row: &Row, format: Format) {
    let text = match format {
        Format::Json => serde_json::to_string(row).expect("figures are plain"),
        Format::Csv => COLUMNS.map(|(_, value)| value(row)).join(","),
        Format::Table => {
            let cells = [
                row.bytes.to_string(),
                row.wire.clone(),
                format!("{:.2}", row.time_us.p50),
                format!("{:.2}", row.time_us.min),
                format!("{:.2}", row.algbw_gb_per_s),
                format!("{:.1e}", row.relative_error),
                format!("{:.1e}", row.largest_error),
            ];
            line(cells.each_ref().map(String::as_str))
        }
    };
    print!("{text}\n");
}

fn line([size, wire, time, min, rate, error, largest]: [&str; 7]) -> String {
    format!("{size:>11} {wire:<12} {time:>11} {min:>11} {rate:>8} {error:>9} {largest:>9}")
}
