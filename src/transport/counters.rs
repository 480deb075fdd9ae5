//! Waits for counters in shared memory.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::waiting::{PeerState, Poll};
use super::{Deadlines, Fabric, Failure, Waiting};

impl Fabric {
    /// Waits until rank `other` has increased a counter in shared memory to a value.
    pub(crate) fn wait_until(
        &self,
        other: Rank,
        (counter, value): (&AtomicU64, u64),
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let status = self.status().clone();
        let poll = || match counter.load(Ordering::Acquire) {
            found if found >= value => Ok(Poll::Done(())),
            _ => Ok(Poll::WaitsFor(other)),
        };
        let has_left = |other: Rank, _: &Waiting<'_>| {
            Ok(Failure::left(other, &status).map_or(PeerState::Nothing, PeerState::Gone))
        };
        Waiting::new(self.spins, deadlines, &status).until(poll, has_left)
    }
}
