//! One part of a data set, and its batches.

use rand::RngExt;
use rand::seq::SliceRandom;
use xxhash_rust::xxh3::Xxh3;

use super::bad::Skipped;
use super::batch::{Batch, Pass, Values};
use super::colour::ColourImages;
use super::encoded::EncodedImages;
use super::stored::StoredSamples;
use crate::error::DataError;
use crate::normalization::Normalization;
use crate::pipeline::{Threads, part};
use crate::random::{ORDER, SHIFT, keyed_rng};
use crate::served::ServedSplit;
use crate::stored_text::StoredText;

/// One part of a data set, in a compact form.
///
/// Threads share it. Images on disk stay there until a batch needs them.
#[derive(Debug, Clone, PartialEq)]
pub enum Split {
    /// Images of equal size, one after the other, with one label each.
    Images {
        /// Grey levels, `samples x height*width`.
        pixels: Vec<u8>,
        /// Classes, `samples`.
        labels: Vec<u8>,
    },
    /// A text divided into windows that do not overlap.
    Windows {
        /// The whole text as tokens.
        tokens: Vec<u32>,
        /// Tokens in a window.
        context: usize,
    },
    /// A text in files, read when a batch is made.
    Text(StoredText),
    /// Rows of numbers, with one label each.
    Table {
        /// Features, standardised, `samples x features`.
        values: Vec<f32>,
        /// Classes, `samples`.
        labels: Vec<u32>,
    },
    /// Images in files, decoded when a batch is made.
    Encoded(EncodedImages),
    /// Colour images in memory.
    Colour(ColourImages),
    /// Samples of equal size in a file, read when a batch is made.
    Stored(StoredSamples),
    /// Samples that are elsewhere, and batches of which are made there.
    Served(ServedSplit),
}

