//! Many consecutive random calls, in which remains of earlier calls would be detected.

use half::bf16;
use unisono::{Algorithm, Choice, Communicator};

use super::memory::Memory;
use super::{Exact, assert_reduced, inputs, reductions};
use unisono_testing::random::Random;

/// Makes this many random calls. The calls are common to all ranks. Each rank draws the kind of its memory and delays.
pub fn calls(comm: &mut Communicator, calls: usize) {
    let mut common = Random::new(comm.ranks() as u64);
    let mut own = Random::new(1000 + comm.rank() as u64);
    for number in 0..calls {
        own.delay();
        let memory = own.one_of(&Memory::ALL);
        match common.below(4) {
            0 => call::<f32>(comm, memory, &mut common, number),
            1 => call::<bf16>(comm, memory, &mut common, number),
            2 => call::<u8>(comm, memory, &mut common, number),
            _ => call::<i64>(comm, memory, &mut common, number),
        }
    }
}

fn call<T: Exact>(comm: &mut Communicator, memory: Memory, common: &mut Random, number: usize) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let (longest, op) = (common.one_of(&[20, 2_000, 20_000, 200_000]), common.one_of(&reductions(T::DTYPE)));
    let (count, root) = (common.below(longest) / ranks * ranks, common.below(ranks));
    let choice = Choice::from(common.one_of(&Algorithm::ALL));
    comm.set_choice(choice.clone()).unwrap();
    // Different elements in every call, so that those of an earlier call are detected.
    let begin = |comm: &Communicator| memory.array(comm, inputs::<T>(op, rank, number, count));
    let what = format!("call {number} by {choice} of {count}, root {root}, {memory:?}, rank {rank}");
    let own = comm.own_part(count);
    match common.below(12) {
        0 => comm.barrier().unwrap(),
        1 => {
            let mut array = begin(comm);
            comm.broadcast(&mut array, root).unwrap();
            assert!(*array == inputs(op, root, number, count), "{what}");
        }
        2 => {
            let mut array = begin(comm);
            comm.gather(&mut array, root).unwrap();
            let part = |from: usize| inputs::<T>(op, from, number + from * own.len(), own.len());
            assert!(rank != root || *array == (0..ranks).flat_map(part).collect::<Vec<_>>(), "{what}");
        }
        3 => {
            let mut array = begin(comm);
            comm.all_to_all(&mut array).unwrap();
            let block = |from: usize| inputs::<T>(op, from, number + own.start, own.len());
            assert!(*array == (0..ranks).flat_map(block).collect::<Vec<_>>(), "{what}");
        }
        4 => {
            let mut array = begin(comm);
            let mine = comm.reduce_scatter(&mut array, op).unwrap();
            assert_reduced(mine, op, ranks, number + own.start, &what);
        }
        _ => {
            let mut array = begin(comm);
            comm.all_reduce(&mut array, op).unwrap();
            assert_reduced(&array, op, ranks, number, &what);
        }
    }
}
