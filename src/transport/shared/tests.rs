//! Lent memory, and failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use unisono_collectives::Algorithm;

use super::board::Board;
use super::reach::{Processes, Reach, access_failure};
use super::{Open, Shared, Shares};
use crate::call::Call;
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::memory::{Pages, Registered, Registry};
use crate::method::Method;
use crate::status::StatusBoard;
use crate::transport::{Calls, Deadlines, Failure, Header, Outgoing, Polled};

const LONG: Duration = Duration::from_secs(10);

/// Runs a single pass of at most four ranks, with 64 bytes.
fn pass(
    end: &mut Shared,
    timeout: Duration,
    work: impl FnOnce(&mut Open<'_>) -> Result<()>,
) -> Result<(), Failure> {
    let call = Call::all_reduce(DType::U8, ReduceOp::Sum, 64);
    let header = Calls::default().next(1, 64, Codes::new(&call, Method::Algorithm(Algorithm::AllToAll)), 0);
    let deadlines = Deadlines { timeout, quiet: timeout };
    let ranges = |rank| 16 * rank..16 * (rank + 1);
    let shares = Shares { ranges, share_bytes: 64, read: true, written: true };
    end.single_pass(&header, &mut [0; 64], shares, &deadlines, work)
}

/// Runs two ranks, each on a separate thread.
fn two<A: Send, B: Send>(
    first: impl FnOnce(&mut Shared) -> A + Send,
    second: impl FnOnce(&mut Shared) -> B + Send,
) -> (A, B) {
    let mut world = Shared::of_process(StatusBoard::of_threads(2).unwrap()).unwrap();
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
    open.mapped(1, 0..16).expect("threads access all memory").1.fill(1);
    gone.store(true, Ordering::Release);
    Ok(())
}

/// Blocks that fit the L1 cache, if the kernel need not copy any.
#[test]
fn mapped_memory_is_worked_on_in_small_blocks() {
    let block_bytes = |end: &mut Shared| {
        let mut bytes = 0;
        pass(end, LONG, |open| {
            bytes = open.block_bytes(8192);
            Ok(())
        })
        .unwrap();
        bytes
    };
    assert_eq!(two(block_bytes, block_bytes), (8192, 8192));
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
            end.status.fail(1, 1, "late");
            passed
        },
    );
    assert!(matches!(timed_out, Err(Failure::Timeout { other: 0, .. })), "{timed_out:?}");
}

#[test]
fn rank_that_has_withdrawn_its_memory_is_named() {
    let (all, short) = (Barrier::new(3), Duration::from_millis(200));
    let works = |end: &mut Shared, timeout, seconds| {
        pass(end, timeout, |_| {
            all.wait();
            std::thread::sleep(Duration::from_secs(seconds));
            Ok(())
        })
    };
    let mut world = Shared::of_process(StatusBoard::of_threads(3).unwrap()).unwrap();
    let [zero, one, two] = &mut world[..] else { unreachable!("a world of three ranks") };
    let timed_out = std::thread::scope(|scope| {
        // Rank 1 withdraws its memory, and then waits for rank 2, which is still inside when rank 0 has finished its work.
        scope.spawn(|| works(one, short, 0));
        scope.spawn(|| works(two, LONG, 2));
        let timed_out = works(zero, short, 1);
        zero.status.fail(0, 0, "late");
        timed_out
    });
    assert!(matches!(timed_out, Err(Failure::Timeout { other: 1, .. })), "{timed_out:?}");
}

#[test]
fn rank_that_arrives_after_a_deadline_accesses_no_memory() {
    let failed = Barrier::new(2);
    let (timed_out, late) = two(
        |end| {
            let passed = pass(end, Duration::from_millis(50), |_| unreachable!("the other is late"));
            end.status.fail(0, 0, "late");
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
    let mut world = Shared::of_process(StatusBoard::of_threads(2).unwrap()).unwrap();
    world[1].status.leave(1);
    let passed = pass(&mut world[0], LONG, |_| unreachable!("no other rank is present"));
    assert!(matches!(passed, Err(Failure::Left { other: 1 })), "{passed:?}");
}

#[test]
fn refused_access_is_due_to_the_rank_that_has_ended() {
    let status = StatusBoard::of_threads(2).unwrap().remove(0);
    let refused = || Error::Memory { size_bytes: 8, cause: std::io::ErrorKind::NotFound.into() };
    let failure = access_failure(refused(), &status);
    assert!(matches!(failure, Failure::Error(Error::Memory { .. })), "{failure:?}");
    status.fail(1, 1, "it was killed");
    let failure = access_failure(refused(), &status);
    assert!(matches!(failure, Failure::Error(Error::Aborted { by: 1, .. })), "{failure:?}");
}

/// Another communicator may fail while its ranks access the same array.
#[test]
fn message_in_transit_is_sent_once_when_its_memory_is_detached() {
    let registry = Registry::Processes;
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2);
    let process_ids = vec![std::process::id() as i32; 2];
    let line = |(position, status)| {
        let reach = Reach(Some(Processes::new(process_ids.clone(), false)));
        Shared::new(position, vec![0, 1], (board.clone(), status), reach).for_messages()
    };
    let mut lines: Vec<_> = StatusBoard::of_threads(2).unwrap().into_iter().enumerate().map(line).collect();
    let mut array = Registered::<u8>::new(registry, 100_000).unwrap();
    array.fill(7);
    let header = Header::of_message(DType::U8, array.len(), (0, 0), 0);
    let (mut given, mut place, mut taken) = (0, vec![0_u8; array.len()], 0);
    let mut send = |end: &mut Shared| end.send(&header, Outgoing { to: 1, bytes: &array }, &mut given);
    assert_eq!(send(&mut lines[0]).unwrap(), Polled::Moved);
    assert!(Registry::detach(registry.locate(&raw const array[..]).unwrap()).unwrap());
    assert_eq!(send(&mut lines[0]).unwrap(), Polled::Idle, "the other rank has not received it");
    assert_eq!(lines[1].receive(&header, 0, &mut place, &mut taken).unwrap(), Polled::Done);
    assert!(place.iter().all(|&byte| byte == 7));
    assert_eq!(send(&mut lines[0]).unwrap(), Polled::Done);
    assert!(lines[1].ahead(0).is_none(), "there is no second message");
}
