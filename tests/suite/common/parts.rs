//! Random sizes of parts: `MPI_Allgatherv` and similar.

use std::ops::Range;

#[cfg(feature = "mpi")]
use unisono::Call;
#[cfg(feature = "mpi")]
use unisono::Vendor;
use unisono::{Choice, Communicator, DType, Operation, ReduceOp};
use unisono_testing::random::Random;

use super::memory::{Array, Memory};
use super::{Exact, assert_reduced, inputs, offering};

/// Makes this many calls with common random counts. Each rank draws the kind of its memory and whether it blocks.
pub fn calls(comm: &mut Communicator, calls: usize) {
    let mut common = Random::new(7 * comm.ranks() as u64);
    let mut own = Random::new(2000 + comm.rank() as u64);
    for number in 0..calls {
        own.delay();
        match common.one_of(&DType::ALL) {
            DType::F32 => call::<f32>(comm, &mut common, &mut own, number),
            DType::F64 => call::<f64>(comm, &mut common, &mut own, number),
            DType::F16 => call::<half::f16>(comm, &mut common, &mut own, number),
            DType::BF16 => call::<half::bf16>(comm, &mut common, &mut own, number),
            DType::I32 => call::<i32>(comm, &mut common, &mut own, number),
            DType::I64 => call::<i64>(comm, &mut common, &mut own, number),
            DType::U8 => call::<u8>(comm, &mut common, &mut own, number),
            DType::U32 => call::<u32>(comm, &mut common, &mut own, number),
            DType::U64 => call::<u64>(comm, &mut common, &mut own, number),
        }
    }
    comm.set_choice(Choice::Auto).unwrap();
}

/// Returns counts of which many are 0, and some much larger than the others.
fn counts(ranks: usize, random: &mut Random) -> Vec<usize> {
    let mut count = || {
        let longest = random.one_of(&[1, 1, 20, 2_000, 60_000]);
        random.below(longest)
    };
    (0..ranks).map(|_| count()).collect()
}

/// Returns the range of each part.
fn ranges(counts: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |&count: &usize| {
        end += count;
        end - count..end
    };
    counts.iter().map(&mut next).collect()
}

fn call<T: Exact>(comm: &mut Communicator, common: &mut Random, own: &mut Random, number: usize) {
    if common.once_in(4) {
        return between_pairs::<T>(comm, common, own, number);
    }
    const OP: ReduceOp = ReduceOp::Sum;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let counts = counts(ranks, common);
    let (parts, count) = (ranges(&counts), counts.iter().sum());
    let root = common.below(ranks);
    let operation = common.one_of(&[
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::Gather { root },
        Operation::Scatter { root },
    ]);
    let choice = common.one_of(&offering(comm, operation));
    comm.set_choice(choice.clone()).unwrap();
    let op = if common.once_in(2) { ReduceOp::Mean } else { OP };
    let begin =
        |comm: &Communicator, memory: Memory| memory.array(comm, inputs::<T>(op, rank, number, count));
    let what = format!("call {number}: {operation} by {choice} of {counts:?} {}, rank {rank}", T::DTYPE);

    let memory = own.one_of(&Memory::ALL);
    let mut array = begin(comm, memory);
    let mut call = comm.call().counts(&counts);
    if common.once_in(2) {
        call = call.label("labelled");
    }
    assert_eq!(call.own_part(count), parts[rank], "{what}");
    if own.once_in(2) {
        array = match operation {
            Operation::AllGather => call.all_gather_async(array),
            Operation::ReduceScatter => call.reduce_scatter_async(array, op),
            Operation::Gather { .. } => call.gather_async(array, root),
            _ => call.scatter_async(array, root),
        }
        .and_then(unisono::Request::wait)
        .unwrap();
    } else {
        match operation {
            Operation::AllGather => drop(call.all_gather(&mut array).unwrap()),
            Operation::ReduceScatter => drop(call.reduce_scatter(&mut array, op).unwrap()),
            Operation::Gather { .. } => drop(call.gather(&mut array, root).unwrap()),
            _ => drop(call.scatter(&mut array, root).unwrap()),
        }
    }
    drop(call);
    check(&array, operation, op, (rank, number), &parts, &what);

    #[cfg(feature = "mpi")]
    if comm.has_mpi() && !T::DTYPE.is_half() && op == OP {
        use unisono::Collective as _;
        let mut array = begin(comm, Memory::Slices);
        let requested = Call::new(operation, operation.reduces().then_some(op), T::DTYPE, count);
        let mut call = comm.call().counts(&counts);
        let ran = call.collective(Vendor::Mpi).unwrap().run(&requested, bytemuck::cast_slice_mut(&mut array));
        // MPI may refuse a sum of bytes.
        if !matches!(ran, Err(unisono::Error::Unsupported(_))) {
            ran.unwrap();
            check(&array, operation, op, (rank, number), &parts, &format!("MPI's, {what}"));
        }
    }
}

