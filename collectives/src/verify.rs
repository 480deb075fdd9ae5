//! The proof: all ranks of a collective played over symbols.
//!
//! A value is the set of contributions that are in it, and a hash of the order in which they were added. So
//! the run sees what numbers would hide: a contribution that is missing, or doubled; a result that two
//! ranks added up in different orders, and that floating point would make different.

use crate::defect::Defect;
use crate::interpret::{self, Event, Outcome, Values};
use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::{Combine, Schedule, Source, Step};
use crate::world::Rank;

/// Everything that is wrong with the plans of all ranks (rank 0 first) for an operation; nothing, if they
/// are right.
///
/// What it proves: every message has its two ends, of one length; nothing deadlocks, even if no message is
/// ever buffered; every rank that should have a result has every contribution to it exactly once; and all
/// ranks that hold a sum added it up in the same order.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, verify};
///
/// let plans = Algorithm::Ring.plans(Operation::AllReduce, &Topology::single_node(7)).unwrap();
/// assert_eq!(verify(&plans, Operation::AllReduce), vec![]);
/// ```
pub fn verify(plans: &[Plan], operation: Operation) -> Vec<Defect> {
    let schedules: Vec<_> = plans.iter().map(Plan::flattened).collect();
    verify_schedules(&schedules, operation)
}

/// As [`verify()`], of schedules among the ranks of one world.
pub fn verify_schedules(schedules: &[Schedule], operation: Operation) -> Vec<Defect> {
    let defects = malformed(schedules, operation);
    if !defects.is_empty() {
        return defects;
    }
    let ranks = schedules.len();
    let chunk_count = schedules.first().map_or(1, Schedule::chunk_count);
    let inputs = (0..ranks)
        .map(|rank| (0..chunk_count).map(|chunk| Symbol::input(operation, ranks, rank, chunk)).collect())
        .collect();
    let mut symbols = Symbols { defects: Vec::new() };
    let outcome = interpret::run(schedules, inputs, &mut symbols);

    let mut defects = symbols.defects;
    defects.extend(stuck(schedules, &outcome));
    if defects.is_empty() {
        defects.extend(wrong_results(&outcome.buffers, operation));
    }
    defects
}

/// What can be seen in single steps: ranks and chunks that do not exist, steps that race with themselves.
fn malformed(schedules: &[Schedule], operation: Operation) -> Vec<Defect> {
    let mut defects = Vec::new();
    let in_parts =
        !matches!(operation, Operation::AllReduce | Operation::Broadcast { .. } | Operation::Reduce { .. });
    let expected =
        if in_parts { schedules.len() } else { schedules.first().map_or(1, Schedule::chunk_count) };
    for (rank, schedule) in schedules.iter().enumerate() {
        let found = schedule.chunk_count();
        if found != expected {
            defects.push(Defect::ChunkCount { rank, found, expected });
        }
        for (number, step) in schedule.steps().iter().enumerate() {
            malformed_step(rank, number, step, schedules.len(), expected, &mut defects);
        }
    }
    defects
}

fn malformed_step(
    rank: Rank,
    number: usize,
    step: &Step,
    ranks: usize,
    chunk_count: usize,
    defects: &mut Vec<Defect>,
) {
    let ends = [
        step.send.map(|send| (send.to, send.chunks)),
        step.receive.map(|receive| (receive.from, receive.chunks)),
    ];
    for (named, chunks) in ends.into_iter().flatten() {
        if named >= ranks {
            defects.push(Defect::NoSuchRank { rank, step: number, named });
        }
        if chunks.start > chunks.end || chunks.end > chunk_count {
            defects.push(Defect::NoSuchChunk { rank, step: number, chunks, chunk_count });
        }
    }
    if let (Some(send), Some(receive)) = (step.send, step.receive)
        && send.source == Source::Current
        && receive.combine == Combine::Replace
        && send.chunks.overlaps(receive.chunks)
    {
        defects.push(Defect::Overlap { rank, step: number, sent: send.chunks, replaced: receive.chunks });
    }
}

/// Who waits at the end, and whether for somebody who will never come.
fn stuck<V>(schedules: &[Schedule], outcome: &Outcome<V>) -> Vec<Defect> {
    if !outcome.mismatched.is_empty() {
        let defect = |event: &Event| Defect::LengthMismatch {
            from: event.from,
            to: event.rank,
            step: event.step,
            sent: event.sent,
            received: event.received,
        };
        return outcome.mismatched.iter().map(defect).collect();
    }
    let waits = |rank| outcome.waiting.iter().any(|&(waiting, _)| waiting == rank);
    let defect = |&(rank, number): &(Rank, usize)| {
        let step = schedules[rank].steps()[number];
        let others = [step.send.map(|send| send.to), step.receive.map(|receive| receive.from)];
        // Where one of two has finished, that is the cause.
        let other = others.into_iter().flatten().min_by_key(|&other| waits(other));
        let other = other.expect("a step that waits has another end");
        if waits(other) {
            Defect::Deadlock { rank, step: number, other }
        } else {
            Defect::Unmatched { rank, step: number, other }
        }
    };
    outcome.waiting.iter().map(defect).collect()
}

