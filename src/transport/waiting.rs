//! Waiting for another rank.

use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Failure;
use crate::error::Error;
use crate::status::StatusBoard;

/// How often the clock is read: a look at it costs as much as a look at a message's place.
const LOOKS_BETWEEN_CLOCKS: u32 = 256;
/// After so long a rank sleeps between looks: it is not a message in flight that it waits for.
const AWAKE: Duration = Duration::from_millis(200);
const NAP: Duration = Duration::from_micros(50);
/// How often it looks before that, where it is known that it takes a while.
#[cfg(feature = "mpi")]
const LOOKS_AWAKE: u32 = 50;
/// How often a rank looks before it gives way, if it has a core of its own; and how often at first without
/// any pause, which would make it late by half a pause for a message that is about to come.
const SPINS: u32 = 2000;
const EAGER_SPINS: u32 = 200;

/// How long a rank waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadlines {
    pub(crate) timeout: Duration,
    /// The same while a rank of the world is in a section that may take long.
    pub(crate) quiet: Duration,
}

/// Why a rank waits no longer.
#[derive(Debug)]
pub(crate) enum Hopeless {
    /// It has waited for so long, which is more than its deadline allows.
    Overdue(Duration),
    /// A rank has failed.
    Failed(Error),
}

/// Waits between two looks at something that another rank will change: spins, then yields, then sleeps.
///
/// A yield hands over to a rank on the same core in about a microsecond, where spinning would use up its
/// time slice.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    looks: u32,
    spins: u32,
    times: Option<Times>,
    patient: bool,
    /// After so many looks a rank sleeps between them.
    looks_awake: u32,
    deadlines: &'a Deadlines,
    status: &'a StatusBoard,
}

/// A wait, once it is long enough for a look at the clock.
#[derive(Debug, Clone, Copy)]
struct Times {
    started: Instant,
    /// When a rank was last seen in a section that may take long: what is waited for may have begun only then.
    resumed: Instant,
    /// How long the wait was at the last look, and at the one before.
    waited: Duration,
    before: Duration,
}

impl<'a> Waiting<'a> {
    /// `spins` looks without giving way.
    pub(crate) fn new(spins: u32, deadlines: &'a Deadlines, status: &'a StatusBoard) -> Self {
        Self { looks: 0, spins, times: None, patient: false, looks_awake: u32::MAX, deadlines, status }
    }

    /// A wait for something that takes a while, such as a large message between nodes: it soon sleeps between looks. Others that
    /// want the core, and the kernel that moves the bytes, then get it; and where a core is wanted by many, one who yields is last in the
    /// queue, and one who wakes is first.
    #[cfg(feature = "mpi")]
    pub(super) fn for_long(self) -> Self {
        Self { looks_awake: LOOKS_AWAKE, spins: self.spins.min(LOOKS_AWAKE), ..self }
    }

    /// Lets a moment pass; from time to time it says that it is time to look whether something is wrong.
    #[inline]
    pub(crate) fn pause(&mut self) -> Result<bool, Hopeless> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks < self.spins {
            if self.looks > EAGER_SPINS {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        self.give_way()
    }

    /// The same in a wait for a rank, which is written down once it is longer than a message takes.
    #[inline]
    pub(super) fn pause_for(&mut self, other: Rank) -> Result<bool, Failure> {
        match self.pause() {
            Ok(false) => Ok(false),
            Ok(true) => {
                let more = self.times.map_or(Duration::ZERO, |times| times.waited - times.before);
                self.status.waits_for(other, more);
                Ok(true)
            }
            Err(Hopeless::Overdue(waited)) => Err(Failure::Timeout { other, waited }),
            Err(Hopeless::Failed(error)) => Err(Failure::Error(error)),
        }
    }

    /// Whether the wait is already much longer than a message takes.
    pub(super) fn is_long(&self) -> bool {
        self.patient
    }

    #[cold]
    fn give_way(&mut self) -> Result<bool, Hopeless> {
        let sleeps = self.patient || self.looks > self.looks_awake;
        if !sleeps {
            std::thread::yield_now();
        }
        if !sleeps && !self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS) {
            return Ok(false);
        }
        let now = Instant::now();
        let nothing = Duration::ZERO;
        let times =
            self.times.get_or_insert(Times { started: now, resumed: now, waited: nothing, before: nothing });
        times.before = times.waited;
        times.waited = now - times.started;
        if self.status.is_quiet() {
            times.resumed = now;
        }
        self.patient = times.waited > AWAKE;
        if sleeps {
            std::thread::sleep(NAP);
        }
        if let Some((by, cause)) = self.status.failed() {
            return Err(Hopeless::Failed(Error::Aborted { rank: self.status.rank(), by, cause }));
        }
        let Deadlines { timeout, quiet } = *self.deadlines;
        let is_over = now - times.resumed > timeout || times.waited > timeout.max(quiet);
        if is_over { Err(Hopeless::Overdue(times.waited)) } else { Ok(true) }
    }
}

/// How long to spin before yielding: not at all where ranks outnumber the cores.
pub(super) fn spins(ranks: usize, cores: usize) -> u32 {
    if ranks > cores { 0 } else { SPINS }
}

/// How many cores this process may use.
pub(super) fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a wait takes in which nothing happens but what `on_look` does.
    fn waited(deadlines: Deadlines, status: &StatusBoard, mut on_look: impl FnMut(Duration)) -> Duration {
        let started = Instant::now();
        let mut waiting = Waiting::new(10, &deadlines, status);
        loop {
            on_look(started.elapsed());
            match waiting.pause() {
                Ok(_) => {}
                Err(Hopeless::Overdue(waited)) => {
                    assert!(started.elapsed() >= waited);
                    return waited;
                }
                Err(Hopeless::Failed(error)) => panic!("{error}"),
            }
        }
    }

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_millis(300);

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let status = StatusBoard::of_one();
        let waited = waited(Deadlines { timeout: SHORT, quiet: LONG }, &status, |_| {});
        assert!(waited > SHORT);
    }

    #[test]
    fn a_quiet_section_has_a_deadline_of_its_own() {
        let status = StatusBoard::of_one();
        status.begin_quiet("validation");
        assert!(waited(Deadlines { timeout: SHORT, quiet: LONG }, &status, |_| {}) > LONG);
    }

    #[test]
    fn after_a_quiet_section_the_deadline_begins_again() {
        let status = StatusBoard::of_one();
        status.begin_quiet("validation");
        let mut is_quiet = true;
        let waited = waited(Deadlines { timeout: 2 * SHORT, quiet: 10 * LONG }, &status, |passed| {
            if is_quiet && passed > LONG {
                status.end_quiet();
                is_quiet = false;
            }
        });
        assert!(waited > LONG + SHORT, "{waited:?}");
    }
}
