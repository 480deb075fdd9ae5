//! Symbolic values, which record their contributions.

use std::ops::Range;

use crate::defect::Defect;
use crate::operation::Operation;
use crate::program::{Arrival, Event, Values};
use crate::world::Rank;

/// A value, as an index into [`Symbols`]: messages move indices, while the values stay in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol(u32);

/// All values of a run. None is ever removed, so indices stay valid.
pub(crate) struct Symbols {
    values: Vec<Value>,
    /// The contributors of each value, as bit sets of 64 ranks per word, one value after the other.
    contributors: Vec<u64>,
    words: usize,
    /// Whether each value stays in its chunk. Chunks may have different lengths, except in an all-to-all.
    keeps_places: bool,
    pub(crate) defects: Vec<Defect>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub(crate) chunk: usize,
    /// A hash of the tree of additions; equal for `a + b` and `b + a`, which give the same bits.
    pub(crate) order: u64,
    /// The first contributor and one past the last, if they were combined in the order of ranks, as a non-commutative reduction needs.
    pub(crate) run: Option<(u32, u32)>,
}

impl Symbols {
    /// Returns the values of all ranks and blocks of chunks before the first step, one chunk's after the other's, and the symbols
    /// for them. Blocks of a chunk are separate values; they are added in the chunk's order if each block is added like the chunk.
    pub(crate) fn inputs(
        operation: Operation,
        ranks: usize,
        chunk_count: usize,
        blocks: usize,
    ) -> (Self, Vec<Vec<Symbol>>) {
        // Undefined contents are the contribution of a rank that does not exist, so they can never count as correct.
        let nonexistent = ranks;
        let words = nonexistent / 64 + 1;
        let mut symbols = Self {
            values: Vec::new(),
            contributors: Vec::new(),
            words,
            keeps_places: operation != Operation::AllToAll,
            defects: Vec::new(),
        };
        let mut input = |rank: Rank, cell: usize| {
            let chunk = cell / blocks;
            let contributor = if operation.begins_with(rank, chunk) { rank } else { nonexistent };
            symbols
                .contributors
                .extend((0..words).map(|word| ranks_in(&(contributor..contributor + 1), word)));
            let run = Some((contributor as u32, contributor as u32 + 1));
            symbols.push(Value { chunk: cell, order: mix(rank as u64 + 1, chunk as u64), run })
        };
        let cells = chunk_count * blocks;
        let inputs = (0..ranks).map(|rank| (0..cells).map(|cell| input(rank, cell)).collect()).collect();
        (symbols, inputs)
    }

    /// Adds a value whose contributors have been stored.
    fn push(&mut self, value: Value) -> Symbol {
        let number = u32::try_from(self.values.len()).expect("a run has fewer than 2^32 values");
        self.values.push(value);
        Symbol(number)
    }

    pub(crate) fn value(&self, Symbol(number): Symbol) -> Value {
        self.values[number as usize]
    }

    fn contributors(&self, Symbol(number): Symbol) -> Range<usize> {
        let first = number as usize * self.words;
        first..first + self.words
    }

    /// Returns the ranks among these whose contributions are missing in a value.
    pub(crate) fn missing(&self, symbol: Symbol, expected: &Range<Rank>) -> impl Iterator<Item = Rank> {
        let held = self.contributors[self.contributors(symbol)].iter().enumerate();
        held.flat_map(|(word, held)| ranks_of(word, ranks_in(expected, word) & !held))
    }

    /// Returns whether a value has the contribution of any other rank.
    pub(crate) fn has_foreign(&self, symbol: Symbol, expected: &Range<Rank>) -> bool {
        let mut held = self.contributors[self.contributors(symbol)].iter().enumerate();
        held.any(|(word, held)| held & !ranks_in(expected, word) != 0)
    }
}

impl Values for Symbols {
    type Value = Symbol;

    fn reduce(&mut self, at: Event, held: &mut Symbol, arrived: &Symbol) {
        let (one, other) = (self.value(*held), self.value(*arrived));
        let Event { rank, step, combine } = at;
        let chunk = one.chunk;
        if chunk != other.chunk {
            self.defects.push(Defect::WrongChunk { rank, step, chunk, arrived: other.chunk });
        }
        for (word, (held, arrived)) in self.contributors(*held).zip(self.contributors(*arrived)).enumerate() {
            let (held, arrived) = (self.contributors[held], self.contributors[arrived]);
            let doubled = |contributor| Defect::Doubled { rank, step, chunk, contributor };
            self.defects.extend(ranks_of(word, held & arrived).map(doubled));
            self.contributors.push(held | arrived);
        }
        let order = mix(one.order.min(other.order), one.order.max(other.order));
        let run = match combine.operands(one.run, other.run) {
            (Some((start, middle)), Some((next, end))) if middle == next => Some((start, end)),
            _ => None,
        };
        *held = self.push(Value { chunk, order, run });
    }

    fn received(&mut self, message: Arrival, _: &[Symbol]) {
        let Arrival { from, to, step, sent, received, combine, .. } = message;
        if self.keeps_places && !combine.reduces() && sent != received {
            self.defects.push(Defect::Mismatch { from, to, step, sent, received });
        }
    }
}

fn mix(one: u64, other: u64) -> u64 {
    let mixed = (one ^ other.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}

/// Returns the ranks in one word of a set.
fn ranks_in(ranks: &Range<Rank>, word: usize) -> u64 {
    let below = |end: Rank| match end.saturating_sub(64 * word) {
        bits @ 0..64 => (1 << bits) - 1,
        _ => u64::MAX,
    };
    below(ranks.end) & !below(ranks.start)
}

/// Returns the ranks whose bits are set in a word of a set.
fn ranks_of(word: usize, bits: u64) -> impl Iterator<Item = Rank> {
    let rests = std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)));
    let rests = rests.take_while(|&bits| bits != 0);
    rests.map(move |bits| 64 * word + bits.trailing_zeros() as usize)
}
