//! `unisono simulate`: predicts times on a hypothetical cluster.

use std::fs;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use unisono::tuning::{self, Tuning};
use unisono::{Memory, Topology};
use unisono_collectives::model::{Link, Machine};

use super::Failure;
use super::values::whole;

mod all_reduce;
mod model;
mod step;

#[derive(Debug, ClapArgs)]
#[group(skip)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    all_reduce: Option<all_reduce::Args>,
    #[command(flatten)]
    cluster: Option<Cluster>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Predict the time of a data-parallel training step
    ///
    /// Assumptions: all ranks compute as fast as a single one, and all-reduces do not slow down concurrent computation. The backward pass produces
    /// gradients at a constant rate, those of the last layer first. Buckets are reduced one at a time, in the order in which they fill.
    Step(step::Args),
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match (&args.what, args.all_reduce.as_ref().zip(args.cluster.as_ref())) {
        (Some(What::Step(args)), _) => step::run(args),
        (None, Some((args, cluster))) => all_reduce::run(args, cluster),
        (None, None) => unreachable!("the command line has one of them"),
    }
}

#[derive(Debug, ClapArgs)]
struct Cluster {
    /// Number of nodes
    #[arg(long, value_name = "M", value_parser = whole(1, MOST_RANKS))]
    nodes: u64,
    /// Number of ranks per node
    #[arg(long, value_name = "L", value_parser = whole(1, MOST_RANKS))]
    ranks_per_node: u64,
    /// Latency in microseconds and bandwidth in GB/s of messages and copies within a node [default: typical ones, not measured]
    #[arg(long, value_name = "ALPHA_US,GB_PER_S", value_parser = link)]
    intra: Option<Link>,
    /// Latency in microseconds and bandwidth in GB/s of messages between nodes; the ranks of a node share the bandwidth
    #[arg(long, value_name = "ALPHA_US,GB_PER_S", value_parser = link)]
    inter: Option<Link>,
    /// Tuning file of `unisono tune` to use instead of the default constants
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
}

/// The maximum number of ranks. With more, the steps of a single rank's ring no longer fit into a cache, and the simulation takes minutes.
const MOST_RANKS: u64 = 1 << 15;

fn link(text: &str) -> Result<Link, String> {
    let numbers = text.split_once(',').map(|(alpha, rate)| (alpha.parse(), rate.parse()));
    let Some((Ok(alpha_us), Ok(gb_per_s))) = numbers else {
        return Err("expected ALPHA_US,GB_PER_S, such as 15,1.25".to_owned());
    };
    Link::uniform(alpha_us, gb_per_s).map_err(|error| error.to_string())
}

impl Cluster {
    fn topology(&self) -> Result<Topology, Failure> {
        if self.nodes * self.ranks_per_node > MOST_RANKS {
            let (nodes, ranks_per_node) = (self.nodes, self.ranks_per_node);
            let too_many = format!(
                "{nodes} nodes of {ranks_per_node} ranks are more than {MOST_RANKS} ranks: choose fewer --nodes or --ranks-per-node"
            );
            return Err(Failure::BadInput(too_many));
        }
        Ok(Topology::uniform(self.nodes as usize, self.ranks_per_node as usize))
    }

    fn machine(&self) -> Result<Machine, Failure> {
        let mut machine = match &self.tuning {
            None => Machine::default(),
            Some(file) => {
                let name = file.display();
                let bad = |why: String| Failure::BadInput(format!("--tuning: {why}"));
                let text = fs::read_to_string(file);
                let text = text.map_err(|error| bad(format!("cannot read `{name}`: {error}")))?;
                let sections = tuning::read(&text);
                let sections = sections
                    .map_err(|error| bad(format!("`{name}`, {error}; expected a file of `unisono tune`")))?;
                let transport = if self.nodes > 1 { "shm+mpi" } else { "shm" };
                let tuning = Tuning::default().with(sections);
                tuning.machine(transport, Memory::Registered, usize::MAX)
            }
        };
        if let Some(link) = &self.intra {
            // Without a measurement, a single pass is assumed to cost as much as the messages that it replaces.
            machine.one_pass = Some(link.clone());
            machine.intra = link.clone();
        }
        if let Some(link) = &self.inter {
            machine.inter = link.clone();
        }
        Ok(machine)
    }
}
