//! Adjusts the number of threads.

use std::mem;
use std::time::{Duration, Instant};

/// The minimum time of observation before a change.
const WATCHED: Duration = Duration::from_millis(20);
/// The fraction of its time that a consumer may wait before more threads are tried.
const WAITS: f64 = 0.1;
/// The fraction below which the consumer counts as not waiting.
const NEVER_WAITS: f64 = 0.01;
/// The fraction of the ideal speed-up that additional threads must achieve to be kept.
const WORTH: f64 = 0.2;
/// The shortest and the longest pause, in observation periods, before a rejected change is tried again.
const PAUSES: (u32, u32) = (4, 64);

/// Observes the consumer of a stage and decides how many threads work.
pub(super) struct Governor {
    active: usize,
    most: usize,
    watch: Watch,
    began: Instant,
    /// During a trial of additional threads: the number of threads before, and their elements per second.
    before: Option<(usize, f64)>,
    /// Set after threads were added: the current period is then not representative.
    is_settling: bool,
    growth: Pause,
    rest: Pause,
}

#[derive(Default)]
struct Watch {
    elements: usize,
    elapsed: Duration,
    waited: Duration,
    /// The smallest number of ready results.
    least_ready: Option<usize>,
}

impl Governor {
    pub(super) fn new(most: usize) -> Self {
        Self {
            active: 1,
            most,
            watch: Watch::default(),
            began: Instant::now(),
            before: None,
            is_settling: false,
            growth: Pause::new(),
            rest: Pause::new(),
        }
    }

    /// Records that the consumer waited this long for an element and left `ready` results. Returns the new number of threads if it changes.
    pub(super) fn observe(&mut self, waited: Duration, ready: usize) -> Option<usize> {
        let watch = &mut self.watch;
        watch.elements += 1;
        watch.waited += waited;
        watch.least_ready = Some(watch.least_ready.map_or(ready, |least| least.min(ready)));
        watch.elapsed = self.began.elapsed();
        if watch.elapsed < WATCHED || watch.elements < 2 * (self.active + 1) {
            return None;
        }
        let watch = mem::take(watch);
        self.began = Instant::now();
        let active = self.active;
        self.judge(&watch);
        (self.active != active).then_some(self.active)
    }

    fn judge(&mut self, watch: &Watch) {
        let seconds = watch.elapsed.as_secs_f64();
        let rate = watch.elements as f64 / seconds;
        if mem::take(&mut self.is_settling) {
            return;
        }
        if let Some((active, rate_before)) = self.before.take() {
            let share = (self.active - active) as f64 / active as f64;
            if rate < rate_before * (1.0 + WORTH * share) {
                self.active = active;
                self.growth.begin();
                return;
            }
        }
        let (may_grow, may_rest) = (self.growth.is_over(), self.rest.is_over());
        let waited = watch.waited.as_secs_f64() / seconds;
        let has_backlog = watch.least_ready.is_some_and(|least| least >= self.active);
        if waited > WAITS && may_grow && self.active < self.most {
            self.before = Some((self.active, rate));
            self.is_settling = true;
            // A quarter more, since the effect of a single one of many threads would be lost in the noise.
            self.active = (self.active + (self.active / 4).max(1)).min(self.most);
        } else if waited < NEVER_WAITS && has_backlog && may_rest && self.active > 1 {
            self.active -= 1;
            self.rest.begin();
        }
    }
}

/// The number of periods in which a change is not tried. It doubles each time.
struct Pause {
    next: u32,
    left: u32,
}

impl Pause {
    fn new() -> Self {
        Self { next: PAUSES.0, left: 0 }
    }

    fn begin(&mut self) {
        self.left = self.next;
        self.next = (2 * self.next).min(PAUSES.1);
    }

    /// Returns whether the pause is over; called once per period.
    fn is_over(&mut self) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a stage that produces `rate` elements per second and thread, at most `limit` in total, for a consumer that
    /// takes at most `taken` per second; returns the number of threads in each period.
    fn threads(most: usize, limit: f64, taken: f64, watches: usize) -> Vec<usize> {
        let mut governor = Governor::new(most);
        let watch = |active: usize| {
            let made = (10.0 * active as f64).min(limit);
            let rate = made.min(taken);
            let waited = Duration::from_secs_f64(10.0 * (1.0 - rate / taken));
            let least_ready = Some(if made > taken { 2 * active } else { 0 });
            Watch { elements: (10.0 * rate) as usize, elapsed: Duration::from_secs(10), waited, least_ready }
        };
        (0..watches)
            .map(|_| {
                governor.judge(&watch(governor.active));
                governor.active
            })
            .collect()
    }

    #[test]
    fn threads_are_added_as_long_as_they_help() {
        let active = threads(8, f64::INFINITY, 35.0, 1000);
        assert_eq!(active[..6], [2, 2, 3, 3, 4, 4]);
        // With four threads, results accumulate; with three, the consumer waits. The number settles at four.
        let three = active.iter().filter(|&&active| active == 3).count();
        assert!(active.iter().all(|&active| active <= 4) && three < 40, "{three} of 1000 with three threads");
    }

    #[test]
    fn threads_that_do_not_help_are_removed() {
        // A disk delivers no more than two threads use.
        let active = threads(8, 20.0, 1e3, 1000);
        let more = active.iter().filter(|&&active| active > 2).count();
        assert!(active.iter().all(|&active| active <= 3) && more < 60, "{more} of 1000 with three threads");
        assert!(active.iter().all(|&active| active >= 2));
    }

    #[test]
    fn a_large_number_of_cores_is_reached_soon() {
        let active = threads(64, f64::INFINITY, 1e9, 100);
        assert!(active[50..].iter().all(|&active| active == 64), "{active:?}");
    }

    #[test]
    fn threads_are_at_least_one_and_at_most_the_cores() {
        assert!(threads(3, f64::INFINITY, 1e9, 100)[3..].iter().all(|&active| active == 3));
        assert!(threads(8, f64::INFINITY, 1.0, 100).iter().all(|&active| active == 1));
    }
}
