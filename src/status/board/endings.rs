//! How ranks end, as far as a status board knows: who has failed, who has left, and whose process is dead.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use unisono_collectives::Rank;

use super::super::failure::Guard;
use super::{Parent, StatusBoard};

/// How a rank of the world has ended; 0 while it has not.
const LEFT: u8 = 1;
const DIED: u8 = 2;

impl StatusBoard {
    /// Records that a rank of the world has failed, and why. Only the first failure is kept; returns whether this was the first.
    pub(crate) fn fail(&self, by: Rank, cause: &str) -> bool {
        let head = self.sheet.head();
        let first =
            head.failed.compare_exchange(0, by as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if first {
            head.cause.set(cause);
        }
        first
    }

    /// The rank that failed first and its cause, if one did, here or in the world of which these ranks are a group.
    pub(crate) fn failed(&self) -> Option<(Rank, String)> {
        let head = self.sheet.head();
        match head.failed.load(Ordering::Acquire).checked_sub(1) {
            Some(by) => Some((by as Rank, head.cause.get().or_else(|| self.lost_cause())?)),
            None => {
                let Parent { status, ranks } = self.parent.get()?;
                let (by, cause) = status.failed()?;
                ranks.iter().position(|&rank| rank == by).map(|by| (by, cause))
            }
        }
    }

    /// The cause of a failure whose reporter has not written one: it writes it now, unless it was killed before it could.
    fn lost_cause(&self) -> Option<String> {
        let may_be_dead = self.members.iter().any(|&rank| self.has_died(rank));
        may_be_dead
            .then(|| "the process that reported it was killed before it could report the cause".to_owned())
    }

    /// Records that this process was told to end.
    pub(crate) fn tell_to_end(&self) {
        self.sheet.head().told_to_end.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all processes of this status board were told to end.
    pub(crate) fn all_are_told_to_end(&self) -> bool {
        self.sheet.head().told_to_end.load(Ordering::Acquire) as usize == self.members.len()
    }

    /// Records that a rank of the world has left: it sends no more.
    pub(crate) fn leave(&self, rank: Rank) {
        if let Some(position) = self.position_of(rank) {
            self.sheet.row(position).since.store(self.tick(), Ordering::Relaxed);
        }
        self.sheet.ended(rank).store(LEFT, Ordering::Release);
    }

    /// Whether a rank of the world is known to have left.
    pub(crate) fn has_left(&self, rank: Rank) -> bool {
        self.sheet.ended(rank).load(Ordering::Acquire) == LEFT
    }

    /// Records that the process of a rank of the world has ended without leaving.
    pub(crate) fn die(&self, rank: Rank) {
        self.sheet.ended(rank).store(DIED, Ordering::Release);
    }

    /// Whether the process of a rank is known to have ended without leaving: it accesses no memory any more.
    pub(crate) fn has_died(&self, rank: Rank) -> bool {
        let in_world =
            || self.parent.get().is_some_and(|Parent { status, ranks }| status.has_died(ranks[rank]));
        self.sheet.ended(rank).load(Ordering::Acquire) == DIED || in_world()
    }

    /// Sets, once, who watches over this rank.
    pub(crate) fn set_guard(&self, guard: &Arc<dyn Guard>) {
        let _ = self.guard.set(Arc::downgrade(guard));
    }

    /// A rank that waits calls it now and then, so that whoever watches over it can look at the others.
    #[cold]
    pub(crate) fn look(&self) {
        if let Some(guard) = self.guard.get().and_then(Weak::upgrade) {
            guard.look();
        }
    }
}
