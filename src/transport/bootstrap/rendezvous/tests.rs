//! The rendezvous among honest, silent, slow and hostile peers.

use std::io::ErrorKind;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Barrier;

use super::*;
use crate::control::{Handshake, MOST_STRANGERS, Message};
use crate::transport::bootstrap::address::{listen, resolve};
use crate::while_waiting;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Less than the time after which a silent connection is closed.
const SOON: Duration = Duration::from_secs(4);

fn free_address() -> String {
    format!("127.0.0.1:{}", unisono_testing::launch::free_port())
}

/// Keeps a rank until all others have arrived.
fn stay(mut rendezvous: Rendezvous) -> crate::error::Result<()> {
    rendezvous.all_gather(b"").map(drop)
}

fn joining(world: (Rank, usize), timeout: Duration) -> Joining<'static> {
    Joining { world, timeout, secret: Hidden(b""), reports: false }
}

/// Runs `then` on every rank of a world, each on a separate thread.
fn meet_at<R: Send>(
    address: &str,
    ranks: &[Joining<'static>],
    then: impl Fn(Rendezvous) -> R + Sync,
) -> Vec<Result<R>> {
    std::thread::scope(|scope| {
        let rank = |&joining| {
            let then = &then;
            scope.spawn(move || Rendezvous::new(address, joining).map(then))
        };
        let ranks: Vec<_> = ranks.iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn meet<R: Send>(
    worlds: &[(Rank, usize)],
    timeout: Duration,
    then: impl Fn(Rendezvous) -> R + Sync,
) -> Vec<Result<R>> {
    let ranks: Vec<_> = worlds.iter().map(|&world| joining(world, timeout)).collect();
    meet_at(&free_address(), &ranks, then)
}

fn connect(address: &str) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(socket) => return socket,
            Err(error) => assert!(began.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::yield_now();
    }
}

fn first_error<R>(all: Vec<Result<R>>) -> String {
    all.into_iter().next().unwrap().err().unwrap().to_string()
}

#[test]
fn every_rank_gathers_the_bytes_of_all() {
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
fn ended_rank_is_named_on_all_ranks() {
    let ended = meet(&[(0, 3), (1, 3), (2, 3)], TIMEOUT, |mut rendezvous| {
        rendezvous.all_gather(b"").unwrap();
        if rendezvous.rank == 1 { Ok(Vec::new()) } else { rendezvous.all_gather(b"here") }
    });
    for rank in [0, 2] {
        let error = ended[rank].as_ref().unwrap().as_ref().unwrap_err();
        let cause = "because rank 1 failed: its process has ended before the world began";
        assert_eq!(error.to_string(), format!("rank {rank} cannot continue, {cause}"));
        assert_eq!(error.failed_rank(), Some(1));
    }
}

#[test]
fn rank_that_ends_before_all_are_admitted_is_named_at_once() {
    let address = free_address();
    let alone = |address| drop(Rendezvous::new(address, joining((1, 3), TIMEOUT)));
    let (began, error) = std::thread::scope(|scope| {
        let first = scope.spawn(|| Rendezvous::new(&address, joining((0, 3), TIMEOUT)).map(drop));
        alone(&address);
        (Instant::now(), first.join().unwrap().unwrap_err())
    });
    assert_eq!(error.failed_rank(), Some(1), "{error}");
    assert!(began.elapsed() < SOON);
}

#[test]
fn contradicting_ranks_and_missing_ranks_are_errors() {
    let short = Duration::from_millis(300);
    let other = first_error(meet(&[(0, 2), (1, 3)], TIMEOUT, drop));
    assert!(other.contains("a world of 2 ranks, but rank 1 in one of 3"), "{other}");
    // The first rank 1 stays connected.
    let twice = first_error(meet(&[(0, 4), (1, 4), (1, 4)], TIMEOUT, stay));
    assert!(twice.contains("there are two ranks 1"), "{twice}");
    let missing = meet(&[(0, 4), (2, 4)], short, |mut rendezvous| rendezvous.all_gather(b"").unwrap_err());
    let first = missing[0].as_ref().unwrap_err().to_string();
    assert!(first.contains("for ranks 1, 3 to begin: was each"), "{first}");
    assert_eq!(missing[1].as_ref().unwrap().to_string(), first);
    let alone = first_error(meet(&[(1, 2)], short, drop));
    assert!(alone.contains("for rank 0 to begin: it is not at 127.0.0.1:"), "{alone}");
}

#[test]
fn callback_of_the_program_ends_every_wait() {
    let interrupt: while_waiting::WhileWaiting = || Err("interrupted".to_owned());
    // Each of two ranks waits for the other one.
    for rank in [0, 1] {
        let alone = || Rendezvous::new(&free_address(), joining((rank, 2), TIMEOUT));
        let error = while_waiting::while_waiting(interrupt, alone).unwrap_err();
        assert!(matches!(&error, Error::Aborted { cause, .. } if cause == "interrupted"), "{error}");
    }
    // Rank 2 contributes nothing until rank 0 has ended. No rank ends before all are admitted.
    let are_admitted = Barrier::new(3);
    let errors = meet(&[(0, 3), (1, 3), (2, 3)], TIMEOUT, |mut rendezvous| {
        are_admitted.wait();
        if rendezvous.rank == 2 {
            let deadline = Instant::now() + TIMEOUT;
            let message = rendezvous.peers[0].receive(LONGEST, deadline, || Ok(())).unwrap();
            return received(2, &message);
        }
        while_waiting::while_waiting(interrupt, || rendezvous.all_gather(b"")).unwrap_err()
    });
    for error in errors {
        let error = error.unwrap().to_string();
        assert!(
            error.ends_with("interrupted") || error.ends_with("has ended before the world began"),
            "{error}"
        );
    }
}

#[test]
fn silent_and_slow_connections_delay_no_rank() {
    let address = free_address();
    std::thread::scope(|scope| {
        let began = Instant::now();
        let first = scope.spawn(|| Rendezvous::new(&address, joining((0, 2), TIMEOUT)).and_then(stay));
        let silent: Vec<_> = (0..8).map(|_| connect(&address)).collect();
        let mut slow = connect(&address);
        slow.write_all(b"u").unwrap();
        Rendezvous::new(&address, joining((1, 2), TIMEOUT)).and_then(stay).unwrap();
        first.join().unwrap().unwrap();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        drop((silent, slow));
    });
}

#[test]
fn a_thousand_silent_connections_delay_no_rank() {
    const SILENT: usize = 1000;
    let address = free_address();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Rendezvous::new(&address, joining((0, 3), TIMEOUT)).and_then(stay));
        let silent: Vec<_> = (0..SILENT).map(|_| connect(&address)).collect();
        let began = Instant::now();
        let others = [1, 2].map(|rank| {
            let address = &address;
            scope.spawn(move || Rendezvous::new(address, joining((rank, 3), TIMEOUT)).and_then(stay))
        });
        others.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
        first.join().unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(silent.len() > MOST_STRANGERS);
    });
}

#[test]
fn messages_of_strangers_do_not_end_the_rendezvous() {
    let address = free_address();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Rendezvous::new(&address, joining((0, 2), TIMEOUT)).and_then(stay));
        // A rank without a proof, one with a wrong proof, and garbage.
        let claim = Claim { from: 1, to: 0, tag: 3 };
        let prove = Message::Prove { claim, proof: [0; 2] }.to_bytes();
        let (_, hello) = Handshake::connect(b"", claim, [1; 2]);
        let wrong = [hello.to_bytes(), prove.clone()].concat();
        for message in [&prove[..], &wrong, b"GET / HTTP/1.1\r\n\r\n", &framed(b"")] {
            let mut stranger = connect(&address);
            stranger.set_read_timeout(Some(TIMEOUT)).unwrap();
            stranger.write_all(message).unwrap();
            // Rank 0 closes the connection, and answers only a greeting.
            let mut answer = Vec::new();
            stranger.read_to_end(&mut answer).unwrap();
            assert_eq!(answer.is_empty(), message.len() != wrong.len(), "{message:?}");
        }
        Rendezvous::new(&address, joining((1, 2), TIMEOUT)).and_then(stay).unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn only_ranks_with_the_secret_are_admitted() {
    let short = Duration::from_secs(1);
    let rank = |rank, secret, timeout| Joining { secret: Hidden(secret), ..joining((rank, 2), timeout) };
    let same = [rank(0, b"secret", TIMEOUT), rank(1, b"secret", TIMEOUT)];
    let met = meet_at(&free_address(), &same, stay);
    assert!(met.iter().all(|rank| matches!(rank, Ok(Ok(())))), "{met:?}");
    let other = [rank(0, b"secret", short), rank(1, b"guess", TIMEOUT)];
    let refused: Vec<_> =
        meet_at(&free_address(), &other, drop).into_iter().map(|one| one.unwrap_err().to_string()).collect();
    assert!(refused[0].contains("for rank 1 to begin: was each"), "{refused:?}");
    assert!(refused[0].contains("it refused 127.0.0.1:"), "{refused:?}");
    assert_eq!(refused[1], "UNISONO_SECRET differs: set the same on all ranks");
}

#[test]
fn rank_that_does_not_read_is_named_and_the_others_receive_the_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_side = || {
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Peer::new(listener.accept().unwrap().0.into()).unwrap(), socket)
    };
    let ((silent, _kept), (reading, mut socket)) = (other_side(), other_side());
    // More than the buffers of a connection can hold.
    let long = vec![7; 64 << 20];
    let mut peers = [silent, reading];
    let error = std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut all = vec![0; 64 << 20];
            socket.read_exact(&mut all).map(|()| all)
        });
        let error = answer(3, &mut peers, &long, Duration::from_secs(2)).unwrap_err();
        assert!(read.join().unwrap().unwrap() == long);
        error
    });
    assert_eq!(error.to_string(), "rank 3 did not read for 2 s while the world began");
}

