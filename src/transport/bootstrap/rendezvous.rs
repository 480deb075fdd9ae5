//! A bootstrap over TCP, for ranks of several machines. Rank 0 listens at an address that all ranks know, gathers the values of the others,
//! and sends all values to each of them.
//!
//! Both sides prove that they know the secret of the job (`UNISONO_SECRET`). Without one, any program that implements the protocol is
//! admitted. Nothing is encrypted.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use unisono_collectives::Rank;

use super::Bootstrap;
use super::arrivals::{REACH, introduce};
use super::peer::{MAX_TIME, NAP, Peer, wait};
use crate::control::{Claim, Hidden, framed};
use crate::error::{Error, Result};
use crate::record::named;
use crate::system::print_line;
use crate::while_waiting;

mod admission;
#[cfg(test)]
mod tests;

use admission::admit;

/// The time after which a rank reports which ranks it waits for.
const WARN_AFTER: Duration = Duration::from_secs(10);
/// The longest time in which the others must read an answer. They wait for an answer this much longer than rank 0 waits for all ranks, so
/// that rank 0 can report the missing ones.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest wait for a name server to learn the name of rank 0's machine, which may have started just before.
const NAME_TIME: Duration = Duration::from_secs(30);
/// The interval at which a rank that does not reach rank 0 resolves its name again, and the longest time that this takes.
const RESOLVE_EVERY: Duration = Duration::from_secs(2);
/// The number of connections that may wait to be accepted, as in the standard library.
const BACKLOG: i32 = 128;
/// The largest number of bytes of a rank in a round.
const LONGEST: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Rendezvous {
    rank: Rank,
    ranks: usize,
    timeout: Duration,
    /// On rank 0: the other ranks, in order. On another rank: rank 0.
    peers: Vec<Peer>,
}

/// The settings with which this rank joins a rendezvous.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joining<'a> {
    /// This rank, and the number of ranks.
    pub(crate) world: (Rank, usize),
    /// The time that the rank waits for the others.
    pub(crate) timeout: Duration,
    /// The secret of the job; empty if there is none.
    pub(crate) secret: Hidden<&'a [u8]>,
    /// Whether the rank reports that it waits for rank 0.
    pub(crate) reports: bool,
}

impl Rendezvous {
    /// Connects the ranks through this address (`host:port`) of rank 0's machine.
    ///
    /// # Errors
    /// [`Error::Launch`] if the address is not usable, or ranks do not arrive, end or disagree.
    pub(crate) fn new(address: &str, joining: Joining<'_>) -> Result<Self> {
        let cannot = |error| {
            Error::Launch(format!(
                "ranks cannot meet at {address} (MASTER_ADDR, and the port after MASTER_PORT): {error}"
            ))
        };
        let joining = Joining { timeout: joining.timeout.min(MAX_TIME), ..joining };
        let Joining { world: (rank, ranks), timeout, .. } = joining;
        let resolved = resolve(address, rank, timeout.min(NAME_TIME))?.map_err(cannot)?;
        let peers = if rank == 0 {
            admit(listen(address, &resolved).map_err(cannot)?, joining)?
        } else {
            vec![reach(address, resolved, joining)?]
        };
        Ok(Self { rank, ranks, timeout, peers })
    }

