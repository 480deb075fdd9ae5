//! A connection of the rendezvous: messages with a length prefix, over a socket that never blocks.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// The longest wait for a socket, and the sleep between attempts to connect.
pub(super) const NAP: Duration = Duration::from_millis(20);
/// The bytes read at once.
const CHUNK: usize = 16 << 10;
const PREFIX: usize = size_of::<u64>();

/// The other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    socket: TcpStream,
    /// The bytes received, from the start of a message.
    received: Vec<u8>,
    /// The bytes to send, and how many of the first are sent.
    unsent: VecDeque<Arc<[u8]>>,
    sent: usize,
}

impl Peer {
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, received: Vec::new(), unsent: VecDeque::new(), sent: 0 })
    }

    /// The bytes of a message on the wire.
    pub(super) fn framed(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u64).to_le_bytes(), message].concat()
    }

    /// Appends whole messages, framed, to what is sent.
    pub(super) fn queue(&mut self, framed: impl Into<Arc<[u8]>>) {
        self.unsent.push_back(framed.into());
    }

    /// Sends what the socket takes. Returns whether everything is sent.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while let Some(first) = self.unsent.front() {
            match self.socket.write(&first[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.sent == first.len() {
                self.sent = 0;
                self.unsent.pop_front();
            }
        }
        Ok(true)
    }

    /// Reads what has arrived.
    ///
    /// # Errors
    /// If the connection has ended, or holds more than one message of at most `longest` bytes.
    pub(super) fn fill(&mut self, longest: usize) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        while self.received.len() <= PREFIX + longest {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!("it sends more than {longest} bytes at once")))
    }

    /// Sends what the socket takes, and returns the next message if it has arrived.
    pub(super) fn poll(&mut self, longest: usize) -> io::Result<Option<Vec<u8>>> {
        // A peer that has ended may have sent the reason first.
        if let Some(message) = self.take(longest)? {
            return Ok(Some(message));
        }
        let ended = self.flush().and(self.fill(longest));
        match self.take(longest)? {
            Some(message) => Ok(Some(message)),
            None => ended.map(|()| None),
        }
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self, longest: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            match self.poll(longest)? {
                Some(message) => return Ok(message),
                None if Instant::now() >= deadline => return Err(ErrorKind::TimedOut.into()),
                None => wait(None, std::iter::once(&*self)),
            }
        }
    }

    /// The first message among the bytes received, once it is whole.
    fn take(&mut self, longest: usize) -> io::Result<Option<Vec<u8>>> {
        let Some((prefix, rest)) = self.received.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u64::from_le_bytes(*prefix);
        if length > longest as u64 {
            return Err(io::Error::other(format!("it announces {length} bytes, more than {longest}")));
        }
        let Some(message) = rest.get(..length as usize).map(<[u8]>::to_vec) else { return Ok(None) };
        self.received.drain(..PREFIX + message.len());
        Ok(Some(message))
    }
}

/// Waits until a peer connects, sends, or takes what is queued for it; for a short time at most.
pub(super) fn wait<'a>(listener: Option<&TcpListener>, peers: impl Iterator<Item = &'a Peer>) {
    let listening = listener.map(|listener| PollFd::new(listener, PollFlags::IN));
    let peers = peers.map(|peer| {
        let sends = if peer.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&peer.socket, PollFlags::IN | sends)
    });
    let mut sockets: Vec<_> = listening.into_iter().chain(peers).collect();
    let nap = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
    // If it fails, the caller polls again at once.
    let _ = rustix::event::poll(&mut sockets, Some(&nap));
}
