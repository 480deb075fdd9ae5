//! The connections between nodes: the leader of each has one to rank 0, the hub.

use std::net::{IpAddr, TcpListener};
#[cfg(feature = "mpi")]
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::card::{Card, Cards};
use super::link::{Link, Lost};
use super::message::Message;

/// How long leaders may take to connect. The job goes on meanwhile.
const CONNECT: Duration = Duration::from_secs(5);
/// More than that are not looked at before they have said who they are.
const MOST_STRANGERS: usize = 64;

/// Where the hub listens, before the others know of it.
#[derive(Debug)]
pub(crate) struct Hub(TcpListener);

impl Hub {
    /// Listens on all interfaces, and writes on the card where that is.
    ///
    /// # Errors
    /// What the system says.
    #[cfg(feature = "mpi")]
    pub(crate) fn open(card: &mut Card) -> std::io::Result<Self> {
        let everywhere: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let listener = TcpListener::bind(&everywhere.map(|ip| SocketAddr::new(ip, 0))[..])?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let interfaces = if_addrs::get_if_addrs()?;
        let is_reached = |ip: &IpAddr| match ip {
            // It says nothing without the number of an interface, which is another on each host.
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
            IpAddr::V4(_) => true,
        };
        let mut ips: Vec<_> = interfaces.iter().map(if_addrs::Interface::ip).filter(is_reached).collect();
        // The own host is a node of its own for ranks that cannot share memory.
        ips.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
        if let Some(first_loopback) = ips.iter().position(IpAddr::is_loopback).filter(|&place| place > 0) {
            ips.truncate(first_loopback);
        }
        card.addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        card.token = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), port);
        Ok(Self(listener))
    }
}

/// What has come over a connection.
#[derive(Debug)]
pub(super) enum Event {
    Told(Rank, Message),
    /// The connection with this leader, over this address of the hub, is no more.
    Lost(Rank, IpAddr, Lost),
    /// No connection has come about with these leaders.
    Unreached(Vec<Rank>),
    /// Somebody has connected who is not of this job.
    Stranger,
}

/// A leader's connections.
#[derive(Debug)]
pub(super) struct Star {
    token: u64,
    leaders: Vec<Rank>,
    hub: Option<Hub>,
    links: Vec<Link>,
    /// The leaders with which there is to be a connection and is none yet.
    awaited: Vec<Rank>,
    began: Instant,
}

impl Star {
    /// The connections of a leader; `None` for a rank that has none.
    pub(super) fn new(own: Rank, cards: &Cards, hub: Option<Hub>) -> Option<Self> {
        let leaders = cards.leaders();
        let (&first, others) = leaders.split_first()?;
        let Card { addresses, token, .. } = &cards.0[first];
        if others.is_empty() || !leaders.contains(&own) || addresses.is_empty() {
            return None;
        }
        let mut links = Vec::new();
        if own != first {
            // All ways that there are: what is cut may be any of them, and nobody knows which MPI takes.
            for &address in addresses {
                let Ok(mut link) = Link::to(address) else { continue };
                link.send(&Message::Hello { token: *token, rank: own });
                links.push(link);
            }
        }
        let awaited = if own == first { others.to_vec() } else { vec![first] };
        Some(Self { token: *token, hub, links, awaited, began: Instant::now(), leaders })
    }

    pub(super) fn is_hub(&self) -> bool {
        self.hub.is_some()
    }

    /// What to wait on, and whether for room to write too.
    pub(super) fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listener = self.hub.iter().map(|hub| (hub.0.as_fd(), false));
        listener.chain(self.links.iter().map(|link| (link.as_fd(), link.wants_to_write())))
    }

    /// Sends a message to all.
    pub(super) fn send(&mut self, message: &Message) {
        self.links.iter_mut().filter(|link| link.to.is_some()).for_each(|link| link.send(message));
    }

    /// Sends a message to all that have been heard since the last one of this kind: it is not to pile up where a process is
    /// stopped.
    pub(super) fn send_if_heard(&mut self, message: &Message) {
        let known = self.links.iter_mut().filter(|link| link.to.is_some());
        for link in known {
            if std::mem::take(&mut link.heard) {
                link.send(message);
            }
        }
    }

    /// Hands what is to be sent to the kernel, as far as there is room. (If that fails, the next progress says so.)
    pub(super) fn flush(&mut self) {
        self.links.iter_mut().for_each(Link::flush);
    }

    /// Sends a message to one leader.
    pub(super) fn send_to(&mut self, to: Rank, message: &Message) {
        self.links.iter_mut().filter(|link| link.to == Some(to)).for_each(|link| link.send(message));
    }

    /// The leaders at the other ends, one for each way to them.
    pub(super) fn others(&self) -> Vec<Rank> {
        self.links.iter().filter_map(|link| link.to).collect()
    }

    /// Does what can be done now, and says what has come.
    pub(super) fn progress(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.accept();
        for mut link in std::mem::take(&mut self.links) {
            match link.progress() {
                Ok(messages) => {
                    if self.heard(&mut link, messages, &mut events) {
                        self.links.push(link);
                    }
                }
                Err(lost) => events.extend(link.to.map(|to| Event::Lost(to, link.hub, lost))),
            }
        }
        if self.began.elapsed() > CONNECT {
            self.links.retain(|link| link.to.is_some() || link.since.elapsed() < CONNECT);
            if !self.awaited.is_empty() {
                events.push(Event::Unreached(std::mem::take(&mut self.awaited)));
            }
        }
        events
    }

    fn accept(&mut self) {
        let Some(Hub(listener)) = &self.hub else { return };
        let strangers = self.links.iter().filter(|link| link.to.is_none()).count();
        for _ in strangers..MOST_STRANGERS {
            let Ok((stream, _)) = listener.accept() else { break };
            self.links.extend(Link::accepted(stream));
        }
    }

    /// Takes in what has come over a link. Whether the link stays.
    fn heard(&mut self, link: &mut Link, messages: Vec<Message>, events: &mut Vec<Event>) -> bool {
        for message in messages {
            match (link.to, message) {
                (Some(_), Message::Heartbeat) => {}
                (None, Message::Welcome) if !self.is_hub() => {
                    self.awaited.clear();
                    link.to = self.leaders.first().copied();
                }
                (None, Message::Hello { token, rank })
                    if self.is_hub() && token == self.token && self.leaders.contains(&rank) =>
                {
                    self.awaited.retain(|&awaited| awaited != rank);
                    link.to = Some(rank);
                    link.send(&Message::Welcome);
                }
                (Some(from), message) => events.push(Event::Told(from, message)),
                (None, _) => {
                    events.push(Event::Stranger);
                    return false;
                }
            }
        }
        true
    }

    /// Says goodbye, as far as there is room for it.
    pub(super) fn close(&mut self) {
        self.send(&Message::Goodbye);
        self.flush();
    }
}

