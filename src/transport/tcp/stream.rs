//! A connection with one other rank: bytes in order, without blocking.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use super::PIECE;
use crate::kernels;
use crate::transport::Header;

/// The size of a header.
const HEADER: usize = size_of::<Header>();

/// A connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    /// Copies of what was posted and the kernel has not taken yet.
    unsent: RefCell<Unsent>,
    /// The header of the message that arrives, as far as it is here.
    header: RefCell<([u8; HEADER], usize)>,
    /// Whether the last attempt to send or receive has to be repeated once the kernel is ready.
    waits_to_send: Cell<bool>,
    waits_to_receive: Cell<bool>,
    /// Why no more bytes can be sent or received.
    lost: Cell<Option<Errno>>,
}

/// Bytes in a queue.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// How many of them are sent.
    sent: usize,
}

impl Stream {
    /// A connection over a socket that does not block.
    pub(super) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            unsent: RefCell::default(),
            header: RefCell::new(([0; HEADER], 0)),
            waits_to_send: Cell::new(false),
            waits_to_receive: Cell::new(false),
            lost: Cell::new(None),
        }
    }

    /// Sends what the kernel takes of a header and a payload, of which it has taken `taken` bytes before. Returns how much.
    #[inline]
    pub(super) fn send(&self, header: &[u8], payload: &[u8], taken: usize) -> usize {
        if !self.is_flushed() {
            self.flush();
            return 0;
        }
        let header = &header[taken.min(header.len())..];
        let begun = (taken + header.len()).saturating_sub(HEADER);
        let payload = &payload[begun..payload.len().min(begun + PIECE)];
        self.pass([IoSlice::new(header), IoSlice::new(payload)])
    }

    /// Sends a message, of which it keeps a copy of what the kernel does not take at once.
    pub(super) fn give(&self, header: &Header, payload: &[u8]) {
        let header = bytemuck::bytes_of(header);
        let mut taken = 0;
        while taken < HEADER + payload.len() {
            match self.send(header, payload, taken) {
                0 => break,
                more => taken += more,
            }
        }
        let mut unsent = self.unsent.borrow_mut();
        unsent.bytes.extend_from_slice(&header[taken.min(HEADER)..]);
        let left = &payload[taken.saturating_sub(HEADER)..];
        let start = unsent.bytes.len();
        unsent.bytes.resize(start + left.len(), 0);
        kernels::copy(&mut unsent.bytes[start..], left);
    }

    /// Whether the kernel has taken all that was given.
    #[inline]
    pub(super) fn is_flushed(&self) -> bool {
        self.unsent.borrow().bytes.is_empty()
    }

    /// Sends what was given. Returns whether the kernel took anything.
    pub(super) fn flush(&self) -> bool {
        let mut unsent = self.unsent.borrow_mut();
        let left = &unsent.bytes[unsent.sent..];
        let taken = if left.is_empty() { 0 } else { self.pass([IoSlice::new(left), IoSlice::new(&[])]) };
        unsent.sent += taken;
        if unsent.sent == unsent.bytes.len() {
            unsent.bytes.clear();
            unsent.sent = 0;
        }
        taken > 0
    }

    /// Passes bytes to the kernel. Returns how many it took.
    fn pass(&self, bytes: [IoSlice<'_>; 2]) -> usize {
        // A program in C may not ignore SIGPIPE.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(&self.socket, &bytes, &mut SendAncillaryBuffer::default(), flags);
        self.waits_to_send.set(sent == Err(Errno::AGAIN));
        sent.unwrap_or_else(|error| {
            self.see(error);
            0
        })
    }

    /// Receives what is here of the header of the next message and then of its payload, into this place, which is no longer than
    /// what is left of it. Returns how much of the payload; `None` if nothing is here.
    #[inline]
    pub(super) fn receive(&self, payload: &mut [u8]) -> Option<usize> {
        let received = self.take(payload);
        self.waits_to_receive.set(received.is_none());
        received
    }

    fn take(&self, payload: &mut [u8]) -> Option<usize> {
        let (header, here) = &mut *self.header.borrow_mut();
        if *here == HEADER && payload.is_empty() {
            return Some(0);
        }
        let received = if *here == HEADER {
            rustix::net::recv(&self.socket, payload, RecvFlags::DONTWAIT).map(|(_, received)| received)
        } else {
            let places = &mut [IoSliceMut::new(&mut header[*here..]), IoSliceMut::new(payload)];
            let nothing = &mut RecvAncillaryBuffer::default();
            rustix::net::recvmsg(&self.socket, places, nothing, RecvFlags::DONTWAIT).map(|all| all.bytes)
        };
        match received {
            Ok(0) => {
                self.see(Errno::CONNRESET);
                None
            }
            Ok(received) => {
                let of_header = received.min(HEADER - *here);
                *here += of_header;
                Some(received - of_header)
            }
            Err(error) => {
                self.see(error);
                None
            }
        }
    }

    /// The header of the message that arrives, once it is here.
    pub(super) fn header(&self) -> Option<Header> {
        let (header, here) = &*self.header.borrow();
        (*here == HEADER).then(|| bytemuck::pod_read_unaligned(header))
    }

    /// The same, after a look whether it is here.
    pub(super) fn ahead(&self) -> Option<Header> {
        if self.header().is_none() {
            self.take(&mut []);
        }
        self.header()
    }

    /// The payload is here: the next bytes are those of another header.
    pub(super) fn end_message(&self) {
        self.header.borrow_mut().1 = 0;
    }

    /// Why the connection is lost, if it is.
    pub(super) fn lost(&self) -> Option<Errno> {
        self.lost.get()
    }

    fn see(&self, error: Errno) {
        if !matches!(error, Errno::AGAIN | Errno::INTR) {
            self.lost.set(Some(self.lost.get().unwrap_or(error)));
        }
    }

    /// What it waits for.
    fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.lost.get().is_none() {
            events.set(PollFlags::IN, self.waits_to_receive.get());
            events.set(PollFlags::OUT, self.waits_to_send.get());
        }
        events
    }
}

/// Sleeps until one of the connections can go on, but not for longer than this.
pub(super) fn wait<'a>(streams: impl Iterator<Item = &'a Stream>, most: Duration) {
    let waiting = streams.map(|stream| (stream, stream.events())).filter(|(_, events)| !events.is_empty());
    let mut awaited: Vec<_> = waiting.map(|(stream, events)| PollFd::new(&stream.socket, events)).collect();
    let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
    // If it fails, the rank looks again at once.
    let _ = rustix::event::poll(&mut awaited, Some(&most));
}
