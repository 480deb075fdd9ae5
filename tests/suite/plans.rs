//! Persistent calls: mismatched plans, and plans that a rank does not start.

use std::time::Duration;

use unisono::{Error, Operation, ReduceOp};
use unisono_testing::suite::Test;
use unisono_testing::tests;

pub(crate) fn tests() -> Vec<Test> {
    tests![mismatched_plans_are_an_error_on_every_rank, unstarted_plan_of_one_rank_times_out_on_the_others,]
}

fn mismatched_plans_are_an_error_on_every_rank() {
    let refused = unisono::threads(2, |mut comm| {
        comm.plan(Operation::AllReduce, Some(ReduceOp::BitAnd), vec![0.0_f32; 3]).map(drop)
    });
    assert!(refused.iter().all(|refused| matches!(refused, Err(Error::Unsupported(_)))), "{refused:?}");
    let errors = unisono::threads(2, |mut comm| {
        let op = if comm.rank() == 0 { ReduceOp::Sum } else { ReduceOp::Max };
        comm.plan(Operation::AllReduce, Some(op), vec![0_u8; 3]).map(drop).unwrap_err().to_string()
    });
    for error in errors {
        let both = ["plan of all-reduce of 3 u8, sum", "plan of all-reduce of 3 u8, max"];
        assert!(both.iter().all(|call| error.contains(call)), "{error}");
    }
}

fn unstarted_plan_of_one_rank_times_out_on_the_others() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
        let mut planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32])?;
        planned.start(&mut comm)?;
        planned.wait(&mut comm)?;
        comm.set_timeout(Duration::from_millis(300));
        if comm.rank() == 0 {
            planned.start(&mut comm)?;
            let error = planned.wait(&mut comm).unwrap_err();
            assert!(matches!(&error, Error::Timeout { other: 1, .. }), "{error}");
            assert!(error.to_string().contains("planned all-reduce"), "{error}");
            assert!(matches!(planned.start(&mut comm), Err(Error::Aborted { .. })));
            return Err(error);
        }
        std::thread::sleep(Duration::from_secs(1));
        planned.start(&mut comm)
    });
    assert!(matches!(&ended[0], Err(Error::Timeout { .. })), "{ended:?}");
    assert!(matches!(&ended[1], Err(Error::Aborted { .. })), "{ended:?}");
}
