//! Checks that groups behave as worlds, over any transport.

use std::time::Duration;

use unisono::{Communicator, Error, Rank, ReduceOp};
use unisono_testing::suite::is_deep;

use super::memory::Memory;
use super::{in_flight, stress};

/// Checks each rank's number in the group, and a reduction over the group.
fn expect_members(group: &mut Communicator, members: &[Rank], own: Rank) {
    assert_eq!(group.ranks(), members.len());
    assert_eq!(members[group.rank()], own);
    let mut sum = [1_u64 << own];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum[0], members.iter().map(|rank| 1 << rank).sum::<u64>(), "{members:?}");
    let mut first = [own as u64];
    group.broadcast(&mut first, 0).unwrap();
    assert_eq!(first[0], members[0] as u64);
}

/// Groups of all kinds.
pub fn conformance(comm: &mut Communicator) {
    members(comm);
    many(comm);
    on_threads(comm);
}

/// The members of groups, and their numbers.
pub fn members(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let alike = |color: usize, count: usize| (0..ranks).filter(move |rank| rank % count == color);
    let mut half = comm.split(Some(rank % 2), 0).unwrap().unwrap();
    expect_members(&mut half, &alike(rank % 2, 2).collect::<Vec<_>>(), rank);
    let mut backwards = comm.split(Some(7), -(rank as i64)).unwrap().unwrap();
    expect_members(&mut backwards, &(0..ranks).rev().collect::<Vec<_>>(), rank);
    // Some ranks are in no group.
    let some = comm.split((rank > 0).then_some(0), 0).unwrap();
    assert_eq!(some.is_some(), rank > 0);
    if let Some(mut some) = some {
        expect_members(&mut some, &(1..ranks).collect::<Vec<_>>(), rank);
    }
    let ends = [ranks - 1, 0];
    let list = if ranks > 1 { &ends[..] } else { &ends[..1] };
    let named = comm.group(list).unwrap();
    assert_eq!(named.is_some(), list.contains(&rank));
    if let Some(mut named) = named {
        expect_members(&mut named, list, rank);
    }
    // A group of a group.
    let mut inner = backwards.split(Some(0), 0).unwrap().unwrap();
    drop(backwards);
    expect_members(&mut inner, &(0..ranks).rev().collect::<Vec<_>>(), rank);
}

/// Runs the conformance tests in concurrent groups, and then in the world.
pub fn inside(comm: &mut Communicator) {
    let mut half = comm.split(Some(comm.rank() % 2), 0).unwrap().unwrap();
    super::conformance(&mut half, Memory::Slices);
    if is_deep() {
        super::conformance(&mut half, Memory::Mixed);
    }
    stress::calls(&mut half, 50);
    in_flight::conformance(&mut half);
    comm.barrier().unwrap();
}

/// Tests many groups at once, which end in any order.
fn many(comm: &mut Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // MPI may keep the resources of the first group.
    drop(comm.split(Some(0), 0).unwrap());
    comm.barrier().unwrap();
    let before = files();
    let mut groups: Vec<_> = (0..64).map(|_| comm.split(Some(0), 0).unwrap().unwrap()).collect();
    for (number, group) in groups.iter_mut().enumerate() {
        // Ranks use them in one order, and drop them in different orders.
        let mut sum = [rank as u64 + number as u64];
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum[0], (ranks * (ranks - 1) / 2 + ranks * number) as u64);
    }
    if !comm.has_mpi() {
        groups.rotate_left(rank * 7 % 64);
    }
    for group in groups {
        drop(group);
    }
    comm.barrier().unwrap();
    // In a world of threads, the files of all ranks are in one process.
    assert!(files() <= before + if comm.transport() == "threads" { 8 * ranks } else { 0 });
}

/// Tests groups on separate threads, concurrently with the world.
fn on_threads(comm: &mut Communicator) {
    const CALLS: u32 = 300;
    let mut groups: Vec<_> = (0..2).map(|_| comm.split(Some(0), 0).unwrap().unwrap()).collect();
    let work = |comm: &mut Communicator, factor: u32| {
        for call in 0..CALLS {
            let count = [1, 100, 5000][call as usize % 3];
            let mut array = vec![factor * (call + comm.rank() as u32); count];
            comm.all_reduce(&mut array, ReduceOp::Sum).unwrap();
            let ranks = comm.ranks() as u32;
            let expected = factor * (call * ranks + ranks * (ranks - 1) / 2);
            assert!(array.iter().all(|&sum| sum == expected));
        }
    };
    std::thread::scope(|scope| {
        for (factor, group) in groups.iter_mut().enumerate() {
            scope.spawn(move || work(group, factor as u32 + 2));
        }
        work(comm, 1);
    });
}

/// Makes mismatched calls in a group, and returns the error. The world may continue if a failure does not end the job.
pub fn disagree(comm: &mut Communicator) -> Error {
    let rank = comm.rank();
    let mut group = comm.split(Some(0), -(rank as i64)).unwrap().unwrap();
    group.set_timeout(Duration::from_secs(20));
    let mut array = vec![1.0_f32; if group.rank() == 0 { 10 } else { 11 }];
    loop {
        if let Err(error) = group.all_reduce(&mut array, ReduceOp::Sum) {
            return error;
        }
    }
}
