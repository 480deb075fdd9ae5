//! Two ranks that are threads, over the transports that UCX finds on the machine, and the table of functions.

use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::library::library;
use crate::dtype::DType;
use crate::transport::bootstrap::Bootstrap;
use crate::transport::bootstrap::tests::pair::{Pair, pair};
use crate::transport::half::Polled;
use crate::transport::link::{Link, PIECE};
use crate::transport::{Header, Outgoing};

mod header;

type Line = Box<dyn Link>;

fn both(rank: impl Fn(Pair, Line) + Sync) {
    std::thread::scope(|scope| {
        for mut bootstrap in pair() {
            let rank = &rank;
            scope.spawn(move || {
                let line = super::link(&mut bootstrap, |_| true).unwrap().unwrap();
                rank(bootstrap, line);
            });
        }
    });
}

fn bytes(rank: Rank, count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 + index / 1000 + rank * 3) as u8).collect()
}

fn header(count: usize) -> Header {
    Header::of_message(DType::U8, count, (0, 0), 0)
}

/// Calls `poll` until it returns a result.
fn until<R>(line: &mut Line, mut poll: impl FnMut(&mut Line) -> Option<R>) -> R {
    let began = Instant::now();
    loop {
        if let Some(result) = poll(line) {
            return result;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it is overdue");
        line.nap(Duration::from_millis(1));
    }
}

/// Sends a message and receives one, whose payload fills places of this size.
fn exchange(line: &mut Line, own: Rank, sent: &[u8], place_bytes: usize) -> Vec<u8> {
    let (other, header) = (1 - own, header(sent.len()));
    let (mut given, mut is_sent) = (0, false);
    let (mut received, mut begun, mut taken, mut is_received) = (vec![0; sent.len()], 0, 0, false);
    until(line, |line| {
        if !is_sent {
            let outgoing = Outgoing { to: other, bytes: sent };
            is_sent = line.send(&header, outgoing, &mut given).unwrap() == Polled::Done;
        }
        if !is_received && let Some(theirs) = line.ahead(other).unwrap() {
            assert_eq!(theirs, header);
            let end = received.len().min(begun + place_bytes);
            if line.receive(other, &mut received[begun..end], &mut taken).unwrap() == Polled::Done {
                assert_eq!(taken, end - begun);
                (begun, taken, is_received) = (end, 0, end == sent.len());
            }
        }
        (is_sent && is_received).then_some(())
    });
    assert!(!line.holds_memory(other));
    received
}

#[test]
fn messages_of_all_sizes_arrive_in_one_place_and_in_pieces() {
    both(|pair, mut line| {
        let own = pair.0;
        for place_bytes in [usize::MAX / 2, PIECE] {
            for count in [0, 1, 1000, 8 << 10, 100_000, PIECE - 1, PIECE, PIECE + 1, 40 * PIECE + 17] {
                let sent = bytes(own, count);
                assert!(exchange(&mut line, own, &sent, place_bytes) == bytes(1 - own, count), "{count}");
            }
        }
    });
}

#[test]
fn loading_ucx_keeps_the_signal_handlers_of_the_program() {
    library().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("/libucs.so"), "it is loaded");
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        // SAFETY: the function writes to the address, which is valid during the call; all zeros are a value of the structure.
        let handler = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(signal, std::ptr::null(), &raw mut action), 0);
            action.sa_sigaction
        };
        let is_in = |line: &&str| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
            (start..end).contains(&handler)
        };
        let file = maps.lines().find(is_in).unwrap_or_default();
        assert!(!file.contains("/libucs"), "{signal}: {file}");
    }
}

#[test]
fn messages_sent_before_a_rank_leaves_arrive() {
    const COUNT: usize = 500;
    both(|pair, mut line| {
        let short = bytes(0, 1000);
        for _ in 0..COUNT {
            let (mut given, mut taken, mut place) = (0, 0, vec![0; short.len()]);
            until(&mut line, |line| {
                let polled = if pair.0 == 0 {
                    line.send(&header(short.len()), Outgoing { to: 1, bytes: &short }, &mut given)
                } else {
                    line.ahead(0).unwrap()?;
                    line.receive(0, &mut place, &mut taken)
                };
                (polled.unwrap() == Polled::Done).then_some(())
            });
            assert!(pair.0 == 0 || place == short);
        }
        if pair.0 == 1 {
            assert!(
                until(&mut line, |line| line.ahead(0).unwrap().or(line.lost(0).map(|_| header(0))))
                    == header(0)
            );
        }
    });
}

#[test]
fn rank_that_leaves_is_lost_without_a_message() {
    both(|pair, mut line| {
        if pair.0 == 0 {
            return drop(line);
        }
        let why = until(&mut line, |line| {
            line.ahead(0).map(|none| assert!(none.is_none())).map_or(None, |()| line.lost(0))
        });
        assert!(why == "the rank has closed it" || why.starts_with("UCX reports: "), "{why}");
        for count in [0, 1000, 1 << 20] {
            let sent = bytes(1, count);
            let mut given = 0;
            for _ in 0..1000 {
                let polled = line.send(&header(count), Outgoing { to: 0, bytes: &sent }, &mut given).unwrap();
                assert_ne!(polled, Polled::Done);
            }
        }
    });
}

#[test]
fn memory_of_an_unreceived_message_can_be_withdrawn() {
    both(|mut pair, mut line| {
        if pair.0 == 0 {
            let mut sent = bytes(0, 20 * PIECE);
            let mut given = 0;
            until(&mut line, |line| {
                let outgoing = Outgoing { to: 1, bytes: &sent };
                assert_ne!(line.send(&header(sent.len()), outgoing, &mut given).unwrap(), Polled::Done);
                pair.2.try_recv().ok()
            });
            assert!(line.holds_memory(1));
            line.withdraw(1);
            assert!(!line.holds_memory(1));
            // The lent values are no longer read.
            sent.fill(0);
            assert_eq!(line.lost(1).unwrap(), "this rank has closed it");
        } else {
            assert_eq!(until(&mut line, |line| line.ahead(0).unwrap()), header(20 * PIECE));
            pair.1.send(Vec::new()).unwrap();
        }
        pair.all_gather(&[]).unwrap();
    });
}

#[test]
fn partly_filled_place_can_be_withdrawn() {
    both(|mut pair, mut line| {
        let (own, count) = (pair.0, 40 * PIECE);
        let (mut given, mut taken) = (0, 0);
        let sent = bytes(0, count);
        let mut place = vec![0; count];
        if own == 0 {
            // The sender stops in the middle of the message.
            until(&mut line, |line| {
                line.send(&header(count), Outgoing { to: 1, bytes: &sent }, &mut given).unwrap();
                (given > count / 2).then_some(())
            });
            pair.all_gather(&[]).unwrap();
            pair.all_gather(&[]).unwrap();
        } else {
            until(&mut line, |line| {
                line.ahead(0).unwrap()?;
                line.receive(0, &mut place, &mut taken).unwrap();
                (taken > count / 4).then_some(())
            });
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(300) {
                line.receive(0, &mut place, &mut taken).unwrap();
            }
            pair.all_gather(&[]).unwrap();
            line.withdraw(0);
            assert!(!line.holds_memory(0));
            drop(place);
            pair.all_gather(&[]).unwrap();
        }
    });
}
