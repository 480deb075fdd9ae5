//! The exchange of rank states between the leaders of nodes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::report::Report;
use super::sockets::{CUT_AFTER, Sockets};
use crate::control::{self, How, Message};
use crate::record::{Doing, State};
use crate::status::{FirstFailure, PROCESS_ENDED};
use crate::system::print_line;

/// The shortest and longest interval of state reports to the hub, or to all.
const REPORT: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// The time for which a report is valid beyond two intervals, and the longest validity of a report.
const GRACE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_FRESH: Duration = REPORT[1].saturating_mul(2).saturating_add(GRACE);

/// The number of unreachable hosts that a message lists.
const MOST_HOSTS: usize = 8;

/// The state of other nodes, as known to a leader, or to a rank that is connected with the ranks there.
#[derive(Debug)]
pub(super) struct Nodes {
    report: Arc<Report>,
    pub(super) sockets: Sockets,
    /// The leaders that have received the state below.
    informed: Vec<Rank>,
    sent_failure: bool,
    sent_left: Vec<bool>,
    sent_quiet: HashMap<Rank, Option<String>>,
    /// The quiet sections, by the leader that reported them.
    quiet: HashMap<Rank, Option<String>>,
    reports: HashMap<Rank, (Doing, Instant)>,
    reported_at: Instant,
    report_every: Duration,
    has_reported_stranger: bool,
    /// Whether every rank reports to all ranks of other nodes, so that no rank reports for others.
    reports_to_all: bool,
}

impl Nodes {
    pub(super) fn new(
        sockets: Sockets,
        report: &Arc<Report>,
        warn_after: Duration,
        reports_to_all: bool,
    ) -> Self {
        let (informed, sent_quiet, quiet, reports) = Default::default();
        Self {
            report: Arc::clone(report),
            sockets,
            informed,
            sent_failure: false,
            sent_left: vec![false; report.identities.ranks()],
            sent_quiet,
            quiet,
            reports,
            reported_at: Instant::now(),
            report_every: (warn_after / 4).clamp(REPORT[0], REPORT[1]),
            has_reported_stranger: false,
            reports_to_all,
        }
    }

    /// Returns the last known activity of the ranks of other nodes and, if a report is outdated, the seconds since it.
    pub(super) fn doings(&self) -> impl Iterator<Item = (Doing, Option<f64>)> {
        let fresh = self.report_every * 2 + GRACE;
        self.reports.values().map(move |(doing, at)| {
            let (doing, age) = (doing.clone(), at.elapsed());
            if age > fresh {
                return (doing, Some(age.as_secs_f64()));
            }
            (Doing { since_s: doing.since_s + age.as_secs_f64(), ..doing }, None)
        })
    }

    /// Processes messages of other leaders, and sends the news of this node.
    pub(super) fn round(&mut self) {
        for (news, over) in self.sockets.progress() {
            match news {
                control::Report::Told(from, message) => self.receive(from, message),
                control::Report::Lost(rank, _, how) => self.lost(rank, over, how),
                control::Report::Unreached(ranks) => self.unreached(&ranks),
                control::Report::Stranger => self.stranger(),
            }
        }
        self.sockets.endpoint.callers().for_each(|rank| self.report.status.set_shrinks(rank));
        self.send_news();
        // Sends without delay.
        drop(self.sockets.flush());
    }

    fn receive(&mut self, from: Rank, message: Message) {
        let is_rank = |rank: Rank| rank < self.report.identities.ranks();
        match message {
            Message::Failed { by, first, cause } if is_rank(by) && is_rank(first) => {
                self.report.status.fail(by, first, &cause);
            }
            Message::Left { rank } if is_rank(rank) => self.report.status.leave(rank),
            Message::Quiet { .. } | Message::Doing(_) if self.is_here(from) => {}
            Message::Quiet { label } => {
                self.quiet.insert(from, label);
                self.publish_quiet();
            }
            Message::Doing(ranks) => {
                let now = Instant::now();
                let ranks = ranks.into_iter().filter(|doing| is_rank(doing.rank));
                self.reports.extend(ranks.map(|doing| (doing.rank, (doing, now))));
            }
            _ => self.stranger(),
        }
    }

    /// Records on the status board whether there is a quiet section on another node.
    fn publish_quiet(&self) {
        self.report.status.set_quiet_elsewhere(self.quiet.values().any(Option::is_some));
    }

