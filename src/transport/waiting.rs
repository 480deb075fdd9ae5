//! Waiting for another rank: spin, yield, sleep.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use super::{Failure, clock};
use crate::error::Error;
use crate::status::{FirstFailure, StatusBoard};
use crate::while_waiting::{self, NAP, nap_after};

/// Polls between clock readings, since reading the clock costs as much as polling.
const POLLS_BETWEEN_CLOCK_READS: u32 = 256;
/// After this time a rank sleeps between polls, since the message is not merely in transit.
pub(super) const AWAKE: Duration = Duration::from_millis(200);
/// Polls before sleeping in a wait known to be long.
const POLLS_AWAKE: u32 = 50;
/// Yields before a sleep that the awaited event ends, since other ranks that share the core may have work.
const YIELDS_BEFORE_NAPS: u32 = 4;
/// Longer than the transit of a message. The notice that a rank has left may overtake its last message.
pub(super) const IN_FLIGHT_GRACE: Duration = Duration::from_secs(3);
/// The longest time between readings of the clock. After a longer one, this process did not run meanwhile: it was suspended.
const LONGEST_GAP: Duration = Duration::from_secs(2);
/// The number of polls before yielding, for a rank with its own core.
const SPINS: u32 = 2000;
/// The number of first polls without a pause, which would delay a message that is about to arrive.
const EAGER_SPINS: u32 = 200;

/// A function that waiting threads call, such as MPI's progress. Waits themselves do not depend on MPI.
pub(super) static DRIVE: OnceLock<fn()> = OnceLock::new();

/// The longest time that another rank may be silent while this one waits for it. Data that arrive, or that the other end accepts, renew the
/// deadline, so a whole message may take longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    pub(crate) timeout: Duration,
    /// The timeout while a rank of the world is in a quiet section.
    pub(crate) quiet: Duration,
}

#[derive(Debug)]
pub(crate) enum Poll<R> {
    Done(R),
    /// There was progress, and more may be possible at once.
    Progress,
    /// No progress is possible before this rank acts.
    WaitsFor(Rank),
}

/// The reason why a wait ends without success.
#[derive(Debug)]
pub(crate) enum WaitFailure {
    /// The other rank was silent for this long, beyond the deadline.
    Overdue(Duration),
    /// A rank has failed.
    Failed(Error),
}

/// The pauses between polls of something that another rank changes: spins, then yields, then sleeps.
///
/// A yield switches to another rank in about a microsecond, where spinning would use up the time slice.
pub(crate) struct Waiting<'a> {
    pub(super) polls: u32,
    spins: u32,
    times: Option<Times>,
    /// Whether there was progress since the clock was read.
    moved: bool,
    /// The number of polls after which a rank sleeps between them.
    polls_awake: u32,
    longest_nap: Duration,
    /// The function by which to sleep, if the awaited event can end the sleep.
    nap: Option<&'a dyn Fn()>,
    checks_failures: bool,
    /// Whether the wait is recorded as one of the current call.
    records: bool,
    deadlines: &'a Deadlines,
    status: &'a StatusBoard,
}

/// The times of a wait long enough to read the clock.
#[derive(Debug, Clone, Copy)]
struct Times {
    silence: Silence,
    /// The time of the reading of the clock before the latest one.
    before: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// The time of the latest progress.
    moved: Instant,
    /// The time of the latest progress, or when a rank was last in a quiet section, if that is later. The awaited event may have become possible only
    /// then.
    resumed: Instant,
    /// The time of the latest reading of the clock.
    read: Instant,
}

impl Silence {
    pub(super) fn since(now: Instant) -> Self {
        Self { moved: now, resumed: now, read: now }
    }

    /// Returns the length of the silence. `is_quiet` is whether a rank is in a quiet section.
    pub(super) fn lasts(&mut self, now: Instant, is_quiet: bool) -> Duration {
        // While this process did not run, the other ranks were not silent.
        let gap = now.saturating_duration_since(self.read).saturating_sub(LONGEST_GAP);
        (self.moved, self.resumed, self.read) = (self.moved + gap, self.resumed + gap, now);
        if is_quiet {
            self.resumed = now;
        }
        now - self.moved
    }

