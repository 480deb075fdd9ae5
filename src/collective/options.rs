//! Options of a call, apart from the call itself.

use std::borrow::Cow;
use std::time::Duration;

use unisono_collectives::partition::Partition;

use crate::transport::Deadlines;

/// Options of a call: label, timeout, the parts of ranks, and the tag of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The hash of the label; 0 without one.
    pub(crate) label: u64,
    /// Overrides the timeout of the communicator.
    pub(crate) timeout: Option<Duration>,
    /// The parts of ranks; without it, they differ by at most one element.
    pub(crate) parts: Option<Partition>,
    /// The tag of a point-to-point message.
    pub(crate) tag: u32,
}

impl Options {
    /// Returns the deadlines of the call, given the `usual` ones of the communicator: those themselves, unless the call has
    /// its own. (Nearly every call has none, and a short one would wait for the words of a copy to be stored.)
    #[inline]
    pub(crate) fn deadlines<'a>(&self, usual: &'a Deadlines) -> Cow<'a, Deadlines> {
        match self.timeout {
            None => Cow::Borrowed(usual),
            Some(timeout) => Cow::Owned(Deadlines { timeout, ..*usual }),
        }
    }
}
