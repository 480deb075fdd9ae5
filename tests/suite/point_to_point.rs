//! Messages from one rank to another, over threads.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use unisono::{Communicator, Error, ReduceOp, Result, Unisono};
use unisono_testing::{suite::Test, tests};

use crate::common;

type Call = fn(&mut Communicator) -> Result<()>;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        received_values_equal_sent_values,
        mismatch_names_both_sides_on_the_receiver,
        receive_during_a_collective_of_the_sender_is_a_mismatch,
        receive_during_a_collective_in_flight_is_not_a_mismatch,
        buffer_whose_destructor_panics_ends_no_other_message,
        missing_rank_is_an_error,
        receive_any_serves_ranks_round_robin,
        messages_of_a_rank_that_left_are_received,
        message_that_arrives_during_a_callback_is_not_late,
        panic_of_the_sender_is_an_error_of_the_receiver,
        messages_do_not_involve_other_ranks,
        invalid_arguments_panic,
    ]
}

fn received_values_equal_sent_values() {
    for ranks in 2..=5 {
        unisono::threads(ranks, |mut comm| common::point_to_point::conformance(&mut comm));
    }
}

/// Returns the errors of both of two ranks that make different calls.
fn errors(call: impl Fn(&mut Communicator) -> Result<()> + Sync) -> Vec<Error> {
    let started = Instant::now();
    let errors = unisono::threads(2, |mut comm| {
        comm.set_timeout(Duration::from_secs(30));
        call(&mut comm).and_then(|()| comm.barrier()).unwrap_err()
    });
    assert!(started.elapsed() < Duration::from_secs(20), "it took {:?}: {errors:?}", started.elapsed());
    errors
}

/// Returns the error of rank 1 of two, which receives another message than rank 0 sends.
fn apart(
    sender: impl Fn(&mut Communicator) -> Result<()> + Sync,
    receiver: impl Fn(&mut Communicator) -> Result<()> + Sync,
) -> String {
    let errors = errors(|comm| if comm.rank() == 0 { sender(comm) } else { receiver(comm) });
    let Error::Mismatch { ours, theirs, other: 0, .. } = &errors[1] else { panic!("{errors:?}") };
    // It may have received a message of rank 1 too.
    assert!(matches!(errors[0], Error::Aborted { by: 1, .. } | Error::Mismatch { .. }), "{errors:?}");
    let text = errors[1].to_string();
    assert!(text.contains(ours) && text.contains(theirs), "{text}");
    text
}

fn mismatch_names_both_sides_on_the_receiver() {
    for count in [3, 100_000] {
        let send = |comm: &mut Communicator| comm.send(&vec![1.0_f32; count], 1);
        let sent = format!("rank 0 called message #0 of {count} f32");
        let text = apart(send, |comm| comm.receive(&mut vec![0.0_f32; count + 1], 0));
        assert_eq!(
            text,
            format!("rank 1, receive #0: rank 1 called message #0 of {} f32, but {sent}", count + 1)
        );
        let text = apart(send, |comm| comm.receive(&mut vec![0_u32; count], 0));
        assert_eq!(text, format!("rank 1, receive #0: rank 1 called message #0 of {count} u32, but {sent}"));
        let text = apart(send, |comm| comm.receive_any(&mut [0.0_f32; 1]).map(drop));
        assert_eq!(text, format!("rank 1, receive #0: rank 1 called message #0 of 1 f32, but {sent}"));
        let text = apart(send, |comm| comm.receive_async(vec![0_u8; 4 * count], 0)?.wait().map(drop));
        assert!(text.ends_with(&sent) && text.contains(&format!("of {} u8", 4 * count)), "{text}");
        let text = apart(send, |comm| comm.exchange(&[1.0], 0, &mut vec![0.0_f32; count + 1], 0));
        assert!(text.starts_with("rank 1, exchange #0: ") && text.ends_with(&sent), "{text}");
    }
    let text = apart(
        |comm| comm.call().label("weights").send(&[1_i32; 9], 1),
        |comm| comm.call().label("biases").receive(&mut [0_i32; 9], 0),
    );
    assert!(text.contains("#0 \"biases\" of 9 i32") && text.contains("#0 \"weights\" of 9 i32"), "{text}");
    // The second message differs, after a matching one.
    let text = apart(
        |comm| comm.send(&[1_u8], 1).and_then(|()| comm.send(&[1_u8, 2], 1)),
        |comm| comm.receive(&mut [0_u8], 0).and_then(|()| comm.receive(&mut [0_u8], 0)),
    );
    assert!(
        text.contains("called message #1 of 1 u8") && text.contains("called message #1 of 2 u8"),
        "{text}"
    );
}

