//! Custom reductions, commutative or not, over any transport.

use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use unisono::{Algorithm, Choice, Communicator, Error, Operation, ReduceOp, Unisono, Vendor};
use unisono_testing::random::Random;
use unisono_testing::suite::is_deep;

use super::calls::Made;
use super::memory::Memory;

/// The prime of the entries of matrices, which have 16 bits.
const PRIME: u64 = 65_521;

/// Returns the product of 2×2 matrices modulo a prime, whose entries are the 16-bit parts of a word: associative, and not
/// commutative.
fn product(left: u64, right: u64) -> u64 {
    let entry = |matrix: u64, place: u32| matrix >> (16 * place) & 0xffff;
    // Not by iterators, which are slow without optimisation.
    let dot = |row: u32, column: u32| {
        let first = entry(left, 2 * row) * entry(right, column);
        (first + entry(left, 2 * row + 1) * entry(right, 2 + column)) % PRIME
    };
    dot(0, 0) | dot(0, 1) << 16 | dot(1, 0) << 32 | dot(1, 1) << 48
}

/// Returns the matrix of a rank at an index of an array.
fn matrix(call: u64, rank: usize, index: usize) -> u64 {
    let mixed = (call << 40 ^ (rank as u64) << 32 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let entry = |place: u32| ((mixed >> (16 * place) & 0xffff) % PRIME) << (16 * place);
    entry(0) | entry(1) | entry(2) | entry(3)
}

/// Defined once per process, although each rank that is a thread calls this.
fn products() -> ReduceOp {
    static PRODUCTS: OnceLock<ReduceOp> = OnceLock::new();
    *PRODUCTS.get_or_init(|| {
        ReduceOp::custom("product of matrices", false, |left: &mut [u64], right: &[u64]| {
            left.iter_mut().zip(right).for_each(|(left, right)| *left = product(*left, *right));
        })
    })
}

/// Returns the larger of two pairs of a key and the rank that has it; of equal keys, the lower rank's.
fn largest() -> ReduceOp {
    static LARGEST: OnceLock<ReduceOp> = OnceLock::new();
    *LARGEST.get_or_init(|| {
        ReduceOp::custom_bytes("largest", PAIR_BYTES as u16, true, |left, right| {
            for (left, right) in left.chunks_exact_mut(PAIR_BYTES).zip(right.chunks_exact(PAIR_BYTES)) {
                let [key, rank]: [u64; 2] = bytemuck::pod_read_unaligned(left);
                let [other, other_rank]: [u64; 2] = bytemuck::pod_read_unaligned(right);
                if other > key || other == key && other_rank < rank {
                    left.copy_from_slice(right);
                }
            }
        })
    })
}

const PAIR_BYTES: usize = 16;

/// Returns the ranks whose values contribute to a result, and its range.
fn result(comm: &Communicator, operation: Operation, count: usize) -> (Range<usize>, Range<usize>) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    match operation {
        Operation::ReduceScatter => (0..ranks, comm.own_part(count)),
        Operation::Reduce { root } if root != rank => (0..ranks, 0..0),
        Operation::Scan => (0..rank + 1, 0..count),
        Operation::ExclusiveScan if rank == 0 => (0..0, 0..0),
        Operation::ExclusiveScan => (0..rank, 0..count),
        _ => (0..ranks, 0..count),
    }
}

/// Tests every operation by every algorithm, with a non-commutative reduction and random counts.
pub fn conformance(comm: &mut Communicator) {
    let mut common = Random::new(7);
    let ranks = comm.ranks();
    let mut number = 0;
    for operation in Operation::all(common.below(ranks)).into_iter().filter(|it| it.reduces()) {
        let mut kept = 0;
        let algorithms: Vec<_> = Algorithm::ALL.map(Choice::from).into_iter().chain([Choice::Auto]).collect();
        for choice in algorithms {
            let most = if is_deep() { 300_000 } else { 300_000 / (ranks * ranks) };
            for longest in [1, 40, 3000, most] {
                let count = common.below(longest) + usize::from(longest == 1);
                let made = Ordered { operation, choice: choice.clone(), count, number };
                let is_in_flight = common.once_in(3);
                kept += usize::from(made.make(comm, is_in_flight) && choice != Choice::Auto);
                number += 1;
            }
        }
        assert!(kept > 0, "no algorithm keeps the order of {operation} over {ranks} ranks");
    }
    comm.set_choice(Choice::Auto).unwrap();
    pairs(comm);
    refusals(comm);
}

/// A call with matrices.
struct Ordered {
    operation: Operation,
    choice: Choice,
    count: usize,
    number: u64,
}

impl Ordered {
    /// Returns whether it was carried out. Otherwise it was refused, on all ranks.
    fn make(&self, comm: &mut Communicator, is_in_flight: bool) -> bool {
        let Self { operation, ref choice, count, number } = *self;
        let rank = comm.rank();
        comm.set_choice(choice.clone()).unwrap();
        let given: Vec<_> = (0..count).map(|index| matrix(number, rank, index)).collect();
        let memory = Random::of(number, rank as u64).one_of(&Memory::ALL);
        let mut array = memory.array(comm, given);
        let made = Made {
            operation,
            choice: choice.clone(),
            dtype: unisono::DType::U64,
            op: products(),
            count,
            label: "",
        };
        let done = if is_in_flight {
            made.begin(comm, array).and_then(unisono::Request::wait)
        } else {
            made.block(comm, &mut array).map(|()| array)
        };
        let what = format!("call {number}, {operation} of {count} by {choice}, {memory:?}, rank {rank}");
        let array = match done {
            Ok(array) => array,
            Err(Error::Unsupported(why)) => {
                assert!(why.contains("order of ranks") && *choice != Choice::Auto, "{what}: {why}");
                return false;
            }
            Err(error) => panic!("{what}: {error}"),
        };
        let (givers, elements) = result(comm, operation, count);
        for index in elements {
            let matrices = givers.clone().map(|giver| matrix(number, giver, index));
            assert_eq!(Some(array[index]), matrices.reduce(product), "{what}, element {index}");
        }
        true
    }
}

