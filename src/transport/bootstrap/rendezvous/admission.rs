//! Rank 0's side of the rendezvous until all ranks are there: challenges, admits and refuses those that connect.

#[expect(
    deprecated,
    reason = "the standard library's only keyed hash with a fixed key: SipHash 2-4, a message authentication code"
)]
use std::hash::SipHasher;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use unisono_collectives::Rank;
use xxhash_rust::xxh3::xxh3_128;

use super::peer::{Peer, wait};
use super::{ANSWER, Joining, LONGEST, WARN_AFTER, answer, lost, named};
use crate::system::say;

/// How long a connection may take to identify itself.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections that have not, besides one of each rank: beyond it, the oldest are closed.
const MOST_GUESTS: usize = 256;
const MAGIC: u64 = u64::from_be_bytes(*b"unisono2");

/// What rank 0 sends to every connection.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Challenge {
    magic: u64,
    random: [u64; 2],
}

pub(super) const CHALLENGE_BYTES: usize = size_of::<Challenge>();

/// The answer of a rank that knows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Hello {
    magic: u64,
    rank: u64,
    ranks: u64,
    proof: [u64; 2],
}

impl Hello {
    fn new(challenge: &Challenge, secret: &[u8], rank: u64, ranks: u64) -> Self {
        let key = xxh3_128(secret);
        let digest = |half: u64| {
            #[expect(deprecated, reason = "as above")]
            let mut hasher = SipHasher::new_with_keys(key as u64, (key >> 64) as u64);
            let words = [challenge.random[0], challenge.random[1], rank, ranks, half];
            words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
            hasher.finish().to_le()
        };
        Self { magic: MAGIC.to_le(), rank: rank.to_le(), ranks: ranks.to_le(), proof: [digest(0), digest(1)] }
    }
}

/// This rank's answer to a challenge; `None` if it is not one.
pub(super) fn hello(challenge: &[u8], secret: &[u8], (rank, ranks): (Rank, usize)) -> Option<Vec<u8>> {
    let challenge: Challenge = bytemuck::try_pod_read_unaligned(challenge).ok()?;
    let hello = Hello::new(&challenge, secret, rank as u64, ranks as u64);
    (challenge.magic == MAGIC.to_le()).then(|| bytemuck::bytes_of(&hello).to_vec())
}

/// A connection that has not identified itself yet.
struct Guest {
    peer: Peer,
    address: SocketAddr,
    since: Instant,
    challenge: Challenge,
}

/// A rank's claim, or why it cannot be admitted.
enum Claim {
    Rank(Rank, usize),
    /// It does not know the secret.
    Stranger,
}

impl Guest {
    fn new((socket, address): (TcpStream, SocketAddr)) -> io::Result<Self> {
        let random = || RandomState::new().hash_one(address);
        let challenge = Challenge { magic: MAGIC.to_le(), random: [random(), random()] };
        let mut peer = Peer::new(socket)?;
        peer.queue(Peer::framed(bytemuck::bytes_of(&challenge)));
        Ok(Self { peer, address, since: Instant::now(), challenge })
    }

    /// The claim, once it has arrived.
    fn claim(&mut self, secret: &[u8]) -> io::Result<Option<Claim>> {
        let Some(hello) = self.peer.poll(size_of::<Hello>())? else { return Ok(None) };
        let hello: Hello = bytemuck::try_pod_read_unaligned(&hello)
            .map_err(|_| io::Error::other("another program connects"))?;
        let (rank, ranks) = (u64::from_le(hello.rank), u64::from_le(hello.ranks));
        Ok(Some(if hello == Hello::new(&self.challenge, secret, rank, ranks) {
            Claim::Rank(rank as Rank, ranks as usize)
        } else {
            Claim::Stranger
        }))
    }

    /// Sends the reason why it is not admitted.
    fn refuse(mut self, why: &str) {
        self.peer.queue(Peer::framed(why.as_bytes()));
        // An empty socket takes it at once.
        let _ = self.peer.flush();
    }
}

/// Admits the other ranks, and returns them in order.
///
/// # Errors
/// If ranks are missing after the deadline, have ended, or disagree about the world. Ranks that are there get the reason.
pub(super) fn admit(listener: &TcpListener, joining: Joining<'_>) -> Result<Vec<Peer>, String> {
    let mut admission = Admission::new(joining);
    let admitted = listener
        .set_nonblocking(true)
        .map_err(|error| format!("rank 0 cannot listen: {error}"))
        .and_then(|()| {
            while !admission.missing().is_empty() {
                admission.advance(listener)?;
            }
            Ok(())
        });
    let mut peers: Vec<_> = admission.admitted.into_iter().flatten().collect();
    // The last welcome may still be queued; the answer of the first round follows it.
    match admitted {
        Ok(()) => Ok(peers),
        Err(problem) => {
            let _ = answer(&mut peers, &Peer::framed(problem.as_bytes()), ANSWER);
            Err(problem)
        }
    }
}

