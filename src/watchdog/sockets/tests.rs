//! A hub and the leader of another node, over loopback, and strangers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::net::{AddressFamily, SocketType};

use super::*;
use crate::config::Interfaces;
use crate::control::{How, Message};

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a hub whose world has another node, that of rank 1.
fn hub() -> (Sockets, Identities) {
    let mut identities = Identities(vec![Identity::of_this_process(0), Identity::of_this_process(1)]);
    let hub = identities.0[0].listen(&Interfaces::default()).unwrap();
    (Sockets::of_leader(0, &identities, hub).expect("there is another leader"), identities)
}

fn leader(identities: &Identities) -> Sockets {
    Sockets::of_leader(1, identities, Vec::new()).unwrap()
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
fn connected(hub: &mut Sockets, identities: &Identities) -> Sockets {
    let (began, mut leader) = (Instant::now(), leader(identities));
    while leader.others().is_empty() {
        assert!(began.elapsed() < PATIENCE);
        assert!(hub.progress().iter().all(|news| matches!(news, (Report::Stranger, _))));
        assert!(leader.progress().is_empty());
    }
    leader
}

/// The hub accepts a batch of connections before it has read the proofs of the previous one.
#[test]
fn leaders_of_many_nodes_connect_at_once() {
    let nodes = 100;
    let mut identities = Identities((0..nodes).map(Identity::of_this_process).collect());
    let hub = identities.0[0].listen(&Interfaces::default()).unwrap();
    let mut hub = Sockets::of_leader(0, &identities, hub).unwrap();
    let mut leaders: Vec<_> =
        (1..nodes).map(|rank| Sockets::of_leader(rank, &identities, Vec::new()).unwrap()).collect();
    let connected = |hub: &Sockets| hub.others().into_iter().collect::<std::collections::BTreeSet<_>>();
    let began = Instant::now();
    while connected(&hub).len() < nodes - 1 {
        assert!(began.elapsed() < PATIENCE, "{} leaders are connected", connected(&hub).len());
        assert!(hub.progress().is_empty());
        assert!(leaders.iter_mut().all(|leader| leader.progress().is_empty()));
    }
}

#[test]
fn reason_for_which_connections_are_not_accepted_is_reported() {
    let (mut hub, _) = hub();
    // Each attempt fails at a socket that does not listen, as at the limit of open files.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    hub.hub.push(socket.into());
    assert!(hub.progress().is_empty());
    assert!(hub.failure.unwrap().starts_with("Invalid argument"));
}

/// Connects as a process that is not of the job, and sends bytes.
fn stranger(identities: &Identities, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(identities.0[0].addresses[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

#[test]
fn leaders_exchange_messages() {
    let (mut hub, identities) = hub();
    let mut leader = connected(&mut hub, &identities);
    let sent = Message::Left { rank: 1 };
    leader.endpoint.send(&sent);
    let news = news_until(&mut [&mut hub, &mut leader], |news| !news.is_empty());
    assert!(matches!(&news[0], (Report::Told(1, message), _) if *message == sent), "{news:?}");
    drop(leader);
    let is_end = |news: &News| matches!(news, (Report::Lost(1, _, How::Closed), _));
    news_until(&mut [&mut hub], |news| news.iter().any(is_end));
}

#[test]
fn leader_that_leaves_at_once_is_not_reported_as_dead() {
    let (mut hub, identities) = hub();
    let leaves = std::thread::spawn({
        let identities = identities.clone();
        move || leader(&identities).close()
    });
    let ways = identities.0[0].addresses.len();
    let news = news_until(&mut [&mut hub], |news| news.len() == ways);
    assert!(news.iter().all(|news| matches!(news, (Report::Lost(1, _, How::Goodbye), _))), "{news:?}");
    leaves.join().unwrap();
}

#[test]
fn connections_from_outside_the_job_are_closed() {
    let (mut hub, mut identities) = hub();
    for message in [
        Message::Failed { by: 1, first: 1, cause: "it would end the job".to_owned() },
        Message::Accept { proof: [0; 2] },
        Message::Goodbye,
    ] {
        let mut stream = stranger(&identities, &message.to_bytes());
        let news = news_until(&mut [&mut hub], |news| !news.is_empty());
        assert!(matches!(news[..], [(Report::Stranger, _)]), "{message:?}: {news:?}");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{message:?}: the connection is closed");
    }
    // A leader of another job.
    identities.0[0].secret.0[0] ^= 1;
    let mut other = leader(&identities);
    let news = news_until(&mut [&mut hub, &mut other], |news| !news.is_empty());
    assert!(news.iter().all(|news| matches!(news, (Report::Stranger, _))), "{news:?}");
    assert!(hub.others().is_empty() && other.others().is_empty());
}

#[test]
fn silent_and_noisy_strangers_do_not_block_a_leader() {
    let (mut hub, identities) = hub();
    let silent: Vec<_> = (0..10).map(|_| stranger(&identities, b"")).collect();
    let mut noisy = stranger(&identities, b"GET / HTTP/1.1\r\n\r\n");
    let _leader = connected(&mut hub, &identities);
    assert!(noisy.read(&mut [0]).is_ok_and(|read| read == 0), "its connection is closed");
    assert!(hub.others().iter().all(|&other| other == 1), "over every address");
    drop(silent);
}

/// Sends without end, as fast as possible, until it is disconnected.
fn flood(identities: &Identities, bytes: &[u8]) -> std::thread::JoinHandle<()> {
    let mut stream = stranger(identities, bytes);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    std::thread::spawn(move || while stream.write_all(&[b' '; 1 << 16]).is_ok() {})
}

fn strangers(hub: &Sockets) -> usize {
    hub.sockets.len() - hub.others().len()
}

#[test]
fn stranger_that_sends_endlessly_is_disconnected() {
    let (mut hub, identities) = hub();
    let lengths = [u32::MAX, 4 << 20, 257, 256];
    let floods: Vec<_> = lengths.iter().map(|length| flood(&identities, &length.to_le_bytes())).collect();
    let began = Instant::now();
    while !floods.iter().all(std::thread::JoinHandle::is_finished) {
        assert!(began.elapsed() < PATIENCE);
        assert!(hub.progress().iter().all(|news| matches!(news, (Report::Stranger, _))));
    }
    assert_eq!(strangers(&hub), 0);
    let _leader = connected(&mut hub, &identities);
}

#[test]
fn number_of_unauthenticated_connections_is_limited() {
    let (mut hub, identities) = hub();
    let silent: Vec<_> = (0..3 * MOST_STRANGERS)
        .map(|_| {
            let silent = stranger(&identities, b"");
            assert!(hub.progress().is_empty() && strangers(&hub) <= MOST_STRANGERS + hub.expected);
            silent
        })
        .collect();
    let _leader = connected(&mut hub, &identities);
    drop(silent);
}

#[test]
fn ports_are_closed_once_all_leaders_have_connected() {
    let (mut hub, identities) = hub();
    let addresses = &identities.0[0].addresses;
    assert!(addresses.iter().all(|address| !address.ip().is_unspecified()), "{addresses:?}");
    let mut leader = connected(&mut hub, &identities);
    let began = Instant::now();
    while TcpStream::connect_timeout(&addresses[0], PATIENCE).is_ok() {
        assert!(began.elapsed() < PATIENCE, "the port is still open");
        assert!(hub.progress().iter().chain(&leader.progress()).count() == 0);
    }
    leader.endpoint.send(&Message::Left { rank: 1 });
    let is_sent = |news: &News| matches!(news, (Report::Told(1, Message::Left { rank: 1 }), _));
    news_until(&mut [&mut hub, &mut leader], |news| news.iter().any(is_sent));
}

#[test]
fn abandoned_connection_is_reported_with_its_address() {
    let (mut hub, identities) = hub();
    let mut leader = connected(&mut hub, &identities);
    // The hub refuses it on a connection that is established.
    leader.endpoint.send(&Message::Confirm);
    let lost = |news: &News| match news {
        (Report::Lost(0, ..), over) => *over,
        _ => None,
    };
    let news = news_until(&mut [&mut hub, &mut leader], |news| news.iter().any(|news| lost(news).is_some()));
    assert!(news.iter().filter_map(lost).all(|over| !over.is_unspecified()), "{news:?}");
}
