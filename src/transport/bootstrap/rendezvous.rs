//! A bootstrap over TCP, for ranks of several machines: rank 0 listens where all expect it, gathers what the others send, and
//! answers each with all of it.
//!
//! As with PyTorch's, the network is trusted until the ranks are connected.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::Bootstrap;
use crate::error::{Error, Result};

/// The sleep between attempts to reach rank 0, or to be reached.
const NAP: Duration = Duration::from_millis(20);
/// How long a process that connects may take to say who it is.
const HELLO: Duration = Duration::from_secs(5);
/// What it says first; its rank and the size of its world follow.
const MAGIC: u64 = u64::from_be_bytes(*b"unisono1");
/// The most bytes of a rank in a round.
const LONGEST: u64 = 1 << 20;

/// A rank's handle to such a bootstrap.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    rank: Rank,
    ranks: usize,
    timeout: Duration,
    /// Of rank 0: the connections with the other ranks, in order. Of another: that with rank 0.
    streams: Vec<TcpStream>,
}

impl Rendezvous {
    /// Meets the other ranks at this address (`host:port`) of rank 0's machine. A rank waits `timeout` for the others.
    ///
    /// # Errors
    /// [`Error::Launch`] if the address is not usable, or ranks do not arrive or disagree.
    pub(crate) fn new(address: &str, world: (Rank, usize), timeout: Duration) -> Result<Self> {
        let cannot = |error| {
            Error::Launch(format!(
                "ranks cannot meet at {address} (MASTER_ADDR, and the port after MASTER_PORT): {error}"
            ))
        };
        let resolved: Vec<_> = address.to_socket_addrs().map_err(cannot)?.collect();
        let (rank, ranks) = world;
        let streams = if rank == 0 {
            accept(&listen(&resolved).map_err(cannot)?, ranks, timeout)?
        } else {
            vec![reach(&resolved, world, timeout).map_err(|error| {
                Error::Launch(format!(
                    "rank {rank} of {ranks} has waited {} s for rank 0 at {address}: {error}; was it started, and is MASTER_ADDR its \
                     machine?",
                    timeout.as_secs()
                ))
            })?]
        };
        streams.iter().try_for_each(|stream| stream.set_read_timeout(Some(timeout))).map_err(cannot)?;
        Ok(Self { rank, ranks, timeout, streams })
    }

    /// Gathers what the other ranks send.
    fn gather(&mut self, own: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut all = vec![own.to_vec()];
        for (rank, stream) in (1..).zip(&mut self.streams) {
            all.push(receive(stream).map_err(|error| why(rank, &error, self.timeout))?);
        }
        Ok(all)
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
            let (ranks, stream) = (self.ranks, &mut self.streams[0]);
            let answer =
                send(stream, own).and_then(|()| receive(stream)).and_then(|problem| match &problem[..] {
                    [] => (0..ranks).map(|_| receive(stream)).collect::<io::Result<_>>().map(Ok),
                    said => Ok(Err(String::from_utf8_lossy(said).into_owned())),
                });
            return answer.map_err(|error| why(0, &error, self.timeout)).flatten().map_err(Error::Launch);
        }
        let all = self.gather(own);
        for stream in &mut self.streams {
            // Who has ended is seen in the next round.
            let _ = match &all {
                Ok(all) => send(stream, b"").and_then(|()| all.iter().try_for_each(|one| send(stream, one))),
                Err(problem) => send(stream, problem.as_bytes()),
            };
        }
        all.map_err(Error::Launch)
    }
}

/// Why a rank is not heard of.
fn why(rank: Rank, error: &io::Error, timeout: Duration) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("rank {rank} has said nothing for {} s while the world began", timeout.as_secs())
        }
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!("rank {rank} has ended before the world began")
        }
        _ => format!("rank {rank} is lost before the world began: {error}"),
    }
}

/// Sends the length of these bytes, and them.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = bytes.len() as u64;
    stream.write_all(&[&length.to_le_bytes(), bytes].concat())
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = number(stream)?;
    if length > LONGEST {
        return Err(io::Error::other(format!("it sends {length} bytes at once")));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).map(|()| bytes)
}

fn number(stream: &mut TcpStream) -> io::Result<u64> {
    let mut number = [0; 8];
    stream.read_exact(&mut number).map(|()| u64::from_le_bytes(number))
}

/// Listens at the first of these addresses that is this machine's, or at its port of any address if a gateway stands for it.
fn listen(resolved: &[SocketAddr]) -> io::Result<TcpListener> {
    let port = resolved.first().map_or(0, SocketAddr::port);
    let any = [(Ipv6Addr::UNSPECIFIED, port).into(), ([0, 0, 0, 0], port).into()];
    TcpListener::bind(resolved).or_else(|error| match error.kind() {
        ErrorKind::AddrNotAvailable => TcpListener::bind(&any[..]),
        _ => Err(error),
    })
}

