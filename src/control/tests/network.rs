//! The connections of a simulation.

use std::collections::HashMap;

use super::{Happening, LinkId, Queue, Rank, Schedule, Time};

/// One end of a connection: the process, and the number that it gives to it.
pub(super) type End = (Rank, LinkId);

#[derive(Debug)]
struct Side {
    other: End,
    /// Whether this end can still send.
    is_open: bool,
    /// Whether the kernel of this end has given up: what it has sent and has not arrived is lost.
    is_aborted: bool,
    /// When the process of this end has ended, if its kernel drops what it has sent and has not arrived.
    dropped_at: Option<Time>,
    /// When the latest bytes of this end arrive.
    arrives: Time,
}

#[derive(Debug)]
pub(super) struct Network {
    sides: HashMap<End, Side>,
    random: fastrand::Rng,
    next: LinkId,
}

impl Network {
    pub(super) fn new(random: fastrand::Rng) -> Self {
        Self { sides: HashMap::new(), random, next: 0 }
    }

    pub(super) fn nonce(&mut self, link: LinkId) -> [u64; 2] {
        [link, link.wrapping_mul(0x9e37_79b9_7f4a_7c15)]
    }

    fn delay(&mut self, schedule: &Schedule) -> Time {
        Time::from_micros(self.random.u64(100..schedule.delay_us))
    }

    /// Opens a connection between two members, unless it is cut for too long.
    pub(super) fn dial(&mut self, now: Time, ranks: [Rank; 2], schedule: &Schedule, queue: &mut Queue) {
        let [from, to] = ranks;
        let clear = schedule.clear_at(ranks, now).max(schedule.clear_at([to, from], now));
        let arrives = clear.saturating_add(self.delay(schedule));
        if arrives > now + Time::from_secs(3) {
            return;
        }
        let ends = self.open(ranks);
        queue.push(arrives, from, Happening::Opened(ends[0].1, Some(to)));
        queue.push(arrives, to, Happening::Opened(ends[1].1, None));
        for (end, (since, until)) in
            ends.into_iter().flat_map(|end| schedule.silences(ranks).into_iter().map(move |cut| (end, cut)))
        {
            let detected = since.max(arrives) + Time::from_millis(self.random.u64(5_000..6_500));
            if detected < until {
                queue.push(detected, end.0, Happening::Ended { link: end.1, is_timeout: true });
            }
        }
    }

    /// Opens a connection, cut or not.
    pub(super) fn open(&mut self, ranks: [Rank; 2]) -> [End; 2] {
        let ends = ranks.map(|rank| {
            self.next += 1;
            (rank, self.next)
        });
        for (own, other) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let side =
                Side { other, is_open: true, is_aborted: false, dropped_at: None, arrives: Time::ZERO };
            self.sides.insert(own, side);
        }
        ends
    }

    pub(super) fn send(
        &mut self,
        end: End,
        bytes: Vec<u8>,
        now: Time,
        schedule: &Schedule,
        queue: &mut Queue,
    ) {
        let at = self.arrival(end, now, schedule);
        let Some(side) = self.sides.get_mut(&end).filter(|side| side.is_open) else { return };
        if side.other.0 >= schedule.ranks {
            return;
        }
        side.arrives = at;
        queue.push(at, side.other.0, Happening::Arrived(side.other.1, bytes, at));
    }

    /// Returns the time at which what is sent now arrives, behind everything before it.
    fn arrival(&mut self, end: End, now: Time, schedule: &Schedule) -> Time {
        let other = self.sides.get(&end).map_or(Rank::MAX, |side| side.other.0);
        if other >= schedule.ranks {
            return Time::MAX;
        }
        let clear = schedule.clear_at([end.0, other], now + self.delay(schedule));
        clear.max(self.sides[&end].arrives.saturating_add(Time::from_nanos(1)))
    }

    pub(super) fn is_between_members(&self, end: End, schedule: &Schedule) -> bool {
        self.sides.get(&end).is_some_and(|side| side.other.0 < schedule.ranks)
    }

    /// Returns whether bytes that arrive there at this time are delivered.
    pub(super) fn delivers(&self, end: End, at: Time) -> bool {
        let is_dropped = |own: &Side| self.sides[&own.other].dropped_at.is_some_and(|dropped| at > dropped);
        self.reaches(end) && self.sides.get(&end).is_some_and(|own| !is_dropped(own))
    }

    /// Returns whether the end of the connection still arrives there.
    pub(super) fn reaches(&self, end: End) -> bool {
        self.sides.get(&end).is_some_and(|own| own.is_open && !self.sides[&own.other].is_aborted)
    }

    /// An end closes its connection, in order after what it has sent.
    pub(super) fn close(&mut self, end: End, now: Time, schedule: &Schedule, queue: &mut Queue) {
        let at = self.arrival(end, now, schedule);
        let Some(side) = self.sides.get_mut(&end).filter(|side| side.is_open) else { return };
        side.is_open = false;
        if at < Time::MAX {
            queue.push(at, side.other.0, Happening::Ended { link: side.other.1, is_timeout: false });
        }
    }

    /// A process ends.
    pub(super) fn close_all(
        &mut self,
        rank: Rank,
        has_crashed: bool,
        now: Time,
        schedule: &Schedule,
        queue: &mut Queue,
    ) {
        let mut ends: Vec<_> = self.sides.keys().filter(|end| end.0 == rank).copied().collect();
        ends.sort_unstable();
        for end in ends {
            let drops = has_crashed && self.is_between_members(end, schedule) && self.random.bool();
            self.sides.entry(end).and_modify(|side| side.dropped_at = (side.is_open && drops).then_some(now));
            self.close(end, now, schedule, queue);
        }
    }

    /// The kernel at this end gives up, or learns that the other has. The other one learns it once it is reachable.
    pub(super) fn abort(&mut self, end: End, now: Time, schedule: &Schedule, queue: &mut Queue) {
        let Some(side) = self.sides.get_mut(&end).filter(|side| side.is_open) else { return };
        (side.is_open, side.is_aborted) = (false, true);
        let (rank, link) = side.other;
        let ranks = [end.0, rank];
        let silence =
            schedule.silences(ranks).into_iter().find(|(since, until)| (*since..*until).contains(&now));
        let at = silence.map_or(now, |(_, until)| until).saturating_add(Time::from_millis(1));
        queue.push(at, rank, Happening::Ended { link, is_timeout: true });
    }
}
