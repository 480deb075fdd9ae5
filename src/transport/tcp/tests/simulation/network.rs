//! Simulated connections. The model is TCP: bytes arrive in order, and the kernels of both ends hold a limited number of them. The receiver
//! detects the end of a closed connection after all bytes. A reset loses bytes that have not arrived.

use std::collections::VecDeque;
use std::io::{Cursor, Read as _};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use unisono_collectives::Rank;

use super::{Schedule, Time, suspend, with};
use crate::transport::tcp::Socket;

#[derive(Debug, Default)]
struct Pipe {
    /// Bytes that have not been received, and when they arrive.
    segments: VecDeque<(Time, Cursor<Vec<u8>>)>,
    /// When the latest of them arrives.
    last: Time,
    /// The numbers of bytes that were received, and when the sender is notified of them.
    acknowledged: VecDeque<(Time, usize)>,
    in_transit: usize,
    sent: u64,
    /// When the receiver detects the end, and whether it is a reset.
    end: Option<(Time, bool)>,
    /// When the sender detects that it cannot send any more.
    broken: Option<Time>,
    is_closed: bool,
}

impl Pipe {
    /// Resets the connection at this time. Bytes that arrive later are lost.
    fn reset(&mut self, at: Time) {
        if self.end.is_none_or(|(end, _)| at < end) {
            self.segments.retain(|(arrives, _)| *arrives <= at);
            self.end = Some((at, true));
        }
    }

    fn breaks(&mut self, at: Time) {
        self.broken = Some(self.broken.map_or(at, |broken| broken.min(at)));
    }

    /// Returns when the receiver can continue.
    fn readable(&self) -> Time {
        let arrives = self.segments.front().map(|(arrives, _)| *arrives);
        arrives.into_iter().chain(self.end.map(|(at, _)| at)).min().unwrap_or(Time::MAX)
    }

    /// Returns when the sender can continue.
    fn writable(&self, capacity: usize) -> Time {
        let has_capacity = (self.in_transit < capacity).then_some(Time::ZERO);
        let later = self.acknowledged.front().map(|(at, _)| *at);
        has_capacity.into_iter().chain(later).chain(self.broken).min().unwrap_or(Time::MAX)
    }
}

/// Returns the number of bytes of a segment that have not been received.
fn left(bytes: &Cursor<Vec<u8>>) -> usize {
    bytes.get_ref().len() - bytes.position() as usize
}

#[derive(Debug)]
pub(super) struct Network {
    ranks: usize,
    /// By sender and receiver.
    pipes: Vec<Pipe>,
    random: fastrand::Rng,
    /// The number of socket calls of each rank.
    calls: Vec<u64>,
    /// When bytes last moved, by rank.
    pub(super) moved: Vec<Time>,
    /// When each rank first detected a lost connection.
    pub(super) lost: Vec<Option<Time>>,
}

impl Network {
    pub(super) fn new(ranks: usize, random: fastrand::Rng) -> Self {
        let pipes = (0..ranks * ranks).map(|_| Pipe::default()).collect();
        Self {
            ranks,
            pipes,
            random,
            calls: vec![0; ranks],
            moved: vec![Time::ZERO; ranks],
            lost: vec![None; ranks],
        }
    }

    fn pipe(&mut self, from: Rank, to: Rank) -> &mut Pipe {
        &mut self.pipes[from * self.ranks + to]
    }

    fn delay(&mut self, schedule: &Schedule) -> Time {
        Duration::from_nanos(self.random.u64(1_000..=schedule.delay.as_nanos() as u64))
    }

    /// Counts a socket call. If the process ends at it, returns whether its host does too.
    fn call(&mut self, own: Rank, schedule: &Schedule) -> Option<bool> {
        self.calls[own] += 1;
        schedule.crash(own).filter(|(calls, _)| *calls == self.calls[own]).map(|(_, with_host)| with_host)
    }

    /// Returns a number of bytes, at most this many, that the kernel moves at once.
    fn some(&mut self, most: usize) -> usize {
        match self.random.u8(0..8) {
            0 => self.random.usize(1..=most.min(70)),
            1 | 2 => self.random.usize(1..=most),
            _ => most,
        }
    }

