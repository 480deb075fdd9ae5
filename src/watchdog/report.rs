//! Failure reports of a process, ordered so that the first cause comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use unisono_collectives::Rank;

use super::card::Cards;
use crate::record::{Doing, Stage};
use crate::status::{StatusBoard, dump_all};
use crate::system::say;

/// The time by which other ranks report later than the first cause: the output of each rank takes its own path to the
/// launcher, and should arrive in this order.
pub(super) const LATER: Duration = Duration::from_millis(100);

/// Reports the failure of one rank, once.
#[derive(Debug)]
pub(crate) struct Report {
    status: StatusBoard,
    cards: Arc<Cards>,
    /// Whether to print: in a program that continues, the library prints nothing.
    speaks: bool,
    said: AtomicBool,
}

impl Report {
    pub(super) fn new(status: StatusBoard, cards: Arc<Cards>, speaks: bool) -> Self {
        Self { status, cards, speaks, said: AtomicBool::new(false) }
    }

    /// Returns the rank whose failure it reports.
    pub(super) fn rank(&self) -> Rank {
        self.status.rank()
    }

    /// Returns whether this rank may print: it prints only one report.
    fn may_speak(&self) -> bool {
        self.speaks && !self.said.swap(true, Ordering::Relaxed)
    }

    /// Another rank's process has ended. The first to notice reports it and writes that rank's dump. For a rank of another node,
    /// `known` is what it was last known to be doing.
    pub(super) fn died(&self, rank: Rank, cause: &str, known: Option<&Doing>) {
        if self.status.fail(rank, rank, cause) {
            let position = self.status.position_of(rank);
            let doing = position.map(|position| self.status.doing(position));
            if self.speaks {
                say(&first_line(&self.cards, "has died", doing.as_ref().or(known), rank, cause));
            }
            if position.is_some() {
                dump_all(&self.status, &format!("rank {rank} has died"));
            }
        }
        self.status.die(rank);
    }

    /// The watchdog of this rank has detected that the world cannot continue: the link with rank `first` is cut, or calls mismatch.
    pub(super) fn seen(&self, first: Rank, cause: &str) {
        let rank = self.status.rank();
        if self.status.fail(rank, first, cause) && self.may_speak() {
            say(&format!("{}: {cause}", self.cards.whole_name(rank)));
        }
    }

    /// Reports that this rank ends because another has failed.
    pub(super) fn aborted(&self) {
        let (own, failed) = (self.status.rank(), self.status.failed());
        if let Some((by, cause)) = failed.filter(|(by, _)| *by != own)
            && self.may_speak()
        {
            say(&format!("rank {own}: aborted because rank {by} failed: {cause}"));
        }
    }

    /// Reports why this rank cannot continue, because of rank `first`, and records it. If another failed before, it reports that
    /// instead, a little later.
    pub(super) fn fail(&self, first: Rank, cause: &str) {
        let rank = self.status.rank();
        if self.status.failed().is_some_and(|(by, _)| by != rank) {
            if self.speaks {
                std::thread::sleep(LATER);
                self.aborted();
            }
            return;
        }
        if self.may_speak() {
            let doing = self.status.doing(self.status.position());
            say(&first_line(&self.cards, "has failed", Some(&doing), rank, cause));
        }
        self.status.fail(rank, first, cause);
    }
}

/// Returns the first line of a report: which rank failed, where, in which call if known, and why.
fn first_line(cards: &Cards, how: &str, doing: Option<&Doing>, rank: Rank, cause: &str) -> String {
    let place = match doing.map(|doing| &doing.last) {
        None => String::new(),
        Some(None) => " before its first collective".to_owned(),
        Some(Some(call)) if call.stage == Stage::Done && call.is_of_setup() => {
            " before its first collective".to_owned()
        }
        Some(Some(call)) if call.stage == Stage::Done => format!(" after {}", call.name()),
        Some(Some(call)) => format!(" in {}, step {}", call.name(), call.step),
    };
    format!("{} {how}{place}: {cause}", cards.whole_name(rank))
}
