//! Checks that collectives in flight equal their blocking forms, over any transport.

use std::time::Duration;

use unisono::{Algorithm, Choice, Communicator, DType, Error, Operation, ReduceOp, Request};

use super::calls::{Made, Ranks};
use super::inputs;

const LARGE: usize = 50_003;

/// Tests several calls in flight, waited for in any order, with blocking calls between.
pub fn conformance(comm: &mut Communicator) {
    for choice in [Choice::Auto, Choice::from(Algorithm::Ring)] {
        comm.set_choice(choice).unwrap();
        for count in [0, 1, comm.ranks(), comm.ranks() + 1, LARGE] {
            same_bits(comm, count);
        }
        mixed(comm);
        registered(comm);
    }
    // No rank waits for this call, and the next call is still ordered after it.
    drop(comm.all_reduce_async(vec![1.0_f64; LARGE], ReduceOp::Max).unwrap());
    comm.barrier().unwrap();
    // The communicator ends with a call in flight.
    drop(comm.all_reduce_async(vec![1.0_f64; LARGE], ReduceOp::Min).unwrap());
}

/// Returns every operation on an array of this many elements, or the multiple that an all-to-all needs.
pub fn every_operation(ranks: usize, root: usize, count: usize) -> [Made; 10] {
    Operation::all(root).map(|operation| {
        let count = if operation == Operation::AllToAll { count / ranks * ranks } else { count };
        Made { operation, choice: Choice::Auto, dtype: DType::F64, op: ReduceOp::Sum, count, label: "" }
    })
}

/// Compares every operation in flight, all at once, with its blocking form on numbers whose sums depend on the order of additions.
fn same_bits(comm: &mut Communicator, count: usize) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let calls = every_operation(ranks, (count + 1) % ranks, count);
    let input = |call: &Made| -> Vec<f64> {
        (0..call.count).map(|index| 1.0 / (1 + rank * 3 + index % 97) as f64).collect()
    };
    let begun: Vec<_> = calls.iter().map(|call| call.begin(comm, input(call)).unwrap()).collect();
    let barrier = comm.barrier_async().unwrap();
    for (call, request) in calls.iter().zip(begun).rev() {
        let what = format!("rank {rank} of {ranks}, {} over {}", call.describe(0), comm.transport());
        let mut blocking = input(call);
        call.block(comm, &mut blocking).unwrap();
        assert!(request.is_done() && barrier.is_done(), "a blocking call waits for all in flight: {what}");
        let in_flight = request.wait().unwrap();
        assert_eq!(in_flight.len(), call.count, "the whole buffer is returned: {what}");
        let bits = |array: &[f64]| -> Vec<u64> {
            array[call.defined_on(comm)].iter().map(|element| element.to_bits()).collect()
        };
        assert!(bits(&in_flight) == bits(&blocking), "the result in flight differs: {what}");
    }
    barrier.wait().unwrap();
}

/// Makes all operations and barriers one after the other. In each call every other rank blocks, and up to five calls are in flight.
fn mixed(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut in_flight: Vec<(Made, usize, Request<Vec<f64>>)> = Vec::new();
    for round in 0..4 {
        for (place, mut call) in every_operation(ranks, round % ranks, 1009 * round).into_iter().enumerate() {
            let number = round * 8 + place;
            call.label = ["", "of all"][number / 3 % 2];
            let mut array = inputs::<f64>(call.op, rank, number, call.count);
            let comm = &mut call.named(comm);
            // In pairs, so that calls stay in flight.
            if (rank + number / 2) % 2 == 0 {
                call.block(comm, &mut array).unwrap();
                call.check(comm, &array, number, Ranks::Agree);
            } else {
                let request = call.begin(comm, array).unwrap();
                in_flight.push((call, number, request));
            }
            while in_flight.len() > 5 {
                let (call, number, request) = in_flight.swap_remove(number % in_flight.len());
                call.check(comm, &request.wait().unwrap(), number, Ranks::Agree);
            }
        }
        let mut comm = comm.call().label("between rounds");
        if (rank + round) % 2 == 0 { comm.barrier() } else { comm.barrier_async().unwrap().wait() }.unwrap();
    }
    for (call, number, request) in in_flight {
        call.check(comm, &request.wait().unwrap(), number, Ranks::Agree);
    }
}

/// Checks that registered memory in flight is returned as registered memory.
fn registered(comm: &mut Communicator) {
    for (number, call) in every_operation(comm.ranks(), 0, LARGE).into_iter().enumerate() {
        let mut array = comm.alloc::<f64>(call.count).unwrap();
        array.copy_from_slice(&inputs::<f64>(call.op, comm.rank(), number, call.count));
        let array = call.begin(comm, array).unwrap().wait().unwrap();
        call.check(comm, &array, number, Ranks::Agree);
    }
}

/// Makes calls in flight with mismatched counts. Returns the errors of the wait, of the next call's wait and of a blocking call. A
/// rank that does not depend on the others may complete before it can detect the mismatch.
pub fn mismatch(comm: &mut Communicator, operation: Operation) -> [Option<Error>; 3] {
    comm.set_timeout(Duration::from_secs(30));
    let count = if comm.rank() == 1 { 9998 } else { 10_000 };
    let mut call = every_operation(comm.ranks(), 0, count)[0].clone();
    call.operation = operation;
    let first = call.begin(comm, vec![1.0_f64; count]).unwrap();
    let second = comm.all_reduce_async(vec![1.0_f32; 10], ReduceOp::Sum);
    let errors = [first.wait().err(), second.and_then(Request::wait).err(), comm.barrier().err()];
    let is_reported = errors[0].is_some() || !call.needs_all(comm.rank());
    assert!(is_reported, "rank {} has a result of mismatched calls: {operation:?}", comm.rank());
    errors
}