/// The ranks that are there so far.
struct Admission<'a> {
    joining: Joining<'a>,
    began: Instant,
    reported: bool,
    guests: Vec<Guest>,
    admitted: Vec<Option<Peer>>,
    /// The latest connection that does not know the secret.
    stranger: Option<SocketAddr>,
}

impl<'a> Admission<'a> {
    fn new(joining: Joining<'a>) -> Self {
        let admitted = (0..joining.world.1).map(|_| None).collect();
        Self { joining, began: Instant::now(), reported: false, guests: Vec::new(), admitted, stranger: None }
    }

    fn missing(&self) -> Vec<Rank> {
        (1..self.admitted.len()).filter(|&rank| self.admitted[rank].is_none()).collect()
    }

    /// Waits until something happens, and serves all connections.
    fn advance(&mut self, listener: &TcpListener) -> Result<(), String> {
        let peers = self.admitted.iter().flatten().chain(self.guests.iter().map(|guest| &guest.peer));
        wait(Some(listener), peers);
        let accepted = std::iter::from_fn(|| listener.accept().ok()).take(MOST_GUESTS);
        self.guests.extend(accepted.filter_map(|accepted| Guest::new(accepted).ok()));
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.claim(self.joining.secret) {
                Ok(None) if guest.since.elapsed() < HELLO_TIMEOUT => self.guests.push(guest),
                Ok(Some(Claim::Rank(rank, ranks))) => self.place(guest, rank, ranks)?,
                Ok(Some(Claim::Stranger)) => self.refuse(guest),
                // Silent, ended, or another program.
                Ok(None) | Err(_) => {}
            }
        }
        let surplus = self.guests.len().saturating_sub(MOST_GUESTS + self.admitted.len());
        self.guests.drain(..surplus);
        for (rank, peer) in self.admitted.iter_mut().enumerate() {
            if let Some(peer) = peer {
                // What it sends belongs to the first round, and stays.
                peer.flush().and(peer.fill(LONGEST)).map_err(|error| lost(rank, &error))?;
            }
        }
        self.check_time()
    }

    /// Admits a rank that knows the secret.
    fn place(&mut self, mut guest: Guest, rank: Rank, of: usize) -> Result<(), String> {
        let ranks = self.admitted.len();
        let problem = match self.admitted.get_mut(rank) {
            _ if of != ranks => format!(
                "rank 0 is in a world of {ranks} ranks, but rank {rank} in one of {of}: WORLD_SIZE must be the same for all"
            ),
            Some(place @ None) if rank > 0 => {
                guest.peer.queue(Peer::framed(b""));
                *place = Some(guest.peer);
                return Ok(());
            }
            _ => format!("there are two ranks {rank}: each needs a RANK of its own"),
        };
        guest.refuse(&problem);
        Err(problem)
    }

    /// Refuses a connection that does not know the secret.
    fn refuse(&mut self, guest: Guest) {
        let address = guest.address;
        guest.refuse("UNISONO_SECRET differs from that of rank 0: set the same on all ranks");
        if self.stranger.replace(address).is_none() {
            say(&format!(
                "unisono: rank 0 refuses a connection from {address}, which has another UNISONO_SECRET\n"
            ));
        }
    }

    /// Reports missing ranks, first on standard error and then as an error.
    fn check_time(&mut self) -> Result<(), String> {
        let (waited, missing) = (self.began.elapsed(), self.missing());
        if missing.is_empty() || waited <= WARN_AFTER.min(self.joining.timeout) {
            return Ok(());
        }
        let ranks = self.admitted.len();
        let refused = self.stranger.map_or_else(String::new, |address| {
            format!("; it refused {address}, which has another UNISONO_SECRET")
        });
        let message = format!(
            "rank 0 of {ranks} has waited {} s for {}: was each of the {ranks} processes started, with a RANK of its own, and the same \
             MASTER_ADDR and MASTER_PORT?{refused}",
            waited.as_secs(),
            named(&missing)
        );
        if waited > self.joining.timeout {
            return Err(message);
        }
        if !std::mem::replace(&mut self.reported, true) {
            say(&format!("unisono: {message}\n"));
        }
        Ok(())
    }
}
