//! The two halves of an exchange, and the loop that completes both.

use unisono_collectives::Rank;

use super::{Failure, Waiting};

/// A send or a receive in progress.
pub(super) trait Half {
    /// The rank at the other end.
    fn other(&self) -> Rank;

    /// Whether the half is complete.
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

/// The outcome of a check during a wait.
#[derive(Debug)]
pub(super) enum Sight {
    Nothing,
    /// The other rank will not arrive. Messages that it sent before still count.
    Hopeless(Failure),
}

/// Polls both halves until they are complete, and periodically checks the state of the rank that it waits for.
#[inline]
pub(super) fn complete(
    sending: &mut impl Half,
    receiving: &mut impl Half,
    mut waiting: Waiting<'_>,
    mut look_around: impl FnMut(Rank, &Waiting<'_>) -> Result<Sight, Failure>,
) -> Result<(), Failure> {
    loop {
        let received = receiving.progress()?;
        let sent = sending.progress()?;
        if receiving.is_done() && sending.is_done() {
            return Ok(());
        }
        if received || sent {
            continue;
        }
        // With two ranks, first the one that is to send.
        let other = if receiving.is_done() { sending.other() } else { receiving.other() };
        let due = match waiting.pause_for(other) {
            Err(late @ Failure::Timeout { .. }) => {
                // This rank may have been descheduled itself: the message may be here, or the reason why not.
                look_around(other, &waiting)?;
                if receiving.progress()? || sending.progress()? {
                    continue;
                }
                return Err(late);
            }
            paused => paused?,
        };
        if due
            && let Sight::Hopeless(failure) = look_around(other, &waiting)?
            && !(receiving.progress()? || sending.progress()?)
        {
            return Err(failure);
        }
    }
}
