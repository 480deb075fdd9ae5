//! A non-blocking connection between the leaders of two nodes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use unisono_collectives::Rank;

use super::message::{LENGTH, LONGEST, LONGEST_HELLO, Message, NoMessage};

/// How long sent data may remain unacknowledged by the other host before the link counts as cut. The kernel acknowledges, so a
/// stopped process does not look like a cut link.
pub(super) const CUT_AFTER: Duration = Duration::from_secs(5);
/// The interval of messages, so that there is something to acknowledge.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The same for a link to a rank that reads only while it waits, on which heartbeats would pile up: the kernel sends such probes
/// when the link has been idle, and counts it as cut if this many are not answered.
const PROBE: Duration = Duration::from_secs(1);
const PROBES: u32 = CUT_AFTER.as_secs() as u32;
/// The limit of unsent data, for a process that does not read.
const MOST_UNSENT: usize = 4 << 20;

/// The size of a read.
const PIECE: usize = 4096;
/// The bytes read from one link before the others have their turn.
const MOST_READ: usize = LENGTH + LONGEST;

/// Why a link has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The other end said goodbye.
    Goodbye,
    /// The other end closed it without a goodbye: its process has ended.
    Closed,
    /// Data is not acknowledged.
    Cut,
    /// The other end is not one of ours.
    NoMessage,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    is_connected: bool,
    /// The rank at the other end, once known.
    pub(super) to: Option<Rank>,
    /// The hub's address of this connection.
    pub(super) hub: IpAddr,
    pub(super) since: Instant,
    /// Whether anything has arrived since this was last reset.
    pub(super) heard: bool,
    arrived: Vec<u8>,
    unsent: VecDeque<u8>,
    heartbeat_at: Instant,
    has_heartbeat: bool,
    said_goodbye: bool,
    /// Why it has ended, once detected.
    lost: Option<Lost>,
}

