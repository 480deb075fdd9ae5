//! Connects ranks: each listens, publishes its addresses, and connects to the ranks before it.
//!
//! Only a process that knows the secret of the world is admitted, and no process after all ranks have connected.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::{Stream, Tcp};
use crate::config::Interfaces;
use crate::control::Claim;
use crate::system;
use crate::transport::bootstrap::{
    Arrival, Arrivals, Bootstrap, Peer, gather_results, introduce, is_displaced,
};
use crate::transport::link::{Connected, Link};

/// The longest time that the system may take to reach an address.
const REACH: Duration = Duration::from_secs(3);
/// The attempts of a rank that strangers displace.
const ATTEMPTS: usize = 3;
/// The time in which all ranks connect. They begin together, once all have a port.
const CONNECT: Duration = Duration::from_secs(10);
/// The number of ranks to which a rank connects at the same time, since an unreachable address takes [`REACH`].
const AT_ONCE: usize = 16;
/// The tag of claims of these connections.
pub(super) const TAG: u64 = u64::from_be_bytes(*b"messages");

/// Connects this rank with all ranks that are `far`. All ranks of the world call it.
pub(in crate::transport) fn link(
    bootstrap: &mut dyn Bootstrap,
    far: impl Fn(Rank) -> bool,
    interfaces: &Interfaces,
) -> Connected<Box<dyn Link>> {
    let ranks = bootstrap.ranks();
    let sockets = sockets(bootstrap, far, interfaces)?;
    let tcp = |sockets: Vec<(Rank, OwnedFd)>| {
        let mut streams: Vec<_> = (0..ranks).map(|_| None).collect();
        for (rank, socket) in sockets {
            streams[rank] = Some(Stream::new(TcpStream::from(socket)));
        }
        Box::new(Tcp { streams }) as Box<dyn Link>
    };
    Ok(sockets.map(tcp))
}

/// Returns a connection with every rank that is `far`. All ranks of the world call it.
pub(in crate::transport) fn sockets(
    bootstrap: &mut dyn Bootstrap,
    far: impl Fn(Rank) -> bool,
    interfaces: &Interfaces,
) -> Connected<Vec<(Rank, OwnedFd)>> {
    let (own, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let (listeners, addresses) = match interfaces.listen() {
        Ok((listeners, addresses)) => (listeners, Ok((system::nonce(), addresses))),
        Err(error) => (Vec::new(), Err(format!("rank {own} cannot listen for others: {error}"))),
    };
    let ports = match gather_results(bootstrap, &addresses)? {
        Ok(ports) => ports,
        Err(problem) => return Ok(Err(problem)),
    };
    // Rank 0's secret is that of all connections.
    let secret = bytemuck::bytes_of(&ports[0].0);
    let far: Vec<_> = (0..ranks).filter(|&rank| rank != own && far(rank)).collect();
    let (before, after): (Vec<_>, Vec<_>) = far.into_iter().partition(|&rank| rank < own);
    let (deadline, next) = (Instant::now() + CONNECT, AtomicUsize::new(0));
    let reach_next = || {
        let mut reached = Vec::new();
        while let Some(&to) = before.get(next.fetch_add(1, Ordering::Relaxed)) {
            let socket = reach(&ports[to].1, secret, Claim { from: own, to, tag: TAG }, deadline);
            if socket.is_err() {
                // Another failure may take as long to detect.
                next.store(before.len(), Ordering::Relaxed);
            }
            reached.push((to, socket));
        }
        reached
    };
    let all = std::thread::scope(|scope| {
        let threads = 0..before.len().min(AT_ONCE);
        let threads: Vec<_> =
            threads.map_while(|_| Builder::new().spawn_scoped(scope, reach_next).ok()).collect();
        let is_over = || Instant::now() >= deadline || bootstrap.has_failed();
        let mut all = accept(listeners, secret, own, after, is_over);
        // This thread connects to the ranks for which the system allows no other thread.
        all.extend(reach_next());
        for thread in threads {
            all.extend(thread.join().expect("a connecting thread does not panic"));
        }
        all
    });
    let mut sockets = Vec::new();
    let mut connects = Ok(());
    for (rank, connected) in all {
        match connected.and_then(|peer| peer.into_socket().map_err(|error| error.to_string())) {
            // Not `TCP_USER_TIMEOUT`: it would also end the connection with a rank that computes for long and does not receive. The watchdog detects
            // a cut link.
            Ok(socket) => sockets.push((rank, socket)),
            Err(error) => connects = Err(format!("rank {own} and rank {rank} cannot connect: {error}")),
        }
    }
    Ok(gather_results(bootstrap, &connects)?.map(|_| sockets))
}

/// Connects to a rank, at the first of its addresses that answers, before the deadline.
fn reach(addresses: &[SocketAddr], secret: &[u8], claim: Claim, deadline: Instant) -> Result<Peer, String> {
    let mut addresses = addresses.to_vec();
    system::sort_by_nearness(&mut addresses);
    let mut refused = Vec::new();
    for address in addresses {
        let attempt = || {
            let left = deadline.checked_duration_since(Instant::now()).ok_or(ErrorKind::TimedOut)?;
            let socket = TcpStream::connect_timeout(&address, left.min(REACH))?;
            introduce(socket, secret, claim, left)
        };
        let is_final = |answer: &io::Result<_>| !answer.as_ref().is_err_and(is_displaced);
        let answer = std::iter::repeat_with(attempt).take(ATTEMPTS - 1).find(is_final);
        match answer.unwrap_or_else(attempt) {
            Ok(Ok(peer)) => return Ok(peer),
            Ok(Err(why)) => refused.push(format!("{address}: {why}")),
            Err(error) => refused.push(format!("{address}: {error}")),
        }
    }
    Err(refused.join(", "))
}

/// Accepts connections until each of these ranks has connected, or `is_over`.
pub(super) fn accept(
    listeners: Vec<TcpListener>,
    secret: &[u8],
    own: Rank,
    mut expected: Vec<Rank>,
    is_over: impl Fn() -> bool,
) -> Vec<(Rank, Result<Peer, String>)> {
    let (began, mut connected) = (Instant::now(), Vec::new());
    let mut arrivals = match Arrivals::new(listeners, secret) {
        Ok(arrivals) => arrivals,
        Err(error) => return expected.into_iter().map(|rank| (rank, Err(error.to_string()))).collect(),
    };
    while !expected.is_empty() && !is_over() {
        // The address of another rank may lead here, since machines may have equal addresses in separate networks.
        let admit = |claim: Claim| match expected.contains(&claim.from) && claim.to == own && claim.tag == TAG
        {
            true => Ok(()),
            false => Err("it is not expected".to_owned()),
        };
        for arrival in arrivals.advance(expected.len(), &[], admit) {
            let Arrival::Member(Claim { from, .. }, peer) = arrival else { continue };
            if let Some(place) = expected.iter().position(|&rank| rank == from) {
                connected.push((expected.swap_remove(place), Ok(peer)));
            }
        }
    }
    let failure = arrivals.failure.map(|why| format!("; it cannot accept connections: {why}"));
    let why = format!("it has waited {} s for it{}", began.elapsed().as_secs(), failure.unwrap_or_default());
    let missing = |rank| (rank, Err(why.clone()));
    connected.into_iter().chain(expected.into_iter().map(missing)).collect()
}
