//! Feeds of the trainer: the micro-batches of one rank, step by step.

use std::ops::{Range, RangeInclusive};

use unisono_collectives::{Chunks, Rank, partition};

use unisono_data::pipeline::StageReport;
use unisono_data::{DataError, Pipeline, Skipped};

/// The steps of an epoch on one rank, each with its micro-batches. A micro-batch without samples on this rank is `None`.
pub type Steps<B> = Box<dyn Iterator<Item = Result<Vec<Option<B>>, DataError>> + Send>;

/// The behaviour if some ranks have no more data for a step and others have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfData {
    /// The epoch ends on all ranks before that step. If gradients are compressed, those of the other ranks count in the next step.
    Stop,
    /// Ranks without data continue with zero gradient and zero weight until the last rank runs out.
    JoinWithZeros,
    /// The run fails.
    Error,
}

impl OutOfData {
    /// Returns whether a step is made if this many of `ranks` ranks have no data for it.
    pub(super) fn makes_step(self, out: usize, ranks: usize) -> bool {
        out == 0 || (self == Self::JoinWithZeros && out < ranks)
    }
}

/// A source of a rank's micro-batches.
pub trait Feed {
    /// A micro-batch.
    type Batch: Send + 'static;

    /// Returns the number of steps of an epoch, if known. It must be the same on all ranks. If it is unknown, ranks may run out of data at different
    /// steps, and [`OutOfData`](super::OutOfData) defines the behaviour.
    fn steps(&self) -> Option<usize>;

    /// Returns the number of samples in the first `steps` steps of an epoch over all ranks, if known.
    fn samples(&self, _steps: usize) -> Option<usize> {
        None
    }

    /// Returns the steps of an epoch (counted from 1) on this rank, skipping the first `skipped`.
    ///
    /// # Errors
    /// An error of the data.
    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<Self::Batch>, DataError>;

    /// Returns reports on the stages of the input pipeline in the latest epoch on this rank, if the feed measures them.
    fn stages(&self) -> Vec<StageReport> {
        Vec::new()
    }

    /// Returns the damaged samples that this rank has skipped since the last call, in evaluations and in epochs up to this one (counted from 1).
    /// Later epochs are excluded, because a feed may have prepared a part of the next epoch.
    fn skipped(&mut self, _epoch: usize) -> Skipped {
        Skipped::default()
    }

    /// Returns the number of evaluation batches; the same on all ranks.
    fn held_out(&self) -> usize {
        0
    }

    /// Returns the evaluation batches in `range`, without those that have no usable sample. The batches do not depend on the number of ranks, and
    /// therefore neither do the results.
    ///
    /// # Errors
    /// An error of the data.
    fn evaluation(&mut self, _range: Range<usize>) -> Result<Batches<Self::Batch>, DataError> {
        Ok(Box::new(std::iter::empty()))
    }
}

/// A feed that makes any share of any step, for workers that take the next free share.
pub trait RandomAccessFeed: Feed {
    /// Returns the micro-batches of share `number` of `of` of a step (counted from 0) of an epoch (counted from 1). They are the micro-batches of
    /// rank `number` of `of` ranks in [`Feed::epoch`]. `goes_on` is true if the same share of later steps will be requested too, so that the feed may
    /// prefetch them.
    ///
    /// # Errors
    /// An error of the data.
    fn share(
        &mut self,
        epoch: usize,
        step: usize,
        number: usize,
        of: usize,
        goes_on: bool,
    ) -> Result<Vec<Option<Self::Batch>>, DataError>;
}

/// Evaluation batches.
pub type Batches<B> = Box<dyn Iterator<Item = Result<B, DataError>> + Send>;

/// One rank's share of a step.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a, B> {
    /// Its micro-batches; `None` for an empty one. If there are none, the rank only takes part in the collectives.
    pub passes: &'a [Option<B>],
    /// Whether it has no more data.
    pub is_out_of_data: bool,
    /// Whether it was asked to stop. [`Sums::ranks_to_stop`](crate::Sums::ranks_to_stop) reports the number of such ranks to all ranks.
    pub asks_to_stop: bool,
    /// Whether it asks all ranks to save this step: [`Sums::ranks_to_save`](crate::Sums::ranks_to_save).
    pub asks_to_save: bool,
}

impl<'a, B> Share<'a, B> {
    /// Returns the share of a rank that has data and is not asked to stop.
    pub fn of(passes: &'a [Option<B>]) -> Self {
        Self { passes, is_out_of_data: false, asks_to_stop: false, asks_to_save: false }
    }
}

/// The division of the samples of a step among ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// This rank.
    pub rank: Rank,
    /// The number of ranks.
    pub ranks: usize,
    /// The global batch size: samples per step over all ranks, at least 1.
    pub global_batch: usize,
    /// The maximum number of samples in a pass, at least 1.
    pub micro_batch: usize,
    /// A fixed number of passes per step, for any number of ranks. If `None`, there are as few as possible.
    pub fixed_passes: Option<usize>,
}

impl Shares {
    /// Returns the number of steps of an epoch of this many samples.
    pub fn steps(&self, samples: usize) -> usize {
        samples.div_ceil(self.global_batch)
    }

    /// Returns the passes of this rank in a step of this many samples, each as a range of samples.
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

    /// Returns the samples of each pass of this rank in a step of an epoch with this order of samples.
    pub(super) fn samples(&self, order: &[usize], step: usize) -> Vec<Vec<usize>> {
        let start = step * self.global_batch;
        let batch = &order[start..order.len().min(start + self.global_batch)];
        let passes = self.passes(batch.len()).into_iter();
        passes.map(|pass| batch[pass].to_vec()).collect()
    }

    /// Returns the steps of epochs of `count` samples, without the first `skipped` of the first epoch. Each step has its epoch and the samples of the
    /// passes of this rank.
    pub(super) fn plans(
        self,
        count: usize,
        seed: u64,
        epochs: RangeInclusive<usize>,
        skipped: usize,
    ) -> Pipeline<(u64, Vec<Vec<usize>>)> {
        let (begun, last) = (*epochs.start() as u64, *epochs.end() as u64);
        Pipeline::repeat(begun..=last, move |epoch| {
            let order = unisono_data::order(count, seed, epoch);
            let first = if epoch == begun { skipped } else { 0 };
            let steps = first..self.steps(count);
            Ok(Pipeline::of(steps.map(move |step| (epoch, self.samples(&order, step)))))
        })
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
    fn every_sample_of_a_step_belongs_to_exactly_one_pass() {
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
