//! A feed of samples: every sample once per epoch, reshuffled for each epoch, on any number of ranks.

use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use crate::epochs::Epochs;
use crate::{BatchSource, Batches, Feed, RandomAccessFeed, Samples, Shares, Steps};
use unisono_data::pipeline::StageReport;
use unisono_data::{Batch, DataError, Dataset, Depth, Pass, Pipeline, Skipped, Threads};

/// Transfers batches to the device of the model.
pub type PassOn<B> = Arc<dyn Fn(B) -> Result<B, DataError> + Send + Sync>;

/// A [`Feed`] over a [`Dataset`] or [`Samples`]. Background threads prefetch its batches.
///
/// Seed and epoch determine the order of samples. Each rank therefore knows the samples of every other rank, and a resumed run knows the samples that
/// it has already used, even with another number of ranks.
pub struct Sampled<S = Dataset, B = Batch> {
    source: Arc<S>,
    seed: u64,
    shares: Shares,
    threads: Threads,
    depth: Depth,
    /// The epoch of the most recently requested single share, and the order of its samples.
    order: (usize, Vec<usize>),
    ahead: Option<Ahead<B>>,
    epochs: Epochs<Vec<Option<B>>>,
    threads_before: Option<Threads>,
    /// The last epoch that will be requested, if known.
    last_epoch: Option<usize>,
    pass_on: Option<PassOn<B>>,
}

/// Shares of consecutive steps, which are prefetched.
struct Ahead<B> {
    epoch: usize,
    shares: Shares,
    /// The next step.
    step: usize,
    steps: Steps<B>,
}

impl<S, B> fmt::Debug for Sampled<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampled").field("shares", &self.shares).finish_non_exhaustive()
    }
}

/// The number of samples per evaluation batch.
pub const EVALUATION_BATCH: usize = 64;

impl Sampled {
    /// Creates a feed for one rank. `threads` make its batches, and `depth` steps of the current epoch are prefetched.
    pub fn new(dataset: Arc<Dataset>, seed: u64, shares: Shares, threads: Threads, depth: Depth) -> Self {
        Self::of(dataset, seed, shares, threads, depth)
    }
}

impl<S: Samples> Sampled<(S, S), Vec<S::Sample>> {
    /// Like [`new`](Self::new), for samples of any kind. The second set is held out for evaluations, and may be empty.
    pub fn of_samples(
        (train, held_out): (S, S),
        seed: u64,
        shares: Shares,
        threads: Threads,
        depth: Depth,
    ) -> Self {
        Self::of(Arc::new((train, held_out)), seed, shares, threads, depth)
    }
}

impl<S, B> Sampled<S, B> {
    fn of(source: Arc<S>, seed: u64, shares: Shares, threads: Threads, depth: Depth) -> Self {
        Self {
            source,
            seed,
            shares,
            threads,
            depth,
            order: (0, Vec::new()),
            ahead: None,
            epochs: Epochs::default(),
            threads_before: None,
            last_epoch: None,
            pass_on: None,
        }
    }

    /// Starts each epoch up to this one while the previous one ends and is evaluated, so that it begins without a wait.
    #[must_use]
    pub fn up_to_epoch(self, last: usize) -> Self {
        Self { last_epoch: Some(last), ..self }
    }

    /// Returns a feed with batches of another type. `pass_on`, if given, transfers them in a separate pipeline stage.
    #[doc(hidden)]
    pub fn placed<C>(self, pass_on: Option<PassOn<C>>) -> Sampled<S, C> {
        let Self { source, seed, shares, threads, depth, last_epoch, .. } = self;
        Sampled { last_epoch, pass_on, ..Sampled::of(source, seed, shares, threads, depth) }
    }
}

impl<S: BatchSource<B>, B: Send + 'static> Sampled<S, B> {
    fn pass(&self, epoch: usize) -> Pass {
        Pass::Training { seed: self.seed, epoch: epoch as u64 }
    }

    fn count(&self) -> usize {
        self.source.count(self.pass(0))
    }
}

fn batches<B>(
    source: &impl BatchSource<B>,
    pass: Pass,
    samples: Vec<Vec<usize>>,
) -> Result<Vec<Option<B>>, DataError> {
    let batch = |samples: Vec<usize>| match samples.len() {
        0 => Ok(None),
        _ => source.batch(&samples, pass),
    };
    samples.into_iter().map(batch).collect()
}

