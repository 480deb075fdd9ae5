//! The requirements on MPI's own collectives: right, or refused by name, and never slightly different.

use unisono::{
    Algorithm, Call, Choice, Collective as _, Communicator, DType, Element, Error, Method, Ran, ReduceOp,
    Vendor,
};

use crate::for_every_dtype;

/// Returns whether MPI may be refused. It must not be where every known MPI is right.
pub fn may_refuse(choice: &Choice, dtype: DType, op: ReduceOp) -> bool {
    let is_vendor = choice.vendor() == Some(Vendor::Mpi);
    let compares = matches!(op, ReduceOp::Min | ReduceOp::Max);
    let is_signed = matches!(dtype, DType::I32 | DType::I64);
    let in_nodes = matches!(choice, Choice::Method(Method::InNodes(..)));
    is_vendor && (compares && !is_signed || dtype == DType::U8 || dtype.is_half() && !in_nodes)
}

/// Returns whether a refusal names the refused combination.
pub fn names(why: &str, dtype: DType, op: ReduceOp) -> bool {
    why.contains(&format!(" of {dtype}")) && why.contains(op.name()) && why.contains("MPI")
}

/// Tests every type and reduction, with values that vendors treat differently.
pub fn agree(comm: &mut Communicator) {
    for_every_dtype!(agree_on(comm));
}

/// Returns a value with extreme or random bits: zero, the largest and smallest integers, infinities, NaNs and others.
fn value<T: Element>(random: u64) -> T {
    let bits = match random % 8 {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (8 * size_of::<T>() - 1),
        3 => (1 << (8 * size_of::<T>() - 1)) - 1,
        4 => 14,
        _ => random.rotate_left(17).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    };
    bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<T>()])
}

fn agree_on<T: Element>(comm: &mut Communicator) {
    let choices = [
        Choice::from(Vendor::Mpi),
        Choice::from(Method::InNodes(Algorithm::HierarchicalCopy, Vendor::Mpi)),
        Choice::from(Method::InNodes(Algorithm::Rail, Vendor::Mpi)),
    ];
    for op in super::reductions(T::DTYPE) {
        // Vendors choose the order of additions, on which sums of floats depend and sums of integers do not.
        if T::DTYPE.is_float() && !matches!(op, ReduceOp::Min | ReduceOp::Max) {
            continue;
        }
        for count in [1, 7, 300, 40_001] {
            agree_on_count::<T>(comm, &choices, op, count);
        }
    }
}

fn agree_on_count<T: Element>(comm: &mut Communicator, choices: &[Choice], op: ReduceOp, count: usize) {
    let rank = comm.rank() as u64;
    let inputs: Vec<T> = (0..count as u64)
        .map(|index| value((index * 37 + rank * 11 + index * index * rank) % 1009))
        .collect();
    let call = Call::all_reduce(T::DTYPE, op, count);
    let (by_us, expected) = run(comm, Choice::from(Algorithm::Ring), &call, &inputs);
    by_us.unwrap();
    for choice in choices {
        agree_on_one(comm, choice, &call, (&inputs, &expected));
    }
}

/// Makes a call on a copy, which it returns.
fn run<T: Element>(
    comm: &mut Communicator,
    choice: Choice,
    call: &Call,
    inputs: &[T],
) -> (unisono::Result<Ran>, Vec<T>) {
    let mut array = inputs.to_vec();
    let ran = comm.collective(choice).unwrap().run(call, bytemuck::cast_slice_mut(&mut array));
    (ran, array)
}

fn agree_on_one<T: Element>(
    comm: &mut Communicator,
    choice: &Choice,
    call: &Call,
    (inputs, expected): (&[T], &[T]),
) {
    let (dtype, op) = (T::DTYPE, call.op.expect("an all-reduce reduces"));
    let (ran, found) = run(comm, choice.clone(), call, inputs);
    let what = format!("{op} of {} {dtype} by {choice}", call.count);
    let is_refused = match ran {
        Ok(_) => {
            let is_nan = |value: &T| value.ne(value);
            let same = |(one, other): (&T, &T)| one == other || is_nan(one) && is_nan(other);
            let differs = found.iter().zip(expected).position(|pair| !same(pair));
            let pair = differs.map(|index| (index, found[index], expected[index]));
            assert_eq!(pair, None, "{what}: (index, MPI's, ours)");
            false
        }
        Err(Error::Unsupported(why)) => {
            assert!(may_refuse(choice, dtype, op), "{what}: {why}");
            assert!(names(&why, dtype, op), "{what}: {why}");
            assert_eq!(
                bytemuck::cast_slice::<T, u8>(&found),
                bytemuck::cast_slice::<T, u8>(inputs),
                "{what}"
            );
            true
        }
        Err(error) => panic!("{what}: {error}"),
    };
    // All ranks make the same decision, and continue.
    let mut refused = [u32::from(is_refused)];
    comm.all_reduce(&mut refused, ReduceOp::Sum).unwrap();
    assert_eq!(refused[0] as usize, if is_refused { comm.ranks() } else { 0 }, "{what}");
}
