//! Waiting for another rank: spin, yield, sleep.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use super::{Failure, clock, driving};
use crate::error::Error;
use crate::status::{FirstFailure, StatusBoard};
use crate::while_waiting;

/// Polls between clock readings: reading the clock costs as much as polling.
const LOOKS_BETWEEN_CLOCKS: u32 = 256;
/// After this time a rank sleeps between polls: the message is not merely in transit.
pub(super) const AWAKE: Duration = Duration::from_millis(200);
const NAP: Duration = Duration::from_micros(50);
/// Polls before sleeping in a wait known to be long.
const LOOKS_AWAKE: u32 = 50;
/// Yields before a nap that the awaited event ends: other ranks that share the core may have something to do first.
const YIELDS_BEFORE_NAPS: u32 = 4;
/// Longer than a message takes that a rank sent before it left: news of that may be faster than the message.
pub(super) const IN_FLIGHT_GRACE: Duration = Duration::from_secs(3);
/// Polls before yielding, for a rank with its own core; the first ones without a pause, which would delay a message about to arrive.
const SPINS: u32 = 2000;
const EAGER_SPINS: u32 = 200;

/// The longest time that another rank may be silent while this one waits for it. Data that arrive, or that the other end
/// accepts, renew the deadline, however long a message takes as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    pub(crate) timeout: Duration,
    /// The timeout while a rank of the world is in a quiet section.
    pub(crate) quiet: Duration,
}

/// The outcome of a poll.
#[derive(Debug)]
pub(super) enum Poll<R> {
    Done(R),
    /// Something happened, and more may happen at once.
    Progress,
    /// No progress is possible before this rank acts.
    WaitsFor(Rank),
}

/// The outcome of a check during a wait.
#[derive(Debug)]
pub(super) enum PeerState {
    Nothing,
    /// The other rank will not arrive. Messages that it sent before still count.
    Gone(Failure),
}

/// The reason why a wait ends without success.
#[derive(Debug)]
pub(crate) enum WaitFailure {
    /// The other rank was silent until the deadline; for how long.
    Overdue(Duration),
    /// A rank has failed.
    Failed(Error),
}

/// Sleeps until the awaited event may have happened, but for a short time at most: who waits also looks for failures.
pub(super) struct Nap<'a>(pub(super) &'a dyn Fn());

impl fmt::Debug for Nap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nap")
    }
}

/// The pauses between polls of something that another rank changes: spins, then yields, then sleeps.
///
/// A yield hands the core to another rank in about a microsecond, where spinning would use up the time slice.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    looks: u32,
    spins: u32,
    times: Option<Times>,
    /// Whether there was progress since the clock was read.
    moved: bool,
    patient: bool,
    /// The number of polls after which a rank sleeps between them.
    looks_awake: u32,
    /// The way to sleep, if the awaited event can wake it up.
    nap: Option<Nap<'a>>,
    heeds_failures: bool,
    deadlines: &'a Deadlines,
    status: &'a StatusBoard,
}

/// The times of a wait long enough to read the clock.
#[derive(Debug, Clone, Copy)]
struct Times {
    started: Instant,
    silence: Silence,
    /// The length of the wait at the last two checks.
    waited: Duration,
    before: Duration,
}

/// The silence of another rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// When there was progress last.
    moved: Instant,
    /// The time of the latest progress, or when a rank was last in a quiet section: the awaited event may have
    /// become possible only then.
    resumed: Instant,
}

impl Silence {
    pub(super) fn since(now: Instant) -> Self {
        Self { moved: now, resumed: now }
    }

    /// Returns its length. `is_quiet` is whether a rank is in a quiet section.
    pub(super) fn lasts(&mut self, now: Instant, is_quiet: bool) -> Duration {
        if is_quiet {
            self.resumed = now;
        }
        now - self.moved
    }

    /// Returns whether it is longer than the deadlines allow.
    pub(super) fn is_over(&self, now: Instant, Deadlines { timeout, quiet }: Deadlines) -> bool {
        now - self.resumed > timeout || now - self.moved > timeout.max(quiet)
    }
}

impl Deadlines {
    /// No deadline.
    pub(crate) const NEVER: Self = Self { timeout: Duration::MAX, quiet: Duration::MAX };
}

impl<'a> Waiting<'a> {
    /// Returns a wait with `spins` polls before it yields.
    pub(crate) fn new(spins: u32, deadlines: &'a Deadlines, status: &'a StatusBoard) -> Self {
        Self {
            looks: 0,
            spins,
            times: None,
            moved: false,
            patient: false,
            looks_awake: u32::MAX,
            nap: None,
            heeds_failures: true,
            deadlines,
            status,
        }
    }

    /// Makes the wait sleep early, for events that take a while, such as a large message between nodes. That frees the core for
    /// others and for the kernel that moves the bytes; and on an oversubscribed core, a thread that yields is last in the queue,
    /// while one that wakes up is first.
    pub(super) fn for_long(self) -> Self {
        Self { looks_awake: LOOKS_AWAKE, spins: self.spins.min(LOOKS_AWAKE), ..self }
    }

    /// Makes the wait sleep by such naps, once it has spun and yielded: that frees the core, and costs no more than a wake-up.
    pub(super) fn napping(self, nap: Nap<'a>) -> Self {
        let spins = self.spins.min(EAGER_SPINS);
        Self { spins, looks_awake: spins + YIELDS_BEFORE_NAPS, nap: Some(nap), ..self }
    }

