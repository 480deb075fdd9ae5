//! Checks that a plan gives the same bits over any transport, with inexact inputs, so that every order of additions gives another
//! result.

use half::{bf16, f16};
use unisono::{Algorithm, Communicator, Element, Operation, ReduceOp};
use unisono_collectives::execution::CompiledPlan;
use unisono_collectives::program::{self, Program};

use super::memory::Memory;

const COUNT: usize = 1000;
/// Several blocks of unequal size for each of a few ranks.
const BLOCKS_COUNT: usize = 500_009;
/// Algorithms that run in blocks, in shared memory and between nodes, also for half precision.
const IN_BLOCKS: [Algorithm; 3] = [Algorithm::Tree, Algorithm::HierarchicalCopy, Algorithm::Rail];

/// Returns an inexact value, different on every rank.
fn noise(rank: usize, index: usize) -> f64 {
    let mut state = (rank as u64 * 1_000_003 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5) * f64::from(1 << (state % 12))
}

pub fn inputs<T>(rank: usize, count: usize, element: impl Fn(f64) -> T) -> Vec<T> {
    (0..count).map(|index| element(noise(rank, index))).collect()
}

/// Checks that results over the communicator equal those of threads bit by bit, and those of the simulator for types that the
/// executor does not widen.
pub fn agree(comm: &mut Communicator, memory: Memory) {
    for algorithm in Algorithm::ALL {
        let sums: Vec<f32> = over(comm, memory, algorithm, COUNT, |noise| noise as f32);
        same_as_simulated(comm, algorithm, &sums, |noise| noise as f32, |held, arrived| held + arrived);
        same_as_threads(comm, algorithm, &sums, |noise| noise as f32);

        let sums: Vec<f64> = over(comm, memory, algorithm, COUNT, |noise| noise);
        same_as_simulated(comm, algorithm, &sums, |noise| noise, |held, arrived| held + arrived);

        let sums: Vec<f16> = over(comm, memory, algorithm, COUNT, f16::from_f64);
        same_as_threads(comm, algorithm, &sums, f16::from_f64);
        let sums: Vec<bf16> = over(comm, memory, algorithm, COUNT, bf16::from_f64);
        same_as_threads(comm, algorithm, &sums, bf16::from_f64);
        if !accumulates(comm, algorithm) {
            same_as_simulated(comm, algorithm, &sums, bf16::from_f64, |held, arrived| held + arrived);
        }
        for (scale, bf16_scale) in
            [(1.0, 1.0), (64.0, 2.0_f64.powi(118)), (2.0_f64.powi(-24), 2.0_f64.powi(-136))]
        {
            mean_is_same_on_all_ranks(comm, memory, algorithm, |noise| f16::from_f64(noise * scale));
            mean_is_same_on_all_ranks(comm, memory, algorithm, |noise| bf16::from_f64(noise * bf16_scale));
        }
    }
}

/// Returns whether a rank adds several half-precision elements before it rounds the sum.
fn accumulates(comm: &Communicator, algorithm: Algorithm) -> bool {
    let plan = |rank| CompiledPlan::new(algorithm, Operation::AllReduce, comm.topology(), rank);
    (0..comm.ranks()).any(|rank| plan(rank).expect("an all-reduce").accumulates())
}

/// Checks means of sums that were rounded on some ranks to be sent: of inexact numbers, of numbers so large that sums overflow, and
/// of subnormal numbers.
fn mean_is_same_on_all_ranks<T: Element + Into<f64>>(
    comm: &mut Communicator,
    memory: Memory,
    algorithm: Algorithm,
    element: impl Fn(f64) -> T,
) {
    let means = reduced(comm, memory, (algorithm, ReduceOp::Mean), COUNT, element);
    let mut first = means.clone();
    comm.broadcast(&mut first, 0).unwrap();
    let same = |one: T, other: T| {
        let (one_wide, other_wide): (f64, f64) = (one.into(), other.into());
        bytemuck::bytes_of(&one) == bytemuck::bytes_of(&other) || one_wide.is_nan() && other_wide.is_nan()
    };
    let differs = (0..COUNT).find(|&index| !same(means[index], first[index]));
    let what = differs.map(|index| (index, means[index], first[index]));
    assert!(what.is_none(), "mean of {} by {algorithm}, rank {} and rank 0: {what:?}", T::DTYPE, comm.rank());
}

