//! Waits of ranks in groups, published in their world.

use std::sync::atomic::Ordering;

use unisono_collectives::Rank;

use super::super::layout::InGroup;
use super::super::ring::{now_us, seconds_between};
use super::{Parent, StatusBoard};
use crate::record::{GroupWait, Record, Stage};
use crate::system::is_stopped;

/// The interval at which a waiting rank publishes its wait.
const PUBLISH_US: u64 = 50_000;
/// The age from which a published wait counts as over.
const OVER_US: u64 = 500_000;

impl InGroup {
    pub(super) fn read(&self, now: u64) -> Option<GroupWait> {
        if now.saturating_sub(self.at.load(Ordering::Acquire)) > OVER_US {
            return None;
        }
        Some(GroupWait {
            call: self.call.get()?,
            waits_for: self.waits_for.load(Ordering::Relaxed) as Rank,
            since_s: seconds_between(self.since.load(Ordering::Relaxed), now),
        })
    }
}

impl StatusBoard {
    /// Publishes, on the board of the world, that this rank waits in a call of this group. Does so only if the rank uses both on
    /// one thread, since it then makes no call in the world before this one ends.
    pub(super) fn publish_wait(&self, Parent { status: world, ranks }: &Parent) {
        let (own, of_world, now) = (self.own(), world.own(), now_us());
        let (wait, thread) = (&of_world.in_group, own.thread.load(Ordering::Relaxed));
        // The communication thread makes the call.
        if own.in_flight.load(Ordering::Relaxed) {
            return;
        }
        if thread != of_world.thread.load(Ordering::Relaxed) {
            of_world.uses_threads.store(true, Ordering::Relaxed);
            return;
        }
        if now.saturating_sub(wait.at.load(Ordering::Relaxed)) < PUBLISH_US {
            return;
        }
        let Some(last) = own.ring.last().filter(|last| last.progress.stage() == Stage::Running) else {
            return;
        };
        let Some(other) = last.progress.waits_for.checked_sub(1) else { return };
        let record = last.record(now, |hash| self.label(hash));
        let call = format!("{record}, in a group of ranks {ranks:?}");
        if wait.call.get().is_none_or(|before| !call.starts_with(&before)) {
            wait.call.set(&call);
        }
        wait.waits_for.store(ranks[other as usize] as u32, Ordering::Relaxed);
        wait.since.store(last.began, Ordering::Relaxed);
        wait.at.store(now, Ordering::Release);
    }

    /// Returns the rank for which a late rank waits, directly or through others that wait, as far as they share this status board or their
    /// nodes have reported.
    pub(crate) fn missing_behind(&self, late: Rank) -> Rank {
        let guard = self.guard();
        let last = |rank: Rank| match self.position_of(rank) {
            Some(position) => self.doing(position).last,
            None => guard.as_ref()?.doing(rank)?.last,
        };
        let awaited = |rank: Rank| {
            let call = last(rank).filter(|call| call.stage != Stage::Done)?;
            let other = call.waits_for?;
            // A rank that is stopped is late itself. So is one whose awaited rank has sent its message: the record keeps the last awaited rank.
            let has_sent = |other: Record| {
                other.sequence > call.sequence
                    || other.sequence == call.sequence && other.stage == Stage::Done
            };
            let is_stopped = self.position_of(rank).is_some() && is_stopped(self.process_id(rank));
            (!last(other).is_some_and(has_sent) && !is_stopped).then_some(other)
        };
        let mut missing = late;
        for _ in 0..self.ranks() {
            let Some(next) = awaited(missing) else { return missing };
            missing = next;
        }
        // They wait for each other.
        late
    }
}

/// Returns a number that no other living thread of this process has.
pub(super) fn this_thread() -> u64 {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place) as u64)
}
