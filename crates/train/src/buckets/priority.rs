//! The order in which buckets are sent if the next forward pass overlaps them: the buckets that it needs first have priority.
//!
//! All ranks must launch the same collectives in the same order, although buckets may fill in another order on each. The order is therefore a function
//! of times on which all ranks have agreed: the times of the slowest rank's pass, and of the fastest flights (in which no rank waited for another). A
//! choice at every launch would need an agreement, and thus a latency, per bucket. The order changes no bits.
//!
//! **Sources**: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019, section 4; Peng et al.,
//! "A generic communication scheduler for distributed DNN training acceleration", SOSP 2019, section 3.

use std::time::Duration;

use super::Buckets;
use unisono::{Choice, Communicator, Error, ReduceOp};
use unisono_steps::{Bucket, launch_order};

impl Buckets {
    /// As [`Buckets::gradient`], also for a gradient of the previous step.
    pub(crate) fn late_gradient(&mut self, index: usize) -> Result<&[f32], Error> {
        let place = self.ledger.place(index).clone();
        self.complete(place.bucket)?;
        Ok(&self.buckets[place.bucket].gradients.values()[place.range])
    }

    /// Derives the order of the next steps from the measurements of this one. Called by all ranks, after all buckets have completed.
    pub(crate) fn agree_on_order(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let buckets = self.len();
        let us = |time: Duration| 1e6 * time.as_secs_f32();
        let mut measured: Vec<f32> = self.ledger.filled_after.iter().copied().map(us).collect();
        // Negative, so that the maximum is the fastest flight.
        measured.resize(2 * buckets, f32::MIN);
        for flight in &self.flights {
            if let Some(bucket) = flight.bucket {
                let found = &mut measured[buckets + bucket];
                *found = found.max(-us(flight.ended - flight.began));
            }
        }
        comm.call().algorithm(Choice::Auto).all_reduce(&mut measured, ReduceOp::Max)?;
        let (filled, flights) = measured.split_at(buckets);
        let times_us = filled.iter().zip(flights).map(|(&full, &flight)| (full.into(), -f64::from(flight)));
        let buckets = times_us.map(|(full_us, all_reduce_us)| Bucket { full_us, all_reduce_us });
        self.ledger.order = launch_order(&buckets.collect::<Vec<_>>());
        Ok(())
    }
}