/// Tests elements of several words, by every algorithm that reduces.
fn pairs(comm: &mut Communicator) {
    let (rank, ranks, mut common) = (comm.rank(), comm.ranks(), Random::new(11));
    let key = |giver: usize, index: usize| matrix(1, giver, index) % 5;
    for operation in Operation::all(ranks - 1).into_iter().filter(|it| it.reduces()) {
        for algorithm in Algorithm::ALL {
            let count = common.below(5000);
            let mut array: Vec<u64> = (0..count).flat_map(|index| [key(rank, index), rank as u64]).collect();
            let made = Made {
                operation,
                choice: Choice::Auto,
                dtype: unisono::DType::U8,
                op: largest(),
                count: PAIR_BYTES * count,
                label: "",
            };
            let size = NonZero::new(PAIR_BYTES as u16).unwrap();
            let mut call = comm.call().element_bytes(size).algorithm(algorithm);
            made.block(&mut call, bytemuck::cast_slice_mut::<u64, u8>(&mut array)).unwrap();
            drop(call);
            let (givers, elements) = result(comm, operation, count);
            for index in elements {
                let first = givers.clone().max_by_key(|&giver| (key(giver, index), ranks - giver)).unwrap();
                let expected = [key(first, index), first as u64];
                assert_eq!(array[2 * index..][..2], expected, "{operation} by {algorithm}, {index}");
            }
        }
    }
}

/// Checks that unsupported reductions are refused on all ranks, which continue.
fn refusals(comm: &mut Communicator) {
    let refused = |done: unisono::Result<()>, words: &str| match done {
        Err(Error::Unsupported(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{words}: {other:?}"),
    };
    refused(comm.all_reduce(&mut [1.0_f32], products()).map(drop), "reduces elements of u64, and not of f32");
    refused(comm.all_reduce(&mut [1_u8; 16], largest()).map(drop), "set `element_bytes`");
    if comm.collective(Vendor::Mpi).is_ok() {
        let done = comm.call().algorithm(Vendor::Mpi).all_reduce(&mut [1_u64], products()).map(drop);
        refused(done, "MPI's own collectives do not support `product of matrices`");
    }
    let mut one = [1_u64];
    comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
    assert_eq!(one, [comm.ranks() as u64]);
}

/// Checks that reductions with different names are an error with both names.
pub fn other_names() {
    let errors = unisono::threads(2, |mut comm| {
        let name = if comm.rank() == 0 { "one name" } else { "another name" };
        let op = ReduceOp::custom(name, true, |_: &mut [u32], _: &[u32]| {});
        comm.all_reduce(&mut [1_u32; 10], op).err()
    });
    let names_both = |error: &Error| {
        let error = error.to_string();
        error.contains("of 10 u32, one name") && error.contains("of 10 u32, another name")
    };
    assert!(errors.iter().flatten().any(names_both), "{errors:?}");
}

/// Checks that a panic in a reduction ends a world of threads, in messages and in passes over memory.
pub fn panics() {
    for count in [3, 100_000] {
        let panics = ReduceOp::custom("panics", true, |_: &mut [u32], _: &[u32]| panic!("on purpose"));
        // For other ranks it is the same reduction.
        let harmless = ReduceOp::custom("panics", true, |_: &mut [u32], _: &[u32]| {});
        let world = Unisono::builder().threads(3).unwrap().into_iter().map(|mut comm| {
            let op = if comm.rank() == 1 { panics } else { harmless };
            std::thread::spawn(move || {
                comm.set_choice(Algorithm::RoundRobin).unwrap();
                comm.all_reduce(&mut vec![0_u32; count], op).map(drop)
            })
        });
        let threads: Vec<_> = world.collect();
        let results: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
        assert!(results[1].is_err());
        for rank in [0, 2] {
            let error = results[rank].as_ref().unwrap().as_ref().unwrap_err().to_string();
            assert!(error.contains("rank 1"), "{error}");
        }
    }
}

/// Checks that a panic in a reduction that the program catches ends the call on all ranks, with the true cause.
pub fn caught_panic() {
    caught_panic_before(Communicator::barrier);
    caught_panic_before(|comm| comm.split(Some(0), 0).map(drop));
    caught_panic_before(|comm| comm.wait_until(1, &AtomicU64::new(0), 1));
}

/// `next` is the next call after the panic.
fn caught_panic_before(next: fn(&mut Communicator) -> unisono::Result<()>) {
    let errors = unisono::threads(3, |mut comm| {
        // Longer than a busy machine takes to print the backtrace of a panic.
        comm.set_timeout(Duration::from_secs(90));
        let is_harmless = comm.rank() != 0;
        let reduce = move |_: &mut [u32], _: &[u32]| assert!(is_harmless, "on purpose");
        // For other ranks it is the same reduction.
        let op = ReduceOp::custom("panics on rank 0", true, reduce);
        let call = || comm.call().algorithm(Algorithm::MasterWorker).all_reduce(&mut [1_u32], op).map(drop);
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(ended) => ended.unwrap_err(),
            Err(_) => next(&mut comm).unwrap_err(),
        }
    });
    let has_cause =
        |error: &_| matches!(error, Error::Aborted { by: 0, cause, .. } if cause.contains("panicked"));
    assert!(errors.iter().all(has_cause), "{errors:?}");
}
