//! The order in which buckets travel, if the next forward pass goes on while they do: what it needs first goes first.
//!
//! A backward pass fills the bucket of the first layer last, and the next forward pass needs it first. While the network keeps up,
//! buckets leave as they are filled. Where it does not, several are full at once, and the one that is needed first overtakes those that
//! have not left.
//!
//! All ranks must launch the same collectives in the same order, in whichever order they fill on each. So the order is a function of
//! times that all ranks have agreed on: those of the slowest rank's pass, and of the fastest flights (where no rank waited for
//! another). Choosing at every launch would need an agreement, a latency, for every bucket. The order changes no bits.
//!
//! **Sources**: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019, section 4; Peng et al.,
//! "A generic communication scheduler for distributed DNN training acceleration", SOSP 2019, section 3.

use std::time::Duration;

use super::Buckets;
use unisono::{Choice, Communicator, Error, ReduceOp};

impl Buckets {
    /// As [`Buckets::gradient`], also of the step before the one that has begun.
    pub(crate) fn late_gradient(&mut self, index: usize) -> Result<&[f32], Error> {
        let place = self.ledger.place(index).clone();
        self.complete(place.bucket)?;
        Ok(&self.buckets[place.bucket].gradients.values()[place.range])
    }

    /// Derives the order of the next steps from what was measured in this one. Called by all ranks, when all buckets are back.
    pub(crate) fn agree_on_order(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let buckets = self.len();
        let mut measured: Vec<f32> = self.ledger.filled_after.iter().map(Duration::as_secs_f32).collect();
        // Negative, so that the greatest is that of the fastest flight.
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

/// Returns the order in which buckets leave if, whenever the network is free, the next is of those that are full the one that the
/// forward pass needs first, which is the last one. The very first is always the first one, which may carry the sums. Times are in
/// seconds; those of flights are negative.
fn by_need(filled: &[f32], flights: &[f32]) -> Vec<usize> {
    let mut waiting: Vec<usize> = (1..filled.len()).collect();
    let mut order: Vec<usize> = (0..filled.len().min(1)).collect();
    let mut free = order.iter().map(|&first| filled[first] - flights[first]).sum::<f32>();
    while !waiting.is_empty() {
        let next = waiting.iter().rposition(|&bucket| filled[bucket] <= free);
        // If none is full, the network waits for the one that will be next.
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
    fn a_network_that_keeps_up_sends_buckets_as_they_are_filled() {
        assert_eq!(by_need(&[1.0, 2.0, 3.0, 4.0], &[-0.9, -1.0, -0.5, -3.0]), [0, 1, 2, 3]);
        assert_eq!(by_need(&[1.0], &[-9.0]), [0]);
        assert!(by_need(&[], &[]).is_empty());
    }

    #[test]
    fn what_is_needed_first_overtakes_what_has_not_left() {
        // Bucket 1 is on its way when the others are filled.
        assert_eq!(by_need(&[1.0, 2.0, 3.0, 4.0, 5.0], &[-1.0, -9.0, -1.0, -1.0, -1.0]), [0, 1, 4, 3, 2]);
        // Bucket 3 is filled while bucket 2 is on its way, and bucket 4 too late to overtake it.
        assert_eq!(by_need(&[1.0, 2.0, 2.5, 3.0, 9.0], &[-1.0, -0.5, -2.0, -1.0, -1.0]), [0, 1, 2, 3, 4]);
        // The last of two that are filled at once, while the network waits, leaves first.
        assert_eq!(by_need(&[1.0, 5.0, 5.0], &[-1.0, -1.0, -1.0]), [0, 2, 1]);
        // No bucket is left out where a rank measured nothing.
        assert_eq!(by_need(&[0.0; 3], &[f32::MIN; 3]), [0, 2, 1]);
    }
}
