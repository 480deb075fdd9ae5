//! The simulation: processes messages in the order in which they start.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::Unpredictable;
use super::outline::{Outline, World};
use crate::model::Machine;
use crate::world::Rank;

/// A time in microseconds that can be ordered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub(super) f64);

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Time {}

/// A message whose two ends are ready, or a message from another node whose first byte has reached the incoming port.
///
/// Messages at the same time are processed in this order. It compares positions relative to nodes before ranks, so that no
/// node is preferred: what holds for one node holds for all that do the same, which allows ranks to represent others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    at: Time,
    arrives: bool,
    /// The sender's local rank.
    local_rank: Rank,
    /// The distance from the sender's node to the receiver's.
    nodes: usize,
    /// The sender, one of the simulated ranks.
    from: Rank,
    to: Rank,
}

/// A rank in a step.
#[derive(Debug, Clone)]
struct Present {
    step: usize,
    ready_us: f64,
    /// Whether the step sends, and the receiver is not ready yet.
    sending: bool,
    /// Whether the step receives, and the sender is not ready yet.
    receiving: bool,
    /// The number of halves of the step that have not ended.
    halves: usize,
    /// The latest known end of a half, or else the end of the previous step.
    ended_us: f64,
    /// The time that the rank's core has worked on messages in the node.
    worked_us: f64,
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Played {
    /// The time at which each rank finishes.
    pub(super) finish_us: Vec<f64>,
    /// The time that the core of each rank has worked.
    worked_us: Vec<f64>,
    /// The time that the busiest port was occupied.
    busiest_port_us: f64,
}

impl Played {
    /// The time that the busiest port was occupied.
    pub(super) fn busiest_port_us(&self) -> f64 {
        self.busiest_port_us
    }

    /// The time at which all finish, on nodes with this many cores.
    pub(super) fn time_us(&self, world: &World<'_>, machine: &Machine) -> f64 {
        assert!(machine.cores > 0, "a machine without a core");
        let mut nodes_us = vec![0.0; world.topology.nodes()];
        for rank in 0..world.topology.ranks() {
            nodes_us[world.topology.node_of(rank)] += self.worked_us[world.played(rank)];
        }
        let busiest_us = nodes_us.into_iter().fold(0.0, f64::max);
        let last_us = self.finish_us.iter().copied().fold(0.0, f64::max);
        last_us.max(machine.call_us + busiest_us / machine.cores as f64)
    }
}

struct Clock<'a> {
    world: &'a World<'a>,
    machine: &'a Machine,
    element_size_bytes: usize,
    /// [`Machine::held_bytes`] of the largest node.
    held_bytes: usize,
    /// [`World::turn_us`].
    turn_us: f64,
    present: Vec<Present>,
    messages: BinaryHeap<Reverse<Message>>,
    /// For each node, when its outgoing and its incoming port are free.
    ports: Vec<[f64; 2]>,
    /// The time that each was occupied.
    occupied_us: Vec<[f64; 2]>,
}

/// Simulates the ranks to their end.
pub(super) fn play(
    world: &World<'_>,
    machine: &Machine,
    element_size_bytes: usize,
) -> Result<Played, Unpredictable> {
    for time_us in [machine.step_us, machine.call_us] {
        assert!(time_us.is_finite() && time_us >= 0.0, "a machine that takes {time_us} us");
    }
    let before = Present {
        step: 0,
        ready_us: 0.0,
        sending: false,
        receiving: false,
        halves: 0,
        ended_us: machine.call_us,
        worked_us: 0.0,
    };
    let mut clock = Clock {
        world,
        machine,
        element_size_bytes,
        held_bytes: world.held_bytes(machine, element_size_bytes),
        turn_us: world.turn_us(machine),
        present: vec![before; world.played.len()],
        messages: BinaryHeap::new(),
        ports: vec![[0.0; 2]; world.topology.nodes()],
        occupied_us: vec![[0.0; 2]; world.topology.nodes()],
    };
    for rank in 0..world.played.len() {
        clock.enter(rank, 0);
    }
    while let Some(Reverse(message)) = clock.messages.pop() {
        match (message.nodes, message.arrives) {
            (0, _) => clock.copy(&message),
            (_, false) => clock.send(message),
            (_, true) => clock.receive(&message),
        }
    }
    let finished = |(rank, present): (Rank, Present)| {
        let finished = present.step == world.played[rank].len();
        if finished { Ok(present.ended_us) } else { Err(Unpredictable::DoesNotFinish { rank }) }
    };
    let busiest_port_us = clock.occupied_us.iter().flatten().copied().fold(0.0, f64::max);
    let worked_us = clock.present.iter().map(|present| present.worked_us).collect();
    let finish_us = clock.present.into_iter().enumerate().map(finished).collect::<Result<_, _>>()?;
    Ok(Played { finish_us, worked_us, busiest_port_us })
}

