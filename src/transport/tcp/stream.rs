//! A connection with one other rank: messages in order, without blocking.

use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::socket::Socket;
use crate::kernels;
use crate::transport::Header;

/// The most bytes that one call of the kernel moves, so that both directions take turns and what arrives stays in the cache.
const PIECE: usize = 256 << 10;
/// The size of a part of a longer message, while the kernel takes all of it. The call may also deliver what has arrived, and a longer one
/// delays its acknowledgement, and so the other end: at 10 Gbit/s, 16 MiB each way take 1.07 times as long as on the wire, and with
/// [`PIECE`] 1.12 times, or under BBR, which sends little ahead of acknowledgements, 1.3 times.
const PART: usize = 48 << 10;
/// The size of a header.
const HEADER: usize = size_of::<Header>();
/// The bytes that are received with a header: a short message takes one call of the kernel.
const AHEAD: usize = 8 << 10;

/// A connection.
#[derive(Debug)]
pub(super) struct Stream<S = TcpStream> {
    socket: S,
    /// The bytes received with a header, and the part of them that was not taken yet.
    ahead: Box<[u8]>,
    here: Range<usize>,
    /// The bytes of the payload of the next message that are to be received; `None` before its header is
    /// here.
    left: Option<usize>,
    header: Header,
    /// Whether the last attempt to send or receive has to be repeated once the kernel is ready.
    waits_to_send: bool,
    waits_to_receive: bool,
    /// The reason why no more bytes can be sent or received.
    lost: Option<Errno>,
}

impl<S: Socket> Stream<S> {
    /// Returns a connection over a socket.
    pub(super) fn new(socket: S) -> Self {
        Self {
            socket,
            ahead: vec![0; AHEAD].into(),
            here: 0..0,
            left: None,
            header: bytemuck::Zeroable::zeroed(),
            waits_to_send: false,
            waits_to_receive: false,
            lost: None,
        }
    }

    /// Sends what the kernel takes of a header and a payload, of which it has taken `taken` bytes before. Returns how much.
    #[inline]
    pub(super) fn send(&mut self, header: &[u8], payload: &[u8], taken: usize) -> usize {
        let header = &header[taken.min(header.len())..];
        let begun = (taken + header.len()).saturating_sub(HEADER);
        let payload = &payload[begun..];
        let most = if self.waits_to_send || payload.len() <= 2 * PART { PIECE } else { PART };
        let payload = &payload[..payload.len().min(most)];
        let sent = self.socket.send(header, payload);
        self.waits_to_send = sent == Err(Errno::AGAIN);
        sent.unwrap_or_else(|error| {
            self.note(error);
            0
        })
    }

    /// Returns the header of the message whose payload is next, if it is here.
    #[inline]
    pub(super) fn ahead(&mut self) -> Option<Header> {
        if self.left.is_some() {
            return Some(self.header);
        }
        if self.here.len() < HEADER {
            self.ahead.copy_within(self.here.clone(), 0);
            self.here = 0..self.here.len();
            self.here.end += self.receive_from_kernel(&mut [])?;
        }
        let header = self.ahead.get(self.here.clone())?.get(..HEADER)?;
        self.header = bytemuck::pod_read_unaligned(header);
        self.here.start += HEADER;
        self.left = Some(self.header.size_bytes());
        Some(self.header)
    }

    /// Receives what is here of the payload after this header into a place for the rest of it, or for less. Returns how much.
    #[inline]
    pub(super) fn receive(&mut self, place: &mut [u8]) -> usize {
        let left = self.left.expect("the header has arrived");
        let place_bytes = place.len().min(PIECE);
        let mut received = self.here.len().min(place_bytes);
        if received > 0 {
            kernels::copy(&mut place[..received], &self.ahead[self.here.start..self.here.start + received]);
            self.here.start += received;
        } else if place_bytes > 0 {
            received = self.receive_from_kernel(&mut place[..place_bytes]).unwrap_or(0);
        }
        self.left = Some(left - received).filter(|&left| left > 0);
        received
    }

    /// Receives bytes into a place, or if it is empty, into what is free of the memory for headers. Returns how many; `None` if nothing is
    /// here.
    fn receive_from_kernel(&mut self, place: &mut [u8]) -> Option<usize> {
        let place = if place.is_empty() { &mut self.ahead[self.here.end..] } else { place };
        let received = self.socket.receive(place);
        self.waits_to_receive = received.is_err();
        match received {
            Ok(0) => self.note(Errno::CONNRESET),
            Ok(received) => return Some(received),
            Err(error) => self.note(error),
        }
        None
    }

    /// Returns the reason why the connection is lost, if it is.
    pub(super) fn lost(&self) -> Option<Errno> {
        self.lost
    }

    fn note(&mut self, error: Errno) {
        if !matches!(error, Errno::AGAIN | Errno::INTR) {
            self.lost.get_or_insert(error);
        }
    }

    /// Returns the events that it waits for.
    fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.lost.is_none() {
            events.set(PollFlags::IN, self.waits_to_receive);
            events.set(PollFlags::OUT, self.waits_to_send);
        }
        events
    }
}

/// Sleeps until one of the connections can go on, but not for longer than this.
pub(super) fn wait<'a, S: Socket + 'a>(streams: impl Iterator<Item = &'a Stream<S>>, most: Duration) {
    let waiting = streams.map(|stream| (&stream.socket, stream.events()));
    S::wait(waiting.filter(|(_, events)| !events.is_empty()), most);
}
