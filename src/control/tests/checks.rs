//! The invariants.

use super::member::{Fate, Member};
use super::{How, Rank, Report, Schedule, Time};
use crate::control::{FENCE, SILENCE};

#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The number of views that each member had agreed on when it was last checked.
    seen: Vec<(usize, bool)>,
}

impl Checks {
    /// Checks a report of a member to the program above it.
    pub(super) fn report(&self, own: Rank, report: &Report, schedule: &Schedule) {
        match report {
            Report::Lost(rank, _, How::Silent) => {
                let are_healthy = schedule.is_healthy(own) && schedule.is_healthy(*rank);
                assert!(!are_healthy, "rank {own} has lost rank {rank}, but nothing was cut or stopped");
            }
            Report::Lost(rank, _, How::Closed) => {
                let said_goodbye =
                    [own, *rank].iter().all(|&rank| schedule.is_undisturbed(rank)) && schedule.leaves(*rank);
                assert!(!said_goodbye, "rank {own} takes rank {rank} for dead, which has said goodbye");
            }
            Report::Lost(rank, _, How::Malformed) => panic!("rank {own} receives nonsense from rank {rank}"),
            Report::Unreached(ranks) => {
                let healthy: Vec<_> = ranks.iter().filter(|&&rank| schedule.is_healthy(rank)).collect();
                assert!(healthy.is_empty() || !schedule.is_healthy(own), "rank {own} reaches no {healthy:?}");
            }
            Report::Lost(..) | Report::Stranger => {}
            Report::Told(rank, message) => panic!("rank {own} receives {message:?} from {rank}"),
        }
    }

    pub(super) fn after_event(&mut self, rank: Rank, members: &[Member]) {
        self.seen.resize(members.len(), (0, false));
        let own = &members[rank];
        let now = (own.held.len(), matches!(own.fate, Fate::Finished(..)));
        if self.seen[rank] == now {
            return;
        }
        self.seen[rank] = now;
        let goes_on = |member: &&Member| matches!(member.fate, Fate::Running | Fate::Finished(..));
        let others = || members.iter().filter(goes_on).filter(|other| other.rank != rank);
        if let Some((number, view)) = own.held.last() {
            for (other, (_, theirs)) in others().flat_map(|other| {
                other.held.iter().filter(|(held, _)| held == number).map(move |held| (other.rank, held))
            }) {
                assert_eq!(view, theirs, "view {number} of rank {rank} and of rank {other}");
            }
            assert!(view.contains(&rank), "rank {rank} is not in its view {view:?}");
        }
        if let Fate::Finished(number, view) = &own.fate {
            for other in others() {
                if let Fate::Finished(theirs, their_view) = &other.fate {
                    // Members of an earlier view that is out of reach are excluded from a later one.
                    let is_fine = (number, view) == (theirs, their_view)
                        || number > theirs && !view.contains(&other.rank)
                        || number < theirs && !their_view.contains(&rank);
                    assert!(
                        is_fine,
                        "rank {rank} continues in {number} {view:?}, {} in {theirs} {their_view:?}",
                        other.rank
                    );
                }
            }
        }
    }

    pub(super) fn at_end(&self, members: &[Member], schedule: &Schedule) {
        // Every failed member can begin the patience of the others again, and is detected, fenced and replaced.
        let most =
            (schedule.patience + SILENCE + FENCE + Time::from_secs(10)) * (2 * members.len() as u32 + 1);
        for member in members {
            let rank = member.rank;
            if let (Some(called), Some(ended)) = (member.called, member.ended) {
                let is_stopped = !schedule.is_healthy(rank);
                assert!(is_stopped || ended - called <= most, "rank {rank} waits {:?}", ended - called);
            }
            assert!(member.called.is_none() || member.fate != Fate::Running, "rank {rank} waits for ever");
            let is_disturbed = |other: &Rank| !schedule.is_healthy(*other) || !schedule.is_healthy(rank);
            let is_late = |other: &Rank| {
                let ended = member.ended.unwrap_or_default();
                schedule.calls_at(*other).is_none_or(|at| at + Time::from_secs(1) > ended)
                    || members[*other].ended.is_some_and(|at| at < ended)
            };
            match &member.fate {
                Fate::Partitioned(lost) => {
                    // If a process did not run while it connected, it is unknown which of two that lack a connection is to blame.
                    let is_justified = |other: &Rank| is_disturbed(other) || schedule.stops_early();
                    assert!(lost.iter().all(is_justified), "rank {rank} loses {lost:?}");
                }
                Fate::Missing(missing) => {
                    let is_justified = |other: &Rank| is_disturbed(other) || is_late(other);
                    assert!(missing.iter().all(is_justified), "rank {rank} misses {missing:?}");
                }
                _ => {}
            }
        }
        self.survivors_continue(members, schedule);
    }

    /// If processes end and nothing else happens, all others continue together.
    fn survivors_continue(&self, members: &[Member], schedule: &Schedule) {
        if !schedule.has_only_crashes() {
            return;
        }
        let is_gone = |member: &&Member| matches!(member.fate, Fate::Crashed | Fate::Left);
        for member in members.iter().filter(|member| !is_gone(member)) {
            let Fate::Finished(_, view) = &member.fate else {
                panic!(
                    "rank {} ends with {:?}, although processes have ended at most",
                    member.rank, member.fate
                );
            };
            let is_there = |other: &Member| is_gone(&other) || view.contains(&other.rank);
            assert!(members.iter().all(is_there), "{view:?} lacks a living member");
        }
    }
}
