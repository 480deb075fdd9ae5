//! Sums of sparse arrays, as exchanges of pairs of an index and a value between leaders.

use bytemuck::{cast_slice, cast_slice_mut};
use unisono::{Communicator, Rank, ReduceOp, Result, copy};
use unisono_collectives::algorithm::butterfly::{Folded, Folding};

use crate::kernels::sparse::{Pair, decode_add, merge};

/// A method by which leaders sum sparse arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Every leader sends its pairs to all others.
    AllGather,
    /// Partners exchange pairs at doubling distances and merge them, until sending all elements is smaller.
    ///
    /// Source: Renggli, Ashkboos, Aghagolzadeh, Alistarh and Hoefler, "SparCML: high-performance sparse communication for machine
    /// learning", SC 2019: `SSAR_Recursive_double`, and its switch to dense arrays.
    Doubling,
    /// An all-reduce of all elements.
    Dense,
}

/// Recursive doubling must send at most this fraction of the bytes of an all-gather, since it also merges and sends the number of
/// pairs in each round.
const WORTH_MERGING: f64 = 0.9;

/// The numbers of pairs of several leaders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) elements: usize,
    pub(super) leaders: usize,
    /// The pairs of the leader with the most.
    pub(super) most: usize,
    /// The number of pairs of all leaders together.
    pub(super) total: usize,
}

impl Load {
    /// Returns the method by which the busiest leader is expected to receive the fewest bytes. Of equal ones it is the dense one.
    /// All leaders compute the same method.
    ///
    /// The arrays are assumed to be independent, so that few indices coincide. If more do, recursive doubling sends less. For two
    /// leaders, an all-gather sends the same bytes as doubling, without a merge.
    pub(super) fn method(self) -> Method {
        let Self { elements, leaders, most, .. } = self;
        let others = (leaders - 1) as f64;
        let dense = 2.0 * others / leaders as f64 * bytes_of_all(elements);
        let all_gather = others * (most * size_of::<Pair>()) as f64;
        let doubling = self.rounds().into_iter().sum::<f64>();
        if dense <= all_gather.min(doubling) {
            Method::Dense
        } else if leaders > 2 && doubling <= WORTH_MERGING * all_gather {
            Method::Doubling
        } else {
            Method::AllGather
        }
    }

    /// Returns the bytes that the busiest leader is expected to receive in each round of recursive doubling.
    pub(super) fn rounds(self) -> Vec<f64> {
        let folding = Folding::new(self.leaders);
        let density = self.total as f64 / (self.leaders * self.elements.max(1)) as f64;
        // The fraction of the elements without a pair in any array so far. Each round doubles the number of arrays. No power is
        // computed, since its last bits may differ between machines.
        let mut missing = 1.0 - density;
        let mut next = || {
            let pairs = self.elements as f64 * (1.0 - missing);
            missing *= missing;
            (pairs * size_of::<Pair>() as f64).min(bytes_of_all(self.elements))
        };
        let folds = if folding.extras == 0 { 0 } else { 2 };
        (0..folding.distances().count() + folds).map(|_| next()).collect()
    }
}

fn bytes_of_all(elements: usize) -> f64 {
    (elements * size_of::<f32>()) as f64
}

/// Replaces the number of pairs in the header of a message with all elements.
const DENSE: u64 = u64::MAX;

/// A partial sum of recursive doubling.
#[derive(Debug, Default)]
pub(super) struct Doubling {
    /// The pairs in ascending order of indices, unless the sum is dense.
    pairs: Vec<Pair>,
    /// Whether the sum has all elements.
    is_dense: bool,
    merged: Vec<Pair>,
    /// The message of a partner: pairs, or all elements.
    theirs: Vec<u32>,
}

impl Doubling {
    /// Replaces the values, which are not read, by the sum of all leaders' pairs. Returns whether all of them are finite. All
    /// leaders get the same bits.
    ///
    /// The pairs are in ascending order of indices, and have each index once.
    ///
    /// # Panics
    /// If an index is out of range, of this leader or of another.
    pub(super) fn sum(
        &mut self,
        leaders: &mut Communicator,
        own: &[Pair],
        values: &mut [f32],
    ) -> Result<bool> {
        self.pairs.clear();
        self.pairs.extend_from_slice(own);
        self.is_dense = false;
        self.thicken(values);
        let (rank, folding) = (leaders.rank(), Folding::new(leaders.ranks()));
        match folding.of(rank) {
            Folded::Extra { stand_in } => {
                self.send(leaders, values, stand_in)?;
                let is_dense = self.receive(leaders, values.len(), stand_in)?;
                // The sum has this leader's pairs too.
                self.pairs.clear();
                self.is_dense = false;
                self.add(values, is_dense, true);
            }
            Folded::Base { base, extra } => {
                if let Some(extra) = extra {
                    let is_dense = self.receive(leaders, values.len(), extra)?;
                    self.add(values, is_dense, rank < extra);
                }
                for distance in folding.distances() {
                    let partner = folding.rank(base ^ distance);
                    let is_dense = self.exchange(leaders, values, partner)?;
                    self.add(values, is_dense, rank < partner);
                }
                if let Some(extra) = extra {
                    self.send(leaders, values, extra)?;
                }
            }
        }
        if !self.is_dense {
            self.scatter(values);
        }
        Ok(canonical(values))
    }

