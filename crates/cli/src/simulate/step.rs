//! `unisono simulate step`: predicts a data-parallel training step.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;
use unisono::Topology;
use unisono::size::bytes;
use unisono_collectives::model::Machine;
use unisono_compress::{Prices, Wire};
use unisono_steps::{Bucket, Overlap, Plan, Served, Step, USUAL_FIRST_BUCKET_BYTES};

use super::Cluster;
use super::model::{Model, parameters};
use crate::Failure;
use crate::output::{self, Format};
use crate::values::whole;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Time of the forward pass of one rank in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = milliseconds)]
    forward_ms: f64,
    /// Time of the backward pass of one rank in milliseconds
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    backward_ms: f64,
    /// Time of the update in milliseconds [default: 20 bytes per parameter at 30 GB/s]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    update_ms: Option<f64>,
    /// Samples per rank and step
    #[arg(long, alias = "batch", value_name = "PER_RANK", default_value_t = 128)]
    batch_size: usize,
    /// Wire formats of gradients, comma-separated: f32, bf16, f16, or, between nodes only, int8, int4, int8:stochastic, int4:stochastic, onebit,
    /// topk:FRACTION or powersgd:RANK
    #[arg(long, value_name = "WIRE,WIRE", value_delimiter = ',', default_value = "f32")]
    wire: Vec<Wire>,
    /// Bucket size in bytes of gradients, or auto, as for train; the suffixes K, M and G mean 2^10, 2^20 and 2^30
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = bucket_bytes)]
    bucket_bytes: BucketBytes,
    /// Overlap of the all-reduces: beside (with the backward pass), across (with the backward pass and the next forward pass), in-turn (no overlap) or
    /// auto (beside between nodes, in-turn on one node)
    #[arg(long, default_value = "auto")]
    overlap: Overlap,
    /// Also predict synchronous and asynchronous parameter servers, with the first S ranks as servers
    #[arg(long, value_name = "S", value_parser = whole(1, usize::MAX))]
    servers: Option<usize>,
    #[command(flatten)]
    cluster: Cluster,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
}

