//! A bootstrap over TCP, for ranks of several machines. Rank 0 listens at an address that all ranks know, gathers the values of the others,
//! and sends all values to each of them.
//!
//! Both sides prove that they know the secret of the job (`UNISONO_SECRET`). Without one, any program that implements the protocol is
//! admitted. Nothing is encrypted.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use unisono_collectives::Rank;

use super::arrivals::{Arrival, Arrivals, REACH, introduce, is_displaced};
use super::peer::{MAX_TIME, NAP, Peer, wait};
use super::resolver::{Resolved, look_up};
use super::{Bootstrap, Start, idle, not_begun};
use crate::control::{Claim, Hidden, framed};
use crate::error::{Error, Result};
use crate::record::named;
use crate::system::print_line;

#[cfg(test)]
mod tests;

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
    /// Returns the bootstrap of a world of one rank.
    #[cfg(not(feature = "mpi"))]
    pub(crate) fn alone() -> Self {
        Self { rank: 0, ranks: 1, timeout: Duration::ZERO, peers: Vec::new() }
    }

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
    Error::Launch(if is_displaced(error) {
        format!("rank {rank} has ended before the world began")
    } else {
        format!("rank {rank} is lost before the world began: {error}")
    })
}

/// Returns the addresses of `host:port`. It retries until the timeout if the name is unknown.
///
/// # Errors
/// The cause of the program's callback.
fn resolve(address: &str, rank: Rank, timeout: Duration) -> Result<Resolved> {
    let deadline = Instant::now() + timeout;
    loop {
        let resolved = look_up(address, deadline);
        match resolved.map_err(|cause| Error::Aborted { rank, by: rank, cause })? {
            Err(error) if error.kind() != ErrorKind::InvalidInput && Instant::now() < deadline => {}
            resolved => return Ok(resolved),
        }
        idle(rank)?;
        std::thread::sleep(10 * NAP);
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
    let (mut start, mut resolved_at) = (Start::new(timeout), Instant::now());
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
        start.check(reports, |waited| {
            let question =
                format!("it is not at {address} ({error}); was it started, and is MASTER_ADDR its machine?");
            not_begun(&format!("rank {rank} of {ranks}"), waited, "rank 0", &question)
        })?;
        idle(rank)?;
        std::thread::sleep(NAP);
        // A pod that starts again has another address.
        if resolved_at.elapsed() > RESOLVE_EVERY {
            resolved = resolve(address, rank, RESOLVE_EVERY)?.unwrap_or(resolved);
            resolved_at = Instant::now();
        }
    }
}

/// Admits the other ranks, and returns them in order.
///
/// # Errors
/// If ranks are missing after the deadline, have ended, or disagree about the world. Admitted ranks receive the reason.
fn admit(listeners: Vec<TcpListener>, joining: Joining<'_>) -> Result<Vec<Peer>> {
    let mut admitted: Vec<Option<Peer>> = (0..joining.world.1).map(|_| None).collect();
    let all = Arrivals::new(listeners, joining.secret.0)
        .map_err(|error| Error::Launch(format!("rank 0 cannot listen: {error}")))
        .and_then(|arrivals| admit_all(arrivals, joining.timeout, &mut admitted));
    let mut peers: Vec<_> = admitted.into_iter().flatten().collect();
    all.inspect_err(|problem| refuse(&mut peers, problem)).map(|()| peers)
}

/// Admits the other ranks, until none is missing.
fn admit_all(mut arrivals: Arrivals, timeout: Duration, admitted: &mut [Option<Peer>]) -> Result<()> {
    let (ranks, mut start) = (admitted.len(), Start::new(timeout));
    // The latest connection that does not know the secret.
    let mut stranger: Option<SocketAddr> = None;
    loop {
        let missing: Vec<_> = (1..ranks).filter(|&rank| admitted[rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        start.check(true, |waited| {
            let refused = stranger.map_or_else(String::new, |address| {
                format!("; it refused {address}, which has another UNISONO_SECRET")
            });
            let question = format!(
                "was each of the {ranks} processes started, with a RANK of its own, and the same MASTER_ADDR and MASTER_PORT?{refused}"
            );
            not_begun(&format!("rank 0 of {ranks}"), waited, &named(&missing), &question)
        })?;
        idle(0)?;
        let mut problem = Ok(());
        let is_admitted = |rank: Rank| admitted[rank].is_some();
        let admit = |claim| check(claim, ranks, is_admitted).inspect_err(|why| problem = Err(why.clone()));
        let present: Vec<_> = admitted.iter().flatten().collect();
        for arrival in arrivals.advance(ranks, &present, admit) {
            match arrival {
                Arrival::Member(Claim { from: rank, .. }, peer) => {
                    // Another connection with its number may have been admitted at the same time.
                    if admitted[rank].replace(peer).is_some() {
                        return Err(Error::Launch(twice(rank)));
                    }
                }
                Arrival::Stranger(Some(address)) => {
                    if stranger.replace(address).is_none() {
                        print_line(&format!(
                            "rank 0 refuses a connection from {address}, which has another UNISONO_SECRET"
                        ));
                    }
                }
                Arrival::Stranger(None) => {}
            }
        }
        problem.map_err(Error::Launch)?;
        for (rank, peer) in admitted.iter_mut().enumerate() {
            if let Some(peer) = peer {
                // The messages stay in the buffer until the first round.
                peer.flush().and(peer.fill(LONGEST)).map_err(|error| lost(rank, &error))?;
            }
        }
    }
}

/// Checks a claim by a process that knows the secret. The error is the reason to refuse it.
fn check(claim: Claim, ranks: usize, is_admitted: impl Fn(Rank) -> bool) -> Result<(), String> {
    let Claim { from: rank, tag: of, .. } = claim;
    if of != ranks as u64 {
        return Err(format!(
            "rank 0 is in a world of {ranks} ranks, but rank {rank} in one of {of}: WORLD_SIZE must be the same for all"
        ));
    }
    if rank == 0 || rank >= ranks || is_admitted(rank) { Err(twice(rank)) } else { Ok(()) }
}

fn twice(rank: Rank) -> String {
    format!("there are two ranks {rank}: each needs a RANK of its own")
}
