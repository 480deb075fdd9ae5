//! What is checked on a node: processes that have ended, long waits, and mismatched calls.

use std::sync::Arc;

use super::card::Cards;
use super::disagreement::disagreement;
use super::processes::Processes;
use super::report::Report;
use super::warning::Warnings;
use super::{Kind, Watched};
use crate::record::{Doing, State};
use crate::status::StatusBoard;
use crate::system::say;

/// The checks of one process.
#[derive(Debug)]
pub(super) struct Checks {
    status: StatusBoard,
    cards: Arc<Cards>,
    report: Arc<Report>,
    pub(super) processes: Processes,
    /// For the ranks of rank 0's node.
    warnings: Option<Warnings>,
    /// Whether other processes of the node check the same calls. Then the first of their ranks that is in a call speaks for all.
    others_check: bool,
}

impl Checks {
    pub(super) fn new(watched: &Watched, report: &Arc<Report>, others_check: bool) -> Self {
        let Watched { statuses, cards, warn_after, kind, .. } = watched;
        let status = statuses[0].clone();
        let processes = match kind {
            Kind::Processes => Processes::on(&status, cards),
            Kind::Threads => Processes::default(),
        };
        let warns = status.rank() == 0 || others_check && status.members().contains(&0);
        let warnings = warns.then(|| Warnings::new(*warn_after));
        Self {
            status,
            cards: Arc::clone(cards),
            report: Arc::clone(report),
            processes,
            warnings,
            others_check,
        }
    }

    /// Reports the ranks whose processes have ended, unless they have left, or end for the same reason as this one.
    pub(super) fn look_at_processes(&mut self, is_same_end: bool) {
        for rank in self.processes.ended() {
            if !self.status.has_left(rank) && !is_same_end {
                self.report.died(rank, "its process was killed, has crashed or called exit", None);
            }
        }
    }

    /// Checks the calls of the ranks of this node, and those `elsewhere` as far as they are known, for long waits and mismatches.
    pub(super) fn look_at_calls(&mut self, elsewhere: impl Iterator<Item = (Doing, Option<f64>)>) {
        let Some(warnings) = self.warnings.as_mut().filter(|_| !self.status.is_quiet()) else { return };
        if !warnings.is_time() {
            return;
        }
        let here = (0..self.status.members().len()).map(|position| (self.status.doing(position), None));
        let ranks: Vec<_> = here.chain(elsewhere).collect();
        let first = || ranks.iter().map(|(doing, _)| doing).find(|doing| doing.state == State::Inside);
        if self.others_check && first().is_none_or(|first| first.rank != self.status.rank()) {
            return;
        }
        if let Some(cause) = disagreement(&ranks) {
            return self.report.seen(&cause);
        }
        if let Some(warning) = warnings.due(&ranks, &self.cards) {
            say(&warning);
        }
    }
}
