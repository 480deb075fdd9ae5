//! Connections of strangers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use super::*;
use crate::control::Claim;
use crate::transport::bootstrap::introduce;

pub(in crate::transport) mod simulation;

const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn only_ranks_with_the_secret_are_admitted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let connects = |secret: &[u8], from, to, tag| {
        introduce(TcpStream::connect(address).unwrap(), secret, Claim { from, to, tag }, DEADLINE)
    };
    let deadline = Instant::now() + DEADLINE;
    let accepted =
        std::thread::spawn(move || connect::accept(vec![listener], b"secret", 0, vec![1], deadline));
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
    let deadline = Instant::now() + Duration::from_millis(100);
    let accepted = connect::accept(vec![socket.into()], b"secret", 0, vec![1], deadline);
    let [(1, Err(why))] = &accepted[..] else { panic!("no rank connects") };
    assert!(why.contains("it cannot accept connections: Invalid argument"), "{why}");
}
