//! Collectives in flight during computation, over threads.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use unisono::{Communicator, Error, Operation, ReduceOp, Request, Unisono};
use unisono_testing::{suite::Test, tests};

use crate::common::in_flight::every_operation;
use crate::common::{self, calls::Made};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        results_equal_those_of_blocking_calls,
        mismatch_is_an_error_of_the_wait_and_of_all_later_calls,
        different_operations_are_an_error_of_the_wait,
        invalid_call_panics_like_the_blocking_call,
        computation_overlaps_with_a_collective,
        barrier_in_flight_waits_for_all_ranks,
        panic_during_a_call_in_flight_reaches_the_other_rank,
        failure_does_not_wait_for_calls_in_flight,
        timeout_is_set_without_waiting_for_calls_in_flight,
        callback_runs_during_waits_for_calls_in_flight_and_ends_them,
        waits_in_short_steps_leave_the_core_to_others,
    ]
}

fn results_equal_those_of_blocking_calls() {
    for ranks in 1..=4 {
        unisono::threads(ranks, |mut comm| common::in_flight::conformance(&mut comm));
    }
}

fn mismatch_is_an_error_of_the_wait_and_of_all_later_calls() {
    for operation in Operation::all(0) {
        let errors = unisono::threads(2, |mut comm| common::in_flight::mismatch(&mut comm, operation));
        let has_count = |error: &Error, count: usize| error.to_string().contains(&format!("{count} f64"));
        let named = |error: &Error| has_count(error, 9998) && has_count(error, 10_000);
        let by_wait = |[first, ..]: &[Option<Error>; 3]| first.as_ref().is_some_and(named);
        assert!(errors.iter().any(by_wait), "{operation:?}: {errors:?}");
        for [first, second, blocking] in errors {
            let (second, blocking) = (second.unwrap(), blocking.unwrap());
            assert!(first.is_none() || matches!(second, Error::Aborted { .. }), "{operation:?}: {second}");
            assert!(matches!(blocking, Error::Aborted { .. }), "{operation:?}: {blocking}");
        }
    }
}

fn different_operations_are_an_error_of_the_wait() {
    let differ = |call: fn(&mut Communicator) -> Result<(), Error>| {
        let errors = unisono::threads(2, |mut comm| {
            comm.set_timeout(Duration::from_secs(30));
            call(&mut comm).and_then(|()| comm.barrier()).unwrap_err()
        });
        assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    };
    // An operation and a barrier, roots, reductions, and a blocking call with one in flight.
    differ(|comm| match comm.rank() {
        0 => comm.barrier_async()?.wait(),
        _ => comm.all_gather_async(vec![1_u8; 10])?.wait().map(drop),
    });
    differ(|comm| comm.reduce_async(vec![1_u8; 10], ReduceOp::Sum, comm.rank())?.wait().map(drop));
    differ(|comm| {
        let op = [ReduceOp::Sum, ReduceOp::Max][comm.rank()];
        comm.reduce_scatter_async(vec![1_u8; 10], op)?.wait().map(drop)
    });
    differ(|comm| match comm.rank() {
        0 => comm.all_to_all(&mut [1_u8; 10]).map(drop),
        _ => comm.all_to_all_async(vec![1_u8; 12])?.wait().map(drop),
    });
    differ(|comm| match comm.rank() {
        0 => comm.call().label("one").barrier(),
        _ => comm.call().label("another").barrier_async()?.wait(),
    });
}

fn invalid_call_panics_like_the_blocking_call() {
    let panic_text = |panic: Box<dyn Any + Send>| *panic.downcast::<String>().unwrap();
    let mut world = Unisono::builder().threads(2).unwrap();
    let comm = &mut world[0];
    // Rank 2 does not exist, and five elements are not two equal blocks.
    let is_wrong = |call: &Made| call.operation.root().is_some() || call.operation == Operation::AllToAll;
    for call in every_operation(2, 2, 0).iter().filter(|call| is_wrong(call)) {
        let blocking = catch_unwind(AssertUnwindSafe(|| call.block(comm, &mut [0.0_f64; 5]).is_ok()));
        let in_flight = catch_unwind(AssertUnwindSafe(|| call.begin(comm, vec![0.0_f64; 5]).is_ok()));
        let (blocking, in_flight) = (panic_text(blocking.unwrap_err()), panic_text(in_flight.unwrap_err()));
        assert_eq!(in_flight, blocking, "{call:?}");
        assert!(blocking.contains("root 2") || blocking.contains("5 elements"), "{blocking}");
    }
}

/// Starts a call on two ranks. Rank 1 starts once rank 0 has checked that the call is not done.
fn awaited<B: Send>(begin: impl Fn(&mut Communicator) -> Result<Request<B>, Error> + Sync) -> Vec<B> {
    let looked = Barrier::new(2);
    unisono::threads(2, |mut comm| {
        if comm.rank() == 1 {
            looked.wait();
        }
        let request = begin(&mut comm).unwrap();
        if comm.rank() == 0 {
            let is_early = (0..1000).any(|_| {
                std::thread::yield_now();
                request.is_done()
            });
            looked.wait();
            assert!(!is_early, "rank 1 has not started the call yet");
        }
        request.wait().unwrap()
    })
}

