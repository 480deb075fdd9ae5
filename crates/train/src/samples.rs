//! Samples of any kind as a feed: every sample once per epoch, reshuffled every time, on any number of ranks.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use unisono_data::pipeline::StageReport;
use unisono_data::{DataError, Depth, Pass, Pipeline, Threads};

use super::epochs::Epochs;
use super::feed::{Batches, Feed, Shares, Steps};
use super::sampled::{EVALUATION_BATCH, evaluation_batch};

/// Samples by their numbers, as a `Dataset` of PyTorch.
///
/// ```
/// use unisono_data::{DataError, Pass};
/// use unisono_train::Samples;
///
/// /// Numbers and their squares.
/// struct Squares;
///
/// impl Samples for Squares {
///     type Sample = (f32, f32);
///
///     fn len(&self) -> usize {
///         1000
///     }
///
///     fn get(&self, index: usize, _: Pass) -> Result<(f32, f32), DataError> {
///         let number = index as f32 / 1000.0;
///         Ok((number, number * number))
///     }
/// }
/// ```
pub trait Samples: Send + Sync + 'static {
    /// A sample, with its target.
    type Sample: Send + 'static;

    /// The number of samples, the same on all ranks.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample of a number below [`Samples::len`]. It is called on the threads of the input pipeline, ahead of the step that needs it.
    /// In training it may vary with the seed and the epoch of the pass, for augmentation.
    ///
    /// # Errors
    /// [`DataError::other`] with what went wrong. It ends the run on all ranks.
    fn get(&self, index: usize, pass: Pass) -> Result<Self::Sample, DataError>;
}

/// Samples in memory.
impl<T: Clone + Send + Sync + 'static> Samples for Vec<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize, _: Pass) -> Result<T, DataError> {
        Ok(self[index].clone())
    }
}

/// [`Samples`] as a [`Feed`]: shared out over ranks, shuffled, batched, and made ahead on background threads.
///
/// Seed and epoch determine the order of samples, so a resumed run knows which it has seen, also on another number of ranks.
#[derive(Clone)]
pub struct Loader<S: Samples> {
    samples: Arc<S>,
    held_out: Arc<S>,
    seed: u64,
    shares: Shares,
    threads: Threads,
    depth: Depth,
    last_epoch: usize,
    epochs: Epochs<Vec<Option<Vec<S::Sample>>>>,
}

impl<S: Samples> fmt::Debug for Loader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, held_out) = (self.samples.len(), self.held_out.len());
        f.debug_struct("Loader")
            .field("samples", &samples)
            .field("held_out", &held_out)
            .finish_non_exhaustive()
    }
}

impl<S: Samples> Loader<S> {
    /// The feed of one rank in a run of `epochs` epochs. `held_out` samples, perhaps none, are for evaluations.
    pub fn new(samples: S, held_out: S, seed: u64, shares: Shares, epochs: usize) -> Self {
        let (samples, held_out) = (Arc::new(samples), Arc::new(held_out));
        let (threads, depth) = (Threads::Auto, Depth::Auto);
        Self {
            samples,
            held_out,
            seed,
            shares,
            threads,
            depth,
            last_epoch: epochs,
            epochs: Epochs::default(),
        }
    }

    /// Makes samples on `threads` threads, and prefetches `depth` steps.
    #[must_use]
    pub fn on_threads(self, threads: Threads, depth: Depth) -> Self {
        Self { threads, depth, ..self }
    }
}

fn batch<S: Samples>(
    samples: &S,
    indices: impl IntoIterator<Item = usize>,
    pass: Pass,
) -> Result<Vec<S::Sample>, DataError> {
    let get = |index| {
        samples.get(index, pass).map_err(|error| DataError::other(format!("sample {index}: {error}")))
    };
    indices.into_iter().map(get).collect()
}

impl<S: Samples> Feed for Loader<S> {
    type Batch = Vec<S::Sample>;

    fn steps(&self) -> Option<usize> {
        Some(self.shares.steps(self.samples.len()))
    }

    fn samples(&self, steps: usize) -> Option<usize> {
        Some(self.samples.len().min(steps * self.shares.global_batch))
    }

