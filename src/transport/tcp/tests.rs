//! Connections of strangers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use super::*;
use crate::config::Interfaces;
use crate::control::Claim;
use crate::system;
use crate::transport::bootstrap::tests::pair::{Pair, pair};
use crate::transport::bootstrap::{Bootstrap, gather_results, introduce};

pub(in crate::transport) mod simulation;

const DEADLINE: Duration = Duration::from_secs(20);

fn after(time: Duration) -> impl Fn() -> bool {
    let deadline = Instant::now() + time;
    move || Instant::now() >= deadline
}

#[test]
fn only_ranks_with_the_secret_are_admitted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let connects = |secret: &[u8], from, to, tag| {
        introduce(TcpStream::connect(address).unwrap(), secret, Claim { from, to, tag }, DEADLINE)
    };
    let accepted =
        std::thread::spawn(move || connect::accept(vec![listener], b"secret", 0, vec![1], after(DEADLINE)));
    let _silent = TcpStream::connect(address).unwrap();
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.set_read_timeout(Some(DEADLINE)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: another-program\r\n\r\n").unwrap();
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "its connection is closed");
    for (secret, from, to, tag) in [
        (&b"guess"[..], 1, 0, connect::TAG),
        (b"secret", 2, 0, connect::TAG),
        (b"secret", 1, 2, connect::TAG),
        (b"secret", 1, 0, 0),
    ] {
        connects(secret, from, to, tag).unwrap().unwrap_err();
    }
    let rank = connects(b"secret", 1, 0, connect::TAG).unwrap().unwrap();
    rank.into_socket().unwrap();
    let [(1, Ok(_))] = &accepted.join().unwrap()[..] else { panic!("only rank 1 is admitted") };
    assert!(TcpStream::connect(address).is_err(), "no other process is admitted");
}

#[test]
fn reason_for_which_connections_are_not_accepted_is_reported() {
    // Each attempt fails at a socket that does not listen, as at the limit of open files.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let is_over = after(Duration::from_millis(100));
    let accepted = connect::accept(vec![socket.into()], b"secret", 0, vec![1], is_over);
    let [(1, Err(why))] = &accepted[..] else { panic!("no rank connects") };
    assert!(why.contains("it cannot accept connections: Invalid argument"), "{why}");
}

#[test]
fn failed_rank_is_not_awaited() {
    struct WithFailure(Pair);

    impl Bootstrap for WithFailure {
        fn rank(&self) -> Rank {
            self.0.rank()
        }
        fn ranks(&self) -> usize {
            self.0.ranks()
        }
        fn all_gather(&mut self, own: &[u8]) -> crate::error::Result<Vec<Vec<u8>>> {
            self.0.all_gather(own)
        }
        fn has_failed(&self) -> bool {
            true
        }
    }

    let [rank_0, mut rank_1] = pair();
    let began = Instant::now();
    let connects = std::thread::spawn(move || {
        connect::sockets(&mut WithFailure(rank_0), |_| true, &Interfaces::from_environment())
    });
    // Rank 1 has an address, and fails.
    let (listeners, addresses) = Interfaces::from_environment().listen().unwrap();
    let own: Result<_, String> = Ok((system::nonce(), addresses));
    gather_results(&mut rank_1, &own).unwrap().unwrap();
    let result: Result<Vec<()>, _> = gather_results(&mut rank_1, &Ok(())).unwrap();
    assert!(result.unwrap_err().starts_with("rank 0 and rank 1 cannot connect: it has waited "));
    connects.join().unwrap().unwrap().unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(listeners);
}
