//! The two halves of an exchange.

use unisono_collectives::Rank;

use super::waiting::{PeerState, Poll};
use super::{Failure, Waiting};

pub(super) trait Half {
    /// Returns the rank at the other end.
    fn other(&self) -> Rank;

    /// Returns whether the half is complete.
    fn is_done(&self) -> bool;

    /// Makes progress without blocking. Returns whether there was any.
    fn progress(&mut self) -> Result<bool, Failure>;
}

impl<H: Half> Half for Option<H> {
    fn other(&self) -> Rank {
        self.as_ref().expect("an absent half is complete").other()
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.as_ref().is_none_or(Half::is_done)
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        self.as_mut().map_or(Ok(false), Half::progress)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Polled {
    /// No event happened.
    Idle,
    /// There was progress, and the half is not complete.
    Moved,
    Done,
}

impl Polled {
    pub(super) fn of(moved: bool, done: bool) -> Self {
        match (moved, done) {
            (_, true) => Self::Done,
            (true, false) => Self::Moved,
            (false, false) => Self::Idle,
        }
    }
}

/// A half that drives other work while it makes no progress itself.
pub(super) struct WithBackground<H, F> {
    pub(super) half: H,
    pub(super) drive: F,
}

impl<H: Half, F: FnMut() -> Result<bool, Failure>> Half for WithBackground<H, F> {
    fn other(&self) -> Rank {
        self.half.other()
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.half.is_done()
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        Ok(self.half.progress()? || (self.drive)()?)
    }
}

/// Polls both halves until they are complete. `check_peer` is as in [`Waiting::until`].
#[inline]
pub(super) fn complete(
    sending: &mut impl Half,
    receiving: &mut impl Half,
    waiting: Waiting<'_>,
    check_peer: impl FnMut(Rank, &Waiting<'_>) -> Result<PeerState, Failure>,
) -> Result<(), Failure> {
    let poll = || {
        let received = receiving.progress()?;
        let sent = sending.progress()?;
        Ok(match (receiving.is_done(), sending.is_done()) {
            (true, true) => Poll::Done(()),
            _ if received || sent => Poll::Progress,
            (true, false) => Poll::WaitsFor(sending.other()),
            // The awaited rank is the one that sends to this rank.
            (false, _) => Poll::WaitsFor(receiving.other()),
        })
    };
    waiting.until(poll, check_peer)
}
