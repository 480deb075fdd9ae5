//! The bootstrap and the optional settings of a world, and optional arguments of a call.

use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use unisono::{Bootstrap, Builder, Choice, Communicator, Result, Unisono};

/// A bootstrap whose all-gather the program provides.
#[derive(Debug)]
pub struct ByProgram<F> {
    /// The number of this rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// [`Bootstrap::all_gather`].
    pub all_gather: F,
}

impl<F: FnMut(&[u8]) -> Result<Vec<Vec<u8>>>> Bootstrap for ByProgram<F> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        (self.all_gather)(own)
    }
}

/// Settings of a world.
#[derive(Debug, Default)]
pub struct Settings {
    /// [`Builder::algorithm`].
    pub algorithm: Option<Choice>,
    /// [`Builder::tuning`].
    pub tuning: Option<PathBuf>,
    /// [`Builder::timeout`].
    pub timeout: Option<Duration>,
}

impl Settings {
    /// Returns the builder of a world with these settings.
    pub fn builder(self) -> Builder {
        let mut builder = Unisono::builder();
        if let Some(choice) = self.algorithm {
            builder = builder.algorithm(choice);
        }
        if let Some(file) = self.tuning {
            builder = builder.tuning(file);
        }
        if let Some(timeout) = self.timeout {
            builder = builder.timeout(timeout);
        }
        builder
    }
}

/// Options of one call.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// [`unisono::CallBuilder::algorithm`].
    pub algorithm: Option<Choice>,
    /// [`unisono::CallBuilder::label`].
    pub label: Option<&'a str>,
    /// [`unisono::CallBuilder::timeout`].
    pub timeout: Option<Duration>,
    /// [`unisono::CallBuilder::element_bytes`].
    pub element_bytes: Option<NonZero<u16>>,
    /// [`unisono::CallBuilder::counts`], which [`Collective::check`](crate::Collective::check) has checked.
    pub counts: Option<&'a [usize]>,
    /// [`unisono::CallBuilder::tag`].
    pub tag: u32,
}

impl Options<'_> {
    /// Makes a call with these options.
    pub fn call<R>(self, comm: &mut Communicator, make: impl FnOnce(&mut Communicator) -> R) -> R {
        let Self { algorithm, label, timeout, element_bytes, counts, tag } = self;
        let is_plain = algorithm.is_none() && label.is_none() && timeout.is_none() && tag == 0;
        if is_plain && element_bytes.is_none() && counts.is_none() {
            return make(comm);
        }
        let mut call = comm.call().tag(tag);
        if let Some(choice) = algorithm {
            call = call.algorithm(choice);
        }
        if let Some(label) = label {
            call = call.label(label);
        }
        if let Some(timeout) = timeout {
            call = call.timeout(timeout);
        }
        if let Some(size) = element_bytes {
            call = call.element_bytes(size);
        }
        if let Some(counts) = counts {
            call = call.counts(counts);
        }
        make(&mut call)
    }
}
