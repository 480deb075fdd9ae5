//! A deterministic simulation of the link: ranks run the usual code over simulated sockets, in virtual time, with faults determined by a
//! seed.
//!
//! Every rank is a coroutine. When it would sleep or yield, the simulation continues with the next rank or event.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use generator::{Generator, Gn};
use rustix::event::PollFlags;
use unisono_collectives::Rank;

use crate::error::Error;
use crate::status::StatusBoard;

mod checks;
mod network;
mod ranks;
mod schedule;

use network::Network;
use ranks::Sample;
use schedule::{Fault, Load, Schedule};

type Time = Duration;

/// The time after which a simulation has hung.
const END: Time = Duration::from_secs(2_000);
const STACK: usize = 32 << 10;

#[derive(Debug)]
enum Fate {
    Done,
    Failed(Error),
    Crashed,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Notice {
    Left,
    Failed { first: Rank, cause: String },
}

#[derive(Debug)]
struct World {
    began: Instant,
    now: Time,
    schedule: Schedule,
    network: Network,
    random: fastrand::Rng,
    /// The rank that runs.
    own: Rank,
    /// When each rank continues; `None` for a rank that has ended.
    wakes: Vec<Option<Time>>,
    /// The events for which each rank sleeps.
    awaited: Vec<Vec<(Rank, PollFlags)>>,
    /// The notices in transit: the time of arrival, the receiving and the sending rank, and the notice.
    notices: BinaryHeap<Reverse<(Time, Rank, Rank, Notice)>>,
    boards: Vec<StatusBoard>,
    /// When each rank began its latest call.
    began_call: Vec<Time>,
    /// When the process of each rank ended, and whether its host did.
    crashed: Vec<Option<(Time, bool)>>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Accesses the simulation of this thread, if there is one.
fn with<R>(act: impl FnOnce(&mut World) -> R) -> Option<R> {
    WORLD.with_borrow_mut(|world| world.as_mut().map(act))
}

/// Suspends this rank until this time. Returns false outside a simulation.
fn suspend(until: impl FnOnce(&mut World) -> Time) -> bool {
    // While a rank that has crashed unwinds, it must not wait.
    if std::thread::panicking() {
        return true;
    }
    let is_simulated = with(|world| {
        let until = until(world);
        world.wakes[world.own] = Some(world.late(until));
    });
    if is_simulated.is_some() {
        #[expect(deprecated, reason = "the scope that replaces it does not reach the sockets")]
        generator::yield_with(None::<Fate>);
    }
    is_simulated.is_some()
}

pub(in crate::transport) fn now() -> Instant {
    with(|world| world.began + world.now).unwrap_or_else(Instant::now)
}

pub(in crate::transport) fn sleep(most: Duration) {
    if !suspend(|world| world.now + most + Duration::from_micros(world.random.u64(0..5_000))) {
        std::thread::sleep(most);
    }
}

pub(in crate::transport) fn yield_now() {
    if !suspend(|world| world.now + Duration::from_micros(world.random.u64(1..300))) {
        std::thread::yield_now();
    }
}

impl World {
    fn new(seed: u64, schedule: Schedule) -> Self {
        let (ranks, random) = (schedule.ranks, fastrand::Rng::with_seed(seed ^ 0x5eed));
        let board = |rank| StatusBoard::alone(rank, ranks).expect("there is memory");
        Self {
            began: Instant::now(),
            now: Time::ZERO,
            network: Network::new(ranks, fastrand::Rng::with_seed(seed ^ 0x7c9)),
            random,
            own: 0,
            wakes: vec![Some(Time::ZERO); ranks],
            awaited: vec![Vec::new(); ranks],
            notices: BinaryHeap::new(),
            boards: (0..ranks).map(board).collect(),
            began_call: vec![Time::ZERO; ranks],
            crashed: vec![None; ranks],
            schedule,
        }
    }

    /// Returns the time at which a rank really continues, since the system wakes it up late.
    fn late(&mut self, until: Time) -> Time {
        let most = if self.random.u8(0..50) == 0 { 20_000 } else { 100 };
        until.saturating_add(Duration::from_micros(self.random.u64(1..most)))
    }

    /// Wakes up a rank when one of the events for which it sleeps happens.
    fn wake(&mut self, rank: Rank) {
        if self.awaited[rank].is_empty() {
            return;
        }
        let ready = self.network.ready(rank, &self.awaited[rank], &self.schedule);
        let ready = self.late(ready.max(self.now));
        self.wakes[rank] = self.wakes[rank].map(|wakes| wakes.min(ready));
    }

    fn crash(&mut self, rank: Rank, with_host: bool) {
        self.crashed[rank] = Some((self.now, with_host));
        if with_host {
            self.network.host_ends(rank, self.now);
        }
    }

    fn is_host_down(&self, rank: Rank) -> bool {
        self.crashed[rank].is_some_and(|(_, with_host)| with_host)
    }

    /// Notifies all other ranks, if a watchdog watches over them.
    fn notify(&mut self, by: Rank, notice: &Notice) {
        let others = (0..self.schedule.ranks).filter(|&other| other != by && self.schedule.is_watched);
        for other in others.collect::<Vec<_>>() {
            let at = self.now + Duration::from_micros(self.random.u64(100..checks::REPORT_US));
            self.notices.push(Reverse((at, other, by, notice.clone())));
        }
    }

