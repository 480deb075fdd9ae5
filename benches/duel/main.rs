//! Unisono, MPI's collectives and bare loops, alternating in one process: `cargo bench --bench duel -- --help`.
//!
//! This is an ordinary user program: it initialises MPI itself, and attaches Unisono to it. It launches itself under
//! `mpirun` (or the command in `UNISONO_TEST_MPIRUN`); under a launcher it is one rank. The result of every contender is
//! checked before it is measured; `cargo test --bench duel` does little else.
//!
//! *Warm* calls are back to back. *Written*: each rank writes its whole array before every call, like a program that
//! computes gradients, and a barrier precedes the clock.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum as _};
use unisono::config::Launcher;
use unisono::mpi::traits::*;
use unisono::size::bytes;

mod arena;
mod case;
mod floor;
mod measure;
mod report;
mod shared;
mod vendor;

use arena::Arena;
use case::{Case, Operation, Place, State};
use report::Format;
use unisono_testing::launch;

/// Compares Unisono with MPI's collectives and bare loops, alternating in one process
#[derive(Debug, Parser)]
#[command(name = "duel")]
struct Args {
    /// Ranks to launch; bare loops exist for 2
    #[arg(long, default_value_t = 2, requires = "bench", value_parser = clap::value_parser!(u64).range(1..=1024))]
    ranks: u64,
    /// The operations to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all-reduce", requires = "bench")]
    operation: Vec<Operation>,
    /// The sizes of the array of each rank, separated by commas; K, M and G are 2^10, 2^20 and 2^30
    #[arg(long, value_delimiter = ',', requires = "bench", value_parser = size)]
    bytes: Option<Vec<usize>>,
    /// In place, out of place or both, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "in-place,out-of-place")]
    place: Vec<Place>,
    /// Warm, written or both, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "warm,written")]
    state: Vec<State>,
    /// The number of registered arrays of Unisono, used alternately
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    arrays: u16,
    /// Unisono's calls on a group of all ranks, with registered memory of the world
    #[arg(long)]
    group: bool,
    /// The approximate total time of measurement; the largest arrays may exceed it
    #[arg(long, value_name = "S", default_value_t = 120.0, requires = "bench", value_parser = seconds)]
    seconds: f64,
    /// The output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Passed by `cargo bench` to every benchmark, and not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
    /// Names of tests to run; none matches this program
    #[arg(hide = true)]
    tests: Vec<String>,
}

impl Args {
    /// Runs every case as briefly as possible. The options that this replaces need `--bench`.
    fn for_test(self) -> Self {
        let operation = Operation::value_variants().to_vec();
        Self { operation, bytes: Some(vec![8, 100_000]), seconds: 0.0, ..self }
    }
}

/// The limit beyond the requested time.
const TIMEOUT: Duration = Duration::from_secs(600);

fn size(text: &str) -> Result<usize, String> {
    bytes(text).filter(|&size| size > 0).ok_or_else(|| "expected a size such as 8, 64K or 256M".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds));
    seconds.ok_or_else(|| "expected a number of seconds from 0 to 1000000".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !args.tests.is_empty() {
        return ExitCode::SUCCESS;
    }
    let (args, worlds) = match args.ranks {
        ranks if args.bench => (args, vec![ranks]),
        _ => (args.for_test(), vec![2, 3]),
    };
    if Launcher::detect().ranks.is_none() {
        let succeeded = worlds.into_iter().all(|ranks| launched(&args, ranks));
        return if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // Unwinding would finalise MPI, which waits for ranks that wait for this one.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
    duel(&args);
    ExitCode::SUCCESS
}

/// Starts this program again on all ranks; returns whether it succeeded.
fn launched(args: &Args, ranks: u64) -> bool {
    let mut command = launch::mpirun(ranks as usize, &launch::this_program());
    command.args(std::env::args().skip(1));
    let ended = launch::run(command, TIMEOUT + Duration::from_secs_f64(args.seconds));
    print!("{}", ended.stdout);
    eprint!("{}", ended.stderr);
    ended.status.success()
}

/// Runs one rank.
fn duel(args: &Args) {
    // Planned calls of more than 56 bytes run on the communication thread.
    let (universe, _) = unisono::mpi::initialize_with_threading(unisono::mpi::Threading::Serialized)
        .expect("MPI is not initialised yet");
    let world = universe.world();
    let mut comm = unisono::Communicator::attach(&world).expect("the ranks of one launch");
    let all: Vec<_> = (0..comm.ranks()).collect();
    let mut group = args.group.then(|| comm.group(&all).expect("a group of all ranks")).flatten();
    let cases = cases(args);
    let budget = Duration::from_secs_f64(args.seconds / cases.len() as f64);
    let talks = world.rank() == 0;
    if talks {
        args.format.begin(world.size() as usize);
    }
    let mut last = None;
    for case in cases {
        let part = (case.operation, case.place, case.state);
        if talks && last != Some(part) {
            args.format.title(&case);
            last = Some(part);
        }
        let arrays = usize::from(args.arrays);
        let Some(mut arena) = Arena::new(&world, &mut comm, (group.as_mut(), arrays), case) else {
            if talks {
                eprintln!("duel: {} bytes are too many for the memory of this machine", case.size_bytes);
            }
            continue;
        };
        let row = measure::measure(&mut arena, &world, budget);
        if talks {
            args.format.row(&row);
        }
    }
}

/// Returns all cases, by operation, place, state and size.
fn cases(args: &Args) -> Vec<Case> {
    let mut cases = Vec::new();
    for &operation in &args.operation {
        for place in operation.places().filter(|place| args.place.contains(place)) {
            for &state in &args.state {
                let sizes = match &args.bytes {
                    _ if operation == Operation::Barrier => &[0][..],
                    Some(sizes) => sizes,
                    None => operation.usual_sizes(),
                };
                cases.extend(sizes.iter().map(|&size_bytes| Case { operation, place, state, size_bytes }));
            }
        }
    }
    cases.dedup();
    cases
}
