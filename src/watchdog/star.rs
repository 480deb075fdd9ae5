//! The connections between nodes: from the leader of each to rank 0, the hub.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::card::{Card, Cards};
use super::hub::Hub;
use super::link::{Link, Lost};
use super::message::Message;

/// How long leaders may take to connect and identify themselves. The job continues meanwhile.
const CONNECT: Duration = Duration::from_secs(5);
/// The limit of connections that have not identified themselves. Beyond it, the oldest are closed: a leader identifies itself at
/// once.
const MOST_STRANGERS: usize = 64;

/// An event on a connection.
#[derive(Debug)]
pub(super) enum Event {
    Told(Rank, Message),
    /// The connection with this leader, over this address of the hub, has ended.
    Lost(Rank, IpAddr, Lost),
    /// No connection with these leaders was established.
    Unreached(Vec<Rank>),
    /// A connection did not belong to this job.
    Stranger,
}

/// The connections of a leader.
#[derive(Debug)]
pub(super) struct Star {
    token: u64,
    leaders: Vec<Rank>,
    is_hub: bool,
    /// The listening sockets of the hub, while leaders may still connect.
    hub: Option<Hub>,
    /// The number of paths from each leader to the hub.
    ways: usize,
    links: Vec<Link>,
    /// The leaders that have not connected yet.
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
            // All paths: any of them may be cut, and it is unknown which MPI uses.
            for &address in addresses {
                let Ok(mut link) = Link::to(address) else { continue };
                link.send(&Message::Hello { token: *token, rank: own });
                links.push(link);
            }
        }
        let awaited = if own == first { others.to_vec() } else { vec![first] };
        let (is_hub, ways) = (hub.is_some(), addresses.len());
        Some(Self { token: *token, is_hub, hub, ways, links, awaited, began: Instant::now(), leaders })
    }

    /// The connections of a rank with those of all other nodes, which exist already. Each tells all others what it knows itself.
    pub(super) fn of_controls(own: Rank, controls: Vec<(Rank, OwnedFd)>) -> std::io::Result<Self> {
        let leaders = std::iter::once(own).chain(controls.iter().map(|(rank, _)| *rank)).collect();
        let links = controls.into_iter().map(|(rank, socket)| Link::of_control(rank, socket.into()));
        let links = links.collect::<Result<_, _>>()?;
        let (is_hub, ways, awaited, token) = (false, 1, Vec::new(), 0);
        Ok(Self { token, is_hub, hub: None, ways, links, awaited, began: Instant::now(), leaders })
    }

    pub(super) fn is_hub(&self) -> bool {
        self.is_hub
    }

    /// The descriptors to poll, and whether for writability too.
    pub(super) fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listeners = self.hub.iter().flat_map(Hub::waits_on).map(|listener| (listener, false));
        listeners.chain(self.links.iter().map(|link| (link.as_fd(), link.wants_to_write())))
    }

    /// Sends a message to all.
    pub(super) fn send(&mut self, message: &Message) {
        self.links.iter_mut().filter(|link| link.to.is_some()).for_each(|link| link.send(message));
    }

    /// Sends a message to all leaders heard of since the last message of this kind, so that it does not pile up for a stopped
    /// process.
    pub(super) fn send_if_heard(&mut self, message: &Message) {
        let known = self.links.iter_mut().filter(|link| link.to.is_some());
        for link in known {
            if std::mem::take(&mut link.heard) {
                link.send(message);
            }
        }
    }

    /// Passes queued data to the kernel, as far as there is buffer space. (The next progress reports errors.)
    pub(super) fn flush(&mut self) {
        self.links.iter_mut().for_each(Link::flush);
    }

    /// Sends a message to one leader.
    pub(super) fn send_to(&mut self, to: Rank, message: &Message) {
        self.links.iter_mut().filter(|link| link.to == Some(to)).for_each(|link| link.send(message));
    }

    /// The leaders at the other ends, one for each path to them.
    pub(super) fn others(&self) -> Vec<Rank> {
        self.links.iter().filter_map(|link| link.to).collect()
    }

    /// Makes progress without blocking, and returns the events.
    pub(super) fn progress(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.links.extend(self.hub.iter().flat_map(|hub| hub.accepted(MOST_STRANGERS)));
        for mut link in std::mem::take(&mut self.links) {
            match link.progress(|link, message| self.heard(link, message, &mut events)) {
                Ok(()) => self.links.push(link),
                Err(Lost::NoMessage) if link.to.is_none() => events.push(Event::Stranger),
                Err(lost) => events.extend(link.to.map(|to| Event::Lost(to, link.hub, lost))),
            }
        }
        self.turn_away_strangers();
        self.stop_listening();
        if self.began.elapsed() > CONNECT && !self.awaited.is_empty() {
            events.push(Event::Unreached(std::mem::take(&mut self.awaited)));
        }
        events
    }

    /// Closes connections that have been unidentified for too long, or are too many.
    fn turn_away_strangers(&mut self) {
        self.links.retain(|link| link.to.is_some() || link.since.elapsed() < CONNECT);
        let strangers = self.links.iter().filter(|link| link.to.is_none()).count();
        let mut too_many = if self.is_hub { strangers.saturating_sub(MOST_STRANGERS) } else { 0 };
        // The latest connections are last.
        self.links.retain(|link| {
            let stays = link.to.is_some() || too_many == 0;
            too_many -= usize::from(!stays);
            stays
        });
    }

    /// Closes the listening sockets once no leader is expected: all have connected over all paths, or those on a blocked path
    /// have given up.
    fn stop_listening(&mut self) {
        let known = self.links.iter().filter(|link| link.to.is_some()).count();
        if known == (self.leaders.len() - 1) * self.ways || self.began.elapsed() > 2 * CONNECT {
            self.hub = None;
        }
    }

    /// Processes a message of a link. Returns whether to keep the link.
    fn heard(&mut self, link: &mut Link, message: Message, events: &mut Vec<Event>) -> bool {
        match (link.to, message) {
            (Some(_), Message::Heartbeat) => {}
            (None, Message::Welcome) if !self.is_hub => {
                self.awaited.clear();
                link.to = self.leaders.first().copied();
            }
            (None, Message::Hello { token, rank })
                if self.is_hub && token == self.token && self.leaders.contains(&rank) =>
            {
                self.awaited.retain(|&awaited| awaited != rank);
                link.to = Some(rank);
                link.send(&Message::Welcome);
            }
            (Some(from), message) => events.push(Event::Told(from, message)),
            (None, _) => return false,
        }
        true
    }

    /// Says goodbye, as far as there is buffer space.
    pub(super) fn close(&mut self) {
        // A hub that has not answered yet reads who this is before it reads the goodbye.
        let known = self.links.iter_mut().filter(|link| link.to.is_some() || !self.is_hub);
        known.for_each(|link| link.send(&Message::Goodbye));
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;
    use crate::config::Interfaces;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A hub whose world has another node, that of rank 1.
    fn hub() -> (Star, Cards) {
        let mut cards = Cards(vec![Card::of_this_process(0), Card::of_this_process(1)]);
        let hub = Hub::open(&mut cards.0[0], &Interfaces::default()).unwrap();
        (Star::new(0, &cards, Some(hub)).expect("it has somebody to connect to"), cards)
    }

    /// The events on the hub's connections, and the other's if there is one, until `is_enough`.
    fn events_until(stars: &mut [&mut Star], is_enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        let (began, mut events) = (Instant::now(), Vec::new());
        while !is_enough(&events) {
            assert!(began.elapsed() < PATIENCE, "{events:?}");
            events.extend(stars.iter_mut().flat_map(|star| star.progress()));
            std::thread::sleep(Duration::from_millis(1));
        }
        events
    }

    /// The leader of the other node, once connected to the hub.
    fn connected(hub: &mut Star, cards: &Cards) -> Star {
        let (began, mut leader) = (Instant::now(), Star::new(1, cards, None).unwrap());
        while leader.others().is_empty() {
            assert!(began.elapsed() < PATIENCE);
            assert!(hub.progress().iter().all(|event| matches!(event, Event::Stranger)));
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
    fn a_leader_that_leaves_before_the_hub_has_answered_is_not_taken_for_dead() {
        let (mut hub, cards) = hub();
        let mut leader = Star::new(1, &cards, None).unwrap();
        assert!(leader.progress().is_empty() && leader.others().is_empty());
        leader.close();
        drop(leader);
        let events = events_until(&mut [&mut hub], |events| events.len() == cards.0[0].addresses.len());
        assert!(events.iter().all(|event| matches!(event, Event::Lost(1, _, Lost::Goodbye))), "{events:?}");
    }

    #[test]
    fn who_is_not_of_the_job_is_turned_away() {
        let (mut hub, cards) = hub();
        let token = cards.0[0].token;
        let claims = [
            Message::Hello { token: token ^ 1, rank: 1 },
            Message::Hello { token, rank: 0x7000_0000 },
            Message::Failed { by: 1, first: 1, cause: "it would end the job".to_owned() },
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
    /// Sends without end, as fast as possible, until it is disconnected.
    fn flood(cards: &Cards, says: &[u8]) -> std::thread::JoinHandle<()> {
        let mut stream = stranger(cards, says);
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        std::thread::spawn(move || while stream.write_all(&[b' '; 1 << 16]).is_ok() {})
    }

    fn strangers(hub: &Star) -> usize {
        hub.links.iter().filter(|link| link.to.is_none()).count()
    }

    #[test]
    fn strangers_who_never_end_are_hung_up_on() {
        let (mut hub, cards) = hub();
        let lengths = [u32::MAX, 4 << 20, 97, 96];
        let floods: Vec<_> = lengths.iter().map(|length| flood(&cards, &length.to_le_bytes())).collect();
        let began = Instant::now();
        while !floods.iter().all(std::thread::JoinHandle::is_finished) {
            assert!(began.elapsed() < PATIENCE);
            assert!(hub.progress().iter().all(|event| matches!(event, Event::Stranger)));
        }
        assert_eq!(strangers(&hub), 0);
        let _leader = connected(&mut hub, &cards);
    }

    #[test]
    fn strangers_cannot_be_too_many() {
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
    fn when_all_are_there_nobody_else_is_let_in() {
        let (mut hub, cards) = hub();
        let addresses = &cards.0[0].addresses;
        assert!(addresses.iter().all(|address| !address.ip().is_unspecified()), "{addresses:?}");
        let mut leader = connected(&mut hub, &cards);
        let began = Instant::now();
        while TcpStream::connect_timeout(&addresses[0], PATIENCE).is_ok() {
            assert!(began.elapsed() < PATIENCE, "the port is still open");
            assert!(hub.progress().iter().chain(&leader.progress()).count() == 0);
        }
        assert!(hub.is_hub() && hub.waits_on().all(|(_, writes)| !writes));
        leader.send(&Message::Left { rank: 1 });
        let events = events_until(&mut [&mut hub, &mut leader], |events| !events.is_empty());
        assert!(matches!(events[..], [Event::Told(1, Message::Left { rank: 1 }), ..]), "{events:?}");
    }
}
