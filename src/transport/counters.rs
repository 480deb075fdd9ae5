//! Counters in shared memory, for which ranks wait.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::waiting::{PeerState, Poll};
use super::{Deadlines, Fabric, Failure, Waiting};

impl Fabric {
    /// Waits until a counter in shared memory has a value, which another rank gives it.
    pub(crate) fn wait_until(
        &self,
        other: Rank,
        (counter, value): (&AtomicU64, u64),
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let status = self.status().clone();
        let look = || match counter.load(Ordering::Acquire) {
            found if found == value => Ok(Poll::Done(())),
            _ => Ok(Poll::WaitsFor(other)),
        };
        let has_left = |other: Rank, _: &Waiting<'_>| {
            Ok(Failure::left(other, &status).map_or(PeerState::Nothing, PeerState::WaitFailure))
        };
        Waiting::new(self.spins, deadlines, &status).until(look, has_left)
    }
}
