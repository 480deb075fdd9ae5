//! Tests of deadlines, of reports of waiting ranks, and of labels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use unisono::status::State;
use unisono::{Algorithm, Communicator, Error, ReduceOp, Unisono, Vendor};
use unisono_testing::{suite::Test, tests};

const SHORT: Duration = Duration::from_millis(300);
/// Longer than [`SHORT`], even on few cores.
const LONG: Duration = Duration::from_millis(1200);

pub(crate) fn tests() -> Vec<Test> {
    let timed = tests![
        timeout_reports_the_activity_of_the_missing_rank,
        scoped_timeout_applies_to_its_calls_only,
        call_timeout_applies_to_one_call_of_any_kind,
        first_call_has_a_longer_timeout,
        no_rank_times_out_during_a_quiet_section,
        straggler_is_named,
        others_wait_while_rank_0_works,
    ];
    let others = tests![
        different_labels_are_an_error_that_names_both,
        label_applies_to_one_call,
        panic_ends_a_quiet_section,
        error_of_rank_0_is_reported_on_all_without_harm,
        rank_0_does_no_work_in_a_refused_call,
    ];
    timed.into_iter().map(Test::timed).chain(others).collect()
}

fn sum(comm: &mut Communicator) -> unisono::Result<()> {
    comm.all_reduce(&mut [1.0_f32; 10], ReduceOp::Sum).map(drop)
}

/// Sets the timeout once all ranks have started, since a thread may start late.
fn begin_with(timeout: Duration, comm: &mut Communicator) {
    comm.barrier().unwrap();
    comm.set_timeout(timeout);
}

/// Makes `call` on rank 0, and returns its error. Rank 1 waits until it has ended.
fn without_rank_1(
    comm: &mut Communicator,
    has_ended: &AtomicBool,
    call: impl FnOnce(&mut Communicator) -> unisono::Result<()>,
) -> Option<Error> {
    if comm.rank() == 0 {
        let error = call(comm).err();
        has_ended.store(true, Ordering::Relaxed);
        return error;
    }
    let began = Instant::now();
    while !has_ended.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
        sleep(SHORT / 60);
    }
    None
}

fn different_labels_are_an_error_that_names_both() {
    for algorithm in Algorithm::ALL {
        for ranks in [2, 3, 4] {
            let started = Instant::now();
            let errors = unisono::threads(ranks, |mut comm| {
                comm.set_timeout(Duration::from_secs(30));
                comm.set_choice(algorithm).unwrap();
                // A rank that is behind the others may be informed of their failure while still in this call.
                let first = comm.call().label("both").all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum);
                let label = if comm.rank() == 1 { "bucket 2" } else { "bucket 1" };
                let second = first
                    .and_then(|_| comm.call().label(label).all_reduce(&mut [1.0_f32; 100], ReduceOp::Sum));
                // In some algorithms, a rank that has communicated only with ranks of the same label completes the call.
                second.and_then(|_| comm.barrier()).unwrap_err().to_string()
            });
            let (one, other) =
                ("all-reduce #1 \"bucket 1\" of 100 f32", "all-reduce #1 \"bucket 2\" of 100 f32");
            let named = errors.iter().any(|error| error.contains(one) && error.contains(other));
            assert!(named, "{algorithm}: {errors:#?}");
            assert!(started.elapsed() < Duration::from_secs(20), "found by looking, not by a deadline");
        }
    }
}

fn label_applies_to_one_call() {
    let errors = unisono::threads(2, |mut comm| {
        comm.set_timeout(Duration::from_secs(30));
        sum(&mut comm.call().label("first")).unwrap();
        let request = comm.call().label("second").all_reduce_async(vec![1.0_f32; 8], ReduceOp::Sum).unwrap();
        request.wait().unwrap();
        match comm.rank() {
            0 => sum(&mut comm.call().label("third")),
            _ => sum(&mut comm),
        }
        .unwrap_err()
        .to_string()
    });
    let named = |error: &String| error.contains("#2 \"third\" of 10") && error.contains("#2 of 10");
    assert!(errors.iter().any(named), "{errors:?}");
}