impl Link {
    /// Starts to connect to an address.
    pub(super) fn to(address: SocketAddr) -> std::io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Self::new(TcpStream::from(socket), address.ip(), false),
            Err(error) => Err(error.into()),
        }
    }

    /// A connection that was accepted.
    pub(super) fn accepted(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        let hub = stream.local_addr()?.ip().to_canonical();
        Self::new(stream, hub, true)
    }

    /// A connection with this rank, which reads only while it waits.
    pub(super) fn of_control(rank: Rank, stream: TcpStream) -> std::io::Result<Self> {
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        Ok(Self { to: Some(rank), has_heartbeat: false, ..Self::accepted(stream)? })
    }

    fn new(stream: TcpStream, hub: IpAddr, is_connected: bool) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_tcp_user_timeout(&stream, CUT_AFTER.as_millis() as u32)?;
        let now = Instant::now();
        Ok(Self {
            stream,
            is_connected,
            to: None,
            hub,
            since: now,
            heard: true,
            arrived: Vec::new(),
            unsent: VecDeque::new(),
            heartbeat_at: now,
            has_heartbeat: true,
            said_goodbye: false,
            lost: None,
        })
    }

    /// Sends a message once there is buffer space.
    pub(super) fn send(&mut self, message: &Message) {
        if self.unsent.len() < MOST_UNSENT {
            self.unsent.extend(message.to_bytes());
        }
    }

    /// Whether to poll for writability.
    pub(super) fn wants_to_write(&self) -> bool {
        !self.is_connected || !self.unsent.is_empty()
    }

    /// Makes progress without blocking. Passes messages to `heard`, which returns whether to keep the link.
    pub(super) fn progress(&mut self, mut heard: impl FnMut(&mut Self, Message) -> bool) -> Result<(), Lost> {
        self.connect();
        let (mut room, mut is_silent) = (MOST_READ, true);
        // Messages received before the end still count.
        while let Some(message) = self.next(&mut room) {
            is_silent = false;
            if !heard(self, message) {
                return Err(Lost::NoMessage);
            }
        }
        self.flush();
        match self.lost {
            Some(_) if is_silent && self.said_goodbye => Err(Lost::Goodbye),
            Some(lost) if is_silent => Err(lost),
            _ => Ok(()),
        }
    }

    fn connect(&mut self) {
        if !self.is_connected {
            match sockopt::socket_error(&self.stream) {
                Ok(Ok(())) => self.is_connected = self.stream.peer_addr().is_ok(),
                _ => self.lost = Some(Lost::Closed),
            }
        }
    }

    /// The next message. It reads only that one, and at most `room` bytes.
    fn next(&mut self, room: &mut usize) -> Option<Message> {
        loop {
            let longest = if self.to.is_some() { LONGEST } else { LONGEST_HELLO };
            match Message::take_from(&mut self.arrived, longest) {
                Ok(Some(Message::Goodbye)) if self.to.is_some() => self.said_goodbye = true,
                Ok(Some(message)) => return Some(message),
                Ok(None) => self.read(LENGTH + longest, room)?,
                Err(NoMessage) => {
                    self.lost = Some(Lost::NoMessage);
                    return None;
                }
            }
        }
    }

    /// Reads a piece, up to the maximum message length; `None` if nothing can be read now.
    fn read(&mut self, most: usize, room: &mut usize) -> Option<()> {
        let mut piece = [0; PIECE];
        let most = PIECE.min(most - self.arrived.len()).min(*room);
        if !self.is_connected || most == 0 {
            return None;
        }
        let ended = match self.stream.read(&mut piece[..most]) {
            Ok(0) => Lost::Closed,
            Ok(count) => {
                self.arrived.extend(&piece[..count]);
                *room -= count;
                self.heard = true;
                return Some(());
            }
            Err(error) if waits(&error) => return None,
            Err(error) => of(&error),
        };
        // A write may have detected another end before.
        self.lost = self.lost.or(Some(ended));
        None
    }

    /// Passes queued data to the kernel, as far as there is buffer space.
    pub(super) fn flush(&mut self) {
        // Until the other end is known, there is nothing to keep alive.
        if self.has_heartbeat && self.to.is_some() && Instant::now() >= self.heartbeat_at {
            self.heartbeat_at = Instant::now() + HEARTBEAT;
            self.send(&Message::Heartbeat);
        }
        while self.is_connected && self.lost.is_none() && !self.unsent.is_empty() {
            match self.stream.write(self.unsent.as_slices().0) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if waits(&error) => break,
                Err(error) => self.lost = Some(of(&error)),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The meaning of a socket error.
fn of(error: &std::io::Error) -> Lost {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionRefused => Lost::Closed,
        _ => Lost::Cut,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// The most memory that a link keeps for an unidentified sender that starts with this length and sends until it is
    /// disconnected.
    fn kept_bytes(length: u32, to: Option<Rank>) -> usize {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = Link::accepted(listener.accept().unwrap().0).unwrap();
        link.to = to;
        let says = std::thread::spawn(move || {
            let goes_on = other.write_all(&length.to_le_bytes());
            while goes_on.is_ok() && other.write_all(&[b' '; 1 << 16]).is_ok() {}
        });
        let (began, mut most) = (Instant::now(), 0);
        while link.progress(|_, message| panic!("{message:?} is no message")).is_ok() {
            assert!(began.elapsed() < PATIENCE);
            most = most.max(link.arrived.capacity());
        }
        most = most.max(link.arrived.capacity());
        drop(link);
        says.join().unwrap();
        most
    }

    #[test]
    fn what_somebody_says_who_may_be_anybody_takes_no_memory() {
        for length in [u32::MAX, LONGEST as u32, LONGEST_HELLO as u32 + 1, LONGEST_HELLO as u32] {
            let kept = kept_bytes(length, None);
            assert!(kept <= 2 * (LENGTH + LONGEST_HELLO), "{length}: {kept} bytes");
        }
    }

    #[test]
    fn what_a_leader_says_takes_no_more_than_a_message() {
        assert!(kept_bytes(u32::MAX, Some(1)) <= 2 * PIECE, "its length is looked at first");
        assert!(kept_bytes(LONGEST as u32, Some(1)) <= 2 * (LENGTH + LONGEST));
    }
}
