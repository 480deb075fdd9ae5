//! Checks by waiting ranks, in a program in which the library starts no thread.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::checks::Checks;
use super::identity::Identities;
use super::nodes::Nodes;
use super::report::Report;
use super::sockets::Sockets;
use super::{Kind, TICK, Watched, wait};
use crate::control::{Endpoint, Gathered, Outcome};
use crate::status::{Guard, StatusBoard};

/// The checks of the ranks of this process, which any of them makes while it waits.
#[derive(Debug)]
pub(super) struct ByRanks {
    status: StatusBoard,
    identities: Arc<Identities>,
    report: Arc<Report>,
    warn_after: Duration,
    /// The process whose ranks these are. A forked child has a copy, and must not report for them.
    process_id: u32,
    rounds: Mutex<Rounds>,
    /// The guard of the world of which these ranks are a group.
    _world: Option<Arc<dyn Guard>>,
}

#[derive(Debug)]
struct Rounds {
    checks: Checks,
    nodes: Option<Nodes>,
    last: Instant,
}

impl ByRanks {
    pub(super) fn new(mut watched: Watched) -> std::io::Result<Self> {
        let status = watched.statuses[0].clone();
        let report = Report::new(&status, &watched.identities, false);
        let checks = Checks::new(&watched, &report, watched.kind == Kind::Processes);
        let controls = std::mem::take(&mut watched.controls);
        Self::over(checks, (status, &watched.identities, watched.warn_after), controls, report, None)
    }

    fn over(
        checks: Checks,
        (status, identities, warn_after): (StatusBoard, &Arc<Identities>, Duration),
        controls: Vec<(Rank, OwnedFd)>,
        report: Arc<Report>,
        _world: Option<Arc<dyn Guard>>,
    ) -> std::io::Result<Self> {
        let sockets = Sockets::of_controls((status.rank(), identities.ranks()), controls)?;
        let nodes = sockets.map(|sockets| Nodes::new(sockets, &status, identities, warn_after, true));
        let rounds = Mutex::new(Rounds { checks, nodes, last: Instant::now() });
        let (identities, process_id) = (Arc::clone(identities), std::process::id());
        Ok(Self { status, identities, report, warn_after, process_id, rounds, _world })
    }

    /// Starts an operation of the protocol with `begin`, and runs the protocol until `result` returns one.
    fn meet<R>(
        &self,
        begin: impl FnOnce(&mut Endpoint, Duration),
        result: impl Fn(&mut Endpoint) -> Option<R>,
    ) -> R {
        let mut rounds = self.lock();
        let nodes = rounds.nodes.as_mut().expect("these ranks have connections with other nodes");
        // The next round sends the resulting messages.
        begin(&mut nodes.sockets.endpoint, nodes.sockets.began.elapsed());
        loop {
            nodes.round(&self.report);
            if let Some(result) = result(&mut nodes.sockets.endpoint) {
                // The resulting messages are sent before the caller continues.
                nodes.round(&self.report);
                return result;
            }
            wait(nodes.sockets.waits_on());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guard for ByRanks {
    fn check_peers(&self) {
        let mut rounds = match self.rounds.try_lock() {
            Ok(rounds) => rounds,
            Err(TryLockError::Poisoned(rounds)) => PoisonError::into_inner(rounds),
            // Another rank is checking.
            Err(TryLockError::WouldBlock) => return,
        };
        let Rounds { checks, nodes, last } = &mut *rounds;
        if last.elapsed() < TICK {
            return;
        }
        *last = Instant::now();
        checks.check_processes(false);
        if let Some(nodes) = nodes {
            nodes.round(&self.report);
        }
        if self.status.failed().is_none() {
            checks.check_calls(nodes.iter().flat_map(Nodes::doings));
        }
    }

    fn exchange_now(&self) {
        if let Some(nodes) = &mut self.lock().nodes {
            nodes.round(&self.report);
        }
    }

    /// Prints nothing: the calls of this rank return errors. The failure of a group is not a failure of its world.
    fn fail(&self, status: &StatusBoard, first: Rank, cause: &str) {
        let rank = status.rank();
        if status.failed().is_none_or(|(by, _)| by == rank) {
            status.fail(rank, first, cause);
        }
        status.exchange_now();
    }

    fn of_group(
        self: Arc<Self>,
        status: &StatusBoard,
        ranks: &[Rank],
        controls: Vec<(Rank, OwnedFd)>,
    ) -> std::io::Result<Option<Arc<dyn Guard>>> {
        if controls.is_empty() {
            return Ok(None);
        }
        let identities =
            Arc::new(Identities(ranks.iter().map(|&rank| self.identities.0[rank].clone()).collect()));
        let report = Report::new(status, &identities, false);
        let checks = Checks::of_group(status, &identities, &report);
        let watched = (status.clone(), &identities, self.warn_after);
        Ok(Some(Arc::new(Self::over(checks, watched, controls, report, Some(self))?)))
    }

    fn can_agree(&self) -> bool {
        self.lock().nodes.is_some()
    }

    fn agree(&self, patience: Duration, minimum: Option<usize>) -> Outcome {
        self.meet(|protocol, now| protocol.call(now, patience, minimum), Endpoint::take_outcome)
    }

    fn gather(&self, bytes: Vec<u8>, patience: Duration) -> Gathered {
        self.meet(|protocol, now| protocol.gather(now, patience, bytes), Endpoint::take_gathered)
    }

    fn finish(&self, patience: Duration) -> Gathered {
        self.meet(|protocol, now| protocol.finish(now, patience), Endpoint::take_gathered)
    }
}

impl Drop for ByRanks {
    fn drop(&mut self) {
        let rounds = self.rounds.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(nodes) = rounds.nodes.as_mut().filter(|_| std::process::id() == self.process_id) {
            nodes.close(&self.report);
        }
    }
}

#[cfg(test)]
mod tests;
