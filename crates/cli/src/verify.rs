//! `unisono verify`: proves schedules correct for every rank of every world.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::Args as ClapArgs;
use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use unisono::{Algorithm, Operation, Topology};
use unisono_collectives::{Defect, verify};

use super::Failure;
use super::values::{MOST_RANKS, OneOrAll, one_or_all};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Algorithms, comma-separated, or all
    #[arg(long, default_value = "all", value_delimiter = ',')]
    #[arg(value_parser = one_or_all(Algorithm::ALL, Algorithm::name))]
    algorithm: Vec<OneOrAll<Algorithm>>,
    /// World sizes: a range A:B, or a single size
    #[arg(long, value_name = "A:B", default_value = "1:64", value_parser = ranks)]
    ranks: RangeInclusive<usize>,
}

fn ranks(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (from, to) = text.split_once(':').unwrap_or((text, text));
    let parse = |text: &str| text.parse::<usize>().ok().filter(|ranks| (1..=MOST_RANKS).contains(ranks));
    match (parse(from), parse(to)) {
        (Some(from), Some(to)) if from <= to => Ok(from..=to),
        _ => Err(format!("expected A:B with 1 <= A <= B <= {MOST_RANKS}, such as 1:64")),
    }
}

/// The maximum number of worlds to prove concurrently, if there are enough cores. The plans and values of 1024 ranks take half a gigabyte.
const MOST_AT_ONCE: usize = 4;

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_AT_ONCE);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| Failure::Error(format!("cannot start {threads} threads: {error}")))?;
    let mut right = true;
    for algorithm in OneOrAll::distinct(&args.algorithm) {
        let started = Instant::now();
        let worlds: Vec<_> = args.ranks.clone().flat_map(|ranks| topologies(algorithm, ranks)).collect();
        let proofs: Vec<_> =
            pool.install(|| worlds.par_iter().flat_map_iter(|world| proofs(algorithm, world)).collect());
        let seconds = started.elapsed().as_secs_f64();
        for Proof { operation, ranks, defects } in &proofs {
            for defect in defects {
                println!("{algorithm}, {operation} over {ranks} ranks: {defect}");
            }
        }
        let defects: usize = proofs.iter().map(|proof| proof.defects.len()).sum();
        let verdict = if defects == 0 { "correct".to_owned() } else { format!("WRONG, {defects} defects") };
        println!("{algorithm:<18}  {:>5} plans  {seconds:>6.2} s  {verdict}", proofs.len());
        right &= defects == 0;
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Proof {
    operation: Operation,
    ranks: usize,
    defects: Vec<Defect>,
}

fn proofs(algorithm: Algorithm, world: &Topology) -> impl Iterator<Item = Proof> {
    let ranks = world.ranks();
    // The root is in the middle, if there is a middle rank.
    Operation::all(ranks / 2).into_iter().filter_map(move |operation| {
        let plans = algorithm.plans(operation, world)?;
        Some(Proof { operation, ranks, defects: verify(&plans, operation) })
    })
}

/// Returns all topologies of this many ranks that differ for an algorithm: one node and, for hierarchical algorithms, every even division into nodes
/// and an uneven one.
fn topologies(algorithm: Algorithm, ranks: usize) -> Vec<Topology> {
    let mut topologies = vec![Topology::single_node(ranks)];
    if algorithm.descriptor().levels.is_some() {
        let divisors = (2..=ranks).filter(|nodes| ranks.is_multiple_of(*nodes));
        topologies.extend(divisors.map(|nodes| Topology::uniform(nodes, ranks / nodes)));
        if ranks > 2 {
            topologies.push(Topology::from_node_sizes(&[ranks - ranks / 3, ranks / 3]));
        }
    }
    topologies
}
