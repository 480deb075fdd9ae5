//! A connection between the leaders of two nodes, which never blocks.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use unisono_collectives::Rank;

use super::message::{LENGTH, LONGEST, LONGEST_HELLO, Message, NoMessage};

/// How long what was sent may stay without an acknowledgement of the other host before the link is cut. It is
/// the kernel that acknowledges: a process that is stopped does not make a link look cut.
pub(super) const CUT_AFTER: Duration = Duration::from_secs(5);
/// How often something is sent, so that there is something to acknowledge.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// More than this does not wait to be sent: it would be told a process that does not read.
const MOST_UNSENT: usize = 4 << 20;

/// How much is read at a time.
const PIECE: usize = 4096;
/// More than this is not read of one link before the others have their turn.
const MOST_READ: usize = LENGTH + LONGEST;

/// Why a link is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The other end said goodbye.
    Goodbye,
    /// The other end has closed it without a word: its process has ended.
    Closed,
    /// Nothing comes through.
    Cut,
    /// Somebody else is at the other end.
    NoMessage,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    is_connected: bool,
    /// Who is at the other end, once that is known.
    pub(super) to: Option<Rank>,
    /// The address of the hub that it goes over.
    pub(super) hub: IpAddr,
    pub(super) since: Instant,
    /// Whether something has arrived since somebody last asked.
    pub(super) heard: bool,
    arrived: Vec<u8>,
    unsent: VecDeque<u8>,
    heartbeat_at: Instant,
    said_goodbye: bool,
    /// Why it is no more, once that is seen.
    lost: Option<Lost>,
}

impl Link {
    /// Begins to connect to an address.
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
            said_goodbye: false,
            lost: None,
        })
    }

    /// Sends a message as soon as there is room.
    pub(super) fn send(&mut self, message: &Message) {
        if self.unsent.len() < MOST_UNSENT {
            self.unsent.extend(message.to_bytes());
        }
    }

    /// Whether it is to be woken for when it may be written to.
    pub(super) fn wants_to_write(&self) -> bool {
        !self.is_connected || !self.unsent.is_empty()
    }

    /// Does what can be done now. What has arrived is given to `heard`, which says whether the link stays.
    pub(super) fn progress(&mut self, mut heard: impl FnMut(&mut Self, Message) -> bool) -> Result<(), Lost> {
        self.connect();
        let (mut room, mut is_silent) = (MOST_READ, true);
        // What has come before an end still counts.
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

    /// The next message that has arrived. It reads no more than that one, and at most so many bytes.
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

    /// Reads a piece, so that no more has arrived than a message may be long; `None` if there is nothing to read now.
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
        // A write may have seen another end before.
        self.lost = self.lost.or(Some(ended));
        None
    }

    /// Hands what is to be sent to the kernel, as far as there is room.
    pub(super) fn flush(&mut self) {
        // Before it is known who is there, there is nothing to keep alive.
        if self.to.is_some() && Instant::now() >= self.heartbeat_at {
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

/// What an error of a socket means.
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

    /// The most memory that a link takes for what somebody says who begins with this length and goes on until it is hung up on.
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
