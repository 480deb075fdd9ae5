//! The halves of an exchange.

use unisono_collectives::Rank;

use super::Failure;
use super::waiting::Poll;

/// A message that is sent or received, or several that progress together.
pub(super) trait Half {
    /// Returns the rank at the other end of the first message that is not complete.
    fn awaits(&self) -> Option<Rank>;

    /// Makes progress without blocking. It is not called again for a message that is [complete](Polled::Done).
    fn progress(&mut self) -> Result<Polled, Failure>;
}

/// A message that is absent once it is complete.
impl<H: Half> Half for Option<H> {
    #[inline]
    fn awaits(&self) -> Option<Rank> {
        self.as_ref().and_then(Half::awaits)
    }

    #[inline]
    fn progress(&mut self) -> Result<Polled, Failure> {
        let Some(half) = self else { return Ok(Polled::Idle) };
        let polled = half.progress()?;
        if polled == Polled::Done {
            *self = None;
        }
        Ok(polled)
    }
}

impl<A: Half, B: Half> Half for (A, B) {
    #[inline]
    fn awaits(&self) -> Option<Rank> {
        self.0.awaits().or_else(|| self.1.awaits())
    }

    #[inline]
    fn progress(&mut self) -> Result<Polled, Failure> {
        let both = [self.0.progress()?, self.1.progress()?];
        Ok(Polled::of(both != [Polled::Idle; 2], false))
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
    /// Returns the state of an exchange, of which a half has `moved`, and which `awaits` a rank unless it is complete.
    #[inline]
    pub(super) fn of(awaits: Option<Rank>, moved: bool) -> Self {
        match awaits {
            None => Self::Done(()),
            Some(_) if moved => Self::Progress,
            Some(other) => Self::WaitsFor(other),
        }
    }
}
