//! What the trainer is fed with: the micro-batches of one rank, step by step.

use std::ops::Range;

use unisono_collectives::{Chunks, Rank, partition};

use unisono_data::{DataError, Pipeline};

/// The steps of an epoch, on one rank: the micro-batches of each; `None` for one that has no sample on this rank.
pub type Steps<B> = Box<dyn Iterator<Item = Result<Vec<Option<B>>, DataError>> + Send>;

/// What happens when some ranks have no more data for a step and others have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfData {
    /// The epoch ends for all of them, before that step.
    Stop,
    /// Those that have none take part with gradients of zero and a weight of zero until the last has none.
    JoinWithZeros,
    /// It is an error.
    Error,
}

/// Where a rank's micro-batches come from.
pub trait Feed {
    /// A micro-batch.
    type Batch: Send + 'static;

    /// How many steps an epoch has, if that is known, and then it is the same on all ranks. If not, ranks may run out of
    /// data at different steps, and [`OutOfData`](super::OutOfData) says what happens.
    fn steps(&self) -> Option<usize>;

    /// How many samples the first so many steps of an epoch have on all ranks together, if that is known.
    fn samples(&self, steps: usize) -> Option<usize> {
        let _ = steps;
        None
    }

    /// The steps of an epoch (counted from 1) on this rank, without the first so many.
    ///
    /// # Errors
    /// What is wrong with the data.
    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<Self::Batch>, DataError>;

    /// How many batches there are to evaluate on; the same on all ranks.
    fn held_out(&self) -> usize {
        0
    }

    /// Those of the batches to evaluate on that are in `range`. They are the same batches however many ranks share them,
    /// so that their figures are the same.
    ///
    /// # Errors
    /// What is wrong with the data.
    fn evaluation(&mut self, range: Range<usize>) -> Result<Batches<Self::Batch>, DataError> {
        let _ = range;
        Ok(Box::new(std::iter::empty()))
    }
}

/// Batches to evaluate on.
pub type Batches<B> = Box<dyn Iterator<Item = Result<B, DataError>> + Send>;

/// How the samples of a step are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: usize,
    /// How many samples all ranks take together in a step.
    pub global_batch: usize,
    /// How many samples a pass takes at most.
    pub micro_batch: usize,
    /// Into how many passes a step is divided whatever the number of ranks; if nothing is said, into as few as can be.
    pub fixed_passes: Option<usize>,
}

impl Shares {
    /// How many steps it takes to see so many samples once.
    pub fn steps(&self, samples: usize) -> usize {
        samples.div_ceil(self.global_batch)
    }

    /// The passes of this rank in a step of so many samples: which of the step's samples each takes.
    pub fn passes(&self, samples: usize) -> Vec<Range<usize>> {
        let part = |parts, index| partition::elements(samples, parts, Chunks::one(index));
        if let Some(passes) = self.fixed_passes {
            let own = partition::elements(passes, self.ranks, Chunks::one(self.rank));
            return own.map(|pass| part(passes, pass)).collect();
        }
        let own = part(self.ranks, self.rank);
        let starts = own.clone().step_by(self.micro_batch);
        starts.map(|start| start..own.end.min(start + self.micro_batch)).collect()
    }
}

/// A stream of micro-batches that ends when it ends.
pub struct Stream<B> {
    open: Box<dyn FnMut(usize) -> Result<Pipeline<B>, DataError> + Send>,
    passes: usize,
}

impl<B> std::fmt::Debug for Stream<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("passes", &self.passes).finish_non_exhaustive()
    }
}

impl<B: Send + 'static> Stream<B> {
    /// `open` makes this rank's micro-batches of an epoch (counted from 1); `passes` of them make a step.
    ///
    /// # Panics
    /// If `passes` is 0.
    pub fn new(
        passes: usize,
        open: impl FnMut(usize) -> Result<Pipeline<B>, DataError> + Send + 'static,
    ) -> Self {
        assert!(passes > 0, "a step needs at least one pass");
        Self { open: Box::new(open), passes }
    }
}

impl<B: Send + 'static> Feed for Stream<B> {
    type Batch = B;

    fn steps(&self) -> Option<usize> {
        None
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<B>, DataError> {
        let passes = self.passes;
        let mut batches = (self.open)(epoch)?.skip(skipped * passes);
        Ok(Box::new(std::iter::from_fn(move || {
            let step: Result<Vec<_>, _> =
                batches.by_ref().take(passes).map(|batch| batch.map(Some)).collect();
            match step {
                Ok(step) if step.is_empty() => None,
                step => Some(step),
            }
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(ranks: usize, fixed_passes: Option<usize>) -> Vec<Vec<Range<usize>>> {
        let share = |rank| Shares { rank, ranks, global_batch: 24, micro_batch: 5, fixed_passes };
        (0..ranks).map(|rank| share(rank).passes(22)).collect()
    }

    #[test]
    fn every_sample_of_a_step_is_taken_once() {
        for ranks in 1..=7 {
            let taken: Vec<_> = shares(ranks, None).into_iter().flatten().collect();
            assert!(taken.iter().all(|pass| pass.len() <= 5));
            assert!(taken.into_iter().flatten().eq(0..22), "{ranks} ranks");
        }
    }

    #[test]
    fn fixed_passes_are_the_same_for_any_number_of_ranks() {
        let alone = shares(1, Some(8)).concat();
        assert_eq!(alone.len(), 8);
        for ranks in [2, 4, 8] {
            assert_eq!(shares(ranks, Some(8)).concat(), alone);
        }
    }
}
