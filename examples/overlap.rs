//! Overlaps communication and computation: `mpirun -n 4 overlap`.
//!
//! Gradients are computed layer by layer, the last layer first, and reduced layer by layer: while those of one layer are
//! being reduced, the next ones are computed. The buckets are registered memory, which other ranks of the node read in
//! place.

use unisono::{Communicator, ReduceOp, Registered, Request};

const LAYERS: usize = 6;
const PARAMETERS: usize = 200_000;
const STEPS: usize = 5;

fn main() -> std::process::ExitCode {
    unisono::run(train)
}

fn train(comm: &mut Communicator) -> unisono::Result<()> {
    let mut buckets = Vec::new();
    for _ in 0..LAYERS {
        buckets.push(comm.alloc::<f32>(PARAMETERS)?);
    }
    for step in 0..STEPS {
        let mut in_flight: Vec<Request<Registered<f32>>> = Vec::new();
        for (layer, mut bucket) in buckets.drain(..).enumerate().rev() {
            compute_gradients(comm, step, layer, &mut bucket);
            in_flight.push(comm.all_reduce_async(bucket, ReduceOp::Mean)?);
        }
        // Requests complete in the order in which they were started, and their memory is reused.
        for request in in_flight {
            buckets.insert(0, request.wait()?);
        }
        for (layer, bucket) in buckets.iter().enumerate() {
            let mean = (step + layer) as f32 + (comm.ranks() - 1) as f32 / 2.0;
            assert!(bucket.iter().all(|&gradient| gradient == mean), "step {step}, layer {layer}");
        }
    }
    if comm.rank() == 0 {
        println!("{STEPS} steps of {LAYERS} buckets, all means right");
    }
    Ok(())
}

/// Stands for a backward pass.
fn compute_gradients(comm: &Communicator, step: usize, layer: usize, bucket: &mut [f32]) {
    bucket.fill((step + layer + comm.rank()) as f32);
}