fn timeout_reports_the_activity_of_the_missing_rank() {
    let has_ended = AtomicBool::new(false);
    let errors = unisono::threads(2, |mut comm| {
        begin_with(SHORT, &mut comm);
        sum(&mut comm.call().label("bucket 7")).unwrap();
        without_rank_1(&mut comm, &has_ended, sum)
    });
    let Some(Error::Timeout { other: 1, doing: Some(doing), .. }) = &errors[0] else { panic!("{errors:?}") };
    assert_eq!((doing.state, doing.process_id), (State::Outside, std::process::id()));
    let text = errors[0].as_ref().unwrap().to_string();
    assert!(text.contains("rank 0, all-reduce #2 by"), "{text}");
    let (_, does) =
        text.split_once("which has been outside collectives for ").unwrap_or_else(|| panic!("{text}"));
    assert!(does.contains(" s; its last call was all-reduce #1 \"bucket 7\""), "{text}");
}

fn scoped_timeout_applies_to_its_calls_only() {
    let has_ended = AtomicBool::new(false);
    let errors = unisono::threads(2, |mut comm| {
        begin_with(Duration::from_secs(30), &mut comm);
        sum(&mut comm.call().timeout(SHORT)).unwrap();
        if comm.rank() == 1 {
            sleep(LONG);
        }
        sum(&mut comm).unwrap();
        without_rank_1(&mut comm, &has_ended, |comm| sum(&mut comm.call().timeout(SHORT)))
    });
    assert!(matches!(errors[0], Some(Error::Timeout { other: 1, .. })), "{errors:?}");
}

fn call_timeout_applies_to_one_call_of_any_kind() {
    type Waits = fn(&mut Communicator) -> unisono::Result<()>;
    let kinds: [Waits; 7] = [
        |comm| comm.call().timeout(SHORT).broadcast(&mut [1_u8; 3], 1).map(drop),
        |comm| comm.call().timeout(SHORT).all_reduce_async(vec![1_u8; 3], ReduceOp::Max)?.wait().map(drop),
        |comm| comm.call().timeout(SHORT).split(Some(0), 0).map(drop),
        |comm| comm.call().timeout(SHORT).receive(&mut [0_u8; 3], 1),
        |comm| comm.call().timeout(SHORT).receive_async(vec![0_u8; 3], 1)?.wait().map(drop),
        |comm| {
            unisono::wait_any(&mut vec![comm.call().timeout(SHORT).receive_async(vec![0_u8; 3], 1)?])
                .1
                .map(drop)
        },
        // Each step is too short to read the clock.
        |comm| {
            let request = comm.call().timeout(SHORT).receive_async(vec![0_u8; 3], 1)?;
            let began = Instant::now();
            while !request.wait_for(Duration::from_micros(10)) {
                assert!(began.elapsed() < Duration::from_secs(20), "the deadline does not end the message");
            }
            request.wait().map(drop)
        },
    ];
    for waits in kinds {
        let has_ended = AtomicBool::new(false);
        let errors = unisono::threads(2, |mut comm| {
            begin_with(Duration::from_secs(30), &mut comm);
            // An option without a call applies to no later call.
            drop(comm.call().timeout(Duration::ZERO));
            without_rank_1(&mut comm, &has_ended, waits)
        });
        assert!(matches!(errors[0], Some(Error::Timeout { other: 1, .. })), "{errors:?}");
    }
}

fn first_call_has_a_longer_timeout() {
    // With the default timeout of the first call: half an hour.
    unisono::threads(2, |mut comm| {
        if comm.rank() == 1 {
            sleep(LONG);
        }
        sum(&mut comm).unwrap();
    });
}

