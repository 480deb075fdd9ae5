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
use super::{Kind, TICK, Watched};
use crate::control::{Endpoint, Gathered, Outcome};
use crate::record::Doing;
use crate::status::{Guard, StatusBoard};

/// The time between the rounds of an agreement.
const NAP: Duration = Duration::from_millis(1);

/// The checks of the ranks of this process, which any of them makes while it waits.
#[derive(Debug)]
pub(super) struct ByRanks {
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
    last: Instant,
}

impl Rounds {
    fn nodes(&mut self) -> &mut Nodes {
        self.checks.nodes.as_mut().expect("these ranks have connections with other nodes")
    }
}

impl ByRanks {
    pub(super) fn new(watched: Watched) -> std::io::Result<Self> {
        let report = Report::new(&watched.statuses[0], &watched.identities, false);
        let checks = Checks::new(&watched, &report, watched.kind == Kind::Processes);
        Self::over(checks, watched.controls, watched.warn_after, None)
    }

    fn over(
        mut checks: Checks,
        controls: Vec<(Rank, OwnedFd)>,
        warn_after: Duration,
        _world: Option<Arc<dyn Guard>>,
    ) -> std::io::Result<Self> {
        let report = Arc::clone(&checks.report);
        let sockets = Sockets::of_controls((report.status.rank(), report.identities.ranks()), controls)?;
        checks.nodes = sockets.map(|sockets| Nodes::new(sockets, &report, warn_after, true));
        let rounds = Mutex::new(Rounds { checks, last: Instant::now() });
        Ok(Self { report, warn_after, process_id: std::process::id(), rounds, _world })
    }

    /// Starts an operation of the protocol with `begin`, and runs the protocol until `result` returns one. A quiet section of a rank renews its
    /// deadline, up to the deadline of such sections.
    fn meet<R>(
        &self,
        quiet: Duration,
        begin: impl FnOnce(&mut Endpoint, Duration),
        result: impl Fn(&mut Endpoint) -> Option<R>,
    ) -> R {
        let since = Instant::now();
        let mut rounds = self.lock();
        let Sockets { endpoint, began, .. } = &mut rounds.nodes().sockets;
        // The next round sends the resulting messages.
        begin(endpoint, began.elapsed());
        loop {
            let nodes = rounds.nodes();
            if self.report.status.is_quiet() && since.elapsed() < quiet {
                let Sockets { endpoint, began, .. } = &mut nodes.sockets;
                endpoint.wait_longer(began.elapsed());
            }
            nodes.round();
            if let Some(result) = result(&mut nodes.sockets.endpoint) {
                // The resulting messages are sent before the caller continues.
                nodes.round();
                return result;
            }
            // Other threads may check and fail meanwhile, in groups that share memory.
            drop(rounds);
            std::thread::sleep(NAP);
            rounds = self.lock();
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
        if rounds.last.elapsed() >= TICK {
            rounds.last = Instant::now();
            rounds.checks.round(false, false);
        }
    }

    fn doing(&self, rank: Rank) -> Option<Doing> {
        let rounds = self.lock();
        let mut recent = rounds.checks.nodes.as_ref()?.doings().filter(|(_, outdated)| outdated.is_none());
        recent.find_map(|(doing, _)| (doing.rank == rank).then_some(doing))
    }

    fn exchange_now(&self) {
        if let Some(nodes) = &mut self.lock().checks.nodes {
            nodes.round();
        }
    }

    /// Prints nothing: the calls of this rank return errors. The failure of a group is not a failure of its world.
    fn fail(&self, status: &StatusBoard, first: Rank, cause: &str) {
        let rank = status.rank();
        if status.failure().is_none_or(|failure| failure.by == rank) {
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
        let identities = ranks.iter().map(|&rank| self.report.identities.0[rank].clone()).collect();
        let report = Report::new(status, &Arc::new(Identities(identities)), false);
        let (checks, warn_after) = (Checks::of_group(&report), self.warn_after);
        Ok(Some(Arc::new(Self::over(checks, controls, warn_after, Some(self))?)))
    }

    fn can_agree(&self) -> bool {
        self.lock().checks.nodes.is_some()
    }

    fn agree(&self, (timeout, quiet): (Duration, Duration), minimum: Option<usize>) -> Outcome {
        self.meet(quiet, |protocol, now| protocol.call(now, timeout, minimum), Endpoint::take_outcome)
    }

    fn gather(&self, bytes: Vec<u8>, (timeout, quiet): (Duration, Duration)) -> Gathered {
        self.meet(quiet, |protocol, now| protocol.gather(now, timeout, bytes), Endpoint::take_gathered)
    }

    fn finish(&self, (timeout, quiet): (Duration, Duration)) -> Gathered {
        self.meet(quiet, |protocol, now| protocol.finish(now, timeout), Endpoint::take_gathered)
    }
}

impl Drop for ByRanks {
    fn drop(&mut self) {
        let rounds = self.rounds.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(nodes) = rounds.checks.nodes.as_mut().filter(|_| std::process::id() == self.process_id) {
            nodes.close();
        }
    }
}

#[cfg(test)]
mod tests;
