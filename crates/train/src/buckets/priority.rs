//! The order in which buckets are sent if the next forward pass overlaps them: the buckets that it needs first have priority.
//!
//! A backward pass fills the bucket of the first layer last, and the next forward pass needs it first. A fast network sends buckets in the order in
//! which they are filled. On a slow network, several buckets are full at once, and the one that is needed first overtakes those that are not
//! launched.
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
        let mut measured: Vec<f32> = self.ledger.filled_after.iter().map(Duration::as_secs_f32).collect();
        // Negative, so that the maximum is the fastest flight.
        measured.resize(2 * buckets, f32::MIN);
        for flight in &self.flights {
            if let Some(bucket) = flight.bucket {
                let found = &mut measured[buckets + bucket];
                *found = found.max(-(flight.ended - flight.began).as_secs_f32());
            }
        }
        comm.call().algorithm(Choice::Auto).all_reduce(&mut measured, ReduceOp::Max)?;
        let (filled, flights) = measured.split_at(buckets);
        self.ledger.order = by_need(filled, flights);
        Ok(())
    }
}

/// Returns a launch order. Whenever the network is free, the next bucket is the full one that the forward pass needs first, which is the last one.
/// Bucket 0 is always first, because it may carry the sums. Times are in seconds, and those of flights are negative.
fn by_need(filled: &[f32], flights: &[f32]) -> Vec<usize> {
    let mut waiting: Vec<usize> = (1..filled.len()).collect();
    let mut order: Vec<usize> = (0..filled.len().min(1)).collect();
    let mut free = order.iter().map(|&first| filled[first] - flights[first]).sum::<f32>();
    while !waiting.is_empty() {
        let next = waiting.iter().rposition(|&bucket| filled[bucket] <= free);
        // If no bucket is full, the network waits for the one that fills next.
        let next = next.unwrap_or_else(|| {
            let at = |position: &usize| filled[waiting[*position]];
            (0..waiting.len())
                .rev()
                .min_by(|one, other| at(one).total_cmp(&at(other)))
                .expect("one is waiting")
        });
        let bucket = waiting.remove(next);
        free = free.max(filled[bucket]) - flights[bucket];
        order.push(bucket);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_network_sends_buckets_in_the_order_in_which_they_fill() {
        assert_eq!(by_need(&[1.0, 2.0, 3.0, 4.0], &[-0.9, -1.0, -0.5, -3.0]), [0, 1, 2, 3]);
        assert_eq!(by_need(&[1.0], &[-9.0]), [0]);
        assert!(by_need(&[], &[]).is_empty());
    }

    #[test]
    fn bucket_that_is_needed_first_overtakes_buckets_that_are_not_launched() {
        // Bucket 1 is in flight when the others are filled.
        assert_eq!(by_need(&[1.0, 2.0, 3.0, 4.0, 5.0], &[-1.0, -9.0, -1.0, -1.0, -1.0]), [0, 1, 4, 3, 2]);
        // Bucket 3 is filled while bucket 2 is in flight, and bucket 4 too late to overtake it.
        assert_eq!(by_need(&[1.0, 2.0, 2.5, 3.0, 9.0], &[-1.0, -0.5, -2.0, -1.0, -1.0]), [0, 1, 2, 3, 4]);
        // If the network is idle when two buckets fill at once, the last one leaves first.
        assert_eq!(by_need(&[1.0, 5.0, 5.0], &[-1.0, -1.0, -1.0]), [0, 2, 1]);
        // The order contains every bucket even if a rank measured nothing.
        assert_eq!(by_need(&[0.0; 3], &[f32::MIN; 3]), [0, 2, 1]);
    }
}
