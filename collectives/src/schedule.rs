//! Steps and schedules: the sends and receives of one rank, in order, by chunks.

use std::fmt;
use std::ops::Range;

use crate::world::Rank;

/// A range of neighbouring chunks, `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chunks {
    /// The first chunk.
    pub start: usize,
    /// One past the last chunk.
    pub end: usize,
}

impl Chunks {
    /// Returns the chunks `start..end`.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Returns a single chunk.
    pub fn one(chunk: usize) -> Self {
        Self::new(chunk, chunk + 1)
    }

    /// Returns the number of chunks in the range.
    pub fn count(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns whether two ranges share a chunk.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// The source of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The buffer as the previous steps have left it.
    Current,
    /// The buffer as it was before the first step.
    Original,
}

/// The treatment of received data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// It replaces the existing contents.
    Replace,
    /// It is reduced into the existing contents, and is the right operand. For commutative reductions, `Reduce` and `ReduceBefore` are equivalent.
    Reduce,
    /// It is reduced into the existing contents, and is the left operand.
    ReduceBefore,
}

impl Combine {
    /// Returns whether it reduces.
    pub fn reduces(self) -> bool {
        self != Self::Replace
    }

    /// Returns the two operands of a reduction, from left to right.
    pub(crate) fn operands<T>(self, held: T, arrived: T) -> (T, T) {
        if self == Self::ReduceBefore { (arrived, held) } else { (held, arrived) }
    }
}

/// The sending half of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Send {
    /// The receiver.
    pub to: Rank,
    /// The chunks to send.
    pub chunks: Chunks,
    /// The buffer that they are read from.
    pub source: Source,
}

/// The receiving half of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receive {
    /// The sender.
    pub from: Rank,
    /// The chunks to write.
    pub chunks: Chunks,
    /// The treatment of their contents.
    pub combine: Combine,
}

/// At most one send and at most one receive, at the same time.
///
/// The send reads the buffer as it was before the receive of the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Step {
    /// The send, if any.
    pub send: Option<Send>,
    /// The receive, if any.
    pub receive: Option<Receive>,
}

impl Step {
    /// Returns an empty step, for the methods below.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the sending of `chunks` to rank `to`.
    pub fn send(self, to: Rank, chunks: Chunks) -> Self {
        Self { send: Some(Send { to, chunks, source: Source::Current }), ..self }
    }

    /// Adds the sending of `chunks` of the original input to rank `to`.
    pub fn send_original(self, to: Rank, chunks: Chunks) -> Self {
        Self { send: Some(Send { to, chunks, source: Source::Original }), ..self }
    }

    /// Adds the replacement of `chunks` by chunks of rank `from`.
    pub fn replace(self, from: Rank, chunks: Chunks) -> Self {
        Self { receive: Some(Receive { from, chunks, combine: Combine::Replace }), ..self }
    }

    /// Adds the reduction of chunks of rank `from` into `chunks`.
    pub fn reduce(self, from: Rank, chunks: Chunks) -> Self {
        Self { receive: Some(Receive { from, chunks, combine: Combine::Reduce }), ..self }
    }

    /// Returns the ranges of chunks that it reads or writes.
    pub(crate) fn accessed(&self) -> impl Iterator<Item = Chunks> + use<> {
        [self.send.map(|send| send.chunks), self.receive.map(|receive| receive.chunks)].into_iter().flatten()
    }

    /// Returns the reversed step: it receives and reduces the chunks that this one sends, and sends the chunks that this one receives.
    fn reversed(self) -> Self {
        let mut step = Self::new();
        if let Some(receive) = self.receive {
            assert_eq!(receive.combine, Combine::Replace, "only an outward half can be reversed");
            step = step.send(receive.from, receive.chunks);
        }
        if let Some(send) = self.send {
            assert_eq!(send.source, Source::Current, "only an outward half can be reversed");
            step = step.reduce(send.to, send.chunks);
        }
        step
    }
}

/// The schedule of one rank in one collective: steps in order, over a buffer that is split into chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    chunk_count: usize,
    pub(crate) steps: Vec<Step>,
}

/// The number of messages of a call that a rank must be able to send ahead to another that is still idle, if sends are
/// eager.
pub const SENDS_AHEAD: usize = 4;

impl Schedule {
    /// Returns a schedule over a buffer of `chunk_count` chunks.
    ///
    /// # Panics
    /// If there are no chunks.
    pub fn new(chunk_count: usize, steps: impl IntoIterator<Item = Step>) -> Self {
        assert!(chunk_count > 0, "a buffer has at least one chunk");
        Self { chunk_count, steps: steps.into_iter().collect() }
    }

    /// Returns the number of chunks, which is identical on all ranks.
    pub fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// Returns the steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Appends another schedule.
    ///
    /// # Panics
    /// If they split the buffer differently.
    pub fn then(mut self, next: Self) -> Self {
        assert_eq!(self.chunk_count, next.chunk_count, "both halves cut the buffer in the same way");
        self.steps.extend(next.steps);
        self
    }

