//! The event simulation: runs the acts of all ranks in simulated time.
//!
//! A core runs the acts of a rank until the rank must wait. If other ranks share the core, it then switches to the next one,
//! [`Machine::hand_over_us`] later, and returns after all others have had their turn. So an awaited event takes effect in the rank's next
//! turn, not when it happens. Ranks that have finished still get their turns, since they wait for the next call. (With 8 ranks on 2 cores
//! these turns are nearly all the time of a short all-reduce.) The kernel's placement of ranks is unknown; here local rank r is on core r
//! modulo the number of cores.
//!
//! A rank depends on others only through messages and barriers. So a rank with its own core runs ahead until it waits for an event that is
//! not simulated yet. Turns and ports depend on the order of events, which are therefore processed in the order of their times, each when no
//! rank can run ahead.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use super::Unpredictable;
use super::outline::{Act, Halves, World};
use crate::model::Machine;
use crate::world::Rank;

mod state;

use state::{Core, Event, Message, RankState, Route, Stage};

struct Clock<'a> {
    world: &'a World<'a>,
    machine: &'a Machine,
    element_size_bytes: usize,
    /// [`Machine::held_bytes`] on the largest node: for messages, and for the parts of a single pass.
    held_bytes: usize,
    held_part_bytes: usize,
    states: Vec<RankState>,
    cores: Vec<Core>,
    /// Cores of a single rank that may run ahead.
    ahead: Vec<usize>,
    /// By time, whose bits have the order of the number, since it is not negative.
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// The number of ranks that have reached the current barrier, and when the last of them did.
    barrier: (usize, f64),
    /// For each node, when its outgoing and its incoming port are free, and the time that each was occupied.
    ports: Vec<[(f64, f64); 2]>,
}

#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) finish_us: Vec<f64>,
    pub(super) busiest_port_us: f64,
}

impl Simulation {
    pub(super) fn time_us(&self) -> f64 {
        self.finish_us.iter().copied().fold(0.0, f64::max)
    }
}

pub(super) fn simulate(
    world: &World<'_>,
    machine: &Machine,
    (count, element_size_bytes): (usize, usize),
) -> Result<Simulation, Unpredictable> {
    for time_us in [machine.step_us, machine.call_us] {
        assert!(time_us.is_finite() && time_us >= 0.0, "a machine that takes {time_us} us");
    }
    assert!(machine.cores > 0, "a machine without a core");
    let topology = world.topology;
    let [held_bytes, held_part_bytes] =
        machine.held_bytes(count * element_size_bytes, topology.ranks_of_largest_node());
    let mut clock = Clock {
        world,
        machine,
        element_size_bytes,
        held_bytes,
        held_part_bytes,
        states: Vec::with_capacity(world.simulated.len()),
        cores: Vec::new(),
        ahead: Vec::new(),
        events: BinaryHeap::new(),
        barrier: (0, 0.0),
        ports: vec![[(0.0, 0.0); 2]; topology.nodes()],
    };
    clock.place_ranks();
    (0..world.simulated.len()).for_each(|rank| clock.wake(rank, 0.0));
    loop {
        if let Some(core) = clock.ahead.pop() {
            clock.run(core, f64::MAX);
        } else if let Some(Reverse((at, event))) = clock.events.pop() {
            match (f64::from_bits(at), event) {
                (at_us, Event::Turn(core)) => clock.run(core, at_us),
                (at_us, Event::Leave(route)) => clock.leave(at_us, route),
                (at_us, Event::Arrive(route)) => clock.arrive(at_us, &route),
            }
        } else {
            break;
        }
    }
    let unfinished = (0..world.simulated.len()).find(|&rank| clock.act(rank).is_some());
    let not_received = clock.states.iter().flat_map(|state| &state.inbox).map(|message| message.from);
    if let Some(rank) = unfinished.into_iter().chain(not_received).next() {
        return Err(Unpredictable::DoesNotFinish { rank });
    }
    let busiest_port_us = clock.ports.iter().flatten().map(|(_, occupied_us)| *occupied_us);
    Ok(Simulation {
        finish_us: clock.states.iter().map(|state| state.finish_us).collect(),
        busiest_port_us: busiest_port_us.fold(0.0, f64::max),
    })
}

