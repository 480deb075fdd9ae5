//! Invalid calls, which panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

use unisono::{Algorithm, Call, Collective as _, Communicator, DType, Operation, ReduceOp};
use unisono_testing::suite::Test;
use unisono_testing::tests;

pub(crate) fn tests() -> Vec<Test> {
    tests![invalid_calls_panic_without_harm]
}

type MakeCall = fn(&mut Communicator);

/// Makes a call by the `Collective` interface on an empty buffer.
fn on_nothing(comm: &mut Communicator, call: Call) {
    drop(comm.collective(Algorithm::RoundRobin).unwrap().run(&call, &mut []));
}

/// Makes a call by the `Collective` interface with these parts of ranks.
fn in_parts(comm: &mut Communicator, counts: &[usize]) {
    let call = Call::new(Operation::AllGather, None, DType::U8, 4);
    let mut comm = comm.call().counts(counts);
    drop(comm.collective(Algorithm::RoundRobin).unwrap().run(&call, &mut [0; 4]));
}

fn invalid_calls_panic_without_harm() {
    let calls: [(MakeCall, &str); 7] = [
        (|comm| on_nothing(comm, Call::all_reduce(DType::F32, ReduceOp::Sum, 1 << 62)), "address space"),
        (
            |comm| on_nothing(comm, Call::new(Operation::AllGather, Some(ReduceOp::Mean), DType::F32, 0)),
            "`all-gather` is Some(Mean)",
        ),
        (
            |comm| drop(comm.plan(Operation::Gather { root: 0 }, Some(ReduceOp::Mean), vec![1_u8])),
            "`gather` is Some(Mean)",
        ),
        (|comm| drop(comm.plan(Operation::AllReduce, None, vec![1_u8])), "`all-reduce` is None"),
        (|comm| in_parts(comm, &[1, 2]), "the buffer has 4 elements, and the parts of ranks have 3"),
        (|comm| in_parts(comm, &[4, 4]), "the buffer has 4 elements, and the parts of ranks have 8"),
        (|comm| drop(comm.wait_until(2, &AtomicU64::new(1), 1)), "rank 2 is not in a world of 2 ranks"),
    ];
    unisono::threads(2, |mut comm| {
        for (call, message) in calls {
            let panic = catch_unwind(AssertUnwindSafe(|| call(&mut comm))).expect_err(message);
            let text = panic.downcast::<String>().unwrap();
            assert!(text.contains(message), "{text}");
        }
        comm.barrier().unwrap();
        // A counter may have passed the value.
        comm.wait_until(1 - comm.rank(), &AtomicU64::new(2), 1).unwrap();
    });
}
