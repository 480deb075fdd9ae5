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
