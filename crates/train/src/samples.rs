//! Samples, and their assembly into batches by a feed.

use unisono_data::{Batch, DataError, Dataset, Pass, Skipped, Threads};

/// Samples by index, like PyTorch's `Dataset`.
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

    /// Returns the number of samples, the same on all ranks.
    fn len(&self) -> usize;

    /// Returns whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sample of an index below [`Samples::len`]. It is called on the threads of the input pipeline, ahead of the step that needs it. In
    /// training it may depend on the seed and the epoch of the pass, for augmentation.
    ///
    /// # Errors
    /// [`DataError::other`] with the cause. It ends the run on all ranks.
    fn get(&self, index: usize, pass: Pass) -> Result<Self::Sample, DataError>;
}

/// Samples in memory. With this trait in scope, `vec.get(index)` is [`Samples::get`], and `vec[..].get(index)` is the method of slices.
impl<T: Clone + Send + Sync + 'static> Samples for Vec<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize, _: Pass) -> Result<T, DataError> {
        Ok(self[index].clone())
    }
}

/// The samples of a [`Sampled`](crate::Sampled), for training and for evaluation. A pass states which of them. Implemented by [`Dataset`] and by
/// pairs of [`Samples`].
#[doc(hidden)]
pub trait BatchSource<B>: Send + Sync + 'static {
    /// Returns the number of samples of a pass.
    fn count(&self, pass: Pass) -> usize;

    /// Returns a batch of these samples. `None` if all of them are damaged and skipped.
    fn batch(&self, samples: &[usize], pass: Pass) -> Result<Option<B>, DataError>;

    /// Returns the threads that make batches, given the requested ones.
    fn threads(&self, asked: Threads, _: Pass) -> Threads {
        asked
    }

    /// Returns the skipped damaged samples: [`Feed::skipped`](crate::Feed::skipped).
    fn skipped(&self, _epoch: u64) -> Skipped {
        Skipped::default()
    }
}

impl<S: Samples> BatchSource<Vec<S::Sample>> for (S, S) {
    fn count(&self, pass: Pass) -> usize {
        of_pass(pass, &self.0, &self.1).len()
    }

    fn batch(&self, samples: &[usize], pass: Pass) -> Result<Option<Vec<S::Sample>>, DataError> {
        let all = of_pass(pass, &self.0, &self.1);
        let sample = of_pass(pass, "sample", "held-out sample");
        let get = |&index| {
            all.get(index, pass).map_err(|error| DataError::other(format!("{sample} {index}: {error}")))
        };
        samples.iter().map(get).collect::<Result<_, _>>().map(Some)
    }
}

impl<B: From<Batch>> BatchSource<B> for Dataset {
    fn count(&self, pass: Pass) -> usize {
        of_pass(pass, &self.train, &self.test).len()
    }

    fn batch(&self, samples: &[usize], pass: Pass) -> Result<Option<B>, DataError> {
        let batch = of_pass(pass, &self.train, &self.test).batch(samples, pass)?;
        Ok(Some(batch).filter(|batch| batch.samples > 0).map(B::from))
    }

    fn threads(&self, asked: Threads, pass: Pass) -> Threads {
        of_pass(pass, &self.train, &self.test).threads(asked)
    }

    fn skipped(&self, epoch: u64) -> Skipped {
        let [train, test] = [&self.train, &self.test].map(|split| split.skipped(epoch));
        Skipped { count: train.count + test.count, problems: [train.problems, test.problems].concat() }
    }
}

fn of_pass<T>(pass: Pass, train: T, test: T) -> T {
    match pass {
        Pass::Training { .. } => train,
        Pass::Evaluation => test,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::{Feed, Shares};
    use crate::sampled::Sampled;
    use unisono_data::Depth;

    #[test]
    fn evaluations_use_the_held_out_samples_in_order() {
        let samples: (Vec<usize>, Vec<usize>) = ((0..101).collect(), (0..70).collect());
        let shares = Shares { rank: 0, ranks: 1, global_batch: 24, micro_batch: 5, fixed_passes: None };
        let mut feed = Sampled::of_samples(samples, 7, shares, Threads::Auto, Depth::Auto);
        assert_eq!(feed.held_out(), 2);
        assert!(feed.evaluation(0..2).unwrap().flat_map(Result::unwrap).eq(0..70));
    }

    #[test]
    fn error_of_a_sample_is_returned_by_its_step() {
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
        let steps: Vec<_> = Sampled::of_samples((Broken, Broken), 7, shares, Threads::Auto, Depth::Auto)
            .epoch(1, 0)
            .unwrap()
            .collect();
        let failed: Vec<_> = steps.iter().filter_map(|step| step.as_ref().err()).collect();
        assert_eq!(failed[0].to_string(), "sample 3: it is broken");
        let held_out = (Broken, Broken).batch(&[3], Pass::Evaluation).unwrap_err();
        assert_eq!(held_out.to_string(), "held-out sample 3: it is broken");
    }
}
