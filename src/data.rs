//! Data sets: where they come from, how they are split, how a batch is made, and the [pipeline] that makes batches
//! ahead of time.
//!
//! ```
//! use std::sync::Arc;
//! use unisono::data::{self, DataError, Options, Pass, Pipeline, Source, Threads};
//!
//! let options = Options { train_samples: 100, test_samples: 10, ..Options::default() };
//! let dataset = Arc::new(data::load(&Source::Digits, &options)?);
//! let (seed, epoch) = (1, 0);
//! let order = dataset.train.order(seed, epoch);
//! let batches: Vec<_> = order.chunks(32).map(<[usize]>::to_vec).collect();
//! // On as many threads as help, ahead of the loop below.
//! let on_threads = Arc::clone(&dataset);
//! let pass = Pass::Training { seed, epoch };
//! let input = Pipeline::of(batches).map(Threads::Auto, move |own| on_threads.train.batch(&own, pass));
//! let mut samples = 0;
//! for batch in input {
//!     samples += batch?.samples;
//! }
//! assert_eq!(samples, 100);
//! # Ok::<(), DataError>(())
//! ```
//!
//! Everything here is plain Rust. A rank that knows the source, the seed and the epoch knows
//! every batch of every other rank, so ranks never talk to each other about data.

mod augment;
mod batch;
mod decoding;
mod digits;
mod encoded;
mod error;
mod example;
mod folder;
pub(crate) mod framing;
mod idx;
pub mod pipeline;
mod records;
mod schema;
mod split;
mod table;
#[cfg(test)]
mod testing;
mod text;
mod tfrecord;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::Xxh3;

pub use augment::Augmentation;
pub use batch::{Batch, Inputs, Pass};
pub use encoded::EncodedImages;
pub use error::DataError;
pub use pipeline::{Depth, Pipeline, Threads};
pub use schema::{Column, Schema};
pub use split::Split;

/// Where a data set comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Handwritten-looking digits, drawn from the seed; needs no files.
    Digits,
    /// A directory of files in the format of MNIST, gzipped or not.
    Idx(PathBuf),
    /// A text file in UTF-8, learnt character by character.
    Text(PathBuf),
    /// A table with a header: the column `label`, or else the last, is the class (any words or numbers), the others
    /// are numbers. Every tenth row is to test on.
    Csv(PathBuf),
    /// A file of TensorFlow's records, or a directory of such files, each record a `tf.train.Example` with
    /// `image/encoded` or `image` (PNG, JPEG or grey levels) and `image/class/label` or `label`. Of a directory the
    /// files with `tfrec` in their names are read; those with the word `test`, `val` or `validation` are to test on.
    /// Where there is none, every tenth record is.
    TfRecord(PathBuf),
    /// A directory with a directory of PNG and JPEG files for each class, or with two such directories, `train` and
    /// `test`; where these are not there, every tenth image of a class is to test on.
    Images(PathBuf),
}

impl Source {
    /// Whether both are the same place, however it is written.
    pub fn is_same(&self, other: &Self) -> bool {
        let place = |source: &Self| match source {
            Self::Digits => None,
            Self::Idx(path)
            | Self::Text(path)
            | Self::Csv(path)
            | Self::TfRecord(path)
            | Self::Images(path) => std::fs::canonicalize(path).ok(),
        };
        let is_one_format = std::mem::discriminant(self) == std::mem::discriminant(other);
        self == other || (is_one_format && place(self).is_some_and(|path| place(other) == Some(path)))
    }
}

