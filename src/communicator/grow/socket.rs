//! Connections between rank 0 and processes that join: over a Unix socket, or over TCP from other machines.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Claim, framed};
use crate::error::{Error, Result};
use crate::transport::{Arrival, Arrivals, MAX_TIME, NAP, Peer, REACH, introduce, is_displaced, look_up};
use crate::while_waiting;

const MOST_BYTES: usize = 64 << 20;
/// The claim of a process that joins. It has no rank yet.
const JOINS: Claim = Claim { from: 0, to: 0, tag: u64::from_be_bytes(*b"joinrank") };

#[derive(Debug)]
pub(super) struct Connection {
    peer: Peer,
    timeout: Duration,
}

impl Connection {
    /// Connects to rank 0, as soon as it listens at this address and needs this process. Returns its first message too.
    pub(super) fn to<T: DeserializeOwned>(
        address: &Path,
        secret: &[u8],
        timeout: Duration,
    ) -> Result<(Self, T)> {
        let began = Instant::now();
        let attempt = || -> io::Result<(Self, T)> {
            let peer = introduce(connected(address, timeout)?, secret, JOINS, timeout)?;
            let mut connection = Self { peer: peer.map_err(io::Error::other)?, timeout };
            let message = connection.receive()?;
            Ok((connection, message))
        };
        loop {
            match attempt() {
                Err(error) if began.elapsed() < timeout && is_early(&error) => {}
                ended => {
                    return ended.map_err(|cause| {
                        Error::Launch(format!("cannot join at {}: {cause}", address.display()))
                    });
                }
            }
            while_waiting::run().map_err(Error::Launch)?;
            std::thread::sleep(NAP);
        }
    }

    fn until<R>(&mut self, mut attempt: impl FnMut(&mut Peer) -> io::Result<Option<R>>) -> io::Result<R> {
        let deadline = Instant::now() + self.timeout.min(MAX_TIME);
        self.peer.until(deadline, |peer| {
            let result = attempt(peer)?;
            if result.is_none() {
                while_waiting::run().map_err(io::Error::other)?;
            }
            Ok(result)
        })
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let message = serde_json::to_vec(message).expect("JSON can represent every message");
        self.peer.queue(framed(&message));
        self.until(|peer| peer.flush().map(|is_sent| is_sent.then_some(())))
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let message = self.until(|peer| peer.poll(MOST_BYTES))?;
        serde_json::from_slice(&message)
            .map_err(|_| io::Error::other("the other side has another version of unisono"))
    }
}

/// Returns whether a later attempt may succeed: rank 0 or its machine does not answer yet, rank 0 has closed the connection because it has all
/// processes that it needs, or unauthenticated connections have displaced this one.
fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    ) || is_displaced(error)
}

/// Returns the TCP addresses of a `host:port`; `None` for a path.
fn tcp(address: &Path, timeout: Duration) -> Option<io::Result<Vec<SocketAddr>>> {
    let name = address.to_str().filter(|name| !name.contains('/'))?;
    name.rsplit_once(':')?.1.parse::<u16>().ok()?;
    // A name server may learn the name later.
    let unknown = |error: io::Error| io::Error::new(ErrorKind::NotFound, error);
    let resolved = look_up(name, Instant::now() + timeout.min(REACH));
    Some(resolved.map_err(io::Error::other).and_then(|addresses| addresses.map_err(unknown)))
}

fn connected(address: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let Some(addresses) = tcp(address, timeout) else { return connected_at(address) };
    let mut error = io::Error::other("the name has no address");
    for address in addresses? {
        match TcpStream::connect_timeout(&address, timeout.clamp(NAP, REACH)) {
            Ok(socket) => return Ok(socket.into()),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// Connects to a Unix socket, without waiting for room in its backlog.
fn connected_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
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
        let (listener, is_path): (OwnedFd, _) = match tcp(address, REACH) {
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
            while_waiting::run().map_err(Error::Launch)?;
        }
        Ok(joining.into_iter().map(|peer| Connection { peer, timeout }).collect())
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        // If no process listens, a killed process has left it behind.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

/// Returns whether a path is a socket at which no process listens.
fn is_left(path: &Path) -> bool {
    let is_socket = path.metadata().is_ok_and(|file| file.file_type().is_socket());
    is_socket && connected_at(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
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
    use std::os::unix::net::UnixStream;

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
            let silent: Vec<_> =
                (0..2 * MOST_STRANGERS).map(|_| connected(&address, SOON).unwrap()).collect();
            if let Ok(mut garbage) = UnixStream::connect(&address) {
                garbage.write_all(&[7; 1000]).unwrap();
            }
            let began = Instant::now();
            std::thread::scope(|scope| {
                let joins = |secret: &'static [u8]| Connection::to::<String>(&address, secret, SOON);
                let wrong = scope.spawn(move || joins(b"another secret").unwrap_err());
                let right = scope.spawn(move || {
                    wrong.join().unwrap();
                    joins(b"secret").unwrap().1
                });
                let mut admitted = listener.wait_for(1, SOON).unwrap();
                admitted[0].send(&"welcome").unwrap();
                assert_eq!(right.join().unwrap(), "welcome");
            });
            assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
            drop((silent, listener));
            assert!(!address.exists());
        }
    }

    #[test]
    fn surplus_process_joins_the_next_growth() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        let mut listener = JoinListener::at(&path, b"").unwrap();
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| Connection::to::<String>(&path, b"", SOON).unwrap().1);
            // Rank 0 closes the connection without a message.
            drop(listener.wait_for(1, SOON).unwrap());
            listener.wait_for(1, SOON).unwrap()[0].send(&"welcome").unwrap();
            assert_eq!(joins.join().unwrap(), "welcome");
        });
    }

    #[test]
    fn process_waits_for_a_name_and_a_backlog_until_its_timeout() {
        const SHORT: Duration = Duration::from_millis(300);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("world");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting: Vec<_> = std::iter::from_fn(|| connected_at(&path).ok()).collect();
        for address in [path.as_path(), Path::new("a name without an address:1")] {
            let began = Instant::now();
            let error = Connection::to::<String>(address, b"", SHORT).unwrap_err().to_string();
            assert!(error.starts_with("cannot join at ") && began.elapsed() >= SHORT, "{error}");
        }
        let error = JoinListener::at(&path, b"").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "another process listens");
    }

    #[test]
    fn file_of_the_program_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        fs::write(&path, "7").unwrap();
        assert_eq!(JoinListener::at(&path, b"").unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"7");
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
