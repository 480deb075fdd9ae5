//! The events in the simulation of a seed.

use std::time::Duration;

use unisono_collectives::Rank;

use super::Time;

/// The largest size of a point-to-point message.
pub(super) const MAX_BYTES: usize = 50_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// The process ends at its socket call of this number. With `with_host`, no kernel closes its connections.
    Crash { rank: Rank, calls: u64, with_host: bool },
    /// A connection is reset when this number of bytes has been sent in this direction.
    Reset { from: Rank, to: Rank, bytes: u64 },
    /// Data from one rank to another do not arrive.
    Cut { from: Rank, to: Rank, since: Time, until: Time },
    /// The process does not run.
    Stop { rank: Rank, since: Time, until: Time },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Load {
    /// `calls` calls of the collective number `sample`.
    Collective { sample: usize, calls: usize },
    /// Point-to-point messages, all started before any of them is awaited.
    Messages { seed: u64 },
    /// Point-to-point messages, each by a blocking call.
    Exchanges { seed: u64 },
}

#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) ranks: usize,
    pub(super) load: Load,
    /// The timeout of a wait.
    pub(super) timeout: Time,
    pub(super) delay: Time,
    /// The longest pause of a rank before a call.
    pub(super) pause: Time,
    /// The largest number of bytes in transit from a rank to another.
    pub(super) capacity: usize,
    /// Whether other ranks are notified of ranks that have failed or left.
    pub(super) is_watched: bool,
    pub(super) faults: Vec<Fault>,
    /// Whether the simulation sometimes loses a byte, which the checks must detect.
    pub(super) loses_bytes: bool,
}

impl Schedule {
    /// Returns the schedule of a seed; `samples` are the numbers of ranks and bytes of the collectives.
    pub(super) fn of(seed: u64, samples: &[(usize, usize)]) -> Self {
        let random = &mut fastrand::Rng::with_seed(seed);
        let load = match random.u8(0..5) {
            0 => Load::Messages { seed },
            1 => Load::Exchanges { seed },
            _ => Load::Collective { sample: random.usize(0..samples.len()), calls: random.usize(1..=3) },
        };
        let (ranks, size_bytes) = match load {
            Load::Collective { sample, .. } => samples[sample],
            _ => (random.usize(2..=4), MAX_BYTES),
        };
        let millis = Duration::from_millis;
        let timeout = millis([500, 4_500, 20_000][random.usize(0..3)]);
        let delay = Duration::from_micros([30, 1_000, 20_000][random.usize(0..3)]);
        let mut capacity = [100, 3_000, 20_000, 1 << 20][random.usize(0..4)];
        // Between two ranks, a message may take longer than the timeout: its bytes renew the deadline. A third rank would wait without any.
        let longest = if ranks > 2 { timeout / 8 } else { millis(10_000) };
        if 2 * delay * (size_bytes / capacity) as u32 > longest {
            capacity = 1 << 20;
        }
        let mut faults = Vec::new();
        if random.bool() {
            faults.extend((0..random.usize(1..=2)).map(|_| Self::fault(random, ranks, delay)));
        }
        let can_be_watched =
            faults.iter().all(|fault| matches!(fault, Fault::Crash { .. } | Fault::Reset { .. }));
        let is_watched = can_be_watched && random.bool();
        let pause = millis([0, 0, 50][random.usize(0..3)]);
        Self { ranks, load, timeout, delay, pause, capacity, is_watched, faults, loses_bytes: false }
    }

    fn fault(random: &mut fastrand::Rng, ranks: usize, delay: Time) -> Fault {
        let rank = random.usize(0..ranks);
        let to = (rank + random.usize(1..ranks)) % ranks;
        let since = delay * random.u32(0..30);
        let until = since + Duration::from_millis([200, 2_000, 100_000][random.usize(0..3)]);
        match random.u8(0..6) {
            0 | 1 => {
                let most = 1 << random.u8(1..8);
                Fault::Crash { rank, calls: random.u64(1..=most), with_host: random.bool() }
            }
            2 | 3 => {
                let most = 1 << random.u8(1..16);
                Fault::Reset { from: rank, to, bytes: random.u64(0..most) }
            }
            4 => Fault::Cut { from: rank, to, since, until },
            _ => Fault::Stop { rank, since, until },
        }
    }

