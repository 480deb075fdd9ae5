//! Point-to-point messages, checked against their expected contents.

use unisono::{Communicator, ReduceOp};

use super::{Exact, assert_reduced, inputs, repeated};
use crate::for_every_dtype;

/// Empty, one element, eager, and long messages, also in pieces.
const COUNTS: [usize; 5] = [0, 1, 7, 1000, 100_000];

/// Tests all kinds of messages, in a world of two ranks or more.
pub fn conformance(comm: &mut Communicator) {
    assert!(comm.ranks() > 1, "messages need two ranks");
    for_every_dtype!(around_the_ring(comm));
    for_every_dtype!(between_all_pairs(comm));
    exchanges_of_two_lengths(comm);
    from_any_rank(comm);
    in_order(comm);
    among_collectives(comm);
    in_flight(comm);
    registered(comm);
    comm.barrier().unwrap();
}

/// Returns message `number` from rank `from` to rank `to`.
fn message<T: Exact>(from: usize, to: usize, number: usize, count: usize) -> Vec<T> {
    let first = from * 5 + to * 3 + number * 2;
    let period: Vec<T> =
        (0..23 * 11).map(|index| T::exact(((first + index * 7 + index / 11) % 23) as i64)).collect();
    repeated(&period, count)
}

/// Returns the content of a buffer before a message: values that no message has.
fn nothing<T: Exact>(count: usize) -> Vec<T> {
    vec![T::exact(99); count]
}

fn assert_is<T: Exact>(received: &[T], from: usize, comm: &Communicator, number: usize) {
    let expected = message::<T>(from, comm.rank(), number, received.len());
    assert!(
        received == expected,
        "rank {} over {}, message {number} of {} {} from rank {from}",
        comm.rank(),
        comm.transport(),
        received.len(),
        T::DTYPE
    );
}

/// Receives a message of this many elements, and checks it.
fn take<T: Exact>(comm: &mut Communicator, from: usize, number: usize, count: usize) {
    let mut received = nothing::<T>(count);
    comm.receive(&mut received, from).unwrap();
    assert_is(&received, from, comm, number);
}

fn give<T: Exact>(comm: &mut Communicator, to: usize, number: usize, count: usize) {
    comm.send(&message::<T>(comm.rank(), to, number, count), to).unwrap();
}

/// Returns the ranks this many places after this one, and before it.
fn places(comm: &Communicator, distance: usize) -> (usize, usize) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    ((rank + distance) % ranks, (rank + ranks - distance) % ranks)
}

fn around_the_ring<T: Exact>(comm: &mut Communicator) {
    let (next, previous) = places(comm, 1);
    for (number, count) in COUNTS.into_iter().enumerate() {
        let mut received = nothing::<T>(count);
        comm.exchange(&message::<T>(comm.rank(), next, number, count), next, &mut received, previous)
            .unwrap();
        assert_is(&received, previous, comm, number);
    }
}

fn between_all_pairs<T: Exact>(comm: &mut Communicator) {
    let ranks = comm.ranks();
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        for (number, count) in COUNTS.into_iter().enumerate() {
            match comm.rank() {
                rank if from == to || rank != from && rank != to => {}
                rank if rank == from => give::<T>(comm, to, number, count),
                _ => take::<T>(comm, from, number, count),
            }
        }
    }
}

/// Exchanges messages between all pairs at the same time, where sent and received lengths differ.
fn exchanges_of_two_lengths(comm: &mut Communicator) {
    let count_of = |rank: usize, round: usize| [3, 60_000, 0, 900, 5000][(rank + round) % 5];
    for round in 0..COUNTS.len() {
        for distance in 1..comm.ranks() {
            let (to, from) = places(comm, distance);
            let values = message::<f64>(comm.rank(), to, round, count_of(comm.rank(), round));
            let mut received = nothing::<f64>(count_of(from, round));
            if (comm.rank() + round).is_multiple_of(3) {
                let request = comm.exchange_async(values.clone(), to, received, from).unwrap();
                let (sent, received) = request.wait().unwrap();
                assert_eq!(sent, values, "the sent values are unchanged");
                assert_is(&received, from, comm, round);
            } else {
                comm.exchange(&values, to, &mut received, from).unwrap();
                assert_is(&received, from, comm, round);
            }
        }
    }
    // One rank exchanges, and the other sends and then receives.
    let number = COUNTS.len();
    match comm.rank() {
        0 => {
            let mut received = nothing::<u8>(70_000);
            comm.exchange(&message::<u8>(0, 1, number, 50_000), 1, &mut received, 1).unwrap();
            assert_is(&received, 1, comm, number);
        }
        1 => {
            take::<u8>(comm, 0, number, 50_000);
            give::<u8>(comm, 0, number, 70_000);
        }
        _ => {}
    }
}