    /// Gathers the values of the other ranks.
    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (began, mut all) = (Instant::now(), vec![None; self.ranks]);
        all[0] = Some(own.to_vec());
        loop {
            for (rank, peer) in (1..).zip(&mut self.peers) {
                if all[rank].is_none() {
                    all[rank] = peer.poll(LONGEST).map_err(|error| lost(rank, &error))?;
                }
            }
            let missing: Vec<_> = (0..self.ranks).filter(|&rank| all[rank].is_none()).collect();
            if missing.is_empty() {
                return Ok(all.into_iter().flatten().collect());
            }
            if began.elapsed() > self.timeout {
                return Err(silent(&named(&missing), self.timeout));
            }
            idle(0)?;
            wait(&[], missing.iter().map(|&rank| &self.peers[rank - 1]));
        }
    }

    /// Sends this rank's value to rank 0, and returns the values of all ranks.
    fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        // Rank 0 may still wait for ranks to arrive, and then waits for their values, before it reports the missing ones.
        let limit = 2 * self.timeout + ANSWER;
        let (deadline, peer) = (Instant::now() + limit, &mut self.peers[0]);
        peer.queue(framed(own));
        let mut receive = || -> Result<Vec<u8>> {
            loop {
                if let Some(message) = peer.poll(LONGEST).map_err(|error| lost(0, &error))? {
                    return Ok(message);
                }
                if Instant::now() >= deadline {
                    return Err(silent("rank 0", limit));
                }
                idle(self.rank)?;
                wait(&[], std::iter::once(&*peer));
            }
        };
        let problem = receive()?;
        if !problem.is_empty() {
            return Err(Error::Launch(String::from_utf8_lossy(&problem).into_owned()));
        }
        (0..self.ranks).map(|_| receive()).collect()
    }
}

impl Bootstrap for Rendezvous {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.rank != 0 {
            return self.exchange(own);
        }
        let all = self.gather(own).and_then(|all| {
            let values = all.iter().flat_map(|one| framed(one));
            let framed: Vec<_> = framed(b"").into_iter().chain(values).collect();
            answer(&mut self.peers, &framed, ANSWER)?;
            Ok(all)
        });
        all.inspect_err(|problem| refuse(&mut self.peers, problem))
    }
}

/// Runs the program's callback for waits, if it has one.
fn idle(rank: Rank) -> Result<()> {
    while_waiting::run().map_err(|cause| Error::Aborted { rank, by: rank, cause })
}

/// Sends an error to all other ranks. A rank that has ended does not receive it.
fn refuse(peers: &mut [Peer], problem: &Error) {
    let _ = answer(peers, &framed(problem.to_string().as_bytes()), ANSWER);
}

/// Sends an answer to all other ranks.
///
/// # Errors
/// The ranks that do not read it, after all others have received it.
fn answer(peers: &mut [Peer], framed: &[u8], within: Duration) -> Result<()> {
    let (framed, deadline) = (Arc::<[u8]>::from(framed), Instant::now() + within);
    peers.iter_mut().for_each(|peer| peer.queue(Arc::clone(&framed)));
    loop {
        // A rank that has ended is named in the next round.
        let is_blocked = |peer: &mut Peer| matches!(peer.flush(), Ok(false));
        let blocked: Vec<_> =
            (1..).zip(&mut *peers).filter_map(|(rank, peer)| is_blocked(peer).then_some(rank)).collect();
        if blocked.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let (ranks, seconds) = (named(&blocked), within.as_secs());
            return Err(Error::Launch(format!("{ranks} did not read for {seconds} s while the world began")));
        }
        wait(&[], blocked.iter().map(|&rank| &peers[rank - 1]));
    }
}

/// Returns the error for ranks that have sent nothing.
fn silent(ranks: &str, waited: Duration) -> Error {
    Error::Launch(format!("{ranks} sent nothing for {} s while the world began", waited.as_secs()))
}

/// Returns the error for a rank whose connection has failed.
fn lost(rank: Rank, error: &io::Error) -> Error {
    Error::Launch(match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!("rank {rank} has ended before the world began")
        }
        _ => format!("rank {rank} is lost before the world began: {error}"),
    })
}

/// The addresses of a name, or the reason why it has none.
type Resolved = io::Result<Vec<SocketAddr>>;

/// Returns the addresses of `host:port`. It retries until the timeout if the name is unknown.
///
/// # Errors
/// The cause of the program's callback.
fn resolve(address: &str, rank: Rank, timeout: Duration) -> Result<Resolved> {
    let deadline = Instant::now() + timeout;
    loop {
        match answered(&look_up(address), rank, deadline)? {
            Err(error) if error.kind() != ErrorKind::InvalidInput && Instant::now() < deadline => {}
            resolved => return Ok(resolved),
        }
        idle(rank)?;
        std::thread::sleep(10 * NAP);
    }
}