    /// Returns whether the silence is longer than the deadlines allow.
    pub(super) fn is_over(&self, now: Instant, Deadlines { timeout, quiet }: Deadlines) -> bool {
        now - self.resumed > timeout || now - self.moved > timeout.max(quiet)
    }
}

impl Deadlines {
    pub(crate) const NEVER: Self = Self { timeout: Duration::MAX, quiet: Duration::MAX };
}

impl<'a> Waiting<'a> {
    /// Returns a wait with `spins` polls before it yields.
    pub(crate) fn new(spins: u32, deadlines: &'a Deadlines, status: &'a StatusBoard) -> Self {
        Self {
            polls: 0,
            spins,
            times: None,
            moved: false,
            polls_awake: u32::MAX,
            longest_nap: Duration::MAX,
            nap: None,
            checks_failures: true,
            records: true,
            deadlines,
            status,
        }
    }

    /// Makes the wait continue one that has lasted this long, with its pauses, and sleep at most for `nap`.
    pub(super) fn after(mut self, waited: Duration, nap: Duration) -> Self {
        self.longest_nap = nap;
        if !waited.is_zero() {
            let read = clock::now();
            let silence = Silence { read, ..Silence::since(read - waited) };
            self.times = Some(Times { silence, before: read });
        }
        if self.is_long() { Self { spins: 0, ..self } } else { self }
    }

    /// Makes the wait sleep early, for events that take a while, such as a large message between nodes. That frees the core for other threads and for
    /// the kernel, which moves the bytes. On an oversubscribed core, a thread that yields is last in the queue, while one that wakes up is first.
    pub(super) fn for_long(self) -> Self {
        Self { polls_awake: POLLS_AWAKE, spins: self.spins.min(POLLS_AWAKE), ..self }
    }

    /// Makes the wait sleep by `nap` once it has spun and yielded. That frees the core, and costs no more than a wake-up. `nap` sleeps until the
    /// awaited event may have happened, but only for a short time, since a waiting rank also checks for failures.
    pub(super) fn napping(self, nap: &'a dyn Fn()) -> Self {
        let spins = self.spins.min(EAGER_SPINS);
        Self { spins, polls_awake: spins + YIELDS_BEFORE_NAPS, nap: Some(nap), ..self }
    }

