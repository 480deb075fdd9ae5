//! The checks of a node: processes that have ended, long waits, and mismatched calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::disagreement::{deadlock, disagreement};
use super::identity::Identities;
use super::nodes::LONGEST_FRESH;
use super::processes::Processes;
use super::report::Report;
use super::warning::Warnings;
use super::{Kind, Watched};
use crate::record::{Doing, State};
use crate::status::{PROCESS_ENDED, StatusBoard};
use crate::system::print_line;

/// The shortest duration of a suspected deadlock before it is reported. Within it, every report of another node is replaced.
const LASTING: Duration = LONGEST_FRESH.saturating_add(Duration::from_secs(1));

#[derive(Debug)]
pub(super) struct Checks {
    status: StatusBoard,
    identities: Arc<Identities>,
    report: Arc<Report>,
    pub(super) processes: Processes,
    warnings: Warnings,
    /// Whether to warn of long waits: on rank 0's node.
    warns: bool,
    compares: bool,
    /// A suspected deadlock, and its beginning.
    deadlock: Option<(String, Instant)>,
    /// Whether other processes of the node check the same calls. If so, only the first of their ranks that is in a call reports.
    others_check: bool,
}

impl Checks {
    pub(super) fn new(watched: &Watched, report: &Arc<Report>, others_check: bool) -> Self {
        let Watched { statuses, identities, controls, warn_after, kind, .. } = watched;
        let status = &statuses[0];
        let processes = match kind {
            Kind::Processes => Processes::on(status, identities),
            Kind::Threads => Processes::default(),
        };
        let warns = status.rank() == 0 || others_check && status.members().contains(&0);
        let (warnings, compares) = (Warnings::new(*warn_after), warns || !controls.is_empty());
        let of_group = Self::of_group(status, identities, report);
        Self { processes, warnings, warns, compares, others_check, ..of_group }
    }

    /// Returns the checks of a group. Its world checks the processes and long waits.
    pub(super) fn of_group(status: &StatusBoard, identities: &Arc<Identities>, report: &Arc<Report>) -> Self {
        Self {
            status: status.clone(),
            identities: Arc::clone(identities),
            report: Arc::clone(report),
            processes: Processes::default(),
            warnings: Warnings::new(Duration::MAX),
            warns: false,
            compares: true,
            deadlock: None,
            others_check: true,
        }
    }

    /// Reports the ranks whose processes have ended, unless they end for the same reason as this one. A rank that has left may still be in
    /// a group.
    pub(super) fn check_processes(&mut self, is_same_end: bool) {
        for rank in self.processes.ended() {
            if self.status.has_left(rank) {
                self.status.set_gone(rank);
            } else if !is_same_end {
                self.report.died(rank, PROCESS_ENDED, None);
            }
        }
    }

    /// Returns a deadlock that has lasted longer than any report of another node is valid.
    fn lasting(&mut self, found: Option<(Rank, String)>) -> Option<(Rank, String)> {
        let Some((_, cause)) = &found else {
            self.deadlock = None;
            return None;
        };
        if self.deadlock.as_ref().is_none_or(|(before, _)| before != cause) {
            self.deadlock = Some((cause.clone(), Instant::now()));
        }
        let since = self.deadlock.as_ref().map(|(_, since)| *since)?;
        found.filter(|_| since.elapsed() > LASTING)
    }

    /// Checks the calls of the ranks of this node, and the reported calls `elsewhere`, for long waits and mismatches.
    pub(super) fn check_calls(&mut self, elsewhere: impl Iterator<Item = (Doing, Option<f64>)>) {
        if !self.compares || self.status.is_quiet() || !self.warnings.is_time() {
            return;
        }
        let here = (0..self.status.members().len()).map(|position| (self.status.doing(position), None));
        let ranks: Vec<_> = here.chain(elsewhere).collect();
        let waits = |doing: &&Doing| doing.state == State::Inside || doing.group.is_some();
        let first = || ranks.iter().map(|(doing, _)| doing).find(waits);
        if self.others_check && first().is_none_or(|first| first.rank != self.status.rank()) {
            return;
        }
        if let Some(cause) = disagreement(&ranks) {
            return self.report.detected(self.status.rank(), &cause);
        }
        if let Some((rank, cause)) = self.lasting(deadlock(&ranks)) {
            return self.report.detected(rank, &cause);
        }
        if let Some(warning) = self.warnings.due(&ranks, &self.identities).filter(|_| self.warns) {
            print_line(&warning);
        }
    }
}
