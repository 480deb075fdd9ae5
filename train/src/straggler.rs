//! Which rank the others wait for.

use std::time::Duration;

use unisono_collectives::Rank;

use crate::compare;
use crate::error::TrainError;
use unisono::Communicator;
use unisono::internals as system;

/// By what factor a rank must be busier than the others to be called slow: less is noise.
const STANDS_OUT: f64 = 1.2;

/// Where the time of some steps went, on all ranks.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StragglerReport {
    /// After how many steps of the run.
    pub step: u64,
    /// Over how many steps, the last of which is that one.
    pub steps: u64,
    /// Every rank's times.
    pub ranks: Vec<RankTimes>,
    /// The rank that the others wait for, if one stands out: it is busy for a fifth longer than the others usually are.
    pub slowest: Option<Straggler>,
}

/// Where the time of one rank went.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct RankTimes {
    /// Outside of collectives: computing, waiting for input, copying what is saved.
    pub busy_s: f64,
    /// Waiting in all-reduces with nothing else to do.
    pub waited_s: f64,
    /// How much less than the rank that waited longest: for so long others waited for this one.
    pub lateness_s: f64,
}

/// A rank that the others wait for.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Straggler {
    /// The rank.
    pub rank: Rank,
    /// The host that it runs on.
    pub host: String,
    /// How long it was busy.
    pub busy_s: f64,
    /// How long the others were: their median.
    pub others_busy_s: f64,
    /// How long others waited for it.
    pub lateness_s: f64,
}

/// Adds up this rank's times, and compares them with those of the others every so many steps.
#[derive(Debug)]
pub(super) struct Lateness {
    every: Option<u64>,
    steps: u64,
    busy: Duration,
    waited: Duration,
}

impl Lateness {
    pub(super) fn new(every: Option<u64>) -> Self {
        Self { every, steps: 0, busy: Duration::ZERO, waited: Duration::ZERO }
    }

    /// Adds a step's times.
    pub(super) fn add(&mut self, busy: Duration, waited: Duration) {
        self.steps += 1;
        self.busy += busy;
        self.waited += waited;
    }

    /// What all ranks know together, if it is time, after so many steps of the run. Called by all ranks after every step: the
    /// numbers of all are gathered once, and the name of a host if a rank stands out.
    pub(super) fn report(
        &mut self,
        comm: &mut Communicator,
        step: u64,
    ) -> Result<Option<StragglerReport>, TrainError> {
        if !self.every.is_some_and(|every| step.is_multiple_of(every)) {
            return Ok(None);
        }
        let mut gathered = vec![0.0; 2 * comm.ranks()];
        let own = comm.own_part(gathered.len());
        gathered[own].copy_from_slice(&[self.busy.as_secs_f64(), self.waited.as_secs_f64()]);
        comm.all_gather(&mut gathered)?;
        let longest = gathered.chunks(2).map(|times| times[1]).fold(0.0, f64::max);
        let times = |times: &[f64]| RankTimes {
            busy_s: times[0],
            waited_s: times[1],
            lateness_s: longest - times[1],
        };
        let ranks: Vec<RankTimes> = gathered.chunks(2).map(times).collect();
        let slowest = match stands_out(&ranks) {
            Some((rank, others_busy_s)) => {
                let own = system::host();
                let host = compare::broadcast_from(comm, own, rank)?;
                let RankTimes { busy_s, lateness_s, .. } = ranks[rank];
                Some(Straggler { rank, host, busy_s, others_busy_s, lateness_s })
            }
            None => None,
        };
        let report = StragglerReport { step, steps: self.steps, ranks, slowest };
        *self = Self::new(self.every);
        Ok(Some(report))
    }
}

/// The busiest rank and the median of the others, if these have to wait for it.
fn stands_out(ranks: &[RankTimes]) -> Option<(Rank, f64)> {
    let busy = |rank: &Rank| ranks[*rank].busy_s;
    let busiest = (0..ranks.len()).max_by(|one, other| busy(one).total_cmp(&busy(other)))?;
    let mut others: Vec<f64> =
        (0..ranks.len()).filter(|&rank| rank != busiest).map(|rank| busy(&rank)).collect();
    others.sort_by(f64::total_cmp);
    let median = *others.get(others.len() / 2)?;
    (busy(&busiest) > STANDS_OUT * median).then_some((busiest, median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_a_fifth_busier_than_the_others_stands_out() {
        let found = |busy: &[f64]| {
            let times = busy.iter().map(|&busy_s| RankTimes { busy_s, waited_s: 0.0, lateness_s: 0.0 });
            stands_out(&times.collect::<Vec<_>>())
        };
        assert_eq!(found(&[1.0]), None);
        assert_eq!(found(&[1.0, 1.19]), None);
        assert_eq!(found(&[1.0, 1.21]), Some((1, 1.0)));
        assert_eq!(found(&[3.0, 1.0, 1.1, 1.2]), Some((0, 1.1)));
        assert_eq!(found(&[3.0, 2.9, 2.8]), None, "two that are slow are not one");
    }
}
