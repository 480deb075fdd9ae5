//! Messages from one rank to another, over threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use unisono::{Communicator, Error, ReduceOp, Result};
use unisono_testing::{suite::Test, tests};

use crate::common;

type Call = fn(&mut Communicator) -> Result<()>;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        messages_bring_what_was_sent,
        a_receiver_names_both_sides_of_a_disagreement,
        a_message_that_meets_a_collective_is_a_disagreement,
        a_rank_that_does_not_come_is_an_error,
        ranks_whose_messages_are_there_take_turns,
        what_was_sent_before_a_rank_left_is_received,
        a_panic_of_the_other_rank_reaches_who_waits_for_its_message,
        messages_pass_ranks_that_take_no_part,
        what_cannot_be_sent_panics,
    ]
}

fn messages_bring_what_was_sent() {
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

/// Returns the error of rank 1 of two that receives something else than rank 0 sends.
fn apart(
    sender: impl Fn(&mut Communicator) -> Result<()> + Sync,
    receiver: impl Fn(&mut Communicator) -> Result<()> + Sync,
) -> String {
    let errors = errors(|comm| if comm.rank() == 0 { sender(comm) } else { receiver(comm) });
    let Error::Mismatch { ours, theirs, other: 0, .. } = &errors[1] else { panic!("{errors:?}") };
    // It may have met something of rank 1's too.
    assert!(matches!(errors[0], Error::Aborted { by: 1, .. } | Error::Mismatch { .. }), "{errors:?}");
    let said = errors[1].to_string();
    assert!(said.contains(ours) && said.contains(theirs), "{said}");
    said
}

fn a_receiver_names_both_sides_of_a_disagreement() {
    for count in [3, 100_000] {
        let send = |comm: &mut Communicator| comm.send(&vec![1.0_f32; count], 1);
        let sent = format!("rank 0 called message #0 of {count} f32");
        let said = apart(send, |comm| comm.receive(&mut vec![0.0_f32; count + 1], 0));
        assert_eq!(
            said,
            format!("rank 1, receive #0: rank 1 called message #0 of {} f32, but {sent}", count + 1)
        );
        let said = apart(send, |comm| comm.receive(&mut vec![0_u32; count], 0));
        assert_eq!(said, format!("rank 1, receive #0: rank 1 called message #0 of {count} u32, but {sent}"));
        let said = apart(send, |comm| comm.receive_any(&mut [0.0_f32; 1]).map(drop));
        assert_eq!(said, format!("rank 1, receive #0: rank 1 called message #0 of 1 f32, but {sent}"));
        let said = apart(send, |comm| comm.receive_async(vec![0_u8; 4 * count], 0)?.wait().map(drop));
        assert!(said.ends_with(&sent) && said.contains(&format!("of {} u8", 4 * count)), "{said}");
        let said = apart(send, |comm| comm.exchange(&[1.0], 0, &mut vec![0.0_f32; count + 1], 0));
        assert!(said.starts_with("rank 1, exchange #0: ") && said.ends_with(&sent), "{said}");
    }
    let said = apart(
        |comm| comm.call().label("weights").send(&[1_i32; 9], 1),
        |comm| comm.call().label("biases").receive(&mut [0_i32; 9], 0),
    );
    assert!(said.contains("#0 \"biases\" of 9 i32") && said.contains("#0 \"weights\" of 9 i32"), "{said}");
    // The second message of the two, after one in which they agree.
    let said = apart(
        |comm| comm.send(&[1_u8], 1).and_then(|()| comm.send(&[1_u8, 2], 1)),
        |comm| comm.receive(&mut [0_u8], 0).and_then(|()| comm.receive(&mut [0_u8], 0)),
    );
    assert!(
        said.contains("called message #1 of 1 u8") && said.contains("called message #1 of 2 u8"),
        "{said}"
    );
}

fn a_message_that_meets_a_collective_is_a_disagreement() {
    // The root of a short broadcast is done with it, and waits in the next call.
    for (count, theirs) in [(10, "barrier #1"), (100_000, "broadcast #0 of 100000 f32, root 0, by ")] {
        let said = apart(
            |comm| comm.broadcast(&mut vec![1.0_f32; count], 0).map(drop),
            |comm| comm.receive(&mut vec![0.0_f32; count], 0),
        );
        let theirs = format!("rank 0 called {theirs}");
        assert!(said.contains("rank 1 called message #0 of ") && said.contains(&theirs), "{said}");
    }
    // A long message waits for its receiver.
    let errors = errors(|comm| match comm.rank() {
        0 => comm.send(&vec![1.0_f32; 100_000], 1),
        _ => comm.broadcast(&mut vec![0.0_f32; 100_000], 0).map(drop),
    });
    let names_both = |error: &Error| {
        let said = error.to_string();
        said.contains("rank 0 called message #0 of 100000 f32")
            && said.contains("rank 1 called broadcast #0 of 100000 f32")
    };
    assert!(
        errors.iter().any(|error| matches!(error, Error::Mismatch { .. }) && names_both(error)),
        "{errors:?}"
    );
    let said = apart(Communicator::barrier, |comm| comm.receive_any(&mut [0_u8]).map(drop));
    assert!(said.contains("called message #0 of 1 u8, but rank 0 called barrier #0"), "{said}");
    // A collective that sends no messages: ranks that share memory work on each other's.
    let all_reduce =
        |comm: &mut Communicator| comm.all_reduce(&mut vec![1.0_f32; 100_000], ReduceOp::Sum).map(drop);
    let said = apart(all_reduce, |comm| comm.receive_any(&mut [0_u8]).map(drop));
    assert!(
        said.contains("called message #0 of 1 u8, but rank 0 called all-reduce #0 of 100000 f32, sum"),
        "{said}"
    );
}

/// Returns the error of rank 1 of two beside a rank 0 that does nothing: it leaves at once if `leaves`, or once rank 1
/// has its error.
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
        assert!(matches!(comm.send(&[1_u8], 0), Err(Error::Aborted { .. })), "an error is the end");
        Some(error)
    });
    errors.remove(1).expect("rank 1 has an error")
}

