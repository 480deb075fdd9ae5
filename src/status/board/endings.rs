//! The ends of ranks that a status board records: failures, departures, and dead processes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use unisono_collectives::Rank;

use super::guard::Guard;
use super::{Parent, StatusBoard};

/// The rank has left.
const LEFT: u8 = 1;
/// Its process has ended. A rank that has left its world may still be in a group.
const GONE: u8 = 2;
/// It has called `shrink`, which ends its groups.
const SHRINKS: u8 = 4;

/// The cause of the failure of a rank whose process has ended although it has not left.
pub(crate) const PROCESS_ENDED: &str = "its process was killed, has crashed or called exit";

/// The cause of the end of a communicator whose rank has called `shrink`.
pub(crate) const SHRINKING: &str = "it called `shrink`";

/// The first failure of a rank of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstFailure {
    /// The rank that reported it.
    pub(crate) by: Rank,
    /// The rank that caused the failure, as reported.
    pub(crate) first: Rank,
    pub(crate) cause: String,
}

impl StatusBoard {
    /// Records a failure that rank `by` of the world reports: the rank that failed `first`, which may be itself, and the cause.
    /// Only the first report is kept. Returns whether this was the first one.
    pub(crate) fn fail(&self, by: Rank, first: Rank, cause: &str) -> bool {
        let head = self.layout.head();
        let is_first_report =
            head.failed.compare_exchange(0, by as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first_report {
            head.first.store(first as u32 + 1, Ordering::Relaxed);
            head.cause.set(cause);
        }
        is_first_report
    }

    /// Returns the first failure here or, in a group, the first failure of its world if that concerns a member, or the first member
    /// that is lost.
    pub(crate) fn failure(&self) -> Option<FirstFailure> {
        let head = self.layout.head();
        match head.failed.load(Ordering::Acquire).checked_sub(1) {
            Some(by) => {
                let cause = head.cause.get().or_else(|| self.lost_cause(by as Rank))?;
                let first = head.first.load(Ordering::Relaxed).checked_sub(1).unwrap_or(by);
                Some(FirstFailure { by: by as Rank, first: first as Rank, cause })
            }
            None => self.failure_in_world().or_else(|| self.lost_member()),
        }
    }

    /// Returns the first failure in the world of this group if a member reported or caused it.
    fn failure_in_world(&self) -> Option<FirstFailure> {
        let Parent { status, ranks } = self.parent.get()?;
        let FirstFailure { by, first, cause } = status.failure()?;
        let member = |of_world| ranks.iter().position(|&rank| rank == of_world);
        let (by, first) = (member(by), member(first));
        Some(FirstFailure { by: by.or(first)?, first: first.or(by)?, cause })
    }

    /// Returns the failure of a member of this group whose process has ended, or which has called `shrink`. The world does not report it if
    /// the rank had left the world, or if another rank had failed there before.
    fn lost_member(&self) -> Option<FirstFailure> {
        let Parent { status, ranks } = self.parent.get().filter(|parent| parent.status.has_lost_ranks())?;
        let lost = |(bit, cause): (u8, &str)| {
            let mut members = (0..ranks.len()).filter(|&rank| !self.has_left(rank));
            let rank = members.find(|&rank| status.has_bit(ranks[rank], bit))?;
            Some(FirstFailure { by: rank, first: rank, cause: cause.to_owned() })
        };
        [(GONE, PROCESS_ENDED), (SHRINKS, SHRINKING)].into_iter().find_map(lost)
    }

    /// Returns a cause if the reporter of a failure was killed before it could write one; `None` if it may still write it.
    fn lost_cause(&self, by: Rank) -> Option<String> {
        // The report of a rank that does not share this status board is written by one that does.
        let may_be_dead = self.has_died(by)
            || self.position_of(by).is_none() && self.members.iter().any(|&rank| self.has_died(rank));
        may_be_dead
            .then(|| "the process that reported it was killed before it could report the cause".to_owned())
    }

    /// Records that this process has received a termination signal.
    pub(crate) fn begin_termination(&self) {
        self.layout.head().terminating.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether all processes of this status board, except those that have left, have received a termination signal.
    pub(crate) fn all_are_terminating(&self) -> bool {
        let members = self.members.iter().filter(|&&rank| !self.has_left(rank)).count();
        // A rank may leave after it has received the signal.
        self.layout.head().terminating.load(Ordering::Acquire) as usize >= members
    }

    /// Records that a rank of the world has left. It sends no more messages.
    pub(crate) fn leave(&self, rank: Rank) {
        if let Some(position) = self.position_of(rank) {
            self.layout.row(position).since.store(self.tick(), Ordering::Relaxed);
        }
        self.layout.ended(rank).fetch_or(LEFT, Ordering::AcqRel);
    }

    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.layout.ended(rank).load(Ordering::Acquire) & LEFT != 0
    }

    /// Records that the process of a rank of the world has ended, and ends its quiet sections.
    pub(crate) fn set_gone(&self, rank: Rank) {
        if self.set_lost(rank, GONE)
            && let Some(position) = self.position_of(rank)
        {
            let depth = self.layout.row(position).quiet_depth.swap(0, Ordering::AcqRel);
            self.layout.head().quiet.fetch_sub(depth, Ordering::AcqRel);
        }
    }

    /// Records that a rank of the world has called `shrink`.
    pub(crate) fn set_shrinks(&self, rank: Rank) {
        self.set_lost(rank, SHRINKS);
    }

    /// Sets the bit of a lost rank. Returns whether it was not set.
    fn set_lost(&self, rank: Rank, bit: u8) -> bool {
        let is_new = self.layout.ended(rank).fetch_or(bit, Ordering::AcqRel) & bit == 0;
        if is_new {
            self.layout.head().lost.fetch_add(1, Ordering::AcqRel);
        }
        is_new
    }

    /// Returns whether the process of a rank is known to have ended without leaving. It then accesses no memory any more.
    pub(crate) fn has_died(&self, rank: Rank) -> bool {
        !self.has_left(rank) && self.has_bit(rank, GONE)
    }

    /// Returns whether the bit of a rank is set, here or in the world of which these ranks are a group.
    fn has_bit(&self, rank: Rank, bit: u8) -> bool {
        let in_world =
            || self.parent.get().is_some_and(|Parent { status, ranks }| status.has_bit(ranks[rank], bit));
        self.layout.ended(rank).load(Ordering::Acquire) & bit != 0 || in_world()
    }

    fn has_lost_ranks(&self) -> bool {
        let in_world = || self.parent.get().is_some_and(|parent| parent.status.has_lost_ranks());
        self.layout.head().lost.load(Ordering::Acquire) > 0 || in_world()
    }

    /// Reports that this rank cannot continue because of rank `first`, which may be itself. Its guard, if it has one, informs the other nodes.
    pub(crate) fn give_up(&self, first: Rank, cause: &str) {
        match self.guard() {
            Some(guard) => guard.fail(self, first, cause),
            None => drop(self.fail(self.rank(), first, cause)),
        }
    }

    /// Returns the status board of the world of which these ranks are a group, and the number of a rank there.
    pub(crate) fn in_world(&self, rank: Rank) -> Option<(&Self, Rank)> {
        self.parent.get().map(|Parent { status, ranks }| (status, ranks[rank]))
    }

    pub(crate) fn guard(&self) -> Option<Arc<dyn Guard>> {
        self.guard.get().and_then(Weak::upgrade)
    }

    pub(crate) fn set_guard(&self, guard: &Arc<dyn Guard>) {
        let _ = self.guard.set(Arc::downgrade(guard));
    }

    /// Lets the guards of this rank, here and in the world of which these ranks are a group, check the other ranks. A waiting rank
    /// calls it from time to time.
    #[cold]
    pub(crate) fn check_peers(&self) {
        if let Some(guard) = self.guard() {
            guard.check_peers();
        }
        if let Some(parent) = self.parent.get() {
            self.publish_wait(parent);
            parent.status.check_peers();
        }
    }

    /// Lets the guards of this rank, here and in the world of which these ranks are a group, send changes to the other nodes.
    pub(crate) fn exchange_now(&self) {
        if let Some(guard) = self.guard() {
            guard.exchange_now();
        }
        if let Some(parent) = self.parent.get() {
            parent.status.exchange_now();
        }
    }
}