/// Checks that means are equal for arrays that are reduced in blocks or copied by the kernel, where each block is divided
/// separately.
pub fn agree_in_blocks(comm: &mut Communicator, memory: Memory) {
    for algorithm in Algorithm::ALL {
        let sums: Vec<f32> = over(comm, memory, algorithm, BLOCKS_COUNT, |noise| noise as f32);
        same_as_simulated(comm, algorithm, &sums, |noise| noise as f32, |held, arrived| held + arrived);
        if IN_BLOCKS.contains(&algorithm) {
            are_divided(comm, memory, algorithm, &sums, |noise| noise as f32);
        }
    }
    for algorithm in IN_BLOCKS {
        let sums: Vec<bf16> = over(comm, memory, algorithm, BLOCKS_COUNT, bf16::from_f64);
        same_as_threads(comm, algorithm, &sums, bf16::from_f64);
        are_divided(comm, memory, algorithm, &sums, bf16::from_f64);
    }
}

/// Checks that means of the same inputs are these sums, divided once.
fn are_divided<T: Element + Into<f64>>(
    comm: &mut Communicator,
    memory: Memory,
    algorithm: Algorithm,
    sums: &[T],
    element: impl Fn(f64) -> T,
) {
    let means = reduced(comm, memory, (algorithm, ReduceOp::Mean), sums.len(), element);
    let ranks = comm.ranks() as f64;
    let differs = (0..sums.len()).find(|&index| {
        let (sum, mean): (f64, f64) = (sums[index].into(), means[index].into());
        (mean * ranks - sum).abs() > sum.abs() / 64.0
    });
    assert!(differs.is_none(), "{algorithm} over {}, means, element {differs:?}", comm.transport());
}

fn over<T: Element>(
    comm: &mut Communicator,
    memory: Memory,
    algorithm: Algorithm,
    count: usize,
    element: impl Fn(f64) -> T,
) -> Vec<T> {
    reduced(comm, memory, (algorithm, ReduceOp::Sum), count, element)
}

fn reduced<T: Element>(
    comm: &mut Communicator,
    memory: Memory,
    (algorithm, op): (Algorithm, ReduceOp),
    count: usize,
    element: impl Fn(f64) -> T,
) -> Vec<T> {
    let mut array = memory.array(comm, inputs(comm.rank(), count, element));
    comm.set_choice(algorithm).unwrap();
    comm.all_reduce(&mut array, op).unwrap();
    array.to_vec()
}

/// Compares with what rank 0 simulates, so that all ranks end with the same bits.
fn same_as_simulated<T: Element>(
    comm: &mut Communicator,
    algorithm: Algorithm,
    sums: &[T],
    element: impl Fn(f64) -> T + Copy,
    add: impl Fn(T, T) -> T,
) {
    let plans = algorithm.plans(Operation::AllReduce, comm.topology()).unwrap();
    let ranks = comm.ranks();
    let simulate = || {
        let inputs: Vec<_> = (0..ranks).map(|rank| inputs(rank, sums.len(), element)).collect();
        let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
        program::run(&programs, &inputs, add).unwrap().swap_remove(0)
    };
    same(comm, algorithm, sums, simulate);
}

/// Compares with the result of rank 0's own threads.
fn same_as_threads<T: Element>(
    comm: &mut Communicator,
    algorithm: Algorithm,
    sums: &[T],
    element: impl Fn(f64) -> T + Sync,
) {
    let ranks = comm.ranks();
    let by_threads = || {
        let run = |mut comm: Communicator| over(&mut comm, Memory::Slices, algorithm, sums.len(), &element);
        unisono::threads(ranks, run).swap_remove(0)
    };
    same(comm, algorithm, sums, by_threads);
}

fn same<T: Element>(
    comm: &mut Communicator,
    algorithm: Algorithm,
    sums: &[T],
    expected_on_rank_0: impl FnOnce() -> Vec<T>,
) {
    let mut expected = if comm.rank() == 0 { expected_on_rank_0() } else { sums.to_vec() };
    comm.broadcast(&mut expected, 0).unwrap();
    let differs = (0..sums.len()).find(|&index| sums[index] != expected[index]);
    let (over, rank) = (comm.transport(), comm.rank());
    assert!(differs.is_none(), "{algorithm} over {over}, rank {rank}, element {differs:?}");
}