#[test]
fn rank_0_is_reachable_from_other_machines_by_a_name_of_a_loopback_address() {
    let port = unisono_testing::launch::free_port();
    let loopback = [SocketAddr::from(([127, 0, 1, 1], port))];
    let at = |address: &str| listen(address, &loopback).unwrap()[0].local_addr().unwrap().ip();
    assert!(at(&format!("node0:{port}")).is_unspecified());
    assert!(at(&format!("localhost:{port}")).is_loopback());
    assert!(at(&format!("127.0.1.1:{port}")).is_loopback());
    let _anywhere = listen(&format!("node0:{port}"), &loopback).unwrap();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
}

#[test]
fn rank_0_is_reachable_at_every_address_of_its_name() {
    let port = unisono_testing::launch::free_port();
    // The first one belongs to no machine.
    let addresses =
        [[192, 0, 2, 1], [127, 0, 0, 1], [127, 0, 0, 2]].map(|ip: [u8; 4]| SocketAddr::from((ip, port)));
    let listeners = listen(&format!("node0:{port}"), &addresses).unwrap();
    let bound: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    assert_eq!(bound, addresses[1..]);
}

#[test]
fn unknown_name_is_an_error_after_a_while() {
    let began = Instant::now();
    resolve("a name without an address:1", 0, Duration::from_millis(300)).unwrap().unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(resolve("no port", 0, TIMEOUT).unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
}
