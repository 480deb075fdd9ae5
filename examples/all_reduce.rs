//! The whole of it: `mpirun -n 4 all_reduce`.

use unisono::ReduceOp;

fn main() -> unisono::Result<()> {
    let mut comm = unisono::init()?;
    let mut gradients = vec![comm.rank() as f32; 1_000_000];
    let ran = comm.all_reduce(&mut gradients, ReduceOp::Mean)?;

    let expected = (comm.ranks() - 1) as f32 / 2.0;
    assert!(gradients.iter().all(|&gradient| gradient == expected));
    if comm.rank() == 0 {
        println!("{} ranks, mean {expected}, by {}: {}", comm.ranks(), ran.algorithm, ran.why);
    }
    Ok(())
}
