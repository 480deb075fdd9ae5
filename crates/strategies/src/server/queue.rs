//! The queue of shares. It decides which worker computes which share next, and bounds the staleness of gradients. It uses neither ranks nor clocks.

use std::collections::{BTreeMap, VecDeque};

use super::settings::Staleness;

/// A share of a step: the unit of work of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ShareId {
    /// The step in the epoch, from 0.
    pub(super) step: usize,
    /// Its number in the step, from 0.
    pub(super) number: usize,
}

/// The shares of an epoch. Shares with the same number in their steps form a *series*. A worker processes the shares of its series one after the other,
/// so that their data can be prefetched. When its series has none left, it processes the next share of the series that is furthest behind. Worker numbers
/// are arbitrary.
#[derive(Debug)]
pub(super) struct Queue {
    staleness: Staleness,
    /// By series.
    next_steps: Vec<usize>,
    /// The first step that may not begin yet.
    pub(super) until: usize,
    /// The shares of lost workers.
    returned: VecDeque<ShareId>,
    in_work: BTreeMap<usize, InWork>,
    /// The number of shares of this epoch that have updated the parameters, including those of skipped steps.
    applied: usize,
}

/// A share that a worker computes.
#[derive(Debug, Clone, Copy)]
struct InWork {
    share: ShareId,
    /// The number of shares applied when it began.
    since: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new(0, Staleness::Unbounded)
    }
}

impl Queue {
    /// Creates an empty queue of steps with this many shares.
    pub(super) fn new(shares: usize, staleness: Staleness) -> Self {
        let (returned, in_work) = (VecDeque::new(), BTreeMap::new());
        Self { staleness, next_steps: vec![0; shares], until: 0, returned, in_work, applied: 0 }
    }

    /// Begins an epoch whose first `skipped` steps are complete.
    pub(super) fn begin(&mut self, skipped: usize) {
        self.next_steps.fill(skipped);
        self.until = skipped;
        self.applied = skipped * self.next_steps.len();
    }

    /// Permits no further steps to begin.
    pub(super) fn close(&mut self) {
        let furthest = self.next_steps.iter().max().copied().unwrap_or(0);
        self.until = self.until.min(furthest);
    }

    /// Returns whether all shares of the permitted steps are applied.
    pub(super) fn is_done(&self) -> bool {
        self.applied == self.until * self.next_steps.len()
    }

    /// Returns the number of completed steps of this epoch: the number of applied shares, divided by the shares of a step.
    pub(super) fn steps_made(&self) -> usize {
        self.applied / self.next_steps.len()
    }

    /// Returns the next share for this worker, which must have none and prefers this series. Returns `None` if the worker has to wait.
    pub(super) fn take(&mut self, worker: usize, series: usize) -> Option<ShareId> {
        let share = self.returned.front().copied().or_else(|| self.next(series))?;
        if !self.may_begin() {
            return None;
        }
        if self.returned.pop_front().is_none() {
            self.next_steps[share.number] += 1;
        }
        self.in_work.insert(worker, InWork { share, since: self.applied });
        Some(share)
    }

    /// Returns the next share of this series or, if it has none, of the series that is furthest behind. Only steps that may begin count.
    fn next(&self, series: usize) -> Option<ShareId> {
        // Without staleness a step begins when the previous one is complete.
        let last = match self.staleness {
            Staleness::Steps(0) => self.until.min(self.steps_made() + 1),
            _ => self.until,
        };
        let may_begin = |&series: &usize| self.next_steps.get(series).is_some_and(|&step| step < last);
        let others =
            (0..self.next_steps.len()).filter(may_begin).min_by_key(|&series| self.next_steps[series]);
        let number = Some(series).filter(may_begin).or(others)?;
        Some(ShareId { step: self.next_steps[number], number })
    }

    /// Returns whether another share may begin without a gradient exceeding its staleness bound. In the worst case, all other shares in work are
    /// applied before it, and it is applied before each of them.
    fn may_begin(&self) -> bool {
        let others = self.in_work.len();
        match self.staleness {
            Staleness::Steps(0) | Staleness::Unbounded => true,
            Staleness::Steps(steps) => {
                let most = usize::try_from(steps).unwrap_or(usize::MAX).saturating_mul(self.next_steps.len());
                let suits = |work: &InWork| self.applied + others <= work.since.saturating_add(most);
                others <= most && self.in_work.values().all(suits)
            }
        }
    }

    /// Records that the share of this worker is applied, and returns the share; `None` if it has none.
    pub(super) fn done(&mut self, worker: usize) -> Option<ShareId> {
        let InWork { share, .. } = self.in_work.remove(&worker)?;
        self.applied += 1;
        Some(share)
    }

