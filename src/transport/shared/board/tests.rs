//! Withdrawal of memory from ranks that are dead or stopped.

use std::cell::Cell;

use rustix::io::Errno;

use super::*;
use crate::memory::Registered;

#[test]
fn withdrawal_does_not_wait_for_a_dead_rank() {
    let status = StatusBoard::of_threads(2).unwrap().remove(0);
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2);
    // The rank dies inside.
    std::mem::forget(board.enter(1, std::iter::once(0)).unwrap());
    status.set_gone(1);
    let began = Instant::now();
    board.withdraw((0, &[0, 1]), &status, || Ok(false));
    assert!(began.elapsed() < LONGEST_ACCESS);
}

#[test]
fn memory_is_revoked_from_a_process_that_is_stopped_inside() {
    let status = StatusBoard::of_threads(2).unwrap().remove(0);
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2);
    let registry = Registry::Processes;
    let mut array = Registered::<u8>::new(registry, 4096).unwrap();
    array.fill(7);
    let lent = registry.lend(&raw mut array[..]).unwrap();
    let location = lent.0;
    let own = Own { position: 0, members: &[0, 1], board: &board, status: &status, registry };
    let lent = Lent::by(own, lent, true);
    // The other rank is stopped here.
    let inside = board.enter(1, std::iter::once(0)).unwrap();
    let theirs = Pages::of_process(std::process::id() as i32, location.file()).unwrap();
    let began = Instant::now();
    drop(lent);
    assert!(began.elapsed() < LONGEST_ACCESS * 5, "{:?}", began.elapsed());
    // The other rank continues, and writes. SAFETY: the byte is in the mapping, which no other code uses now.
    unsafe { *theirs.as_ptr() = 1 };
    drop(inside);
    assert_eq!(array[0], 7, "the write does not change this rank's memory");
    assert_eq!(board.withdrawn(std::iter::once(0)), Some(0), "the other rank detects it");
}

#[test]
fn revocation_is_retried_at_an_interval() {
    let status = StatusBoard::of_threads(2).unwrap().remove(0);
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2);
    let _inside = board.enter(1, std::iter::once(0)).unwrap();
    let (attempts, began) = (Cell::new(0), Instant::now());
    board.withdraw((0, &[0, 1]), &status, || {
        attempts.set(attempts.get() + 1);
        if began.elapsed() < LONGEST_ACCESS + 10 * REVOKE_EVERY { Err(Errno::NOMEM) } else { Ok(true) }
    });
    assert!(attempts.get() > 1 && attempts.get() <= 12, "{attempts:?}");
}

#[test]
fn position_on_the_board_is_not_a_position_on_the_status_board() {
    // Ranks 2 and 3 are a declared node on a machine of four ranks.
    let status = StatusBoard::of_threads(4).unwrap().remove(2);
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2);
    std::mem::forget(board.enter(1, std::iter::once(0)).unwrap());
    status.set_gone(1);
    let began = Instant::now();
    board.withdraw((0, &[2, 3]), &status, || Ok(true));
    assert!(began.elapsed() > LONGEST_ACCESS, "rank 3 is alive");
    status.set_gone(3);
    let began = Instant::now();
    board.withdraw((0, &[2, 3]), &status, || Ok(true));
    assert!(began.elapsed() < LONGEST_ACCESS, "rank 3 is dead");
}
