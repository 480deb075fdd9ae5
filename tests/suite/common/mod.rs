//! The checks that every transport must pass, run by one rank over its communicator.

#![allow(dead_code, unreachable_pub, reason = "builds without MPI or NCCL use a part")]

use half::{bf16, f16};
use unisono::{
    Algorithm, Call, Choice, Collective as _, Communicator, DType, Element, Error, Method, Operation,
    ReduceOp, Vendor,
};
use unisono_testing::launch;
use unisono_testing::suite::is_deep;

pub mod bits;
pub mod calls;
pub mod custom;
pub mod disagreements;
pub mod errors;
pub mod groups;
pub mod in_flight;
pub mod memory;
pub mod parts;
pub mod plans;
pub mod point_to_point;
pub mod roles;
pub mod small;
pub mod stress;
pub mod tags;
pub mod thresholds;
pub mod vendors;

use memory::Memory;

/// Returns the reason why UCX is not available here, if it is not.
pub fn no_ucx() -> Option<String> {
    let is_built_in = cfg!(feature = "ucx");
    if is_built_in { launch::no_ucx() } else { Some("built without the feature `ucx`".to_owned()) }
}

/// An element type that represents small integers and their quotients.
pub trait Exact: Element {
    fn exact(value: i64) -> Self;
    fn mean(sum: i64, ranks: usize) -> Self;
}

macro_rules! exact {
    ($($element:ty: $from:expr, $mean:expr;)*) => {$(
        impl Exact for $element {
            fn exact(value: i64) -> Self {
                $from(value)
            }
            fn mean(sum: i64, ranks: usize) -> Self {
                $mean(sum, ranks)
            }
        }
    )*};
}

exact! {
    f32: |value| value as f32, |sum, ranks| sum as f32 / ranks as f32;
    f64: |value| value as f64, |sum, ranks| sum as f64 / ranks as f64;
    f16: |value| f16::from_f32(value as f32), |sum, ranks| f16::from_f32(sum as f32 / ranks as f32);
    bf16: |value| bf16::from_f32(value as f32), |sum, ranks| bf16::from_f32(sum as f32 / ranks as f32);
    i32: |value| value as i32, |sum: i64, ranks| (sum / ranks as i64) as i32;
    i64: |value| value, |sum: i64, ranks| sum / ranks as i64;
    u8: |value| value as u8, |sum: i64, ranks| (sum / ranks as i64) as u8;
    u32: |value| value as u32, |sum: i64, ranks| (sum / ranks as i64) as u32;
    u64: |value| value as u64, |sum: i64, ranks| (sum / ranks as i64) as u64;
}

/// Runs a generic function for every element type.
#[macro_export]
macro_rules! for_every_dtype {
    ($function:ident($($argument:expr),*)) => {
        $function::<f32>($($argument),*);
        $function::<f64>($($argument),*);
        $function::<half::f16>($($argument),*);
        $function::<half::bf16>($($argument),*);
        $function::<i32>($($argument),*);
        $function::<i64>($($argument),*);
        $function::<u8>($($argument),*);
        $function::<u32>($($argument),*);
        $function::<u64>($($argument),*);
    };
}

/// Returns an element of rank `rank`, so small that every sum and product over 9 ranks is exact in every type.
fn input(op: ReduceOp, rank: usize, index: usize) -> i64 {
    match op {
        ReduceOp::Product => 1 + i64::from((rank + index).is_multiple_of(3)),
        // Few ranks of 9 clear a bit, or have a false value.
        ReduceOp::BitAnd if (4 * rank + index) % 11 > 6 => 127,
        ReduceOp::BitAnd => 127 ^ (1 << ((4 * rank + index) % 11)),
        ReduceOp::LogicalAnd | ReduceOp::LogicalOr | ReduceOp::LogicalXor => {
            2 * i64::from((4 * rank + index).is_multiple_of(11) == (op != ReduceOp::LogicalAnd))
        }
        _ => ((rank * 7 + index * 13 + rank * index) % 11) as i64,
    }
}

/// Returns the expected result of every rank.
fn expected<T: Exact>(op: ReduceOp, ranks: usize, index: usize) -> T {
    let inputs = (0..ranks).map(|rank| input(op, rank, index));
    let reduced = |reduce: fn(i64, i64) -> i64| T::exact(inputs.clone().reduce(reduce).unwrap());
    match op {
        ReduceOp::Sum => T::exact(inputs.sum()),
        ReduceOp::Mean => T::mean(inputs.sum(), ranks),
        ReduceOp::Min => T::exact(inputs.min().unwrap()),
        ReduceOp::Max => T::exact(inputs.max().unwrap()),
        ReduceOp::Product => T::exact(inputs.product()),
        // A logical reduction of one rank is the rank's value.
        ReduceOp::BitAnd => reduced(|one, other| one & other),
        ReduceOp::BitOr => reduced(|one, other| one | other),
        ReduceOp::BitXor => reduced(|one, other| one ^ other),
        ReduceOp::LogicalAnd => reduced(|one, other| i64::from(one != 0 && other != 0)),
        ReduceOp::LogicalOr => reduced(|one, other| i64::from(one != 0 || other != 0)),
        ReduceOp::LogicalXor => reduced(|one, other| i64::from((one != 0) != (other != 0))),
        ReduceOp::Custom(custom) => unreachable!("{custom:?} has its own tests"),
    }
}