    pub(super) fn lost(&mut self, worker: usize) {
        if let Some(InWork { share, .. }) = self.in_work.remove(&worker) {
            self.returned.push_back(share);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Runs an epoch of 40 steps with workers of random speeds, which lose one share in ten. Returns the maximum staleness of a gradient, in steps.
    fn run(seed: u64, shares: usize, workers: usize, staleness: Staleness) -> u64 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut queue = Queue::new(shares, staleness);
        queue.begin(3);
        queue.until = 40;
        let mut applied = BTreeSet::new();
        let mut since = BTreeMap::new();
        let (mut updates, mut most) = (0_u64, 0);
        while !queue.is_done() {
            let idle: Vec<_> = (0..workers).filter(|worker| !since.contains_key(worker)).collect();
            let mut began = false;
            for worker in idle {
                if queue.take(worker, worker).is_some() {
                    since.insert(worker, updates);
                    began = true;
                }
            }
            assert!(began || !since.is_empty(), "everybody waits");
            // A worker with a higher number is slower.
            let working: Vec<_> = since.keys().copied().collect();
            let worker =
                working[random.random_range(0..working.len()).min(random.random_range(0..working.len()))];
            let began = since.remove(&worker).unwrap();
            if random.random_range(0..10) == 0 {
                queue.lost(worker);
                continue;
            }
            let share = queue.done(worker).unwrap();
            assert!(share.step >= 3 && share.step < 40 && share.number < shares);
            assert!(applied.insert(share), "{share:?} was applied twice");
            most = most.max(updates - began);
            updates += 1;
        }
        assert_eq!(applied.len(), 37 * shares);
        most.div_ceil(shares as u64)
    }

    #[test]
    fn every_share_is_applied_once_within_its_staleness_bound() {
        for seed in 0..50 {
            for (shares, workers) in [(1, 1), (4, 4), (3, 5), (4, 1)] {
                for bound in [1, 2, 8] {
                    let most = run(seed, shares, workers, Staleness::Steps(bound));
                    assert!(most <= bound, "seed {seed}, {workers} workers: {most} steps, of {bound}");
                }
                run(seed, shares, workers, Staleness::Unbounded);
            }
        }
        assert!((0..50).any(|seed| run(seed, 4, 4, Staleness::Unbounded) > 2), "the bounds bind");
    }

    #[test]
    fn without_staleness_a_step_begins_after_the_previous_one() {
        let mut queue = Queue::new(2, Staleness::Steps(0));
        queue.begin(0);
        queue.until = 2;
        let first = [queue.take(0, 0), queue.take(1, 1)].map(Option::unwrap);
        assert_eq!(first.map(|share| (share.step, share.number)), [(0, 0), (0, 1)]);
        queue.done(0);
        assert_eq!(queue.take(0, 0), None, "a share of the first step is not applied");
        queue.lost(1);
        assert_eq!(queue.take(0, 0), Some(first[1]));
        queue.done(0);
        assert_eq!(queue.take(0, 0).unwrap().step, 1);
    }

    #[test]
    fn worker_finishes_its_series_then_helps_the_slowest() {
        let mut queue = Queue::new(3, Staleness::Unbounded);
        queue.begin(0);
        queue.until = 4;
        let take = |queue: &mut Queue, worker: usize| {
            let share = queue.take(worker, worker).unwrap();
            queue.done(worker).unwrap();
            (share.step, share.number)
        };
        assert_eq!((0..4).map(|_| take(&mut queue, 1)).collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(take(&mut queue, 0), (0, 0));
        assert_eq!([take(&mut queue, 1), take(&mut queue, 1)], [(0, 2), (1, 0)]);
        // A worker that has joined with a number beyond the series.
        assert_eq!(take(&mut queue, 7), (1, 2));
        assert_eq!((queue.steps_made(), queue.is_done()), (2, false));
    }

    #[test]
    fn closed_queue_completes_the_steps_that_have_begun() {
        let mut queue = Queue::new(2, Staleness::Unbounded);
        queue.begin(0);
        queue.until = 9;
        for _ in 0..2 {
            queue.take(0, 0).unwrap();
            queue.done(0).unwrap();
        }
        queue.close();
        assert_eq!(queue.until, 2);
        let rest: Vec<_> = (0..2).map(|worker| queue.take(worker, worker).unwrap()).collect();
        assert!(rest.iter().all(|share| share.number == 1), "{rest:?}");
        assert_eq!(queue.take(2, 0), None);
        queue.done(0).unwrap();
        assert!(!queue.is_done());
        queue.done(1).unwrap();
        assert!(queue.is_done());
    }
}
