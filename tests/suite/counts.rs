//! Parts of given sizes: mismatched and invalid counts.

use std::num::NonZero;

use unisono::{Call, Communicator, DType, ReduceOp};
use unisono_testing::suite::Test;
use unisono_testing::tests;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        mismatched_counts_are_an_error_that_names_both,
        invalid_counts_panic,
        counts_do_not_apply_to_the_selection_of_a_call_without_parts,
        calls_without_parts_ignore_counts,
        equal_options_have_the_same_label_in_any_order,
    ]
}

fn mismatched_counts_are_an_error_that_names_both() {
    let errors = unisono::threads(2, |mut comm| {
        let counts = if comm.rank() == 0 { [3, 5] } else { [4, 4] };
        let gathered = comm.call().counts(&counts).label("rows").all_gather(&mut [0_u8; 8]);
        gathered.and_then(|_| comm.barrier())
    });
    let names = |error: &String| {
        error.contains("all-gather #0 \"rows, parts of 3, 5\" of 8 u8")
            && error.contains("all-gather #0 \"rows, parts of 4, 4\" of 8 u8")
    };
    let errors: Vec<_> = errors.into_iter().map(|error| error.unwrap_err().to_string()).collect();
    assert!(errors.iter().any(names), "{errors:#?}");

    // The count of a pair is known to its two ranks only.
    let errors = unisono::threads(3, |mut comm| {
        let expected = if comm.rank() == 2 { [1, 2, 1] } else { [1; 3] };
        let mut received = vec![0.0; expected.iter().sum()];
        comm.all_to_all_v(&[0.0_f32; 3], &[1; 3], &mut received, &expected).and_then(|_| comm.barrier())
    });
    let errors: Vec<_> = errors.into_iter().map(|error| error.unwrap_err().to_string()).collect();
    let names = |error: &String| {
        let called = |rank, bytes| {
            format!("rank {rank} called all-to-all #0 of f32, by round-robin (a message of {bytes} bytes)")
        };
        error.contains(&called(2, 8)) && error.contains(&called(1, 4))
    };
    assert!(errors.iter().any(names), "{errors:#?}");
}

fn invalid_counts_panic() {
    let panics = |call: fn(&mut Communicator)| {
        unisono::threads(2, |mut comm| {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(&mut comm)));
            let cause = panicked.expect_err("a panic");
            comm.barrier().unwrap();
            cause.downcast_ref::<String>().expect("a message").clone()
        })
    };
    for (call, message) in [
        ((|comm| drop(comm.call().counts(&[1]))) as fn(&mut Communicator), "the number of counts"),
        (|comm| drop(comm.call().counts(&[1, 2]).all_gather(&mut [0_u8; 4])), "the parts of ranks have 3"),
        (|comm| drop(comm.call().counts(&[1, 2]).broadcast(&mut [0_u8; 3], 0)), "`broadcast`, has no counts"),
        (|comm| drop(comm.all_to_all_v(&[0_u8], &[1, 1], &mut [0; 2], &[1, 1])), "its parts have 2"),
        (|comm| drop(comm.all_to_all_v(&[0_u8; 4], &[2, 2], &mut [0; 2], &[1, 1])), "to itself"),
        (
            |comm| {
                let mut pairs = comm.call().element_bytes(NonZero::new(2).unwrap());
                drop(pairs.all_to_all_v::<u8>(&[], &[1 << 63, 0], &mut [], &[1 << 63, 0]));
            },
            "the sent counts overflow",
        ),
    ] {
        let messages = panics(call);
        assert!(messages.iter().all(|found| found.contains(message)), "{messages:?}");
    }
}

fn counts_do_not_apply_to_the_selection_of_a_call_without_parts() {
    unisono::threads(2, |mut comm| {
        for call in [Call::all_reduce(DType::F32, ReduceOp::Sum, 3), Call::barrier()] {
            let usual = comm.selection(&call);
            assert_eq!(comm.call().counts(&[1, 2]).selection(&call), usual);
        }
    });
}

/// One of the two ranks makes calls without parts on a builder with counts.
fn calls_without_parts_ignore_counts() {
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<u8> {
        let mut value = [comm.rank() as u8];
        if comm.rank() == 0 {
            comm.barrier()?;
            comm.receive(&mut value, 1)?;
        } else {
            let mut uneven = comm.call().counts(&[1, 2]);
            uneven.barrier()?;
            uneven.send(&value, 0)?;
        }
        Ok(value[0])
    });
    assert!(ended.iter().all(|value| matches!(value, Ok(1))), "{ended:?}");
}

fn equal_options_have_the_same_label_in_any_order() {
    const LONG: &str = "a label of more than 52 bytes, of which errors show the first 41";
    let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
        let is_first = comm.rank() == 0;
        let call = comm.call();
        let mut labelled =
            if is_first { call.label(LONG).counts(&[3, 5]) } else { call.counts(&[3, 5]).label(LONG) };
        labelled.all_gather(&mut [0_u8; 8])?;
        drop(labelled);
        let call = comm.call();
        let mut last = if is_first { call.counts(&[4, 4]).counts(&[3, 5]) } else { call.counts(&[3, 5]) };
        last.all_gather(&mut [0_u8; 8])?;
        Ok(())
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}