impl Split {
    /// Number of samples.
    ///
    /// A text reserves the length of one window, so that the windows may start at any
    /// [`shift`](Self::shift) without changing their number.
    pub fn len(&self) -> usize {
        match self {
            Self::Images { labels, .. } => labels.len(),
            Self::Windows { tokens, context } => windows(tokens.len(), *context),
            Self::Text(text) => windows(text.length(), text.context()),
            Self::Table { labels, .. } => labels.len(),
            Self::Encoded(images) => images.len(),
            Self::Colour(images) => images.len(),
            Self::Stored(samples) => samples.len(),
            Self::Served(samples) => samples.len(),
        }
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the samples to a hash; for images in files, what is known without decoding them.
    pub(super) fn hash(&self, hasher: &mut Xxh3) -> Result<(), DataError> {
        match self {
            Self::Images { pixels, labels } => {
                hasher.update(pixels);
                hasher.update(labels);
            }
            Self::Windows { tokens, .. } => hasher.update(bytemuck::cast_slice(tokens)),
            Self::Text(text) => text.hash(hasher)?,
            Self::Table { values, labels } => {
                hasher.update(bytemuck::cast_slice(values));
                hasher.update(bytemuck::cast_slice(labels));
            }
            Self::Encoded(images) => images.hash(hasher)?,
            Self::Colour(images) => images.hash(hasher),
            Self::Stored(samples) => samples.hash(hasher)?,
            Self::Served(samples) => hasher.update(&samples.identity().to_le_bytes()),
        }
        Ok(())
    }

    /// The offset of a text's windows in `epoch`, in `0..context`; 0 for other data.
    ///
    /// Without it, no model would ever see the context across the edge of a window.
    pub fn shift(&self, seed: u64, epoch: u64) -> usize {
        let context = match self {
            Self::Windows { context, .. } => Some(*context),
            Self::Text(text) => Some(text.context()),
            Self::Served(samples) => samples.context(),
            _ => None,
        };
        context.map_or(0, |context| keyed_rng(seed, SHIFT, epoch).random_range(0..context))
    }

    fn shift_in(&self, pass: Pass) -> usize {
        match pass {
            Pass::Training { seed, epoch } => self.shift(seed, epoch),
            Pass::Evaluation => 0,
        }
    }

    /// The same text with `tokens[i]` in place of token `i`.
    ///
    /// # Panics
    ///
    /// If there are fewer tokens than the vocabulary has characters, or it is no text.
    pub fn renumbered(&self, tokens: &[u32]) -> Self {
        match self {
            Self::Windows { tokens: own, context } => Self::Windows {
                tokens: own.iter().map(|&token| tokens[token as usize]).collect(),
                context: *context,
            },
            Self::Text(text) => Self::Text(text.renumbered(tokens)),
            _ => panic!("a text has tokens"),
        }
    }

    /// The order of samples in `epoch`: a shuffle determined by the seed, so that every rank knows the samples of every
    /// other rank.
    pub fn order(&self, seed: u64, epoch: u64) -> Vec<usize> {
        order(self.len(), seed, epoch)
    }

    /// The threads that batches are to be made on, if these were asked for. While a server makes a batch, a thread only waits:
    /// then `Auto` means as many as keep all servers busy, and not one per core.
    pub fn threads(&self, asked: Threads) -> Threads {
        match self {
            Self::Served(samples) if asked == Threads::Auto => samples.threads(),
            _ => asked,
        }
    }

    /// Gathers `samples`, given by their index, in that order.
    ///
    /// Images in files are read and decoded here: call it on the threads of a [`Pipeline`](super::Pipeline).
    ///
    /// # Errors
    ///
    /// If a file is unreadable or damaged, or has changed since the data set was loaded. A batch lacks damaged samples that
    /// [may be skipped](super::OnBadSample).
    ///
    /// # Panics
    ///
    /// If an index is not below [`len`](Self::len).
    pub fn batch(&self, samples: &[usize], pass: Pass) -> Result<Batch, DataError> {
        if let Self::Served(split) = self {
            return split.batch(samples, pass);
        }
        let (values, targets) = self.gather(samples, pass)?;
        // Damaged images may be left out.
        let samples = if let Self::Encoded(_) = self { targets.len() } else { samples.len() };
        let inputs = part("batching", || values.normalized(self.normalization()));
        Ok(Batch { inputs, targets, samples })
    }

    /// The statistics that its images are normalised by; `None` for those of MNIST.
    fn normalization(&self) -> Option<&Normalization> {
        match self {
            Self::Encoded(images) => images.normalization(),
            Self::Colour(images) => images.normalization(),
            Self::Stored(samples) => samples.normalization(),
            _ => None,
        }
    }

    /// The inputs and the targets of a [batch](Self::batch) in their smallest form, for a server of batches.
    ///
    /// # Errors
    ///
    /// As [`batch`](Self::batch).
    ///
    /// # Panics
    ///
    /// If an index is not below [`len`](Self::len).
    pub fn gather(&self, samples: &[usize], pass: Pass) -> Result<(Values, Vec<u32>), DataError> {
        Ok(match self {
            Self::Images { pixels, labels } => {
                let size = pixels.len() / labels.len().max(1);
                let image = |&i: &usize| &pixels[i * size..][..size];
                let targets = samples.iter().map(|&i| u32::from(labels[i])).collect();
                (Values::Levels(samples.iter().flat_map(image).copied().collect()), targets)
            }
            Self::Windows { tokens, context } => {
                gather_windows(tokens, *context, samples, self.shift_in(pass))
            }
            Self::Text(text) => text.gather(samples, self.shift_in(pass))?,
            Self::Table { values, labels } => {
                let size = values.len() / labels.len().max(1);
                let row = |&i: &usize| values[i * size..][..size].iter().copied();
                let targets = samples.iter().map(|&i| labels[i]).collect();
                (Values::Numbers(samples.iter().flat_map(row).collect()), targets)
            }
            Self::Encoded(images) => images.gather(samples, pass)?,
            Self::Colour(images) => images.gather(samples, pass),
            Self::Stored(stored) => stored.gather(samples, pass)?,
            Self::Served(split) => {
                let Batch { inputs, targets, .. } = split.batch(samples, pass)?;
                (inputs.into(), targets)
            }
        })
    }
}

impl Split {
    /// The damaged samples that were skipped since the last call: those that batches of evaluations lack, and batches of training up
    /// to this epoch. Later ones may be prepared already.
    pub fn skipped(&self, epoch: u64) -> Skipped {
        match self {
            Self::Encoded(images) => images.skipped(epoch),
            _ => Skipped::default(),
        }
    }
}

/// The windows of a text of this length; that of one is reserved.
fn windows(length: usize, context: usize) -> usize {
    (length / context).saturating_sub(1)
}

fn gather_windows(tokens: &[u32], context: usize, samples: &[usize], shift: usize) -> (Values, Vec<u32>) {
    let windows = |ahead: usize| {
        let window = |&i: &usize| &tokens[shift + i * context + ahead..][..context];
        samples.iter().flat_map(window).copied().collect()
    };
    (Values::Tokens(windows(0)), windows(1))
}

/// Holds out every tenth sample: whatever their order, both parts are representative. Returns the training indices and the
/// test indices.
pub(super) fn nine_to_one(samples: usize) -> (Vec<usize>, Vec<usize>) {
    (0..samples).partition(|index| index % 10 != 9)
}

/// The order of so many samples in `epoch`: a shuffle determined by the seed.
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

