//! Connections between processes of a job before links exist. In the handshake of the control protocol, both sides prove that they know a
//! secret.
//!
//! Connections are served together and never block, so that a silent or slow one does not delay the others.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, getpeername, sockopt};

use super::peer::{Peer, wait};
use crate::control::{CONNECT, Claim, Handshake, Hidden, LONGEST_HELLO, MOST_STRANGERS, Message, Reply};
use crate::system::{accept, nonce};

/// The longest time that the system may take to reach an address, and then the process there to prove itself.
pub(crate) const REACH: Duration = Duration::from_secs(10);

/// The refusal of a process with another secret.
pub(super) const WRONG_SECRET: &str = "UNISONO_SECRET differs: set the same on all ranks";

/// A connection that has not identified itself yet.
#[derive(Debug)]
struct PendingConnection {
    peer: Peer,
    address: Option<SocketAddr>,
    since: Instant,
    handshake: Handshake,
}

/// A connection that has identified itself, or does not know the secret.
pub(crate) enum Arrival {
    Member(Claim, Peer),
    Stranger(Option<SocketAddr>),
}

#[derive(Debug)]
pub(crate) struct Arrivals {
    /// Sockets that do not block.
    pub(super) listeners: Vec<OwnedFd>,
    secret: Hidden<Vec<u8>>,
    pending: Vec<PendingConnection>,
    /// The first reason why a connection could not be accepted.
    pub(crate) failure: Option<String>,
}

impl Arrivals {
    /// Accepts connections at these listening sockets.
    pub(crate) fn new(
        listeners: impl IntoIterator<Item = impl Into<OwnedFd>>,
        secret: &[u8],
    ) -> io::Result<Self> {
        let listeners: Vec<_> = listeners.into_iter().map(Into::into).collect();
        listeners.iter().try_for_each(|listener| rustix::io::ioctl_fionbio(listener, true))?;
        Ok(Self { listeners, secret: Hidden(secret.to_vec()), pending: Vec::new(), failure: None })
    }

    /// Waits for a short time until an event happens on these connections or `others`, and serves all connections. `admit` returns the reason if it
    /// refuses a process that knows the secret. Up to `expected` members may connect at the same time.
    pub(crate) fn advance(
        &mut self,
        expected: usize,
        others: &[&Peer],
        mut admit: impl FnMut(Claim) -> Result<(), String>,
    ) -> Vec<Arrival> {
        wait(&self.listeners, self.pending.iter().map(|pending| &pending.peer).chain(others.iter().copied()));
        let most = MOST_STRANGERS + expected;
        let accepted = accept(&self.listeners, most, &mut self.failure);
        let accepted = accepted.into_iter().map(|socket| PendingConnection::new(socket, &self.secret.0));
        self.pending.extend(accepted.filter_map(io::Result::ok));
        let mut arrivals = Vec::new();
        for mut connection in std::mem::take(&mut self.pending) {
            match connection.advance(&mut admit) {
                Ok(None) if connection.since.elapsed() < CONNECT => self.pending.push(connection),
                Ok(Some(Reply::Done(claim, _))) => arrivals.push(Arrival::Member(claim, connection.peer)),
                Ok(Some(Reply::WrongSecret)) => arrivals.push(Arrival::Stranger(connection.address)),
                // Silent, ended, refused, or another program.
                _ => {}
            }
        }
        // A member identifies itself at once, and connects again if it is displaced.
        let surplus = self.pending.len().saturating_sub(most);
        self.pending.drain(..surplus);
        arrivals
    }
}

impl PendingConnection {
    fn new(socket: OwnedFd, secret: &[u8]) -> io::Result<Self> {
        check_user(&socket)?;
        let address = getpeername(&socket)?.and_then(|address| SocketAddr::try_from(address).ok());
        let handshake = Handshake::accept(secret, nonce());
        Ok(Self { peer: Peer::new(socket)?, address, since: Instant::now(), handshake })
    }

    /// Handles the messages that have arrived. Returns the outcome of the handshake once it has ended.
    fn advance(&mut self, admit: &mut impl FnMut(Claim) -> Result<(), String>) -> io::Result<Option<Reply>> {
        while let Some(frame) = self.peer.poll(LONGEST_HELLO)? {
            let answer = match self.handshake.handle(decoded(&frame)?, &mut *admit) {
                Reply::Send(answer) => answer,
                Reply::Refused(why) => return self.refuse(why).map(|()| Some(Reply::Malformed)),
                Reply::WrongSecret => {
                    // An empty socket buffer accepts the message at once.
                    let _ = self.refuse(WRONG_SECRET.to_owned());
                    return Ok(Some(Reply::WrongSecret));
                }
                end => return Ok(Some(end)),
            };
            self.peer.queue(answer.to_bytes());
            self.peer.flush()?;
        }
        Ok(None)
    }

    fn refuse(&mut self, why: String) -> io::Result<()> {
        self.peer.queue(Message::Refuse { why }.to_bytes());
        self.peer.flush().map(drop)
    }
}

fn decoded(frame: &[u8]) -> io::Result<Message> {
    Message::of_frame(frame)
        .map_err(|_| io::Error::other("another program, or another version of unisono, answers"))
}

/// Checks that the process at the other end of a Unix socket runs as the same user. The kernel reports a process of another PID namespace as
/// process 0, which rustix's type cannot hold.
fn check_user(socket: &OwnedFd) -> io::Result<()> {
    if sockopt::socket_domain(socket)? != AddressFamily::UNIX {
        return Ok(());
    }
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of_val(&peer) as libc::socklen_t;
    let (level, name, value) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast());
    // SAFETY: the kernel writes at most `bytes` bytes to `peer`, which holds integers only.
    if unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_same = peer.uid == rustix::process::geteuid().as_raw();
    if is_same { Ok(()) } else { Err(io::Error::other("the process runs as another user")) }
}

/// Returns whether the other side has closed a connection without an answer: it has ended, or strangers have displaced this side.
pub(crate) fn is_displaced(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

/// Proves the claim over a connection. Returns the reason if the other side refuses it.
pub(crate) fn introduce(
    socket: impl Into<OwnedFd>,
    secret: &[u8],
    claim: Claim,
    within: Duration,
) -> io::Result<Result<Peer, String>> {
    let (socket, deadline) = (socket.into(), Instant::now() + within.min(REACH));
    check_user(&socket)?;
    let mut peer = Peer::new(socket)?;
    let (mut handshake, hello) = Handshake::connect(secret, claim, nonce());
    peer.queue(hello.to_bytes());
    loop {
        let frame = peer.receive(LONGEST_HELLO, deadline, || Ok(()))?;
        let (answer, is_done) = match handshake.handle(decoded(&frame)?, |_| Ok(())) {
            Reply::Send(answer) => (answer, false),
            Reply::Done(_, Some(confirm)) => (confirm, true),
            Reply::Refused(why) => return Ok(Err(why)),
            Reply::WrongSecret => return Err(io::Error::other("a process without the secret answers")),
            _ => return Err(io::Error::other("a process that does not follow the protocol answers")),
        };
        peer.queue(answer.to_bytes());
        if is_done {
            peer.flush()?;
            return Ok(Ok(peer));
        }
    }
}
