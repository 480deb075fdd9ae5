//! `unisono bench --wire`: compares all-reduces that are compressed between nodes with an uncompressed one.

use unisono::Communicator;
use unisono_bench::compressed::{Row, check_memory, measure};

use super::Args;
use super::rows::Rows;
use crate::Failure;
use crate::world::SHARE_A_NODE;

type Column = super::rows::Column<Row>;

const CSV: &str = "wire,bytes,count,ranks,nodes,transport,time_us_min,time_us_p50,time_us_p95,time_us_max,algbw_gb_per_s,\
                   relative_error,largest_error";

pub(super) fn on_rank(comm: &mut Communicator, args: &Args) -> Result<(), Failure> {
    let is_root = comm.rank() == 0;
    let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
    if nodes == 1 {
        let why = format!("--wire compares formats between nodes, but {SHARE_A_NODE}");
        return Err(Failure::refusal(is_root, why));
    }
    if let Some(why) = check_memory(comm, &args.wire, &args.bytes.0)? {
        return Err(Failure::refusal(is_root, why));
    }
    let about = [
        format!("{ranks} ranks on {nodes} nodes over {transport}; all-reduce, sum of f32"),
        "times of the slowest rank, median and best; errors of the first result:".to_owned(),
        "error: norm over the norm of the sum; largest: largest error over the root mean square of the sum"
            .to_owned(),
    ];
    let columns = vec![
        Column::number("size (B)", "", 10, |row| row.bytes.to_string()),
        Column::text("wire", 12, |row| row.wire.clone()),
        Column::number("time (us)", "", 11, |row| format!("{:.2}", row.time_us.p50)),
        Column::number("min (us)", "", 11, |row| format!("{:.2}", row.time_us.min)),
        Column::number("GB/s", "", 8, |row| format!("{:.2}", row.algbw_gb_per_s)),
        Column::number("error", "", 9, |row| format!("{:.1e}", row.relative_error)),
        Column::number("largest", "", 9, |row| format!("{:.1e}", row.largest_error)),
    ];
    let writer = is_root.then(|| Rows::begin(args.format, &about, columns, CSV));
    measure(comm, &args.wire, &args.bytes.0, (args.warm_up, args.iterations), |row| {
        writer.iter().for_each(|writer| writer.write(&row));
    })?;
    Ok(())
}
