//! `unisono explain`: the schedule, drawn.

use clap::Args as ClapArgs;
use unisono::{Algorithm, Operation, Topology};
use unisono_collectives::explain;
use unisono_collectives::names;

use super::values::{named, whole};
use super::{Failure, speaks};

/// What is drawn.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The algorithm
    #[arg(value_parser = named(Algorithm::ALL.map(Algorithm::name), str::parse::<Algorithm>))]
    algorithm: Algorithm,
    /// How many ranks
    #[arg(long, value_name = "P", value_parser = whole(1, MOST_RANKS))]
    ranks: usize,
    /// On how many nodes they live, as evenly as possible
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = whole(1, MOST_RANKS))]
    nodes: usize,
    /// Which collective
    #[arg(long, default_value = "all-reduce", value_parser = named(Operation::all(0).map(Operation::name), operation))]
    operation: Operation,
}

const MOST_RANKS: usize = 1024;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let ranks = args.ranks;
    if !(1..=ranks).contains(&args.nodes) {
        return Err(Failure::BadInput(format!("{ranks} ranks cannot live on {} nodes", args.nodes)));
    }
    let sizes: Vec<_> = (0..args.nodes).map(|node| (ranks + node) / args.nodes).rev().collect();
    let topology = Topology::from_node_sizes(&sizes);
    let operation = args.operation;
    let Some(plans) = args.algorithm.plans(operation, &topology) else {
        return Err(Failure::BadInput(format!("{} does not offer {operation}", args.algorithm)));
    };
    if speaks() {
        print!("{}", explain(args.algorithm.name(), operation, &topology, &plans));
    }
    Ok(())
}

/// The operation of this name, with rank 0 as its root.
fn operation(name: &str) -> Result<Operation, names::UnknownName> {
    names::find("operation", name, &Operation::all(0), Operation::name)
}
