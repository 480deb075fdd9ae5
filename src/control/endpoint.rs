//! The protocol in one process of a job: its connections with other processes, and its conclusions from them.

use std::collections::{BTreeMap, VecDeque};

use unisono_collectives::Rank;

use super::agreement::{Agreement, Outcome};
use super::handshake::{Handshake, Hidden, Reply};
use super::message::{Claim, Frames, LONGEST, LONGEST_HELLO, Message, Nonce};
use super::view::Evidence;
use super::{CONNECT, KEEPALIVE, MOST_STRANGERS, SILENCE, Time};

mod gathering;
mod link;

pub(crate) use gathering::Gathered;
use gathering::Gathering;
use link::Link;

/// The number that the driver assigns to a connection. Later connections have higher numbers.
pub(crate) type LinkId = u64;

/// The tag of claims of these connections.
const TAG: u64 = u64::from_be_bytes(*b"watchdog");
/// The longest gap between calls of [`Endpoint::handle`] that counts as silence. A suspended process does not blame others.
const LONGEST_GAP: Time = Time::from_secs(2);

/// The configuration of a process in the job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(crate) own: Rank,
    pub(crate) ranks: usize,
    pub(crate) secret: Hidden<Vec<u8>>,
    /// The ranks whose connections this one accepts.
    pub(crate) accepts: Vec<Rank>,
    /// The number of connections that these ranks make. They may all be unauthenticated at a time, in addition to [`MOST_STRANGERS`].
    pub(crate) expected: usize,
    /// The ranks that must be connected within [`CONNECT`], or are reported as unreached.
    pub(crate) awaited: Vec<Rank>,
    /// Whether to send keepalives at all times, or only while this process takes part in an agreement.
    pub(crate) keeps_alive: bool,
}

#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// Another process has connected, or this one has connected to the rank `to`. The nonce is random.
    Opened { link: LinkId, to: Option<Rank>, nonce: Nonce },
    /// A connection with this rank exists already, and is authenticated.
    Trusted { link: LinkId, rank: Rank },
    /// Bytes have arrived.
    Received { link: LinkId, bytes: &'a [u8] },
    /// A connection has ended.
    Ended { link: LinkId, how: How },
    /// Time has passed. The driver sends it at least every 100 ms.
    Tick,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Goodbye,
    /// The other process has ended without a goodbye.
    Closed,
    /// The other host does not acknowledge data, or has abandoned this connection.
    Silent,
    /// The other process has sent invalid bytes.
    Malformed,
}

#[derive(Debug)]
pub(crate) enum Action {
    Send(LinkId, Vec<u8>),
    Close(LinkId),
    Report(Report),
}

#[derive(Debug, PartialEq)]
pub(crate) enum Report {
    Told(Rank, Message),
    /// This connection with a rank has ended. It comes before the [`Action::Close`], since the driver then forgets the connection.
    Lost(Rank, LinkId, How),
    /// Awaited ranks have not connected.
    Unreached(Vec<Rank>),
    /// A connection did not belong to this job.
    Stranger,
}

#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    setup: Setup,
    links: BTreeMap<LinkId, Link>,
    agreement: Agreement,
    gathering: Gathering,
    actions: VecDeque<Action>,
    keepalive_at: Time,
    /// The first and the last call of `handle`.
    began: Option<Time>,
    last: Time,
}

impl Endpoint {
    pub(crate) fn new(setup: Setup) -> Self {
        let agreement = Agreement::new(setup.own, setup.ranks);
        Self { setup, agreement, ..Self::default() }
    }

    pub(crate) fn handle(&mut self, now: Time, event: Event<'_>) {
        self.pass_time(now);
        match event {
            Event::Opened { link, to, nonce } => self.open(now, link, to, nonce),
            Event::Trusted { link, rank } => drop(self.links.insert(link, Link::trusted(rank, now))),
            Event::Received { link, bytes } => self.receive(now, link, bytes),
            Event::Ended { link, how } => self.end(now, link, how),
            Event::Tick => self.tick(now),
        }
        self.agreement.advance(now);
        self.gathering.advance(&self.agreement, now);
        self.send_votes();
    }

