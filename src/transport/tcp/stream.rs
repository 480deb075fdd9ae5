//! A connection with one other rank: messages in order, without blocking.

use std::net::TcpStream;
use std::ops::Range;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::Socket;
use crate::kernels;
use crate::transport::Header;

/// The largest number of bytes of one system call, so that both directions alternate and received bytes stay in the cache.
const PIECE: usize = 256 << 10;
/// The size of the parts of a longer message, as long as the kernel accepts them whole. The call may also deliver bytes that have arrived. A
/// longer call delays their acknowledgement, and thereby the other end: at 10 Gbit/s, 16 MiB each way take 1.07 times as long as on the wire.
/// With [`PIECE`] they take 1.12 times as long, or under BBR, which sends little ahead of acknowledgements, 1.3 times.
const PART: usize = 48 << 10;
const HEADER: usize = size_of::<Header>();
/// The number of bytes that are received with a header, so that a short message takes one system call.
const AHEAD: usize = 8 << 10;

#[derive(Debug)]
pub(super) struct Stream<S = TcpStream> {
    pub(super) socket: S,
    /// The bytes received with a header.
    ahead: Box<[u8]>,
    /// The part of `ahead` that has not been consumed.
    unread: Range<usize>,
    /// The number of payload bytes of the next message that are still to be received; `None` before its header has arrived.
    left: Option<usize>,
    header: Header,
    /// Whether the last attempt to send must be repeated once the kernel is ready.
    waits_to_send: bool,
    /// Whether the last attempt to receive must be repeated once the kernel is ready.
    waits_to_receive: bool,
    /// The reason why no more bytes can be sent or received.
    pub(super) lost: Option<Errno>,
}

impl<S: Socket> Stream<S> {
    pub(super) fn new(socket: S) -> Self {
        Self {
            socket,
            ahead: vec![0; AHEAD].into(),
            unread: 0..0,
            left: None,
            header: bytemuck::Zeroable::zeroed(),
            waits_to_send: false,
            waits_to_receive: false,
            lost: None,
        }
    }

    /// Sends as much as the kernel accepts of a header and a payload, of which it has accepted `taken` bytes before. Returns the number of
    /// bytes.
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
            self.record(error);
            0
        })
    }

    /// Returns the header of the message whose payload is next, if it has arrived.
    #[inline]
    pub(super) fn ahead(&mut self) -> Option<Header> {
        if self.left.is_some() {
            return Some(self.header);
        }
        if self.unread.len() < HEADER {
            self.ahead.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            self.unread.end += self.receive_from_kernel(&mut [])?;
        }
        let header = self.ahead.get(self.unread.clone())?.get(..HEADER)?;
        self.header = bytemuck::pod_read_unaligned(header);
        self.unread.start += HEADER;
        self.left = Some(self.header.size_bytes());
        Some(self.header)
    }

    /// Receives available payload bytes after this header into a place for the rest of the payload, or for less. Returns their number.
    #[inline]
    pub(super) fn receive(&mut self, place: &mut [u8]) -> usize {
        let left = self.left.expect("the header has arrived");
        let place_bytes = place.len().min(PIECE);
        let mut received = self.unread.len().min(place_bytes);
        if received > 0 {
            kernels::copy(
                &mut place[..received],
                &self.ahead[self.unread.start..self.unread.start + received],
            );
            self.unread.start += received;
        } else if place_bytes > 0 {
            received = self.receive_from_kernel(&mut place[..place_bytes]).unwrap_or(0);
        }
        self.left = Some(left - received).filter(|&left| left > 0);
        received
    }

    /// Receives bytes into a place, or if it is empty, into the free part of `ahead`. Returns their number; `None` if none are available.
    fn receive_from_kernel(&mut self, place: &mut [u8]) -> Option<usize> {
        let place = if place.is_empty() { &mut self.ahead[self.unread.end..] } else { place };
        let received = self.socket.receive(place);
        self.waits_to_receive = received.is_err();
        match received {
            Ok(0) => self.record(Errno::CONNRESET),
            Ok(received) => return Some(received),
            Err(error) => self.record(error),
        }
        None
    }

    fn record(&mut self, error: Errno) {
        if !matches!(error, Errno::AGAIN | Errno::INTR) {
            self.lost.get_or_insert(error);
        }
    }

    /// Returns the events after which an attempt must be repeated.
    pub(super) fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.lost.is_none() {
            events.set(PollFlags::IN, self.waits_to_receive);
            events.set(PollFlags::OUT, self.waits_to_send);
        }
        events
    }
}
