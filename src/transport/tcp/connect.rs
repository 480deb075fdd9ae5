//! How ranks connect: each listens, tells the others where, and connects to those before it.
//!
//! Only who knows the secret of the world is let in, and nobody once all are there.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use super::{Stream, Tcp};
use crate::config::Interfaces;
use crate::error::{Error, Result};
use crate::system;
use crate::transport::bootstrap::{Bootstrap, gather_bytes};
use crate::transport::link::Links;

/// How long the system may take to reach an address, and the rank there to answer.
const REACH: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(10);
/// How long a rank waits for all others to connect.
const CONNECT: Duration = Duration::from_secs(30);
/// How long a connection may stay unidentified, and how many may be; beyond it, the oldest are closed.
const STRANGE: Duration = Duration::from_secs(5);
const MOST_STRANGERS: usize = 64;
/// The sleep between looks at the clock.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// What a rank that was let in hears.
const WELCOME: [u8; 8] = *b"unisono\n";

/// What a rank tells all others before they connect.
#[derive(Debug, Serialize, Deserialize)]
struct Door {
    /// That of rank 0 is the secret of the world.
    secret: [u64; 2],
    addresses: Vec<SocketAddr>,
    /// Why it has no door.
    error: Option<String>,
}

/// What a rank that connects says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Hello {
    secret: [u64; 2],
    from: u64,
    to: u64,
}

impl Hello {
    pub(super) fn of(secret: [u64; 2], from: Rank, to: Rank) -> Self {
        Self { secret, from: from as u64, to: to as u64 }
    }
}

/// Connects this rank with all ranks that are `far`. All ranks of the world call it. If ranks cannot connect, it returns the
/// reason, the same on all ranks.
///
/// Between every pair of these ranks there are two connections, and between every pair of all ranks one for [control](Links::controls) if
/// `has_controls`, which is identical on all ranks. That one never carries a payload, so that a failure is not queued behind one.
///
/// # Errors
/// Those of the bootstrap.
pub(in crate::transport) fn connect(
    bootstrap: &mut dyn Bootstrap,
    far: impl Fn(Rank) -> bool,
    interfaces: &Interfaces,
    has_controls: bool,
) -> Result<std::result::Result<Links, String>> {
    let collectives = match sockets(bootstrap, &far, interfaces)? {
        Ok(sockets) => Box::new(Tcp::new(bootstrap.ranks(), sockets)),
        Err(problem) => return Ok(Err(problem)),
    };
    let messages = match sockets(bootstrap, &far, interfaces)? {
        Ok(sockets) => Box::new(Tcp::new(bootstrap.ranks(), sockets)),
        Err(problem) => return Ok(Err(problem)),
    };
    let controls = if has_controls { controls(bootstrap, interfaces)? } else { Ok(Vec::new()) };
    Ok(controls.map(|controls| Links { collectives, messages, controls }))
}

/// The [control connections](Links::controls) of a rank with all others, since all of them agree on the survivors of a failure. All ranks
/// call it. If ranks cannot connect, it returns the reason, identical on all ranks.
///
/// # Errors
/// Those of the bootstrap.
pub(in crate::transport) fn controls(
    bootstrap: &mut dyn Bootstrap,
    interfaces: &Interfaces,
) -> Result<std::result::Result<Vec<(Rank, OwnedFd)>, String>> {
    let sockets = sockets(bootstrap, |_| true, interfaces)?;
    Ok(sockets.map(|sockets| sockets.into_iter().map(|(rank, socket)| (rank, socket.into())).collect()))
}

impl Tcp {
    /// The link over these connections.
    fn new(ranks: usize, sockets: Vec<(Rank, TcpStream)>) -> Self {
        let mut streams: Vec<_> = (0..ranks).map(|_| None).collect();
        for (rank, socket) in sockets {
            streams[rank] = Some(Stream::new(socket));
        }
        Self { streams }
    }
}

/// A connection with every rank that is `far`. All ranks of the world call it.
fn sockets(
    bootstrap: &mut dyn Bootstrap,
    far: impl Fn(Rank) -> bool,
    interfaces: &Interfaces,
) -> Result<std::result::Result<Vec<(Rank, TcpStream)>, String>> {
    let (own, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let (listeners, door) = open(interfaces);
    let doors =
        gather_bytes(bootstrap, &serde_json::to_vec(&door).expect("a door has nothing that JSON has not"))?;
    let doors: Option<Vec<Door>> = doors.iter().map(|door| serde_json::from_slice(door).ok()).collect();
    let other = || Error::Launch("ranks of different versions of unisono are in one world".to_owned());
    let doors = doors.ok_or_else(other)?;
    if let Some((rank, error)) = (0..).zip(&doors).find_map(|(rank, door)| Some((rank, door.error.as_ref()?)))
    {
        return Ok(Err(format!("rank {rank} cannot listen for others: {error}")));
    }
    let hello = |from, to| Hello::of(doors[0].secret, from, to);
    let far: Vec<_> = (0..ranks).filter(|&rank| rank != own && far(rank)).collect();
    let (before, after): (Vec<_>, Vec<_>) = far.into_iter().partition(|&rank| rank < own);
    let expected: Vec<_> = after.iter().map(|&rank| (rank, hello(rank, own))).collect();
    let (accepted, reached) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| accept(&listeners, expected));
        let reached: Vec<_> =
            before.iter().map(|&to| (to, reach(&doors[to].addresses, &hello(own, to)))).collect();
        (accepted.join().expect("who accepts does not panic"), reached)
    });
    let mut sockets = Vec::new();
    let mut problem = String::new();
    for (rank, connected) in accepted.into_iter().chain(reached) {
        match connected.and_then(|socket| ready(socket).map_err(|error| error.to_string())) {
            Ok(socket) => sockets.push((rank, socket)),
            Err(error) => problem = format!("rank {own} and rank {rank} cannot connect: {error}"),
        }
    }
    let problems = gather_bytes(bootstrap, problem.as_bytes())?;
    let first = problems.iter().find(|problem| !problem.is_empty());
    Ok(match first {
        Some(problem) => Err(String::from_utf8_lossy(problem).into_owned()),
        None => Ok(sockets),
    })
}