    #[test]
    fn images_are_gathered_in_the_order_asked_for() {
        let split = Split::Images { pixels: vec![0, 255, 51, 102, 153, 204], labels: vec![7, 8, 9] };
        let batch = split.batch(&[2, 0], Pass::Evaluation).unwrap();
        let Inputs::Pixels(pixels) = batch.inputs else { panic!("not pixels") };
        let back = pixels.iter().map(|grey| (grey * GREY.1 + GREY.0) * 255.0);
        assert_eq!(back.map(f32::round).collect::<Vec<_>>(), [153.0, 204.0, 0.0, 255.0]);
        assert_eq!(batch.targets, [9, 7]);
        assert_eq!(batch.samples, 2);
    }

    #[test]
    fn rows_are_gathered_in_the_order_asked_for() {
        let split = Split::Table { values: vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], labels: vec![7, 300, 9] };
        let batch = split.batch(&[1, 1, 0], Pass::Evaluation).unwrap();
        assert_eq!(batch.inputs, Inputs::Pixels(vec![2.0, 3.0, 2.0, 3.0, 0.0, 1.0]));
        assert_eq!(batch.targets, [300, 300, 7]);
    }

    #[test]
    fn every_epoch_sees_every_sample_once_in_an_order_of_its_own() {
        let split = Split::Images { pixels: vec![0; 50], labels: vec![0; 50] };
        let (first, second) = (split.order(1, 0), split.order(1, 1));
        assert_ne!(first, second);
        assert_eq!(first, split.order(1, 0));
        for mut order in [first, second] {
            order.sort_unstable();
            assert!(order.into_iter().eq(0..50));
        }
    }

    #[test]
    fn windows_move_when_a_model_learns_and_stay_when_it_is_measured() {
        let split = Split::Windows { tokens: (0..100).collect(), context: 8 };
        for epoch in 0..20 {
            let first = split.shift(3, epoch) as u32;
            let batch = split.batch(&[0], Pass::Training { seed: 3, epoch }).unwrap();
            assert_eq!(batch.inputs, Inputs::Tokens((first..first + 8).collect()));
            assert_eq!(batch.targets, (first + 1..first + 9).collect::<Vec<_>>());
        }
        let batch = split.batch(&[0], Pass::Evaluation).unwrap();
        assert_eq!(batch.inputs, Inputs::Tokens((0..8).collect()));
    }
}
