//! The options of a call.

use std::borrow::Cow;
use std::time::Duration;

use unisono_collectives::Operation;
use unisono_collectives::partition::Partition;

use crate::transport::Deadlines;

/// The label, timeout and parts of a collective call, and the tag of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The hash of the label; 0 without one.
    pub(crate) label: u64,
    /// The hash of the label and the sizes of the parts; 0 without parts.
    pub(crate) label_of_parts: u64,
    /// Overrides the timeout of the communicator.
    pub(crate) timeout: Option<Duration>,
    /// The parts of ranks; without it, they differ by at most one element.
    pub(crate) parts: Option<Partition>,
    /// The tag of a point-to-point message.
    pub(crate) tag: u32,
}

impl Options {
    /// Returns the hash of the label that ranks compare in a call, which includes the parts if the operation has parts.
    #[inline]
    pub(crate) fn label_of(&self, operation: Operation) -> u64 {
        if self.parts.is_some() && operation.has_parts() { self.label_of_parts } else { self.label }
    }

    /// Returns the deadlines of the call: the `usual` ones of the communicator, unless the call has its own timeout. They are borrowed,
    /// since a short call would wait until the stores of a copy complete.
    #[inline]
    pub(crate) fn deadlines<'a>(&self, usual: &'a Deadlines) -> Cow<'a, Deadlines> {
        match self.timeout {
            None => Cow::Borrowed(usual),
            Some(timeout) => Cow::Owned(Deadlines { timeout, ..*usual }),
        }
    }
}