/// Every rank but one sends several messages to that one, and then enters a collective. Each message is received once.
fn from_any_rank(comm: &mut Communicator) {
    const EACH: usize = 6;
    for (root, count) in [(0, 10), (comm.ranks() - 1, 20_000)] {
        if comm.rank() == root {
            let mut received_from = vec![0; comm.ranks()];
            for _ in 0..EACH * (comm.ranks() - 1) {
                let mut received = nothing::<i32>(count);
                let from = comm.receive_any(&mut received).unwrap();
                assert_is(&received, from, comm, received_from[from]);
                received_from[from] += 1;
            }
            let each = |rank| if rank == root { 0 } else { EACH };
            assert_eq!(received_from, (0..comm.ranks()).map(each).collect::<Vec<_>>());
        } else {
            (0..EACH).for_each(|number| give::<i32>(comm, root, number, count));
        }
        comm.barrier().unwrap();
    }
}

/// Checks that messages of all lengths, labelled or not, arrive in order.
fn in_order(comm: &mut Communicator) {
    let (last, count_of) = (comm.ranks() - 1, |number: usize| [1, 5000, 30, 0, 700][number % 5]);
    for number in 0..40 {
        let rank = comm.rank();
        if ![0, last].contains(&rank) {
            continue;
        }
        let mut call = comm.call();
        if number % 3 == 0 {
            call = call.label("one of many");
        }
        if rank == 0 {
            give::<u32>(&mut call, last, number, count_of(number));
        } else {
            take::<u32>(&mut call, 0, number, count_of(number));
        }
    }
}

/// Tests messages between collectives, where some ranks have more messages than others.
fn among_collectives(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    for round in 0..12 {
        let count = [10, 3000, 0][round % 3];
        let (from, to) = (round % ranks, (round + 1 + round % (ranks - 1)) % ranks);
        let mut array = inputs::<f32>(ReduceOp::Sum, rank, round, count + ranks);
        if rank == from {
            give::<f32>(comm, to, round, count);
        }
        if rank == to && round % 2 == 0 {
            take::<f32>(comm, from, round, count);
        } else if rank == to {
            let mut received = nothing::<f32>(count);
            assert_eq!(comm.receive_any(&mut received).unwrap(), from);
            assert_is(&received, from, comm, round);
        }
        comm.all_reduce(&mut array, ReduceOp::Sum).unwrap();
        assert_reduced(&array, ReduceOp::Sum, ranks, round, "among messages");
        comm.broadcast(&mut array, to).unwrap();
    }
}

/// Tests several messages in flight, with collectives between them.
fn in_flight(comm: &mut Communicator) {
    const EACH: usize = 5;
    let ((next, previous), rank, ranks) = (places(comm, 1), comm.rank(), comm.ranks());
    let count_of = |number: usize| [100_000, 10, 0, 2000, 1][number];
    let mut received = Vec::new();
    let mut sent = Vec::new();
    for number in 0..EACH {
        // A ring in which all receive first, or send first.
        let mut send = |comm: &mut Communicator| {
            let values = message::<u8>(rank, next, number, count_of(number));
            sent.push(comm.send_async(values, next).unwrap());
        };
        if number % 2 == 0 {
            send(comm);
        }
        received.push(comm.receive_async(nothing::<u8>(count_of(number)), previous).unwrap());
        if number % 2 != 0 {
            send(comm);
        }
    }
    let swapped = (0..EACH).map(|number| {
        let values = message::<i64>(rank, next, number, count_of(number));
        comm.exchange_async(values, next, nothing::<i64>(count_of(number)), previous).unwrap()
    });
    let swapped: Vec<_> = swapped.collect();
    let array = comm.all_reduce_async(inputs::<f32>(ReduceOp::Sum, rank, 0, 100), ReduceOp::Sum).unwrap();
    comm.call().label("after all").barrier().unwrap();
    assert!(array.is_done(), "a blocking collective waits for collectives in flight");
    for (number, (received, sent)) in received.into_iter().zip(sent).enumerate() {
        assert_is(&received.wait().unwrap(), previous, comm, number);
        assert_eq!(sent.wait().unwrap(), message::<u8>(rank, next, number, count_of(number)));
    }
    for (number, swapped) in swapped.into_iter().enumerate() {
        assert_is(&swapped.wait().unwrap().1, previous, comm, number);
    }
    assert_reduced(&array.wait().unwrap(), ReduceOp::Sum, ranks, 0, "beside messages");
}

/// Tests messages in registered memory, whole and in parts.
fn registered(comm: &mut Communicator) {
    const COUNT: usize = 50_000;
    let (next, previous) = places(comm, 1);
    let (mut one, mut other) = (comm.alloc::<f32>(COUNT).unwrap(), comm.alloc::<f32>(COUNT).unwrap());
    for (number, part) in [0..COUNT, 100..COUNT - 1, 7..9].into_iter().enumerate() {
        one[part.clone()].copy_from_slice(&message::<f32>(comm.rank(), next, number, part.len()));
        comm.exchange(&one[part.clone()], next, &mut other[part.clone()], previous).unwrap();
        assert_is(&other[part], previous, comm, number);
    }
    let (one, _) = comm.exchange_async(one, next, other, previous).unwrap().wait().unwrap();
    assert_eq!(one.len(), COUNT);
}
