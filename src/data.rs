//! Data sets held in memory: where they come from, how they are split, how a batch is cut.
//!
//! Everything here is plain Rust. A rank that knows the source, the seed and the epoch knows
//! every batch of every other rank, so ranks never talk to each other about data.

mod digits;
mod error;
pub(crate) mod framing;
mod idx;
#[cfg(test)]
mod testing;
mod text;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use error::DataError;

/// Where a data set comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Handwritten-looking digits, drawn from the seed; needs no files.
    Digits,
    /// A directory of files in the format of MNIST, gzipped or not.
    Idx(PathBuf),
    /// A text file in UTF-8, learnt character by character.
    Text(PathBuf),
}

impl FromStr for Source {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        match name.split_once(':') {
            None if name == "digits" => Ok(Self::Digits),
            Some(("idx", path)) if !path.is_empty() => Ok(Self::Idx(path.into())),
            Some(("text", path)) if !path.is_empty() => Ok(Self::Text(path.into())),
            _ => Err(DataError::UnknownSource { name: name.into() }),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digits => write!(f, "digits"),
            Self::Idx(path) => write!(f, "idx:{}", path.display()),
            Self::Text(path) => write!(f, "text:{}", path.display()),
        }
    }
}

/// What [`load`] needs to know besides the source; each source reads what concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Digits: the seed they are drawn from.
    pub seed: u64,
    /// Digits: the number of images to train on.
    pub train_samples: usize,
    /// Digits: the number of images to test on.
    pub test_samples: usize,
    /// Text: the length of a window, in characters.
    pub context: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, train_samples: 20_000, test_samples: 2_000, context: 64 }
    }
}

/// A data set: what its samples are, those to train on and those to test on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// What a sample is.
    pub kind: Kind,
    /// The samples to train on.
    pub train: Split,
    /// The samples held out.
    pub test: Split,
}

/// What a sample is, and so what a model must take and give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A grey image and its class.
    Images {
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
        /// Number of classes; labels run from 0 to `classes - 1`.
        classes: usize,
    },
    /// A window of characters, and for each of them the character that follows.
    Text {
        /// Characters in a window.
        context: usize,
        /// The distinct characters in order; a token is an index into this list.
        vocabulary: Vec<char>,
    },
}

/// One half of a data set, in the compact form it is stored in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// Images of equal size, one after the other, with one label each.
    Images {
        /// Grey levels, `samples x height*width`.
        pixels: Vec<u8>,
        /// Classes, `samples`.
        labels: Vec<u8>,
    },
    /// A text that is cut into windows which do not overlap.
    Windows {
        /// The whole text as tokens.
        tokens: Vec<u32>,
        /// Tokens in a window.
        context: usize,
    },
}

/// Samples ready for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// What the model sees.
    pub inputs: Inputs,
    /// What it should say: one class per image, or one token per input token.
    pub targets: Vec<u32>,
    /// Number of samples (images or windows).
    pub samples: usize,
}

/// What a model sees of a batch, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Inputs {
    /// Normalised grey levels, `samples x height*width`.
    Pixels(Vec<f32>),
    /// Tokens, `samples x context`.
    Tokens(Vec<u32>),
}

/// Mean and standard deviation of MNIST's grey levels in 0..=1: the customary normalisation,
/// and close enough for any white-on-black image.
const GREY: (f32, f32) = (0.1307, 0.3081);

