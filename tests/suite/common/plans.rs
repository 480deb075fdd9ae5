//! Persistent calls: plans of every operation, started many times, with other calls between.

use unisono::{Choice, Communicator, DType, Operation, Planned, ReduceOp};
use unisono_testing::random::Random;

use super::calls::{Made, Ranks};
use super::memory::{Array, Memory};
use super::{Exact, assert_reduced, inputs, reductions};

/// Makes this many random planned calls.
pub fn calls(comm: &mut Communicator, calls: usize) {
    let mut common = Random::new(5 * comm.ranks() as u64);
    let mut own = Random::new(3000 + comm.rank() as u64);
    for number in 0..calls {
        match common.one_of(&[DType::F32, DType::BF16, DType::U8, DType::I64]) {
            DType::F32 => call::<f32>(comm, &mut common, &mut own, number),
            DType::BF16 => call::<half::bf16>(comm, &mut common, &mut own, number),
            DType::U8 => call::<u8>(comm, &mut common, &mut own, number),
            _ => call::<i64>(comm, &mut common, &mut own, number),
        }
    }
    in_any_order(comm, &mut own);
}

fn call<T: Exact>(comm: &mut Communicator, common: &mut Random, own: &mut Random, number: usize) {
    let root = common.below(comm.ranks());
    let operation = match common.one_of(&Operation::all(root)) {
        _ if common.once_in(2) => Operation::AllReduce,
        operation => operation,
    };
    let mut op = common.one_of(&reductions(T::DTYPE));
    if matches!(operation, Operation::Scan | Operation::ExclusiveScan) && op == ReduceOp::Mean {
        op = ReduceOp::Sum;
    }
    let longest = common.one_of(&[3, 3, 40, 5_000]);
    let mut count = common.below(longest);
    if operation == Operation::AllToAll {
        count -= count % comm.ranks();
    }
    let made = Made { operation, choice: Choice::Auto, dtype: T::DTYPE, op, count, label: "" };
    let memory = own.one_of(&Memory::ALL);
    let array = memory.array(comm, vec![T::exact(0); count]);
    let reduction = operation.reduces().then_some(op);
    let mut planned: Planned<Array<T>> = comm.plan(operation, reduction, array).unwrap();
    for round in 0..5 {
        own.delay();
        let number = 7 * number + round;
        planned.copy_from_slice(&inputs::<T>(op, comm.rank(), number, count));
        planned.start(comm).unwrap();
        if common.once_in(2) {
            let mut between = inputs::<u32>(ReduceOp::Sum, comm.rank(), number, 3);
            comm.all_reduce(&mut between, ReduceOp::Sum).unwrap();
            assert_reduced(&between, ReduceOp::Sum, comm.ranks(), number, "between start and wait");
        }
        planned.wait(comm).unwrap();
        made.check(comm, &planned, number, Ranks::Agree);
    }
    assert_eq!(planned.into_buffer().len(), count);
}

/// Tests several short plans in flight, started and waited for in a different order on every rank.
fn in_any_order(comm: &mut Communicator, own: &mut Random) {
    const PLANS: usize = 5;
    let ranks = comm.ranks();
    if comm.transport() != "threads" && comm.transport() != "shm" || ranks > 8 {
        return;
    }
    let plan = |_| comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![0.0_f32; 9]).unwrap();
    let mut plans: Vec<_> = (0..PLANS).map(plan).collect();
    let mut order = |plans: &mut Vec<usize>| {
        *plans = (0..PLANS).collect();
        (1..PLANS).for_each(|place| plans.swap(place, own.below(place + 1)));
    };
    let mut places = Vec::new();
    for number in 0..50 {
        order(&mut places);
        for &place in &places {
            let values = inputs(ReduceOp::Sum, comm.rank(), number + place, 9);
            plans[place].copy_from_slice(&values);
            plans[place].start(comm).unwrap();
        }
        order(&mut places);
        for &place in &places {
            plans[place].wait(comm).unwrap();
            assert_reduced(&plans[place], ReduceOp::Sum, ranks, number + place, "plans in any order");
        }
    }
}
