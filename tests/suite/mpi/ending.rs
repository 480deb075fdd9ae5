//! Ranks that end before others.

use std::process::ExitCode;
use std::time::Duration;

use unisono::{Communicator, ReduceOp, Unisono};
use unisono_testing::suite::Test;

use super::launch;

pub(super) fn tests() -> [Test; 2] {
    [
        ("a process continues after another has failed", "failed rank stays"),
        ("a process continues after another has failed and left", "failed rank leaves"),
    ]
    .map(|(name, role)| Test::new(name, move || continues(role)))
}

/// Rank 0 leaves while the others wait for it. MPI stays initialised: when a rank aborts while another finalises, Open MPI 4's
/// mpirun may hang.
pub(super) fn left() -> ExitCode {
    let universe = unisono::mpi::initialize().expect("MPI is not initialised yet");
    let mut comm = Communicator::attach(&universe.world()).unwrap();
    if comm.rank() == 0 {
        drop(comm);
        std::thread::sleep(Duration::from_secs(5));
    } else {
        comm.all_reduce(&mut vec![1_u8; 1 << 20], ReduceOp::Sum).unwrap();
    }
    ExitCode::SUCCESS
}

/// Rank 1 fails in a program that gets errors, and rank 0 drops its communicator, before or after rank 1. Both processes continue.
pub(super) fn fails(leaves: bool) -> ExitCode {
    let pause = |seconds| std::thread::sleep(Duration::from_secs(seconds));
    let mut comm = Unisono::builder().mpi().unwrap();
    comm.barrier().unwrap();
    let rank = comm.rank();
    if rank == 1 {
        comm.fail("on purpose");
    } else {
        pause(1);
    }
    let kept = (rank == 1 && !leaves).then_some(comm);
    pause(1);
    println!("rank {rank} continues");
    // The launcher ends the job once a process has ended without finalising MPI.
    pause(3);
    drop(kept);
    ExitCode::SUCCESS
}

fn continues(role: &str) {
    let ended = launch(2, role, &[]);
    for rank in 0..2 {
        assert!(ended.stdout.contains(&format!("rank {rank} continues")), "{ended}");
    }
}
