//! A hub and the leader of another node, over loopback, and strangers.

use std::io::{Read as _, Write as _};

use super::*;
use crate::config::Interfaces;

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a hub whose world has another node, that of rank 1.
fn hub() -> (Sockets, Cards) {
    let mut cards = Cards(vec![Card::of_this_process(0), Card::of_this_process(1)]);
    let hub = Hub::open(&mut cards.0[0], &Interfaces::default()).unwrap();
    (Sockets::of_leader(0, &cards, Some(hub)).expect("it has somebody to connect to"), cards)
}

fn leader(cards: &Cards) -> Sockets {
    Sockets::of_leader(1, cards, None).unwrap()
}

/// Returns the events on all connections until `is_enough`.
fn news_until(all: &mut [&mut Sockets], is_enough: impl Fn(&[News]) -> bool) -> Vec<News> {
    let (began, mut news) = (Instant::now(), Vec::new());
    while !is_enough(&news) {
        assert!(began.elapsed() < PATIENCE, "{news:?}");
        news.extend(all.iter_mut().flat_map(|sockets| sockets.progress()));
        std::thread::sleep(Duration::from_millis(1));
    }
    news
}

/// Returns the leader of the other node, once connected to the hub.
fn connected(hub: &mut Sockets, cards: &Cards) -> Sockets {
    let (began, mut leader) = (Instant::now(), leader(cards));
    while leader.others().is_empty() {
        assert!(began.elapsed() < PATIENCE);
        assert!(hub.progress().iter().all(|news| matches!(news, News::Stranger)));
        assert!(leader.progress().is_empty());
    }
    leader
}

/// Connects as a process that is not of the job, and sends bytes.
fn stranger(cards: &Cards, says: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(cards.0[0].addresses[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(says).unwrap();
    stream
}

#[test]
fn leaders_tell_each_other() {
    let (mut hub, cards) = hub();
    let mut leader = connected(&mut hub, &cards);
    let told = Message::Left { rank: 1 };
    leader.send(&told);
    let news = news_until(&mut [&mut hub, &mut leader], |news| !news.is_empty());
    assert!(matches!(&news[0], News::Told(1, message) if *message == told), "{news:?}");
    drop(leader);
    let is_end = |news: &News| matches!(news, News::Lost(1, _, How::Closed));
    news_until(&mut [&mut hub], |news| news.iter().any(is_end));
}

#[test]
fn a_leader_that_leaves_at_once_is_not_taken_for_dead() {
    let (mut hub, cards) = hub();
    let leaves = std::thread::spawn({
        let cards = cards.clone();
        move || leader(&cards).close()
    });
    let ways = cards.0[0].addresses.len();
    let news = news_until(&mut [&mut hub], |news| news.len() == ways);
    assert!(news.iter().all(|news| matches!(news, News::Lost(1, _, How::Goodbye))), "{news:?}");
    leaves.join().unwrap();
}

#[test]
fn connections_from_outside_the_job_are_closed() {
    let (mut hub, mut cards) = hub();
    for message in [
        Message::Failed { by: 1, first: 1, cause: "it would end the job".to_owned() },
        Message::Accept { proof: [0; 2] },
        Message::Goodbye,
    ] {
        let mut stream = stranger(&cards, &message.to_bytes());
        let news = news_until(&mut [&mut hub], |news| !news.is_empty());
        assert!(matches!(news[..], [News::Stranger]), "{message:?}: {news:?}");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{message:?}: the connection is closed");
    }
    // A leader of another job.
    cards.0[0].secret[0] ^= 1;
    let mut other = leader(&cards);
    let news = news_until(&mut [&mut hub, &mut other], |news| !news.is_empty());
    assert!(news.iter().all(|news| matches!(news, News::Stranger)), "{news:?}");
    assert!(hub.others().is_empty() && other.others().is_empty());
}

#[test]
fn silent_strangers_and_noise_do_not_keep_a_leader_out() {
    let (mut hub, cards) = hub();
    let silent: Vec<_> = (0..10).map(|_| stranger(&cards, b"")).collect();
    let mut noisy = stranger(&cards, b"GET / HTTP/1.1\r\n\r\n");
    let _leader = connected(&mut hub, &cards);
    assert!(noisy.read(&mut [0]).is_ok_and(|read| read == 0), "its connection is closed");
    assert!(hub.others().iter().all(|&other| other == 1), "over every address");
    drop(silent);
}

/// Sends without end, as fast as possible, until it is disconnected.
fn flood(cards: &Cards, says: &[u8]) -> std::thread::JoinHandle<()> {
    let mut stream = stranger(cards, says);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    std::thread::spawn(move || while stream.write_all(&[b' '; 1 << 16]).is_ok() {})
}

fn strangers(hub: &Sockets) -> usize {
    hub.sockets.len() - hub.others().len()
}

#[test]
fn strangers_that_never_end_are_disconnected() {
    let (mut hub, cards) = hub();
    let lengths = [u32::MAX, 4 << 20, 257, 256];
    let floods: Vec<_> = lengths.iter().map(|length| flood(&cards, &length.to_le_bytes())).collect();
    let began = Instant::now();
    while !floods.iter().all(std::thread::JoinHandle::is_finished) {
        assert!(began.elapsed() < PATIENCE);
        assert!(hub.progress().iter().all(|news| matches!(news, News::Stranger)));
    }
    assert_eq!(strangers(&hub), 0);
    let _leader = connected(&mut hub, &cards);
}

#[test]
fn the_number_of_strangers_is_limited() {
    let (mut hub, cards) = hub();
    let silent: Vec<_> = (0..3 * MOST_STRANGERS)
        .map(|_| {
            let silent = stranger(&cards, b"");
            assert!(hub.progress().is_empty() && strangers(&hub) <= MOST_STRANGERS);
            silent
        })
        .collect();
    let _leader = connected(&mut hub, &cards);
    drop(silent);
}

#[test]
fn the_ports_are_closed_once_all_leaders_have_connected() {
    let (mut hub, cards) = hub();
    let addresses = &cards.0[0].addresses;
    assert!(addresses.iter().all(|address| !address.ip().is_unspecified()), "{addresses:?}");
    let mut leader = connected(&mut hub, &cards);
    let began = Instant::now();
    while TcpStream::connect_timeout(&addresses[0], PATIENCE).is_ok() {
        assert!(began.elapsed() < PATIENCE, "the port is still open");
        assert!(hub.progress().iter().chain(&leader.progress()).count() == 0);
    }
    leader.send(&Message::Left { rank: 1 });
    let is_told = |news: &News| matches!(news, News::Told(1, Message::Left { rank: 1 }));
    news_until(&mut [&mut hub, &mut leader], |news| news.iter().any(is_told));
}
