//! The reference interpreter: runs the programs of all ranks on values of any kind.
//!
//! A rank runs until it blocks. Every receive names its sender, and messages between two ranks arrive in the order of their sends, so the result
//! does not depend on the order in which ranks run.

use std::collections::{HashMap, VecDeque};

use super::values::{Arrival, Elementwise, Event, Values};
use super::{Incoming, Instruction, Outgoing, Part, Program};
use crate::defect::Defect;
use crate::partition::elements;
use crate::schedule::{Chunks, Combine, SENDS_AHEAD, Source};
use crate::world::Rank;

/// The messages from one rank to another.
#[derive(Debug)]
struct Channel<V> {
    /// Each with the round after which its sender reached the instruction.
    in_flight: VecDeque<(Outgoing, Vec<V>, usize)>,
    received: usize,
    /// The round of the last received message.
    round: usize,
}

#[derive(Debug, Clone, Default)]
struct State {
    instruction: usize,
    /// The round after which the rank reached the instruction.
    round: usize,
    /// The round of the last message of the current instruction.
    ended: usize,
    /// The number of the message that the current instruction has sent and waits for.
    sent: Option<usize>,
    received: bool,
    /// The message that each `Post` has announced, oldest first.
    announced: VecDeque<Option<Incoming>>,
    barriers: usize,
    is_at_barrier: bool,
}

pub(crate) struct Interpreter<'a, V: Values> {
    programs: &'a [Program],
    blocks: usize,
    values: &'a mut V,
    inputs: Vec<Vec<V::Value>>,
    pub(crate) buffers: Vec<Vec<V::Value>>,
    states: Vec<State>,
    /// By sender and receiver.
    channels: HashMap<(Rank, Rank), Channel<V::Value>>,
    /// The number of state changes of any rank.
    changes: usize,
    /// The rank that accessed a cell of a rank's buffer, by pass.
    accessed: HashMap<(usize, Rank, usize), Rank>,
    /// Whether a rank may read and write a cell of another rank's buffer, by pass, owner and rank.
    lent: HashMap<(usize, Rank, Rank, usize), (bool, bool)>,
    pub(crate) defects: Vec<Defect>,
}

/// Returns the final buffer of every rank after running the programs of all ranks (rank 0's first) on `inputs`.
///
/// `reduce(left, right)` is the operation on one element. All inputs have the same length.
///
/// # Errors
/// The defects that prevent the programs from finishing, and races.
///
/// # Panics
/// If the numbers of programs and inputs differ, or the inputs' lengths; or if a program names ranks or parts that do not exist.
pub fn run<T: Copy>(
    programs: &[Program],
    inputs: &[Vec<T>],
    reduce: impl Fn(T, T) -> T,
) -> Result<Vec<Vec<T>>, Vec<Defect>> {
    assert_eq!(programs.len(), inputs.len(), "one input for each rank");
    let count = inputs.first().map_or(0, Vec::len);
    assert!(inputs.iter().all(|input| input.len() == count), "all inputs have the same length");
    let cut = |(input, program): (&Vec<T>, &Program)| program.cells(input);
    let cells = inputs.iter().zip(programs).map(cut).collect();
    let mut elementwise = Elementwise(&reduce);
    let Interpreter { buffers, defects, .. } = Interpreter::run(programs, &mut elementwise, cells);
    if defects.is_empty() {
        Ok(buffers.into_iter().map(|cells| cells.concat()).collect())
    } else {
        Err(defects)
    }
}

impl Program {
    /// Returns the elements of each block of each chunk of an array.
    fn cells<T: Copy>(&self, array: &[T]) -> Vec<Vec<T>> {
        let chunks = (0..self.chunk_count)
            .map(|chunk| &array[elements(array.len(), self.chunk_count, Chunks::one(chunk))]);
        let blocks = |chunk: &[T]| {
            let block = |block| chunk[elements(chunk.len(), self.blocks, Chunks::one(block))].to_vec();
            (0..self.blocks).map(block).collect::<Vec<_>>()
        };
        chunks.flat_map(blocks).collect()
    }
}

impl<'a, V: Values> Interpreter<'a, V> {
    /// Runs until no rank can continue, and reports those that have not finished.
    pub(crate) fn run(programs: &'a [Program], values: &'a mut V, inputs: Vec<Vec<V::Value>>) -> Self {
        let mut all = Self {
            programs,
            blocks: programs.first().map_or(1, |program| program.blocks),
            values,
            buffers: inputs.clone(),
            inputs,
            states: vec![State::default(); programs.len()],
            channels: HashMap::new(),
            changes: 0,
            accessed: HashMap::new(),
            lent: HashMap::new(),
            defects: Vec::new(),
        };
        let mut before = None;
        // A waiting rank may have changed the state of others: by a send, a receive or a barrier.
        while before != Some(all.changes) {
            before = Some(all.changes);
            for rank in 0..programs.len() {
                while all.defects.is_empty() && all.step(rank) {
                    all.changes += 1;
                }
            }
        }
        if all.defects.is_empty() {
            all.defects = all.stuck();
        }
        all
    }