    /// Returns, for each step, the earliest step before whose receive its send can be posted, if sends are eager. Its data exist by then, and the
    /// sends to a rank stay in order. Ranks then wait only for data that they depend on.
    ///
    /// A sender never blocks as long as [`SENDS_AHEAD`] messages to each rank can be in flight. A schedule with more to one rank keeps its
    /// steps.
    pub fn earliest_sends(&self) -> Vec<usize> {
        let mut written = vec![0; self.chunk_count];
        let ranks = self.steps.iter().filter_map(|step| step.send.map(|send| send.to + 1)).max();
        let mut to_rank = vec![(0, 0); ranks.unwrap_or(0)];
        let mut earliest = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate() {
            earliest.push(number);
            if let Some(send) = step.send {
                let chunks = send.chunks.range();
                let ready = match send.source {
                    Source::Original => 0,
                    Source::Current => written[chunks].iter().copied().max().unwrap_or(0),
                };
                let (sends, before): &mut (usize, usize) = &mut to_rank[send.to];
                (*sends, *before) = (*sends + 1, ready.max(*before));
                earliest[number] = *before;
            }
            if let Some(receive) = step.receive {
                written[receive.chunks.range()].fill(number + 1);
            }
        }
        if to_rank.iter().any(|(sends, _)| *sends > SENDS_AHEAD) {
            return (0..self.steps.len()).collect();
        }
        earliest
    }

    /// Returns the time reversal: an all-gather becomes a reduce-scatter, a broadcast becomes a reduce.
    ///
    /// # Panics
    /// If this is not an outward half, since a step reduces or sends its original input.
    pub fn reversed(&self) -> Self {
        Self::new(self.chunk_count, self.steps.iter().rev().map(|step| step.reversed()))
    }

    /// Returns the all-reduce of which this is the outward half: its reverse, then the outward half itself.
    ///
    /// # Panics
    /// As [`Schedule::reversed`].
    pub fn there_and_back(self) -> Self {
        self.reversed().then(self)
    }

    /// Returns the schedule over a buffer of `chunk_count` finer chunks, in which its chunk `c` is
    /// `boundary(c)..boundary(c + 1)`. The finer buffer may extend beyond the chunks of this one.
    pub fn refined(mut self, chunk_count: usize, boundary: impl Fn(usize) -> usize) -> Self {
        let refine =
            |chunks: &mut Chunks| *chunks = Chunks::new(boundary(chunks.start), boundary(chunks.end));
        for step in &mut self.steps {
            step.send.iter_mut().for_each(|send| refine(&mut send.chunks));
            step.receive.iter_mut().for_each(|receive| refine(&mut receive.chunks));
        }
        Self::new(chunk_count, self.steps)
    }

    /// Returns the schedule with its ranks renamed.
    pub fn renamed(mut self, name: impl Fn(Rank) -> Rank) -> Self {
        for step in &mut self.steps {
            step.send.iter_mut().for_each(|send| send.to = name(send.to));
            step.receive.iter_mut().for_each(|receive| receive.from = name(receive.from));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Operation, Topology};

    fn sample() -> Schedule {
        Schedule::new(
            4,
            [
                Step::new().send(1, Chunks::one(0)).replace(3, Chunks::one(3)),
                Step::new().send(1, Chunks::new(1, 3)),
            ],
        )
    }

    #[test]
    fn reversal_swaps_directions_and_order() {
        let expected = [
            Step::new().reduce(1, Chunks::new(1, 3)),
            Step::new().send(3, Chunks::one(3)).reduce(1, Chunks::one(0)),
        ];
        assert_eq!(sample().reversed().steps(), expected);
    }

    #[test]
    #[should_panic(expected = "only an outward half can be reversed")]
    fn a_reduction_cannot_be_reversed() {
        let _ = sample().reversed().reversed();
    }

    #[test]
    fn refining_moves_the_chunks() {
        let refined = sample().refined(10, |chunk| 1 + 2 * chunk);
        assert_eq!(refined.steps()[1].send.unwrap().chunks, Chunks::new(3, 7));
        assert_eq!(refined.chunk_count(), 10);
    }

    #[test]
    fn independent_data_are_sent_at_once() {
        let earliest = |algorithm: Algorithm, operation, ranks| {
            let plan = algorithm.plan(operation, &Topology::single_node(ranks), 1).unwrap();
            plan.flattened().earliest_sends()
        };
        // Each rank sends its original input.
        assert_eq!(earliest(Algorithm::RoundRobin, Operation::AllGather, 4), [0, 0, 0]);
        assert_eq!(earliest(Algorithm::AllToAll, Operation::AllReduce, 4), [0, 0, 0, 0]);
        assert_eq!(earliest(Algorithm::RoundRobin, Operation::AllToAll, 4), [0, 0, 0]);
        // Each rank forwards what it received in the previous step.
        assert_eq!(earliest(Algorithm::Ring, Operation::AllGather, 4), [0, 1, 2]);
        assert_eq!(earliest(Algorithm::RecursiveDoubling, Operation::AllReduce, 8), [0, 1, 2]);
    }

    #[test]
    fn send_follows_its_data_and_earlier_sends() {
        let one = Chunks::one;
        let schedule = Schedule::new(
            3,
            [
                Step::new().replace(0, one(0)),
                Step::new().send(2, one(0)),
                Step::new().send(2, one(1)),
                Step::new().send(3, one(1)).reduce(3, one(1)),
                Step::new().send_original(3, one(1)),
                Step::new().send(4, one(1)),
            ],
        );
        assert_eq!(schedule.earliest_sends(), [0, 1, 1, 0, 0, 4]);
    }

    #[test]
    fn sends_ahead_are_limited() {
        let sends = |count| Schedule::new(1, (0..count).map(|_| Step::new().send(1, Chunks::one(0))));
        assert_eq!(sends(SENDS_AHEAD).earliest_sends(), [0; SENDS_AHEAD]);
        assert_eq!(sends(SENDS_AHEAD + 1).earliest_sends(), [0, 1, 2, 3, 4]);
    }
}