/// Returns the reductions of elements of a type.
pub fn reductions(dtype: DType) -> Vec<ReduceOp> {
    ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(dtype)).collect()
}

/// The period of inputs and expected results: 11 times 3.
const PERIOD: usize = 33;

/// Returns the elements of rank `rank`, from an index on.
pub fn inputs<T: Exact>(op: ReduceOp, rank: usize, from: usize, count: usize) -> Vec<T> {
    let period = (from..from + PERIOD).map(|index| T::exact(input(op, rank, index)));
    repeated(&period.collect::<Vec<_>>(), count)
}

/// Returns this many elements of a periodic sequence. (`cycle` is slow without optimisation.)
pub fn repeated<T: Copy>(period: &[T], count: usize) -> Vec<T> {
    let mut elements = period.repeat(count.div_ceil(period.len()));
    elements.truncate(count);
    elements
}

/// Checks a result.
pub fn assert_reduced<T: Exact>(reduced: &[T], op: ReduceOp, ranks: usize, from: usize, what: &str) {
    let period: Vec<T> = (from..from + PERIOD).map(|index| expected(op, ranks, index)).collect();
    let has_bits = |part: &[T]| {
        bytemuck::cast_slice::<T, u8>(part) == bytemuck::cast_slice::<T, u8>(&period[..part.len()])
    };
    if reduced.chunks(PERIOD).all(has_bits) {
        return;
    }
    let differs =
        reduced.iter().zip(period.iter().cycle()).position(|(element, expected)| element != expected);
    if let Some(index) = differs {
        let (element, expected) = (reduced[index], period[index % PERIOD]);
        panic!(
            "{what}, {op} of {}, {ranks} ranks: element {index} is {element:?}, not {expected:?}",
            T::DTYPE
        );
    }
}

/// The count with which every reduction is tested.
pub const WITH_ALL_REDUCTIONS: usize = 1009;

/// Returns every reduction with one count, and every other count with one reduction, or all pairs if there is time.
pub fn reductions_of_counts(dtype: DType, counts: &[usize]) -> Vec<(ReduceOp, usize)> {
    let all = reductions(dtype);
    let pairs = counts.iter().enumerate().flat_map(|(place, &count)| {
        let is_whole = count == WITH_ALL_REDUCTIONS || is_deep();
        let ops = if is_whole { &all[..] } else { &all[place % all.len()..][..1] };
        ops.iter().map(move |&op| (op, count))
    });
    pairs.collect()
}

/// Returns counts: none, one, around the number of ranks, primes, and (for a few types) many.
fn counts<T: Exact>(ranks: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, ranks - 1, ranks, ranks + 1, 17, WITH_ALL_REDUCTIONS];
    if matches!(T::DTYPE, DType::F32 | DType::BF16 | DType::U8) {
        counts.push(100_003);
    }
    counts
}

/// Tests every algorithm, operation, type and count that this world supports.
pub fn conformance(comm: &mut Communicator, memory: Memory) {
    for_every_dtype!(all_reduces(comm, memory));
    for_every_dtype!(all_other_operations(comm, memory));
    comm.barrier().unwrap();
}

fn choices(comm: &Communicator, dtype: DType) -> Vec<Choice> {
    let mut choices: Vec<_> = Algorithm::ALL.into_iter().map(Choice::from).collect();
    choices.push(Choice::Auto);
    if comm.has_mpi() {
        choices.push(Choice::from(Method::InNodes(Algorithm::HierarchicalCopy, Vendor::Mpi)));
        choices.push(Choice::from(Method::InNodes(Algorithm::Rail, Vendor::Mpi)));
    }
    if comm.has_mpi() && !dtype.is_half() {
        choices.push(Choice::from(Vendor::Mpi));
    }
    choices
}

fn all_reduces<T: Exact>(comm: &mut Communicator, memory: Memory) {
    let ranks = comm.ranks();
    for choice in choices(comm, T::DTYPE) {
        for (op, count) in reductions_of_counts(T::DTYPE, &counts::<T>(ranks)) {
            all_reduce::<T>(comm, memory, &choice, op, count);
        }
    }
}

