//! Guards, which watch over ranks.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::Rank;

use super::StatusBoard;
use crate::control::{Gathered, Outcome};
use crate::record::Doing;

/// Checks the ranks of a world, for the ranks of this process, while it is held.
pub(crate) trait Guard: Debug + Send + Sync {
    /// Detects failures of other ranks that no message reports, unless a thread does so. Ranks call it while they wait.
    fn check_peers(&self);

    /// Returns the activity of a rank of another node, if that has reported lately.
    fn doing(&self, _rank: Rank) -> Option<Doing> {
        None
    }

    /// Exchanges changes with the other nodes now.
    fn exchange_now(&self);

    /// Reports the reason why the rank of this status board cannot continue, and the rank `first` that caused it, which may be
    /// itself. Records both on the board before the other ranks are informed.
    fn fail(&self, status: &StatusBoard, first: Rank, cause: &str);

    /// Returns the guard of a group of these ranks, by their numbers here and the connections of the group between nodes; `None` if
    /// this guard also serves the group.
    fn of_group(
        self: Arc<Self>,
        _status: &StatusBoard,
        _ranks: &[Rank],
        _controls: Vec<(Rank, OwnedFd)>,
    ) -> std::io::Result<Option<Arc<dyn Guard>>> {
        Ok(None)
    }

    /// Returns whether these ranks have connections over which they can agree with those of other nodes. They have none if they
    /// share memory, if MPI connects them, or if the job ends with the first failure.
    fn can_agree(&self) -> bool {
        false
    }

    /// Agrees with the other ranks of a world of several nodes on the survivors. Fails when no rank has called it or failed until the
    /// deadline, which is the timeout, or the second one while a rank is in a quiet section. `minimum` survivors, if given, continue
    /// independently of the others.
    fn agree(&self, _deadlines: (Duration, Duration), _minimum: Option<usize>) -> Outcome {
        unreachable!("these ranks have no connections")
    }

    /// Gathers the bytes of all survivors. All of them call it.
    fn gather(&self, _bytes: Vec<u8>, _deadlines: (Duration, Duration)) -> Gathered {
        unreachable!("these ranks have no connections")
    }

    /// Completes the set-up of the world of the survivors. If it succeeds on one of them, it succeeds on all that are left, here or
    /// as the [outcome](Outcome::Finished) of the next agreement.
    fn finish(&self, _deadlines: (Duration, Duration)) -> Gathered {
        unreachable!("these ranks have no connections")
    }
}