    fn epoch(&mut self, epoch: usize, skipped: usize) -> Result<Steps<Self::Batch>, DataError> {
        let Self { ref samples, seed, shares, threads, depth, last_epoch, ref mut epochs, .. } = *self;
        let count = samples.len();
        let open = || {
            let samples = Arc::clone(samples);
            let make = move |(epoch, passes): (u64, Vec<Vec<usize>>)| {
                let pass = Pass::Training { seed, epoch };
                let batch = |indices: Vec<usize>| {
                    (!indices.is_empty()).then(|| batch(&*samples, indices, pass)).transpose()
                };
                passes.into_iter().map(batch).collect()
            };
            let plans = shares.plans(count, seed, epoch..=last_epoch.max(epoch), skipped);
            Ok(plans.map(threads, make).named("batches").prefetch(depth))
        };
        let length = shares.steps(count).saturating_sub(skipped);
        Ok(Box::new(epochs.begin(epoch, Some(length), skipped == 0 && epoch <= last_epoch, open)?))
    }

    fn stages(&self) -> Vec<StageReport> {
        self.epochs.watch.stages()
    }

    fn held_out(&self) -> usize {
        self.held_out.len().div_ceil(EVALUATION_BATCH)
    }

    fn evaluation(&mut self, range: Range<usize>) -> Result<Batches<Self::Batch>, DataError> {
        let samples = Arc::clone(&self.held_out);
        let make =
            move |number: usize| batch(&*samples, evaluation_batch(number, samples.len()), Pass::Evaluation);
        Ok(Box::new(Pipeline::of(range).map(self.threads, make)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(rank: usize, ranks: usize) -> Loader<Vec<usize>> {
        let shares = Shares { rank, ranks, global_batch: 24, micro_batch: 5, fixed_passes: None };
        Loader::new((0..101).collect(), (0..70).collect(), 7, shares, 3)
    }

    fn seen(loader: &mut Loader<Vec<usize>>, epoch: usize, skipped: usize) -> Vec<usize> {
        loader.epoch(epoch, skipped).unwrap().flat_map(Result::unwrap).flatten().flatten().collect()
    }

    #[test]
    fn every_sample_is_seen_once_an_epoch_by_any_number_of_ranks_in_another_order_each_time() {
        for ranks in [1, 2, 3, 30] {
            let mut loaders: Vec<_> = (0..ranks).map(|rank| loader(rank, ranks)).collect();
            let epochs = [1, 2, 3].map(|epoch| {
                loaders.iter_mut().flat_map(|loader| seen(loader, epoch, 0)).collect::<Vec<_>>()
            });
            assert_ne!(epochs[0], epochs[1]);
            for mut epoch in epochs {
                epoch.sort_unstable();
                assert!(epoch.into_iter().eq(0..101), "{ranks} ranks");
            }
        }
    }

    #[test]
    fn a_resumed_run_goes_on_where_it_was_on_another_number_of_ranks() {
        let before = loader(0, 1).epoch(2, 0).unwrap().take(2).flat_map(Result::unwrap).flatten().flatten();
        let after = (0..3).flat_map(|rank| seen(&mut loader(rank, 3), 2, 2));
        let mut all: Vec<usize> = before.chain(after).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..101));
    }

    #[test]
    fn evaluations_see_the_held_out_samples_in_order() {
        let mut loader = loader(0, 1);
        assert_eq!(loader.held_out(), 2);
        assert!(loader.evaluation(0..2).unwrap().flat_map(Result::unwrap).eq(0..70));
    }

    #[test]
    fn an_error_of_a_sample_is_that_of_its_step() {
        struct Broken;
        impl Samples for Broken {
            type Sample = usize;
            fn len(&self) -> usize {
                10
            }
            fn get(&self, index: usize, _: Pass) -> Result<usize, DataError> {
                if index == 3 { Err(DataError::other("it is broken")) } else { Ok(index) }
            }
        }
        let shares = Shares { rank: 0, ranks: 1, global_batch: 2, micro_batch: 2, fixed_passes: None };
        let steps: Vec<_> = Loader::new(Broken, Broken, 7, shares, 1).epoch(1, 0).unwrap().collect();
        let failed: Vec<_> = steps.iter().filter_map(|step| step.as_ref().err()).collect();
        assert!(failed[0].to_string().ends_with("sample 3: it is broken"), "{}", failed[0]);
    }
}
