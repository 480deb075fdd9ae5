//! `unisono simulate ALGORITHM`: predicts the time of an all-reduce.

use clap::Args as ClapArgs;
use serde::Serialize;
use unisono::{Algorithm, Operation, Topology};
use unisono_collectives::clock::{self, Unpredictable};
use unisono_collectives::model::Machine;

use super::Cluster;
use crate::Failure;
use crate::output::{self, Format};
use crate::values::{OneOrAll, Sizes, one_or_all, sizes};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Algorithms, comma-separated, or all
    #[arg(value_delimiter = ',', required = true)]
    #[arg(value_parser = one_or_all(Algorithm::ALL, Algorithm::name))]
    algorithm: Vec<OneOrAll<Algorithm>>,
    /// Sizes of the f32 array in bytes, as for bench
    #[arg(long, value_name = "MIN:MAX[:FACTOR]", value_parser = sizes)]
    bytes: Sizes,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
}

const ELEMENT_SIZE_BYTES: usize = size_of::<f32>();

#[derive(Debug, Clone, Serialize)]
struct Row {
    algorithm: &'static str,
    nodes: usize,
    ranks_per_node: usize,
    ranks: usize,
    bytes: usize,
    /// The largest number of steps of a rank. Null, as all following fields, if there is no prediction.
    steps: Option<usize>,
    messages: Option<usize>,
    sent_bytes: Option<usize>,
    predicted_us: Option<f64>,
    /// Bus bandwidth as defined by nccl-tests.
    busbw_gb_per_s: Option<f64>,
    why_not: Option<String>,
}

pub(super) fn run(args: &Args, cluster: &Cluster) -> Result<(), Failure> {
    let topology = cluster.topology()?;
    let machine = cluster.machine()?;
    let asked = OneOrAll::distinct(&args.algorithm);
    let mut sizes = Vec::new();
    for &size_bytes in &args.bytes.0 {
        let rows = asked.iter().map(|&algorithm| row(algorithm, &topology, &machine, size_bytes));
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by(|one, other| time_us(one).total_cmp(&time_us(other)));
        if let [Row { predicted_us: None, algorithm, why_not: Some(why_not), .. }, ..] = &rows[..] {
            return Err(Failure::BadInput(format!("{algorithm}: {why_not}")));
        }
        sizes.push(rows);
    }
    output::rows(&sizes.concat(), args.format, || sizes.iter().for_each(|rows| table(rows, &machine)));
    Ok(())
}

/// Returns the sort key. Rows without a prediction come last.
fn time_us(row: &Row) -> f64 {
    row.predicted_us.unwrap_or(f64::INFINITY)
}

fn row(algorithm: Algorithm, topology: &Topology, machine: &Machine, size_bytes: usize) -> Row {
    let prediction =
        clock::predict(algorithm, Operation::AllReduce, topology, machine, size_bytes, ELEMENT_SIZE_BYTES);
    let ranks = topology.ranks();
    // A single rank does not communicate.
    let busbw_gb_per_s = |time_us: f64| {
        let carried_bytes = size_bytes as f64 * 2.0 * (ranks - 1) as f64 / ranks as f64;
        if carried_bytes == 0.0 { 0.0 } else { carried_bytes / (time_us * 1e3) }
    };
    let predicted = prediction.as_ref().ok();
    Row {
        algorithm: algorithm.name(),
        nodes: topology.nodes(),
        ranks_per_node: topology.ranks_of_largest_node(),
        ranks,
        bytes: size_bytes,
        steps: predicted.map(|predicted| predicted.steps),
        messages: predicted.map(|predicted| predicted.messages),
        sent_bytes: predicted.map(|predicted| predicted.sent_bytes),
        predicted_us: predicted.map(|predicted| predicted.time_us),
        busbw_gb_per_s: predicted.map(|predicted| busbw_gb_per_s(predicted.time_us)),
        why_not: prediction.as_ref().err().map(Unpredictable::to_string),
    }
}

fn table(rows: &[Row], machine: &Machine) {
    let [Row { nodes, ranks_per_node, ranks, bytes, .. }, ..] = rows else { return };
    println!("# all-reduce of {bytes} bytes over {ranks} ranks, {ranks_per_node} on each of {nodes} node(s)");
    for (link, place) in [(&machine.intra, "within a node"), (&machine.inter, "between nodes")] {
        println!(
            "# a message {place}: latency {:.2} us, {:.2} GB/s, total {:.2} us",
            link.latency_us(*bytes),
            *bytes as f64 / link.occupied_us(*bytes) / 1e3,
            link.time_us(*bytes, false)
        );
    }
    println!("# steps, messages and bytes sent are the maximum over ranks;");
    println!("# busbw as in nccl-tests");
    println!(
        "#{:<18} {:>8} {:>9} {:>14} {:>14} {:>9}",
        "algorithm", "steps", "messages", "sent (B)", "time (us)", "busbw"
    );
    for row in rows {
        match (row.steps, row.messages, row.sent_bytes, row.predicted_us, row.busbw_gb_per_s) {
            (Some(steps), Some(messages), Some(sent_bytes), Some(time_us), Some(busbw)) => println!(
                " {:<18} {steps:>8} {messages:>9} {sent_bytes:>14} {time_us:>14.2} {busbw:>9.3}",
                row.algorithm
            ),
            _ => println!(" {:<18} {}", row.algorithm, row.why_not.as_deref().unwrap_or("-")),
        }
    }
    println!("# {} is fastest", rows[0].algorithm);
}
