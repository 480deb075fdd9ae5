//! Memory that is taken back from ranks that are dead or stopped.

use super::*;
use crate::memory::Registered;

#[test]
fn nobody_waits_for_a_dead_rank_that_was_inside() {
    let status = StatusBoard::of_threads(2).unwrap().remove(0);
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2, 0);
    // It dies inside.
    std::mem::forget(board.enter(1, std::iter::once(0)).unwrap());
    status.die(1);
    let began = Instant::now();
    board.withdraw(0, &status, || false);
    assert!(began.elapsed() < LONGEST_VISIT);
}

#[test]
fn memory_is_taken_back_from_a_process_that_is_stopped_inside_of_it() {
    let status = StatusBoard::of_threads(2).unwrap().remove(0);
    let board = Board::new(Pages::untouched(Board::size_bytes(2)).unwrap(), 2, 0);
    let registry = Registry::of_processes();
    let mut array = Registered::<u8>::new(&registry, 4096).unwrap();
    array.fill(7);
    let location = registry.locate(&raw const array[..]).unwrap();
    let lent = Lent::by((&board, &status), 0, &registry, location, true);
    // The other rank is stopped here.
    let inside = board.enter(1, std::iter::once(0)).unwrap();
    let theirs = Pages::of_process(std::process::id() as i32, location.file()).unwrap();
    let began = Instant::now();
    drop(lent);
    assert!(began.elapsed() < LONGEST_VISIT * 5, "{:?}", began.elapsed());
    // It continues, and writes. SAFETY: the byte is in the mapping, which nothing else uses now.
    unsafe { *theirs.as_ptr() = 1 };
    drop(inside);
    assert_eq!(array[0], 7, "the write changes nothing that this rank has");
    assert!(!board.is_lent(std::iter::once(0)), "the other rank learns of it");
}
