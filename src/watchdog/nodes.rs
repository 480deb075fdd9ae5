//! The exchange of rank states between the leaders of nodes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::card::Cards;
use super::hub::Hub;
use super::link::{CUT_AFTER, Lost};
use super::message::Message;
use super::report::Report;
use super::star::{Event, Star};
use crate::record::{Doing, State};
use crate::status::StatusBoard;
use crate::system::say;

/// The shortest and longest interval of state reports to the hub.
const REPORT: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// A leader's view of the other nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    status: StatusBoard,
    cards: Cards,
    star: Star,
    /// The leaders that have received the state below.
    told: Vec<Rank>,
    told_failed: bool,
    told_left: Vec<bool>,
    told_quiet: HashMap<Rank, Option<String>>,
    /// The quiet sections, by the leader that reported them.
    quiet: HashMap<Rank, Option<String>>,
    reports: HashMap<Rank, (Doing, Instant)>,
    reported_at: Instant,
    report_every: Duration,
    met_stranger: bool,
}

impl Nodes {
    /// `None` for a rank that is not a leader, and if all ranks share a status board.
    pub(super) fn new(
        status: &StatusBoard,
        cards: &Cards,
        hub: Option<Hub>,
        warn_after: Duration,
    ) -> Option<Self> {
        let star = Star::new(status.rank(), cards, hub)?;
        let (told, told_quiet, quiet, reports) = Default::default();
        Some(Self {
            status: status.clone(),
            cards: cards.clone(),
            star,
            told,
            told_failed: false,
            told_left: vec![false; cards.ranks()],
            told_quiet,
            quiet,
            reports,
            reported_at: Instant::now(),
            report_every: (warn_after / 4).clamp(REPORT[0], REPORT[1]),
            met_stranger: false,
        })
    }

    pub(super) fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.star.waits_on()
    }

    /// What the ranks of other nodes are doing, as far as known, and for how many seconds they have not been heard of, if that
    /// is long.
    pub(super) fn doings(&self) -> impl Iterator<Item = (Doing, Option<f64>)> {
        let fresh = self.report_every * 2 + Duration::from_secs(1);
        self.reports.values().map(move |(doing, at)| {
            let (doing, age) = (doing.clone(), at.elapsed());
            if age > fresh {
                return (doing, Some(age.as_secs_f64()));
            }
            (Doing { since_s: doing.since_s + age.as_secs_f64(), ..doing }, None)
        })
    }

    /// Processes messages of other leaders, and sends what is new here.
    pub(super) fn round(&mut self, report: &Report) {
        for event in self.star.progress() {
            match event {
                Event::Told(from, message) => self.told(from, message),
                Event::Lost(rank, over, lost) => self.lost(rank, over, lost, report),
                Event::Unreached(ranks) => self.unreached(&ranks),
                Event::Stranger => self.stranger(),
            }
        }
        self.tell();
        // Sends without delay.
        self.star.flush();
    }

    fn told(&mut self, from: Rank, message: Message) {
        let is_rank = |rank: Rank| rank < self.cards.ranks();
        match message {
            Message::Failed { by, cause } if is_rank(by) => drop(self.status.fail(by, &cause)),
            Message::Left { rank } if is_rank(rank) => self.status.leave(rank),
            Message::Quiet { label } => {
                self.quiet.insert(from, label);
                let elsewhere = self.quiet.values().flatten().next();
                self.status.set_quiet_elsewhere(elsewhere.map(String::as_str));
            }
            Message::Doing(ranks) => {
                let (now, ranks) = (Instant::now(), ranks.into_iter().filter(|doing| is_rank(doing.rank)));
                self.reports.extend(ranks.map(|doing| (doing.rank, (doing, now))));
            }
            _ => self.stranger(),
        }
    }

    fn tell(&mut self) {
        let others = self.star.others();
        if others != self.told {
            // A new leader knows nothing yet.
            self.told = others;
            self.told_failed = false;
            self.told_left.fill(false);
            self.told_quiet.clear();
        }
        if self.told.is_empty() {
            return;
        }
        if let Some((by, cause)) = self.status.failed().filter(|_| !self.told_failed) {
            self.told_failed = true;
            self.star.send(&Message::Failed { by, cause });
        }
        for rank in 0..self.told_left.len() {
            if !self.told_left[rank] && self.status.has_left(rank) {
                self.told_left[rank] = true;
                self.star.send(&Message::Left { rank });
            }
        }
        self.tell_of_quiet();
        if !self.star.is_hub() && self.reported_at.elapsed() > self.report_every {
            self.reported_at = Instant::now();
            self.star.send_if_heard(&Message::Doing(self.here().collect()));
        }
    }

    fn here(&self) -> impl Iterator<Item = Doing> {
        (0..self.status.members().len()).map(|position| self.status.doing(position))
    }

    /// Informs each leader of quiet sections on other nodes than its own.
    fn tell_of_quiet(&mut self) {
        if !self.status.is_quiet() && self.told_quiet.values().all(Option::is_none) {
            return;
        }
        let is_quiet = |doing: &Doing| doing.state == State::Quiet || doing.quiet.is_some();
        let here = self.here().find(is_quiet).map(|doing| doing.quiet.unwrap_or_default());
        for &to in &self.told {
            let elsewhere =
                self.quiet.iter().filter(|(from, _)| **from != to).find_map(|(_, label)| label.clone());
            let label = here.clone().or(elsewhere);
            let before = self.told_quiet.insert(to, label.clone()).flatten();
            if before != label {
                self.star.send_to(to, &Message::Quiet { label });
            }
        }
    }

    fn lost(&mut self, rank: Rank, over: IpAddr, lost: Lost, report: &Report) {
        let (own, other) = (self.cards.host_name(self.status.rank()), self.cards.host_name(rank));
        match lost {
            Lost::Goodbye => {}
            Lost::Closed if self.status.has_left(rank) => {}
            Lost::Closed => {
                let known = self.reports.get(&rank).map(|(doing, _)| doing);
                let cause = "its process was killed, has crashed or called exit (its connection is closed)";
                report.died(rank, cause, known);
            }
            Lost::Cut => {
                let seconds = CUT_AFTER.as_secs();
                report.seen(&format!(
                    "the link between {own} and {other} over {over} is cut: nothing acknowledged for {seconds} s"
                ));
            }
            Lost::NoMessage => say(&format!(
                "unisono: what comes from {other} makes no sense, and the connection is closed: failures there are seen by \
                 deadlines alone\n"
            )),
        }
    }

    fn unreached(&self, ranks: &[Rank]) {
        // The hub reports it for both sides.
        if self.star.is_hub() {
            let hosts: Vec<_> = ranks.iter().take(8).map(|&rank| self.cards.host_name(rank)).collect();
            say(&format!(
                "unisono: {} of {} other nodes could not connect to {} by TCP (is there a firewall?): {}; failures \
                 there are seen by deadlines alone\n",
                ranks.len(),
                self.cards.leaders().len() - 1,
                self.cards.host_name(self.status.rank()),
                hosts.join(", "),
            ));
        }
    }

    fn stranger(&mut self) {
        if !std::mem::replace(&mut self.met_stranger, true) {
            say(&format!(
                "unisono: {}: refused a connection from outside this job\n",
                self.cards.host_name(self.status.rank())
            ));
        }
    }

    /// Sends what is still unsent, and says goodbye.
    pub(super) fn close(&mut self) {
        self.tell();
        self.star.close();
    }
}