    /// Returns whether all faults end so soon that all ranks must succeed.
    pub(super) fn is_benign(&self) -> bool {
        let passes = |fault: &Fault| match *fault {
            Fault::Cut { since, until, .. } | Fault::Stop { since, until, .. } => {
                until - since < self.timeout / 4
            }
            Fault::Crash { .. } | Fault::Reset { .. } => false,
        };
        self.faults.iter().all(passes)
    }

    /// Returns the number of the socket call at which a rank's process ends, and whether its host does too.
    pub(super) fn crash(&self, own: Rank) -> Option<(u64, bool)> {
        let crashes = self.faults.iter().filter_map(|fault| match *fault {
            Fault::Crash { rank, calls, with_host } if rank == own => Some((calls, with_host)),
            _ => None,
        });
        crashes.min()
    }

    /// Returns the number of bytes from one rank to another after which their connection is reset.
    pub(super) fn reset(&self, pair: [Rank; 2]) -> Option<u64> {
        let resets = self.faults.iter().filter_map(|fault| match *fault {
            Fault::Reset { from, to, bytes } if [from, to] == pair => Some(bytes),
            _ => None,
        });
        resets.min()
    }

    /// Returns the time at which bytes from one rank arrive at another that would arrive at `at` without cuts.
    pub(super) fn clear_at(&self, pair: [Rank; 2], mut at: Time) -> Time {
        let end = |at: Time| {
            self.faults.iter().find_map(|fault| match *fault {
                Fault::Cut { from, to, since, until }
                    if [from, to] == pair && (since..until).contains(&at) =>
                {
                    Some(until)
                }
                _ => None,
            })
        };
        while let Some(until) = end(at) {
            at = until;
        }
        at
    }

    /// Returns the time at which a rank runs that would run at `at` without stops.
    pub(super) fn runs_at(&self, own: Rank, mut at: Time) -> Time {
        let end = |at: Time| {
            self.faults.iter().find_map(|fault| match *fault {
                Fault::Stop { rank, since, until } if rank == own && (since..until).contains(&at) => {
                    Some(until)
                }
                _ => None,
            })
        };
        while let Some(until) = end(at) {
            at = until;
        }
        at
    }

    /// Returns the latest time at which a rank ends after a wait of this length. A rank that is stopped during the wait may not have read the
    /// clock before.
    pub(super) fn end_of_wait(&self, own: Rank, since: Time, wait: Time) -> Time {
        let stops = self.faults.iter().filter_map(|fault| match *fault {
            Fault::Stop { rank, since, until } if rank == own => Some((since, until)),
            _ => None,
        });
        let mut stops: Vec<_> = stops.collect();
        stops.sort_unstable();
        let late = |end: Time, (from, until): (Time, Time)| {
            if from < end && until > since { end.max(until + wait) } else { end }
        };
        stops.into_iter().fold(since + wait, late)
    }

    pub(super) fn delays(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::Cut { .. } | Fault::Stop { .. }))
    }

    /// Returns whether a fault explains that a rank reports the failure of another.
    pub(super) fn explains(&self, own: Rank, named: Rank) -> bool {
        self.faults.iter().any(|fault| match *fault {
            Fault::Crash { rank, .. } => rank == named,
            // A rank that was stopped itself may find that it has waited for too long.
            Fault::Stop { rank, .. } => rank == named || rank == own,
            Fault::Reset { from, to, .. } | Fault::Cut { from, to, .. } => {
                [from, to] == [own, named] || [to, from] == [own, named]
            }
        })
    }
}
