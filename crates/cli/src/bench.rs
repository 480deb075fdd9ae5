//! `unisono bench`: benchmarks algorithms and vendor collectives, for every operation.

use clap::{ArgAction, Args as ClapArgs};
#[cfg(feature = "nccl")]
use unisono::Error;
use unisono::select::InvalidChoice;
use unisono::{Algorithm, Choice, Communicator, DType, Memory, ReduceOp, Vendor};
use unisono_bench::{Operation, Settings, measure, room};
use unisono_compress::Compression;

use super::Failure;
use super::output::{self, Format};
use super::values::{OneOrAll, Sizes, distinct, named, one_or_all, sizes, whole};
use super::world::World;

mod columns;
mod rows;
mod wire;

use rows::Rows;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Algorithms to benchmark, comma-separated, or rules by size, such as "tree:0-8K;ring:8K-" [default: auto, and the collectives of MPI, or of
    /// NCCL for --memory device, if available]
    #[arg(long, value_delimiter = ',')]
    #[arg(value_parser = named(["all"].into_iter().chain(Choice::names()), contenders))]
    algorithm: Vec<Contenders>,
    /// Operations to benchmark, comma-separated; send-recv measures messages between the first and the last rank: half the round-trip time, and the
    /// bandwidth with 64 messages in flight
    #[arg(long, default_value = "all-reduce", value_delimiter = ',')]
    #[arg(value_parser = one_or_all(Operation::ALL, Operation::name))]
    operation: Vec<OneOrAll<Operation>>,
    /// Array size in bytes, or sizes from MIN to MAX, each FACTOR times the previous one (2 by default); the suffixes K, M and G mean 2^10, 2^20 and
    /// 2^30
    #[arg(long, value_name = "MIN:MAX[:FACTOR]", default_value = "8:16M", value_parser = sizes)]
    bytes: Sizes,
    /// Element type
    #[arg(long, default_value = "f32", value_parser = named(DType::ALL.map(DType::name), str::parse::<DType>))]
    dtype: DType,
    /// Reduction operator, for operations that reduce
    #[arg(long, default_value = "sum")]
    #[arg(value_parser = named(ReduceOp::ALL.map(ReduceOp::name), str::parse::<ReduceOp>))]
    op: ReduceOp,
    /// Memory of the array: slice (any host memory), registered (host memory that the communicator allocates) or device (GPU memory)
    #[arg(long, default_value = "slice", value_parser = named(Memory::ALL.map(Memory::name), str::parse::<Memory>))]
    memory: Memory,
    /// Wire formats between nodes to compare with f32, comma-separated: int8, int4, int8:stochastic, int4:stochastic, onebit, topk:FRACTION,
    /// threshold:MAGNITUDE, powersgd:RANK
    #[arg(long, value_name = "WIRE,WIRE", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["algorithm", "operation", "dtype", "op", "memory", "overlap", "check"])]
    wire: Vec<Compression>,
    /// Measured iterations per algorithm and size [default: depends on the size]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_ITERATIONS))]
    iterations: Option<usize>,
    /// Warm-up iterations before the measured ones
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(0, MOST_ITERATIONS))]
    warm_up: usize,
    /// Check every result against locally computed values; exit with code 1 if an element is wrong
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true")]
    #[arg(require_equals = true, action = ArgAction::Set)]
    check: bool,
    /// Also measure the overlap: the fraction of an asynchronous call that is hidden by a computation of equal duration
    #[arg(long)]
    overlap: bool,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
    #[command(flatten)]
    world: World,
}

#[derive(Debug, Clone)]
enum Contenders {
    All,
    One(Choice),
}

fn contenders(name: &str) -> Result<Contenders, InvalidChoice> {
    if name == "all" { Ok(Contenders::All) } else { name.parse().map(Contenders::One) }
}

impl Contenders {
    fn choices(&self, memory: Memory) -> Vec<Choice> {
        let all = Algorithm::ALL.map(Choice::from).into_iter();
        match self {
            Self::All if memory == Memory::Device => all.chain([Choice::from(Vendor::Nccl)]).collect(),
            Self::All => all.collect(),
            Self::One(choice) => vec![choice.clone()],
        }
    }
}

/// The maximum number of iterations. A benchmark stores the time of each.
const MOST_ITERATIONS: usize = 10_000_000;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if !args.wire.is_empty() {
        return args.world.run(|comm| wire::on_rank(comm, args));
    }
    let mut contenders =
        distinct(args.algorithm.iter().flat_map(|contenders| contenders.choices(args.memory)));
    if contenders.is_empty() {
        contenders.push(Choice::Auto);
    }
    if let Some(why) = without_gpu(&contenders, args.memory) {
        return Err(super::refused(why));
    }
    let settings = Settings {
        contenders,
        operations: OneOrAll::distinct(&args.operation),
        sizes_bytes: args.bytes.0.clone(),
        dtype: args.dtype,
        op: args.op,
        memory: args.memory,
        iterations: args.iterations,
        warm_up: args.warm_up,
        checks: args.check,
        overlap: args.overlap,
    };
    args.world.run(|comm| {
        let mut settings = settings.clone();
        if args.algorithm.is_empty() {
            settings.contenders.extend(baseline(comm, &settings));
        }
        on_rank(comm, args, &settings)
    })
}

