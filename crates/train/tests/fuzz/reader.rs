//! The fuzzed readers. The test runs them, and `crates/fuzz/` runs them with coverage.

use crate::mutate::Corpus;
use crate::{files, flights, texts};

/// A fuzzed reader.
pub struct Reader {
    pub name: &'static str,
    /// The number of inputs in the short form of the test.
    pub short: u64,
    /// The maximum memory that an input may use at a time.
    pub bound_bytes: usize,
    pub corpus: Corpus,
    pub read: Read,
}

/// Reads an input. Returns the error if the input is refused.
pub type Read = Box<dyn FnMut(&[u8]) -> Result<(), String> + Send>;

/// Returns all readers.
pub fn all() -> Vec<Reader> {
    texts::readers().into_iter().chain([flights::reader()]).chain(files::readers()).collect()
}
