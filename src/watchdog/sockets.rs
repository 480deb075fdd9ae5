//! The driver of the control protocol: the connections between nodes, and the clock.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::identity::{Identities, Identity};
use crate::control::{Action, CONNECT, Endpoint, Event, Hidden, LinkId, MOST_STRANGERS, Report, Setup};
use crate::system::{accept, nonce};

mod socket;
#[cfg(test)]
mod tests;

pub(super) use socket::CUT_AFTER;
use socket::Socket;

/// The time for which a process that ends waits for the hub to accept its connection, since its reports are lost otherwise.
const LAST_ANSWER: Duration = Duration::from_millis(500);

/// A report of the protocol, and for the end of a connection its address, of the side that accepts.
pub(super) type News = (Report, Option<IpAddr>);

#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) endpoint: Endpoint,
    pub(super) began: Instant,
    pub(super) is_hub: bool,
    /// The listening sockets of the hub, while leaders may still connect.
    hub: Vec<TcpListener>,
    /// The number of connections that the hub expects: one from each leader over each of its addresses.
    expected: usize,
    /// The first reason why a connection could not be accepted.
    failure: Option<String>,
    sockets: BTreeMap<LinkId, Socket>,
    /// The connections whose end was reported to the protocol.
    gone: Vec<LinkId>,
    next: LinkId,
}

impl Sockets {
    /// Returns the connections of a leader with rank 0, which is the hub; `None` for a rank without connections.
    pub(super) fn of_leader(own: Rank, identities: &Identities, hub: Vec<TcpListener>) -> Option<Self> {
        let leaders = identities.leaders();
        let (&first, others) = leaders.split_first()?;
        let Identity { addresses, secret, .. } = &identities.0[first];
        if others.is_empty() || !leaders.contains(&own) || addresses.is_empty() {
            return None;
        }
        let setup = Setup {
            own,
            ranks: identities.ranks(),
            secret: Hidden(secret.0.iter().flat_map(|word| word.to_le_bytes()).collect()),
            accepts: if own == first { others.to_vec() } else { Vec::new() },
            expected: if own == first { others.len() * addresses.len() } else { 0 },
            awaited: if own == first { others.to_vec() } else { vec![first] },
            keeps_alive: true,
        };
        let mut sockets = Self::new(setup, hub);
        if own != first {
            // Over all paths: any of them may be cut, and it is unknown which one MPI uses.
            for &address in addresses {
                // A failure counts as a connection that is not established.
                if let Ok(socket) = Socket::to(first, address) {
                    sockets.insert(socket);
                }
            }
        }
        Some(sockets)
    }

    /// Returns the existing connections of a rank with all ranks of other nodes; `None` without other nodes. Each rank reports to all others.
    pub(super) fn of_controls(
        (own, ranks): (Rank, usize),
        controls: Vec<(Rank, OwnedFd)>,
    ) -> std::io::Result<Option<Self>> {
        if controls.is_empty() {
            return Ok(None);
        }
        let setup = Setup { own, ranks, ..Setup::default() };
        let mut sockets = Self::new(setup, Vec::new());
        for (rank, socket) in controls {
            let link = sockets.insert(Socket::connected(socket.into())?);
            sockets.handle(Event::Trusted { link, rank });
        }
        Ok(Some(sockets))
    }

    fn new(setup: Setup, hub: Vec<TcpListener>) -> Self {
        let (failure, sockets, gone) = Default::default();
        let expected = setup.expected;
        let endpoint = Endpoint::new(setup);
        let (began, is_hub) = (Instant::now(), !hub.is_empty());
        Self { endpoint, began, is_hub, hub, expected, failure, sockets, gone, next: 0 }
    }

    fn insert(&mut self, socket: Socket) -> LinkId {
        self.next += 1;
        self.sockets.insert(self.next, socket);
        self.next
    }

    fn handle(&mut self, event: Event<'_>) {
        self.endpoint.handle(self.began.elapsed(), event);
    }

    /// Returns the descriptors to poll, and whether for writability too.
    pub(super) fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let listeners = self.hub.iter().map(|listener| (listener.as_fd(), false));
        listeners.chain(self.sockets.values().map(|socket| (socket.stream.as_fd(), socket.wants_to_write())))
    }

    /// Returns the ranks at the other ends, one for each connection.
    pub(super) fn others(&self) -> Vec<Rank> {
        self.endpoint.peers().collect()
    }

    /// Makes progress without blocking, and returns the events.
    pub(super) fn progress(&mut self) -> Vec<News> {
        self.accept();
        let links: Vec<_> = self.sockets.keys().copied().collect();
        links.into_iter().for_each(|link| self.progress_of(link));
        self.handle(Event::Tick);
        let news = self.flush();
        if self.others().len() == self.expected || self.began.elapsed() > 2 * CONNECT {
            // No other connection is expected, or a path is blocked.
            self.hub.clear();
        }
        news
    }

    fn accept(&mut self) {
        let accepted = accept(&self.hub, MOST_STRANGERS, &mut self.failure);
        for socket in accepted.into_iter().filter_map(|socket| Socket::connected(socket.into()).ok()) {
            let link = self.insert(socket);
            self.handle(Event::Opened { link, to: None, nonce: nonce() });
        }
    }

    fn progress_of(&mut self, link: LinkId) {
        let Some(socket) = self.sockets.get_mut(&link) else { return };
        let now = self.began.elapsed();
        if let Some(to) = socket.connects() {
            self.endpoint.handle(now, Event::Opened { link, to: Some(to), nonce: nonce() });
        }
        let is_known = self.endpoint.knows(link);
        socket.read(is_known, |bytes| self.endpoint.handle(now, Event::Received { link, bytes }));
        if let Some(how) = socket.ended {
            self.gone.push(link);
            self.endpoint.handle(now, Event::Ended { link, how });
        }
    }

    /// Carries out the actions of the protocol, and passes queued data to the kernel as far as there is buffer space.
    pub(super) fn flush(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        while let Some(action) = self.endpoint.poll() {
            match action {
                Action::Send(link, bytes) => {
                    self.sockets.get_mut(&link).into_iter().for_each(|socket| socket.send(&bytes));
                }
                Action::Close(link) => {
                    if let Some(mut socket) = self.sockets.remove(&link) {
                        socket.flush();
                    }
                }
                Action::Report(report) => {
                    let over = match &report {
                        Report::Lost(_, link, _) => self.sockets.get(link).map(|socket| socket.over),
                        _ => None,
                    };
                    news.push((report, over));
                }
            }
        }
        self.sockets.values_mut().for_each(Socket::flush);
        self.gone.drain(..).for_each(|link| drop(self.sockets.remove(&link)));
        news
    }

    /// Sends a goodbye on all connections, as far as there is buffer space.
    pub(super) fn close(&mut self) {
        let deadline = Instant::now() + LAST_ANSWER;
        let dials = |this: &Self| this.sockets.values().any(|socket| socket.dials.is_some());
        while (dials(self) || self.endpoint.is_connecting()) && Instant::now() < deadline {
            drop(self.progress());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.endpoint.close();
        drop(self.flush());
    }
}
