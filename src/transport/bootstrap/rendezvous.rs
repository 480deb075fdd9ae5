//! A bootstrap of ranks that are connected with rank 0, over TCP or Unix sockets. Rank 0 gathers the values of the others, and sends all
//! values to each of them.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::arrivals::{Arrival, Arrivals, REACH, introduce, is_displaced};
use super::peer::{MAX_TIME, NAP, Peer, wait};
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
/// The first sleep between attempts to connect, which doubles.
const FIRST_NAP: Duration = Duration::from_micros(100);
/// The largest number of bytes of a rank in a round.
pub(crate) const LONGEST: usize = 1 << 20;

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
    /// Connects to rank 0, which may start later. An attempt returns the connection, a question about the likely causes if there is none
    /// yet, or the reason to end.
    pub(super) fn reach(
        joining: Joining<'_>,
        mut attempt: impl FnMut(Claim) -> Result<Result<Peer, String>>,
    ) -> Result<Self> {
        let Joining { world: (rank, ranks), timeout, reports, .. } = joining;
        let claim = Claim { from: rank, to: 0, tag: ranks as u64 };
        let (mut start, mut nap) = (Start::new(timeout), FIRST_NAP);
        loop {
            match attempt(claim)? {
                Ok(peer) => return Ok(Self { rank, ranks, timeout, peers: vec![peer] }),
                Err(question) => start.check(reports, |waited| {
                    not_begun(&format!("rank {rank} of {ranks}"), waited, "rank 0", &question)
                })?,
            }
            idle(rank)?;
            std::thread::sleep(nap);
            nap = NAP.min(2 * nap);
        }
    }

    /// Admits the other ranks. `question` names likely causes if some are missing, and `prepare` runs before each wait.
    ///
    /// # Errors
    /// If ranks are missing after the deadline, have ended, or disagree about the world. Admitted ranks receive the reason.
    pub(super) fn admit(
        arrivals: &mut Arrivals,
        joining: Joining<'_>,
        question: &str,
        prepare: impl FnMut(&mut Arrivals) -> Result<()>,
    ) -> Result<Self> {
        let Joining { world: (rank, ranks), timeout, .. } = joining;
        let mut admitted: Vec<Option<Peer>> = (0..ranks).map(|_| None).collect();
        let all = admit_all(arrivals, timeout, &mut admitted, question, prepare);
        let mut peers: Vec<_> = admitted.into_iter().flatten().collect();
        all.inspect_err(|problem| refuse(&mut peers, problem))?;
        Ok(Self { rank, ranks, timeout, peers })
    }

    /// Returns the bootstrap of ranks that are connected: rank 0 with others, the last of which are last in the world, or another one with rank 0.
    pub(crate) fn over(peers: Vec<Peer>, (rank, ranks): (Rank, usize), timeout: Duration) -> Self {
        Self { rank, ranks, timeout, peers }
    }

    /// On rank 0, returns the rank of the first connection.
    fn first_peer(&self) -> Rank {
        self.ranks - self.peers.len()
    }

    /// Gathers the values of this rank and of those that are connected with it.
    pub(crate) fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (began, first) = (Instant::now(), self.first_peer());
        let mut all = vec![None; self.peers.len()];
        loop {
            for ((rank, peer), one) in (first..).zip(&mut self.peers).zip(&mut all) {
                if one.is_none() {
                    *one = peer.poll(LONGEST).map_err(|error| lost(0, rank, &error))?;
                }
            }
            let missing: Vec<_> = (0..all.len()).filter(|&at| all[at].is_none()).collect();
            if missing.is_empty() {
                return Ok(std::iter::once(own.to_vec()).chain(all.into_iter().flatten()).collect());
            }
            if began.elapsed() > self.timeout {
                let ranks: Vec<_> = missing.iter().map(|at| first + at).collect();
                return Err(silent(&named(&ranks), self.timeout));
            }
            idle(0)?;
            wait(&[], missing.iter().map(|&at| &self.peers[at]));
        }
    }

    /// Sends the values of all ranks, or the reason why there are none, to the ranks that are connected.
    ///
    /// # Errors
    /// The ranks that do not read them. All others then receive the reason in the next round.
    pub(crate) fn answer(&mut self, all: &Result<Vec<Vec<u8>>>) -> Result<()> {
        let framed: Vec<_> = match all {
            Ok(all) => framed(b"").into_iter().chain(all.iter().flat_map(|one| framed(one))).collect(),
            Err(problem) => framed(&sent(problem)),
        };
        answer(self.first_peer(), &mut self.peers, &framed, ANSWER)
            .inspect_err(|problem| refuse(&mut self.peers, problem))
    }

    /// Sends this rank's value to rank 0, and returns the values of all ranks.
    fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        // Rank 0 may still wait for ranks to arrive, and then waits for their values, before it reports the missing ones.
        let limit = 2 * self.timeout.min(MAX_TIME) + ANSWER;
        let (deadline, peer) = (Instant::now() + limit, &mut self.peers[0]);
        peer.queue(framed(own));
        let mut receive = || -> Result<Vec<u8>> {
            loop {
                if let Some(message) = peer.poll(LONGEST).map_err(|error| lost(self.rank, 0, &error))? {
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
            return Err(received(self.rank, &problem));
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
        let all = self.gather(own);
        let sent = self.answer(&all);
        all.and_then(|all| sent.map(|()| all))
    }
}

/// Sends an error to these ranks. A rank that has ended does not receive it.
fn refuse(peers: &mut [Peer], problem: &Error) {
    // Only the error, which is ignored, names the ranks.
    let _ = answer(1, peers, &framed(&sent(problem)), ANSWER);
}

/// Returns the message of rank 0 for an error: the rank that failed, if one did, and the text.
fn sent(problem: &Error) -> Vec<u8> {
    let (failed, why) = match problem {
        Error::Aborted { by, cause, .. } => (Some(*by), cause.clone()),
        _ => (None, problem.to_string()),
    };
    serde_json::to_vec(&(failed, why)).expect("JSON can represent a number and a text")
}

/// Returns the error for such a message on this rank.
fn received(rank: Rank, message: &[u8]) -> Error {
    match serde_json::from_slice(message) {
        Ok((Some(by), cause)) => Error::Aborted { rank, by, cause },
        Ok((None, why)) => Error::Launch(why),
        Err(_) => Error::Launch(String::from_utf8_lossy(message).into_owned()),
    }
}

/// Sends an answer to the ranks from `first` on.
///
/// # Errors
/// The ranks that do not read it, after all others have received it.
fn answer(first: Rank, peers: &mut [Peer], framed: &[u8], within: Duration) -> Result<()> {
    let (framed, deadline) = (Arc::<[u8]>::from(framed), Instant::now() + within);
    peers.iter_mut().for_each(|peer| peer.queue(Arc::clone(&framed)));
    loop {
        // A rank that has ended is named in the next round.
        let is_blocked = |peer: &mut Peer| matches!(peer.flush(), Ok(false));
        let blocked: Vec<_> =
            (first..).zip(&mut *peers).filter_map(|(rank, peer)| is_blocked(peer).then_some(rank)).collect();
        if blocked.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let (ranks, seconds) = (named(&blocked), within.as_secs());
            return Err(Error::Launch(format!("{ranks} did not read for {seconds} s while the world began")));
        }
        wait(&[], blocked.iter().map(|&rank| &peers[rank - first]));
    }
}

