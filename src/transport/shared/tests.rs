//! Lent memory after failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use unisono_collectives::Algorithm;

use super::{Open, Shared, Shares};
use crate::call::Call;
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::transport::{Calls, Deadlines, Failure};

const LONG: Duration = Duration::from_secs(10);

/// Runs a single pass of two ranks, with 64 bytes.
fn pass(
    end: &mut Shared,
    timeout: Duration,
    work: impl FnOnce(&mut Open<'_>) -> Result<()>,
) -> Result<(), Failure> {
    let call = Call::all_reduce(DType::U8, ReduceOp::Sum, 64);
    let header = Calls::default().next(1, 64, Codes::new(&call, Method::Algorithm(Algorithm::AllToAll)), 0);
    let deadlines = Deadlines { timeout, quiet: timeout };
    let ranges = |rank| 32 * rank..32 * (rank + 1);
    let shares = Shares { ranges, share_bytes: 64, read: true, written: true };
    end.single_pass(&header, &mut [0; 64], shares, &deadlines, work)
}

/// Runs two ranks, each on a separate thread.
fn two<A: Send, B: Send>(
    first: impl FnOnce(&mut Shared) -> A + Send,
    second: impl FnOnce(&mut Shared) -> B + Send,
) -> (A, B) {
    let mut world = Shared::world_of_threads(2, (0, 2)).unwrap();
    let (mut one, mut zero) = (world.pop().unwrap(), world.pop().unwrap());
    std::thread::scope(|scope| {
        let second = scope.spawn(move || second(&mut one));
        (first(&mut zero), second.join().unwrap())
    })
}

/// Works for a while after both have arrived, and sets `gone` at the end.
fn visit(both: &Barrier, gone: &AtomicBool, open: &mut Open<'_>) -> Result<()> {
    both.wait();
    // Longer than the other rank takes between checks of its deadline, even if it is descheduled.
    std::thread::sleep(Duration::from_secs(1));
    open.mapped(1, 0..32).expect("threads access all memory").1.fill(1);
    gone.store(true, Ordering::Release);
    Ok(())
}

#[test]
fn panic_waits_for_ranks_inside_and_is_reported() {
    let (both, gone) = (Barrier::new(2), AtomicBool::new(false));
    let (visited, ()) = two(
        |end| pass(end, LONG, |open| visit(&both, &gone, open)),
        |end| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                pass(end, LONG, |_| {
                    both.wait();
                    panic!("on purpose")
                })
            }));
            assert!(panicked.is_err());
            assert!(gone.load(Ordering::Acquire), "the buffer may be freed now");
        },
    );
    let is_reported = matches!(&visited, Err(Failure::Error(Error::Aborted { by: 1, cause, .. })) if cause == "it panicked");
    assert!(is_reported, "{visited:?}");
}

#[test]
fn deadline_waits_for_ranks_inside() {
    let (both, gone) = (Barrier::new(2), AtomicBool::new(false));
    let (_, timed_out) = two(
        |end| pass(end, LONG, |open| visit(&both, &gone, open)),
        |end| {
            let passed = pass(end, Duration::from_millis(50), |_| {
                both.wait();
                Ok(())
            });
            assert!(gone.load(Ordering::Acquire));
            end.status().fail(1, 1, "late");
            passed
        },
    );
    assert!(matches!(timed_out, Err(Failure::Timeout { other: 0, .. })), "{timed_out:?}");
}

#[test]
fn rank_that_arrives_after_a_deadline_accesses_no_memory() {
    let failed = Barrier::new(2);
    let (timed_out, late) = two(
        |end| {
            let passed = pass(end, Duration::from_millis(50), |_| unreachable!("the other is late"));
            end.status().fail(0, 0, "late");
            failed.wait();
            passed
        },
        |end| {
            failed.wait();
            pass(end, LONG, |_| unreachable!("the other has gone"))
        },
    );
    assert!(matches!(timed_out, Err(Failure::Timeout { other: 1, .. })), "{timed_out:?}");
    assert!(matches!(late, Err(Failure::Error(Error::Aborted { by: 0, .. }))), "{late:?}");
}

#[test]
fn rank_that_has_left_is_named() {
    let mut world = Shared::world_of_threads(2, (0, 2)).unwrap();
    world[1].status().leave(1);
    let passed = pass(&mut world[0], LONG, |_| unreachable!("no other rank is present"));
    assert!(matches!(passed, Err(Failure::Left { other: 1 })), "{passed:?}");
}