    /// Pauses briefly. Returns true when it is time to check for failures.
    #[inline]
    pub(crate) fn pause(&mut self) -> Result<bool, WaitFailure> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls < self.spins {
            if self.polls > EAGER_SPINS {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        self.yield_or_sleep()
    }

    /// Records progress, after which the wait is no longer a long one.
    pub(crate) fn renew(&mut self) {
        self.moved = true;
    }

    /// Keeps the wait out of the flight recorder, whose current call may be one of another thread.
    pub(crate) fn unrecorded(self) -> Self {
        Self { records: false, ..self }
    }

    /// Records the awaited rank, after a pause that has read the clock.
    pub(super) fn record(&self, other: Rank) {
        if !self.records {
            return;
        }
        let more = self.times.map_or(Duration::ZERO, |times| times.silence.read - times.before);
        self.status.waits_for(other, more);
    }

    /// Makes the wait sleep early, for a thread that drives messages in the background.
    pub(crate) fn in_background(self) -> Self {
        self.napping(&|| clock::sleep(NAP))
    }

    /// Makes the wait continue after failures, for the survivors.
    pub(crate) fn after_failure(self) -> Self {
        Self { checks_failures: false, ..self }
    }

    /// Polls until done. Between polls it pauses, and periodically records the awaited rank and calls `check_peer`, which returns the failure if that
    /// rank will not arrive.
    ///
    /// Before the wait fails, it polls once more. A message that the rank sent before it left remains valid. At the deadline, this rank may
    /// itself have been descheduled, and the message or the reason for its absence may have arrived.
    #[inline]
    pub(crate) fn until<R>(
        mut self,
        mut poll: impl FnMut() -> Result<Poll<R>, Failure>,
        mut check_peer: impl FnMut(Rank, &Self) -> Result<(), Failure>,
    ) -> Result<R, Failure> {
        loop {
            let other = match poll()? {
                Poll::Done(result) => return Ok(result),
                Poll::Progress => {
                    self.moved = true;
                    continue;
                }
                Poll::WaitsFor(other) => other,
            };
            let checked = match self.pause() {
                Ok(false) => continue,
                Ok(true) => {
                    self.record(other);
                    check_peer(other, &self)
                }
                Err(WaitFailure::Overdue(waited)) => {
                    check_peer(other, &self).and(Err(Failure::Timeout { other, waited }))
                }
                Err(WaitFailure::Failed(error)) => return Err(Failure::Error(error)),
            };
            if let Err(failure) = checked {
                match poll()? {
                    Poll::Done(result) => return Ok(result),
                    Poll::Progress => self.moved = true,
                    Poll::WaitsFor(_) => return Err(failure),
                }
            }
        }
    }

    /// Waits until rank `other` has increased a counter in shared memory to a value. `disagreement` returns the reason if that rank never will,
    /// since it makes another call; a long wait calls it.
    pub(crate) fn until_counter(
        self,
        other: Rank,
        (counter, value): (&AtomicU64, u64),
        disagreement: impl Fn() -> Option<Failure>,
    ) -> Result<(), Failure> {
        let is_reached = || counter.load(Ordering::Acquire) >= value;
        let poll = || Ok(if is_reached() { Poll::Done(()) } else { Poll::WaitsFor(other) });
        self.until(poll, |other, waiting| {
            let disagrees = || if waiting.is_long() { disagreement() } else { None };
            Failure::left(other, waiting.status).or_else(disagrees).map_or(Ok(()), Err)
        })
    }

    /// Returns whether the other rank has been silent for much longer than a message takes.
    pub(super) fn is_long(&self) -> bool {
        self.silence() > AWAKE
    }

    /// Returns the time that the other rank has been silent, at the last reading of the clock.
    pub(super) fn silence(&self) -> Duration {
        self.times.map_or(Duration::ZERO, |Times { silence, .. }| silence.read - silence.moved)
    }

    #[cold]
    fn yield_or_sleep(&mut self) -> Result<bool, WaitFailure> {
        let sleeps = self.is_long() || self.polls > self.polls_awake;
        if !sleeps {
            clock::yield_now();
        }
        if !sleeps && !self.polls.is_multiple_of(POLLS_BETWEEN_CLOCK_READS) {
            return Ok(false);
        }
        let now = clock::now();
        let times = self.times.get_or_insert(Times { silence: Silence::since(now), before: now });
        times.before = times.silence.read;
        if std::mem::take(&mut self.moved) {
            times.silence = Silence::since(now);
        }
        let silent = times.silence.lasts(now, self.status.is_quiet());
        let is_over = times.silence.is_over(now, *self.deadlines);
        match &self.nap {
            Some(nap) if sleeps => nap(),
            // MPI's messages progress only between naps.
            None if sleeps && DRIVE.get().is_some() => clock::sleep(NAP.min(self.longest_nap)),
            None if sleeps => clock::sleep(nap_after(silent).min(self.longest_nap)),
            _ => {}
        }
        if self.is_long() {
            self.status.check_peers();
        }
        let failure = self.status.failure().filter(|_| self.checks_failures);
        if let Some(FirstFailure { first: by, cause, .. }) = failure {
            return Err(WaitFailure::Failed(Error::Aborted { rank: self.status.rank(), by, cause }));
        }
        if let Some(drive) = DRIVE.get() {
            drive();
        }
        while_waiting::run().map_err(|cause| {
            let rank = self.status.rank();
            WaitFailure::Failed(Error::Aborted { rank, by: rank, cause })
        })?;
        if is_over { Err(WaitFailure::Overdue(silent)) } else { Ok(true) }
    }
}

/// Returns the number of polls before yielding: none if ranks outnumber cores.
pub(super) fn spins(ranks: usize, cores: usize) -> u32 {
    if ranks > cores { 0 } else { SPINS }
}

/// Returns the number of cores that this process may use.
pub(super) fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