#[cfg(all(test, feature = "mpi"))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A hub whose world has another node, of which rank 1 is.
    fn hub() -> (Star, Cards) {
        let mut cards = Cards(vec![Card::of_this_process(0), Card::of_this_process(1)]);
        let hub = Hub::open(&mut cards.0[0]).unwrap();
        (Star::new(0, &cards, Some(hub)).expect("it has somebody to connect to"), cards)
    }

    /// What comes over the hub's connections, and the other's if there is one, until it is enough.
    fn events_until(stars: &mut [&mut Star], is_enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let (began, mut events) = (Instant::now(), Vec::new());
        while !is_enough(&events) {
            assert!(began.elapsed() < PATIENCE, "{events:?}");
            events.extend(stars.iter_mut().flat_map(|star| star.progress()));
            std::thread::sleep(Duration::from_millis(1));
        }
        events
    }

    /// The leader of the other node, once it has a connection with the hub.
    fn connected(hub: &mut Star, cards: &Cards) -> Star {
        let (began, mut leader) = (Instant::now(), Star::new(1, cards, None).unwrap());
        while leader.others().is_empty() {
            assert!(began.elapsed() < PATIENCE);
            assert!(hub.progress().is_empty() && leader.progress().is_empty());
        }
        leader
    }

    /// Connects as somebody who is not of the job, and says something.
    fn stranger(cards: &Cards, says: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(cards.0[0].addresses[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(says).unwrap();
        stream
    }

    #[test]
    fn leaders_tell_each_other() {
        let (mut hub, cards) = hub();
        let mut leader = Star::new(1, &cards, None).unwrap();
        let told = Message::Left { rank: 1 };
        let began = Instant::now();
        while leader.others().is_empty() {
            assert!(began.elapsed() < PATIENCE);
            assert!(hub.progress().is_empty() && leader.progress().is_empty());
        }
        leader.send(&told);
        let events = events_until(&mut [&mut hub, &mut leader], |events| !events.is_empty());
        assert!(matches!(&events[0], Event::Told(1, message) if *message == told), "{events:?}");
        drop(leader);
        let events = events_until(&mut [&mut hub], |events| !events.is_empty());
        assert!(matches!(events[0], Event::Lost(1, _, Lost::Closed)), "{events:?}");
    }

    #[test]
    fn who_is_not_of_the_job_is_turned_away() {
        let (mut hub, cards) = hub();
        let token = cards.0[0].token;
        let claims = [
            Message::Hello { token: token ^ 1, rank: 1 },
            Message::Hello { token, rank: 0x7000_0000 },
            Message::Failed { by: 1, cause: "it would end the job".to_owned() },
            Message::Welcome,
        ];
        for claim in claims {
            let mut stream = stranger(&cards, &claim.to_bytes());
            let events = events_until(&mut [&mut hub], |events| !events.is_empty());
            assert!(matches!(events[..], [Event::Stranger]), "{claim:?}: {events:?}");
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{claim:?}: it is hung up on");
        }
    }

    #[test]
    fn strangers_do_not_keep_a_leader_out() {
        let (mut hub, cards) = hub();
        let silent: Vec<_> = (0..10).map(|_| stranger(&cards, b"")).collect();
        let mut noisy = stranger(&cards, b"GET / HTTP/1.1\r\n\r\n");
        let _leader = connected(&mut hub, &cards);
        assert!(noisy.read(&mut [0]).is_ok_and(|read| read == 0), "it is hung up on");
        assert!(hub.others().iter().all(|&other| other == 1), "over every address");
        drop(silent);
    }
}
