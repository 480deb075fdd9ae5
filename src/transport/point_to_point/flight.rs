//! Messages in flight with their buffer.

use std::cell::UnsafeCell;
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
    // Owned by the functions of its messages. They run only after this returns (`Messages::with`), so the last one has the only reference.
    let flight = Arc::new(Flight { buffer: UnsafeCell::new(buffer), ended: Mutex::default(), on_end });
    // SAFETY: no other code has access to the buffer yet.
    let Parts { outgoing, incoming } = parts(unsafe { &mut *flight.buffer.get() });
    let part = |is_received| -> OnEnd {
        let flight = Arc::clone(&flight);
        Box::new(move |result| flight.part_ended(result, is_received))
    };
    // SAFETY: the buffer stays in its allocation, and no other code accesses it, until the last of these functions is called or dropped. Each is
    // called when its message has ended. If the messages are dropped before, the pointers are not used any more.
    unsafe {
        if let Some((place, from)) = incoming {
            messages.receive(options, from, place, Some(part(true)));
        }
        if let Some((bytes, to)) = outgoing {
            messages.send(options, to, bytes, Some(part(false)));
        }
    }
}

/// A call whose messages have not all ended.
struct Flight<B, F> {
    buffer: UnsafeCell<B>,
    ended: Mutex<Ended>,
    on_end: F,
}

/// The results of the messages that have ended.
#[derive(Default)]
struct Ended {
    /// The source of the received message.
    from: Option<Rank>,
    error: Option<Error>,
}

// SAFETY: shared references give access only to the results, which have a lock. The messages access the buffer by their own pointers, under the lock
// that protects them. Buffer and function are taken by the owner of the last reference, to whose thread both may be sent.
unsafe impl<B: Send, F: Send> Sync for Flight<B, F> {}

impl<B, F: FnOnce(Result<(B, Option<Rank>)>)> Flight<B, F> {
    /// Records the end of a message. After the last one, calls the function with the buffer.
    fn part_ended(self: Arc<Self>, result: Result<Rank>, is_received: bool) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(from) if is_received => ended.from = Some(from),
            // A message may end because of the other one, whose error is more specific.
            Err(error) if ended.error.is_none() || !matches!(error, Error::Aborted { .. }) => {
                ended.error = Some(error);
            }
            _ => {}
        }
        drop(ended);
        if let Some(Self { buffer, ended, on_end }) = Arc::into_inner(self) {
            let Ended { from, error } = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
            match error {
                None => on_end(Ok((buffer.into_inner(), from))),
                Some(error) => {
                    on_end(Err(error));
                    // The destructor of the program's buffer may panic.
                    drop(buffer);
                }
            }
        }
    }
}
