//! In a program that has an MPI of its own already: `mpirun -n 4 attach`.
//!
//! The program initialises and finalises MPI; Unisono works on a duplicate of the communicator that it is
//! given, here one of every second rank.

use std::error::Error;

use unisono::mpi::topology::{Color, SimpleCommunicator};
// Its `Communicator` is a trait, which is needed, but not by name.
use unisono::mpi::traits::{Communicator as _, *};
use unisono::{Communicator, ReduceOp};

fn main() -> Result<(), Box<dyn Error>> {
    let universe = unisono::mpi::initialize().expect("MPI was not initialised before");
    let world = universe.world();
    let parity = world.rank() % 2;
    let half = world.split_by_color(Color::with_value(parity)).expect("every rank has a colour");

    let mut comm = Communicator::attach(&half)?;
    // The other ranks, which would wait for this one, are told what it fails of.
    work(&world, &mut comm).inspect_err(|error| comm.fail(&error.to_string()))
}

fn work(world: &SimpleCommunicator, comm: &mut Communicator) -> Result<(), Box<dyn Error>> {
    let parity = world.rank() % 2;
    let mut sum = [world.rank() as i64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;

    // The program's own messages and Unisono's do not meet.
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
