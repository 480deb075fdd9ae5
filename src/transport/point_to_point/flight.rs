//! Messages in flight with their buffer.

use std::sync::{Arc, Mutex, PoisonError};

use unisono_collectives::Rank;

use super::{OnEnd, Options, PointToPoint};
use crate::error::{Error, Result};

/// The sent part of a call: the bytes and their receiver.
pub(crate) type Sent<'a> = (&'a [u8], Rank);
/// The received part of a call: the place and the source, or `None` for any source.
pub(crate) type Received<'a> = (&'a mut [u8], Option<Rank>);

/// The values of a call.
pub(crate) struct Parts<'a> {
    pub(crate) outgoing: Option<Sent<'a>>,
    pub(crate) incoming: Option<Received<'a>>,
}

/// Starts to send and receive the messages of a call.
pub(super) fn start<B: Send + 'static>(
    messages: &mut PointToPoint,
    options: &Options,
    buffer: B,
    parts: impl FnOnce(&mut B) -> Parts<'_>,
    on_end: impl FnOnce(Result<(B, Option<Rank>)>) + Send + 'static,
) {
    let buffer = Box::into_raw(Box::new(buffer));
    // SAFETY: the box is alive, and no other code has its address.
    let Parts { outgoing, incoming } = parts(unsafe { &mut *buffer });
    let left = usize::from(outgoing.is_some()) + usize::from(incoming.is_some());
    let flight = Flight { buffer, left, from: None, error: None, on_end: Some(on_end) };
    let flight = Arc::new(Mutex::new(flight));
    let part = |is_received| -> OnEnd {
        let flight = Arc::clone(&flight);
        Box::new(move |result| {
            let ended = flight.lock().unwrap_or_else(PoisonError::into_inner).part_ended(result, is_received);
            if let Some((on_end, result)) = ended {
                on_end(result);
            }
        })
    };
    // SAFETY: the buffer stays in its box, whose address only the flight has. It opens the box when all parts have ended. If the messages are
    // dropped before, it does so with the last of these functions, and the pointers are not used any more.
    unsafe {
        if let Some((place, from)) = incoming {
            messages.receive(options, from, place, Some(part(true)));
        }
        if let Some((bytes, to)) = outgoing {
            messages.send(options, to, bytes, Some(part(false)));
        }
    }
}

/// The result of a call: its buffer, and the source of the received message.
type Outcome<B> = Result<(B, Option<Rank>)>;

struct Flight<B, F> {
    buffer: *mut B,
    /// The number of messages that have not ended.
    left: usize,
    /// The source of the received message.
    from: Option<Rank>,
    error: Option<Error>,
    on_end: Option<F>,
}

// SAFETY: buffer and function may be sent, and only the flight has the buffer's address.
unsafe impl<B: Send, F: Send> Send for Flight<B, F> {}

impl<B, F> Flight<B, F> {
    /// Records the end of a message. After the last one, returns the function to call and its argument.
    fn part_ended(&mut self, result: Result<Rank>, is_received: bool) -> Option<(F, Outcome<B>)> {
        match result {
            Ok(from) if is_received => self.from = Some(from),
            // A message may end because of the other one, whose error is more specific.
            Err(error) if self.error.is_none() || !matches!(error, Error::Aborted { .. }) => {
                self.error = Some(error);
            }
            _ => {}
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        let (on_end, buffer) = (self.on_end.take()?, self.take()?);
        Some((on_end, self.error.take().map_or(Ok((buffer, self.from)), Err)))
    }

    /// Returns the buffer, once.
    fn take(&mut self) -> Option<B> {
        let buffer = std::mem::replace(&mut self.buffer, std::ptr::null_mut());
        // SAFETY: the address is that of the box, which is opened once.
        (!buffer.is_null()).then(|| *unsafe { Box::from_raw(buffer) })
    }
}

impl<B, F> Drop for Flight<B, F> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