/// Starts to resolve `host:port` by the system's resolver, which has no deadline, on a thread if the system provides one.
fn look_up(address: &str) -> Receiver<Resolved> {
    fn resolved(address: &str) -> Resolved {
        address.to_socket_addrs().map(Iterator::collect)
    }
    let (answers, answer) = channel();
    let (of_thread, name) = (answers.clone(), address.to_owned());
    let thread = Builder::new().name("resolver".into()).spawn(move || drop(of_thread.send(resolved(&name))));
    if thread.is_err() {
        drop(answers.send(resolved(address)));
    }
    answer
}

/// Waits for the answer of the resolver until the deadline.
///
/// # Errors
/// The cause of the program's callback.
fn answered(answer: &Receiver<Resolved>, rank: Rank, deadline: Instant) -> Result<Resolved> {
    loop {
        match answer.recv_timeout(NAP) {
            Ok(resolved) => return Ok(resolved),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => idle(rank)?,
            Err(_) => {
                return Ok(Err(io::Error::new(ErrorKind::TimedOut, "the name server does not answer")));
            }
        }
    }
}

/// Listens at all of these addresses that belong to this machine, since other machines may reach only one of them. It listens at their port
/// on any address if none does, as behind a gateway, or if a name has only loopback addresses: many systems give their own name such an
/// address, and other machines its real one.
fn listen(address: &str, resolved: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let is_name = address.parse::<SocketAddr>().is_err() && !address.starts_with("localhost:");
    let (mut listeners, mut failed) = (Vec::new(), None);
    if !is_name || resolved.iter().any(|at| !at.ip().is_loopback()) {
        for bound in resolved.iter().map(TcpListener::bind) {
            match bound {
                Ok(listener) => listeners.push(listener),
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
                Err(error) => failed = Some(error),
            }
        }
    }
    match failed {
        _ if !listeners.is_empty() => Ok(listeners),
        Some(error) => Err(error),
        None => Ok(vec![listen_anywhere(resolved.first().map_or(0, SocketAddr::port))?]),
    }
}

/// Listens at a port on any address, of IPv6 and IPv4.
fn listen_anywhere(port: u16) -> io::Result<TcpListener> {
    let on_both = || -> io::Result<TcpListener> {
        let (family, flags) = (AddressFamily::INET6, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        // `net.ipv6.bindv6only` may have excluded IPv4.
        sockopt::set_ipv6_v6only(&socket, false)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    // A system may have no IPv6.
    on_both().or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

/// Connects to rank 0, which may start later, until it admits or refuses this rank.
fn reach(address: &str, mut resolved: Vec<SocketAddr>, joining: Joining<'_>) -> Result<Peer> {
    let Joining { world: (rank, ranks), timeout, reports, .. } = joining;
    let (began, mut resolved_at, mut reported) = (Instant::now(), Instant::now(), !reports);
    loop {
        let mut error = io::Error::other("the name has no address");
        for at in &resolved {
            let claim = Claim { from: rank, to: 0, tag: ranks as u64 };
            let connected = TcpStream::connect_timeout(at, REACH.min(timeout));
            match connected.and_then(|socket| introduce(socket, joining.secret.0, claim, timeout)) {
                Ok(answer) => return answer.map_err(Error::Launch),
                Err(failed) => error = failed,
            }
        }
        let waited = began.elapsed();
        let message = format!(
            "rank {rank} of {ranks} has waited {} s for rank 0 at {address}: {error}; was it started, and is MASTER_ADDR its machine?",
            waited.as_secs()
        );
        if waited > timeout {
            return Err(Error::Launch(message));
        }
        if waited > WARN_AFTER && !std::mem::replace(&mut reported, true) {
            print_line(&message);
        }
        idle(rank)?;
        std::thread::sleep(NAP);
        // A pod that starts again has another address.
        if resolved_at.elapsed() > RESOLVE_EVERY {
            resolved = resolve(address, rank, RESOLVE_EVERY)?.unwrap_or(resolved);
            resolved_at = Instant::now();
        }
    }
}
