//! The invariants of a simulation.

use std::time::Duration;

use unisono_collectives::Rank;

use super::{Fate, Fault, Time, World};
use crate::error::Error;
use crate::transport::waiting::IN_FLIGHT_GRACE;

/// The longest time until other ranks are notified of a failure, in microseconds.
pub(super) const REPORT_US: u64 = 2_000_000;
/// The time by which a rank may fail later than promised, since it is woken up late, and reads the clock only at intervals.
const SLACK: Time = Duration::from_millis(600);

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Done,
    Crashed,
    Timeout,
    Left,
    /// The connection with a rank was lost, or the rank has failed.
    Lost,
}

pub(super) fn kind(fate: &Fate) -> Kind {
    match fate {
        Fate::Done => Kind::Done,
        Fate::Crashed => Kind::Crashed,
        Fate::Failed(Error::Timeout { .. }) => Kind::Timeout,
        Fate::Failed(Error::Left { .. }) => Kind::Left,
        Fate::Failed(Error::Aborted { .. }) => Kind::Lost,
        Fate::Failed(error) => panic!("a rank fails with another error: {error}"),
    }
}

/// Checks that every rank has the right values (which [`rank`](super::ranks::rank) checks), has crashed, or fails in time with an error that
/// names a rank at fault.
pub(super) fn check(world: &World, fates: &[(Fate, Time)]) {
    for (rank, (fate, at)) in fates.iter().enumerate() {
        if let Fate::Failed(error) = fate {
            assert!(
                !world.schedule.is_benign(),
                "rank {rank} fails without a fault: {fates:?}\n{:?}",
                world.schedule
            );
            check_error(world, fates, rank, error);
            check_time(world, rank, error, *at);
        }
    }
}

/// Checks that an error names a rank at fault, or one that has failed or waits because of it.
fn check_error(world: &World, fates: &[(Fate, Time)], rank: Rank, error: &Error) {
    let schedule = &world.schedule;
    let named = error.failed_rank().unwrap_or_else(|| panic!("rank {rank} fails and names no rank: {error}"));
    // A rank may wait for one that is late because of a third.
    let is_late = matches!(error, Error::Timeout { .. }) && schedule.delays();
    let has_failed = named != rank && !matches!(fates[named].0, Fate::Done);
    // Another rank may have reported this failure, if the schedule explains it.
    let reports = |other: Rank| match &fates[other].0 {
        Fate::Failed(error) => error.failed_rank() == Some(named) && schedule.explains(other, named),
        _ => false,
    };
    let is_notified = schedule.is_watched && (0..fates.len()).any(|other| other != rank && reports(other));
    let is_explained = is_late || has_failed || is_notified || schedule.explains(rank, named);
    assert!(is_explained, "rank {rank} names rank {named}: {error}\n{fates:?}\n{schedule:?}");
    if let Error::Timeout { waited, .. } = error {
        assert!(*waited > schedule.timeout, "rank {rank} fails after {waited:?}: {error}");
    }
    // If ranks are notified of the only fault, all of them name it.
    let notified = schedule.is_watched && schedule.timeout > Duration::from_micros(2 * REPORT_US);
    if let ([Fault::Crash { rank: crashed, .. }], true) = (&schedule.faults[..], notified) {
        assert_eq!(named, *crashed, "rank {rank} names rank {named}: {error}\n{fates:?}\n{schedule:?}");
    }
}

/// Checks that a rank has failed by the time that it promises.
fn check_time(world: &World, rank: Rank, error: &Error, at: Time) {
    let World { schedule, network, began_call, .. } = world;
    let moved = network.moved[rank].max(began_call[rank]);
    let mut latest = schedule.end_of_wait(rank, moved, schedule.timeout);
    if let (2, Some(lost)) = (schedule.ranks, network.lost[rank]) {
        latest = latest.min(schedule.end_of_wait(rank, moved.max(lost), IN_FLIGHT_GRACE));
    }
    let crashes = world.crashed.iter().flatten().map(|(at, _)| *at).min();
    if let (Some(crash), true) = (crashes, schedule.is_watched) {
        latest = latest.min(schedule.end_of_wait(rank, moved.max(crash), Duration::from_micros(REPORT_US)));
    }
    assert!(
        at <= latest + SLACK,
        "rank {rank} fails at {at:?}, and not before {latest:?}: {error}\n{schedule:?}"
    );
}