    fn instruction(&self, rank: Rank) -> Option<Instruction> {
        self.programs[rank].instruction(self.states[rank].instruction)
    }

    /// Tries one instruction of a rank. Returns whether it completed.
    fn step(&mut self, rank: Rank) -> bool {
        let Some(instruction) = self.instruction(rank) else { return false };
        let is_done = match instruction {
            Instruction::Exchange(send, receive) => self.exchange(rank, send, receive),
            Instruction::Post(send, receive) => {
                if let Some(send) = send {
                    self.send(rank, send);
                }
                self.states[rank].announced.push_back(receive);
                true
            }
            Instruction::Complete => {
                let oldest = self.states[rank].announced.front().copied();
                let is_done =
                    oldest.is_some_and(|receive| receive.is_none_or(|receive| self.receive(rank, receive)));
                if is_done {
                    self.states[rank].announced.pop_front();
                }
                is_done
            }
            Instruction::Send(outgoing) => {
                let has_credit = self.channel(rank, outgoing.to).in_flight.len() < SENDS_AHEAD;
                if has_credit {
                    self.send(rank, outgoing);
                }
                has_credit
            }
            Instruction::Lend { to, part, read, written } => {
                let pass = self.states[rank].barriers + 1;
                self.lent
                    .extend(cells(part, self.blocks).map(|cell| ((pass, rank, to, cell), (read, written))));
                true
            }
            Instruction::Sync => self.sync(rank),
            Instruction::Read { of, theirs, own, combine } => {
                let values = self.access(rank, of, theirs, (true, false));
                self.access(rank, rank, own, (true, true));
                self.put(rank, own, values, combine);
                true
            }
            Instruction::Write { to, theirs, own } => {
                let values = self.access(rank, rank, own, (true, false));
                self.access(rank, to, theirs, (false, true));
                self.put(to, theirs, values, Combine::Replace);
                true
            }
            Instruction::Swap { with, theirs, own } => {
                let own_values = self.access(rank, rank, own, (true, true));
                let their_values = self.access(rank, with, theirs, (true, true));
                self.put(with, theirs, own_values, Combine::Replace);
                self.put(rank, own, their_values, Combine::Replace);
                true
            }
            Instruction::Vendor { .. } => true,
        };
        if is_done {
            let state = &mut self.states[rank];
            state.instruction += 1;
            state.round = state.round.max(state.ended);
            (state.sent, state.received, state.is_at_barrier) = (None, false, false);
        }
        is_done
    }

    fn channel(&mut self, from: Rank, to: Rank) -> &mut Channel<V::Value> {
        let empty = || Channel { in_flight: VecDeque::new(), received: 0, round: 0 };
        self.channels.entry((from, to)).or_insert_with(empty)
    }

    fn exchange(&mut self, rank: Rank, send: Option<Outgoing>, receive: Option<Incoming>) -> bool {
        if let (Some(send), None) = (send, self.states[rank].sent) {
            self.states[rank].sent = Some(self.send(rank, send));
        }
        if let (Some(receive), false) = (receive, self.states[rank].received) {
            self.states[rank].received = self.receive(rank, receive);
        }
        let &State { sent, received, ended, .. } = &self.states[rank];
        let (is_received, round) = match send.zip(sent) {
            Some((send, number)) => {
                let channel = &self.channels[&(rank, send.to)];
                (channel.received > number, channel.round)
            }
            None => (true, 0),
        };
        self.states[rank].ended = ended.max(round);
        is_received && (receive.is_none() || received)
    }

    /// Sends the current contents of the buffer; returns the number of the message.
    fn send(&mut self, rank: Rank, send: Outgoing) -> usize {
        let from = if send.source == Source::Original { &self.inputs } else { &self.buffers };
        let values = cells(send.part, self.blocks).map(|cell| from[rank][cell].clone()).collect();
        let round = self.states[rank].round;
        let channel = self.channel(rank, send.to);
        let number = channel.received + channel.in_flight.len();
        channel.in_flight.push_back((send, values, round));
        self.changes += 1;
        number
    }