fn on_rank(comm: &mut Communicator, args: &Args, settings: &Settings) -> Result<(), Failure> {
    let is_root = comm.rank() == 0;
    if let Some(why) = refused(comm, settings) {
        return Err(Failure::refusal(is_root, why));
    }
    if let Some(why) = room(comm, settings)? {
        return Err(Failure::refusal(is_root, why));
    }
    let route = if settings.memory == Memory::Device { Some(device_route(comm)?) } else { None };
    let is_table = is_root && args.format == Format::Table;
    let columns = columns::columns(settings, output::columns());
    let writer =
        is_root.then(|| Rows::begin(args.format, &about(comm, settings, route), columns, columns::CSV));
    let (mut wrong, mut rows, mut operation) = (0, 0, "");
    let left_out = measure(comm, settings, |row| {
        wrong += row.wrong.unwrap_or(0);
        rows += 1;
        if std::mem::replace(&mut operation, row.operation) != row.operation && is_table {
            println!("# {operation}");
        }
        writer.iter().for_each(|writer| writer.write(&row));
    })?;
    let left_out = left_out_of(left_out);
    if rows == 0 {
        return Err(Failure::refusal(is_root, format!("nothing was measured: {}", left_out.join("; "))));
    }
    left_out.iter().filter(|_| is_root).for_each(|line| eprintln!("unisono: {line}"));
    if wrong > 0 {
        return Err(Failure::Error(format!("{wrong} elements were wrong")));
    }
    if is_table {
        println!("# {rows} rows, {}", if args.check { "no element wrong" } else { "results not checked" });
    }
    Ok(())
}

/// Returns the header lines about a benchmark. `route` is the transport of GPU arrays.
fn about(comm: &Communicator, settings: &Settings, route: Option<String>) -> Vec<String> {
    let (ranks, nodes, transport) = (comm.ranks(), comm.topology().nodes(), comm.transport());
    let Settings { op, dtype, memory, .. } = settings;
    let mut lines = vec![
        format!("{ranks} ranks on {nodes} node(s) over {transport}; {op} of {dtype}, {memory} memory"),
        "times of the slowest rank, median and best; algbw and busbw as in nccl-tests".to_owned(),
    ];
    lines.extend(route.map(|route| format!("arrays on GPUs: {route}")));
    if comm.is_oversubscribed() {
        lines.push("oversubscribed (more ranks than cores): times are not representative".to_owned());
    }
    lines
}

/// Returns the collectives to compare `auto` with, if there are any. The result is identical on all ranks.
fn baseline(comm: &mut Communicator, settings: &Settings) -> Option<Choice> {
    if settings.memory == Memory::Device {
        return cfg!(feature = "nccl").then_some(Vendor::Nccl.into());
    }
    let has_collectives = settings.operations.iter().any(|&operation| operation != Operation::SendRecv);
    (has_collectives && without_mpi(comm, settings).is_none()).then_some(Vendor::Mpi.into())
}

/// Returns one line per reason for leaving out contenders.
fn left_out_of(mut rest: Vec<(Choice, String)>) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((_, why)) = rest.first().cloned() {
        let names: Vec<_> =
            rest.extract_if(.., |(_, other)| *other == why).map(|(choice, _)| choice.to_string()).collect();
        let are = if names.len() == 1 { "is" } else { "are" };
        lines.push(format!("{} {are} skipped: {why}", names.join(", ")));
    }
    lines
}

/// Returns the error for contenders that cannot run in this kind of memory: NCCL needs GPU memory.
fn without_gpu(contenders: &[Choice], memory: Memory) -> Option<String> {
    let is_nccl = |choice: &&Choice| choice.vendor() == Some(Vendor::Nccl);
    let choice = contenders.iter().find(is_nccl).filter(|_| memory != Memory::Device)?;
    Some(format!(
        "{choice} works on GPU memory, not on --memory {memory}: add --memory device, or choose another --algorithm"
    ))
}

/// Returns the error for an invalid benchmark. MPI's own collectives are not available everywhere, and GPU arrays support only all-reduce. The result
/// is identical on all ranks.
fn refused(comm: &mut Communicator, settings: &Settings) -> Option<String> {
    if settings.memory == Memory::Device
        && let Some(operation) =
            settings.operations.iter().find(|&&operation| operation != unisono::Operation::AllReduce.into())
    {
        return Some(format!(
            "--memory device supports all-reduce only, not {operation}: choose another --memory"
        ));
    }
    if settings.memory == Memory::Device && settings.overlap {
        return Some(
            "--overlap has no effect with --memory device: remove it, or choose another --memory".to_owned(),
        );
    }
    if settings.contenders.contains(&Vendor::Mpi.into()) { without_mpi(comm, settings) } else { None }
}

/// Returns the error if MPI's own collectives cannot be measured.
fn without_mpi(comm: &mut Communicator, settings: &Settings) -> Option<String> {
    if let Err(error) = comm.collective(Vendor::Mpi) {
        return Some(error.to_string());
    }
    let Settings { dtype, operations, .. } = settings;
    let reduces_halves = dtype.is_half() && operations.iter().any(|operation| operation.reduces());
    reduces_halves.then(|| format!("MPI has no {dtype}: remove mpi, or choose another --dtype"))
}

/// Returns the transport of GPU arrays. If a rank has no GPU, all ranks get the reason, and rank 0 reports it.
#[cfg(feature = "nccl")]
fn device_route(comm: &mut Communicator) -> Result<String, Failure> {
    comm.device_route().map_err(|error| match error {
        Error::Unsupported(_) => Failure::refusal(comm.rank() == 0, error),
        error => Failure::BadInput(error.to_string()),
    })
}

#[cfg(not(feature = "nccl"))]
fn device_route(_: &mut Communicator) -> Result<String, Failure> {
    Err(Failure::BadInput(format!("--memory device {}", super::features::needs(&["nccl"]))))
}
