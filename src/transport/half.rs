//! The two halves of an exchange.

use unisono_collectives::Rank;

use super::waiting::{PeerState, Poll};
use super::{Failure, Waiting};

/// A send or a receive in progress.
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
        self.as_ref().expect("a half that is not there is done").other()
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

/// The outcome of a poll of a half that is suspended between polls.
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

/// A half that makes progress on something else while it makes none itself.
pub(super) struct Beside<H, F> {
    pub(super) half: H,
    pub(super) drive: F,
}

impl<H: Half, F: FnMut() -> Result<bool, Failure>> Half for Beside<H, F> {
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

/// Polls both halves until they are complete; `look_around` as in [`Waiting::until`].
#[inline]
pub(super) fn complete(
    sending: &mut impl Half,
    receiving: &mut impl Half,
    waiting: Waiting<'_>,
    look_around: impl FnMut(Rank, &Waiting<'_>) -> Result<PeerState, Failure>,
) -> Result<(), Failure> {
    let poll = || {
        let received = receiving.progress()?;
        let sent = sending.progress()?;
        Ok(match (receiving.is_done(), sending.is_done()) {
            (true, true) => Poll::Done(()),
            _ if received || sent => Poll::Progress,
            (true, false) => Poll::WaitsFor(sending.other()),
            // The first of two ranks is the one that is to send.
            (false, _) => Poll::WaitsFor(receiving.other()),
        })
    };
    waiting.until(poll, look_around)
}
