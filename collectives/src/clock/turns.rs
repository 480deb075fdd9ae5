//! Oversubscribed ranks of a node, which take turns on its cores.
//!
//! A rank that waits yields its core to the next one, and gets it back when all others of that core have had their turn. So
//! what it waits for takes effect not when it arrives, but in the rank's next turn; and a rank that others wait for must get
//! its turn first. With 8 ranks on 2 cores that is nearly all the time of a short all-reduce, and the decisive number is how
//! often the ranks of a core have to go around. It depends on who waits for whom in which order, which no formula of steps
//! and messages captures; but it is easily simulated.
//!
//! Every rank is a list of [acts](Act). A core executes those of one rank until it must wait, and [`Machine::hand_over_us`]
//! later continues with its next rank. Ranks that have finished still get their turns: they wait for the next call. The
//! kernel's placement of ranks is unknown; here rank r is on core r modulo the number of cores.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::Unpredictable;
use super::outline::World;
use super::play::Time;
use crate::model::Machine;
use crate::world::Rank;

/// A signal from a rank, by number: a message is ready, or has been taken.
type Word = usize;

/// An act of a rank.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Keeps the core busy for this long.
    Work(f64),
    Say(Word),
    Await(Word),
}

/// The acts of all ranks, in order, and the number of signals.
#[derive(Debug)]
pub(super) struct Acts {
    of_ranks: Vec<Vec<Act>>,
    words: usize,
}

impl Acts {
    /// The steps of all ranks of one node. Each message has two signals: that it is ready, and that it was taken. `earliest`
    /// returns when a rank sends ([`Schedule::earliest_sends`](crate::Schedule::earliest_sends)), if it executes eager
    /// steps.
    pub(super) fn of_steps(
        world: &World<'_>,
        machine: &Machine,
        element_size_bytes: usize,
        earliest: Option<impl Fn(Rank) -> Vec<usize>>,
    ) -> Result<Self, Unpredictable> {
        let ranks = world.topology.ranks();
        let after = |rank: Rank, places: u32| (rank + places as usize) % ranks;
        let held_bytes = world.held_bytes(machine, element_size_bytes);
        let mut words = 0;
        let mut sent = HashMap::<_, VecDeque<_>>::new();
        for (rank, steps) in world.played.iter().enumerate() {
            for step in steps {
                let Some(places) = step.to else { continue };
                let message = (words, step.sent_count * element_size_bytes);
                sent.entry((rank, after(rank, places))).or_default().push_back(message);
                words += 2;
            }
        }
        let is_eager = earliest.is_some();
        let mut word = 0;
        let mut of_ranks = Vec::with_capacity(ranks);
        for (rank, steps) in world.played.iter().enumerate() {
            let mut acts = vec![Act::Work(machine.call_us)];
            let mut ahead = vec![Vec::new(); steps.len()];
            let earliest = earliest.as_ref().map_or_else(|| (0..steps.len()).collect(), |of| of(rank));
            for (step, at) in steps.iter().zip(earliest) {
                if step.to.is_some() {
                    ahead[at].push(word);
                    word += 2;
                }
            }
            for (step, said) in steps.iter().zip(&ahead) {
                let sent_bytes = step.sent_count * element_size_bytes;
                let copied_bytes = if step.copies && !is_eager { sent_bytes } else { 0 };
                acts.push(Act::Work(machine.step_us + machine.copy_us(copied_bytes)));
                acts.extend(said.iter().copied().map(Act::Say));
                if let Some(places) = step.from {
                    let message = sent.get_mut(&(after(rank, places), rank)).and_then(VecDeque::pop_front);
                    let (there, size_bytes) = message.ok_or(Unpredictable::DoesNotFinish { rank })?;
                    let work_us = machine.intra.time_among_us(size_bytes, held_bytes, step.reduces);
                    acts.extend([Act::Await(there), Act::Work(work_us), Act::Say(there + 1)]);
                }
                // Without eager steps, the sends are those of the step itself.
                let waits = sent_bytes > machine.eager_bytes;
                acts.extend(said.iter().filter(|_| waits).map(|word| Act::Await(word + 1)));
            }
            of_ranks.push(acts);
        }
        Ok(Self { of_ranks, words })
    }

    /// A single pass of this many ranks: each opens its array to all, works once all have, and finishes once all have.
    pub(super) fn of_one_pass(ranks: usize, machine: &Machine, work_us: f64) -> Self {
        let of_rank = |rank: Rank| {
            let all = move |say: Act, first: Word| {
                let others = (0..ranks).filter(move |&other| other != rank);
                std::iter::once(say).chain(others.map(move |other| Act::Await(first + other)))
            };
            let opened = all(Act::Say(rank), 0);
            let closed = all(Act::Say(ranks + rank), ranks);
            let acts = std::iter::once(Act::Work(machine.call_us)).chain(opened);
            acts.chain([Act::Work(work_us)]).chain(closed).collect()
        };
        Self { of_ranks: (0..ranks).map(of_rank).collect(), words: 2 * ranks }
    }
}

