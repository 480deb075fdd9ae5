//! Finds the rank that the others wait for.

use std::time::Duration;

use unisono_collectives::Rank;

use crate::TrainError;
use crate::compare;
use unisono::internals::host;
use unisono::{Communicator, Times};

/// The times of all ranks over some steps.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StragglerReport {
    /// The number of completed steps of the run.
    pub step: u64,
    /// The number of steps covered, up to and including that one.
    pub steps: u64,
    /// The times of every rank.
    pub ranks: Vec<RankTimes>,
    /// The straggler, if one rank stands out: its busy time exceeds the median of the others by a fifth.
    pub slowest: Option<Straggler>,
}

/// The times of one rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct RankTimes {
    /// The time outside of collectives: computing, waiting for input, copying a checkpoint.
    pub busy_s: f64,
    /// The time spent waiting in all-reduces.
    pub waited_s: f64,
    /// The time by which it waited less than the rank that waited longest. Others waited for it that long.
    pub lateness_s: f64,
}

/// A rank that the others wait for.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Straggler {
    /// The rank.
    pub rank: Rank,
    /// Its host.
    pub host: String,
    /// The time that it was busy.
    pub busy_s: f64,
    /// The median busy time of the other ranks.
    pub others_busy_s: f64,
    /// The time that others waited for it.
    pub lateness_s: f64,
}

/// Accumulates this rank's times, and compares them with the times of the other ranks every given number of steps.
#[derive(Debug)]
pub(super) struct Stragglers {
    every: Option<u64>,
    steps: u64,
    times: Times,
}

impl Stragglers {
    pub(super) fn new(every: Option<u64>) -> Self {
        Self { every, steps: 0, times: Times { busy: Duration::ZERO, waited: Duration::ZERO } }
    }

    pub(super) fn add(&mut self, busy: Duration, waited: Duration) {
        self.steps += 1;
        self.times.busy += busy;
        self.times.waited += waited;
    }

    /// Returns the report, if one is due after this many steps of the run. Called by all ranks after every step. A gather collects all times. A
    /// broadcast distributes the host of a straggler, if there is one.
    pub(super) fn report(
        &mut self,
        comm: &mut Communicator,
        step: u64,
    ) -> Result<Option<StragglerReport>, TrainError> {
        if !self.every.is_some_and(|every| step.is_multiple_of(every)) {
            return Ok(None);
        }
        let lateness = comm.compare_times(self.times)?;
        let longest = lateness.ranks.iter().map(|times| times.waited).max().unwrap_or_default();
        let times = |&Times { busy, waited }: &Times| RankTimes {
            busy_s: busy.as_secs_f64(),
            waited_s: waited.as_secs_f64(),
            lateness_s: (longest - waited).as_secs_f64(),
        };
        let ranks: Vec<RankTimes> = lateness.ranks.iter().map(times).collect();
        let slowest = match lateness.straggler() {
            Some((rank, others_busy)) => {
                let host = compare::broadcast_from(comm, &host(), rank)?;
                let RankTimes { busy_s, lateness_s, .. } = ranks[rank];
                Some(Straggler { rank, host, busy_s, others_busy_s: others_busy.as_secs_f64(), lateness_s })
            }
            None => None,
        };
        let report = StragglerReport { step, steps: self.steps, ranks, slowest };
        *self = Self::new(self.every);
        Ok(Some(report))
    }
}