fn no_rank_times_out_during_a_quiet_section() {
    unisono::threads(3, |mut comm| {
        begin_with(SHORT, &mut comm);
        sum(&mut comm).unwrap();
        if comm.rank() == 2 {
            comm.quiet("validation", |_| sleep(LONG));
        } else if comm.rank() == 1 {
            // Rank 1 waits for rank 2, and rank 0 for rank 1.
            sleep(SHORT / 4);
        }
        sum(&mut comm).unwrap();
        comm.quiet("with calls inside", sum).unwrap();
    });
    let has_ended = AtomicBool::new(false);
    let errors = unisono::threads(2, |mut comm| {
        begin_with(SHORT, &mut comm);
        if comm.rank() == 1 {
            comm.quiet("over", |_| ());
        }
        without_rank_1(&mut comm, &has_ended, sum)
    });
    assert!(matches!(errors[0], Some(Error::Timeout { .. })), "{errors:?}");
}

fn panic_ends_a_quiet_section() {
    let began = AtomicBool::new(false);
    let mut world = Unisono::builder().threads(2).unwrap();
    let (mut one, mut zero) = (world.pop().unwrap(), world.pop().unwrap());
    std::thread::scope(|scope| {
        let panics = scope.spawn(|| {
            one.quiet("validation", |_| {
                began.store(true, Ordering::Release);
                panic!("on purpose")
            });
            drop(one);
        });
        let error = sum(&mut zero).unwrap_err();
        assert!(matches!(error, Error::Aborted { by: 1, .. }), "{error}");
        assert!(panics.join().is_err() && began.load(Ordering::Acquire));
    });
}

fn straggler_is_named() {
    let lateness = unisono::threads(3, |mut comm| {
        comm.barrier().unwrap();
        comm.lateness().unwrap();
        for _ in 0..3 {
            if comm.rank() == 1 {
                sleep(LONG / 3);
            }
            sum(&mut comm).unwrap();
        }
        comm.lateness().unwrap()
    });
    let [zero, one, two] = lateness[0].ranks[..] else { panic!("{lateness:?}") };
    assert_eq!(lateness[0].slowest(), 1);
    // On a busy machine, the waiting ranks may be late themselves.
    assert!(one.busy >= LONG && one.waited < zero.waited.min(two.waited), "{lateness:?}");
    assert!(zero.waited > LONG / 2 && two.waited > LONG / 2, "{zero:?}, {two:?}");
    assert!(lateness[0].to_string().starts_with("rank 1 is slowest: busy for "), "{}", lateness[0]);
    assert!(lateness.iter().all(|result| *result == lateness[0]), "all ranks get the same result");
}

fn others_wait_while_rank_0_works() {
    let values = unisono::threads(3, |mut comm| {
        begin_with(SHORT, &mut comm);
        sum(&mut comm).unwrap();
        let done = comm.on_rank0("reading", || {
            sleep(LONG);
            Ok::<_, String>(17)
        });
        done.unwrap()
    });
    assert_eq!(values, [Some(17), None, None]);
}

fn error_of_rank_0_is_reported_on_all_without_harm() {
    let errors = unisono::threads(3, |mut comm| {
        let done = comm.on_rank0("writing", || Err::<(), _>("the disk is full"));
        sum(&mut comm).unwrap();
        done.unwrap_err().to_string()
    });
    for error in errors {
        assert_eq!(error, "rank 0 failed while the others waited: writing: the disk is full");
    }
    let long = "é".repeat(1000);
    let errors =
        unisono::threads(2, |mut comm| comm.on_rank0("writing", || Err::<(), _>(&long)).unwrap_err());
    assert!(errors.iter().all(|error| error.to_string().ends_with(&"é".repeat(250))), "{errors:?}");
}

fn rank_0_does_no_work_in_a_refused_call() {
    unisono::threads(2, |mut comm| {
        let mut runs = 0;
        let done = comm.call().algorithm(Vendor::Mpi).on_rank0("reading", || {
            runs += 1;
            Ok::<_, String>(())
        });
        assert!(matches!(done, Err(Error::Unsupported(_))), "{done:?}");
        assert_eq!(runs, 0);
        sum(&mut comm).unwrap();
    });
}
