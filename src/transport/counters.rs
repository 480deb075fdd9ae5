//! Waits for counters in shared memory.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::waiting::{PeerState, Poll};
use super::{Failure, Waiting};
use crate::status::StatusBoard;

/// Waits until rank `other` has increased a counter in shared memory to a value. `disagreement` returns the reason if that rank never will, since
/// it makes another call; a long wait calls it.
pub(crate) fn wait_for_counter(
    waiting: Waiting<'_>,
    status: &StatusBoard,
    other: Rank,
    (counter, value): (&AtomicU64, u64),
    disagreement: impl Fn() -> Option<Failure>,
) -> Result<(), Failure> {
    let poll = || match counter.load(Ordering::Acquire) {
        found if found >= value => Ok(Poll::Done(())),
        _ => Ok(Poll::WaitsFor(other)),
    };
    let check = |other: Rank, waiting: &Waiting<'_>| {
        let disagrees = || if waiting.is_long() { disagreement() } else { None };
        Ok(Failure::left(other, status).or_else(disagrees).map_or(PeerState::Nothing, PeerState::Gone))
    };
    waiting.until(poll, check)
}
