//! The two halves of an exchange.

use unisono_collectives::Rank;

use super::Failure;
use super::waiting::Poll;

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

/// Halves that progress together. The rank at the other end is that of the first one that is not complete.
impl<A: Half, B: Half> Half for (A, B) {
    fn other(&self) -> Rank {
        if self.0.is_done() { self.1.other() } else { self.0.other() }
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.0.is_done() && self.1.is_done()
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        Ok(self.0.progress()? | self.1.progress()?)
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

impl Poll<()> {
    /// Returns the state of an exchange, of which a half has `moved`.
    #[inline]
    pub(super) fn of(exchange: &impl Half, moved: bool) -> Self {
        match (exchange.is_done(), moved) {
            (true, _) => Self::Done(()),
            (false, true) => Self::Progress,
            (false, false) => Self::WaitsFor(exchange.other()),
        }
    }
}
