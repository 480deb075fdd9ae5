//! Streams of unknown length as feeds.

use std::fmt;
use std::sync::Arc;

use unisono_data::pipeline::{StageReport, Watch};
use unisono_data::{DataError, Depth, Pipeline, Threads};

use crate::epochs::Epochs;
use crate::{Feed, Shares, Steps};

/// A stream of unknown length as a [`Feed`].
///
/// A pipeline that [repeats](Pipeline::repeat) continues with the next epoch and keeps its threads and buffers. A pipeline of a single epoch is
/// opened for each epoch.
pub struct Stream<B> {
    epoch: Box<Begin<B>>,
    watch: Watch,
}

/// Begins an epoch, skipping this many of its steps.
type Begin<B> = dyn FnMut(usize, usize) -> Result<(Steps<B>, Watch), DataError> + Send;

impl<B> fmt::Debug for Stream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl<B: Send + 'static> Stream<B> {
    /// Creates a feed. `open` builds this rank's micro-batches from an epoch (counted from 1) on, and `passes` of them make a step.
    ///
    /// # Panics
    /// If `passes` is 0.
    pub fn new(
        passes: usize,
        mut open: impl FnMut(usize) -> Result<Pipeline<B>, DataError> + Send + 'static,
    ) -> Self {
        assert!(passes > 0, "a step needs at least one pass");
        let open = move |epoch, skipped: usize| Ok(open(epoch)?.skip(skipped * passes).batch(passes));
        Self::of_steps(open, |step| step.into_iter().map(Some).collect())
    }

    /// Creates a feed of a sequence of samples, in the same order on all ranks. Ranks share the samples: each makes batches of its part of every
    /// step.
    ///
    /// All ranks read all samples, which is cheap if they are still encoded, and decode only their own. A run that is resumed during an epoch
    /// therefore continues with the first unused sample, even on another number of ranks. If the positions of samples are known,
    /// [`Sampled`](crate::Sampled) skips them without reading.
    ///
    /// ```
    /// use unisono_data::{DataError, Depth, Pipeline, Threads};
    /// use unisono_train::{Feed, Shares, Stream};
    ///
    /// # fn main() -> Result<(), DataError> {
    /// // Rank 1 of 2 has the second half of every global batch.
    /// let shares = Shares { rank: 1, ranks: 2, global_batch: 4, micro_batch: 2, fixed_passes: None };
    /// let open = |first: usize| {
    ///     Ok(Pipeline::repeat(first as u64.., |_| Ok(Pipeline::of(0..10_u32))).shuffle(3, 7, first as u64))
    /// };
    /// let decode = |samples: Vec<u32>| Ok(samples.into_iter().map(|sample| sample as f32).collect::<Vec<_>>());
    /// let mut feed = Stream::of_samples(shares, Threads::Auto, Depth::Auto, open, decode);
    /// let steps = feed.epoch(1, 0)?.collect::<Result<Vec<_>, DataError>>()?;
    /// assert_eq!(steps.iter().flatten().flatten().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `open` reads the samples from an epoch (counted from 1) on, the same on all ranks. `make` makes a micro-batch from some of them, on `threads`.
    /// `depth` steps are prefetched.
    pub fn of_samples<S: Send + 'static>(
        shares: Shares,
        threads: Threads,
        depth: Depth,
        mut open: impl FnMut(usize) -> Result<Pipeline<S>, DataError> + Send + 'static,
        make: impl Fn(Vec<S>) -> Result<B, DataError> + Send + Sync + 'static,
    ) -> Self {
        let make = Arc::new(make);
        let open = move |epoch, skipped: usize| {
            let samples = open(epoch)?.skip(skipped * shares.global_batch).batch(shares.global_batch);
            let make = Arc::clone(&make);
            let steps = samples.map(threads, move |samples| passes(shares, samples, &*make));
            Ok(steps.named("batches").prefetch(depth))
        };
        Self::of_steps(open, |step| step)
    }

    fn of_steps<T: Send + 'static>(
        mut open: impl FnMut(usize, usize) -> Result<Pipeline<T>, DataError> + Send + 'static,
        step: fn(T) -> Vec<Option<B>>,
    ) -> Self {
        let mut epochs = Epochs::default();
        let epoch = move |epoch, skipped| {
            let steps = epochs.begin(epoch, None, skipped == 0, || open(epoch, skipped))?;
            let steps: Steps<B> = Box::new(steps.map(move |found| found.map(step)));
            Ok((steps, epochs.watch.clone()))
        };
        Self { epoch: Box::new(epoch), watch: Watch::default() }
    }
}

