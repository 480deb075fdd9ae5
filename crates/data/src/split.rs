//! One part of a data set, and its batches.

use std::any::Any;
use std::fmt::Debug;
use std::hash::Hasher;
use std::sync::Arc;

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::pipeline::{Threads, part};
use crate::random::{ORDER, SHIFT, keyed_rng};
use crate::{Batch, DataError, Normalization, Pass, Skipped, Values};

/// One part of a data set: numbered samples, and batches of them. Threads share it.
///
/// A custom data format implements three methods:
///
/// ```
/// use std::hash::Hasher;
/// use std::sync::Arc;
/// use unisono_data::{DataError, Dataset, Kind, Pass, Schema, Split, Values};
///
/// /// Whole numbers, and whether they are odd.
/// #[derive(Debug)]
/// struct Numbers(usize);
///
/// impl Split for Numbers {
///     fn len(&self) -> usize {
///         self.0
///     }
///
///     fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError> {
///         hasher.write(&self.0.to_le_bytes());
///         Ok(())
///     }
///
///     fn gather(&self, samples: &[usize], _: Pass) -> Result<(Values, Vec<u32>), DataError> {
///         let numbers = samples.iter().map(|&sample| sample as f32).collect();
///         Ok((Values::Numbers(numbers), samples.iter().map(|&sample| sample as u32 % 2).collect()))
///     }
/// }
///
/// let kind = Kind::Table { features: 1, classes: 2 };
/// let (train, test) = (Arc::new(Numbers(90)), Arc::new(Numbers(10)));
/// let dataset = Dataset { kind, train, test, schema: Schema::default() };
/// assert_eq!(dataset.train.batch(&[4, 7], Pass::Evaluation)?.targets, [0, 1]);
/// # Ok::<(), DataError>(())
/// ```
pub trait Split: Any + Debug + Send + Sync {
    /// Returns the number of samples.
    ///
    /// A text reserves the length of one window, so that windows may start at any [`shift`](Self::shift) without changing their number.
    fn len(&self) -> usize;

    /// Adds the samples to a hash that detects changed data. Images in files add only the properties that are known without decoding them.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn hash(&self, hasher: &mut dyn Hasher) -> Result<(), DataError>;

    /// Gathers the inputs and targets of a [batch](Self::batch) in their most compact form. Many threads call it concurrently.
    ///
    /// # Errors
    /// The errors of [`batch`](Self::batch).
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError>;

    /// Returns the length of a window if this is a text: each window has this many targets.
    fn context(&self) -> Option<usize> {
        None
    }

    /// Returns the statistics by which its images are normalised; `None` for those of MNIST.
    fn normalization(&self) -> Option<&Normalization> {
        None
    }

    /// Returns the threads on which to make batches, given the requested ones. While a server makes a batch, a thread only waits. `Auto` then means
    /// enough threads to keep all servers busy, instead of one per core.
    fn threads(&self, asked: Threads) -> Threads {
        asked
    }

    /// Returns the damaged samples skipped since the last call, in batches of evaluation, and in batches of training up to this epoch. Later epochs
    /// may already be prepared.
    fn skipped(&self, epoch: u64) -> Skipped {
        let _ = epoch;
        Skipped::default()
    }

    /// Returns the notes for the user on how the samples are read.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// Returns the same text with `tokens[i]` in place of token `i`.
    ///
    /// # Panics
    /// If there are fewer tokens than characters in the vocabulary, or the samples are not a text.
    fn renumbered(&self, tokens: &[u32]) -> Arc<dyn Split> {
        panic!("{} tokens are for a text, which these samples are not", tokens.len())
    }

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the offset of a text's windows in `epoch`, in `0..context`; 0 for other data.
    ///
    /// Without the shift, a model would never train on context across the edge of a window.
    fn shift(&self, seed: u64, epoch: u64) -> usize {
        self.context().map_or(0, |context| keyed_rng(seed, SHIFT, epoch).random_range(0..context))
    }

    /// Returns the order of samples in `epoch`: a shuffle determined by the seed, so that every rank can compute the samples of every other rank.
    fn order(&self, seed: u64, epoch: u64) -> Vec<usize> {
        order(self.len(), seed, epoch)
    }

    /// Gathers `samples`, given by their index, in that order.
    ///
    /// Images in files are read and decoded here, so call it on the threads of a [`Pipeline`](super::Pipeline).
    ///
    /// # Errors
    /// If a file is unreadable or damaged, or has changed since the data set was loaded. Damaged samples that [may be skipped](super::OnBadSample)
    /// are left out of the batch instead.
    ///
    /// # Panics
    /// If an index is not below [`len`](Self::len).
    fn batch(&self, samples: &[usize], pass: Pass) -> Result<Batch, DataError> {
        let (values, targets) = self.gather(samples, pass)?;
        let samples = targets.len() / self.context().unwrap_or(1);
        let inputs = part("batching", || values.normalized(self.normalization()));
        Ok(Batch { inputs, targets, samples })
    }
}

/// Splits are equal if their [hashes](Split::hash) are.
impl PartialEq for dyn Split {
    fn eq(&self, other: &Self) -> bool {
        let hash = |split: &Self| {
            let mut hasher = xxhash_rust::xxh3::Xxh3::new();
            split.hash(&mut hasher).ok().map(|()| hasher.digest())
        };
        hash(self).is_some_and(|own| hash(other) == Some(own))
    }
}

/// Holds out every tenth sample, so that both parts are representative, whichever the order. Returns the training indices and the test indices.
pub(super) fn nine_to_one(samples: usize) -> (Vec<usize>, Vec<usize>) {
    (0..samples).partition(|index| index % 10 != 9)
}

/// Returns the order of this many samples in `epoch`: a shuffle determined by the seed.
pub fn order(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<_> = (0..samples).collect();
    order.shuffle(&mut keyed_rng(seed, ORDER, epoch));
    order
}

#[cfg(test)]
mod tests {
    use super::super::batch::Inputs;
    use super::super::normalization::GREY;
    use super::*;
    use crate::stored::StoredSamples;

    #[test]
    fn images_are_gathered_in_the_requested_order() {
        let split = StoredSamples::images([1, 2, 1], vec![0, 255, 51, 102, 153, 204], vec![7, 8, 9]);
        let batch = split.batch(&[2, 0], Pass::Evaluation).unwrap();
        let Inputs::Pixels(pixels) = batch.inputs else { panic!("not pixels") };
        let back = pixels.iter().map(|grey| (grey * GREY.1 + GREY.0) * 255.0);
        assert_eq!(back.map(f32::round).collect::<Vec<_>>(), [153.0, 204.0, 0.0, 255.0]);
        assert_eq!(batch.targets, [9, 7]);
        assert_eq!(batch.samples, 2);
    }

    #[test]
    fn rows_are_gathered_in_the_requested_order() {
        let split = StoredSamples::table(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], vec![7, 300, 9]);
        let batch = split.batch(&[1, 1, 0], Pass::Evaluation).unwrap();
        assert_eq!(batch.inputs, Inputs::Pixels(vec![2.0, 3.0, 2.0, 3.0, 0.0, 1.0]));
        assert_eq!(batch.targets, [300, 300, 7]);
    }

    #[test]
    fn every_epoch_has_every_sample_once_in_its_own_order() {
        let split = StoredSamples::images([1, 1, 1], vec![0; 50], vec![0; 50]);
        let (first, second) = (split.order(1, 0), split.order(1, 1));
        assert_ne!(first, second);
        assert_eq!(first, split.order(1, 0));
        for mut order in [first, second] {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..50));
        }
    }
}
