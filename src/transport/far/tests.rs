//! Two ranks that are threads and connect over TCP.

use std::time::Duration;

use super::*;
use crate::call::Call;
use crate::codes::Codes;
use crate::config::Interfaces;
use crate::dtype::DType;
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::transport::bootstrap::tests::pair::pair;
use crate::transport::half::Polled;
use crate::transport::link::PIECE;
use crate::transport::{Calls, tcp};

const DEADLINES: Deadlines = Deadlines { timeout: Duration::from_secs(20), quiet: Duration::from_secs(20) };

/// Runs two connected ranks.
fn both(rank: impl Fn(Rank, Far, StatusBoard) + Sync) {
    let statuses = StatusBoard::of_threads(2).unwrap();
    std::thread::scope(|scope| {
        for (mut bootstrap, status) in pair().into_iter().zip(statuses) {
            let rank = &rank;
            scope.spawn(move || {
                let own = status.rank();
                let link = tcp::link(&mut bootstrap, |other| other != own, &Interfaces::default());
                let far = Far::new(link.unwrap().unwrap(), vec![1 - own], status.clone(), 0);
                rank(own, far, status);
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

fn exchange(far: &mut Far, number: u64, count: usize) -> Result<Vec<u8>, Failure> {
    let (own, mut received) = (far.status.rank(), vec![0; count]);
    let sent = bytes(own, number, count);
    let outgoing = Outgoing { to: 1 - own, bytes: &sent };
    let incoming = Incoming { from: 1 - own, target: Target::Place(&mut received) };
    far.exchange(None, &header(number), Some(outgoing), Some(incoming), &DEADLINES)?;
    Ok(received)
}

/// Empty, short, and longer than any buffer of the kernel.
const SIZES: [usize; 6] = [0, 1, 1000, PIECE - 1, PIECE + 1, 64 << 20];

#[test]
fn messages_of_all_sizes_arrive() {
    both(|own, mut far, _| {
        for (number, count) in (0..).zip(SIZES) {
            // The header may be read before the payload is requested.
            far.link.get_mut().ahead(1 - own).unwrap();
            assert!(exchange(&mut far, number, count).unwrap() == bytes(1 - own, number, count), "{count}");
        }
    });
}

#[test]
fn posted_exchanges_progress_during_another_and_complete_in_order() {
    const COUNT: usize = 20 << 20;
    both(|own, mut far, _| {
        for number in 0..3 {
            let bytes = bytes(own, number, COUNT);
            let outgoing = Outgoing { to: 1 - own, bytes: &bytes };
            far.post(&header(number), Some(outgoing), Some((1 - own, COUNT))).unwrap();
        }
        assert!(exchange(&mut far, 3, 1000).unwrap() == bytes(1 - own, 3, 1000));
        for number in 0..3 {
            let mut received = vec![0; COUNT];
            let mut target = Target::Place(&mut received);
            far.complete(&header(number), Some(&mut target), &DEADLINES).unwrap();
            assert!(received == bytes(1 - own, number, COUNT), "{number}");
        }
        assert!(far.is_idle());
    });
}

#[test]
fn lost_connection_names_the_rank() {
    both(|own, mut far, _| {
        if own == 1 {
            return;
        }
        let Err(Failure::Error(error)) = exchange(&mut far, 0, 1000) else { panic!("rank 1 is gone") };
        let text = error.to_string();
        assert!(text.contains("rank 1 failed: the connection with rank 1 is lost"), "{text}");
    });
}

#[test]
fn arriving_data_renew_the_deadline_even_of_a_rank_that_has_left() {
    const PIECES: usize = 45;
    const PIECE_BYTES: usize = 100;
    let deadlines = Deadlines { timeout: Duration::from_secs(2), quiet: Duration::from_secs(2) };
    assert!(Duration::from_millis(100) * PIECES as u32 > deadlines.timeout.max(IN_FLIGHT_GRACE));
    both(|own, mut far, status| {
        let sent = bytes(1, 0, PIECES * PIECE_BYTES);
        if own == 1 {
            // As if the notice that the rank has left overtook its last message.
            status.leave(1);
            let header = header(0).of_size(sent.len());
            let mut taken = 0;
            for piece in 1..=PIECES {
                std::thread::sleep(Duration::from_millis(100));
                let bytes = &sent[..piece * PIECE_BYTES];
                let link = far.link.get_mut();
                while link.send(&header, Outgoing { to: 0, bytes }, &mut taken).unwrap() != Polled::Done {}
            }
            return;
        }
        let mut received = vec![0; sent.len()];
        let incoming = Incoming { from: 1, target: Target::Place(&mut received) };
        far.exchange(None, &header(0), None, Some(incoming), &deadlines).unwrap();
        assert!(received == sent);
    });
}
