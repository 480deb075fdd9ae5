//! How processes of a job connect before links exist: by the handshake of the control protocol, in which both sides prove that they know
//! a secret.
//!
//! Connections are served together and never block, so that one which is silent or slow delays no other.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::peer::{Peer, wait};
use crate::control::{CONNECT, Claim, Handshake, LONGEST_HELLO, MOST_STRANGERS, Message, Step};
use crate::system::nonce;

/// How long the system may take to reach an address, and the process there to prove itself.
const REACH: Duration = Duration::from_secs(10);

/// A connection that has not identified itself yet.
struct Guest {
    peer: Peer,
    address: SocketAddr,
    since: Instant,
    handshake: Handshake,
}

/// A connection that has identified itself, or does not know the secret.
pub(in crate::transport) enum Arrival {
    Member(Claim, Peer),
    Stranger(SocketAddr),
}

/// The side that accepts.
pub(in crate::transport) struct Arrivals<'a> {
    listeners: &'a [TcpListener],
    secret: &'a [u8],
    guests: Vec<Guest>,
}

impl<'a> Arrivals<'a> {
    /// Accepts connections at these listeners, which must not block.
    pub(in crate::transport) fn new(listeners: &'a [TcpListener], secret: &'a [u8]) -> Self {
        Self { listeners, secret, guests: Vec::new() }
    }

    /// Waits for a short time until something happens, to `others` too, and serves all connections. `admit` returns why a process that
    /// knows the secret is refused, if it is. `expected` members may connect at once.
    pub(in crate::transport) fn advance(
        &mut self,
        expected: usize,
        others: &[&Peer],
        mut admit: impl FnMut(Claim) -> Result<(), String>,
    ) -> Vec<Arrival> {
        wait(self.listeners, self.guests.iter().map(|guest| &guest.peer).chain(others.iter().copied()));
        let most = MOST_STRANGERS + expected;
        for listener in self.listeners {
            let accepted = std::iter::from_fn(|| listener.accept().ok()).take(most);
            self.guests.extend(accepted.filter_map(|accepted| Guest::new(accepted, self.secret).ok()));
        }
        let mut arrivals = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.advance(&mut admit) {
                Ok(None) if guest.since.elapsed() < CONNECT => self.guests.push(guest),
                Ok(Some(Step::Done(claim, _))) => arrivals.push(Arrival::Member(claim, guest.peer)),
                Ok(Some(Step::WrongSecret)) => arrivals.push(Arrival::Stranger(guest.address)),
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
    fn new((socket, address): (TcpStream, SocketAddr), secret: &[u8]) -> io::Result<Self> {
        let handshake = Handshake::accept(secret, nonce());
        Ok(Self { peer: Peer::new(socket)?, address, since: Instant::now(), handshake })
    }

    /// Handles what has arrived. Returns how the handshake ends, once it does.
    fn advance(&mut self, admit: &mut impl FnMut(Claim) -> Result<(), String>) -> io::Result<Option<Step>> {
        while let Some(message) = receive(self.peer.poll(LONGEST_HELLO)?)? {
            let answer = match self.handshake.handle(message) {
                Step::Send(answer) => answer,
                Step::Claimed(claim) => match admit(claim) {
                    Ok(()) => self.handshake.accepted(),
                    Err(why) => return self.refuse(why).map(|()| Some(Step::Nonsense)),
                },
                Step::WrongSecret => {
                    // An empty socket takes it at once.
                    let _ = self.refuse("UNISONO_SECRET differs: set the same on all ranks".to_owned());
                    return Ok(Some(Step::WrongSecret));
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

fn receive(frame: Option<Vec<u8>>) -> io::Result<Option<Message>> {
    let other = || io::Error::other("another program, or another version of unisono, answers");
    frame.map(|frame| Message::of_frame(&frame).map_err(|_| other())).transpose()
}

/// Connects to an address, and proves the claim. Returns the connection, or the reason why the other side refuses this one.
pub(in crate::transport) fn introduce(
    address: &SocketAddr,
    secret: &[u8],
    claim: Claim,
    within: Duration,
) -> io::Result<Result<Peer, String>> {
    let (within, began) = (within.min(REACH), Instant::now());
    let mut peer = Peer::new(TcpStream::connect_timeout(address, within)?)?;
    let (mut handshake, hello) = Handshake::connect(secret, claim, nonce());
    peer.queue(hello.to_bytes());
    loop {
        let frame = peer.receive(LONGEST_HELLO, began + within)?;
        let Some(message) = receive(Some(frame))? else { continue };
        let (answer, is_done) = match handshake.handle(message) {
            Step::Send(answer) => (answer, false),
            Step::Done(_, Some(confirm)) => (confirm, true),
            Step::Refused(why) => return Ok(Err(why)),
            Step::WrongSecret => return Err(io::Error::other("a process without the secret answers")),
            _ => return Err(io::Error::other("a process that does not follow the protocol answers")),
        };
        peer.queue(answer.to_bytes());
        if is_done {
            peer.flush()?;
            return Ok(Ok(peer));
        }
    }
}
