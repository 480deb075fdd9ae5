//! The fuzzed readers: run by the test, and by coverage in `crates/fuzz/`.

use crate::mutate::Corpus;
use crate::{files, flights, texts};

/// Something that reads.
pub struct Reader {
    pub name: &'static str,
    /// The number of inputs that the short form of the test has.
    pub short: u64,
    /// The memory that an input may take at a time.
    pub bound_bytes: usize,
    pub corpus: Corpus,
    pub read: Read,
}

/// Reads an input. The error, if it is refused.
pub type Read = Box<dyn FnMut(&[u8]) -> Result<(), String> + Send>;

/// Returns all that there are.
pub fn all() -> Vec<Reader> {
    texts::readers().into_iter().chain([flights::reader()]).chain(files::readers()).collect()
}
