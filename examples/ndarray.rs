//! A training loop over [ndarray](https://docs.rs/ndarray): `mpirun -n 4 ndarray`.
//!
//! A perceptron with one hidden layer learns a surface. The samples are divided among the ranks. Each rank writes the gradient of its
//! own into one bucket, in memory that its neighbours read in place, and one all-reduce adds all of them. So the run is the same with any
//! number of ranks, up to rounding.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayViewMut2};
use unisono::{Communicator, ReduceOp};

const SAMPLES: usize = 600;
/// Two coordinates, and a constant.
const INPUTS: usize = 3;
const HIDDEN: usize = 16;
const PARAMETERS: usize = (INPUTS + 1) * HIDDEN;
const STEPS: usize = 500;
const RATE: f32 = 0.3;

fn main() -> std::process::ExitCode {
    unisono::run(train)
}

fn train(comm: &mut Communicator) -> unisono::Result<()> {
    let (inputs, targets) = own_samples(comm);

    // All ranks start with rank 0's values.
    let mut parameters = [0.0; PARAMETERS];
    if comm.rank() == 0 {
        parameters = std::array::from_fn(|index| (index as f32 * 1.7).sin());
    }
    comm.broadcast(&mut parameters, 0)?;

    // The gradient, and after it the sum of squares.
    let mut bucket = comm.alloc::<f32>(PARAMETERS + 1)?;
    let mut loss = 0.0;
    for step in 0..STEPS {
        let (first, second) = layers(&mut parameters);
        let hidden = inputs.dot(&first).mapv_into(f32::tanh);
        let errors = hidden.dot(&second) - &targets;
        let behind = errors.dot(&second.t()) * hidden.mapv(|value| 1.0 - value * value);

        let (gradient, squares) = bucket.split_at_mut(PARAMETERS);
        let (mut of_first, mut of_second) = layers(gradient);
        general_mat_mul(1.0, &inputs.t(), &behind, 0.0, &mut of_first);
        general_mat_mul(1.0, &hidden.t(), &errors, 0.0, &mut of_second);
        squares[0] = errors.iter().map(|error| error * error).sum();
        comm.all_reduce(&mut bucket, ReduceOp::Sum)?;

        for (parameter, gradient) in parameters.iter_mut().zip(bucket.iter()) {
            *parameter -= RATE * gradient / SAMPLES as f32;
        }
        loss = bucket[PARAMETERS] / SAMPLES as f32;
        if comm.rank() == 0 && step % 100 == 0 {
            println!("step {step}: loss {loss:.6}");
        }
    }

    let (mut largest, mut smallest) = (parameters, parameters);
    comm.all_reduce(&mut largest, ReduceOp::Max)?;
    comm.all_reduce(&mut smallest, ReduceOp::Min)?;
    assert_eq!(largest, smallest);
    if comm.rank() == 0 {
        println!("loss {loss:.6}; all {} ranks have the same parameters", comm.ranks());
    }
    Ok(())
}

/// Returns the weights of both layers, or their gradients.
fn layers(flat: &mut [f32]) -> (ArrayViewMut2<'_, f32>, ArrayViewMut2<'_, f32>) {
    let (first, second) = flat.split_at_mut(INPUTS * HIDDEN);
    let view = |rows, columns, values| {
        ArrayViewMut2::from_shape((rows, columns), values).expect("it has as many values")
    };
    (view(INPUTS, HIDDEN, first), view(HIDDEN, 1, second))
}

/// Returns this rank's part of the samples, z = x y on a spiral.
fn own_samples(comm: &Communicator) -> (Array2<f32>, Array2<f32>) {
    let own = comm.own_part(SAMPLES);
    let sample = |row: usize| {
        let (radius, angle) = ((own.start + row) as f32 / SAMPLES as f32, (own.start + row) as f32);
        [radius * angle.cos(), radius * angle.sin(), 1.0]
    };
    let inputs = Array2::from_shape_fn((own.len(), INPUTS), |(row, column)| sample(row)[column]);
    let targets = Array2::from_shape_fn((own.len(), 1), |(row, _)| sample(row)[0] * sample(row)[1]);
    (inputs, targets)
}