/// Accepts a connection of each other rank, in order.
fn accept(listener: &TcpListener, ranks: usize, timeout: Duration) -> Result<Vec<TcpStream>> {
    let (began, mut streams) = (Instant::now(), Vec::new());
    streams.resize_with(ranks, || None);
    let failed = |error: io::Error| Error::Launch(format!("rank 0 cannot meet the others: {error}"));
    listener.set_nonblocking(true).map_err(failed)?;
    loop {
        let missing: Vec<_> = (1..ranks).filter(|&rank| streams[rank].is_none()).collect();
        if missing.is_empty() {
            return Ok(streams.into_iter().flatten().collect());
        }
        if began.elapsed() > timeout {
            return Err(Error::Launch(format!(
                "rank 0 of {ranks} has waited {} s for ranks {missing:?}: was each of the {ranks} processes started, with a RANK of its \
                 own, and the same MASTER_ADDR and MASTER_PORT?",
                timeout.as_secs()
            )));
        }
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(NAP);
            continue;
        };
        // A stranger is not of this world.
        if let Ok((stream, rank, of)) = hello(stream) {
            if of != ranks {
                return Err(Error::Launch(format!(
                    "rank 0 is in a world of {ranks} ranks, but rank {rank} in one of {of}: WORLD_SIZE must be the same for all"
                )));
            }
            match streams.get_mut(rank) {
                Some(place @ None) if rank > 0 => *place = Some(stream),
                _ => {
                    return Err(Error::Launch(format!(
                        "there are two ranks {rank}: each needs a RANK of its own"
                    )));
                }
            }
        }
    }
}

/// Who connects: its rank, and the size of its world.
fn hello(mut stream: TcpStream) -> io::Result<(TcpStream, Rank, usize)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO))?;
    let [magic, rank, ranks] = [number(&mut stream)?, number(&mut stream)?, number(&mut stream)?];
    if magic == MAGIC {
        Ok((stream, rank as usize, ranks as usize))
    } else {
        Err(ErrorKind::InvalidData.into())
    }
}

/// Connects to rank 0, which may begin later.
fn reach(resolved: &[SocketAddr], (rank, ranks): (Rank, usize), timeout: Duration) -> io::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(resolved) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                for number in [MAGIC, rank as u64, ranks as u64] {
                    stream.write_all(&number.to_le_bytes())?;
                }
                return Ok(stream);
            }
            Err(error) if began.elapsed() > timeout => return Err(error),
            Err(_) => std::thread::sleep(NAP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn free_address() -> String {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    /// Every rank of a world that meets, on a thread of its own.
    fn meet<R: Send>(
        worlds: &[(Rank, usize)],
        timeout: Duration,
        then: impl Fn(Rendezvous) -> R + Sync,
    ) -> Vec<Result<R>> {
        let (address, then) = (free_address(), &then);
        std::thread::scope(|scope| {
            let rank = |&world| {
                let address = &address;
                scope.spawn(move || Rendezvous::new(address, world, timeout).map(then))
            };
            let ranks: Vec<_> = worlds.iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_gather_what_each_has() {
        let gathered = meet(&[(2, 3), (0, 3), (1, 3)], TIMEOUT, |mut rendezvous| {
            let own = |round: usize| vec![rendezvous.rank as u8; round * 1000 * (rendezvous.rank + 1)];
            let [first, second] = [own(0), own(1)];
            [rendezvous.all_gather(&first).unwrap(), rendezvous.all_gather(&second).unwrap()]
        });
        for gathered in gathered {
            let [first, second] = gathered.unwrap();
            assert!(first.iter().all(Vec::is_empty) && first.len() == 3);
            assert!((0..3).all(|rank| second[rank] == vec![rank as u8; 1000 * (rank + 1)]));
        }
    }

    #[test]
    fn who_has_ended_is_named_to_all() {
        let ended = meet(&[(0, 3), (1, 3), (2, 3)], TIMEOUT, |mut rendezvous| {
            if rendezvous.rank == 1 { Ok(Vec::new()) } else { rendezvous.all_gather(b"here") }
        });
        let said = |rank: usize| ended[rank].as_ref().unwrap().as_ref().unwrap_err().to_string();
        assert_eq!([said(0), said(2)], ["rank 1 has ended before the world began"; 2]);
    }

    #[test]
    fn worlds_of_other_sizes_and_ranks_that_are_missing_are_refused() {
        let short = Duration::from_millis(300);
        let said = |all: Vec<Result<()>>| all.into_iter().next().unwrap().unwrap_err().to_string();
        let other = said(meet(&[(0, 2), (1, 3)], TIMEOUT, drop));
        assert!(other.contains("a world of 2 ranks, but rank 1 in one of 3"), "{other}");
        let twice = said(meet(&[(0, 4), (1, 4), (1, 4)], TIMEOUT, drop));
        assert!(twice.contains("there are two ranks 1"), "{twice}");
        let missing = said(meet(&[(0, 3), (1, 3)], short, drop));
        assert!(missing.contains("for ranks [2]"), "{missing}");
        let alone = said(meet(&[(1, 2)], short, drop));
        assert!(alone.contains("for rank 0 at 127.0.0.1:"), "{alone}");
    }
}