impl Split {
    /// Number of samples.
    ///
    /// A text holds back the length of one window, so that the windows may start at any
    /// [`shift`](Self::shift) without changing their number.
    pub fn len(&self) -> usize {
        match self {
            Self::Images { labels, .. } => labels.len(),
            Self::Windows { tokens, context } => (tokens.len() / context).saturating_sub(1),
        }
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How far the windows of a text move in `epoch`, in `0..context`; 0 for images.
    ///
    /// Without it, no model would ever see the characters before a window's edge in context.
    pub fn shift(&self, seed: u64, epoch: u64) -> usize {
        match self {
            Self::Images { .. } => 0,
            Self::Windows { context, .. } => keyed_rng(seed, SHIFT, epoch).random_range(0..*context),
        }
    }

    /// The order in which `epoch` goes through the samples: a shuffle that follows from the seed alone, so
    /// that every rank knows which samples every other rank takes.
    pub fn order(&self, seed: u64, epoch: u64) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.len()).collect();
        order.shuffle(&mut keyed_rng(seed, ORDER, epoch));
        order
    }

    /// Gathers `samples`, given by their index, in that order; `shift` as from
    /// [`shift`](Self::shift), or 0.
    ///
    /// # Panics
    ///
    /// If an index is not below [`len`](Self::len), or `shift` not below the context.
    pub fn batch(&self, samples: &[usize], shift: usize) -> Batch {
        let (inputs, targets) = match self {
            Self::Images { pixels, labels } => gather_images(pixels, labels, samples),
            Self::Windows { tokens, context } => gather_windows(tokens, *context, samples, shift),
        };
        Batch { inputs, targets, samples: samples.len() }
    }
}

fn gather_images(pixels: &[u8], labels: &[u8], samples: &[usize]) -> (Inputs, Vec<u32>) {
    let size = pixels.len() / labels.len().max(1);
    let (mean, deviation) = GREY;
    let normalise = |&grey: &u8| (f32::from(grey) / 255.0 - mean) / deviation;
    let image = |&i: &usize| pixels[i * size..][..size].iter().map(normalise);
    let targets = samples.iter().map(|&i| u32::from(labels[i])).collect();
    (Inputs::Pixels(samples.iter().flat_map(image).collect()), targets)
}

fn gather_windows(tokens: &[u32], context: usize, samples: &[usize], shift: usize) -> (Inputs, Vec<u32>) {
    assert!(shift < context, "a shift of {shift} does not fit a context of {context}");
    let windows = |ahead: usize| {
        let window = |&i: &usize| &tokens[shift + i * context + ahead..][..context];
        samples.iter().flat_map(window).copied().collect()
    };
    (Inputs::Tokens(windows(0)), windows(1))
}

/// The last word of a random stream's key: what the stream is for.
const TRAIN_DIGIT: u64 = 0;
const TEST_DIGIT: u64 = 1;
const SHIFT: u64 = 2;
const ORDER: u64 = 3;

/// A random stream of its own for each use and index, so that nothing depends on the order in
/// which streams are drawn from.
fn keyed_rng(seed: u64, purpose: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, purpose, index]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Reads or draws a data set.
///
/// # Errors
///
/// If a file is missing, unreadable or not what it should be, or if the options leave a split
/// without samples.
pub fn load(source: &Source, options: &Options) -> Result<Dataset, DataError> {
    match source {
        Source::Digits => digits::draw(options),
        Source::Idx(directory) => idx::read(directory),
        Source::Text(file) => text::read(file, options.context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_as_they_are_written() {
        for name in ["digits", "idx:some/where", "text:a:b.txt"] {
            assert_eq!(name.parse::<Source>().unwrap().to_string(), name);
        }
        for name in ["", "digit", "digits:", "idx", "idx:", "text:"] {
            let message = name.parse::<Source>().unwrap_err().to_string();
            assert!(message.contains("expected `digits`, `idx:DIR` or `text:FILE`"), "{message}");
        }
    }

    #[test]
    fn images_are_gathered_in_the_order_asked_for() {
        let split = Split::Images { pixels: vec![0, 255, 51, 102, 153, 204], labels: vec![7, 8, 9] };
        let batch = split.batch(&[2, 0], 0);
        let Inputs::Pixels(pixels) = batch.inputs else { panic!("not pixels") };
        let back = pixels.iter().map(|grey| (grey * GREY.1 + GREY.0) * 255.0);
        assert_eq!(back.map(f32::round).collect::<Vec<_>>(), [153.0, 204.0, 0.0, 255.0]);
        assert_eq!(batch.targets, [9, 7]);
        assert_eq!(batch.samples, 2);
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
    fn streams_differ_by_every_word_of_their_key() {
        let draw = |seed, purpose, index| keyed_rng(seed, purpose, index).random::<u64>();
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        for other in [draw(0, 2, 3), draw(1, 0, 3), draw(1, 2, 0)] {
            assert_ne!(draw(1, 2, 3), other);
        }
    }
}
