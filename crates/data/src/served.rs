//! A part of a data set whose batches are made elsewhere.

use std::fmt::Debug;
use std::sync::Arc;

use crate::batch::{Batch, Pass};
use crate::error::DataError;
use crate::pipeline::{Threads, part};

/// Makes batches of both parts of a data set, somewhere else.
pub trait Maker: Debug + Send + Sync {
    /// The batch of these samples, in that order; of the held-out samples, or those to train on. Called by many threads at once.
    ///
    /// # Errors
    ///
    /// If nobody can make it.
    fn batch(&self, is_held_out: bool, samples: &[usize], pass: Pass) -> Result<Batch, DataError>;

    /// A hash of all that determines a batch: data, options, version.
    fn identity(&self) -> u64;

    /// The number of batches to ask for at once.
    fn requests(&self) -> usize;
}

/// Samples that are elsewhere, and batches of which are made there.
#[derive(Debug, Clone)]
pub struct ServedSplit {
    maker: Arc<dyn Maker>,
    is_held_out: bool,
    samples: usize,
    context: Option<usize>,
}

impl ServedSplit {
    /// The part of the maker's data set that is trained on, or the one held out, with so many samples; `context` is the length of a
    /// window if it is a text.
    pub fn new(maker: Arc<dyn Maker>, is_held_out: bool, samples: usize, context: Option<usize>) -> Self {
        Self { maker, is_held_out, samples, context }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    pub(super) fn identity(&self) -> u64 {
        self.maker.identity()
    }

    /// The length of a window, if this is a text.
    pub(super) fn context(&self) -> Option<usize> {
        self.context
    }

    /// The batch of these samples.
    pub(super) fn batch(&self, samples: &[usize], pass: Pass) -> Result<Batch, DataError> {
        if let Some(beyond) = samples.iter().find(|&&sample| sample >= self.samples) {
            panic!("there is no sample {beyond}: there are {}", self.samples);
        }
        part("servers", || self.maker.batch(self.is_held_out, samples, pass))
    }

    /// A thread for each batch to ask for at once: it does not compute, but waits.
    pub(super) fn threads(&self) -> Threads {
        Threads::Fixed(self.maker.requests().max(1))
    }
}

/// Another part of what the same maker has.
impl PartialEq for ServedSplit {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.maker, &other.maker) && self.is_held_out == other.is_held_out
    }
}
