//! Point-to-point messages of the program.
//!
//! They are not in the flight recorder, which holds calls that all ranks number alike; a wait for one shows only in the error
//! that ends it.

use std::sync::atomic::{AtomicU64, Ordering};

use unisono_collectives::Rank;

use super::{Engine, Options};
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::{Place, Result};
use crate::record::{FIRST_OF_MESSAGES, POINT_TO_POINT};
use crate::transport::{Failure, Headers, Incoming, Messages, Outgoing, Target};

impl Engine {
    /// Sends and receives at most one message each, of elements of one type. Errors are fatal, as in a collective.
    pub(crate) fn messages(
        &mut self,
        options: &Options,
        dtype: DType,
        outgoing: Option<(&[u8], Rank)>,
        incoming: Option<(&mut [u8], Rank)>,
    ) -> Result<()> {
        self.check_alive()?;
        let (label, codes, deadlines) = (options.label, Codes::of_message(dtype), self.deadlines(options));
        let count = |size_bytes| size_bytes / dtype.size_bytes();
        let outgoing = outgoing.map(|(bytes, to)| {
            let header = self.calls.messages.to(to, count(bytes.len()), codes, label);
            (header, Outgoing { to, bytes })
        });
        let incoming = incoming.map(|(place, from)| {
            let header = self.calls.messages.from(from, count(place.len()), codes, label);
            (header, Incoming { from, target: Target::Place(place) })
        });
        let transport = &mut self.transport;
        let (operation, header, done) = match (outgoing, incoming) {
            (Some((sent, outgoing)), Some((awaited, incoming))) => {
                let headers = Headers { sent: &sent, awaited: &awaited };
                ("exchange", awaited, transport.exchange_two(headers, outgoing, incoming, &deadlines))
            }
            (Some((sent, outgoing)), None) => {
                ("send", sent, transport.exchange(&sent, Some(outgoing), None, &deadlines))
            }
            (None, Some((awaited, incoming))) => {
                ("receive", awaited, transport.exchange(&awaited, None, Some(incoming), &deadlines))
            }
            (None, None) => return Ok(()),
        };
        self.ended(done, operation, header.sequence() - FIRST_OF_MESSAGES)
    }

    /// Receives the first message available from any other rank, and returns that rank.
    pub(crate) fn receive_any(&mut self, options: &Options, dtype: DType, place: &mut [u8]) -> Result<Rank> {
        self.check_alive()?;
        let (deadlines, (received, last_from)) = (self.deadlines(options), self.calls.messages.received());
        let any = Messages::any(Codes::of_message(dtype));
        let found = self.transport.any_sender(&any, last_from, &deadlines);
        let from = self.ended(found, "receive-any", received)?;
        self.messages(options, dtype, None, Some((place, from)))?;
        Ok(from)
    }

    /// Waits until a counter in shared memory has a value, which another rank gives it.
    pub(crate) fn wait_until(
        &mut self,
        operation: &'static str,
        other: Rank,
        options: &Options,
        (counter, value): (&AtomicU64, u64),
    ) -> Result<()> {
        if counter.load(Ordering::Acquire) == value {
            return Ok(());
        }
        self.check_alive()?;
        let deadlines = self.deadlines(options);
        let waited = self.transport.wait_until(other, (counter, value), &deadlines);
        self.ended(waited, operation, value)
    }

    /// The result of message `number`, with the position of this rank in an error.
    fn ended<R>(&mut self, done: Result<R, Failure>, operation: &'static str, number: u64) -> Result<R> {
        let ended = done.map_err(|failure| {
            let at = Place {
                rank: self.transport.rank(),
                operation,
                sequence: number,
                algorithm: POINT_TO_POINT,
                phase: POINT_TO_POINT,
                step: 0,
            };
            failure.at(at, &self.status)
        });
        self.settle(ended)
    }
}
