//! Collectives in flight, over any transport.

use std::time::Duration;

use unisono::{Communicator, Error, ReduceOp};

const COUNT: usize = 50_000;

/// What rank `rank` brings to call `call`.
fn input(rank: usize, call: usize) -> Vec<f64> {
    (0..COUNT + call).map(|index| (rank + call * 10 + index % 7) as f64).collect()
}

fn is_sum(ranks: usize, call: usize, sums: &[f64]) -> bool {
    let all: f64 = (0..ranks).map(|rank| (rank + call * 10) as f64).sum();
    sums.len() == COUNT + call
        && sums.iter().enumerate().all(|(index, &sum)| sum == all + (ranks * (index % 7)) as f64)
}

/// Several calls in flight, vectors and registered memory, waited for in any order, with blocking calls between.
pub fn conformance(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    for round in 0..5 {
        let vectors: Vec<_> =
            (0..4).map(|call| comm.all_reduce_async(input(rank, call), ReduceOp::Sum).unwrap()).collect();
        let mut registered = comm.alloc::<f64>(COUNT).unwrap();
        registered.copy_from_slice(&input(rank, 0));
        let registered = comm.all_reduce_async(registered, ReduceOp::Sum).unwrap();
        assert!(is_sum(ranks, 0, &registered.wait().unwrap()));

        if round % 2 == 1 {
            let mut blocking = input(rank, 1);
            comm.all_reduce(&mut blocking, ReduceOp::Sum).unwrap();
            assert!(is_sum(ranks, 1, &blocking));
        }
        for (call, pending) in vectors.into_iter().enumerate().rev() {
            assert!(is_sum(ranks, call, &pending.wait().unwrap()), "call {call} of round {round}");
        }
    }
    // Nobody waits for this one, and the next call still comes after it.
    drop(comm.all_reduce_async(input(rank, 3), ReduceOp::Max).unwrap());
    comm.barrier().unwrap();
    // The communicator ends with a call in flight.
    drop(comm.all_reduce_async(input(rank, 3), ReduceOp::Min).unwrap());
}

/// Ranks that disagree in flight: the wait says it, and so does every later call.
pub fn mismatch(comm: &mut Communicator) -> Vec<Error> {
    comm.set_timeout(Duration::from_secs(30));
    let count = if comm.rank() == 1 { 999 } else { 1000 };
    let first = comm.all_reduce_async(vec![1.0_f32; count], ReduceOp::Sum).unwrap();
    let second = comm.all_reduce_async(vec![1.0_f32; 10], ReduceOp::Sum);
    let errors = [first.wait().err(), second.and_then(unisono::Pending::wait).err(), comm.barrier().err()];
    errors.into_iter().map(|error| error.expect("nothing succeeds")).collect()
}
