//! The meaning of programs: runs those of all ranks, over values of any kind.
//!
//! Each rank continues until it has to wait. Ranks receive from named ranks, in the order of sending, so the result does not depend
//! on which rank goes first.

use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;

use super::{Incoming, Instruction, Outgoing, Part, Program};
use crate::defect::Defect;
use crate::interpret::{Event, Values};
use crate::schedule::{Combine, Source};
use crate::world::Rank;

/// The sender and the receiver.
type Pair = (Rank, Rank);

/// The messages from one rank to another.
#[derive(Debug)]
struct Channel<V> {
    under_way: VecDeque<(Outgoing, Vec<V>)>,
    sent: usize,
    taken: usize,
}

/// The state of a rank.
#[derive(Debug, Clone, Default)]
struct Present {
    instruction: usize,
    /// The number of the message that the current instruction has sent, if it waits for that.
    sent: Option<usize>,
    received: bool,
    /// The number of barriers that it has reached.
    meetings: usize,
    has_come: bool,
}

/// All ranks at once.
pub(super) struct Player<'a, V: Values> {
    programs: &'a [Program],
    blocks: usize,
    values: &'a mut V,
    inputs: Vec<Vec<V::Value>>,
    pub(super) buffers: Vec<Vec<V::Value>>,
    present: Vec<Present>,
    channels: HashMap<Pair, Channel<V::Value>>,
    /// The number of state changes of any rank.
    changes: usize,
    /// The rank that accessed a cell of a rank's buffer, by pass.
    touched: HashMap<(usize, Rank, usize), Rank>,
    pub(super) defects: Vec<Defect>,
}

/// Runs the programs of all ranks (rank 0's first) on numbers, and returns their buffers. A buffer has one number for each block of each chunk, one
/// chunk's after the other's. `reduce(held, arrived)` is the operation.
///
/// # Errors
/// Why the programs do not finish, or what two ranks touch at once.
///
/// # Panics
/// If the numbers of programs and inputs differ, or the lengths of inputs; if a program names ranks or parts that do not exist.
pub fn run<T: Copy>(
    programs: &[Program],
    inputs: &[Vec<T>],
    reduce: impl Fn(T, T) -> T,
) -> Result<Vec<Vec<T>>, Vec<Defect>> {
    assert_eq!(programs.len(), inputs.len(), "one input for each rank");
    for (Program { chunk_count, blocks, .. }, input) in programs.iter().zip(inputs) {
        assert_eq!(input.len(), chunk_count * blocks, "a number for each block of each chunk");
    }
    let mut numbers = Numbers(reduce, PhantomData);
    let mut player = Player::new(programs, &mut numbers, inputs.to_vec());
    player.play();
    if player.defects.is_empty() { Ok(player.buffers) } else { Err(player.defects) }
}

struct Numbers<T, F>(F, PhantomData<T>);

impl<T: Copy, F: Fn(T, T) -> T> Values for Numbers<T, F> {
    type Value = T;

    fn reduce(&mut self, _: Event, held: &mut T, arrived: &T) {
        *held = (self.0)(*held, *arrived);
    }
}

impl<'a, V: Values> Player<'a, V> {
    pub(super) fn new(programs: &'a [Program], values: &'a mut V, inputs: Vec<Vec<V::Value>>) -> Self {
        Self {
            programs,
            blocks: programs.first().map_or(1, |program| program.blocks),
            values,
            buffers: inputs.clone(),
            inputs,
            present: vec![Present::default(); programs.len()],
            channels: HashMap::new(),
            changes: 0,
            touched: HashMap::new(),
            defects: Vec::new(),
        }
    }

    /// Runs until no rank can continue, and reports those that have not finished.
    pub(super) fn play(&mut self) {
        let mut before = None;
        // A waiting rank may have changed the state of others: by a send, a receive or a barrier.
        while before != Some(self.changes) {
            before = Some(self.changes);
            for rank in 0..self.programs.len() {
                while self.defects.is_empty() && self.step(rank) {
                    self.changes += 1;
                }
            }
        }
        if self.defects.is_empty() {
            self.defects = self.stuck();
        }
    }

    /// The instruction that a rank has come to, if it has not finished.
    fn instruction(&self, rank: Rank) -> Option<Instruction> {
        self.programs[rank].instructions.get(self.present[rank].instruction).copied()
    }

    /// Tries one instruction of a rank. Returns whether it continued.
    fn step(&mut self, rank: Rank) -> bool {
        let Some(instruction) = self.instruction(rank) else { return false };
        let is_done = match instruction {
            Instruction::Exchange(send, receive) => self.exchange(rank, send, receive),
            Instruction::Send { outgoing, room } => {
                let has_room = self.channel(rank, outgoing.to).under_way.len() < room;
                if has_room {
                    self.send(rank, outgoing);
                }
                has_room
            }
            Instruction::Receive(receive) => self.receive(rank, receive),
            Instruction::Original { from, to, combine } => {
                let values = cells(from, self.blocks).map(|cell| self.inputs[rank][cell].clone()).collect();
                self.put(rank, to, values, combine);
                true
            }
            Instruction::Sync => self.sync(rank),
            Instruction::Read { of, theirs, own, combine } => {
                let values = self.touch(rank, of, theirs);
                self.touch(rank, rank, own);
                self.put(rank, own, values, combine);
                true
            }
            Instruction::Write { to, theirs, own } => {
                let values = self.touch(rank, rank, own);
                self.touch(rank, to, theirs);
                self.put(to, theirs, values, Combine::Replace);
                true
            }
            Instruction::Swap { with, theirs, own } => {
                let (ours, others) = (self.touch(rank, rank, own), self.touch(rank, with, theirs));
                self.put(with, theirs, ours, Combine::Replace);
                self.put(rank, own, others, Combine::Replace);
                true
            }
        };
        if is_done {
            let Present { instruction, meetings, .. } = self.present[rank];
            self.present[rank] = Present { instruction: instruction + 1, meetings, ..Present::default() };
        }
        is_done
    }