    /// Adds the partner's message, with the values of the lower rank first.
    ///
    /// Both end with the same form, which depends on the two forms and on the sum. If one adds its partner's pairs to its elements,
    /// the other adds its own pairs to its partner's elements. The sums are equal, since the order of two addends affects only the
    /// bits of a NaN.
    fn add(&mut self, values: &mut [f32], is_dense: bool, own_first: bool) {
        match (self.is_dense, is_dense) {
            (false, false) => {
                let theirs: &[Pair] = cast_slice(&self.theirs);
                let (first, second) =
                    if own_first { (&self.pairs[..], theirs) } else { (theirs, &self.pairs[..]) };
                merge(first, second, &mut self.merged);
                std::mem::swap(&mut self.pairs, &mut self.merged);
                self.thicken(values);
            }
            (false, true) => {
                copy(values, cast_slice(&self.theirs));
                decode_add(values, &self.pairs);
                self.is_dense = true;
            }
            (true, false) => decode_add(values, cast_slice(&self.theirs)),
            (true, true) => {
                let theirs: &[f32] = cast_slice(&self.theirs);
                values.iter_mut().zip(theirs).for_each(|(value, theirs)| *value += theirs);
            }
        }
    }

    /// Converts to all elements if that is fewer bytes.
    fn thicken(&mut self, values: &mut [f32]) {
        self.is_dense = size_of_val(&self.pairs[..]) > size_of_val(values);
        if self.is_dense {
            self.scatter(values);
        }
    }

    fn scatter(&self, values: &mut [f32]) {
        values.fill(0.0);
        decode_add(values, &self.pairs);
    }

    /// Returns the number that precedes a message, and its contents.
    fn message<'a>(&'a self, values: &'a [f32]) -> (u64, &'a [u32]) {
        if self.is_dense {
            (DENSE, cast_slice(values))
        } else {
            (self.pairs.len() as u64, cast_slice(&self.pairs))
        }
    }

    fn send(&self, leaders: &mut Communicator, values: &[f32], to: Rank) -> Result<()> {
        let (header, message) = self.message(values);
        leaders.send(&[header], to)?;
        leaders.send(message, to)
    }

    /// Returns whether all elements arrived.
    fn receive(&mut self, leaders: &mut Communicator, elements: usize, from: Rank) -> Result<bool> {
        let mut header = [0];
        leaders.receive(&mut header, from)?;
        let is_dense = self.prepare(header[0], elements);
        leaders.receive(&mut self.theirs, from)?;
        Ok(is_dense)
    }

    /// Sends and receives. Returns whether all elements arrived.
    fn exchange(&mut self, leaders: &mut Communicator, values: &[f32], partner: Rank) -> Result<bool> {
        let mut header = [0];
        leaders.exchange(&[self.message(values).0], partner, &mut header, partner)?;
        let is_dense = self.prepare(header[0], values.len());
        let mut theirs = std::mem::take(&mut self.theirs);
        let exchanged = leaders.exchange(self.message(values).1, partner, &mut theirs, partner);
        self.theirs = theirs;
        exchanged.map(|()| is_dense)
    }

    fn prepare(&mut self, header: u64, elements: usize) -> bool {
        let is_dense = header == DENSE;
        let count =
            if is_dense { elements } else { header as usize * (size_of::<Pair>() / size_of::<u32>()) };
        self.theirs.resize(count, 0);
        is_dense
    }
}

/// Returns whether all values are finite. Replaces each NaN by one with fixed bits, since the bits of a sum of two NaNs depend on
/// their order.
fn canonical(values: &mut [f32]) -> bool {
    let all_finite = values.iter().all(|value| value.is_finite());
    if !all_finite {
        values.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = f32::NAN);
    }
    all_finite
}

/// The pairs of a leader, and the buffers to sum them with those of the other leaders.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) own: Vec<Pair>,
    /// The pairs of all leaders, for an all-gather: each leader has space for the largest number of pairs.
    all: Vec<u64>,
    doubling: Doubling,
}

impl Pairs {
    /// Replaces the values, which are zeros, by the sum of all leaders' pairs. Returns whether all of them are finite. `counts` are
    /// the numbers of pairs of the leaders in an all-gather.
    pub(super) fn sum(
        &mut self,
        leaders: &mut Communicator,
        method: Method,
        counts: &[u64],
        values: &mut [f32],
    ) -> Result<bool> {
        match method {
            Method::AllGather => self.all_gather(leaders, counts, values),
            Method::Doubling => self.doubling.sum(leaders, &self.own, values),
            Method::Dense => {
                decode_add(values, &self.own);
                leaders.all_reduce(values, ReduceOp::Sum)?;
                Ok(canonical(values))
            }
        }
    }

    fn all_gather(&mut self, leaders: &mut Communicator, counts: &[u64], values: &mut [f32]) -> Result<bool> {
        let Self { own, all, .. } = self;
        let room = counts.iter().max().map_or(0, |&largest| largest as usize);
        if room == 0 {
            return Ok(true);
        }
        all.resize(leaders.ranks() * room, 0);
        let place: &mut [Pair] = cast_slice_mut(&mut all[leaders.rank() * room..]);
        copy(&mut place[..own.len()], own);
        leaders.all_gather(all)?;
        let mut all_finite = true;
        for (pairs, &count) in all.chunks_exact(room).zip(counts) {
            let pairs: &[Pair] = cast_slice(&pairs[..count as usize]);
            decode_add(values, pairs);
            // A sum that is not finite stays so.
            all_finite &= pairs.iter().all(|pair| values[pair.index as usize].is_finite());
        }
        Ok(all_finite)
    }
}

#[cfg(test)]
mod tests;
