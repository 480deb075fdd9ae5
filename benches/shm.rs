//! All-reduce between two processes that share memory: `cargo bench --bench shm`.
//!
//! It launches itself under `mpirun -n 2`. Rank 0 measures, and tells rank 1 what to do. For a table beside MPI's own
//! all-reduce there is `unisono bench`.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use unisono::config::Launcher;
use unisono::{Algorithm, Choice, Communicator, ReduceOp, Registered};

const SIZES_BYTES: [usize; 5] = [8, 4 << 10, 256 << 10, 4 << 20, 64 << 20];
const MENU: [Algorithm; 3] = [Algorithm::RecursiveDoubling, Algorithm::Tree, Algorithm::Ring];

/// What both ranks do next: the position of the algorithm in the menu, the size of the array, and how often. Never, at
/// the end.
type Order = [u64; 3];

fn main() -> ExitCode {
    if Launcher::detect().ranks.is_none() {
        return launch();
    }
    let mut comm = unisono::init().expect("two ranks under mpirun");
    let most = SIZES_BYTES.iter().copied().max().unwrap_or(0);
    let mut array = comm.alloc::<f32>(most / size_of::<f32>()).expect("memory for a benchmark");
    if comm.rank() == 0 {
        measure(&mut comm, &mut array);
        carry_out(&mut comm, &mut array, [0; 3]);
    } else {
        while carry_out(&mut comm, &mut array, [0; 3]).is_some() {}
    }
    ExitCode::SUCCESS
}

/// Starts this program again, on two ranks.
fn launch() -> ExitCode {
    let own = std::env::current_exe().expect("a program knows its path");
    let mut command = Command::new("mpirun");
    let is_open_mpi = Command::new("mpirun")
        .arg("--version")
        .output()
        .is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("Open MPI"));
    if is_open_mpi {
        command.arg("--oversubscribe");
    }
    let status = command.args(["-n", "2"]).arg(own).args(std::env::args().skip(1)).status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("shm: mpirun does not start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Carries out rank 0's order on both ranks. The time that it took, unless there was nothing to do.
fn carry_out(comm: &mut Communicator, array: &mut Registered<f32>, mut order: Order) -> Option<Duration> {
    comm.set_choice(Choice::Auto).expect("auto is always there");
    comm.broadcast(&mut order, 0).expect("both are there");
    let [algorithm, size_bytes, iterations] = order.map(|number| number as usize);
    if iterations == 0 {
        return None;
    }
    comm.set_choice(Choice::Algorithm(MENU[algorithm])).expect("every algorithm is there");
    let part = &mut array[..size_bytes / size_of::<f32>()];
    comm.barrier().expect("both are there");
    let began = Instant::now();
    for _ in 0..iterations {
        comm.all_reduce(part, ReduceOp::Max).expect("both do the same");
    }
    Some(began.elapsed())
}

fn measure(comm: &mut Communicator, array: &mut Registered<f32>) {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("two processes, registered memory");
    group.sample_size(10).measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    for size_bytes in SIZES_BYTES {
        group.throughput(Throughput::Bytes(size_bytes as u64));
        for (position, algorithm) in MENU.iter().enumerate() {
            group.bench_function(BenchmarkId::new(algorithm.name(), size_bytes), |bencher| {
                bencher.iter_custom(|iterations| {
                    let order = [position as u64, size_bytes as u64, iterations];
                    carry_out(comm, array, order).unwrap_or_default()
                });
            });
        }
    }
    group.finish();
}
