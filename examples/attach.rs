//! A program that uses MPI itself: `mpirun -n 4 attach`.
//!
//! The program initialises and finalises MPI; Unisono uses a duplicate of the given communicator, here of every second rank.

use std::error::Error;

use unisono::mpi::topology::{Color, SimpleCommunicator};
// The trait `Communicator` is imported for its methods, unnamed.
use unisono::mpi::traits::{Communicator as _, *};
use unisono::{Communicator, ReduceOp};

fn main() -> Result<(), Box<dyn Error>> {
    let universe = unisono::mpi::initialize().expect("MPI was not initialised before");
    let world = universe.world();
    let parity = world.rank() % 2;
    let half = world.split_by_color(Color::with_value(parity)).expect("every rank has a colour");

    let mut comm = Communicator::attach(&half)?;
    // Reports the error to the other ranks, which would otherwise wait for this one.
    work(&world, &mut comm).inspect_err(|error| comm.fail(&error.to_string()))
}

fn work(world: &SimpleCommunicator, comm: &mut Communicator) -> Result<(), Box<dyn Error>> {
    let parity = world.rank() % 2;
    let mut sum = [world.rank() as i64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;

    // The program's messages and Unisono's are separate.
    world.barrier();
    let expected: i64 = (0..i64::from(world.size())).filter(|rank| rank % 2 == i64::from(parity)).sum();
    assert_eq!(sum[0], expected);
    if comm.rank() == 0 {
        println!(
            "the ranks with parity {parity} are {}, and their numbers add up to {expected}",
            comm.ranks()
        );
    }
    Ok(())
}