    fn send(
        &mut self,
        [own, to]: [Rank; 2],
        bytes: [&[u8]; 2],
        now: Time,
        schedule: &Schedule,
    ) -> Result<usize, Errno> {
        if self.random.u8(..) == 0 {
            return Err(Errno::INTR);
        }
        let pipe = self.pipe(own, to);
        if pipe.broken.is_some_and(|at| at <= now) {
            return Err(Errno::PIPE);
        }
        while let Some((_, size)) = pipe.acknowledged.pop_front_if(|(at, _)| *at <= now) {
            pipe.in_transit -= size;
        }
        let (free, sent, is_closed) =
            (schedule.capacity.saturating_sub(pipe.in_transit), pipe.sent, pipe.is_closed);
        let most = (bytes[0].len() + bytes[1].len()).min(free);
        if most == 0 {
            return Err(Errno::AGAIN);
        }
        let mut size = self.some(most);
        let (delay, answer) = (self.delay(schedule), self.delay(schedule));
        if is_closed {
            self.refuse([own, to], now + delay + answer);
            return Ok(size);
        }
        let reset = schedule.reset([own, to]).filter(|&at| at < sent + size as u64);
        if let Some(at) = reset {
            size = (at.saturating_sub(sent) as usize).min(size);
        }
        let loses = schedule.loses_bytes && size < most && self.random.u8(0..4) == 0;
        let pipe = self.pipe(own, to);
        pipe.last = schedule.clear_at([own, to], now + delay).max(pipe.last);
        let mut taken = bytes.concat();
        taken.truncate(size);
        taken.drain(..usize::from(loses));
        pipe.segments.push_back((pipe.last, Cursor::new(taken)));
        (pipe.in_transit, pipe.sent) = (pipe.in_transit + size, pipe.sent + size as u64);
        if reset.is_some() {
            for [one, other] in [[own, to], [to, own]] {
                let at = now + self.delay(schedule);
                self.refuse([one, other], at);
            }
        }
        if size == 0 { Err(Errno::CONNRESET) } else { Ok(size) }
    }

    /// Resets the connection of a pair, which its sender detects at this time.
    fn refuse(&mut self, [own, other]: [Rank; 2], at: Time) {
        self.pipe(own, other).breaks(at);
        self.pipe(other, own).reset(at);
    }

    fn receive(
        &mut self,
        [own, from]: [Rank; 2],
        place: &mut [u8],
        now: Time,
        schedule: &Schedule,
    ) -> Result<usize, Errno> {
        if self.random.u8(..) == 0 {
            return Err(Errno::INTR);
        }
        let pipe = self.pipe(from, own);
        let available: usize =
            pipe.segments.iter().take_while(|(at, _)| *at <= now).map(|(_, bytes)| left(bytes)).sum();
        if available == 0 {
            return match pipe.end {
                Some((at, true)) if at <= now => Err(Errno::CONNRESET),
                Some((at, false)) if at <= now => Ok(0),
                _ => Err(Errno::AGAIN),
            };
        }
        let size = self.some(available.min(place.len()));
        let at = now + self.delay(schedule);
        let pipe = self.pipe(from, own);
        let mut filled = 0;
        while filled < size {
            let (_, bytes) = pipe.segments.front_mut().expect("they have arrived");
            filled += bytes.read(&mut place[filled..size]).expect("it is memory");
            pipe.segments.pop_front_if(|(_, bytes)| left(bytes) == 0);
        }
        let at = schedule
            .clear_at([own, from], at)
            .max(pipe.acknowledged.back().map_or(Time::ZERO, |(at, _)| *at));
        pipe.acknowledged.push_back((at, size));
        Ok(size)
    }

