//! The two halves of an exchange.

use unisono_collectives::Rank;

use super::Failure;
use super::waiting::Poll;

/// A message that is sent or received.
pub(super) trait Half {
    /// Returns the rank at the other end.
    fn other(&self) -> Rank;

    /// Makes progress without blocking. It is not called again once the half is [complete](Polled::Done).
    fn progress(&mut self) -> Result<Polled, Failure>;
}

/// Halves that progress together. A half is absent once it is complete.
pub(super) trait Exchange {
    /// Returns the rank at the other end of the first half, if any is left.
    fn awaits(&self) -> Option<Rank>;

    /// Makes progress without blocking. Returns whether there was any.
    fn progress(&mut self) -> Result<bool, Failure>;
}

impl<H: Half> Exchange for Option<H> {
    #[inline]
    fn awaits(&self) -> Option<Rank> {
        self.as_ref().map(Half::other)
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        let Some(half) = self else { return Ok(false) };
        let polled = half.progress()?;
        if polled == Polled::Done {
            *self = None;
        }
        Ok(polled != Polled::Idle)
    }
}

impl<A: Exchange, B: Exchange> Exchange for (A, B) {
    #[inline]
    fn awaits(&self) -> Option<Rank> {
        self.0.awaits().or_else(|| self.1.awaits())
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
    pub(super) fn of(exchange: &impl Exchange, moved: bool) -> Self {
        match exchange.awaits() {
            None => Self::Done(()),
            Some(_) if moved => Self::Progress,
            Some(other) => Self::WaitsFor(other),
        }
    }
}
