//! A data set, and what its samples are.

use xxhash_rust::xxh3::Xxh3;

use crate::error::DataError;
use crate::schema::Schema;
use crate::split::Split;

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
