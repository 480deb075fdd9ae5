//! Adjusts the number of threads and of prefetched results.

use std::mem;
use std::time::{Duration, Instant};

/// The default maximum of prefetched elements.
pub(super) const MOST_READY: usize = 64;

/// How long it is watched, at least, before anything is changed.
const WATCHED: Duration = Duration::from_millis(20);
/// The share of its time that a consumer may wait before another thread is tried.
const WAITS: f64 = 0.1;
/// The share below which it does not wait.
const NEVER_WAITS: f64 = 0.01;
/// How much of the speed that further threads bring at best they must bring to be kept.
const WORTH: f64 = 0.2;
/// The shortest and the longest pause, in watches, until what was taken back is tried again.
const PAUSES: (u32, u32) = (4, 64);

/// Watches the consumer of a stage and decides how many threads work.
#[derive(Debug)]
pub(super) struct Governor {
    active: usize,
    most: usize,
    watch: Watch,
    began: Instant,
    /// As long as further threads are on trial: how many there were before, and how many elements a second.
    before: Option<(usize, f64)>,
    /// Whether threads were just added: what is seen until they have begun says nothing of them.
    is_settling: bool,
    growth: Pause,
    rest: Pause,
}

/// What was seen of the consumer for a while.
#[derive(Debug, Default)]
struct Watch {
    elements: usize,
    elapsed: Duration,
    waited: Duration,
    /// The fewest results that lay ready.
    least_ready: Option<usize>,
}

impl Governor {
    /// One thread at first, and never more than `most`.
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

    /// Takes note that the consumer waited this long for an element and left `ready` behind; now and then, says how
    /// many threads are to work.
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
        let lie_about = watch.least_ready.is_some_and(|least| least >= self.active);
        if waited > WAITS && may_grow && self.active < self.most {
            self.before = Some((self.active, rate));
            self.is_settling = true;
            // A quarter more: of many, one more would not be seen in the noise.
            self.active = (self.active + (self.active / 4).max(1)).min(self.most);
        } else if waited < NEVER_WAITS && lie_about && may_rest && self.active > 1 {
            self.active -= 1;
            self.rest.begin();
        }
    }
}

/// How many watches something is not tried for; longer every time.
#[derive(Debug)]
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

    /// Whether it is over; called once in each watch.
    fn is_over(&mut self) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_over
    }
}

/// How many results may be in work or lie ready.
#[derive(Debug)]
pub(super) struct Reserve {
    room: usize,
    may_grow: bool,
    was_full: bool,
}

impl Reserve {
    pub(super) fn fixed(room: usize) -> Self {
        Self { room, may_grow: false, was_full: false }
    }

    /// 2 at first.
    pub(super) fn growing() -> Self {
        Self { room: 2, may_grow: true, was_full: false }
    }

    pub(super) fn room(&self) -> u64 {
        self.room as u64
    }

    /// A thread found no room: the threads are ahead.
    pub(super) fn found_full(&mut self) {
        self.was_full = true;
    }

    /// The consumer found nothing ready; says whether there is more room now.
    pub(super) fn found_empty(&mut self) -> bool {
        let grows = self.may_grow && self.was_full && self.room < MOST_READY;
        if grows {
            self.room = (2 * self.room).min(MOST_READY);
        }
        self.was_full = false;
        grows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the governor watch a stage that gives `rate` elements a second and thread, as far as `limit`, to a
    /// consumer that takes at most `taken` a second; and says how many threads worked in each watch.
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
    fn it_grows_as_long_as_that_helps() {
        let active = threads(8, f64::INFINITY, 35.0, 1000);
        assert_eq!(active[..6], [2, 2, 3, 3, 4, 4]);
        // With four, results lie about; with three, the consumer waits. It settles on four.
        let three = active.iter().filter(|&&active| active == 3).count();
        assert!(active.iter().all(|&active| active <= 4) && three < 40, "{three} of 1000 with three threads");
    }

    #[test]
    fn it_takes_back_what_does_not_help() {
        // A disk gives no more than two threads take.
        let active = threads(8, 20.0, 1e3, 1000);
        let more = active.iter().filter(|&&active| active > 2).count();
        assert!(active.iter().all(|&active| active <= 3) && more < 60, "{more} of 1000 with three threads");
        assert!(active.iter().all(|&active| active >= 2));
    }

    #[test]
    fn many_cores_are_found_soon() {
        let active = threads(64, f64::INFINITY, 1e9, 100);
        assert!(active[50..].iter().all(|&active| active == 64), "{active:?}");
    }

    #[test]
    fn cores_are_the_limit_and_one_thread_the_least() {
        assert!(threads(3, f64::INFINITY, 1e9, 100)[3..].iter().all(|&active| active == 3));
        assert!(threads(8, f64::INFINITY, 1.0, 100).iter().all(|&active| active == 1));
    }

    #[test]
    fn a_reserve_grows_when_it_ran_out() {
        let mut reserve = Reserve::growing();
        assert!(!reserve.found_empty(), "the threads were never ahead");
        for expected in [4, 8, 16, 32, 64] {
            reserve.found_full();
            assert!(reserve.found_empty());
            assert_eq!(reserve.room(), expected);
            assert!(!reserve.found_empty());
        }
        reserve.found_full();
        assert!(!reserve.found_empty());
        let mut fixed = Reserve::fixed(3);
        fixed.found_full();
        assert!(!fixed.found_empty());
        assert_eq!(fixed.room(), 3);
    }
}
