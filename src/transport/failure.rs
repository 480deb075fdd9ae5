//! The failure of an exchange.

use std::time::Duration;

use unisono_collectives::Rank;

use crate::error::{Error, Place};
use crate::status::StatusBoard;

/// The reason why an exchange failed. The executor adds the position.
#[derive(Debug)]
pub(crate) enum Failure {
    Timeout { other: Rank, waited: Duration },
    Mismatch { ours: String, other: Rank, theirs: String },
    Left { other: Rank },
    Error(Error),
}

impl Failure {
    /// Returns the failure if the awaited rank has left. Messages that it sent before remain valid.
    pub(crate) fn left(other: Rank, status: &StatusBoard) -> Option<Self> {
        status.has_left(other).then_some(Self::Left { other })
    }

    /// Returns the error of this failure at a position, with the state of a rank that did not arrive, as on the status board.
    pub(crate) fn at(self, at: Place, status: &StatusBoard) -> Error {
        let at = Box::new(at);
        match self {
            Self::Timeout { other, waited } => {
                let doing = status.position_of(other).map(|position| Box::new(status.doing(position)));
                Error::Timeout { at, other, missing: status.missing_behind(other), waited, doing }
            }
            Self::Mismatch { ours, other, theirs } => Error::Mismatch { at, ours, other, theirs },
            Self::Left { other } => Error::Left { at, other },
            Self::Error(error) => error,
        }
    }
}