/// Opens this rank's ports.
fn open(interfaces: &Interfaces) -> (Vec<TcpListener>, Door) {
    let listening = interfaces
        .check()
        .and_then(|()| system::listen(|name, ip| interfaces.has(name, ip)))
        .and_then(|listeners| {
            let addresses: std::io::Result<_> = listeners.iter().map(TcpListener::local_addr).collect();
            Ok((listeners, addresses?))
        });
    let random = || RandomState::new().hash_one(std::process::id());
    let secret = [random(), random()];
    match listening {
        Ok((listeners, addresses)) => (listeners, Door { secret, addresses, error: None }),
        Err(error) => (Vec::new(), Door { secret, addresses: Vec::new(), error: Some(error.to_string()) }),
    }
}

/// A connection for messages.
fn ready(socket: TcpStream) -> std::io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    // Not `TCP_USER_TIMEOUT`: it would also end the connection with a rank that computes for long and does not receive. Who
    // watches over the ranks sees a cut link.
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Connects to a rank, at the first of its addresses where it answers.
fn reach(addresses: &[SocketAddr], hello: &Hello) -> std::result::Result<TcpStream, String> {
    let mut addresses = addresses.to_vec();
    system::sort_by_nearness(&mut addresses);
    let mut refused = Vec::new();
    for address in addresses {
        match knock(&address, hello) {
            Ok(socket) => return Ok(socket),
            Err(error) => refused.push(format!("{address}: {error}")),
        }
    }
    Err(refused.join(", "))
}

fn knock(address: &SocketAddr, hello: &Hello) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect_timeout(address, REACH)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.write_all(bytemuck::bytes_of(hello))?;
    let mut answer = WELCOME.map(|_| 0);
    socket.read_exact(&mut answer)?;
    if answer == WELCOME { Ok(socket) } else { Err(std::io::Error::other("something else answers there")) }
}

/// A connection that has not said yet who it is.
struct Stranger {
    socket: TcpStream,
    said: [u8; size_of::<Hello>()],
    here: usize,
    since: Instant,
}

/// Accepts connections until each of these ranks has said its hello.
pub(super) fn accept(
    listeners: &[TcpListener],
    mut expected: Vec<(Rank, Hello)>,
) -> Vec<(Rank, std::result::Result<TcpStream, String>)> {
    let (began, mut strangers, mut known) = (Instant::now(), Vec::<Stranger>::new(), Vec::new());
    while !expected.is_empty() && began.elapsed() < CONNECT {
        wait(listeners, &strangers);
        let accepted = listeners.iter().flat_map(|listener| std::iter::from_fn(|| listener.accept().ok()));
        for (socket, _) in accepted.take(MOST_STRANGERS) {
            let is_fine = socket.set_nonblocking(true).is_ok();
            let stranger = Stranger { socket, said: [0; _], here: 0, since: Instant::now() };
            strangers.extend(is_fine.then_some(stranger));
        }
        let surplus = strangers.len().saturating_sub(MOST_STRANGERS);
        strangers.drain(..surplus);
        for mut stranger in std::mem::take(&mut strangers) {
            match stranger.hello() {
                Ok(None) if stranger.since.elapsed() < STRANGE => strangers.push(stranger),
                Ok(Some(hello)) => {
                    let place = expected.iter().position(|(_, expected)| *expected == hello);
                    if let Some(place) = place.filter(|_| stranger.socket.write_all(&WELCOME).is_ok()) {
                        known.push((expected.swap_remove(place).0, Ok(stranger.socket)));
                    }
                }
                _ => {}
            }
        }
    }
    let missing = |(rank, _)| (rank, Err(format!("it has waited {} s for it", CONNECT.as_secs())));
    known.into_iter().chain(expected.into_iter().map(missing)).collect()
}

impl Stranger {
    /// What it says, once it is whole.
    fn hello(&mut self) -> std::io::Result<Option<Hello>> {
        match self.socket.read(&mut self.said[self.here..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => {
                self.here += more;
                let is_whole = self.here == self.said.len();
                Ok(is_whole.then(|| bytemuck::pod_read_unaligned(&self.said)))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Sleeps until somebody connects or speaks, for a short time at most.
fn wait(listeners: &[TcpListener], strangers: &[Stranger]) {
    let doors = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
    let speakers = strangers.iter().map(|stranger| PollFd::new(&stranger.socket, PollFlags::IN));
    // If it fails, the rank looks again at once.
    let _ = rustix::event::poll(&mut doors.chain(speakers).collect::<Vec<_>>(), Some(&NAP));
}
