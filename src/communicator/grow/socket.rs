//! Connections between rank 0 and processes that join: over a Unix socket, or over TCP from other machines.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Claim, framed};
use crate::error::{Error, Result};
use crate::transport::{Arrival, Arrivals, MAX_TIME, NAP, Peer, REACH, introduce, is_displaced};

/// The most bytes of a message.
const MOST_BYTES: usize = 64 << 20;
/// The claim of a process that joins. It has no rank yet.
const JOINS: Claim = Claim { from: 0, to: 0, tag: u64::from_be_bytes(*b"joinrank") };

/// A connection between rank 0 and a process that joins.
#[derive(Debug)]
pub(super) struct Connection {
    peer: Peer,
    timeout: Duration,
}

impl Connection {
    /// Connects to rank 0, as soon as it listens at this address.
    pub(super) fn to(address: &Path, secret: &[u8], timeout: Duration) -> Result<Self> {
        let began = Instant::now();
        let failed = |cause: String| Error::Launch(format!("cannot join at {}: {cause}", address.display()));
        loop {
            match connected(address).and_then(|socket| introduce(socket, secret, JOINS, timeout)) {
                Ok(peer) => return peer.map(|peer| Self { peer, timeout }).map_err(failed),
                Err(error) if began.elapsed() < timeout && is_early(&error) => {}
                Err(error) => return Err(failed(error.to_string())),
            }
            idle()?;
            std::thread::sleep(NAP);
        }
    }

    fn until<R>(&mut self, mut attempt: impl FnMut(&mut Peer) -> io::Result<Option<R>>) -> io::Result<R> {
        let deadline = Instant::now() + self.timeout.min(MAX_TIME);
        self.peer.until(deadline, |peer| {
            let result = attempt(peer)?;
            if result.is_none() {
                idle().map_err(io::Error::other)?;
            }
            Ok(result)
        })
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let message = serde_json::to_vec(message).expect("JSON can represent every message");
        self.peer.queue(framed(&message));
        self.until(|peer| peer.flush().map(|is_sent| is_sent.then_some(())))
    }

    /// Receives a message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let message = self.until(|peer| peer.poll(MOST_BYTES))?;
        serde_json::from_slice(&message)
            .map_err(|_| io::Error::other("the other side has another version of unisono"))
    }
}

/// Returns whether a later attempt may succeed: rank 0 does not listen yet, or unauthenticated connections have displaced this one.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) || is_displaced(error)
}

/// Returns the TCP addresses of a `host:port`; `None` for a path.
fn tcp(address: &Path) -> Option<io::Result<Vec<SocketAddr>>> {
    let name = address.to_str().filter(|name| !name.contains('/'))?;
    name.rsplit_once(':')?.1.parse::<u16>().ok()?;
    Some(name.to_socket_addrs().map(Iterator::collect))
}

fn connected(address: &Path) -> io::Result<OwnedFd> {
    let Some(addresses) = tcp(address) else { return UnixStream::connect(address).map(OwnedFd::from) };
    let mut error = io::Error::other("the name has no address");
    for address in addresses? {
        match TcpStream::connect_timeout(&address, REACH) {
            Ok(socket) => return Ok(socket.into()),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// Runs the program's callback for waits, if it has one.
fn idle() -> Result<()> {
    crate::while_waiting::run().map_err(Error::Launch)
}

/// Listens at an address. A path is removed when this is dropped.
#[derive(Debug)]
pub(super) struct JoinListener {
    arrivals: Arrivals,
    address: PathBuf,
    is_path: bool,
}

impl JoinListener {
    pub(super) fn at(address: &Path, secret: &[u8]) -> io::Result<Self> {
        let (listener, is_path): (OwnedFd, _) = match tcp(address) {
            Some(addresses) => {
                let listener = TcpListener::bind(&addresses?[..])?;
                if secret.is_empty() && !listener.local_addr()?.ip().is_loopback() {
                    return Err(io::Error::other(
                        "set UNISONO_SECRET, the same on all ranks and processes that join",
                    ));
                }
                (listener.into(), false)
            }
            None => (bind(address)?.into(), true),
        };
        Ok(Self { arrivals: Arrivals::new([listener], secret)?, address: address.to_owned(), is_path })
    }

    /// Waits for this many processes that have the secret and, at a path, belong to this user.
    pub(super) fn wait_for(&mut self, processes: usize, timeout: Duration) -> Result<Vec<Connection>> {
        let began = Instant::now();
        let mut joining = Vec::<Peer>::new();
        let admit = |claim| if claim == JOINS { Ok(()) } else { Err("it does not join a world".to_owned()) };
        while joining.len() < processes {
            let here: Vec<_> = joining.iter().collect();
            let arrivals = self.arrivals.advance(processes, &here, admit);
            // A process that joins sends nothing before it has received its rank.
            joining.retain_mut(|peer| matches!(peer.poll(0), Ok(None)));
            let arrived = arrivals.into_iter().filter_map(|arrival| match arrival {
                Arrival::Member(_, peer) => Some(peer),
                Arrival::Stranger(_) => None,
            });
            let lacking = processes - joining.len();
            joining.extend(arrived.take(lacking));
            if joining.len() < processes && began.elapsed() > timeout {
                return Err(Error::Launch(format!(
                    "{} of {processes} processes have joined at {} within {timeout:?}",
                    joining.len(),
                    self.address.display()
                )));
            }
            idle()?;
        }
        Ok(joining.into_iter().map(|peer| Connection { peer, timeout }).collect())
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        // If no process listens, a killed process has left it behind.
        Err(error) if error.kind() == ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl Drop for JoinListener {
    fn drop(&mut self) {
        if self.is_path {
            let _ = fs::remove_file(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::control::MOST_STRANGERS;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn strangers_are_refused_without_delaying_others() {
        let folder = tempfile::tempdir().unwrap();
        for address in [
            folder.path().join("world"),
            format!("127.0.0.1:{}", unisono_testing::launch::free_port()).into(),
        ] {
            let mut listener = JoinListener::at(&address, b"secret").unwrap();
            let silent: Vec<_> = (0..2 * MOST_STRANGERS).map(|_| connected(&address).unwrap()).collect();
            if let Ok(mut garbage) = UnixStream::connect(&address) {
                garbage.write_all(&[7; 1000]).unwrap();
            }
            let began = Instant::now();
            std::thread::scope(|scope| {
                let wrong = scope.spawn(|| Connection::to(&address, b"another secret", SOON).unwrap_err());
                let joins = scope.spawn(|| {
                    wrong.join().unwrap();
                    Connection::to(&address, b"secret", SOON).unwrap().receive::<String>()
                });
                let mut admitted = listener.wait_for(1, SOON).unwrap();
                admitted[0].send(&"welcome").unwrap();
                assert_eq!(joins.join().unwrap().unwrap(), "welcome");
            });
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
            drop((silent, listener));
            assert!(!address.exists());
        }
    }

    #[test]
    fn public_port_needs_a_secret() {
        let address = format!("0.0.0.0:{}", unisono_testing::launch::free_port());
        let error = JoinListener::at(Path::new(&address), b"").unwrap_err();
        assert!(error.to_string().contains("set UNISONO_SECRET"), "{error}");
        assert!(JoinListener::at(Path::new(&address), b"secret").is_ok());
    }

    #[test]
    fn stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        drop(UnixListener::bind(&path).unwrap());
        let mut listener = JoinListener::at(&path, b"").unwrap();
        assert!(JoinListener::at(&path, b"").is_err(), "another process listens");
        let error = listener.wait_for(2, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().starts_with("0 of 2 processes have joined at "), "{error}");
    }
}