    /// Pauses briefly; returns true when it is time to check whether something is wrong.
    #[inline]
    pub(crate) fn pause(&mut self) -> Result<bool, WaitFailure> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks < self.spins {
            if self.looks > EAGER_SPINS {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        self.give_way()
    }

    /// Like [`pause`](Self::pause), in a wait for a rank, which is recorded once it is longer than a message
    /// takes.
    #[inline]
    pub(crate) fn pause_for(&mut self, other: Rank) -> Result<bool, Failure> {
        match self.pause() {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.record(other);
                Ok(true)
            }
            Err(WaitFailure::Overdue(waited)) => Err(Failure::Timeout { other, waited }),
            Err(WaitFailure::Failed(error)) => Err(Failure::Error(error)),
        }
    }

    /// Notes that there was progress: the wait is no longer a long one.
    pub(crate) fn renew(&mut self) {
        self.moved = true;
    }

    /// Pauses briefly, as [`Waiting::pause`], in a wait without a deadline.
    ///
    /// # Errors
    /// The failure of a rank.
    pub(crate) fn pause_without_deadline(&mut self) -> Result<bool, Error> {
        self.pause().map_err(|hopeless| match hopeless {
            WaitFailure::Failed(error) => error,
            WaitFailure::Overdue(waited) => unreachable!("the wait of {waited:?} has no deadline"),
        })
    }

    /// Records the rank that this one waits for, after a pause that has read the clock.
    pub(super) fn record(&self, other: Rank) {
        let more = self.times.map_or(Duration::ZERO, |times| times.waited - times.before);
        self.status.waits_for(other, more);
    }

    /// Makes the wait of a thread that drives what others wait for sleep early.
    pub(crate) fn in_background(self) -> Self {
        self.napping(Nap(&|| clock::sleep(NAP)))
    }

    /// Makes the wait go on after failures: for what survivors do.
    pub(crate) fn after_failure(self) -> Self {
        Self { heeds_failures: false, ..self }
    }

    /// Polls until done. In between it pauses, and periodically checks the rank that it waits for (`look_around`).
    ///
    /// Before the wait fails, it polls once more: what the rank did before it left counts; and at the deadline, this rank may have
    /// been descheduled itself, and what it waits for, or the reason why it does not come, may be here.
    #[inline]
    pub(super) fn until<R>(
        mut self,
        mut poll: impl FnMut() -> Result<Poll<R>, Failure>,
        mut look_around: impl FnMut(Rank, &Self) -> Result<PeerState, Failure>,
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
            let paused = self.pause_for(other);
            if matches!(paused, Ok(false)) {
                continue;
            }
            if let Some(failure) = self.check(other, paused, &mut look_around)? {
                match poll()? {
                    Poll::Done(result) => return Ok(result),
                    Poll::Progress => self.moved = true,
                    Poll::WaitsFor(_) => return Err(failure),
                }
            }
        }
    }

    /// Checks the rank that is waited for. Returns why the wait fails, unless one more poll sees something.
    #[cold]
    fn check(
        &self,
        other: Rank,
        paused: Result<bool, Failure>,
        look_around: &mut impl FnMut(Rank, &Self) -> Result<PeerState, Failure>,
    ) -> Result<Option<Failure>, Failure> {
        match paused {
            Ok(_) => Ok(match look_around(other, self)? {
                PeerState::Nothing => None,
                PeerState::Gone(failure) => Some(failure),
            }),
            Err(late @ Failure::Timeout { .. }) => {
                look_around(other, self)?;
                Ok(Some(late))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns whether the other rank has been silent for much longer than a message takes.
    pub(super) fn is_long(&self) -> bool {
        self.patient
    }

    /// Returns the time that the other rank has been silent, at the last look at the clock.
    pub(super) fn silence(&self) -> Duration {
        self.times.map_or(Duration::ZERO, |times| times.started + times.waited - times.silence.moved)
    }

    #[cold]
    fn give_way(&mut self) -> Result<bool, WaitFailure> {
        let sleeps = self.patient || self.looks > self.looks_awake;
        if !sleeps {
            clock::yield_now();
        }
        if !sleeps && !self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS) {
            return Ok(false);
        }
        let now = clock::now();
        let nothing = Duration::ZERO;
        let began = Times { started: now, silence: Silence::since(now), waited: nothing, before: nothing };
        let times = self.times.get_or_insert(began);
        times.before = times.waited;
        times.waited = now - times.started;
        if std::mem::take(&mut self.moved) {
            times.silence = Silence::since(now);
        }
        let silent = times.silence.lasts(now, self.status.is_quiet());
        let is_over = times.silence.is_over(now, *self.deadlines);
        self.patient = silent > AWAKE;
        match &self.nap {
            Some(nap) if sleeps => nap.0(),
            None if sleeps => clock::sleep(NAP),
            _ => {}
        }
        if self.patient {
            self.status.check_peers();
        }
        let failure = self.status.failure().filter(|_| self.heeds_failures);
        if let Some(FirstFailure { first: by, cause, .. }) = failure {
            return Err(WaitFailure::Failed(Error::Aborted { rank: self.status.rank(), by, cause }));
        }
        driving::drive();
        while_waiting::run().map_err(|cause| {
            let rank = self.status.rank();
            WaitFailure::Failed(Error::Aborted { rank, by: rank, cause })
        })?;
        if is_over { Err(WaitFailure::Overdue(silent)) } else { Ok(true) }
    }
}

/// Returns the polls before yielding: none if ranks outnumber cores.
pub(super) fn spins(ranks: usize, cores: usize) -> u32 {
    if ranks > cores { 0 } else { SPINS }
}

/// Returns the number of cores that this process may use.
pub(super) fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
