//! A data set, and the kind of its samples.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::error::DataError;
use crate::schema::Schema;
use crate::split::Split;

/// A data set: the kind of its samples, the training samples and the held-out samples.
///
/// Threads share it behind an [`Arc`](std::sync::Arc).
#[derive(Debug, Clone)]
pub struct Dataset {
    /// The kind of a sample.
    pub kind: Kind,
    /// The training samples.
    pub train: Arc<dyn Split>,
    /// The held-out samples.
    pub test: Arc<dyn Split>,
    /// The names of classes and columns.
    pub schema: Schema,
}

impl Dataset {
    /// Returns the notes for the user on how image files are read, one line each: how many are resized, which files are skipped.
    pub fn notices(&self) -> &[String] {
        self.train.notices()
    }

    /// Returns a hash that detects changed data. It covers all samples or, if images stay in their files, the properties that are known without
    /// decoding them (names and sizes of files, checksums of records).
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

impl PartialEq for Dataset {
    fn eq(&self, other: &Self) -> bool {
        (&self.kind, &self.schema) == (&other.kind, &other.schema)
            && *self.train == *other.train
            && *self.test == *other.test
    }
}

/// The default for descriptions without `channels`: old ones predate colour, and those of greyscale images still omit the field.
fn grey() -> usize {
    1
}

fn is_grey(channels: &usize) -> bool {
    *channels == grey()
}

/// The kind of a sample, which determines the input and output of a model.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// An image and its class.
    Images {
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
        /// Channels of a pixel: 1 for greyscale, 3 for red, green and blue.
        #[serde(default = "grey", skip_serializing_if = "is_grey")]
        channels: usize,
        /// Number of classes; labels run from 0 to `classes - 1`.
        classes: usize,
    },
    /// A row of numbers, and its class or numeric target.
    Table {
        /// Numbers in a row.
        features: usize,
        /// Number of classes; labels run from 0 to `classes - 1`. 1 for a regression, whose targets are numbers.
        classes: usize,
    },
    /// A window of characters, and for each of them the character that follows.
    Text {
        /// Characters in a window.
        context: usize,
        /// The distinct characters, sorted; a token is an index into this list.
        vocabulary: Vec<char>,
    },
}