/// Checks the result of a rank.
fn check<T: Exact>(
    array: &[T],
    operation: Operation,
    op: ReduceOp,
    (rank, number): (usize, usize),
    parts: &[Range<usize>],
    what: &str,
) {
    let own = parts[rank].clone();
    let of = |from: usize, part: Range<usize>| inputs::<T>(op, from, number + part.start, part.len());
    match operation {
        Operation::ReduceScatter => {
            assert_reduced(&array[own.clone()], op, parts.len(), number + own.start, what);
        }
        Operation::Scatter { root } => assert!(array[own.clone()] == of(root, own), "{what}"),
        Operation::Gather { root } if root != rank => {}
        _ => {
            let gathered = parts.iter().enumerate().flat_map(|(from, part)| of(from, part.clone()));
            assert!(array == gathered.collect::<Vec<_>>(), "{what}");
        }
    }
}

/// Tests an all-to-all with a count for every pair, which only its two ranks know.
fn between_pairs<T: Exact>(comm: &mut Communicator, common: &mut Random, own: &mut Random, number: usize) {
    const OP: ReduceOp = ReduceOp::Sum;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let all: Vec<_> = (0..ranks).map(|_| counts(ranks, common)).collect();
    let to = all[rank].clone();
    let from: Vec<_> = all.iter().map(|counts| counts[rank]).collect();
    let input = |from: usize| inputs::<T>(OP, from, number, all[from].iter().sum());
    let expected: Vec<T> =
        (0..ranks).flat_map(|from| input(from)[ranges(&all[from])[rank].clone()].to_vec()).collect();
    let what = format!("call {number}: {all:?} {}, rank {rank}", T::DTYPE);

    let sent = own.one_of(&Memory::ALL).array(comm, input(rank));
    let received = own.one_of(&Memory::ALL).array(comm, vec![T::exact(1); expected.len()]);
    let both = exchange(comm, (sent, &to), (received, &from), own.once_in(2));
    assert!(*both.0 == input(rank), "the input has changed, {what}");
    assert!(*both.1 == expected, "{what}");

    #[cfg(feature = "mpi")]
    if comm.has_mpi() {
        assert!(
            by_mpi(&input(rank), &to, &from) == bytemuck::cast_slice::<T, u8>(&expected),
            "MPI's, {what}"
        );
    }
}

fn exchange<T: Exact>(
    comm: &mut Communicator,
    (sent, to): (Array<T>, &[usize]),
    (mut received, from): (Array<T>, &[usize]),
    in_flight: bool,
) -> (Array<T>, Array<T>) {
    if in_flight {
        return comm.all_to_all_v_async(sent, to, received, from).unwrap().wait().unwrap();
    }
    comm.all_to_all_v(&sent, to, &mut received, from).unwrap();
    (sent, received)
}

/// Returns the bytes that MPI's own all-to-all receives.
#[cfg(feature = "mpi")]
fn by_mpi<T: Exact>(sent: &[T], to: &[usize], from: &[usize]) -> Vec<u8> {
    use unisono::mpi::datatype::{Partition, PartitionMut};
    use unisono::mpi::topology::SimpleCommunicator;
    use unisono::mpi::traits::CommunicatorCollectives as _;
    let bytes = |counts: &[usize]| -> (Vec<i32>, Vec<i32>) {
        let of = |elements: usize| i32::try_from(elements * size_of::<T>()).unwrap();
        let ranges = ranges(counts);
        (
            ranges.iter().map(|part| of(part.len())).collect(),
            ranges.iter().map(|part| of(part.start)).collect(),
        )
    };
    let ((to, to_starts), (from, from_starts)) = (bytes(to), bytes(from));
    let size_bytes = from.iter().sum::<i32>() as usize;
    // An empty slice may have the address 1, which is Open MPI's `MPI_IN_PLACE`, so both have an extra byte.
    let mut received = vec![0_u8; size_bytes + 1];
    let sent = [bytemuck::cast_slice::<T, u8>(sent), &[0]].concat();
    let sent = Partition::new(&sent[..], to, to_starts);
    let mut into = PartitionMut::new(&mut received[..], from, from_starts);
    let world = SimpleCommunicator::world();
    world.all_to_all_varcount_into(&sent, &mut into);
    // MPI may send the rest only in a later MPI call, and the ranks next wait over Unisono's connections.
    world.barrier();
    drop(into);
    received.truncate(size_bytes);
    received
}
