//! Two ranks that are threads, and strangers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::*;
use crate::call::Call;
use crate::codes::Codes;
use crate::config::Interfaces;
use crate::dtype::DType;
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::transport::{Bootstrap, Calls};

const DEADLINES: Deadlines = Deadlines { timeout: Duration::from_secs(20), quiet: Duration::from_secs(20) };

/// One of two ranks, and channels to the other.
struct Pair(Rank, Sender<Vec<u8>>, Receiver<Vec<u8>>);

impl Bootstrap for Pair {
    fn rank(&self) -> Rank {
        self.0
    }

    fn ranks(&self) -> usize {
        2
    }

    fn all_gather(&mut self, own: &[u8]) -> crate::error::Result<Vec<Vec<u8>>> {
        self.1.send(own.to_vec()).unwrap();
        let mut all = vec![self.2.recv().unwrap()];
        all.insert(self.0, own.to_vec());
        Ok(all)
    }
}

/// Runs two ranks that are connected.
fn both(rank: impl Fn(Rank, Tcp, StatusBoard) + Sync) {
    let ((to_1, from_0), (to_0, from_1)) = (channel(), channel());
    let statuses = StatusBoard::of_threads(2).unwrap();
    std::thread::scope(|scope| {
        for (pair, status) in [Pair(0, to_1, from_1), Pair(1, to_0, from_0)].into_iter().zip(statuses) {
            let rank = &rank;
            scope.spawn(move || {
                let (mut pair, own) = (pair, status.rank());
                let tcp = connect(&mut pair, |other| other != own, &Interfaces::default(), (0, false))
                    .unwrap()
                    .unwrap();
                rank(own, tcp, status);
            });
        }
    });
}

fn header(number: u64) -> Header {
    let call = Call::all_reduce(DType::U8, ReduceOp::Sum, 1);
    let codes = Codes::new(&call, Method::Algorithm(unisono_collectives::Algorithm::Ring));
    let mut calls = Calls::default();
    calls.sequence = number;
    calls.next(1, 1, codes, 0)
}

fn bytes(rank: Rank, number: u64, count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 + rank * 3 + number as usize) as u8).collect()
}

/// Exchanges a message each way.
fn exchange(tcp: &Tcp, status: &StatusBoard, number: u64, count: usize) -> Result<Vec<u8>, Failure> {
    let (own, mut received) = (status.rank(), vec![0; count]);
    let sent = bytes(own, number, count);
    let outgoing = Outgoing { to: 1 - own, bytes: &sent };
    let incoming = Incoming { from: 1 - own, target: Target::Place(&mut received) };
    tcp.exchange((None, status), &header(number), Some(outgoing), Some(incoming), &DEADLINES)?;
    Ok(received)
}

/// None, short, and more than any buffer of the kernel holds.
const SIZES: [usize; 6] = [0, 1, 1000, PIECE - 1, PIECE + 1, 64 << 20];

#[test]
fn messages_of_all_sizes_arrive() {
    both(|own, tcp, status| {
        for (number, count) in (0..).zip(SIZES) {
            // Its header may be taken before its payload is asked for.
            tcp.stream(1 - own).ahead();
            assert!(
                exchange(&tcp, &status, number, count).unwrap() == bytes(1 - own, number, count),
                "{count}"
            );
        }
    });
}

#[test]
fn what_is_posted_goes_on_beside_an_exchange_and_is_completed_in_any_order() {
    const COUNT: usize = 20 << 20;
    both(|own, tcp, status| {
        let post = |number| {
            let bytes = bytes(own, number, COUNT);
            tcp.post(&status, &header(number), &Outgoing { to: 1 - own, bytes: &bytes }, COUNT).unwrap()
        };
        let tickets = [0, 1, 2].map(post);
        assert!(exchange(&tcp, &status, 3, 1000).unwrap() == bytes(1 - own, 3, 1000));
        for number in [1, 0, 2] {
            let mut received = vec![0; COUNT];
            let mut target = Target::Place(&mut received);
            let ticket = tickets[number as usize];
            tcp.complete(&status, &header(number), ticket, &mut target, &DEADLINES).unwrap();
            assert!(received == bytes(1 - own, number, COUNT), "{number}");
        }
        assert!(tcp.is_idle());
    });
}

#[test]
fn a_connection_that_is_lost_names_the_rank() {
    both(|own, tcp, status| {
        if own == 1 {
            return;
        }
        let Err(Failure::Error(error)) = exchange(&tcp, &status, 0, 1000) else { panic!("rank 1 is gone") };
        let said = error.to_string();
        assert!(said.contains("rank 1 failed: the connection with rank 1 is lost"), "{said}");
    });
}

#[test]
fn data_that_arrive_renew_the_deadline_even_of_a_rank_that_has_left() {
    const PIECES: usize = 45;
    const PIECE_BYTES: usize = 100;
    let deadlines = Deadlines { timeout: Duration::from_secs(2), quiet: Duration::from_secs(2) };
    assert!(Duration::from_millis(100) * PIECES as u32 > deadlines.timeout.max(STRAGGLING));
    both(|own, tcp, status| {
        let sent = bytes(1, 0, PIECES * PIECE_BYTES);
        if own == 1 {
            // As it looks where the notice that a rank has left overtakes its last message.
            status.leave(1);
            let header = header(0).of_size(sent.len());
            let mut taken = 0;
            for piece in 1..=PIECES {
                std::thread::sleep(Duration::from_millis(100));
                let here = &sent[..piece * PIECE_BYTES];
                while taken < size_of::<Header>() + here.len() {
                    taken += tcp.stream(0).send(bytemuck::bytes_of(&header), here, taken);
                }
            }
            return;
        }
        let mut received = vec![0; sent.len()];
        let incoming = Incoming { from: 1, target: Target::Place(&mut received) };
        tcp.exchange((None, &status), &header(0), None, Some(incoming), &deadlines).unwrap();
        assert!(received == sent);
    });
}

#[test]
fn only_who_knows_the_secret_is_let_in() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let hello = |secret: u64| connect::Hello::of([secret, 2], 1, 0);
    let knocks = |says: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINES.timeout)).unwrap();
        stream.write_all(says).unwrap();
        stream
    };
    let accepted = std::thread::spawn(move || connect::accept(&[listener], vec![(1, hello(1))]));
    let _silent = knocks(b"");
    for says in
        [bytemuck::bytes_of(&hello(3)), b"GET / HTTP/1.1\r\nHost: somebody-who-has-lost-the-way\r\n\r\n"]
    {
        let mut stranger = knocks(says);
        assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "it is hung up on");
    }
    let mut known = knocks(bytemuck::bytes_of(&hello(1)));
    assert_eq!(known.read(&mut [0]).unwrap(), 1, "it is welcome");
    let [(1, Ok(_))] = &accepted.join().unwrap()[..] else { panic!("rank 1 is let in, and nobody else") };
    assert!(TcpStream::connect(address).is_err(), "nobody else is let in");
}