fn computation_overlaps_with_a_collective() {
    assert_eq!(awaited(|comm| comm.all_reduce_async(vec![1_i32; 10], ReduceOp::Sum)), [[2; 10]; 2]);
}

fn barrier_in_flight_waits_for_all_ranks() {
    awaited(Communicator::barrier_async);
}

/// Rank 1 arrives once the call of rank 0 has ended by its callback.
fn callback_runs_during_waits_for_calls_in_flight_and_ends_them() {
    type Wait = fn(&mut Communicator) -> Result<(), Error>;
    fn interrupt() -> Result<(), String> {
        thread_local!(static RUNS: Cell<u32> = const { Cell::new(0) });
        RUNS.set(RUNS.get() + 1);
        if RUNS.get() < 3 { Ok(()) } else { Err("interrupted".to_owned()) }
    }
    let wait: Wait = |comm| comm.barrier_async()?.wait();
    let wait_any: Wait = |comm| unisono::wait_any(&mut vec![comm.barrier_async()?]).1;
    let blocking: Wait = |comm| comm.barrier_async().and_then(|_| comm.barrier());
    let counter: Wait = |comm| comm.barrier_async().and_then(|_| comm.wait_until(1, &AtomicU64::new(0), 1));
    for wait in [wait, wait_any, blocking, counter] {
        let ended = Barrier::new(2);
        let errors = unisono::threads(2, |mut comm| {
            comm.set_timeout(Duration::from_secs(30));
            if comm.rank() == 1 {
                ended.wait();
                return comm.barrier().unwrap_err();
            }
            let error = unisono::while_waiting(interrupt, || wait(&mut comm)).unwrap_err();
            ended.wait();
            error
        });
        for error in &errors {
            assert!(
                matches!(error, Error::Aborted { by: 0, cause, .. } if cause == "interrupted"),
                "{errors:?}"
            );
        }
    }
}

fn panic_during_a_call_in_flight_reaches_the_other_rank() {
    let world = Unisono::builder().threads(2).unwrap();
    let threads = world.into_iter().map(|mut comm| {
        std::thread::spawn(move || {
            let request = comm.all_reduce_async(vec![1.0_f32; 1000], ReduceOp::Sum).unwrap();
            assert_ne!(comm.rank(), 1, "on purpose");
            // The call in flight may complete or fail.
            request.wait().and_then(|_| comm.barrier()).map_err(|error| error.to_string())
        })
    });
    let results: Vec<_> =
        threads.collect::<Vec<_>>().into_iter().map(std::thread::JoinHandle::join).collect();
    assert!(results[1].is_err());
    let error = results[0].as_ref().unwrap().as_ref().unwrap_err();
    assert!(error.contains("rank 1"), "{error}");
}

fn failure_does_not_wait_for_calls_in_flight() {
    let ended = unisono::threads(2, |mut comm| {
        comm.set_timeout(Duration::from_secs(30));
        let began = Instant::now();
        let error = if comm.rank() == 0 {
            comm.receive(&mut [0_u8], 1).unwrap_err()
        } else {
            let request = comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum).unwrap();
            comm.fail("the disk is full");
            request.wait().unwrap_err()
        };
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}: {error}", began.elapsed());
        error.to_string()
    });
    assert!(ended.iter().all(|error| error.contains("the disk is full")), "{ended:?}");
}

fn timeout_is_set_without_waiting_for_calls_in_flight() {
    const TIMEOUT: Duration = Duration::from_secs(20);
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<Duration> {
        comm.set_timeout(TIMEOUT);
        let began = Instant::now();
        if comm.rank() == 0 {
            let request = comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum)?;
            comm.set_timeout(TIMEOUT);
            comm.send(&[1_u8], 1)?;
            request.wait()?;
        } else {
            // Rank 0 sends this message before its call in flight ends.
            comm.receive(&mut [0_u8], 0)?;
            comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
        }
        Ok(began.elapsed())
    });
    let is_fast = |lasted: &unisono::Result<Duration>| lasted.as_ref().is_ok_and(|it| *it < TIMEOUT / 4);
    assert!(ended.iter().all(is_fast), "{ended:?}");
}

/// Returns the processor time that a function takes on this thread.
fn processor_time(run: impl FnOnce()) -> Duration {
    let time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = time();
    run();
    time() - before
}

fn waits_in_short_steps_leave_the_core_to_others() {
    const LATE: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_millis(1);
    let late = |mut comm: Communicator| {
        thread::sleep(LATE);
        comm.send(&[7_u8], 0).unwrap();
        thread::sleep(LATE);
        comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap();
        [Duration::ZERO; 2]
    };
    let times = unisono::threads(2, |mut comm| {
        if comm.rank() == 1 {
            return late(comm);
        }
        let message = comm.receive_async(vec![0_u8], 1).unwrap();
        let of_message = processor_time(|| while !message.wait_for(STEP) {});
        let mut requests = vec![comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum).unwrap()];
        let of_any = processor_time(|| drop(unisono::wait_any(&mut requests).1.unwrap()));
        [of_message, of_any]
    });
    // A wait for a message sleeps after 200 ms.
    let [of_message, of_any] = times[0];
    assert!(of_message < LATE / 2 && of_any < LATE / 4, "{times:?}");
}