    /// Closes a process's end of a connection.
    fn close(&mut self, [own, other]: [Rank; 2], now: Time, schedule: &Schedule) {
        let (delay, answer) = (self.delay(schedule), self.delay(schedule));
        let at = schedule.clear_at([own, other], now + delay);
        let incoming = self.pipe(other, own);
        incoming.is_closed = true;
        let is_unread = incoming.segments.front().is_some_and(|(arrives, _)| *arrives <= now);
        // A closed connection answers data with a reset.
        let refused =
            incoming.segments.front().map(|(arrives, _)| schedule.clear_at([own, other], *arrives + answer));
        let outgoing = self.pipe(own, other);
        if outgoing.end.is_none() {
            outgoing.end = Some((at.max(outgoing.last), false));
        }
        if is_unread {
            self.refuse([other, own], at);
        } else if let Some(at) = refused {
            self.refuse([other, own], at.max(now));
        }
    }

    /// Ends the host of a rank. It no longer acknowledges or refuses, and bytes that it has not sent yet are lost.
    pub(super) fn host_ends(&mut self, own: Rank, now: Time) {
        for other in 0..self.ranks {
            let outgoing = self.pipe(own, other);
            outgoing.segments.retain(|(arrives, _)| *arrives <= now);
            self.pipe(other, own).acknowledged.retain(|(at, _)| *at <= now);
        }
    }

    /// Returns when the first of these events happens, for which a rank waits.
    pub(super) fn ready(&self, own: Rank, awaited: &[(Rank, PollFlags)], schedule: &Schedule) -> Time {
        let pipe = |from: Rank, to: Rank| &self.pipes[from * self.ranks + to];
        let ready = awaited.iter().map(|&(other, events)| {
            let reads = events.contains(PollFlags::IN).then(|| pipe(other, own).readable());
            let writes =
                events.contains(PollFlags::OUT).then(|| pipe(own, other).writable(schedule.capacity));
            reads.into_iter().chain(writes).min().unwrap_or(Time::MAX)
        });
        ready.min().unwrap_or(Time::MAX)
    }
}

#[derive(Debug)]
pub(super) struct Simulated {
    pub(super) own: Rank,
    pub(super) other: Rank,
}

impl Simulated {
    /// Makes a socket call, unless the process ends.
    fn call(
        &self,
        act: impl FnOnce(&mut Network, Time, &Schedule) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let ends = with(|world| {
            world.now += Duration::from_micros(1);
            let crash = world.network.call(self.own, &world.schedule);
            crash.inspect(|with_host| world.crash(self.own, *with_host))
        });
        if ends.flatten().is_some() {
            suspend(|_| Time::MAX);
        }
        let done = with(|world| {
            let done = act(&mut world.network, world.now, &world.schedule);
            match done {
                Ok(1..) => {
                    world.network.moved[self.own] = world.now;
                    world.wake(self.other);
                }
                Ok(0) | Err(Errno::CONNRESET | Errno::PIPE) => {
                    world.network.lost[self.own].get_or_insert(world.now);
                }
                Err(_) => {}
            }
            done
        });
        done.expect("it is used in a simulation")
    }
}

impl Socket for Simulated {
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<usize, Errno> {
        self.call(|network, now, schedule| {
            network.send([self.own, self.other], [header, payload], now, schedule)
        })
    }

    fn receive(&self, place: &mut [u8]) -> Result<usize, Errno> {
        self.call(|network, now, schedule| network.receive([self.own, self.other], place, now, schedule))
    }

    fn wait<'a>(awaited: impl Iterator<Item = (&'a Self, PollFlags)>, most: Duration) {
        let awaited: Vec<_> = awaited.map(|(socket, events)| (socket.other, events)).collect();
        suspend(|world| {
            let own = world.own;
            world.awaited[own] = awaited;
            let ready = world.network.ready(own, &world.awaited[own], &world.schedule);
            // Without an event, the rank is woken up late.
            let most = most + Duration::from_micros(world.random.u64(0..20_000));
            (world.now + most).min(ready.max(world.now))
        });
        with(|world| world.awaited[world.own].clear());
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        with(|world| {
            if !world.is_host_down(self.own) {
                world.network.close([self.own, self.other], world.now, &world.schedule);
                world.wake(self.other);
            }
        });
    }
}
