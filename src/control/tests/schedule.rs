//! The faults of a seed.

use super::{Happening, Rank, Time};

/// A fault, or a member that leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// The process ends at a time.
    Crash { rank: Rank, at: Time },
    /// The process ends before it sends its message of this number.
    CrashAtSend { rank: Rank, sends: u32 },
    /// The process leaves the job: it says goodbye, and ends.
    Leave { rank: Rank, at: Time },
    /// The host ends, so that no host acknowledges or refuses.
    HostDown { rank: Rank, at: Time },
    /// The process does not run.
    Stop { rank: Rank, from: Time, until: Time },
    /// Bytes from one member to another do not arrive; in both directions if `is_both`.
    Cut { from: Rank, to: Rank, is_both: bool, since: Time, until: Time },
    /// The members of these bits cannot reach the others.
    Divide { side: u32, since: Time, until: Time },
}

/// The external events of a simulation.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) ranks: usize,
    pub(super) patience: Time,
    pub(super) minimum: Option<usize>,
    /// The longest delay of a message.
    pub(super) delay_us: u64,
    calls: Vec<Option<Time>>,
    faults: Vec<Fault>,
}

impl Schedule {
    pub(super) fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        match seed % 20 {
            7 => return Self::cut_until_a_crash(&mut random),
            8 => return Self::crash_of_a_voter(&mut random),
            _ => {}
        }
        let ranks = random.usize(2..=6);
        let start = Time::from_secs(3);
        let within = |random: &mut fastrand::Rng, most_ms: u64| Time::from_millis(random.u64(0..most_ms));
        // Faults are close to each other and to the calls, so that they meet.
        let spread_ms = [200, 4_000, 12_000, 30_000][random.usize(0..4)];
        let number = if random.u8(0..10) == 0 { 0 } else { random.usize(1..=4) };
        let faults = (0..number).map(|_| {
            let rank = random.usize(0..ranks);
            let to = (rank + random.usize(1..ranks)) % ranks;
            let at = if random.u8(0..20) == 0 {
                within(&mut random, 60)
            } else {
                start + within(&mut random, spread_ms)
            };
            let most_ms = [3_000, 8_000, 60_000, 600_000][random.usize(0..4)];
            let until = at + within(&mut random, most_ms);
            match random.u8(0..9) {
                0 | 1 => Fault::Crash { rank, at },
                2 | 3 => Fault::CrashAtSend { rank, sends: random.u32(1..120) },
                4 => Fault::HostDown { rank, at },
                5 => Fault::Stop { rank, from: at, until },
                6 => Fault::Cut { from: rank, to, is_both: random.bool(), since: at, until },
                _ => Fault::Divide { side: random.u32(1..(1 << ranks) - 1), since: at, until },
            }
        });
        let mut faults: Vec<_> = faults.collect();
        let calls =
            (0..ranks).map(|_| (random.u8(0..60) > 0).then(|| start + within(&mut random, spread_ms)));
        let mut calls: Vec<_> = calls.collect();
        let patience = Time::from_secs(random.u64(5..40));
        let minimum = (random.u8(0..50) == 0).then_some(ranks);
        let delay_us = [2_000, 40_000, 600_000][random.usize(0..3)];
        if random.u8(0..4) == 0 {
            let rank = random.usize(0..ranks);
            // While it connects, or about when the others begin to call.
            let most_us = [4 * delay_us, 4_000_000][random.usize(0..2)];
            faults.push(Fault::Leave { rank, at: Time::from_micros(random.u64(0..most_us)) });
            calls[rank] = None;
        }
        Self { ranks, patience, minimum, delay_us, calls, faults }
    }

    /// Rank 0 is cut off. Rank 2 ends about when the others may have agreed to continue without rank 0, and the cut ends about when rank 0
    /// would lose rank 2. So rank 0 may take rank 2 for dead, and continue alone.
    fn cut_until_a_crash(random: &mut fastrand::Rng) -> Self {
        let start = Time::from_secs(3);
        let mut after = |least_ms, most_ms| start + Time::from_millis(random.u64(least_ms..most_ms));
        let calls = (0..3).map(|_| Some(after(0, 4_000))).collect();
        let crash = Fault::Crash { rank: 2, at: after(5_000, 6_400) };
        let faults = vec![Fault::Divide { side: 1, since: start, until: after(5_300, 6_400) }, crash];
        Self { ranks: 3, patience: Time::from_secs(20), minimum: None, delay_us: 2_000, calls, faults }
    }

    /// Ranks 0 and 1 lose each other, and rank 2 ends about when it excludes one of them. So the excluded one may take rank 2 for dead, and
    /// continue alone. Rank 2 must not have agreed with the other by then.
    fn crash_of_a_voter(random: &mut fastrand::Rng) -> Self {
        let start = Time::from_secs(3);
        let crash = Fault::Crash { rank: 2, at: start + Time::from_millis(random.u64(5_000..9_000)) };
        let until = start + Time::from_secs(60);
        let cut = Fault::Cut { from: 0, to: 1, is_both: true, since: start, until };
        let patience = Time::from_secs(20);
        let (calls, faults) = (vec![Some(start); 3], vec![cut, crash]);
        Self { ranks: 3, patience, minimum: None, delay_us: 600_000, calls, faults }
    }

    pub(super) fn of_member(&self, own: Rank) -> Vec<(Time, Happening)> {
        let faults = self.faults.iter().filter_map(|fault| match *fault {
            Fault::Crash { rank, at } | Fault::HostDown { rank, at } if rank == own => {
                Some((at, Happening::Crash))
            }
            Fault::Leave { rank, at } if rank == own => Some((at, Happening::Leave)),
            _ => None,
        });
        faults.chain(self.calls[own].map(|at| (at, Happening::Call))).collect()
    }

    pub(super) fn crash_at_send(&self, own: Rank) -> Option<u32> {
        let sends = self.faults.iter().filter_map(|fault| match *fault {
            Fault::CrashAtSend { rank, sends } if rank == own => Some(sends),
            _ => None,
        });
        sends.min()
    }

    /// Until when a member does not run.
    pub(super) fn is_stopped(&self, own: Rank, now: Time) -> Option<Time> {
        let stopped = |at| {
            self.faults.iter().find_map(move |fault| match *fault {
                Fault::Stop { rank, from, until } if rank == own && (from..until).contains(&at) => {
                    Some(until)
                }
                _ => None,
            })
        };
        // Messages that arrive meanwhile stay in order, so they wait for the end of all overlapping stops.
        std::iter::successors(stopped(now), |&until| stopped(until)).last()
    }

    /// Since when and until when bytes of one member do not reach another, from this time on.
    fn cuts(&self, [one, other]: [Rank; 2]) -> impl Iterator<Item = (Time, Time)> {
        self.faults.iter().filter_map(move |fault| match *fault {
            Fault::Cut { from, to, is_both, since, until } => {
                let is_cut = (from, to) == (one, other) || is_both && (to, from) == (one, other);
                is_cut.then_some((since, until))
            }
            Fault::Divide { side, since, until } => {
                let is_cut = (side >> one & 1) != (side >> other & 1);
                is_cut.then_some((since, until))
            }
            Fault::HostDown { rank, at } => (rank == one || rank == other).then_some((at, Time::MAX)),
            _ => None,
        })
    }

    /// When bytes of one member reach another that are sent at this time, but for the delay.
    pub(super) fn clear_at(&self, ranks: [Rank; 2], mut at: Time) -> Time {
        while let Some((_, until)) = self.cuts(ranks).find(|(since, until)| (*since..*until).contains(&at)) {
            at = until;
        }
        at
    }

    /// Returns the cuts between two members in either direction, merged where they overlap.
    pub(super) fn silences(&self, [one, other]: [Rank; 2]) -> Vec<(Time, Time)> {
        let mut all: Vec<_> = self.cuts([one, other]).chain(self.cuts([other, one])).collect();
        all.sort_unstable();
        let mut merged: Vec<(Time, Time)> = Vec::new();
        for (since, until) in all {
            match merged.last_mut() {
                Some(last) if since <= last.1 => last.1 = last.1.max(until),
                _ => merged.push((since, until)),
            }
        }
        merged
    }

    /// Returns whether a member is never disturbed, and stays.
    pub(super) fn is_healthy(&self, own: Rank) -> bool {
        self.is_undisturbed(own) && !self.leaves(own)
    }

    /// Returns whether nothing happens to a member but that it may leave.
    pub(super) fn is_undisturbed(&self, own: Rank) -> bool {
        self.faults.iter().all(|fault| match *fault {
            Fault::Leave { .. } => true,
            Fault::Crash { rank, .. }
            | Fault::CrashAtSend { rank, .. }
            | Fault::HostDown { rank, .. }
            | Fault::Stop { rank, .. } => rank != own,
            Fault::Cut { from, to, .. } => from != own && to != own,
            Fault::Divide { .. } => false,
        })
    }

    /// Returns whether a member leaves.
    pub(super) fn leaves(&self, own: Rank) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::Leave { rank, .. } if *rank == own))
    }

    /// Returns whether a process does not run while it connects.
    pub(super) fn stops_early(&self) -> bool {
        let is_early =
            |fault: &Fault| matches!(fault, Fault::Stop { from, .. } if *from < Time::from_secs(3));
        self.faults.iter().any(is_early)
    }

    pub(super) fn calls_at(&self, rank: Rank) -> Option<Time> {
        self.calls[rank]
    }

    /// Returns whether nothing happens but the end of processes, and all members that stay call before the first of them loses
    /// patience.
    pub(super) fn has_only_crashes(&self) -> bool {
        // All have connected before.
        let is_crash = |fault: &Fault| match *fault {
            Fault::Crash { at, .. } | Fault::Leave { at, .. } => at >= Time::from_secs(3),
            Fault::CrashAtSend { sends, .. } => sends > 3 * self.ranks as u32,
            _ => false,
        };
        let calls: Vec<_> = self.calls.iter().copied().flatten().collect();
        let (first, last) = (calls.iter().min(), calls.iter().max());
        let waits = last
            .zip(first)
            .is_some_and(|(last, first)| *last + Time::from_micros(self.delay_us) < *first + self.patience);
        let all_call = (0..self.ranks).all(|rank| self.calls[rank].is_some() || self.leaves(rank));
        self.faults.iter().all(is_crash) && all_call && waits && self.minimum.is_none()
    }
}