    /// Returns the next action, in the order in which they must be carried out.
    pub(crate) fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Sends a message to all ranks that are connected, over all connections with them.
    pub(crate) fn send(&mut self, message: &Message) {
        let known = self.links.iter().filter(|(_, link)| link.peer.is_some());
        self.actions.extend(known.map(|(&id, _)| Action::Send(id, message.to_bytes())));
    }

    /// Sends a message over connections with data since the last such message: none accumulate for a stopped process.
    pub(crate) fn send_to_responsive(&mut self, message: &Message) {
        for (&id, link) in self.links.iter_mut().filter(|(_, link)| link.peer.is_some()) {
            if std::mem::take(&mut link.has_received) {
                self.actions.push_back(Action::Send(id, message.to_bytes()));
            }
        }
    }

    pub(crate) fn send_to(&mut self, to: Rank, message: &Message) {
        let known = self.links.iter().filter(|(_, link)| link.peer == Some(to));
        self.actions.extend(known.map(|(&id, _)| Action::Send(id, message.to_bytes())));
    }

    /// Returns the rank at the other end of each identified connection.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Rank> {
        self.links.values().filter_map(|link| link.peer)
    }

    /// Returns whether the other side of a connection is authenticated.
    pub(crate) fn knows(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|link| link.peer.is_some())
    }

    /// Returns whether a connection of this process has not been accepted or refused yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.links.values().any(|link| link.peer.is_none() && link.to.is_some())
    }

    /// Sends a goodbye on all connections.
    pub(crate) fn close(&mut self) {
        let used = self.links.iter().filter(|(_, link)| link.may_be_used());
        self.actions.extend(used.map(|(&id, _)| Action::Send(id, Message::Goodbye.to_bytes())));
    }

    /// Returns the other members that have started an agreement.
    pub(crate) fn callers(&self) -> impl Iterator<Item = Rank> {
        self.agreement.callers()
    }

    /// Starts an agreement on the next view, in which `minimum` survivors, if given, may continue independently of the others. It
    /// ends with an [outcome](Self::take_outcome), at the latest when no member has called or failed for `patience`.
    pub(crate) fn call(&mut self, now: Time, patience: Time, minimum: Option<usize>) {
        self.agreement.call(now, patience, minimum);
        self.send_votes();
    }

    pub(crate) fn take_outcome(&mut self) -> Option<Outcome> {
        let outcome = self.agreement.outcome.take()?;
        if outcome == Outcome::Finished {
            self.send_finished();
        }
        Some(outcome)
    }

    fn send_finished(&mut self) {
        self.send(&Message::Finished { number: self.agreement.view.number });
    }

    /// Gathers the bytes of every member of the latest view. All members call it. It ends with a [result](Self::take_gathered), at
    /// the latest after `patience` and [`SILENCE`], so that a lost member is reported and not those that wait for it.
    pub(crate) fn gather(&mut self, now: Time, patience: Time, bytes: Vec<u8>) {
        let number = self.agreement.view.number;
        let round = self.gathering.next_round(number);
        self.gather_in((number, round), now, patience, bytes);
    }

    /// Starts the last all-gather of the latest view, without bytes. A member that completes it continues without this protocol. A
    /// report of another member's completion completes it too. So all members that survive it continue in this view, or none.
    ///
    /// If it fails, the member starts the agreement on the next view, which may end with [`Outcome::Finished`].
    pub(crate) fn finish(&mut self, now: Time, patience: Time) {
        self.gather_in((self.agreement.view.number, gathering::LAST_ROUND), now, patience, Vec::new());
    }

    /// Renews the deadline of the agreement or the all-gather in progress.
    pub(crate) fn wait_longer(&mut self, now: Time) {
        self.agreement.extend_deadline(now);
        self.gathering.extend_deadline(now);
    }

    fn gather_in(&mut self, (number, round): (u64, u64), now: Time, patience: Time, bytes: Vec<u8>) {
        self.gathering.begin(self.setup.own, (number, round), bytes.clone(), (now, patience));
        let message = Message::Gather { number, round, bytes };
        self.agreement.view.members.clone().into_iter().for_each(|rank| self.send_to(rank, &message));
        self.gathering.advance(&self.agreement, now);
    }

    pub(crate) fn take_gathered(&mut self) -> Option<Gathered> {
        let gathered = self.gathering.result.take()?;
        if matches!(gathered, Gathered::All(_)) && self.gathering.is_last() {
            self.send_finished();
        }
        Some(gathered)
    }

    fn send_votes(&mut self) {
        while let Some((to, number, vote)) = self.agreement.outgoing.pop_front() {
            self.send_to(to, &Message::Vote { number, vote });
        }
    }

    /// Excludes the time in which this process did not run from the silence of others.
    fn pass_time(&mut self, now: Time) {
        let gap = now.saturating_sub(self.last).saturating_sub(LONGEST_GAP);
        let began = self.began.get_or_insert(now);
        if gap > Time::ZERO && *began < now {
            *began += gap;
            self.links.values_mut().for_each(|link| link.delay(gap));
            self.wait_longer(now);
        }
        self.last = now;
    }

    fn open(&mut self, now: Time, id: LinkId, to: Option<Rank>, nonce: Nonce) {
        let (link, hello) = match to {
            Some(to) => {
                let claim = Claim { from: self.setup.own, to, tag: TAG };
                let (handshake, hello) = Handshake::connect(&self.setup.secret.0, claim, nonce);
                (Link::new(handshake, Some(to), now), Some(hello))
            }
            None => (Link::new(Handshake::accept(&self.setup.secret.0, nonce), None, now), None),
        };
        self.links.insert(id, link);
        self.actions.extend(hello.map(|hello| Action::Send(id, hello.to_bytes())));
        let is_stranger = |link: &&Link| link.peer.is_none() && link.to.is_none();
        if self.links.values().filter(is_stranger).count() > MOST_STRANGERS + self.setup.expected {
            let oldest = self.links.iter().find(|(_, link)| is_stranger(link)).map(|(&id, _)| id);
            oldest.into_iter().for_each(|id| self.drop_link(id));
        }
    }

    fn receive(&mut self, now: Time, id: LinkId, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.frames.extend(bytes);
        (link.received_at, link.has_received) = (now, true);
        // A message may close the connection.
        while let Some(link) = self.links.get_mut(&id) {
            let longest = if link.peer.is_some() { LONGEST } else { LONGEST_HELLO };
            match link.frames.next(longest) {
                Ok(None) => return,
                Ok(Some(message)) => self.message(now, id, message),
                Err(_) => self.refuse(now, id),
            }
        }
    }

    /// Closes a connection that sends invalid messages.
    fn refuse(&mut self, now: Time, id: LinkId) {
        let is_known = self.knows(id);
        self.close_link(id);
        if !is_known {
            self.actions.push_back(Action::Report(Report::Stranger));
        }
        self.end(now, id, How::Malformed);
    }

    /// Closes a connection. A side that uses it is notified, or it would mistake the end for a death.
    fn close_link(&mut self, id: LinkId) {
        if self.links.get(&id).is_some_and(Link::may_be_used) {
            let refuse = Message::Refuse { why: "this side abandons the connection".to_owned() };
            self.actions.push_back(Action::Send(id, refuse.to_bytes()));
        }
        self.actions.push_back(Action::Close(id));
    }

    /// Closes a connection that has not identified itself in time.
    fn drop_link(&mut self, id: LinkId) {
        self.close_link(id);
        self.links.remove(&id);
    }

    fn message(&mut self, now: Time, id: LinkId, message: Message) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(from) = link.peer else { return self.advance_handshake(now, id, message) };
        match message {
            Message::Goodbye => link.got_goodbye = true,
            Message::Refuse { .. } => {
                self.end(now, id, How::Silent);
                self.actions.push_back(Action::Close(id));
            }
            Message::Vote { number, vote } => self.agreement.handle(from, number, vote, now),
            Message::Gather { number, round, bytes } if !self.agreement.is_failed(from) => {
                self.gathering.receive(from, (number, round), bytes, self.agreement.view.number);
            }
            Message::Finished { number }
                if number == self.agreement.view.number && !self.agreement.is_failed(from) =>
            {
                self.agreement.finish();
                self.gathering.finish();
            }
            Message::Keepalive | Message::Gather { .. } | Message::Finished { .. } => {}
            Message::Failed { .. } | Message::Left { .. } | Message::Quiet { .. } | Message::Doing(_) => {
                self.actions.push_back(Action::Report(Report::Told(from, message)));
            }
            _ => self.refuse(now, id),
        }
    }

    fn advance_handshake(&mut self, now: Time, id: LinkId, message: Message) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(handshake) = &mut link.handshake else { return };
        let Setup { own, accepts, .. } = &self.setup;
        let admit = |Claim { from, to, tag }| {
            let is_expected = to == *own && tag == TAG && accepts.contains(&from);
            if is_expected { Ok(()) } else { Err("it is not expected".to_owned()) }
        };
        match handshake.handle(message, admit) {
            Reply::Send(answer) => self.actions.push_back(Action::Send(id, answer.to_bytes())),
            Reply::Done(claim, confirm) => {
                let rank = link.to.unwrap_or(claim.from);
                (link.peer, link.handshake) = (Some(rank), None);
                self.actions.extend(confirm.map(|confirm| Action::Send(id, confirm.to_bytes())));
                self.agreement.connect(rank);
                self.setup.awaited.retain(|&awaited| awaited != rank);
            }
            _ => self.refuse(now, id),
        }
    }

    fn end(&mut self, now: Time, id: LinkId, how: How) {
        let Some(link) = self.links.remove(&id) else { return };
        let Some(rank) = link.peer else { return };
        let how = if link.got_goodbye { How::Goodbye } else { how };
        self.actions.push_back(Action::Report(Report::Lost(rank, id, how)));
        if !self.peers().any(|peer| peer == rank) {
            let evidence = match how {
                How::Goodbye | How::Closed => Evidence::Dead,
                How::Silent | How::Malformed => Evidence::Lost,
            };
            self.agreement.fail(rank, evidence, now);
        }
    }

    fn tick(&mut self, now: Time) {
        let is_late = |link: &Link| link.peer.is_none() && now > link.since + CONNECT;
        let late: Vec<_> = self.links.iter().filter(|(_, link)| is_late(link)).map(|(&id, _)| id).collect();
        late.into_iter().for_each(|id| self.drop_link(id));
        if self.began.is_some_and(|began| now > began + CONNECT) && !self.setup.awaited.is_empty() {
            let unreached = std::mem::take(&mut self.setup.awaited);
            unreached.iter().for_each(|&rank| self.agreement.fail(rank, Evidence::Lost, now));
            self.actions.push_back(Action::Report(Report::Unreached(unreached)));
        }
        let attending = self.agreement.attending();
        for &(rank, _) in attending.iter().filter(|(_, has_called)| *has_called) {
            let received =
                self.links.values().filter(|link| link.peer == Some(rank)).map(|link| link.received_at);
            if received.max().is_some_and(|at| now > at + SILENCE) {
                self.agreement.fail(rank, Evidence::Lost, now);
            }
        }
        if now >= self.keepalive_at {
            self.keepalive_at = now + KEEPALIVE;
            if self.setup.keeps_alive {
                // A stopped process reads nothing. Once its kernel has no space left, it would acknowledge nothing either, as if the connection were
                // cut. The kernel's own probes detect a cut meanwhile.
                let is_responsive = |link: &Link| link.peer.is_some() && now <= link.received_at + SILENCE;
                let to = self.links.iter().filter(|(_, link)| is_responsive(link));
                self.actions.extend(to.map(|(&id, _)| Action::Send(id, Message::Keepalive.to_bytes())));
            } else {
                attending.iter().for_each(|&(rank, _)| self.send_to(rank, &Message::Keepalive));
            }
        }
    }
}
