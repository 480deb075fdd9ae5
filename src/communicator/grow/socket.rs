//! Connections between rank 0 and processes that join: over a Unix socket, or over TCP from other machines.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::control::Claim;
use crate::error::{Error, Result};
use crate::transport::{
    Arrival, Arrivals, LONGEST, MAX_TIME, NAP, Peer, REACH, Rendezvous, bind, connected_at, first,
    is_displaced, listen, look_up,
};
use crate::while_waiting;

/// The claim of a process that joins. It has no rank yet.
const JOINS: Claim = Claim { from: 0, to: 0, tag: u64::from_be_bytes(*b"joinrank") };

/// Connects to rank 0 of a world, as soon as it listens at this address and needs this process. Returns the bootstrap of the grown world, and
/// whether its ranks are connected, even if they share memory.
///
/// # Errors
/// [`Error::Launch`] if no world grows there within the timeout, or it belongs to another user or job.
pub(crate) fn join(address: &Path, secret: &[u8], timeout: Duration) -> Result<(Rendezvous, bool)> {
    let began = Instant::now();
    let attempt = || -> io::Result<_> {
        let addresses = tcp(address, timeout).transpose()?;
        let local = addresses.is_none().then(|| connected_at(address));
        let peer = first(local, &addresses.unwrap_or_default(), JOINS, secret, timeout)?;
        let mut peer = peer.map_err(io::Error::other)?;
        let deadline = Instant::now() + timeout.min(MAX_TIME);
        let place = peer.receive(LONGEST, deadline, while_waiting::run)?;
        let other = |_| io::Error::other("rank 0 has another version of unisono");
        let (rank, ranks, connects) = serde_json::from_slice(&place).map_err(other)?;
        Ok((Rendezvous::over(vec![peer], (rank, ranks), timeout), connects))
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
    let port = name.rsplit_once(':')?.1;
    if port.parse::<u64>().ok()? > u16::MAX.into() {
        return Some(Err(io::Error::other(format!("port {port} is above {}", u16::MAX))));
    }
    // A name server may learn the name later.
    let unknown = |error: io::Error| io::Error::new(ErrorKind::NotFound, error);
    let resolved = look_up(name, Instant::now() + timeout.min(REACH));
    Some(resolved.map_err(io::Error::other).and_then(|addresses| addresses.map_err(unknown)))
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
        let addresses = tcp(address, REACH).transpose()?;
        let is_path = addresses.is_none();
        let listeners: Vec<OwnedFd> = match addresses {
            None => vec![bind(address)?.into()],
            Some(addresses) => {
                let listeners = listen(&address.to_string_lossy(), &addresses)?;
                let is_public =
                    |one: &TcpListener| one.local_addr().is_ok_and(|local| !local.ip().is_loopback());
                if secret.is_empty() && listeners.iter().any(is_public) {
                    return Err(io::Error::other(
                        "set UNISONO_SECRET, the same on all ranks and processes that join",
                    ));
                }
                listeners.into_iter().map(OwnedFd::from).collect()
            }
        };
        Ok(Self { arrivals: Arrivals::new(listeners, secret)?, address: address.to_owned(), is_path })
    }

    /// Waits for this many processes that have the secret and, at a path, belong to this user.
    pub(super) fn wait_for(&mut self, processes: usize, timeout: Duration) -> Result<Vec<Peer>> {
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
        Ok(joining)
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
    use std::net::TcpStream;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::control::{MOST_STRANGERS, framed};
    use crate::transport::Bootstrap as _;

    const SOON: Duration = Duration::from_secs(20);

    fn connected(address: &Path) -> OwnedFd {
        let tcp = || TcpStream::connect(address.to_str().unwrap()).unwrap().into();
        connected_at(address).unwrap_or_else(|_| tcp())
    }

    /// Joins as a rank of a world.
    fn place(address: &Path, secret: &[u8]) -> (usize, usize, bool) {
        let (ranks, connects) = join(address, secret, SOON).unwrap();
        (ranks.rank(), ranks.ranks(), connects)
    }

    fn welcome(joining: &mut [Peer]) {
        joining[0].queue(framed(b"[2, 3, true]"));
        joining[0].flush().unwrap();
    }

    #[test]
    fn port_that_cannot_exist_is_no_path() {
        let refused = join(Path::new("localhost:99999"), b"", SOON).unwrap_err().to_string();
        assert!(refused.contains("port 99999 is above 65535"), "{refused}");
    }

    #[test]
    fn strangers_are_refused_without_delaying_others() {
        let folder = tempfile::tempdir().unwrap();
        for address in [
            folder.path().join("world"),
            format!("127.0.0.1:{}", unisono_testing::launch::free_port()).into(),
        ] {
            let mut listener = JoinListener::at(&address, b"secret").unwrap();
            let silent: Vec<_> = (0..2 * MOST_STRANGERS).map(|_| connected(&address)).collect();
            if let Ok(mut garbage) = UnixStream::connect(&address) {
                garbage.write_all(&[7; 1000]).unwrap();
            }
            let began = Instant::now();
            std::thread::scope(|scope| {
                let wrong = scope.spawn(|| join(&address, b"another secret", SOON).unwrap_err());
                let right = scope.spawn(|| {
                    wrong.join().unwrap();
                    place(&address, b"secret")
                });
                welcome(&mut listener.wait_for(1, SOON).unwrap());
                assert_eq!(right.join().unwrap(), (2, 3, true));
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
            let joins = scope.spawn(|| place(&path, b""));
            // Rank 0 closes the connection without a message.
            drop(listener.wait_for(1, SOON).unwrap());
            welcome(&mut listener.wait_for(1, SOON).unwrap());
            assert_eq!(joins.join().unwrap(), (2, 3, true));
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
            let error = join(address, b"", SHORT).unwrap_err().to_string();
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
