//! Exchanges of eager messages. No memory is lent or divided, so they only post one message and poll for the other.

use super::Shared;
use super::channel::SHORT;
use crate::transport::{Failure, Header, Incoming, Outgoing};

/// The number of polls of a rank for a short message before it waits as for any other message: a few times the duration of one exchange.
const POLLS: u32 = 1000;

impl Shared {
    /// Sends a message if it is short and a slot is free. Returns whether it is sent.
    #[inline]
    pub(super) fn try_send_short(&mut self, header: &Header, outgoing: &Outgoing<'_>) -> bool {
        let (bytes, to) = (outgoing.bytes, self.position_of(outgoing.to));
        let Self { position, board, outbox, .. } = self;
        // The first message touches its channel's pages.
        if bytes.len() > SHORT || outbox.sent[to] == 0 {
            return false;
        }
        outbox.send_short(board, (*position, to), &header.of_size(bytes.len()), bytes)
    }

    /// Receives the expected message, if it is short and arrives soon. Returns whether nothing remains to be received.
    #[inline]
    pub(super) fn try_receive_short(
        &mut self,
        header: &Header,
        incoming: &mut Option<Incoming<'_>>,
    ) -> Result<bool, Failure> {
        let Some(Incoming { from: other, target }) = incoming else { return Ok(true) };
        let (size_bytes, from) = (target.size_bytes(), self.position_of(*other));
        let Self { position, board, status, outbox, received, spins, .. } = self;
        let number = received[from] + 1;
        if size_bytes > SHORT || number == 1 {
            return Ok(false);
        }
        let channel = board.channel(from, *position);
        // A rank without its own core polls once.
        for _ in 0..(*spins).clamp(1, POLLS) {
            let Some(message) = channel.arrived(number) else { continue };
            channel.check(number, message, &header.of_size(size_bytes), *other, status)?;
            target.accept(0, channel.payload(number, message, size_bytes));
            outbox.acknowledged(from, message.acknowledged);
            channel.release(number);
            received[from] = number;
            return Ok(true);
        }
        Ok(false)
    }
}