/// Returns the micro-batches of this rank in a step of these samples.
fn passes<S, B>(
    shares: Shares,
    samples: Vec<S>,
    make: &impl Fn(Vec<S>) -> Result<B, DataError>,
) -> Result<Vec<Option<B>>, DataError> {
    let passes = shares.passes(samples.len());
    let first = passes.first().map_or(0, |pass| pass.start);
    let mut samples = samples.into_iter().skip(first);
    // The passes of a rank follow each other.
    let batch = |count: usize| match count {
        0 => Ok(None),
        _ => make(samples.by_ref().take(count).collect()).map(Some),
    };
    passes.iter().map(ExactSizeIterator::len).map(batch).collect()
}

impl<B: Send + 'static> Feed for Stream<B> {
    type Batch = B;

    fn steps(&self) -> Option<usize> {
        None
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<B>, DataError> {
        let (steps, watch) = (self.epoch)(epoch, skipped)?;
        self.watch = watch;
        Ok(steps)
    }

    fn stages(&self) -> Vec<StageReport> {
        self.watch.stages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: u64 = 101;

    fn feed(rank: usize, ranks: usize) -> Stream<Vec<u64>> {
        let shares = Shares { rank, ranks, global_batch: 24, micro_batch: 5, fixed_passes: None };
        let open = |first: usize| {
            let first = first as u64;
            Ok(Pipeline::repeat(first.., |_| Ok(Pipeline::of(0..SAMPLES))).shuffle(40, 7, first))
        };
        Stream::of_samples(shares, Threads::Auto, Depth::Auto, open, Ok)
    }

    /// Returns the samples of a rank in this many steps.
    fn seen(feed: &mut Stream<Vec<u64>>, epoch: usize, skipped: usize, steps: usize) -> Vec<u64> {
        let steps = feed.epoch(epoch, skipped).unwrap().take(steps).map(Result::unwrap);
        steps.flatten().flatten().flatten().collect()
    }

    #[test]
    fn every_sample_is_used_once_when_a_run_resumes_on_other_ranks() {
        for (before, after) in [(1, 1), (2, 2), (2, 3), (3, 1)] {
            let first = (0..before).flat_map(|rank| seen(&mut feed(rank, before), 4, 0, 2));
            let rest = (0..after).flat_map(|rank| seen(&mut feed(rank, after), 4, 2, usize::MAX));
            let mut all: Vec<_> = first.chain(rest).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..SAMPLES), "{before} ranks, then {after}");
        }
    }

    #[test]
    fn continued_epoch_equals_a_newly_opened_one() {
        let mut going_on = feed(1, 2);
        for epoch in 1..4 {
            let expected = seen(&mut feed(1, 2), epoch, 0, usize::MAX);
            assert_eq!(seen(&mut going_on, epoch, 0, usize::MAX), expected, "epoch {epoch}");
        }
    }

    #[test]
    fn all_ranks_make_the_same_steps_if_some_have_no_samples() {
        for rank in 0..7 {
            let steps: Vec<_> = feed(rank, 7).epoch(1, 0).unwrap().map(Result::unwrap).collect();
            assert_eq!(steps.len(), 5);
            assert!(steps.iter().flatten().flatten().all(|batch| (1..=5).contains(&batch.len())));
        }
    }
}
