//! Guards, which watch over ranks.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::Rank;

use super::StatusBoard;
use crate::control::{Gathered, Outcome};

/// Watches over the ranks of this process while it is held.
pub(crate) trait Guard: Debug + Send + Sync {
    /// Looks for what these ranks cannot see of the others by messages, unless a thread does. Ranks call it while they wait.
    fn look(&self);

    /// Exchanges news with the other nodes now.
    fn hurry(&self);

    /// Reports why the rank of this status board cannot continue, because of rank `first`, which may be itself, and records it there,
    /// before the other ranks are informed.
    fn fail(&self, status: &StatusBoard, first: Rank, cause: &str);

    /// Returns the guard of a group of these ranks, by their numbers here, given the connections of the group between nodes; `None` if
    /// this one is the guard.
    ///
    /// # Errors
    /// The system's error.
    fn of_group(
        self: Arc<Self>,
        _status: &StatusBoard,
        _ranks: &[Rank],
        _controls: Vec<(Rank, OwnedFd)>,
    ) -> std::io::Result<Option<Arc<dyn Guard>>> {
        Ok(None)
    }

    /// Returns whether these ranks have connections to agree with those of other nodes. Not if they share memory, if MPI connects them, or if
    /// the job ends with the first failure.
    fn can_agree(&self) -> bool {
        false
    }

    /// Agrees with the other ranks of a world of several nodes on those that survive. Ends with an error when no rank has called it or
    /// failed for `patience`. `minimum` survivors, if given, continue independent of the others.
    ///
    /// # Panics
    /// If they [cannot](Self::can_agree).
    fn agree(&self, _patience: Duration, _minimum: Option<usize>) -> Outcome {
        unreachable!("these ranks have no connections")
    }

    /// Gathers the bytes of all survivors. All of them call it.
    ///
    /// # Panics
    /// If they have not [agreed](Self::agree).
    fn gather(&self, _bytes: Vec<u8>, _patience: Duration) -> Gathered {
        unreachable!("these ranks have no connections")
    }

    /// Ends the meeting of the survivors: they continue in a world of their own. If it succeeds on one, it does so on all that are left,
    /// here or as the [outcome](Outcome::Finished) of the next agreement.
    ///
    /// # Panics
    /// As [`gather`](Self::gather).
    fn finish(&self, _patience: Duration) -> Gathered {
        unreachable!("these ranks have no connections")
    }
}