/// Compares what every rank holds with what the operation promises.
fn wrong_results(buffers: &[Vec<Symbol>], operation: Operation) -> Vec<Defect> {
    let ranks = buffers.len();
    let mut defects = Vec::new();
    for (rank, buffer) in buffers.iter().enumerate() {
        for (chunk, symbol) in buffer.iter().enumerate() {
            let Some((origin, expected)) = promise(operation, ranks, rank, chunk) else { continue };
            let missing = expected.missing_from(&symbol.contributors);
            let foreign =
                symbol.chunk != origin || symbol.contributors.missing_from(&expected).next().is_some();
            defects.extend(missing.map(|contributor| Defect::Missing { rank, chunk, contributor }));
            if foreign {
                defects.push(Defect::Foreign { rank, chunk });
            }
        }
    }
    if defects.is_empty() && operation == Operation::AllReduce {
        for (chunk, first) in buffers.first().into_iter().flatten().enumerate() {
            let other = (1..ranks).find(|&rank| buffers[rank][chunk].order != first.order);
            defects.extend(other.map(|other| Defect::DifferentOrder { chunk, one: 0, other }));
        }
    }
    defects
}

/// What a rank must hold in a chunk at the end: of which chunk, the contributions of which ranks.
fn promise(operation: Operation, ranks: usize, rank: Rank, chunk: usize) -> Option<(usize, Contributors)> {
    let all = || Contributors::of(0..ranks);
    match operation {
        Operation::AllReduce => Some((chunk, all())),
        Operation::ReduceScatter => (chunk == rank).then(|| (chunk, all())),
        Operation::AllGather => Some((chunk, Contributors::of([chunk]))),
        Operation::Broadcast { root } => Some((chunk, Contributors::of([root]))),
        Operation::Reduce { root } => (rank == root).then(|| (chunk, all())),
        Operation::Gather { root } => (rank == root).then(|| (chunk, Contributors::of([chunk]))),
        Operation::Scatter { root } => {
            (chunk == rank || rank == root).then(|| (chunk, Contributors::of([root])))
        }
        Operation::AllToAll => Some((rank, Contributors::of([chunk]))),
    }
}

/// A value that knows what is in it.
#[derive(Debug, Clone)]
struct Symbol {
    /// The chunk that it is a value of.
    chunk: usize,
    contributors: Contributors,
    /// A hash of the tree of additions; equal for `a + b` and `b + a`, which give the same bits.
    order: u64,
}

impl Symbol {
    /// What a rank holds of a chunk before the first step.
    fn input(operation: Operation, ranks: usize, rank: Rank, chunk: usize) -> Self {
        // Whatever is undefined is the contribution of a rank that does not exist, so it can never pass as
        // right.
        let contributor = if operation.begins_with(rank, chunk) { rank } else { ranks };
        Self {
            chunk,
            contributors: Contributors::of([contributor]),
            order: mix(rank as u64 + 1, chunk as u64),
        }
    }
}

fn mix(one: u64, other: u64) -> u64 {
    let mixed = (one ^ other.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}

struct Symbols {
    defects: Vec<Defect>,
}

impl Values for Symbols {
    type Value = Symbol;

    fn reduce(&mut self, at: Event, held: &mut Symbol, arrived: &Symbol) {
        let Event { rank, step, .. } = at;
        if held.chunk != arrived.chunk {
            self.defects.push(Defect::WrongChunk { rank, step, chunk: held.chunk, arrived: arrived.chunk });
        }
        let chunk = held.chunk;
        let doubled = held.contributors.common(&arrived.contributors);
        self.defects.extend(doubled.map(|contributor| Defect::Doubled { rank, step, chunk, contributor }));
        held.contributors.add(&arrived.contributors);
        held.order = mix(held.order.min(arrived.order), held.order.max(arrived.order));
    }
}

/// A set of ranks.
#[derive(Debug, Clone)]
struct Contributors {
    words: Vec<u64>,
}

impl Contributors {
    fn of(ranks: impl IntoIterator<Item = Rank>) -> Self {
        let mut words = Vec::new();
        for rank in ranks {
            words.resize(words.len().max(rank / 64 + 1), 0);
            words[rank / 64] |= 1 << (rank % 64);
        }
        Self { words }
    }

    fn add(&mut self, other: &Self) {
        self.words.resize(self.words.len().max(other.words.len()), 0);
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    fn common(&self, other: &Self) -> impl Iterator<Item = Rank> + use<> {
        ranks_of(self.words.iter().zip(&other.words).map(|(word, other)| word & other).collect())
    }

    fn missing_from(&self, other: &Self) -> impl Iterator<Item = Rank> + use<> {
        let others = other.words.iter().chain(std::iter::repeat(&0));
        ranks_of(self.words.iter().zip(others).map(|(word, other)| word & !other).collect())
    }
}

fn ranks_of(words: Vec<u64>) -> impl Iterator<Item = Rank> {
    let bits = |(index, word): (usize, u64)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * index + bit)
    };
    words.into_iter().enumerate().flat_map(bits)
}