impl Clock<'_> {
    fn step(&self, rank: Rank) -> Option<Outline> {
        self.world.played[rank].get(self.present[rank].step).copied()
    }

    /// The world rank at a distance from a rank, and the simulated rank that represents it.
    fn after(&self, rank: Rank, places: u32) -> (Rank, Rank) {
        let other = (rank + places as usize) % self.world.topology.ranks();
        (other, self.world.played(other))
    }

    /// Moves a rank to its next step, and starts messages with ranks that wait for it there.
    fn enter(&mut self, rank: Rank, step: usize) {
        let steps = &self.world.played[rank];
        let busy = |step: &Outline| step.to.is_some() || step.from.is_some();
        let machine = self.machine;
        let present = &mut self.present[rank];
        // Empty steps take no time.
        present.step = steps[step..].iter().position(busy).map_or(steps.len(), |idle| step + idle);
        let Some(&outline) = steps.get(present.step) else { return };
        let copied_bytes = if outline.copies { outline.sent_count * self.element_size_bytes } else { 0 };
        let copy_us = machine.copy_us(copied_bytes);
        present.worked_us += copy_us;
        present.ready_us = present.ended_us + machine.step_us + copy_us;
        present.ended_us = present.ready_us;
        present.sending = outline.to.is_some();
        present.receiving = outline.from.is_some();
        present.halves = usize::from(present.sending) + usize::from(present.receiving);
        if let Some(places) = outline.to {
            self.meet(rank, self.after(rank, places).1);
        }
        if let Some(places) = outline.from {
            self.meet(self.after(rank, places).1, rank);
        }
    }

    /// Queues the message between two ranks if both are ready for it.
    fn meet(&mut self, from: Rank, to: Rank) {
        if !(self.present[from].sending && self.present[to].receiving) {
            return;
        }
        let (Some(Outline { to: Some(onwards), .. }), Some(Outline { from: Some(back), .. })) =
            (self.step(from), self.step(to))
        else {
            return;
        };
        // Each must name the other itself, not another rank that is represented by the same one.
        let around = (onwards as usize + back as usize) % self.world.topology.ranks();
        let (receiver, played) = self.after(from, onwards);
        if around != 0 || played != to {
            return;
        }
        self.present[from].sending = false;
        self.present[to].receiving = false;
        let topology = self.world.topology;
        let nodes = topology.node_of(receiver) + topology.nodes() - topology.node_of(from);
        self.messages.push(Reverse(Message {
            at: Time(self.present[from].ready_us.max(self.present[to].ready_us)),
            arrives: false,
            local_rank: topology.local_rank(from),
            nodes: nodes % topology.nodes(),
            from,
            to,
        }));
    }

    /// The size of a message, and whether it is reduced.
    fn content(&self, message: &Message) -> (usize, bool) {
        let sent_count = self.step(message.from).map_or(0, |step| step.sent_count);
        let reduces = self.step(message.to).is_some_and(|step| step.reduces);
        (sent_count * self.element_size_bytes, reduces)
    }

    /// A message within a node: the receiver's core is available, since it has only one receive at a time.
    fn copy(&mut self, message: &Message) {
        let (size_bytes, reduces) = self.content(message);
        let Time(ready_us) = message.at;
        let work_us = self.machine.intra.time_among_us(size_bytes, self.held_bytes, reduces);
        self.present[message.to].worked_us += work_us;
        self.end(message, ready_us + work_us);
    }

    /// A message leaves the node after those before it.
    fn send(&mut self, message: Message) {
        let (size_bytes, _) = self.content(&message);
        let link = &self.machine.inter;
        let node = self.world.topology.node_of(message.from);
        self.occupied_us[node][0] += link.occupied_us(size_bytes);
        let [out_free_us, _] = &mut self.ports[node];
        let leaves_us = message.at.0.max(*out_free_us);
        *out_free_us = leaves_us + link.occupied_us(size_bytes);
        let arrives_us = leaves_us + link.latency_us(size_bytes);
        self.messages.push(Reverse(Message { at: Time(arrives_us), arrives: true, ..message }));
    }

    /// A message enters the node after those that arrived before it.
    fn receive(&mut self, message: &Message) {
        let (size_bytes, reduces) = self.content(message);
        let link = &self.machine.inter;
        let node = self.world.topology.node_of(message.to);
        self.occupied_us[node][1] += link.occupied_us(size_bytes);
        let [_, in_free_us] = &mut self.ports[node];
        let comes_in_us = message.at.0.max(*in_free_us);
        *in_free_us = comes_in_us + link.occupied_us(size_bytes);
        let after_first_byte_us = link.time_us(size_bytes, reduces) - link.latency_us(size_bytes);
        self.end(message, comes_in_us + after_first_byte_us);
    }

    fn end(&mut self, message: &Message, done_us: f64) {
        self.end_half(message.from, done_us);
        self.end_half(message.to, done_us + self.turn_us);
    }

    /// Ends one half of a rank's step; after the second one the rank continues.
    fn end_half(&mut self, rank: Rank, done_us: f64) {
        let present = &mut self.present[rank];
        present.ended_us = present.ended_us.max(done_us);
        present.halves -= 1;
        if present.halves == 0 {
            let next = present.step + 1;
            self.enter(rank, next);
        }
    }
}