impl FromStr for Source {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let unknown = || DataError::UnknownSource { name: name.into() };
        let (word, path) = name.split_once(':').unwrap_or((name, ""));
        let with_path = match word {
            "digits" if name == word => return Ok(Self::Digits),
            "idx" => Self::Idx,
            "text" => Self::Text,
            "csv" => Self::Csv,
            "tfrecord" => Self::TfRecord,
            "images" => Self::Images,
            _ => return Err(unknown()),
        };
        if path.is_empty() { Err(unknown()) } else { Ok(with_path(path.into())) }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digits => write!(f, "digits"),
            Self::Idx(path) => write!(f, "idx:{}", path.display()),
            Self::Text(path) => write!(f, "text:{}", path.display()),
            Self::Csv(path) => write!(f, "csv:{}", path.display()),
            Self::TfRecord(path) => write!(f, "tfrecord:{}", path.display()),
            Self::Images(path) => write!(f, "images:{}", path.display()),
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
    /// TFRecord: the number of classes. Where none is given, all records are read once to learn it.
    pub classes: Option<usize>,
    /// TFRecord and images: how images to train on are varied; `None` leaves them as they are.
    pub augmentation: Option<Augmentation>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            train_samples: 20_000,
            test_samples: 2_000,
            context: 64,
            classes: None,
            augmentation: None,
        }
    }
}

/// A data set: what its samples are, those to train on and those to test on.
///
/// Threads share it behind an [`Arc`](std::sync::Arc).
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// What a sample is.
    pub kind: Kind,
    /// The samples to train on.
    pub train: Split,
    /// The samples held out.
    pub test: Split,
    /// What classes and columns are called.
    pub schema: Schema,
}

impl Dataset {
    /// What is likely to differ if the data do: a hash of all samples or, where images stay in their files, of what is known
    /// without decoding them (names and sizes of files, checksums of records).
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprint(&self) -> Result<u64, DataError> {
        let mut hasher = Xxh3::new();
        self.train.hash(&mut hasher)?;
        self.test.hash(&mut hasher)?;
        Ok(hasher.digest())
    }
}

/// What a sample is, and so what a model must take and give.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// A row of numbers and its class.
    Table {
        /// Numbers in a row.
        features: usize,
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

/// The second word of a random stream's key: what the stream is for.
const TRAIN_DIGIT: u64 = 0;
const TEST_DIGIT: u64 = 1;
const SHIFT: u64 = 2;
const ORDER: u64 = 3;
const SHUFFLE: u64 = 4;
const AUGMENT: u64 = 5;

/// A random stream of its own for each use and index, so that nothing depends on the order in
/// which streams are drawn from.
fn keyed_rng(seed: u64, purpose: u64, index: u64) -> ChaCha8Rng {
    rng_of([seed, purpose, index, 0])
}

/// A random stream of its own for each key.
fn rng_of(words: [u64; 4]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
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
        Source::Csv(file) => table::read(file),
        Source::TfRecord(path) => tfrecord::read(path, options),
        Source::Images(directory) => folder::read(directory, options, None),
    }
}

/// The same for a model that was trained on such data: classes have the numbers that they have in `schema`, whatever order
/// they come in, and the columns of a table are found by their names, and standardised as there.
///
/// # Errors
///
/// As [`load`]; and if a class or a column is not what `schema` says.
pub fn load_as(
    source: &Source,
    options: &Options,
    kind: &Kind,
    schema: &Schema,
) -> Result<Dataset, DataError> {
    match (source, kind) {
        (Source::Csv(file), &Kind::Table { classes, .. }) => table::read_as(file, schema, classes),
        (Source::Images(directory), &Kind::Images { classes, .. }) => {
            folder::read(directory, options, Some((schema, classes)))
        }
        _ => load(source, options),
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    #[test]
    fn sources_read_as_they_are_written() {
        for name in ["digits", "idx:some/where", "text:a:b.txt", "csv:a.csv", "tfrecord:a", "images:a/b"] {
            assert_eq!(name.parse::<Source>().unwrap().to_string(), name);
        }
        for name in ["", "digit", "digits:", "idx", "idx:", "text:", "csv", "image:a"] {
            let message = name.parse::<Source>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`: expected `digits`, `idx:DIR`, `text")), "{message}");
            for word in ["csv", "tfrecord", "images"] {
                assert!(message.contains(&format!("`{word}:")), "{message}");
            }
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
