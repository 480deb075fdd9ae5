//! Collectives that go on beside computation, over threads.

use std::sync::Barrier;

use unisono::{Error, ReduceOp};

mod common;

#[test]
fn results_are_those_of_blocking_calls() {
    for ranks in 1..=4 {
        unisono::threads(ranks, |mut comm| common::in_flight::conformance(&mut comm));
    }
}

#[test]
fn a_disagreement_is_told_by_the_wait_and_by_all_later_calls() {
    let errors = unisono::threads(2, |mut comm| common::in_flight::mismatch(&mut comm));
    let named =
        |error: &Error| error.to_string().contains("999 f32") && error.to_string().contains("1000 f32");
    assert!(errors.iter().flatten().any(named), "{errors:?}");
    for [_, second, blocking] in errors.into_iter().map(|errors| <[Error; 3]>::try_from(errors).unwrap()) {
        assert!(matches!(second, Error::Aborted { .. }), "{second}");
        assert!(matches!(blocking, Error::Aborted { .. }), "{blocking}");
    }
}

#[test]
fn computation_goes_on_meanwhile() {
    let computed = Barrier::new(2);
    unisono::threads(2, |mut comm| {
        if comm.rank() == 1 {
            computed.wait();
        }
        let pending = comm.all_reduce_async(vec![1_i32; 10], ReduceOp::Sum).unwrap();
        if comm.rank() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(!pending.is_done(), "rank 1 is not here yet");
            computed.wait();
        }
        assert_eq!(pending.wait().unwrap(), [2; 10]);
    });
}

#[test]
fn a_panic_beside_a_call_in_flight_reaches_the_other_rank() {
    let world = unisono::Communicator::threads(2).unwrap();
    let threads = world.into_iter().map(|mut comm| {
        std::thread::spawn(move || {
            let pending = comm.all_reduce_async(vec![1.0_f32; 1000], ReduceOp::Sum).unwrap();
            assert_ne!(comm.rank(), 1, "on purpose");
            // The call in flight may come to its end, or not.
            pending.wait().and_then(|_| comm.barrier()).map_err(|error| error.to_string())
        })
    });
    let results: Vec<_> =
        threads.collect::<Vec<_>>().into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(results[1].is_err());
    let error = results[0].as_ref().unwrap().as_ref().unwrap_err();
    assert!(error.contains("rank 1"), "{error}");
}
