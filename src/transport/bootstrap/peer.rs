//! A connection with another rank before links exist: the frames of the control protocol, over a socket that never blocks.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::control::{Frames, PREFIX};

/// The longest wait for a socket, and the sleep between attempts to connect.
pub(crate) const NAP: Duration = Duration::from_millis(20);
/// The longest time to wait for ranks: the sum of a later time and a setting would overflow.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(1 << 32);
/// The time after which the kernel probes an idle connection: firewalls and address translation forget idle ones, some after four
/// minutes. A process that computes or is stopped need not answer, since its kernel does.
const IDLE: Duration = Duration::from_secs(60);
const CHUNK: usize = 16 << 10;

/// The other side of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    socket: OwnedFd,
    received: Frames,
    unsent: VecDeque<Arc<[u8]>>,
    /// The number of bytes of the first message that are sent.
    sent: usize,
}

impl Peer {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // Unix sockets have neither these options nor the delay.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, IDLE);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        Ok(Self { socket, received: Frames::default(), unsent: VecDeque::new(), sent: 0 })
    }

    /// Appends whole messages, [framed](crate::control::framed), to the bytes to send.
    pub(crate) fn queue(&mut self, framed: impl Into<Arc<[u8]>>) {
        self.unsent.push_back(framed.into());
    }

    /// Sends as much as the socket accepts. Returns whether everything is sent.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while let Some(first) = self.unsent.front() {
            match send(&self.socket, &first[self.sent..], SendFlags::NOSIGNAL) {
                Ok(written) => self.sent += written,
                Err(Errno::WOULDBLOCK) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.sent == first.len() {
                self.sent = 0;
                self.unsent.pop_front();
            }
        }
        Ok(true)
    }

    /// Reads the bytes that have arrived.
    ///
    /// # Errors
    /// If the connection has ended, or holds more than one message of at most `longest` bytes.
    pub(crate) fn fill(&mut self, longest: usize) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        while self.received.len() <= PREFIX + longest {
            match recv(&self.socket, &mut chunk, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((_, read)) => self.received.extend(&chunk[..read]),
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(too_long(longest))
    }

    /// Sends as much as the socket accepts, and returns the next message if it has arrived.
    pub(crate) fn poll(&mut self, longest: usize) -> io::Result<Option<Vec<u8>>> {
        // A peer that has ended may have sent the reason first.
        let take = |this: &mut Self| this.received.next_frame(longest).map_err(|_| too_long(longest));
        if let Some(message) = take(self)? {
            return Ok(Some(message));
        }
        let ended = self.flush().and(self.fill(longest));
        match take(self)? {
            Some(message) => Ok(Some(message)),
            None => ended.map(|()| None),
        }
    }

    /// Waits for the next message, and calls `idle` meanwhile.
    pub(crate) fn receive(
        &mut self,
        longest: usize,
        deadline: Instant,
        idle: fn() -> Result<(), String>,
    ) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.poll(longest)? {
                return Ok(message);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(ErrorKind::TimedOut, "it was silent until the deadline"));
            }
            idle().map_err(io::Error::other)?;
            wait(&[], std::iter::once(&*self));
        }
    }

    /// Returns the socket after everything is sent.
    ///
    /// # Errors
    /// If the other side has sent something already, or does not read.
    pub(crate) fn into_socket(mut self) -> io::Result<OwnedFd> {
        if self.received.len() > 0 || !self.flush()? {
            return Err(io::Error::other("it does not follow the protocol"));
        }
        Ok(self.socket)
    }
}

fn too_long(longest: usize) -> io::Error {
    io::Error::other(format!("it sends more than {longest} bytes at once"))
}

/// Waits until a peer connects, sends, or accepts queued bytes, but only for a short time.
pub(crate) fn wait<'a>(listeners: &[OwnedFd], peers: impl Iterator<Item = &'a Peer>) {
    let listening = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
    let peers = peers.map(|peer| {
        let sends = if peer.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&peer.socket, PollFlags::IN | sends)
    });
    let mut sockets: Vec<_> = listening.chain(peers).collect();
    let nap = Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
    // If it fails, the caller polls again at once.
    let _ = rustix::event::poll(&mut sockets, Some(&nap));
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn idle_connections_are_kept_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Peer::new(socket.into()).unwrap().into_socket().unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), IDLE);
    }
}
