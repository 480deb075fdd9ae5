//! Point-to-point messages over connections of their own.

use unisono_collectives::Rank;

use super::{PIECE, Tcp};
use crate::status::StatusBoard;
use crate::transport::{Failure, Header, Outgoing, Polled};

/// The connections for messages.
#[derive(Debug)]
pub(in crate::transport) struct Line(Box<Tcp>);

impl Line {
    pub(super) fn new(tcp: Tcp) -> Self {
        Self(Box::new(tcp))
    }

    /// The header of the next message from a rank, if it has arrived.
    pub(in crate::transport) fn ahead(&self, from: Rank) -> Option<Header> {
        self.0.stream(from).ahead()
    }

    /// Continues to send a message, of which the kernel has taken `given` bytes, header included. One message to each rank is under way
    /// at a time.
    pub(in crate::transport) fn send(
        &self,
        header: &Header,
        Outgoing { to, bytes }: Outgoing<'_>,
        given: &mut usize,
    ) -> Polled {
        let taken = self.0.stream(to).send(bytemuck::bytes_of(header), bytes, *given);
        *given += taken;
        Polled::of(taken > 0, *given == size_of::<Header>() + bytes.len())
    }

    /// Continues to receive the payload of the next message from a rank, whose header has [arrived](Line::ahead), into a place of its
    /// size, of which `taken` bytes are filled.
    pub(in crate::transport) fn receive(&self, from: Rank, place: &mut [u8], taken: &mut usize) -> Polled {
        let (stream, size_bytes) = (self.0.stream(from), place.len());
        let received = stream.receive(&mut place[*taken..size_bytes.min(*taken + PIECE)]);
        *taken += received.unwrap_or(0);
        let done = *taken == size_bytes;
        if done {
            stream.end_message();
        }
        Polled::of(received.is_some(), done)
    }

    /// The failure of a rank whose connection is lost.
    pub(in crate::transport) fn lost(&self, other: Rank, status: &StatusBoard) -> Option<Failure> {
        self.0.lost(other, status)
    }
}