/// Returns the elements after their batches are transferred. A thread of a separate stage stays two elements ahead of the consumer. `in_element`
/// transfers the batches of one element.
fn passed_on<T: Send + 'static, B: 'static>(
    elements: Pipeline<T>,
    pass_on: &Option<PassOn<B>>,
    in_element: impl Fn(T, &PassOn<B>) -> Result<T, DataError> + Send + Sync + 'static,
) -> Pipeline<T> {
    let Some(pass_on) = pass_on.clone() else { return elements };
    elements.map(Threads::Fixed(1), move |element| in_element(element, &pass_on)).named("device")
}

impl<S: BatchSource<B>, B: Send + 'static> Feed for Sampled<S, B> {
    type Batch = B;

    fn steps(&self) -> Option<usize> {
        Some(self.shares.steps(self.count()))
    }

    fn samples(&self, steps: usize) -> Option<usize> {
        Some(self.count().min(steps * self.shares.global_batch))
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<B>, DataError> {
        let count = self.count();
        let Self { ref source, seed, shares, depth, last_epoch, ref pass_on, .. } = *self;
        // The number of threads that servers can use may have changed since the last epoch, because servers may have joined or left.
        let threads = source.threads(self.threads, self.pass(epoch));
        let is_as_before = self.threads_before.replace(threads) == Some(threads);
        let open = || {
            let on_threads = Arc::clone(source);
            let last = last_epoch.unwrap_or(epoch).max(epoch);
            let plans = shares.plans(count, seed, epoch..=last, skipped);
            let make = move |(epoch, samples)| batches(&*on_threads, Pass::Training { seed, epoch }, samples);
            let steps = plans.map(threads, make).named("batches").prefetch(depth);
            Ok(passed_on(steps, pass_on, |step: Vec<Option<B>>, pass_on| {
                step.into_iter().map(|batch| batch.map(&**pass_on).transpose()).collect()
            }))
        };
        let goes_on = skipped == 0 && is_as_before && last_epoch.is_some_and(|last| epoch <= last);
        let length = shares.steps(count).saturating_sub(skipped);
        let steps = self.epochs.begin(epoch, Some(length), goes_on, open)?;
        Ok(Box::new(steps.map(|step| step.map_err(DataError::without_element))))
    }

    fn stages(&self) -> Vec<StageReport> {
        self.epochs.watch.stages()
    }

    fn skipped(&mut self, epoch: usize) -> Skipped {
        self.source.skipped(epoch as u64)
    }

    fn held_out(&self) -> usize {
        self.source.count(Pass::Evaluation).div_ceil(EVALUATION_BATCH)
    }

    fn evaluation(&mut self, range: Range<usize>) -> Result<Batches<B>, DataError> {
        let (source, pass) = (Arc::clone(&self.source), Pass::Evaluation);
        let (threads, count) = (source.threads(self.threads, pass), source.count(pass));
        let make = move |number: usize| {
            let start = number * EVALUATION_BATCH;
            let samples: Vec<_> = (start..count.min(start + EVALUATION_BATCH)).collect();
            source.batch(&samples, pass)
        };
        let batches = Pipeline::of(range).map(threads, make);
        let transfer = |batch: Option<B>, pass_on: &PassOn<B>| batch.map(&**pass_on).transpose();
        // Without the batches whose samples are all damaged and skipped.
        let batches = passed_on(batches, &self.pass_on, transfer).filter_map(Result::transpose);
        Ok(Box::new(batches.map(|batch| batch.map_err(DataError::without_element))))
    }
}

