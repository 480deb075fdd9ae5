//! The checks of a node: processes that have ended, news of other nodes, long waits, and mismatched calls.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::disagreement::{deadlock, disagreement};
use super::nodes::{LONGEST_FRESH, Nodes};
use super::processes::Processes;
use super::report::Report;
use super::warning::Warnings;
use super::{Kind, Watched};
use crate::record::{Doing, State};
use crate::status::PROCESS_ENDED;
use crate::system::print_line;

/// The shortest duration of a suspected deadlock before it is reported. Within it, every report of another node is replaced.
const LASTING: Duration = LONGEST_FRESH.saturating_add(Duration::from_secs(1));

#[derive(Debug)]
pub(super) struct Checks {
    pub(super) report: Arc<Report>,
    processes: Processes,
    /// The state of other nodes, if this process exchanges news with them.
    pub(super) nodes: Option<Nodes>,
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
        Self { processes, warnings, warns, compares, others_check, ..Self::of_group(report) }
    }

    /// Returns the checks of a group. Its world checks the processes and long waits.
    pub(super) fn of_group(report: &Arc<Report>) -> Self {
        Self {
            report: Arc::clone(report),
            processes: Processes::default(),
            nodes: None,
            warnings: Warnings::new(Duration::MAX),
            warns: false,
            compares: true,
            deadlock: None,
            others_check: true,
        }
    }

    /// Returns the descriptors whose events a check processes, and whether to poll for writability too.
    pub(super) fn waits_on(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let processes = self.processes.waits_on().map(|file| (file, false));
        processes.chain(self.nodes.iter().flat_map(|nodes| nodes.sockets.waits_on()))
    }

    /// Makes all checks once. `is_same_end` is whether processes that end now do so for the same reason as this one, and `is_whole_end` whether
    /// all of them do, which is no news for other nodes.
    pub(super) fn round(&mut self, is_same_end: bool, is_whole_end: bool) {
        self.check_processes(is_same_end);
        if let Some(nodes) = self.nodes.as_mut().filter(|_| !is_whole_end) {
            nodes.round();
        }
        if self.report.status.failure().is_none() {
            self.check_calls();
        }
    }

    /// Reports the ranks whose processes have ended, unless they end for the same reason as this one. A rank that has left may still be in
    /// a group.
    fn check_processes(&mut self, is_same_end: bool) {
        for rank in self.processes.ended() {
            if self.report.status.has_left(rank) {
                self.report.status.set_gone(rank);
            } else if !is_same_end {
                self.report.died(rank, PROCESS_ENDED, None);
            }
        }
    }

    /// Returns a deadlock that has lasted longer than any report of another node is valid.
    fn lasting(&mut self, found: Option<(Rank, String)>) -> Option<(Rank, String)> {
        let since = match (&self.deadlock, &found) {
            (Some((before, since)), Some((_, cause))) if before == cause => *since,
            _ => Instant::now(),
        };
        self.deadlock = found.as_ref().map(|(_, cause)| (cause.clone(), since));
        found.filter(|_| since.elapsed() > LASTING)
    }

    /// Checks the calls of the ranks of this node, and the reported ones of other nodes, for long waits and mismatches.
    fn check_calls(&mut self) {
        let status = &self.report.status;
        if !self.compares || status.is_quiet() || !self.warnings.is_time() {
            return;
        }
        let here = (0..status.members().len()).map(|position| (status.doing(position), None));
        let ranks: Vec<_> = here.chain(self.nodes.iter().flat_map(Nodes::doings)).collect();
        let waits = |doing: &&Doing| doing.state == State::Inside || doing.group.is_some();
        let first = || ranks.iter().map(|(doing, _)| doing).find(waits);
        if self.others_check && first().is_none_or(|first| first.rank != status.rank()) {
            return;
        }
        if let Some(cause) = disagreement(&ranks) {
            return self.report.detected(status.rank(), &cause);
        }
        if let Some((rank, cause)) = self.lasting(deadlock(&ranks)) {
            return self.report.detected(rank, &cause);
        }
        if let Some(warning) = self.warnings.due(&ranks, &self.report.identities).filter(|_| self.warns) {
            print_line(&warning);
        }
    }
}
