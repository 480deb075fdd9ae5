//! `unisono explain`: draws a schedule, or the programs that execute it.

use clap::{Args as ClapArgs, Subcommand};
use unisono::{Algorithm, Operation, Topology};
use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::model::Machine;
use unisono_collectives::{explain, explain_programs, explain_svg, names};
use unisono_steps::pipeline::PipelineSchedule;

use super::Failure;
use super::values::{MOST_RANKS, Sizes, named, sizes, whole};

#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Algorithm to draw
    #[arg(required = true, value_parser = named(Algorithm::ALL.map(Algorithm::name), str::parse::<Algorithm>))]
    algorithm: Option<Algorithm>,
    /// Number of ranks
    #[arg(long, required = true, value_name = "P", value_parser = whole(1, MOST_RANKS))]
    ranks: Option<usize>,
    /// Number of nodes, over which ranks are distributed as evenly as possible
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = whole(1, MOST_RANKS))]
    nodes: usize,
    /// Collective operation
    #[arg(long, default_value = "all-reduce", value_parser = named(Operation::all(0).map(Operation::name), operation))]
    operation: Operation,
    /// Draw the program of each rank, instruction by instruction, instead of the schedule; nodes have shared memory and are connected by a network
    #[arg(long)]
    program: bool,
    /// Draw an SVG document instead of text
    #[arg(long, conflicts_with = "program")]
    svg: bool,
    /// Array sizes in bytes, as for bench, with --program; elements have 4 bytes
    #[arg(long, value_name = "MIN:MAX[:FACTOR]", default_value = "1M", requires = "program", value_parser = sizes)]
    bytes: Sizes,
}

/// Drawings of other things than collectives.
#[derive(Debug, Subcommand)]
enum Other {
    /// Draw the schedule of a pipeline: the passes of each rank over time, and the idle time
    Pipeline(Pipeline),
}

#[derive(Debug, ClapArgs)]
struct Pipeline {
    /// Number of ranks of the pipeline; each holds one stage of the model, or several in an interleaved schedule
    #[arg(long, value_name = "S", value_parser = whole(1, MOST_STAGES))]
    stages: usize,
    /// Number of micro-batches per step
    #[arg(long, value_name = "M", value_parser = whole(1, MOST_STAGES))]
    micro_batches: usize,
    /// Order of the passes: gpipe, 1f1b, or interleaved:STAGES (STAGES per rank)
    #[arg(long, default_value = "1f1b")]
    schedule: PipelineSchedule,
}

/// The maximum number of stages and micro-batches. Larger drawings are unreadable.
const MOST_STAGES: usize = 256;
/// The maximum number of ranks in an SVG document, which grows with the cube of their number: 64 ranks of a ring have 65 MB.
const MOST_SVG_RANKS: usize = 64;
const ELEMENT_SIZE_BYTES: usize = 4;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(Other::Pipeline(pipeline)) = &args.other {
        return draw_pipeline(pipeline);
    }
    let (Some(algorithm), Some(ranks)) = (args.algorithm, args.ranks) else {
        unreachable!("the command line requires an algorithm and its ranks");
    };
    if !(1..=ranks).contains(&args.nodes) {
        return Err(Failure::BadInput(format!(
            "--nodes must be at most --ranks {ranks}, got `{}`",
            args.nodes
        )));
    }
    if args.svg && ranks > MOST_SVG_RANKS {
        return Err(Failure::BadInput(format!("--svg draws at most {MOST_SVG_RANKS} ranks, got `{ranks}`")));
    }
    let sizes: Vec<_> = (0..args.nodes).map(|node| (ranks + node) / args.nodes).rev().collect();
    let topology = Topology::from_node_sizes(&sizes);
    let operation = args.operation;
    let Some(plans) = algorithm.plans(operation, &topology) else {
        let offers = |algorithm: &Algorithm| algorithm.plans(operation, &topology).is_some();
        let others: Vec<_> = Algorithm::ALL.into_iter().filter(offers).map(Algorithm::name).collect();
        return Err(Failure::BadInput(format!(
            "{algorithm} does not support {operation}; supported by {}",
            others.join(", ")
        )));
    };
    let name = algorithm.name();
    if args.program {
        let capabilities = Capabilities::of(&Machine::default(), &topology);
        let compile = |rank| CompiledPlan::new(algorithm, operation, &topology, rank);
        let compiled: Vec<_> = (0..ranks).filter_map(compile).collect();
        for size_bytes in &args.bytes.0 {
            let count = size_bytes.div_ceil(ELEMENT_SIZE_BYTES);
            let program = |plan: &CompiledPlan| plan.program(count, ELEMENT_SIZE_BYTES, &capabilities);
            let execution = compiled[0].execution(count, ELEMENT_SIZE_BYTES, &capabilities);
            let programs: Vec<_> = compiled.iter().map(program).collect();
            print!("{}", explain_programs(name, operation, &topology, execution, &programs));
        }
    } else {
        let draw = if args.svg { explain_svg } else { explain };
        print!("{}", draw(name, operation, &topology, &plans));
    }
    Ok(())
}

fn draw_pipeline(args: &Pipeline) -> Result<(), Failure> {
    let plan = args.schedule.plan(args.stages, args.micro_batches).map_err(Failure::BadInput)?;
    print!("{}", plan.draw());
    Ok(())
}

/// Parses the name of an operation. Its root is rank 0.
fn operation(name: &str) -> Result<Operation, names::UnknownName> {
    names::find("operation", name, &Operation::all(0), Operation::name)
}