fn receive_during_a_collective_of_the_sender_is_a_mismatch() {
    // The root of a short broadcast has completed it, and waits in the next call.
    for (count, theirs) in [(10, "barrier #1"), (100_000, "broadcast #0 of 100000 f32, root 0, by ")] {
        let text = apart(
            |comm| comm.broadcast(&mut vec![1.0_f32; count], 0).map(drop),
            |comm| comm.receive(&mut vec![0.0_f32; count], 0),
        );
        let theirs = format!("rank 0 called {theirs}");
        assert!(text.contains("rank 1 called message #0 of ") && text.contains(&theirs), "{text}");
    }
    // A long message waits for its receiver.
    let errors = errors(|comm| match comm.rank() {
        0 => comm.send(&vec![1.0_f32; 100_000], 1),
        _ => comm.broadcast(&mut vec![0.0_f32; 100_000], 0).map(drop),
    });
    let names_both = |error: &Error| {
        let text = error.to_string();
        text.contains("rank 0 called message #0 of 100000 f32")
            && text.contains("rank 1 called broadcast #0 of 100000 f32")
    };
    assert!(
        errors.iter().any(|error| matches!(error, Error::Mismatch { .. }) && names_both(error)),
        "{errors:?}"
    );
    let text = apart(Communicator::barrier, |comm| comm.receive_any(&mut [0_u8]).map(drop));
    assert!(text.contains("called message #0 of 1 u8, but rank 0 called barrier #0"), "{text}");
    // A collective without messages: ranks that share memory work on each other's arrays.
    let all_reduce =
        |comm: &mut Communicator| comm.all_reduce(&mut vec![1.0_f32; 100_000], ReduceOp::Sum).map(drop);
    let text = apart(all_reduce, |comm| comm.receive_any(&mut [0_u8]).map(drop));
    assert!(
        text.contains("called message #0 of 1 u8, but rank 0 called all-reduce #0 of 100000 f32, sum"),
        "{text}"
    );
}

/// Returns the error of rank 1 of two. Rank 0 makes no call, and leaves at once if `leaves`, or once rank 1 has its error.
fn alone(leaves: bool, call: impl Fn(&mut Communicator) -> Result<()> + Sync) -> Error {
    let ended = Barrier::new(2);
    let mut errors = unisono::threads(2, |mut comm| {
        comm.set_timeout(Duration::from_millis(if leaves { 30_000 } else { 300 }));
        if comm.rank() == 0 {
            if leaves {
                drop(comm);
            }
            ended.wait();
            return None;
        }
        let started = Instant::now();
        let error = call(&mut comm).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(20), "it took {:?}: {error}", started.elapsed());
        ended.wait();
        assert!(matches!(comm.send(&[1_u8], 0), Err(Error::Aborted { .. })), "an error is fatal");
        Some(error)
    });
    errors.remove(1).expect("rank 1 has an error")
}

fn missing_rank_is_an_error() {
    let calls: [(&str, Call); 6] = [
        ("receive", |comm| comm.receive(&mut [0_u8; 3], 0)),
        ("receive", |comm| comm.receive_async(vec![0_u8; 100_000], 0)?.wait().map(drop)),
        ("receive-any", |comm| comm.receive_any(&mut [0_u8; 3]).map(drop)),
        ("exchange", |comm| comm.exchange(&[1_u8; 3], 0, &mut [0_u8; 3], 0)),
        ("send", |comm| comm.send(&vec![1_u8; 10 << 20], 0)),
        // More than the unreceived eager messages.
        ("send", |comm| (0..100).try_for_each(|_| comm.send(&[1_u8], 0))),
    ];
    for (operation, call) in calls {
        let late = alone(false, call);
        assert!(matches!(late, Error::Timeout { other: 0, .. }), "{late}");
        assert!(late.to_string().starts_with(&format!("rank 1, {operation} #")), "{late}");
        let left = alone(true, call);
        assert!(matches!(left, Error::Left { other: 0, .. }), "{left}");
        assert!(left.to_string().starts_with(&format!("rank 1, {operation} #")), "{left}");
    }
}

fn receive_any_serves_ranks_round_robin() {
    let all_are_there = Barrier::new(4);
    let from = unisono::threads(4, |mut comm| {
        // Three from each, all of which are eager.
        if comm.rank() > 0 {
            (0..3).for_each(|number| comm.send(&[number as u64], 0).unwrap());
            all_are_there.wait();
            return Vec::new();
        }
        all_are_there.wait();
        (0..9)
            .map(|place| {
                let mut number = [99_u64];
                let from = comm.receive_any(&mut number).unwrap();
                assert_eq!(number, [place / 3], "in the order in which rank {from} has sent them");
                from
            })
            .collect()
    });
    assert_eq!(from[0], [1, 2, 3].repeat(3));
}

fn messages_of_a_rank_that_left_are_received() {
    let received = unisono::threads(3, |mut comm| -> Result<Vec<usize>> {
        if comm.rank() > 0 {
            comm.send(&[comm.rank() as u64], 0)?;
            return Ok(Vec::new());
        }
        let mut from = vec![comm.receive_any(&mut [0_u64])?, comm.receive_any(&mut [0_u64])?];
        from.sort_unstable();
        let nobody = comm.receive_any(&mut [0_u64]).unwrap_err();
        assert!(matches!(nobody, Error::Left { .. }), "{nobody}");
        Ok(from)
    });
    assert_eq!(received[0].as_ref().unwrap(), &[1, 2]);
}

