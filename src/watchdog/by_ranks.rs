//! Checks that ranks make themselves while they wait, in a program in which the library starts no thread.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

use super::checks::Checks;
use super::report::Report;
use super::{Kind, TICK, Watched};
use crate::status::{Guard, StatusBoard};

/// The checks of the ranks of this process, made by whichever of them waits.
#[derive(Debug)]
pub(super) struct ByRanks {
    status: StatusBoard,
    checks: Mutex<(Checks, Instant)>,
}

impl ByRanks {
    pub(super) fn new(watched: &Watched, report: &Arc<Report>) -> Self {
        let checks = Checks::new(watched, report, watched.kind == Kind::Processes);
        Self { status: watched.statuses[0].clone(), checks: Mutex::new((checks, Instant::now())) }
    }
}

impl Guard for ByRanks {
    fn look(&self) {
        let mut checks = match self.checks.try_lock() {
            Ok(checks) => checks,
            Err(TryLockError::Poisoned(checks)) => PoisonError::into_inner(checks),
            // Another rank looks.
            Err(TryLockError::WouldBlock) => return,
        };
        let (checks, last) = &mut *checks;
        if last.elapsed() < TICK {
            return;
        }
        *last = Instant::now();
        checks.look_at_processes(false);
        if self.status.failed().is_none() {
            checks.look_at_calls(std::iter::empty());
        }
    }
}
