//! Tags of messages, and many messages in flight, over threads.

use std::time::{Duration, Instant};

use unisono::{Communicator, Error, Result};
use unisono_testing::{suite::Test, tests};

use crate::common;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        messages_started_in_any_order_match_by_tag,
        thousand_messages_can_be_in_flight,
        timeout_names_source_and_tag,
        mismatch_names_the_tag,
        exceeding_the_limit_of_held_messages_is_an_error,
        failure_ends_all_messages_in_flight,
        messages_of_a_dropped_communicator_are_received,
    ]
}

fn messages_started_in_any_order_match_by_tag() {
    for ranks in 2..=4 {
        unisono::threads(ranks, |mut comm| common::tags::conformance(&mut comm));
    }
}

fn thousand_messages_can_be_in_flight() {
    for ranks in [2, 3, 4] {
        unisono::threads(ranks, |mut comm| common::tags::many_in_flight(&mut comm, 1000));
    }
}

fn timeout_names_source_and_tag() {
    let calls: [fn(&mut Communicator) -> Result<()>; 2] = [
        |comm| comm.call().tag(7).receive(&mut [0_u8; 3], 1),
        |comm| comm.call().tag(7).receive_async(vec![0_u8; 3], 1)?.wait().map(drop),
    ];
    for call in calls {
        let errors = unisono::threads(2, |mut comm| {
            comm.set_timeout(Duration::from_secs(30));
            if comm.rank() == 1 {
                // A message with another tag does not match.
                comm.call().tag(8).send(&[1_u8; 3], 0).unwrap();
                return comm.receive(&mut [0_u8], 0).unwrap_err();
            }
            let started = Instant::now();
            comm.set_timeout(Duration::from_millis(300));
            let error = call(&mut comm).unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(10), "{error}");
            error
        });
        let text = errors[0].to_string();
        assert!(matches!(errors[0], Error::Timeout { other: 1, .. }), "{text}");
        assert!(
            text.starts_with("rank 0, receive #0 with tag 7: waited ") && text.contains(" for rank 1"),
            "{text}"
        );
        assert!(matches!(errors[1], Error::Aborted { .. }), "{}", errors[1]);
    }
}

fn mismatch_names_the_tag() {
    let errors = unisono::threads(2, |mut comm| match comm.rank() {
        0 => {
            comm.call().tag(1).send(&[0_u8; 9], 1).unwrap();
            comm.call().tag(2).send(&[0_f32; 4], 1).unwrap();
            comm.barrier().unwrap_err()
        }
        _ => comm.call().tag(2).receive(&mut [0_f32; 5], 0).unwrap_err(),
    });
    assert_eq!(
        errors[1].to_string(),
        "rank 1, receive #0 with tag 2: rank 1 called message #1 of 5 f32 with tag 2, but rank 0 called message #1 of 4 f32 \
         with tag 2"
    );
}

fn exceeding_the_limit_of_held_messages_is_an_error() {
    // Untouched pages cost no memory on the sender.
    const COUNT: usize = 300 << 20;
    let errors = unisono::threads(2, |mut comm| {
        if comm.rank() == 0 {
            let values = vec![0_u8; COUNT];
            let sent = (1..=4).try_for_each(|tag| comm.call().tag(tag).send(&values, 1));
            return sent.unwrap_err();
        }
        comm.call().tag(9).receive(&mut [0_u8], 0).unwrap_err()
    });
    let text = errors[1].to_string();
    assert!(matches!(errors[1], Error::Failed { rank: 1, .. }), "{text}");
    assert!(text.contains("with tags that no receive has asked for"), "{text}");
}

fn failure_ends_all_messages_in_flight() {
    let ended = unisono::threads(3, |mut comm| {
        comm.set_timeout(Duration::from_secs(30));
        if comm.rank() == 2 {
            comm.fail("on purpose");
            return Vec::new();
        }
        let other = 1 - comm.rank();
        let mut start = |tag| comm.call().tag(tag).receive_async(vec![0_u64; 10], other).ok();
        let requests: Vec<_> = (0..10).filter_map(&mut start).collect();
        requests.into_iter().map(|request| request.wait().unwrap_err()).collect()
    });
    for error in &ended[0] {
        assert!(matches!(error, Error::Aborted { by: 2, .. }), "{error}");
    }
}

fn messages_of_a_dropped_communicator_are_received() {
    unisono::threads(2, |mut comm| {
        if comm.rank() == 0 {
            // Dropping a request does not cancel its message, for which the communicator waits.
            for tag in 0..20 {
                drop(comm.call().tag(tag).send_async(vec![tag; 50_000], 1).unwrap());
            }
            return;
        }
        for tag in (0..20).rev() {
            let mut received = vec![0; 50_000];
            comm.call().tag(tag).receive(&mut received, 0).unwrap();
            assert_eq!(received, vec![tag; 50_000]);
        }
    });
}