fn all_reduce<T: Exact>(
    comm: &mut Communicator,
    memory: Memory,
    choice: &Choice,
    op: ReduceOp,
    count: usize,
) {
    let mut array = memory.array(comm, inputs::<T>(op, comm.rank(), 0, count));
    let call = Call::all_reduce(T::DTYPE, op, count);
    let ran = comm.collective(choice.clone()).unwrap().run(&call, bytemuck::cast_slice_mut(&mut array));
    if let Err(Error::Unsupported(why)) = &ran {
        assert!(vendors::may_refuse(choice, T::DTYPE, op) && vendors::names(why, T::DTYPE, op), "{why}");
        assert_eq!(*array, inputs::<T>(op, comm.rank(), 0, count), "the array is unchanged");
        return;
    }
    let ran = ran.unwrap();
    assert!(*choice == Choice::Auto || Choice::from(ran.method) == *choice);
    assert_eq!(ran.link, ran.method.vendor().map_or(comm.transport(), |_| "mpi"));
    let what = format!("{choice} over {}, {memory:?}, rank {}", comm.transport(), comm.rank());
    assert_reduced(&array, op, comm.ranks(), 0, &what);
}

/// Returns every algorithm that offers the operation, and `auto`.
fn offering(comm: &Communicator, operation: Operation) -> Vec<Choice> {
    let offers = |algorithm: &Algorithm| algorithm.plan(operation, comm.topology(), comm.rank()).is_some();
    let offering: Vec<_> = Algorithm::ALL.into_iter().filter(offers).map(Choice::from).collect();
    assert!(!offering.is_empty(), "no algorithm offers {operation:?}");
    offering.into_iter().chain([Choice::Auto]).collect()
}

fn all_other_operations<T: Exact>(comm: &mut Communicator, memory: Memory) {
    other_operations::<T>(comm, memory, counts::<T>(comm.ranks()));
}

fn other_operations<T: Exact>(comm: &mut Communicator, memory: Memory, counts: Vec<usize>) {
    for count in counts {
        others_of_count::<T>(comm, memory, count);
    }
}

fn others_of_count<T: Exact>(comm: &mut Communicator, memory: Memory, count: usize) {
    const OP: ReduceOp = ReduceOp::Sum;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let begin = |comm: &Communicator| memory.array(comm, inputs::<T>(OP, rank, 0, count));
    let root = (count + 1) % ranks;
    let own = comm.own_part(count);
    let parts = (0..ranks).map(|rank| (rank, part(count, ranks, rank)));
    let gathered: Vec<T> =
        parts.flat_map(|(rank, part)| inputs::<T>(OP, rank, part.start, part.len())).collect();

    for choice in offering(comm, Operation::ReduceScatter) {
        comm.set_choice(choice.clone()).unwrap();
        let mut buffer = begin(comm);
        let mine = comm.reduce_scatter(&mut buffer, OP).unwrap();
        assert_eq!(mine.len(), own.len());
        assert_reduced(mine, OP, ranks, own.start, &format!("reduce-scatter by {choice}"));
    }
    for choice in offering(comm, Operation::Scan) {
        comm.set_choice(choice.clone()).unwrap();
        let mut buffer = begin(comm);
        comm.scan(&mut buffer, OP).unwrap();
        assert_reduced(&buffer, OP, rank + 1, 0, &format!("scan by {choice}"));
        let mut buffer = begin(comm);
        comm.exclusive_scan(&mut buffer, OP).unwrap();
        if rank > 0 {
            assert_reduced(&buffer, OP, rank, 0, &format!("exclusive scan by {choice}"));
        }
    }
    for choice in offering(comm, Operation::AllGather) {
        comm.set_choice(choice.clone()).unwrap();
        let mut buffer = begin(comm);
        comm.all_gather(&mut buffer).unwrap();
        assert!(*buffer == gathered, "all-gather of {count} by {choice}");
    }
    for choice in offering(comm, Operation::Broadcast { root }) {
        comm.set_choice(choice.clone()).unwrap();
        let mut buffer = begin(comm);
        comm.broadcast(&mut buffer, root).unwrap();
        assert!(*buffer == inputs::<T>(OP, root, 0, count), "broadcast of {count} by {choice}");

        let mut buffer = begin(comm);
        comm.reduce(&mut buffer, OP, root).unwrap();
        if rank == root {
            assert_reduced(&buffer, OP, ranks, 0, &format!("reduce by {choice}"));
        }
    }
    comm.set_choice(Choice::Auto).unwrap();
    let mut buffer = begin(comm);
    comm.gather(&mut buffer, root).unwrap();
    assert!(rank != root || *buffer == gathered, "gather of {count}");

    let mut buffer = begin(comm);
    let mine = comm.scatter(&mut buffer, root).unwrap();
    assert!(*mine == inputs::<T>(OP, root, own.start, own.len()), "scatter of {count}");

    let block = count / ranks;
    let mut buffer = memory.array(comm, inputs::<T>(OP, rank, 0, block * ranks));
    comm.all_to_all(&mut buffer).unwrap();
    let sent: Vec<T> = (0..ranks).flat_map(|from| inputs::<T>(OP, from, rank * block, block)).collect();
    assert!(*buffer == sent, "all-to-all of {count}");
}

/// Returns the elements of a rank's own part, computed independently.
fn part(count: usize, ranks: usize, rank: usize) -> std::ops::Range<usize> {
    let size = |rank: usize| count / ranks + usize::from(rank < count % ranks);
    let start = (0..rank).map(size).sum::<usize>();
    start..start + size(rank)
}
