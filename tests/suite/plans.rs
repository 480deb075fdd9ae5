//! Persistent calls: mismatched plans, and plans that a rank does not start.

use std::sync::Barrier;
use std::time::Duration;

use unisono::{Algorithm, Choice, Error, Method, Operation, Planned, ReduceOp, Vendor};
use unisono_testing::suite::Test;
use unisono_testing::tests;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        mismatched_plans_are_an_error_on_every_rank,
        unstarted_plan_of_one_rank_times_out_on_the_others,
        call_of_another_rank_in_place_of_a_plan_is_a_mismatch,
        wait_for_a_plan_does_not_wait_for_calls_in_flight,
        call_in_flight_of_another_rank_is_not_in_place_of_a_plan,
        plans_start_in_any_order_if_nccl_is_chosen,
        plan_that_cannot_start_keeps_its_buffer,
        plan_of_another_communicator_is_refused,
        rule_for_the_size_applies_to_a_short_plan,
    ]
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
    let errors = unisono::threads(2, |mut comm| {
        let label = format!("loss {}", comm.rank());
        let planned =
            comm.call().label(&label).plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![0_u8; 3]);
        planned.map(drop).unwrap_err().to_string()
    });
    for error in errors {
        let both = ["label \"loss 0\"", "label \"loss 1\""];
        assert!(both.iter().all(|label| error.contains(label)), "{error}");
    }
}

fn unstarted_plan_of_one_rank_times_out_on_the_others() {
    let is_late = Barrier::new(2);
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
        let mut planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32])?;
        planned.start(&mut comm)?;
        planned.wait(&mut comm)?;
        comm.set_timeout(Duration::from_millis(300));
        if comm.rank() == 0 {
            let waited = planned.start(&mut comm).and_then(|()| planned.wait(&mut comm));
            is_late.wait();
            let error = waited.unwrap_err();
            assert!(matches!(&error, Error::Timeout { other: 1, .. }), "{error}");
            assert!(error.to_string().contains("planned all-reduce"), "{error}");
            assert!(matches!(planned.start(&mut comm), Err(Error::Aborted { .. })));
            return Err(error);
        }
        is_late.wait();
        planned.start(&mut comm)
    });
    assert!(matches!(&ended[0], Err(Error::Timeout { .. })), "{ended:?}");
    assert!(matches!(&ended[1], Err(Error::Aborted { .. })), "{ended:?}");
}

fn call_of_another_rank_in_place_of_a_plan_is_a_mismatch() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
        comm.set_timeout(Duration::from_secs(30));
        let mut planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1_u8; 3])?;
        if comm.rank() == 1 {
            return comm.broadcast(&mut [0.0_f64; 2], 0).map(drop);
        }
        planned.start(&mut comm)?;
        planned.wait(&mut comm)
    });
    let Err(error @ Error::Mismatch { other: 1, .. }) = &ended[0] else { panic!("{ended:?}") };
    let both = ["called planned all-reduce of 3 u8, sum", "called broadcast #"];
    assert!(both.iter().all(|call| error.to_string().contains(call)), "{error}");
    assert!(ended[1].as_ref().unwrap_err().to_string().contains(both[1]), "{ended:?}");
}

fn wait_for_a_plan_does_not_wait_for_calls_in_flight() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<f32> {
        comm.set_timeout(Duration::from_secs(10));
        let mut planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32])?;
        if comm.rank() == 1 {
            // Rank 0 is waiting for the plan by then.
            std::thread::sleep(Duration::from_millis(300));
        }
        planned.start(&mut comm)?;
        if comm.rank() == 0 {
            let in_flight = comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum)?;
            planned.wait(&mut comm)?;
            comm.send(&[1_u8], 1)?;
            in_flight.wait()?;
        } else {
            planned.wait(&mut comm)?;
            // Rank 0 sends this message before its call in flight ends.
            comm.receive(&mut [0_u8], 0)?;
            comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
        }
        Ok(planned[0])
    });
    assert!(ended.iter().all(|sum| matches!(sum, Ok(2.0))), "{ended:?}");
}

fn call_in_flight_of_another_rank_is_not_in_place_of_a_plan() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<f32> {
        comm.set_timeout(Duration::from_secs(30));
        let mut planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32])?;
        if comm.rank() == 0 {
            planned.start(&mut comm)?;
            planned.wait(&mut comm)?;
            comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
        } else {
            let in_flight = comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum)?;
            // By then, rank 0 has waited for long enough to compare the calls.
            std::thread::sleep(Duration::from_millis(500));
            planned.start(&mut comm)?;
            planned.wait(&mut comm)?;
            in_flight.wait()?;
        }
        Ok(planned[0])
    });
    assert!(ended.iter().all(|sum| matches!(sum, Ok(2.0))), "{ended:?}");
}

fn plan_of_another_communicator_is_refused() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<Vec<f32>> {
        let mut group = comm.group(&[0, 1])?.expect("both are members");
        let mut sums = Vec::new();
        // A call in slots, and one that runs as an ordinary one.
        for count in [1, 1000] {
            let mut planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32; count])?;
            for started in [false, true] {
                let refused = if started { planned.wait(&mut group) } else { planned.start(&mut group) };
                assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
                if !started {
                    planned.start(&mut comm)?;
                }
            }
            planned.wait(&mut comm)?;
            sums.push(planned[0]);
        }
        Ok(sums)
    });
    assert!(ended.iter().all(|sums| matches!(sums.as_deref(), Ok([2.0, 2.0]))), "{ended:?}");
}

fn plans_start_in_any_order_if_nccl_is_chosen() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<[Vec<f32>; 2]> {
        comm.set_timeout(Duration::from_secs(30));
        comm.set_choice(Method::InNodes(Algorithm::Rail, Vendor::Nccl))?;
        let mut plan =
            |count| comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32; count]).unwrap();
        let mut plans = [plan(1), plan(2)];
        let order = [[0, 1], [1, 0]][comm.rank()];
        for place in order {
            plans[place].start(&mut comm)?;
        }
        for place in order {
            plans[place].wait(&mut comm)?;
        }
        Ok(plans.map(Planned::into_buffer))
    });
    for sums in ended {
        assert_eq!(sums.unwrap(), [vec![2.0_f32], vec![2.0_f32; 2]]);
    }
}

fn plan_that_cannot_start_keeps_its_buffer() {
    let planned = Barrier::new(2);
    let buffers = unisono::threads(2, |mut comm| {
        let mut plan = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.5_f32]).unwrap();
        planned.wait();
        comm.fail("on purpose");
        let error = plan.start(&mut comm).unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        plan.into_buffer()
    });
    assert_eq!(buffers, [[1.5_f32]; 2]);
}

fn rule_for_the_size_applies_to_a_short_plan() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<[String; 2]> {
        let mut plan = |rule: &str| -> unisono::Result<String> {
            comm.set_choice(rule.parse::<Choice>().expect("a rule"))?;
            let planned = comm.plan(Operation::AllReduce, Some(ReduceOp::Sum), vec![1.0_f32])?;
            Ok(format!("{planned:?}"))
        };
        Ok([plan("tree:0-8K")?, plan("tree:8K-")?])
    });
    for plans in ended {
        let [ruled, free] = plans.unwrap();
        assert!(ruled.contains("has_slots: false") && free.contains("has_slots: true"), "{ruled} {free}");
    }
}
