//! What a call may have beside what it is.

use std::time::Duration;

use crate::transport::Deadlines;

/// What a call may have beside what it is: its name, and how long it may wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// What stands for its label; 0 if it has none.
    pub(crate) label: u64,
    /// Where it is another than that of all calls.
    pub(crate) timeout: Option<Duration>,
}

impl Options {
    /// Those of a call that otherwise has the `usual` ones.
    #[inline]
    pub(crate) fn deadlines(&self, usual: &Deadlines) -> Deadlines {
        Deadlines { timeout: self.timeout.unwrap_or(usual.timeout), ..*usual }
    }
}
