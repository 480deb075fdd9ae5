//! A socket that never blocks.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use unisono_collectives::Rank;

use crate::control::{How, LONGEST, Message, PREFIX};

/// The longest time for which sent data may remain unacknowledged by the other host before the connection counts as cut. The kernel
/// acknowledges data, so a stopped process does not count as a cut connection.
pub(in super::super) const CUT_AFTER: Duration = Duration::from_secs(5);
/// The interval of the kernel's probes on an idle connection. It is cut if this many are not answered.
const PROBE: Duration = Duration::from_secs(1);
const PROBES: u32 = CUT_AFTER.as_secs() as u32;
const PIECE: usize = 4096;
/// The most bytes read from one connection before the next one is served.
const MOST_READ: usize = PREFIX + LONGEST;

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    /// The rank to which it connects, until the connection is established.
    pub(super) dials: Option<Rank>,
    /// The address of the side that accepts.
    pub(super) over: IpAddr,
    unsent: VecDeque<u8>,
    pub(super) ended: Option<How>,
}

impl Socket {
    pub(super) fn to(rank: Rank, address: SocketAddr) -> std::io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Self::new(TcpStream::from(socket), address.ip(), Some(rank)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn connected(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let over = stream.local_addr()?.ip().to_canonical();
        Self::new(stream, over, None)
    }

    fn new(stream: TcpStream, over: IpAddr, dials: Option<Rank>) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_tcp_user_timeout(&stream, CUT_AFTER.as_millis() as u32)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        Ok(Self { stream, dials, over, unsent: VecDeque::new(), ended: None })
    }

    pub(super) fn wants_to_write(&self) -> bool {
        self.dials.is_some() || !self.unsent.is_empty()
    }

    /// Checks whether the connection has been established. Returns the rank at the other end if it has just been.
    pub(super) fn connects(&mut self) -> Option<Rank> {
        self.dials?;
        if !matches!(sockopt::socket_error(&self.stream), Ok(Ok(()))) {
            self.ended = Some(How::Closed);
            return None;
        }
        self.dials.take_if(|_| self.stream.peer_addr().is_ok())
    }

    /// Passes received data to `receive`, in pieces; only one piece if the other side is not authenticated yet.
    pub(super) fn read(&mut self, is_known: bool, mut receive: impl FnMut(&[u8])) {
        let mut piece = [0; PIECE];
        let mut room = if is_known { MOST_READ } else { PIECE };
        while self.dials.is_none() && room > 0 {
            let ended = match self.stream.read(&mut piece) {
                Ok(0) => How::Closed,
                Ok(count) => {
                    receive(&piece[..count]);
                    room = room.saturating_sub(count);
                    continue;
                }
                Err(error) if waits(&error) => return,
                Err(error) => of(&error),
            };
            // A write may have detected another end before.
            self.ended = self.ended.or(Some(ended));
            return;
        }
        if room == 0 {
            // Data that arrived before the end still counts.
            self.ended = None;
        }
    }

    /// Sends bytes once there is buffer space. A keepalive is left out if other data wait, so that none accumulate for a process that does
    /// not read.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if self.unsent.is_empty() || *bytes != Message::Keepalive.to_bytes() {
            self.unsent.extend(bytes);
        }
    }

    /// Passes queued data to the kernel, as far as there is buffer space.
    pub(super) fn flush(&mut self) {
        while self.dials.is_none() && self.ended.is_none() && !self.unsent.is_empty() {
            match self.stream.write(self.unsent.as_slices().0) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if waits(&error) => break,
                Err(error) => self.ended = Some(of(&error)),
            }
        }
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn of(error: &std::io::Error) -> How {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionRefused => How::Closed,
        _ => How::Silent,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn no_message_but_a_keepalive_is_left_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut socket = Socket::connected(stream).unwrap();
        let [keepalive, goodbye] = [Message::Keepalive, Message::Goodbye].map(|message| message.to_bytes());
        (0..3).for_each(|_| socket.send(&keepalive));
        assert_eq!(socket.unsent, keepalive);
        let long = vec![0; 8 << 20];
        socket.send(&long);
        socket.send(&goodbye);
        assert_eq!(socket.unsent.len(), keepalive.len() + long.len() + goodbye.len());
    }
}