impl Clock<'_> {
    fn place_ranks(&mut self) {
        let topology = self.world.topology;
        let mut of_nodes = vec![Vec::new(); topology.nodes()];
        for rank in 0..self.world.simulated.len() {
            let of_node = &mut of_nodes[topology.node_of(rank)];
            let number = topology.local_rank(rank) % self.machine.cores;
            if number == of_node.len() {
                of_node.push(self.cores.len());
                self.cores.push(Core { next_us: f64::INFINITY, ..Core::default() });
            }
            let core = of_node[number];
            let turn = self.cores[core].ranks.len();
            self.cores[core].ranks.push(rank);
            self.states.push(RankState { core, turn, ..RankState::default() });
        }
    }

    fn act(&self, rank: Rank) -> Option<Act> {
        self.world.simulated[rank].get(self.states[rank].act).copied()
    }

    /// Returns, for the rank `places` after a rank, the distance between their nodes and the simulated rank that represents it.
    fn after(&self, rank: Rank, places: NonZeroU32) -> (usize, Rank) {
        let topology = self.world.topology;
        let other = (rank + places.get() as usize) % topology.ranks();
        let nodes = topology.node_of(other) + topology.nodes() - topology.node_of(rank);
        (nodes % topology.nodes(), other % self.world.simulated.len())
    }

    /// Returns when a core can continue with one of its ranks: at the rank's first turn after the awaited event.
    fn turn_us(&self, core: &Core, turn: usize) -> f64 {
        let (ranks, hand_over_us) = (core.ranks.len(), self.machine.hand_over_us);
        let awaited_us = self.states[core.ranks[turn]].awaited_us;
        if ranks == 1 || hand_over_us == 0.0 {
            return awaited_us.max(core.at_us);
        }
        let at_us = core.at_us + ((turn + ranks - core.turn) % ranks) as f64 * hand_over_us;
        // A message that arrives at the time of the turn itself is not received in it.
        let has_happened = awaited_us == 0.0 || awaited_us < at_us;
        let around_us = ranks as f64 * hand_over_us;
        let rounds = if has_happened { 0.0 } else { ((awaited_us - at_us) / around_us + 1.0).floor() };
        at_us + rounds * around_us
    }

    /// Returns when a core can continue with any of its ranks, and the index of that rank.
    fn next_turn(&self, core: &Core) -> (f64, usize) {
        let mut first = (f64::INFINITY, 0);
        for times in 0..core.ranks.len() {
            if core.at_us + times as f64 * self.machine.hand_over_us >= first.0 {
                break;
            }
            let turn = (core.turn + times) % core.ranks.len();
            let at_us = self.turn_us(core, turn);
            if at_us < first.0 {
                first = (at_us, turn);
            }
        }
        first
    }

    /// Runs the ranks of a core until all must wait, or at most to this time, since other cores may act before a later one.
    fn run(&mut self, number: usize, until_us: f64) {
        let core = &mut self.cores[number];
        if core.ranks.len() > 1 && core.next_us != until_us {
            // The core has had its turn already.
            return;
        }
        core.next_us = f64::INFINITY;
        loop {
            let (at_us, turn) = self.next_turn(&self.cores[number]);
            if at_us > until_us {
                return self.schedule(number, at_us);
            }
            let core = &mut self.cores[number];
            (core.at_us, core.turn) = (at_us, turn);
            let rank = core.ranks[turn];
            self.advance(rank);
            self.states[rank].finish_us = self.cores[number].at_us;
        }
    }

    /// Makes a rank continue with its act at this time, or later.
    fn wake(&mut self, rank: Rank, awaited_us: f64) {
        self.states[rank].awaited_us = awaited_us;
        let RankState { core, turn, .. } = self.states[rank];
        match self.cores[core].ranks.len() {
            1 => self.ahead.push(core),
            _ => self.schedule(core, self.turn_us(&self.cores[core], turn)),
        }
    }

    /// Schedules a core to continue at this time, unless it does earlier.
    fn schedule(&mut self, core: usize, at_us: f64) {
        if at_us < self.cores[core].next_us {
            self.cores[core].next_us = at_us;
            self.push(at_us, Event::Turn(core));
        }
    }

    fn push(&mut self, at_us: f64, event: Event) {
        self.events.push(Reverse((at_us.to_bits(), event)));
    }

    /// Continues the act of a rank that need not wait, at the time of its core.
    fn advance(&mut self, rank: Rank) {
        let act = self.act(rank).expect("a rank that has finished waits");
        match (self.states[rank].stage, act) {
            (Stage::Begin, Act::Call) => self.work(rank, self.machine.call_us),
            (Stage::Begin, Act::Keep { count }) => {
                self.work(rank, self.machine.intra.occupied_us(count * self.element_size_bytes));
            }
            (Stage::Begin, Act::Pass { others, count }) => self.work(rank, self.pass_us(others, count)),
            (Stage::Begin, Act::Sync) => return self.reach_barrier(rank),
            (Stage::Begin, Act::Message(halves)) => return self.send(rank, halves),
            (Stage::Receive, Act::Message(halves)) => return self.receive(rank, halves),
            (Stage::Receive | Stage::End, _) => {}
        }
        self.next_act(rank);
    }

    fn next_act(&mut self, rank: Rank) {
        let state = &mut self.states[rank];
        (state.act, state.stage, state.awaited_us) = (state.act + 1, Stage::Begin, 0.0);
        if state.act == self.world.simulated[rank].len() {
            state.awaited_us = f64::INFINITY;
        }
    }

    fn work(&mut self, rank: Rank, work_us: f64) {
        self.cores[self.states[rank].core].at_us += work_us;
    }

    fn pass_us(&self, others: usize, count: usize) -> f64 {
        let link = self.machine.one_pass.as_ref().expect("only ranks that share memory make a single pass");
        others as f64 * link.time_among_us(count * self.element_size_bytes, self.held_part_bytes, true)
    }

    fn reach_barrier(&mut self, rank: Rank) {
        let state = &mut self.states[rank];
        (state.stage, state.awaited_us) = (Stage::Receive, f64::INFINITY);
        let (reached, last_us) = self.barrier;
        self.barrier = (reached + 1, last_us.max(self.cores[state.core].at_us));
        if reached + 1 == self.states.len() {
            // No rank has reached the next one.
            let (ranks, last_us) = std::mem::take(&mut self.barrier);
            self.next_act(rank);
            (0..ranks).filter(|&other| other != rank).for_each(|other| self.wake(other, last_us));
        }
    }

    /// Sends the message of an act, if any, and begins to receive.
    fn send(&mut self, rank: Rank, halves: Halves) {
        let size_bytes = halves.sent_count * self.element_size_bytes;
        let step_us = if halves.is_part { 0.0 } else { self.machine.step_us };
        let link = &self.machine.intra;
        let copy_us = link.time_among_us(size_bytes, self.held_bytes, false) - link.latency_us(size_bytes);
        // The time of a short message includes this copy.
        let copies = halves.copies && size_bytes > self.machine.eager_bytes;
        self.work(rank, step_us + if copies { copy_us } else { 0.0 });
        let sent_us = self.cores[self.states[rank].core].at_us;
        self.states[rank].received_us = 0.0;
        if let Some(places) = halves.to {
            let (topology, (nodes, to)) = (self.world.topology, self.after(rank, places));
            // A short message within a node is copied at once.
            let is_long = !halves.is_eager && (nodes > 0 || size_bytes > self.machine.eager_bytes);
            let is_own = places.get() as usize == topology.ranks();
            // A copy is in memory that the receiver reads.
            let is_staged = is_long && nodes == 0 && !is_own && !halves.is_of_copy;
            let staging_bytes = self.machine.staging_bytes.filter(|_| is_staged);
            // Staging memory that has room for a message keeps it until it is received.
            let is_awaited = is_long && staging_bytes.is_none_or(|bytes| size_bytes > bytes);
            if is_awaited {
                self.states[rank].received_us = f64::INFINITY;
            }
            // (The time of a short message includes its copy, except for a rank that receives no message.)
            if staging_bytes.is_some() || !is_long && halves.from.is_none() && !halves.is_part {
                self.work(rank, copy_us + self.switches_us(rank, size_bytes));
            }
            let message = Message { from: rank, places, nodes, size_bytes, sent_us, is_awaited, is_staged };
            self.states[to].inbox.push(message);
            self.match_next(to);
        }
        let state = &mut self.states[rank];
        (state.stage, state.awaited_us, state.ready_us) = (Stage::Receive, f64::INFINITY, sent_us);
        match halves.from {
            Some(_) => self.match_next(rank),
            None => self.end(rank),
        }
    }

    /// Returns the time of the context switches of a rank while a message passes through staging memory that is smaller.
    fn switches_us(&self, rank: Rank, size_bytes: usize) -> f64 {
        let is_alone = self.cores[self.states[rank].core].ranks.len() == 1;
        let staging_bytes = self.machine.staging_bytes.filter(|&bytes| !is_alone && size_bytes > bytes);
        let switches = staging_bytes.map_or(0, |bytes| size_bytes / bytes);
        switches as f64 * self.machine.hand_over_us
    }

    /// Matches a waiting rank with its next message, if that has been sent. A message from another node leaves now.
    fn match_next(&mut self, to: Rank) {
        let act = self.act(to);
        let state = &mut self.states[to];
        let is_waiting = state.stage == Stage::Receive && state.in_transit.is_none();
        let Some(Act::Message(Halves { from: Some(places), .. })) = act.filter(|_| is_waiting) else {
            return;
        };
        let Some(index) = state.inbox.iter().position(|message| message.places == places) else { return };
        let message @ Message { from, nodes, sent_us, .. } = state.inbox[index];
        if nodes == 0 {
            // A message to itself is available immediately.
            return self.wake(to, if from == to { 0.0 } else { sent_us });
        }
        state.inbox.remove(index);
        state.in_transit = Some(message);
        let at_us = sent_us.max(state.ready_us);
        let local_rank = self.world.topology.local_rank(from);
        self.push(at_us, Event::Leave(Route { local_rank, nodes, from, to }));
    }

    /// Receives the message of an act. A message from another node needs no work of the core.
    fn receive(&mut self, rank: Rank, halves: Halves) {
        let RankState { core, in_transit, inbox, .. } = &mut self.states[rank];
        let core = *core;
        if in_transit.take().is_none() {
            let index = inbox.iter().position(|message| Some(message.places) == halves.from);
            let message = inbox.remove(index.expect("a rank waits for its message"));
            let (link, size_bytes) = (&self.machine.intra, message.size_bytes);
            // A rank does not wait for its own message.
            let is_own = message.places.get() as usize == self.world.topology.ranks();
            let switches_us = if message.is_staged { self.switches_us(rank, size_bytes) } else { 0.0 };
            let besides_us = if is_own { -link.latency_us(size_bytes) } else { switches_us };
            self.work(rank, link.time_among_us(size_bytes, self.held_bytes, halves.reduces) + besides_us);
            self.received(message, self.cores[core].at_us);
        }
        self.end(rank);
    }

    /// Makes the sender of a message continue once the message has been received.
    fn received(&mut self, Message { from, is_awaited, .. }: Message, at_us: f64) {
        if is_awaited {
            self.states[from].received_us = at_us;
            if self.states[from].stage == Stage::End {
                self.wake(from, at_us);
            }
        }
    }

    /// Ends an act, once the message that the rank has sent is received.
    fn end(&mut self, rank: Rank) {
        let state = &mut self.states[rank];
        (state.stage, state.awaited_us) = (Stage::End, state.received_us);
        if state.awaited_us == 0.0 {
            self.next_act(rank);
        }
    }

    /// Sends a message through the outgoing port, after those before it.
    fn leave(&mut self, at_us: f64, route: Route) {
        let size_bytes = self.in_transit(route.to).size_bytes;
        let leaves_us = self.pass_port(at_us, (route.from, 0), size_bytes);
        self.push(leaves_us + self.machine.inter.latency_us(size_bytes), Event::Arrive(route));
    }

    /// Passes a message through the incoming port, after those that arrived before it.
    fn arrive(&mut self, at_us: f64, &Route { to, .. }: &Route) {
        let reduces = matches!(self.act(to), Some(Act::Message(Halves { reduces: true, .. })));
        let message @ Message { size_bytes, .. } = self.in_transit(to);
        let link = &self.machine.inter;
        let after_first_byte_us = link.time_us(size_bytes, reduces) - link.latency_us(size_bytes);
        let done_us = self.pass_port(at_us, (to, 1), size_bytes) + after_first_byte_us;
        self.wake(to, done_us);
        self.received(message, done_us);
    }

    fn in_transit(&self, to: Rank) -> Message {
        self.states[to].in_transit.expect("a rank receives one message at a time")
    }

    /// Occupies the outgoing or the incoming port of a rank's node, once it is free. Returns the time at which it does.
    fn pass_port(&mut self, at_us: f64, (rank, port): (Rank, usize), size_bytes: usize) -> f64 {
        let busy_us = self.machine.inter.occupied_us(size_bytes);
        let (free_us, occupied_us) = &mut self.ports[self.world.topology.node_of(rank)][port];
        let begins_us = at_us.max(*free_us);
        (*free_us, *occupied_us) = (begins_us + busy_us, *occupied_us + busy_us);
        begins_us
    }
}
