//! The columns of benchmark rows.

use unisono::{Algorithm, Choice};
use unisono_bench::{Row, Settings};

type Column = super::rows::Column<Row>;

pub(super) const CSV: &str = "algorithm,ran,bytes,count,dtype,op,ranks,nodes,transport,memory,time_us_min,time_us_p50,time_us_p95,\
                              time_us_max,skew_percent,algbw_gb_per_s,busbw_gb_per_s,wrong,predicted_us,oversubscribed,operation,\
                              overlap_percent";

/// The columns to omit, in this order, if a line is too narrow.
const LEAST_NEEDED: [&str; 3] = ["min", "model", "algbw"];

/// Returns the columns that fit on lines of `room` characters. The column `ran` appears only if a contender may run another algorithm than the one
/// requested.
pub(super) fn columns(settings: &Settings, room: usize) -> Vec<Column> {
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
    vec![
        Column::number("size", "(B)", 11, |row| row.bytes.to_string()),
        Column::text("algorithm", names, |row| row.algorithm.clone()),
        Column::text("ran", algorithms, |row| row.ran.to_owned()),
        Column::number("time", "(us)", 10, |row| format!("{:.2}", row.time_us.p50)),
        Column::number("min", "(us)", 10, |row| format!("{:.2}", row.time_us.min)),
        Column::number("model", "(us)", 10, |row| shown(row.predicted_us, 2)),
        Column::number("algbw", "(GB/s)", 8, |row| format!("{:.2}", row.algbw_gb_per_s)),
        Column::number("busbw", "(GB/s)", 8, |row| format!("{:.2}", row.busbw_gb_per_s)),
        Column::number("overlap", "(%)", 8, |row| shown(row.overlap_percent, 0)),
        Column::number("wrong", "", 6, |row| shown(row.wrong.map(|wrong| wrong as f64), 0)),
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
    fn columns_fit_the_width_of_a_line() {
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