fn message_that_arrives_during_a_callback_is_not_late() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static MAY_SEND: AtomicBool = AtomicBool::new(false);
    static IS_SENT: AtomicBool = AtomicBool::new(false);
    fn wait_until(flag: &AtomicBool) {
        while !flag.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    fn slow() -> std::result::Result<(), String> {
        // The deadline begins after the first call.
        if CALLS.fetch_add(1, Ordering::Relaxed) == 1 {
            MAY_SEND.store(true, Ordering::Release);
            wait_until(&IS_SENT);
            std::thread::sleep(2 * TIMEOUT);
        }
        Ok(())
    }
    unisono::threads(2, |mut comm| {
        comm.set_timeout(TIMEOUT);
        if comm.rank() == 0 {
            wait_until(&MAY_SEND);
            comm.send(&[7_u8], 1).unwrap();
            IS_SENT.store(true, Ordering::Release);
        } else {
            let mut value = [0_u8];
            unisono::while_waiting(slow, || comm.receive(&mut value, 0)).unwrap();
            assert_eq!(value, [7]);
        }
    });
}

fn panic_of_the_sender_is_an_error_of_the_receiver() {
    let mut world = Unisono::builder().threads(2).unwrap();
    let (mut one, mut other) = (world.remove(0), world.remove(0));
    let thread = std::thread::spawn(move || {
        other.send(&[1_u8], 0).unwrap();
        panic!("on purpose");
    });
    one.receive(&mut [0_u8], 1).unwrap();
    let error = one.receive_any(&mut [0_u8]).unwrap_err();
    assert!(matches!(error, Error::Aborted { by: 1, .. }), "{error}");
    assert!(thread.join().is_err());
}

fn messages_do_not_involve_other_ranks() {
    // Rank 2 is ahead in the collective, and waits for both meanwhile.
    unisono::threads(3, |mut comm| {
        for number in 0..20_u64 {
            match comm.rank() {
                0 => comm.exchange(&[number], 1, &mut [0; 2], 1).unwrap(),
                1 => comm.exchange(&[number; 2], 0, &mut [0], 0).unwrap(),
                _ => {}
            }
        }
        let mut ranks = [1_u64];
        comm.all_reduce(&mut ranks, ReduceOp::Sum).unwrap();
        assert_eq!(ranks, [3]);
    });
}

/// The sender computes while its collective is in flight, for longer than a rank is silent before its calls are compared.
fn receive_during_a_collective_in_flight_is_not_a_mismatch() {
    unisono::threads(2, |mut comm| {
        let mut message = [7.0_f32; 3];
        if comm.rank() == 1 {
            let sum = comm.all_reduce_async(vec![1.0_f32; 8], ReduceOp::Sum).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            comm.send(&message, 0).unwrap();
            assert_eq!(sum.wait().unwrap(), [2.0; 8]);
        } else {
            comm.receive(&mut message, 1).unwrap();
            comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum).unwrap();
        }
    });
}

/// A buffer whose destructor panics.
struct Fragile([u8; 1]);

impl Deref for Fragile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Fragile {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "on purpose");
    }
}

fn buffer_whose_destructor_panics_ends_no_other_message() {
    unisono::threads(2, |mut comm| {
        if comm.rank() == 1 {
            return comm.fail("on purpose");
        }
        let fragile = comm.receive_async(Fragile([0]), 1).unwrap();
        let other = comm.receive_async(vec![0_u8], 1).unwrap();
        assert!(matches!(fragile.wait().map(drop), Err(Error::Aborted { .. })));
        assert!(matches!(other.wait(), Err(Error::Aborted { .. })));
    });
}

fn invalid_arguments_panic() {
    let mut world = Unisono::builder().threads(2).unwrap();
    let comm = &mut world[0];
    let mut text = |call: Call| {
        let panicked = catch_unwind(AssertUnwindSafe(|| call(comm).is_ok())).unwrap_err();
        *panicked.downcast::<String>().unwrap()
    };
    let nobody: [Call; 5] = [
        |comm| comm.send(&[1_u8], 2),
        |comm| comm.receive(&mut [1_u8], 2),
        |comm| comm.exchange(&[1_u8], 1, &mut [1], 2),
        |comm| comm.exchange(&[1_u8], 2, &mut [1], 1),
        |comm| comm.send_async(vec![1_u8], 2).map(drop),
    ];
    for call in nobody {
        assert_eq!(text(call), "rank 2 is not in a world of 2 ranks");
    }
    let itself: [Call; 3] = [
        |comm| comm.send(&[1_u8], 0),
        |comm| comm.receive_async(vec![1_u8], 0).map(drop),
        |comm| comm.exchange_async(vec![1_u8], 1, vec![1], 0).map(drop),
    ];
    for call in itself {
        assert!(text(call).contains("rank 0 has no messages to itself"));
    }
    let mut alone = Unisono::builder().threads(1).unwrap().remove(0);
    assert!(catch_unwind(AssertUnwindSafe(|| alone.receive_any(&mut [1_u8]))).is_err());
}