impl<S: BatchSource<B>, B: Send + 'static> RandomAccessFeed for Sampled<S, B> {
    fn share(
        &mut self,
        epoch: usize,
        step: usize,
        number: usize,
        of: usize,
        goes_on: bool,
    ) -> Result<Vec<Option<B>>, DataError> {
        let shares = Shares { rank: number, ranks: of, ..self.shares };
        if goes_on {
            let follows =
                |ahead: &Ahead<B>| (ahead.epoch, ahead.shares) == (epoch, shares) && ahead.step <= step;
            if !self.ahead.as_ref().is_some_and(follows) {
                // No other feed continues with its next epoch.
                let source = Arc::clone(&self.source);
                let mut alone = Self::of(source, self.seed, shares, self.threads, self.depth);
                self.ahead = Some(Ahead { epoch, shares, step, steps: alone.epoch(epoch, step)? });
            }
            let ahead = self.ahead.as_mut();
            // Other workers may have taken some steps in between.
            let found =
                ahead.and_then(|ahead| ahead.steps.nth(step - mem::replace(&mut ahead.step, step + 1)));
            if let Some(share) = found {
                return share;
            }
        }
        if self.order.0 != epoch {
            self.order = (epoch, unisono_data::order(self.count(), self.seed, epoch as u64));
        }
        batches(&*self.source, self.pass(epoch), shares.samples(&self.order.1, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use unisono_data::{Inputs, Kind, Schema, StoredSamples};

    fn feed(rank: usize, ranks: usize) -> Sampled {
        let split = StoredSamples::images([1, 1, 1], (0..101).collect(), vec![0; 101]);
        let kind = Kind::Images { height: 1, width: 1, channels: 1, classes: 1 };
        let dataset =
            Arc::new(Dataset { kind, train: split.clone(), test: split, schema: Schema::default() });
        let shares = Shares { rank, ranks, global_batch: 24, micro_batch: 5, fixed_passes: None };
        Sampled::new(dataset, 7, shares, Threads::Auto, Depth::Auto)
    }

    /// Returns every pixel of a rank's samples in an epoch.
    fn seen(mut feed: Sampled, epoch: usize, skipped: usize) -> Vec<u32> {
        let steps = feed.epoch(epoch, skipped).unwrap().map(Result::unwrap);
        let batches = steps.flatten().flatten();
        let pixels = batches.flat_map(|batch| match batch.inputs {
            Inputs::Pixels(pixels) => pixels,
            Inputs::Tokens(_) => panic!("images have pixels"),
        });
        pixels.map(f32::to_bits).collect()
    }

    #[test]
    fn every_sample_is_used_once_per_epoch_on_any_number_of_ranks() {
        let sorted = |mut pixels: Vec<u32>| {
            pixels.sort_unstable();
            pixels
        };
        let alone = sorted(seen(feed(0, 1), 1, 0));
        assert_eq!(alone.len(), 101);
        for ranks in [2, 3, 30] {
            let together = (0..ranks).flat_map(|rank| seen(feed(rank, ranks), 1, 0)).collect();
            assert_eq!(sorted(together), alone, "{ranks} ranks");
        }
    }

    #[test]
    fn resumed_epoch_skips_used_samples_on_another_number_of_ranks() {
        let (before, after) = (2, 3);
        let first: Vec<u32> = (0..before)
            .flat_map(|rank| {
                let mut feed = feed(rank, before);
                let steps: Vec<_> = feed.epoch(4, 0).unwrap().take(2).map(Result::unwrap).collect();
                steps.into_iter().flatten().flatten().flat_map(|batch| match batch.inputs {
                    Inputs::Pixels(pixels) => pixels.into_iter().map(f32::to_bits),
                    Inputs::Tokens(_) => panic!("images have pixels"),
                })
            })
            .collect();
        assert_eq!(first.len(), 48);
        let rest = (0..after).flat_map(|rank| seen(feed(rank, after), 4, 2));
        let all: std::collections::BTreeSet<_> = first.into_iter().chain(rest).collect();
        assert_eq!(all.len(), 101);
    }

    #[test]
    fn single_share_equals_the_batches_of_the_rank_with_its_number() {
        let mut any = feed(0, 1);
        for (number, epoch) in [(0, 3), (2, 3), (1, 4)] {
            let steps: Vec<_> = feed(number, 3).epoch(epoch, 0).unwrap().map(Result::unwrap).collect();
            // Between the last two shares, another worker takes a step that was prefetched.
            for (step, goes_on) in
                [(4, false), (0, false), (4, true), (0, true), (1, true), (2, false), (3, true)]
            {
                let share = any.share(epoch, step, number, 3, goes_on).unwrap();
                assert_eq!(format!("{share:?}"), format!("{:?}", steps[step]));
            }
        }
    }

    #[test]
    fn prefetched_epoch_has_the_same_batches() {
        let mut ahead = feed(1, 2).up_to_epoch(3);
        for (epoch, skipped) in [(1, 2), (2, 0), (3, 0), (4, 0)] {
            let steps: Vec<_> = ahead.epoch(epoch, skipped).unwrap().map(Result::unwrap).collect();
            let alone: Vec<_> = feed(1, 2).epoch(epoch, skipped).unwrap().map(Result::unwrap).collect();
            assert_eq!(steps, alone, "epoch {epoch}");
        }
    }

    /// A batch, and whether it was transferred.
    #[derive(Debug, PartialEq)]
    struct Marked(Batch, bool);

    impl From<Batch> for Marked {
        fn from(batch: Batch) -> Self {
            Self(batch, false)
        }
    }

    #[test]
    fn batches_are_transferred_in_a_separate_stage() {
        let mark = |Marked(batch, is_marked): Marked| {
            assert!(!is_marked, "it is passed on once");
            Ok(Marked(batch, true))
        };
        let mut marked = feed(1, 2).up_to_epoch(3).placed(Some(Arc::new(mark)));
        let mut plain = feed(1, 2);
        for (epoch, skipped) in [(1, 2), (2, 0), (3, 0)] {
            let steps: Vec<_> = marked.epoch(epoch, skipped).unwrap().map(Result::unwrap).collect();
            let expected = plain.epoch(epoch, skipped).unwrap().map(Result::unwrap);
            let expected: Vec<Vec<_>> = expected
                .map(|step| step.into_iter().map(|batch| batch.map(|batch| Marked(batch, true))).collect())
                .collect();
            assert_eq!(steps, expected, "epoch {epoch}");
            let stages = marked.stages();
            let last = stages.last().expect("it has stages");
            assert_eq!((last.name, last.threads), ("device", 1));
            assert!(last.elements > 0, "{last:?}");
        }
        let held_out: Vec<_> = marked.evaluation(0..2).unwrap().map(Result::unwrap).collect();
        let expected = plain.evaluation(0..2).unwrap().map(|batch| Marked(batch.unwrap(), true));
        assert_eq!(held_out, expected.collect::<Vec<_>>());
    }

    #[test]
    fn transfer_error_is_returned_in_place_of_its_step() {
        let passed = AtomicUsize::new(0);
        let fail = move |batch: Batch| match passed.fetch_add(1, Ordering::Relaxed) {
            4 => Err(DataError::other("GPU 3 failed")),
            _ => Ok(batch),
        };
        let mut failing = feed(0, 2).placed(Some(Arc::new(fail)));
        let mut steps = failing.epoch(1, 0).unwrap();
        // A step has three batches.
        assert_eq!(steps.next().unwrap().unwrap().len(), 3);
        let error = steps.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("GPU 3 failed"), "{error}");
        assert!(steps.next().is_none());
    }

    /// Samples of which only a full batch is undamaged.
    struct Damaged;

    impl BatchSource<Vec<usize>> for Damaged {
        fn count(&self, _: Pass) -> usize {
            EVALUATION_BATCH + 1
        }

        fn batch(&self, samples: &[usize], _: Pass) -> Result<Option<Vec<usize>>, DataError> {
            Ok(Some(samples.to_vec()).filter(|samples| samples.len() == EVALUATION_BATCH))
        }
    }

    #[test]
    fn batch_of_damaged_samples_is_not_evaluated() {
        let shares = Shares { rank: 0, ranks: 1, global_batch: 1, micro_batch: 1, fixed_passes: None };
        let mut feed: Sampled<_, Vec<usize>> =
            Sampled::of(Arc::new(Damaged), 0, shares, Threads::Auto, Depth::Auto);
        let batches: Result<Vec<_>, _> = feed.evaluation(0..2).unwrap().collect();
        assert_eq!((feed.held_out(), batches.unwrap().len()), (2, 1));
    }

    #[test]
    fn epochs_have_different_orders_of_samples() {
        assert_ne!(seen(feed(0, 1), 1, 0), seen(feed(0, 1), 2, 0));
        assert_eq!(seen(feed(0, 1), 1, 0), seen(feed(0, 1), 1, 0));
    }
}
