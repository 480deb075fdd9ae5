//! Who watches over ranks.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unisono_collectives::Rank;

use super::super::failure::FailureReport;
use super::StatusBoard;

/// Who watches over a rank, and its failure report.
pub(crate) type Guarded = (Arc<dyn Guard>, Arc<dyn FailureReport>);

/// Watches over the ranks of this process while it is held.
pub(crate) trait Guard: Debug + Send + Sync {
    /// Looks for what these ranks cannot see of the others by messages, unless a thread does. Ranks call it while they wait.
    fn look(&self);

    /// Exchanges news with the other nodes now, unless a thread does.
    fn hurry(&self);

    /// Who watches over a group of these ranks, by their numbers here, and its failure report, given the connections of the group
    /// between nodes; `None` if this one does.
    ///
    /// # Errors
    /// The system's error.
    fn of_group(
        self: Arc<Self>,
        status: &StatusBoard,
        ranks: &[Rank],
        controls: Vec<(Rank, OwnedFd)>,
    ) -> std::io::Result<Option<Guarded>>;
}
