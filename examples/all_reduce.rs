//! The smallest complete program: `mpirun -n 4 all_reduce`.

use unisono::{Communicator, ReduceOp};

fn main() -> std::process::ExitCode {
    unisono::run(train)
}

fn train(comm: &mut Communicator) -> Result<(), Box<dyn std::error::Error>> {
    let mut gradients = vec![comm.rank() as f32; 1_000_000];
    let ran = comm.all_reduce(&mut gradients, ReduceOp::Mean)?;

    let expected = (comm.ranks() - 1) as f32 / 2.0;
    assert!(gradients.iter().all(|&gradient| gradient == expected));
    if comm.rank() == 0 {
        println!("{} ranks, mean {expected}, by {ran}", comm.ranks());
    }
    Ok(())
}