fn a_rank_that_does_not_come_is_an_error() {
    let calls: [(&str, Call); 6] = [
        ("receive", |comm| comm.receive(&mut [0_u8; 3], 0)),
        ("receive", |comm| comm.receive_async(vec![0_u8; 100_000], 0)?.wait().map(drop)),
        ("receive-any", |comm| comm.receive_any(&mut [0_u8; 3]).map(drop)),
        ("exchange", |comm| comm.exchange(&[1_u8; 3], 0, &mut [0_u8; 3], 0)),
        ("send", |comm| comm.send(&vec![1_u8; 10 << 20], 0)),
        // One too many for those that are never received.
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

fn ranks_whose_messages_are_there_take_turns() {
    let all_are_there = Barrier::new(4);
    let from = unisono::threads(4, |mut comm| {
        // Three to each: so many are eager.
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

fn what_was_sent_before_a_rank_left_is_received() {
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

fn a_panic_of_the_other_rank_reaches_who_waits_for_its_message() {
    let mut world = Communicator::threads(2).unwrap();
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

fn messages_pass_ranks_that_take_no_part() {
    // Rank 2 is ahead in the collective, and waits for both all the while.
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

fn what_cannot_be_sent_panics() {
    let mut world = Communicator::threads(2).unwrap();
    let comm = &mut world[0];
    let mut said = |call: Call| {
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
        assert_eq!(said(call), "rank 2 is not in a world of 2 ranks");
    }
    let itself: [Call; 3] = [
        |comm| comm.send(&[1_u8], 0),
        |comm| comm.receive_async(vec![1_u8], 0).map(drop),
        |comm| comm.exchange_async(vec![1_u8], 1, vec![1], 0).map(drop),
    ];
    for call in itself {
        assert!(said(call).contains("rank 0 has no messages to itself"));
    }
    let mut alone = Communicator::threads(1).unwrap().remove(0);
    assert!(catch_unwind(AssertUnwindSafe(|| alone.receive_any(&mut [1_u8]))).is_err());
}