    /// Returns the rank that continues next, after the earlier notices are delivered.
    fn next(&mut self) -> Option<Rank> {
        let runs_at = |rank: Rank| Some((self.schedule.runs_at(rank, self.wakes[rank]?), rank));
        let (at, rank) = (0..self.schedule.ranks).filter_map(runs_at).min()?;
        self.now = self.now.max(at);
        while let Some(Reverse((at, ..))) = self.notices.peek()
            && *at <= self.now
        {
            let Reverse((_, to, by, notice)) = self.notices.pop().expect("it was peeked at");
            match notice {
                Notice::Left => self.boards[to].leave(by),
                Notice::Failed { first, cause } => drop(self.boards[to].fail(by, first, &cause)),
            }
        }
        self.own = rank;
        Some(rank)
    }

    fn ended(&mut self, rank: Rank, fate: &Fate) {
        self.wakes[rank] = None;
        match fate {
            Fate::Done => self.notify(rank, &Notice::Left),
            // The rank has reported its failure itself.
            Fate::Failed(_) => {}
            Fate::Crashed => self.notify(rank, &Notice::Failed { first: rank, cause: "it died".to_owned() }),
        }
    }
}

/// Runs a simulation, and checks it. Returns the outcome of every rank, and its time.
fn run(seed: u64, samples: &[Sample], change: impl FnOnce(&mut Schedule)) -> Vec<(Fate, Time)> {
    let sizes: Vec<_> = samples.iter().map(|sample| (sample.ranks(), sample.size_bytes())).collect();
    let mut schedule = Schedule::of(seed, &sizes);
    change(&mut schedule);
    let (ranks, load) = (schedule.ranks, schedule.load);
    WORLD.set(Some(World::new(seed, schedule)));
    let start = |rank| Some(Gn::<()>::new_opt(STACK, move || Some(ranks::rank(rank, load, samples))));
    let mut running: Vec<Option<Generator<'_, (), Option<Fate>>>> = (0..ranks).map(start).collect();
    let mut fates: Vec<Option<(Fate, Time)>> = (0..ranks).map(|_| None).collect();
    while let Some(rank) = with(World::next).flatten() {
        let now = with(|world| world.now).expect("it is set");
        assert!(now < END, "rank {rank} hangs");
        let coroutine = running[rank].as_mut().expect("it has not ended");
        let mut fate = coroutine.resume().flatten();
        if with(|world| world.crashed[rank].is_some()) == Some(true) {
            running[rank] = None;
            fate = Some(Fate::Crashed);
        }
        if let Some(fate) = fate {
            let at = with(|world| {
                world.ended(rank, &fate);
                world.now
            });
            fates[rank] = Some((fate, at.expect("it is set")));
        }
    }
    drop(running);
    let fates: Vec<_> = fates.into_iter().map(|fate| fate.expect("all ranks have ended")).collect();
    let world = WORLD.take().expect("it is set");
    checks::check(&world, &fates);
    fates
}

/// Runs the simulations of these seeds in two threads, as there are two cores.
fn run_all(seeds: std::ops::Range<u64>) {
    let middle = seeds.start.midpoint(seeds.end);
    let half = |seeds: std::ops::Range<u64>| {
        let (samples, mut failing) = (ranks::samples(), Vec::new());
        let mut counts = BTreeMap::<String, u64>::new();
        for seed in seeds {
            match catch_unwind(AssertUnwindSafe(|| run(seed, &samples, |_| {}))) {
                Ok(fates) => fates.iter().for_each(|(fate, _)| {
                    *counts.entry(format!("{:?}", checks::kind(fate))).or_default() += 1;
                }),
                Err(_) => failing.push(seed),
            }
            assert!(failing.len() < 10, "failing seeds: {failing:?}");
        }
        assert!(failing.is_empty(), "failing seeds: {failing:?}");
        counts
    };
    let halves = std::thread::scope(|scope| {
        let halves = [seeds.start..middle, middle..seeds.end].map(|seeds| scope.spawn(|| half(seeds)));
        halves.map(|half| half.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    println!("fates of ranks: {halves:?}");
    for kind in ["Done", "Crashed", "Timeout", "Lost"] {
        assert!(
            halves.iter().all(|counts| counts.contains_key(kind)),
            "no rank ends with {kind}: {halves:?}"
        );
    }
}

#[test]
fn invariants_hold_in_ten_thousand_schedules() {
    run_all(0..10_000);
}

#[test]
#[ignore = "the deep suite runs it: it takes minutes"]
fn invariants_hold_in_a_million_schedules() {
    run_all(10_000..1_010_000);
}

#[test]
fn seed_reproduces_a_schedule() {
    let samples = ranks::samples();
    for seed in 0..100 {
        let fates = || format!("{:?}", run(seed, &samples, |_| {}));
        assert_eq!(fates(), fates(), "seed {seed}");
    }
}

#[test]
fn lost_byte_is_detected() {
    let samples = ranks::samples();
    let lossy = |schedule: &mut Schedule| {
        schedule.faults.clear();
        schedule.loses_bytes = true;
    };
    let detects = |&seed: &u64| catch_unwind(AssertUnwindSafe(|| run(seed, &samples, lossy))).is_err();
    assert!((0..20).filter(detects).count() > 10);
}