/// Returns the error for ranks that have sent nothing.
fn silent(ranks: &str, waited: Duration) -> Error {
    Error::Launch(format!("{ranks} sent nothing for {} s while the world began", waited.as_secs()))
}

/// Returns the error of a rank whose connection with rank `by` has failed.
fn lost(rank: Rank, by: Rank, error: &io::Error) -> Error {
    let cause = if is_displaced(error) {
        "its process has ended before the world began".to_owned()
    } else {
        format!("its connection was lost before the world began: {error}")
    };
    Error::Aborted { rank, by, cause }
}

/// Introduces this rank to the first process that answers over the local connection, if any, or at these addresses. Returns the reason if it
/// refuses this rank.
pub(crate) fn first(
    local: Option<io::Result<OwnedFd>>,
    addresses: &[SocketAddr],
    claim: Claim,
    secret: &[u8],
    within: Duration,
) -> io::Result<Result<Peer, String>> {
    let mut error = io::Error::other("the name has no address");
    let reach = |at| TcpStream::connect_timeout(at, within.clamp(NAP, REACH)).map(OwnedFd::from);
    for connected in local.into_iter().chain(addresses.iter().map(reach)) {
        match connected.and_then(|socket| introduce(socket, secret, claim, within)) {
            Err(failed) => error = failed,
            answer => return answer,
        }
    }
    Err(error)
}

/// Admits the other ranks, until none is missing.
fn admit_all(
    arrivals: &mut Arrivals,
    timeout: Duration,
    admitted: &mut [Option<Peer>],
    question: &str,
    mut prepare: impl FnMut(&mut Arrivals) -> Result<()>,
) -> Result<()> {
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
            let question = format!("{question}{refused}");
            not_begun(&format!("rank 0 of {ranks}"), waited, &named(&missing), &question)
        })?;
        idle(0)?;
        prepare(arrivals)?;
        let mut problem = Ok(());
        let is_admitted = |rank: Rank| admitted[rank].is_some();
        let admit = |claim| check(claim, ranks, is_admitted).inspect_err(|why| problem = Err(why.clone()));
        let present: Vec<_> = admitted.iter().flatten().collect();
        for arrival in arrivals.advance(ranks, &present, admit) {
            match arrival {
                // Another connection with its number has been admitted at the same time.
                Arrival::Member(Claim { from: rank, .. }, peer) if admitted[rank].is_some() => {
                    problem = Err(twice(rank));
                    refuse(&mut [peer], &Error::Launch(twice(rank)));
                }
                Arrival::Member(Claim { from: rank, .. }, peer) => admitted[rank] = Some(peer),
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
                peer.flush().and(peer.fill(LONGEST)).map_err(|error| lost(0, rank, &error))?;
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
    format!(
        "there are two ranks {rank}: each needs a RANK of its own, and each job a MASTER_PORT or UNISONO_BOOTSTRAP_DIR"
    )
}
