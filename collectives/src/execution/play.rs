//! Simulates the actions of all ranks on symbols.
//!
//! Each rank acts until it has to wait. Ranks receive from named ranks, in the order of sending, so the result does not depend
//! on which rank goes first.

use std::collections::{HashMap, VecDeque};

use super::acts::{Act, Part, Received, Sent};
use crate::defect::Defect;
use crate::interpret::{Event, Values};
use crate::schedule::{Combine, Source};
use crate::verify::symbols::{Symbol, Symbols};
use crate::world::Rank;

/// The sender and the receiver.
type Pair = (Rank, Rank);

/// The messages from one rank to another.
#[derive(Debug, Default)]
struct Channel {
    under_way: VecDeque<(Sent, Vec<Symbol>)>,
    sent: usize,
    taken: usize,
}

/// The state of a rank.
#[derive(Debug, Clone, Default)]
struct Present {
    act: usize,
    /// The number of the message that the current action has sent, if it waits for that.
    sent: Option<usize>,
    received: bool,
    /// The number of barriers that it has reached.
    meetings: usize,
    has_come: bool,
}

pub(super) struct Player<'a> {
    acts: &'a [Vec<Act>],
    blocks: usize,
    symbols: &'a mut Symbols,
    inputs: Vec<Vec<Symbol>>,
    pub(super) buffers: Vec<Vec<Symbol>>,
    present: Vec<Present>,
    channels: HashMap<Pair, Channel>,
    /// The number of state changes of any rank.
    changes: usize,
    /// The rank that accessed a cell of a rank's buffer, by pass.
    touched: HashMap<(usize, Rank, usize), Rank>,
    pub(super) defects: Vec<Defect>,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        acts: &'a [Vec<Act>],
        blocks: usize,
        symbols: &'a mut Symbols,
        inputs: Vec<Vec<Symbol>>,
    ) -> Self {
        let present = vec![Present::default(); acts.len()];
        let (channels, touched, changes) = (HashMap::new(), HashMap::new(), 0);
        let buffers = inputs.clone();
        Self {
            acts,
            blocks,
            symbols,
            inputs,
            buffers,
            present,
            channels,
            changes,
            touched,
            defects: Vec::new(),
        }
    }

    /// Simulates until no rank can continue, and reports those that have not finished.
    pub(super) fn play(&mut self) {
        let mut before = None;
        // A waiting rank may have changed the state of others: by a send, a receive or a barrier.
        while before != Some(self.changes) {
            before = Some(self.changes);
            for rank in 0..self.acts.len() {
                while self.defects.is_empty() && self.act(rank) {
                    self.changes += 1;
                }
            }
        }
        if self.defects.is_empty() {
            self.defects.append(&mut self.symbols.defects);
            self.stuck();
        }
    }

    /// Tries one action of a rank. Returns whether it continued.
    fn act(&mut self, rank: Rank) -> bool {
        let Some(&act) = self.acts[rank].get(self.present[rank].act) else { return false };
        let is_done = match act {
            Act::Exchange(send, receive) => self.exchange(rank, send, receive),
            Act::Send(send, room) => {
                let channel = self.channels.entry((rank, send.to)).or_default();
                let has_room = channel.under_way.len() < room;
                if has_room {
                    self.send(rank, send);
                }
                has_room
            }
            Act::Receive(receive) => self.receive(rank, receive),
            Act::Original { from, to, combine } => {
                let values = self.cells(from).map(|cell| self.inputs[rank][cell]).collect();
                self.put(rank, to, values, combine);
                true
            }
            Act::Meet => self.meet(rank),
            Act::Read { of, theirs, own, combine } => {
                let values = self.touch(rank, of, theirs);
                self.touch(rank, rank, own);
                self.put(rank, own, values, combine);
                true
            }
            Act::Write { to, theirs, own } => {
                let values = self.touch(rank, rank, own);
                self.touch(rank, to, theirs);
                self.put(to, theirs, values, Combine::Replace);
                true
            }
            Act::Swap { with, theirs, own } => {
                let (ours, others) = (self.touch(rank, rank, own), self.touch(rank, with, theirs));
                self.put(with, theirs, ours, Combine::Replace);
                self.put(rank, own, others, Combine::Replace);
                true
            }
        };
        if is_done {
            let Present { act, meetings, .. } = self.present[rank];
            self.present[rank] = Present { act: act + 1, meetings, ..Present::default() };
        }
        is_done
    }

    fn exchange(&mut self, rank: Rank, send: Option<Sent>, receive: Option<Received>) -> bool {
        if let (Some(send), None) = (send, self.present[rank].sent) {
            self.present[rank].sent = Some(self.send(rank, send));
        }
        if let (Some(receive), false) = (receive, self.present[rank].received) {
            self.present[rank].received = self.receive(rank, receive);
        }
        let Present { sent, received, .. } = self.present[rank];
        let is_taken = |send: Sent| sent.is_some_and(|number| self.channels[&(rank, send.to)].taken > number);
        send.is_none_or(is_taken) && (receive.is_none() || received)
    }

    /// Sends the current contents of the buffer; returns the number of the message.
    fn send(&mut self, rank: Rank, send: Sent) -> usize {
        let from = if send.source == Source::Original { &self.inputs } else { &self.buffers };
        let values = self.cells(send.part).map(|cell| from[rank][cell]).collect();
        let channel = self.channels.entry((rank, send.to)).or_default();
        channel.under_way.push_back((send, values));
        channel.sent += 1;
        self.changes += 1;
        channel.sent - 1
    }

    /// Tries a receive. Returns whether there was a message.
    fn receive(&mut self, rank: Rank, Received { from, part, combine }: Received) -> bool {
        let channel = self.channels.entry((from, rank)).or_default();
        let Some((sent, values)) = channel.under_way.pop_front() else { return false };
        channel.taken += 1;
        self.changes += 1;
        if sent.part.chunks.count() != part.chunks.count() {
            let (step, sent, received) = (self.present[rank].act, sent.part.chunks, part.chunks);
            self.defects.push(Defect::LengthMismatch { from, to: rank, step, sent, received });
            return false;
        }
        self.put(rank, part, values, combine);
        true
    }

    fn meet(&mut self, rank: Rank) -> bool {
        if !std::mem::replace(&mut self.present[rank].has_come, true) {
            self.present[rank].meetings += 1;
            self.changes += 1;
        }
        let meetings = self.present[rank].meetings;
        self.present.iter().all(|other| other.meetings >= meetings)
    }

    /// The contents of a part of a buffer, accessed by a rank in a pass, in which no other rank may access it.
    fn touch(&mut self, rank: Rank, of: Rank, part: Part) -> Vec<Symbol> {
        let pass = self.present[rank].meetings;
        let cells: Vec<_> = self.cells(part).collect();
        for &cell in &cells {
            let first = *self.touched.entry((pass, of, cell)).or_insert(rank);
            if first != rank {
                self.defects.push(Defect::Race { one: first, other: rank, of, chunk: cell / self.blocks });
            }
        }
        cells.into_iter().map(|cell| self.buffers[of][cell]).collect()
    }

    fn put(&mut self, rank: Rank, part: Part, values: Vec<Symbol>, combine: Combine) {
        let (step, chunks) = (self.present[rank].act, part.chunks);
        let at = Event { rank, step, from: rank, sent: chunks, received: chunks, combine };
        for (cell, value) in self.cells(part).zip(values) {
            let held = &mut self.buffers[rank][cell];
            match combine {
                Combine::Replace => *held = value,
                Combine::Reduce => self.symbols.reduce(at, held, &value),
            }
        }
    }

    /// The cells of a part: a block of each of its chunks.
    fn cells(&self, Part { chunks, block }: Part) -> impl Iterator<Item = usize> + use<> {
        let blocks = self.blocks;
        (chunks.start..chunks.end).map(move |chunk| chunk * blocks + block)
    }

    fn stuck(&mut self) {
        let waits = |rank: Rank| self.present[rank].act < self.acts[rank].len();
        let meets = |rank: Rank| self.present[rank].meetings;
        let last = |rank: &Rank| (meets(*rank), waits(*rank));
        for (rank, present) in self.present.iter().enumerate().filter(|(rank, _)| waits(*rank)) {
            let (others, _) = self.acts[rank][present.act].names();
            // If one of two ranks has finished, that is the cause; at a barrier, a rank waits for the last one.
            let other = others.into_iter().min_by_key(|&other| waits(other));
            let other = other.or_else(|| (0..self.acts.len()).min_by_key(last)).unwrap_or(rank);
            let step = present.act;
            self.defects.push(if waits(other) {
                Defect::Deadlock { rank, step, other }
            } else {
                Defect::Unmatched { rank, step, other }
            });
        }
        let mut left: Vec<_> =
            self.channels.iter().filter(|(_, channel)| channel.sent > channel.taken).collect();
        left.sort_by_key(|(pair, _)| **pair);
        self.defects.extend(left.into_iter().map(|(&(from, to), _)| Defect::NotTaken { from, to }));
    }
}
