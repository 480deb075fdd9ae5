//! Waiting for another rank.

use std::time::{Duration, Instant};

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

/// Waits between two looks at something that another rank will change: spins, then yields, then sleeps.
///
/// A yield hands over to a rank on the same core in about a microsecond, where spinning would use up its
/// time slice.
#[derive(Debug)]
pub(crate) struct Waiting {
    looks: u32,
    spins: u32,
    started: Option<Instant>,
    patient: bool,
    /// After so many looks a rank sleeps between them.
    looks_awake: u32,
    timeout: Duration,
}

impl Waiting {
    /// `spins` looks without giving way.
    pub(crate) fn new(spins: u32, timeout: Duration) -> Self {
        Self { looks: 0, spins, started: None, patient: false, looks_awake: u32::MAX, timeout }
    }

    /// A wait for something that takes a while, such as a large message between nodes: it soon sleeps between looks. Others that
    /// want the core, and the kernel that moves the bytes, then get it; and where a core is wanted by many, one who yields is last in the
    /// queue, and one who wakes is first.
    #[cfg(feature = "mpi")]
    pub(super) fn for_long(self) -> Self {
        Self { looks_awake: LOOKS_AWAKE, spins: self.spins.min(LOOKS_AWAKE), ..self }
    }

    /// Lets a moment pass; from time to time it says that it is time to look whether something is wrong. The
    /// error is the time waited, once it is more than the deadline allows.
    #[inline]
    pub(crate) fn pause(&mut self) -> Result<bool, Duration> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks < self.spins {
            if self.looks > EAGER_SPINS {
                std::hint::spin_loop();
            }
            return Ok(false);
        }
        self.give_way()
    }

    /// Whether the wait is already much longer than a message takes.
    pub(super) fn is_patient(&self) -> bool {
        self.patient
    }

    #[cold]
    fn give_way(&mut self) -> Result<bool, Duration> {
        let sleeps = self.patient || self.looks > self.looks_awake;
        if !sleeps {
            std::thread::yield_now();
        }
        if !sleeps && !self.looks.is_multiple_of(LOOKS_BETWEEN_CLOCKS) {
            return Ok(false);
        }
        let waited = self.started.get_or_insert_with(Instant::now).elapsed();
        self.patient = waited > AWAKE;
        if sleeps {
            std::thread::sleep(NAP);
        }
        if waited > self.timeout { Err(waited) } else { Ok(true) }
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

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let timeout = Duration::from_millis(20);
        let started = Instant::now();
        let mut waiting = Waiting::new(10, timeout);
        let waited = loop {
            if let Err(waited) = waiting.pause() {
                break waited;
            }
        };
        assert!(waited > timeout && started.elapsed() >= waited);
    }
}
