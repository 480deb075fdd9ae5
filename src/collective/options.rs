//! Options of a call, apart from the call itself.

use std::time::Duration;

use crate::transport::Deadlines;

/// Options of a call: label and timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The hash of the label; 0 without one.
    pub(crate) label: u64,
    /// Overrides the timeout of the communicator.
    pub(crate) timeout: Option<Duration>,
}

impl Options {
    /// The deadlines of the call, given the `usual` ones of the communicator.
    #[inline]
    pub(crate) fn deadlines(&self, usual: &Deadlines) -> Deadlines {
        Deadlines { timeout: self.timeout.unwrap_or(usual.timeout), ..*usual }
    }
}