    fn channel(&mut self, from: Rank, to: Rank) -> &mut Channel<V::Value> {
        let empty = || Channel { under_way: VecDeque::new(), sent: 0, taken: 0 };
        self.channels.entry((from, to)).or_insert_with(empty)
    }

    fn exchange(&mut self, rank: Rank, send: Option<Outgoing>, receive: Option<Incoming>) -> bool {
        if let (Some(send), None) = (send, self.present[rank].sent) {
            self.present[rank].sent = Some(self.send(rank, send));
        }
        if let (Some(receive), false) = (receive, self.present[rank].received) {
            self.present[rank].received = self.receive(rank, receive);
        }
        let Present { sent, received, .. } = self.present[rank];
        let is_taken =
            |send: Outgoing| sent.is_some_and(|number| self.channels[&(rank, send.to)].taken > number);
        send.is_none_or(is_taken) && (receive.is_none() || received)
    }

    /// Sends the current contents of the buffer; returns the number of the message.
    fn send(&mut self, rank: Rank, send: Outgoing) -> usize {
        let from = if send.source == Source::Original { &self.inputs } else { &self.buffers };
        let values = cells(send.part, self.blocks).map(|cell| from[rank][cell].clone()).collect();
        let channel = self.channel(rank, send.to);
        channel.under_way.push_back((send, values));
        channel.sent += 1;
        let number = channel.sent - 1;
        self.changes += 1;
        number
    }

    /// Tries a receive. Returns whether there was a message.
    fn receive(&mut self, rank: Rank, Incoming { from, part, combine }: Incoming) -> bool {
        let channel = self.channel(from, rank);
        let Some((sent, values)) = channel.under_way.pop_front() else { return false };
        channel.taken += 1;
        self.changes += 1;
        if sent.part.chunks.count() != part.chunks.count() {
            let (step, sent, received) = (self.present[rank].instruction, sent.part.chunks, part.chunks);
            self.defects.push(Defect::LengthMismatch { from, to: rank, step, sent, received });
            return false;
        }
        self.put(rank, part, values, combine);
        true
    }

    fn sync(&mut self, rank: Rank) -> bool {
        if !std::mem::replace(&mut self.present[rank].has_come, true) {
            self.present[rank].meetings += 1;
            self.changes += 1;
        }
        let meetings = self.present[rank].meetings;
        self.present.iter().all(|other| other.meetings >= meetings)
    }

    /// The contents of a part of a buffer, accessed by a rank in a pass, in which no other rank may access it.
    fn touch(&mut self, rank: Rank, of: Rank, part: Part) -> Vec<V::Value> {
        let pass = self.present[rank].meetings;
        let cells: Vec<_> = cells(part, self.blocks).collect();
        for &cell in &cells {
            let first = *self.touched.entry((pass, of, cell)).or_insert(rank);
            if first != rank {
                self.defects.push(Defect::Race { one: first, other: rank, of, chunk: cell / self.blocks });
            }
        }
        cells.into_iter().map(|cell| self.buffers[of][cell].clone()).collect()
    }

    fn put(&mut self, rank: Rank, part: Part, values: Vec<V::Value>, combine: Combine) {
        let (step, chunks) = (self.present[rank].instruction, part.chunks);
        let at = Event { rank, step, from: rank, sent: chunks, received: chunks, combine };
        for (cell, value) in cells(part, self.blocks).zip(values) {
            let held = &mut self.buffers[rank][cell];
            match combine {
                Combine::Replace => *held = value,
                Combine::Reduce => self.values.reduce(at, held, &value),
            }
        }
    }

    /// The ranks that have not finished, and the messages that nobody has received.
    fn stuck(&self) -> Vec<Defect> {
        let mut defects = Vec::new();
        let waits = |rank: Rank| self.instruction(rank).is_some();
        let meets = |rank: Rank| self.present[rank].meetings;
        let last = |rank: &Rank| (meets(*rank), waits(*rank));
        for (rank, present) in self.present.iter().enumerate() {
            let Some(instruction) = self.instruction(rank) else { continue };
            let (others, _) = instruction.names();
            // If one of two ranks has finished, that is the cause; at a barrier, a rank waits for the last one.
            let other = others.into_iter().min_by_key(|&other| waits(other));
            let other = other.or_else(|| (0..self.programs.len()).min_by_key(last)).unwrap_or(rank);
            let step = present.instruction;
            defects.push(if waits(other) {
                Defect::Deadlock { rank, step, other }
            } else {
                Defect::Unmatched { rank, step, other }
            });
        }
        let mut left: Vec<_> =
            self.channels.iter().filter(|(_, channel)| channel.sent > channel.taken).collect();
        left.sort_by_key(|(pair, _)| **pair);
        defects.extend(left.into_iter().map(|(&(from, to), _)| Defect::NotTaken { from, to }));
        defects
    }
}

/// The cells of a part: a block of each of its chunks.
fn cells(Part { chunks, block }: Part, blocks: usize) -> impl Iterator<Item = usize> {
    (chunks.start..chunks.end).map(move |chunk| chunk * blocks + block)
}