#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
struct ModelArgs {
    /// MLP, as in train and bench-step, with hidden layers of these widths
    #[arg(long, value_name = "mlp:N,N")]
    model: Option<Model>,
    /// Number of parameters, in about 50 square matrices; the suffixes K, M and G mean 10^3, 10^6 and 10^9
    #[arg(long, value_name = "COUNT", value_parser = parameters)]
    parameters: Option<usize>,
    /// File with one parameter shape per line, such as 64x3x7x7, from the first layer to the last
    #[arg(long, value_name = "FILE")]
    layers: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BucketBytes {
    Auto,
    Most(usize),
}

/// SGD with momentum reads three arrays, and writes two.
const UPDATE_BYTES: f64 = 20.0;
const UPDATE_GB_PER_S: f64 = 30.0;

fn milliseconds(text: &str) -> Result<f64, String> {
    let time_ms = text.parse().ok().filter(|time_ms| (0.0..=1e9).contains(time_ms));
    time_ms.ok_or_else(|| "expected milliseconds, such as 12.5".to_owned())
}

fn bucket_bytes(text: &str) -> Result<BucketBytes, String> {
    if text == "auto" {
        return Ok(BucketBytes::Auto);
    }
    let most = bytes(text).filter(|&most| most > 0).map(BucketBytes::Most);
    most.ok_or_else(|| "expected auto, or a size above 0, such as 25M".to_owned())
}

#[derive(Debug, Serialize)]
struct Row {
    ranks: usize,
    nodes: usize,
    wire: String,
    bucket_bytes: usize,
    buckets: usize,
    step_ms: f64,
    compute_ms: f64,
    hidden_communication_ms: f64,
    exposed_communication_ms: f64,
    update_ms: f64,
    samples_per_s: f64,
    /// The throughput in relation to the same number of independent single ranks.
    efficiency: f64,
    /// The percentage of the communication that is hidden. `None` if there is no communication.
    hidden_percent: Option<f64>,
    strategy: &'static str,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let ranks = args.cluster.topology()?.ranks();
    if args.batch_size == 0 || args.backward_ms == 0.0 {
        let why = "--batch-size and --backward-ms must be above 0";
        return Err(Failure::BadInput(why.to_owned()));
    }
    if let Some(servers) = args.servers.filter(|&servers| servers >= ranks) {
        let why =
            format!("--servers must leave a worker: at most {} of {ranks} ranks, got `{servers}`", ranks - 1);
        return Err(Failure::BadInput(why));
    }
    let model = args.model.read().map_err(Failure::BadInput)?;
    let machine = args.cluster.machine()?;
    let mut prices = Prices::new(machine.clone());
    let mut rows = Vec::new();
    for topology in worlds(args.cluster.nodes as usize, args.cluster.ranks_per_node as usize) {
        // A single rank sends nothing.
        let wires = if topology.ranks() == 1 { &[Wire::F32][..] } else { &args.wire[..] };
        for &wire in wires {
            rows.push(args.row(&model, &topology, wire, &mut prices).map_err(Failure::BadInput)?);
        }
        if let Some(servers) = args.servers.filter(|&servers| servers < topology.ranks()) {
            rows.extend(args.served(&model, &topology, servers, &machine));
        }
    }
    output::rows(&rows, args.format, || table(&rows, &model, args));
    Ok(())
}

/// Returns worlds of one rank, and of 1, 2, 4, … nodes up to this number.
fn worlds(nodes: usize, ranks_per_node: usize) -> Vec<Topology> {
    let mut sizes: Vec<_> = (0..).map(|power| 1 << power).take_while(|&size| size < nodes).collect();
    sizes.push(nodes);
    let alone = (ranks_per_node > 1).then(|| Topology::single_node(1));
    alone.into_iter().chain(sizes.into_iter().map(|nodes| Topology::uniform(nodes, ranks_per_node))).collect()
}

impl ModelArgs {
    fn read(&self) -> Result<Model, String> {
        match (&self.model, self.parameters, &self.layers) {
            (Some(model), ..) => Ok(model.clone()),
            (_, Some(parameters), _) => Ok(Model::of_parameters(parameters)),
            (.., Some(file)) => Model::read(file),
            (None, None, None) => unreachable!("the command line has one of them"),
        }
    }
}

impl Args {
    /// Returns the maximum size of buckets. `auto` is computed as in the trainer.
    fn most(&self, topology: &Topology, wire: Wire, prices: &mut Prices) -> usize {
        if let BucketBytes::Most(most) = self.bucket_bytes {
            return most;
        }
        let element_bytes = if matches!(wire, Wire::Bf16 | Wire::F16) { 2 } else { 4 };
        // Excludes the time for encoding, which is the same for every byte.
        let all_reduce_us = |bytes: usize| {
            prices.all_reduce_us(topology, Wire::F32, &[&[bytes / 4 * element_bytes / 4]]).ok()
        };
        let is_compressed = matches!(wire, Wire::Compressed(_));
        unisono_steps::bucket_bytes(topology.nodes(), self.overlap, is_compressed, all_reduce_us).0
    }

    fn row(
        &self,
        model: &Model,
        topology: &Topology,
        wire: Wire,
        prices: &mut Prices,
    ) -> Result<Row, String> {
        let bucket_bytes = self.most(topology, wire, prices);
        let parameters = model.parameters() as f64;
        let compute_ms = self.forward_ms + self.backward_ms;
        let (mut put, mut buckets) = (0, Vec::new());
        let counts = model.0.iter().map(|shape| Some(shape.iter().product()));
        let plan = Plan::new(counts, USUAL_FIRST_BUCKET_BYTES, bucket_bytes);
        for members in plan.members {
            let mut shapes = Vec::new();
            for index in members {
                let count = model.0[index].iter().product();
                put += count;
                shapes.extend([model.0[index].clone(), vec![Plan::padding(count)]]);
            }
            let shapes: Vec<_> = shapes.iter().map(Vec::as_slice).collect();
            let full_ms = self.forward_ms + self.backward_ms * put as f64 / parameters;
            let all_reduce_us = prices.all_reduce_us(topology, wire, &shapes)?;
            buckets.push(Bucket { full_us: 1e3 * full_ms, all_reduce_us });
        }
        let Step { hidden_us, exposed_us } = match self.overlap {
            Overlap::Across => Step::across(&buckets, 1e3 * compute_ms, 1e3 * self.forward_ms),
            overlap if overlap.is_beside(topology.nodes()) => Step::beside(&buckets, 1e3 * compute_ms),
            _ => Step::in_turn(&buckets),
        };
        let update_ms = self.update_ms(model);
        let alone_ms = compute_ms + update_ms;
        let step_ms = alone_ms + exposed_us / 1e3;
        let all_us = hidden_us + exposed_us;
        Ok(Row {
            ranks: topology.ranks(),
            nodes: topology.nodes(),
            strategy: "mirrored",
            wire: wire.to_string(),
            bucket_bytes,
            buckets: buckets.len(),
            step_ms,
            compute_ms,
            hidden_communication_ms: hidden_us / 1e3,
            exposed_communication_ms: exposed_us / 1e3,
            update_ms,
            samples_per_s: topology.ranks() as f64 * self.batch_size as f64 / (step_ms / 1e3),
            efficiency: alone_ms / step_ms,
            hidden_percent: (all_us > 0.0).then_some(100.0 * hidden_us / all_us),
        })
    }