    /// Tries a receive. Returns whether there was a message.
    fn receive(&mut self, rank: Rank, Incoming { from, part, combine }: Incoming) -> bool {
        let State { instruction: step, round: ready, ended, .. } = self.states[rank];
        let channel = self.channel(from, rank);
        let Some((sent, values, round)) = channel.in_flight.pop_front() else { return false };
        channel.received += 1;
        channel.round = ready.max(round) + 1;
        let round = channel.round;
        self.states[rank].ended = ended.max(round);
        self.changes += 1;
        if sent.part.chunks.count() != part.chunks.count() {
            let (sent, received) = (sent.part.chunks, part.chunks);
            self.defects.push(Defect::Mismatch { from, to: rank, step, sent, received });
            return false;
        }
        self.put(rank, part, values, combine);
        let (sent, received) = (sent.part.chunks, part.chunks);
        self.values
            .received(Arrival { round, from, to: rank, step, sent, received, combine }, &self.buffers[rank]);
        true
    }

    /// Returns the number of rounds of messages: the steps on the critical path, if all messages take the same time.
    pub(crate) fn rounds(&self) -> usize {
        self.states.iter().map(|state| state.round).max().unwrap_or(0)
    }

    fn sync(&mut self, rank: Rank) -> bool {
        if !std::mem::replace(&mut self.states[rank].is_at_barrier, true) {
            self.states[rank].barriers += 1;
            self.changes += 1;
        }
        let barriers = self.states[rank].barriers;
        self.states.iter().all(|other| other.barriers >= barriers)
    }

    /// Returns the contents of a part of a buffer, which a rank reads and writes in a pass, in which no other rank may access it.
    fn access(&mut self, rank: Rank, of: Rank, part: Part, (reads, writes): (bool, bool)) -> Vec<V::Value> {
        let pass = self.states[rank].barriers;
        let cells: Vec<_> = cells(part, self.blocks).collect();
        for &cell in &cells {
            let permits = |&(read, written): &(bool, bool)| read >= reads && written >= writes;
            if rank != of && !self.lent.get(&(pass, of, rank, cell)).is_some_and(permits) {
                self.defects.push(Defect::NotLent { rank, of, chunk: cell / self.blocks });
            }
            let first = *self.accessed.entry((pass, of, cell)).or_insert(rank);
            if first != rank {
                self.defects.push(Defect::Race { one: first, other: rank, of, chunk: cell / self.blocks });
            }
        }
        cells.into_iter().map(|cell| self.buffers[of][cell].clone()).collect()
    }

    fn put(&mut self, rank: Rank, part: Part, values: Vec<V::Value>, combine: Combine) {
        let at = Event { rank, step: self.states[rank].instruction, combine };
        for (cell, value) in cells(part, self.blocks).zip(values) {
            let held = &mut self.buffers[rank][cell];
            match combine {
                Combine::Replace => *held = value,
                Combine::Reduce | Combine::ReduceBefore => self.values.reduce(at, held, &value),
            }
        }
    }

    /// Returns a defect for each rank that has not finished, and for each message that was not received.
    fn stuck(&self) -> Vec<Defect> {
        let mut defects = Vec::new();
        let waits = |rank: Rank| self.instruction(rank).is_some();
        let last = |rank: &Rank| (self.states[*rank].barriers, waits(*rank));
        for (rank, state) in self.states.iter().enumerate() {
            let Some(instruction) = self.instruction(rank) else { continue };
            let oldest = state.announced.front().filter(|_| instruction == Instruction::Complete);
            let announced = oldest.and_then(Option::as_ref);
            let others = instruction.ranks().chain(announced.map(|receive| receive.from));
            // If one of two ranks has finished, that is the cause; at a barrier, a rank waits for the last one.
            let other = others.min_by_key(|&other| waits(other));
            let other = other.or_else(|| (0..self.programs.len()).min_by_key(last)).unwrap_or(rank);
            let step = state.instruction;
            defects.push(if waits(other) {
                Defect::Deadlock { rank, step, other }
            } else {
                Defect::Unmatched { rank, step, other }
            });
        }
        let left = self.channels.iter().filter(|(_, channel)| !channel.in_flight.is_empty());
        let mut left: Vec<_> = left.map(|(&pair, _)| pair).collect();
        left.sort_unstable();
        defects.extend(left.into_iter().map(|(from, to)| Defect::NotTaken { from, to }));
        defects
    }
}

/// Returns the cells of a part: a block of each of its chunks.
fn cells(Part { chunks, block }: Part, blocks: usize) -> impl Iterator<Item = usize> {
    chunks.range().map(move |chunk| chunk * blocks + block)
}
