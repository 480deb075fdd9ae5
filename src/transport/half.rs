//! The two halves of an exchange, and the loop that waits for both.

use unisono_collectives::Rank;

use super::{Failure, Waiting};

/// A send or a receive in progress.
pub(super) trait Half {
    /// The rank at the other end.
    fn other(&self) -> Rank;

    /// Whether there is nothing left to do.
    fn is_done(&self) -> bool;

    /// Does what can be done now. Whether that was anything.
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

/// What a rank sees when it looks around in the middle of a wait.
#[derive(Debug)]
pub(super) enum Sight {
    Nothing,
    /// The rank that is waited for will not come. What it did before counts.
    Hopeless(Failure),
}

/// Polls both halves until they are done. From time to time it looks around, for what may be wrong with the rank
/// that it waits for.
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
        // Of two ranks, first of all the one that is to send.
        let other = if receiving.is_done() { sending.other() } else { receiving.other() };
        let due = match waiting.pause_for(other) {
            Err(late @ Failure::Timeout { .. }) => {
                // This rank may itself have had no core, and all that it waits for is here, or why it is not.
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