    fn send_news(&mut self) {
        let (status, others) = (&self.report.status, self.sockets.others());
        if others != self.informed {
            // A new leader has received nothing yet.
            self.informed = others;
            self.sent_failure = false;
            self.sent_left.fill(false);
            self.sent_quiet.retain(|to, _| self.informed.contains(to));
        }
        if self.informed.is_empty() {
            return;
        }
        if let Some(FirstFailure { by, first, cause }) = status.failure().filter(|_| !self.sent_failure) {
            self.sent_failure = true;
            self.sockets.endpoint.send(&Message::Failed { by, first, cause });
        }
        for rank in 0..self.sent_left.len() {
            let is_reported_by_itself = self.reports_to_all && rank != status.rank();
            if !self.sent_left[rank] && status.has_left(rank) && !is_reported_by_itself {
                self.sent_left[rank] = true;
                self.sockets.endpoint.send(&Message::Left { rank });
            }
        }
        self.send_quiet();
        if !self.sockets.is_hub && self.reported_at.elapsed() > self.report_every {
            self.reported_at = Instant::now();
            self.sockets.endpoint.send_to_responsive(&Message::Doing(self.here().collect()));
        }
    }

    fn here(&self) -> impl Iterator<Item = Doing> {
        let status = &self.report.status;
        let own = status.position();
        let positions = if self.reports_to_all { own..own + 1 } else { 0..status.members().len() };
        positions.map(|position| status.doing(position))
    }

    /// Informs each leader of quiet sections on other nodes than its own.
    fn send_quiet(&mut self) {
        if !self.report.status.is_quiet() && self.sent_quiet.values().all(Option::is_none) {
            return;
        }
        let is_quiet = |doing: &Doing| doing.state == State::Quiet || doing.quiet.is_some();
        let here = self.here().find(is_quiet).map(|doing| doing.quiet.unwrap_or_default());
        for &to in &self.informed {
            let mut others = self.quiet.iter().filter(|(from, _)| **from != to && !self.reports_to_all);
            let elsewhere = others.find_map(|(_, label)| label.clone());
            let label = here.clone().or(elsewhere);
            let before = self.sent_quiet.insert(to, label.clone()).flatten();
            if before != label {
                self.sockets.endpoint.send_to(to, &Message::Quiet { label });
            }
        }
    }

    fn is_here(&self, rank: Rank) -> bool {
        self.report.status.members().contains(&rank)
    }

    fn lost(&mut self, rank: Rank, over: Option<IpAddr>, how: How) {
        if self.quiet.remove(&rank).is_some() {
            self.publish_quiet();
        }
        let Report { status, identities, .. } = &*self.report;
        let (own, other) = (identities.host_name(status.rank()), identities.host_name(rank));
        match how {
            How::Goodbye => {}
            How::Closed if status.has_left(rank) || self.is_here(rank) => {}
            How::Closed => {
                let known = self.reports.get(&rank).map(|(doing, _)| doing);
                self.report.died(rank, &format!("{PROCESS_ENDED} (its connection is closed)"), known);
            }
            How::Silent => {
                let seconds = CUT_AFTER.as_secs();
                let over = over.map_or_else(String::new, |over| format!(" over {over}"));
                let cause = format!(
                    "the link between {own} and {other}{over} is cut: nothing acknowledged for {seconds} s"
                );
                self.report.detected(rank, &cause);
            }
            How::Malformed => print_line(&format!(
                "{other} has sent invalid data, and the connection is closed: failures there are detected by \
                 deadlines alone"
            )),
        }
    }

    fn unreached(&self, ranks: &[Rank]) {
        // The hub reports it for both sides.
        if self.sockets.is_hub {
            let Report { status, identities, .. } = &*self.report;
            let name = |&rank: &Rank| identities.host_name(rank);
            let hosts: Vec<_> = ranks.iter().take(MOST_HOSTS).map(name).collect();
            let more = match ranks.len() - hosts.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            print_line(&format!(
                "{} of {} other nodes could not connect to {} by TCP (is there a firewall?): {}{more}; failures \
                 there are detected by deadlines alone",
                ranks.len(),
                identities.leaders().len() - 1,
                name(&status.rank()),
                hosts.join(", "),
            ));
        }
    }

    fn stranger(&mut self) {
        if !std::mem::replace(&mut self.has_reported_stranger, true) {
            print_line(&format!(
                "{}: refused a connection from outside this job",
                self.report.identities.host_name(self.report.status.rank())
            ));
        }
    }

    /// Reads received data, so that the kernel does not reset the connections, sends queued data and a goodbye.
    pub(super) fn close(&mut self) {
        self.round();
        self.sockets.close();
    }
}
