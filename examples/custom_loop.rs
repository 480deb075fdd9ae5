//! A training loop without the trainer: `mpirun -n 4 custom_loop`.
//!
//! It fits a line to points. Every rank has its own points, in different numbers; the number of points is reduced with the
//! gradient, which gives a weighted mean.

use unisono::{Communicator, ReduceOp};

const STEPS: usize = 400;
const RATE: f64 = 0.5;

fn main() -> std::process::ExitCode {
    unisono::run(train)
}

fn train(comm: &mut Communicator) -> unisono::Result<()> {
    let points = own_points(comm);

    // All ranks start with rank 0's values.
    let mut parameters = if comm.rank() == 0 { [0.3, -0.2] } else { [0.0, 0.0] };
    comm.broadcast(&mut parameters, 0)?;

    for step in 0..STEPS {
        // The sum over this rank's points, and their number, in one message.
        let mut sums = [0.0; 4];
        for &(x, y) in &points {
            let error = parameters[0] * x + parameters[1] - y;
            sums[0] += error * x;
            sums[1] += error;
            sums[2] += error * error;
            sums[3] += 1.0;
        }
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;

        let [slope, offset, loss, count] = sums;
        parameters[0] -= RATE * slope / count;
        parameters[1] -= RATE * offset / count;
        if comm.rank() == 0 && step % 100 == 0 {
            println!("step {step}: loss {:.6} over {count} points", loss / count);
        }
    }
    assert!((parameters[0] - 2.0).abs() < 1e-3 && (parameters[1] + 1.0).abs() < 1e-3, "{parameters:?}");
    if comm.rank() == 0 {
        println!("y = {:.3} x + {:.3}", parameters[0], parameters[1]);
    }
    Ok(())
}

/// Points on y = 2x − 1: ten on rank 0, twenty on rank 1, and so on.
fn own_points(comm: &Communicator) -> Vec<(f64, f64)> {
    let count = 10 * (comm.rank() + 1);
    let x = |index: usize| index as f64 / count as f64;
    (0..count).map(|index| (x(index), 2.0 * x(index) - 1.0)).collect()
}