/// A core, with the ranks that take turns on it.
#[derive(Debug)]
struct Core {
    ranks: Vec<Rank>,
    /// The index of the rank whose turn it is.
    turn: usize,
    at_us: f64,
    /// The number of consecutive turns without an act.
    idle_turns: usize,
}

/// The progress of all ranks.
struct Player<'a> {
    acts: &'a Acts,
    /// The number of acts that each rank has done.
    done: Vec<usize>,
    /// When each signal is given.
    said_us: Vec<f64>,
    finish_us: f64,
}

/// The time at which the last rank finishes.
pub(super) fn play(acts: &Acts, machine: &Machine) -> Result<f64, Unpredictable> {
    let ranks = acts.of_ranks.len();
    let on_core = |core: usize| Core {
        ranks: (core..ranks).step_by(machine.cores).collect(),
        turn: 0,
        at_us: 0.0,
        idle_turns: 0,
    };
    let mut cores: Vec<_> = (0..machine.cores.min(ranks)).map(on_core).collect();
    let mut player =
        Player { acts, done: vec![0; ranks], said_us: vec![f64::INFINITY; acts.words], finish_us: 0.0 };
    // Cores in the order of their times, so that no signal is checked before it could have been given; and cores whose ranks
    // all wait for signals not given yet.
    let mut busy: BinaryHeap<_> = (0..cores.len()).map(|core| Reverse((Time(0.0), core))).collect();
    let mut idle = Vec::new();
    while let Some(Reverse((_, number))) = busy.pop() {
        let core = &mut cores[number];
        if player.turn(core, machine.hand_over_us) {
            busy.push(Reverse((Time(core.at_us), number)));
        } else {
            idle.push(number);
        }
        idle.retain(|&number| {
            let waits = !player.skip(&mut cores[number], machine.hand_over_us);
            if !waits {
                busy.push(Reverse((Time(cores[number].at_us), number)));
            }
            waits
        });
    }
    let is_done = |&rank: &Rank| player.done[rank] == acts.of_ranks[rank].len();
    match (0..ranks).find(|rank| !is_done(rank)) {
        Some(rank) => Err(Unpredictable::DoesNotFinish { rank }),
        None => Ok(player.finish_us),
    }
}

impl Player<'_> {
    /// Runs the rank whose turn it is until it has worked or must wait, and then hands over. Returns whether this core may
    /// have something to do.
    fn turn(&mut self, core: &mut Core, hand_over_us: f64) -> bool {
        let rank = core.ranks[core.turn];
        let acts = &self.acts.of_ranks[rank];
        while let Some(&act) = acts.get(self.done[rank]) {
            match act {
                Act::Await(word) if self.said_us[word] > core.at_us => break,
                Act::Await(_) => {}
                Act::Say(word) => self.said_us[word] = core.at_us,
                Act::Work(work_us) => core.at_us += work_us,
            }
            core.idle_turns = 0;
            self.done[rank] += 1;
            if self.done[rank] == acts.len() {
                self.finish_us = self.finish_us.max(core.at_us);
            }
            // Other ranks may give signals during that time.
            if matches!(act, Act::Work(_)) {
                return true;
            }
        }
        core.hand_over(1.0, hand_over_us);
        core.idle_turns += 1;
        core.idle_turns <= core.ranks.len()
    }

    /// Skips the turns without an act on an idle core; returns whether there will be an act.
    fn skip(&self, core: &mut Core, hand_over_us: f64) -> bool {
        let awaited = |&rank: &Rank| match self.acts.of_ranks[rank].get(self.done[rank]) {
            Some(&Act::Await(word)) => self.said_us[word],
            _ => f64::INFINITY,
        };
        let next_us = core.ranks.iter().map(awaited).fold(f64::INFINITY, f64::min);
        if next_us == f64::INFINITY {
            return false;
        }
        core.idle_turns = 0;
        if core.ranks.len() == 1 || hand_over_us == 0.0 {
            core.at_us = core.at_us.max(next_us);
        } else if next_us > core.at_us {
            core.hand_over(((next_us - core.at_us) / hand_over_us).ceil(), hand_over_us);
        }
        true
    }
}

impl Core {
    /// Hands over this many times, to one rank after the other.
    fn hand_over(&mut self, times: f64, hand_over_us: f64) {
        if self.ranks.len() > 1 {
            self.at_us += times * hand_over_us;
            self.turn = (self.turn + (times % self.ranks.len() as f64) as usize) % self.ranks.len();
        }
    }
}
