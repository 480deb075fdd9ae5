//! Collectives on GPUs other than all-reduces, by NCCL and through the host.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use unisono::{Communicator, DeviceArray, Operation, ReduceOp};

use super::ranks::array;

/// Counts of less than a segment and of several; the second can be divided among ranks only if the host copies uneven parts.
const COUNTS: [usize; 4] = [0, 12, 1009, 300_012];

pub(crate) fn conform(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let last = ranks - 1;
    let sum = |element: usize| (0..ranks).map(|rank| value(rank, element)).sum::<f32>();
    for count in COUNTS {
        let everywhere = |_: usize| true;
        check(comm, Operation::AllReduce, count, everywhere, sum);
        check(comm, Operation::Reduce { root: last }, count, |_| rank == last, sum);
        check(comm, Operation::Broadcast { root: last }, count, everywhere, |element| value(last, element));
        let own = comm.own_part(count);
        check(comm, Operation::ReduceScatter, count, |element| own.contains(&element), sum);
        let parts: Vec<_> = (0..ranks).map(|rank| part(count, rank, ranks)).collect();
        let owner = |element: usize| parts.iter().position(|part| part.contains(&element)).unwrap();
        check(comm, Operation::AllGather, count, everywhere, |element| value(owner(element), element));
        check(
            comm,
            Operation::Gather { root: 0 },
            count,
            |_| rank == 0,
            |element| value(owner(element), element),
        );
        check(
            comm,
            Operation::Scatter { root: 0 },
            count,
            |element| own.contains(&element),
            |element| value(0, element),
        );
        let up_to_this = |element: usize| (0..=rank).map(|rank| value(rank, element)).sum::<f32>();
        check(comm, Operation::Scan, count, everywhere, up_to_this);
        if count.is_multiple_of(ranks) {
            let block = (count / ranks).max(1);
            let moved = |element: usize| value(element / block, rank * block + element % block);
            check(comm, Operation::AllToAll, count, everywhere, moved);
        }
    }
    barrier(comm);
    counts_of_ranks(comm);
}

fn value(rank: usize, element: usize) -> f32 {
    (rank * 7 + element % 31) as f32
}

fn part(count: usize, rank: usize, ranks: usize) -> std::ops::Range<usize> {
    let start = |rank: usize| rank * (count / ranks) + rank.min(count % ranks);
    start(rank)..start(rank + 1)
}

/// Makes a call on an array that cudarc did not allocate, and compares the elements that the operation defines.
fn check(
    comm: &mut Communicator,
    operation: Operation,
    count: usize,
    is_defined: impl Fn(usize) -> bool,
    expected: impl Fn(usize) -> f32,
) {
    let values: Vec<_> = (0..count).map(|element| value(comm.rank(), element)).collect();
    let (mut known, stream) = array(comm, &values);
    let (address, raw) = (cudarc::driver::DevicePtr::device_ptr(&known, &stream).0, stream.cu_stream());
    // SAFETY: the array has as many elements, and only this stream uses it.
    let mut foreign = unsafe { DeviceArray::<f32>::new(address, count, raw.cast()).unwrap() };
    let op = operation.reduces().then_some(ReduceOp::Sum);
    let on = foreign.on();
    let ran = comm.run_device(operation, op, &mut foreign, &on).unwrap();
    comm.synchronize(&stream).unwrap();
    let after = stream.clone_dtoh(&known).unwrap();
    comm.synchronize(&stream).unwrap();
    for (element, &found) in after.iter().enumerate().filter(|(element, _)| is_defined(*element)) {
        let expected = expected(element);
        assert_eq!(
            found,
            expected,
            "{operation} of {count} by {ran}, rank {}, element {element}",
            comm.rank()
        );
    }
    stream.memset_zeros(&mut known).unwrap();
}

/// Checks that work after a barrier starts once all ranks have completed the work before it.
fn barrier(comm: &mut Communicator) {
    let stream: Arc<CudaStream> = comm.device().unwrap().new_stream().unwrap();
    for _ in 0..3 {
        comm.barrier_device(&stream).unwrap();
    }
    comm.synchronize(&stream).unwrap();
}

/// Tests parts of given sizes, which NCCL carries out or which are refused.
fn counts_of_ranks(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let counts: Vec<_> = (0..ranks).map(|rank| 3 * rank).collect();
    let count = counts.iter().sum();
    let owner = |element: usize| (0..ranks).find(|&rank| element < counts[..=rank].iter().sum()).unwrap();
    let values: Vec<_> = (0..count).map(|element| value(rank, element)).collect();
    let (mut array, stream) = array(comm, &values);
    let by_nccl = comm.device_route().unwrap().starts_with("NCCL") && comm.topology().nodes() == 1;
    comm.call().counts(&counts).barrier_device(&stream).unwrap();
    let called = comm.call().counts(&counts).run_device(Operation::AllGather, None, &mut array, &stream);
    match called {
        Ok(ran) if by_nccl => assert_eq!(ran.method.name(), "nccl"),
        Err(error) if !by_nccl => {
            return assert!(!error.is_fatal() && error.to_string().contains("counts of ranks"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let gathered = stream.clone_dtoh(&array).unwrap();
    comm.synchronize(&stream).unwrap();
    let expected: Vec<_> = (0..count).map(|element| value(owner(element), element)).collect();
    assert_eq!(gathered, expected);
}
