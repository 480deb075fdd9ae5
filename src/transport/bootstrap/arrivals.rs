//! The connections between processes of a job before links exist: by the handshake of the control protocol, in which both sides prove
//! that they know a secret.
//!
//! Connections are served together and never block, so that one which is silent or slow delays no other.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, accept_with, getpeername, sockopt};

use super::peer::{Peer, wait};
use crate::control::{CONNECT, Claim, Handshake, LONGEST_HELLO, MOST_STRANGERS, Message, Reply};
use crate::system::nonce;

/// The longest time that the system may take to reach an address, and then the process there to prove itself.
pub(crate) const REACH: Duration = Duration::from_secs(10);

/// A connection that has not identified itself yet.
#[derive(Debug)]
struct Guest {
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

/// The side that accepts.
#[derive(Debug)]
pub(crate) struct Arrivals {
    listeners: Vec<OwnedFd>,
    secret: Vec<u8>,
    guests: Vec<Guest>,
}

impl Arrivals {
    /// Accepts connections at these sockets, which listen.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(
        listeners: impl IntoIterator<Item = impl Into<OwnedFd>>,
        secret: &[u8],
    ) -> io::Result<Self> {
        let listeners: Vec<_> = listeners.into_iter().map(Into::into).collect();
        listeners.iter().try_for_each(|listener| rustix::io::ioctl_fionbio(listener, true))?;
        Ok(Self { listeners, secret: secret.to_vec(), guests: Vec::new() })
    }

    /// Waits for a short time until something happens, to `others` too, and serves all connections. `admit` returns why a process that
    /// knows the secret is refused, if it is. `expected` members may connect at once.
    pub(crate) fn advance(
        &mut self,
        expected: usize,
        others: &[&Peer],
        mut admit: impl FnMut(Claim) -> Result<(), String>,
    ) -> Vec<Arrival> {
        wait(&self.listeners, self.guests.iter().map(|guest| &guest.peer).chain(others.iter().copied()));
        let most = MOST_STRANGERS + expected;
        for listener in &self.listeners {
            let accepted = std::iter::from_fn(|| accept_with(listener, SocketFlags::CLOEXEC).ok()).take(most);
            self.guests.extend(accepted.filter_map(|accepted| Guest::new(accepted, &self.secret).ok()));
        }
        let mut arrivals = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.advance(&mut admit) {
                Ok(None) if guest.since.elapsed() < CONNECT => self.guests.push(guest),
                Ok(Some(Reply::Done(claim, _))) => arrivals.push(Arrival::Member(claim, guest.peer)),
                Ok(Some(Reply::WrongSecret)) => arrivals.push(Arrival::Stranger(guest.address)),
                // Silent, ended, refused, or another program.
                _ => {}
            }
        }
        // A member identifies itself at once, and connects again if it is displaced.
        let surplus = self.guests.len().saturating_sub(most);
        self.guests.drain(..surplus);
        arrivals
    }
}

impl Guest {
    fn new(socket: OwnedFd, secret: &[u8]) -> io::Result<Self> {
        check_user(&socket)?;
        let address = getpeername(&socket)?.and_then(|address| SocketAddr::try_from(address).ok());
        let handshake = Handshake::accept(secret, nonce());
        Ok(Self { peer: Peer::new(socket)?, address, since: Instant::now(), handshake })
    }

    /// Handles what has arrived. Returns how the handshake ends, once it does.
    fn advance(&mut self, admit: &mut impl FnMut(Claim) -> Result<(), String>) -> io::Result<Option<Reply>> {
        while let Some(frame) = self.peer.poll(LONGEST_HELLO)? {
            let answer = match self.handshake.handle(decoded(&frame)?) {
                Reply::Send(answer) => answer,
                Reply::Claimed(claim) => match admit(claim) {
                    Ok(()) => self.handshake.accepted(),
                    Err(why) => return self.refuse(why).map(|()| Some(Reply::Malformed)),
                },
                Reply::WrongSecret => {
                    // An empty socket takes it at once.
                    let _ = self.refuse("UNISONO_SECRET differs: set the same on all ranks".to_owned());
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

/// The kernel knows the user at the other end of a Unix socket.
fn check_user(socket: &OwnedFd) -> io::Result<()> {
    let is_unix = sockopt::socket_domain(socket)? == AddressFamily::UNIX;
    if is_unix && sockopt::socket_peercred(socket)?.uid != rustix::process::geteuid() {
        return Err(io::Error::other("it is of another user"));
    }
    Ok(())
}

/// Returns whether strangers may have displaced a connection: only such a one is closed without an answer.
pub(crate) fn is_displaced(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
}

/// Proves the claim over a connection. Returns the reason if the other side refuses this one.
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
        let frame = peer.receive(LONGEST_HELLO, deadline)?;
        let (answer, is_done) = match handshake.handle(decoded(&frame)?) {
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