    fn update_ms(&self, model: &Model) -> f64 {
        self.update_ms.unwrap_or(model.parameters() as f64 * UPDATE_BYTES / (UPDATE_GB_PER_S * 1e6))
    }

    /// Predicts parameter servers, with synchronous and with asynchronous workers.
    fn served(&self, model: &Model, topology: &Topology, servers: usize, machine: &Machine) -> [Row; 2] {
        let (update_ms, compute_ms) = (self.update_ms(model), self.forward_ms + self.backward_ms);
        let parameter_bytes = model.parameters() * size_of::<f32>();
        let share = Served {
            parameter_bytes,
            forward_us: 1e3 * self.forward_ms,
            backward_us: 1e3 * self.backward_ms,
            update_us: 1e3 * update_ms,
        };
        let workers = (topology.ranks() - servers) as f64;
        // The time in which all workers together compute as many shares as a step has.
        let asynchronous_us = workers / share.shares_per_us(topology, servers, machine);
        // Each server updates its share of the parameters.
        let own_update_ms = update_ms / servers as f64;
        let row = |strategy, step_us: f64| Row {
            ranks: topology.ranks(),
            nodes: topology.nodes(),
            strategy,
            wire: Wire::F32.to_string(),
            bucket_bytes: parameter_bytes.div_ceil(servers),
            buckets: servers,
            step_ms: step_us / 1e3,
            compute_ms,
            hidden_communication_ms: 0.0,
            exposed_communication_ms: (step_us / 1e3 - compute_ms - own_update_ms).max(0.0),
            update_ms: own_update_ms,
            samples_per_s: workers * self.batch_size as f64 / (step_us / 1e6),
            efficiency: workers * (compute_ms + update_ms) * 1e3 / (step_us * topology.ranks() as f64),
            hidden_percent: None,
        };
        [
            row("parameter-server, staleness 0", share.step_us(topology, servers, machine)),
            row("parameter-server, unbounded", asynchronous_us),
        ]
    }
}

fn table(rows: &[Row], model: &Model, args: &Args) {
    println!(
        "# {} parameters, {} samples per rank and step; forward pass {} ms, backward pass {} ms",
        model.parameters(),
        args.batch_size,
        args.forward_ms,
        args.backward_ms
    );
    println!("# assumption: all-reduces do not slow down concurrent computation");
    println!("# efficiency: throughput relative to the same number of independent ranks");
    println!(
        "# {:>6} {:>6} {:<12} {:>8} {:>10} {:>12} {:>11} {:>9}  {}",
        "ranks", "nodes", "wire", "buckets", "step (ms)", "samples/s", "efficiency", "hidden", "strategy"
    );
    for row in rows {
        let hidden = row.hidden_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %"));
        println!(
            "  {:>6} {:>6} {:<12} {:>8} {:>10.2} {:>12.1} {:>9.1} % {hidden:>9}  {}",
            row.ranks,
            row.nodes,
            row.wire,
            row.buckets,
            row.step_ms,
            row.samples_per_s,
            100.0 * row.efficiency,
            row.strategy
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_double_up_to_the_last() {
        let ranks = |nodes, ranks_per_node| {
            worlds(nodes, ranks_per_node).iter().map(Topology::ranks).collect::<Vec<_>>()
        };
        assert_eq!(ranks(1, 1), [1]);
        assert_eq!(ranks(4, 1), [1, 2, 4]);
        assert_eq!(ranks(6, 8), [1, 8, 16, 32, 48]);
    }
}
