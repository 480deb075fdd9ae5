//! The step of a data-parallel trainer: buckets of gradients, all-reduced while the backward pass fills further buckets.

use unisono_collectives::named;

/// A bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The computing time from the start of the step until the bucket is full, in microseconds.
    pub full_us: f64,
    /// The time of its all-reduce, in microseconds.
    pub all_reduce_us: f64,
}

/// The communication time of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The time of all-reduces during computation, in microseconds.
    pub hidden_us: f64,
    /// The time that the rank waits for all-reduces, in microseconds.
    pub exposed_us: f64,
}

impl Step {
    /// Returns the times of all-reduces that overlap `compute_us` of computing, which they do not slow down. One all-reduce is in flight at a time.
    /// The buckets are in the order in which they are full.
    ///
    /// ```
    /// use unisono_steps::{Bucket, Step};
    ///
    /// let buckets = [Bucket { full_us: 4.0, all_reduce_us: 3.0 }, Bucket { full_us: 5.0, all_reduce_us: 6.0 }];
    /// // The second begins at 7, when the first has ended, and ends at 13.
    /// assert_eq!(Step::beside(&buckets, 10.0), Step { hidden_us: 6.0, exposed_us: 3.0 });
    /// ```
    pub fn beside(buckets: &[Bucket], compute_us: f64) -> Self {
        let mut end_us = 0.0_f64;
        for bucket in buckets {
            end_us = end_us.max(bucket.full_us) + bucket.all_reduce_us;
        }
        let exposed_us = (end_us - compute_us).max(0.0);
        // Rounding could make it negative.
        Self { hidden_us: (total_us(buckets) - exposed_us).max(0.0), exposed_us }
    }

    /// Returns the times of all-reduces that also overlap the next step, as the mean of consecutive steps. Its forward pass, the first `forward_us`
    /// of `compute_us`, waits for the bucket of each layer when it reaches the layer. The last bucket is needed first, so the last of the full
    /// buckets is [sent first](launch_order).
    ///
    /// ```
    /// use unisono_steps::{Bucket, Step};
    ///
    /// // The second is full when the pass ends, and the next one needs it at once.
    /// let buckets = [Bucket { full_us: 5.0, all_reduce_us: 6.0 }, Bucket { full_us: 10.0, all_reduce_us: 1.0 }];
    /// assert_eq!(Step::across(&buckets, 10.0, 2.0), Step { hidden_us: 5.0, exposed_us: 2.0 });
    /// ```
    pub fn across(buckets: &[Bucket], compute_us: f64, forward_us: f64) -> Self {
        const STEPS: usize = 16;
        let backward_us = compute_us - forward_us;
        // Both passes traverse the parameters in proportion to their number, in opposite orders.
        // Without a backward pass, all buckets are full at its end.
        let share =
            |bucket: &Bucket| (compute_us - bucket.full_us).max(0.0) / backward_us.max(f64::MIN_POSITIVE);
        let needed_us = |bucket: &Bucket| forward_us * share(bucket);
        let mut landed_us = vec![0.0; buckets.len()];
        let (order, mut now_us, mut middle_us) = (launch_order(buckets), 0.0_f64, 0.0);
        for step in 0..2 * STEPS {
            if step == STEPS {
                middle_us = now_us;
            }
            let mut computed_us = 0.0;
            for (bucket, landed_us) in buckets.iter().zip(&landed_us).rev() {
                now_us = (now_us + needed_us(bucket) - computed_us).max(*landed_us);
                computed_us = needed_us(bucket);
            }
            let began_us = now_us - computed_us;
            let mut free_us = began_us;
            for &next in &order {
                free_us = free_us.max(began_us + buckets[next].full_us) + buckets[next].all_reduce_us;
                landed_us[next] = free_us;
            }
            now_us = began_us + compute_us;
        }
        let exposed_us = ((now_us - middle_us) / STEPS as f64 - compute_us).max(0.0);
        Self { hidden_us: (total_us(buckets) - exposed_us).max(0.0), exposed_us }
    }

    /// Returns the times of all-reduces on the computing thread, which blocks meanwhile.
    pub fn in_turn(buckets: &[Bucket]) -> Self {
        Self { hidden_us: 0.0, exposed_us: total_us(buckets) }
    }
}

/// Returns the order in which buckets are sent if the next forward pass overlaps their all-reduces. Whenever the network is free, the next bucket is
/// the full one that the forward pass needs first, which is the last one. Bucket 0 is always first, because it may carry other sums.
pub fn launch_order(buckets: &[Bucket]) -> Vec<usize> {
    let mut waiting: Vec<_> = (0..buckets.len()).collect();
    let (mut order, mut free_us) = (Vec::new(), f64::NEG_INFINITY);
    while !waiting.is_empty() {
        let mut full_us = waiting.iter().map(|&bucket| buckets[bucket].full_us);
        // If no bucket is full, the network waits for the one that fills next.
        free_us = full_us.clone().fold(f64::INFINITY, f64::min).max(free_us);
        let last = full_us.rposition(|full_us| full_us <= free_us).filter(|_| !order.is_empty());
        let next = waiting.remove(last.unwrap_or(0));
        free_us = free_us.max(buckets[next].full_us) + buckets[next].all_reduce_us;
        order.push(next);
    }
    order
}

named! {
    /// The overlap of bucket all-reduces with the backward pass.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Overlap: "way to overlap" {
        /// All-reduces between nodes overlap, because the network works meanwhile. If all ranks share a node, all-reduces run in turn, because the
        /// ranks copy and add on the computing cores themselves.
        Auto = "auto",
        /// All-reduces run on the communication thread.
        Beside = "beside",
        /// All-reduces run on the communication thread, and also overlap the next forward pass, in the order in which it needs the buckets.
        Across = "across",
        /// All-reduces run on the compute thread, which waits.
        InTurn = "in-turn",
    }
}

impl Overlap {
    /// Returns whether all-reduces of a world with this many nodes overlap the backward pass.
    pub fn is_beside(self, nodes: usize) -> bool {
        matches!(self, Self::Beside | Self::Across) || self == Self::Auto && nodes > 1
    }
}

/// The usual limit of the first bucket, which gives the network work early.
pub const USUAL_FIRST_BUCKET_BYTES: usize = 1 << 20;
/// The usual limit of the other buckets, as in PyTorch.
pub const USUAL_BUCKET_BYTES: usize = 25 << 20;

/// Chooses the limit of buckets, and returns it with the reason. `time_us` returns the time of an all-reduce of a size, if it can be predicted. Where
/// buckets overlap the backward pass between nodes, the limit is the smallest power of two from 64 KiB on that takes at most 5 % more time per byte
/// than 64 MiB, for which latency is negligible. It is the [usual](USUAL_BUCKET_BYTES) one elsewhere, if gradients are compressed, or if there is no
/// smaller one.
///
/// ```
/// use unisono_steps::{Overlap, bucket_bytes};
///
/// let gigabit = |latency_us: f64| move |bytes: usize| Some(latency_us + bytes as f64 / 125.0);
/// assert_eq!(bucket_bytes(2, Overlap::Auto, false, gigabit(50.0)).0, 128 << 10);
/// assert_eq!(bucket_bytes(2, Overlap::Auto, false, gigabit(1000.0)).0, 4 << 20);
/// ```
pub fn bucket_bytes(
    nodes: usize,
    overlap: Overlap,
    is_compressed: bool,
    mut time_us: impl FnMut(usize) -> Option<f64>,
) -> (usize, &'static str) {
    const VERY_LARGE: usize = 64 << 20;
    const DEARER: f64 = 1.05;
    let mut of_a_byte = |bytes: usize| Some(time_us(bytes)? / bytes as f64);
    let mut small = || {
        let most = DEARER * of_a_byte(VERY_LARGE)?;
        let mut sizes = (16..).map(|bits| 1 << bits).take_while(|&bytes| bytes < USUAL_BUCKET_BYTES);
        Some(sizes.find(|&bytes| of_a_byte(bytes).is_some_and(|price| price <= most)))
    };
    let why = match nodes {
        1 => "all ranks share a node",
        _ if !overlap.is_beside(nodes) => "no bucket overlaps the backward pass",
        _ if is_compressed => "compressed gradients take few bytes, and many messages",
        _ => match small() {
            Some(Some(bytes)) => return (bytes, "predicted to cost at most 5 % more a byte than 64M"),
            Some(None) => "smaller ones are predicted to cost over 5 % more a byte than 64M",
            None => "the world is too large to be priced",
        },
    };
    (USUAL_BUCKET_BYTES, why)
}

fn total_us(buckets: &[Bucket]) -> f64 {
    buckets.iter().map(|bucket| bucket.all_reduce_us).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(times: &[(f64, f64)]) -> Vec<Bucket> {
        times.iter().map(|&(full_us, all_reduce_us)| Bucket { full_us, all_reduce_us }).collect()
    }

    #[test]
    fn all_reduce_that_ends_before_the_pass_is_hidden() {
        let quick = buckets(&[(1.0, 1.0), (5.0, 2.0)]);
        assert_eq!(Step::beside(&quick, 7.0), Step { hidden_us: 3.0, exposed_us: 0.0 });
        assert_eq!(Step::in_turn(&quick), Step { hidden_us: 0.0, exposed_us: 3.0 });
    }

    #[test]
    fn all_reduce_of_the_last_bucket_is_exposed() {
        assert_eq!(Step::beside(&buckets(&[(7.0, 2.0)]), 7.0), Step { hidden_us: 0.0, exposed_us: 2.0 });
        assert_eq!(Step::beside(&[], 7.0), Step { hidden_us: 0.0, exposed_us: 0.0 });
    }

    #[test]
    fn next_forward_pass_waits_for_the_bucket_that_it_needs() {
        // The first bucket lands at 6.5. The last overtakes the second, which lands at 10, when a pass that starts at 8.5 needs it.
        let some = buckets(&[(2.5, 4.0), (3.0, 3.0), (6.0, 0.5)]);
        assert_eq!(Step::across(&some, 6.0, 2.0), Step { hidden_us: 5.0, exposed_us: 2.5 });
        assert_eq!(Step::beside(&some, 6.0).exposed_us, 4.0);
        // The bucket that is full last is needed first.
        let one = buckets(&[(6.0, 3.0)]);
        assert_eq!(Step::across(&one, 6.0, 2.0), Step::beside(&one, 6.0));
        assert_eq!(Step::across(&[], 7.0, 2.0), Step { hidden_us: 0.0, exposed_us: 0.0 });
    }

    fn order<const N: usize>(full_us: [f64; N], all_reduce_us: [f64; N]) -> Vec<usize> {
        launch_order(&buckets(&std::iter::zip(full_us, all_reduce_us).collect::<Vec<_>>()))
    }

    #[test]
    fn fast_network_sends_buckets_in_the_order_in_which_they_fill() {
        assert_eq!(order([1.0, 2.0, 3.0, 4.0], [0.9, 1.0, 0.5, 3.0]), [0, 1, 2, 3]);
        assert_eq!(order([1.0], [9.0]), [0]);
        assert!(order([], []).is_empty());
    }

    #[test]
    fn bucket_that_is_needed_first_overtakes_buckets_that_are_not_launched() {
        assert_eq!(order([1.0, 2.0, 3.0, 9.0], [5.0, 1.0, 1.0, 1.0]), [0, 2, 1, 3]);
        // Bucket 1 is in flight when the others are filled.
        assert_eq!(order([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 9.0, 1.0, 1.0, 1.0]), [0, 1, 4, 3, 2]);
        // Bucket 3 is filled while bucket 2 is in flight, and bucket 4 too late to overtake it.
        assert_eq!(order([1.0, 2.0, 2.5, 3.0, 9.0], [1.0, 0.5, 2.0, 1.0, 1.0]), [0, 1, 2, 3, 4]);
        // If the network is idle when two buckets fill at once, the last one leaves first.
        assert_eq!(order([1.0, 5.0, 5.0], [1.0, 1.0, 1.0]), [0, 2, 1]);
        // The order contains every bucket even if a rank measured nothing.
        assert_eq!(order([0.0; 3], [f64::MAX; 3]), [0, 2, 1]);
    }

    #[test]
    fn one_bucket_is_in_flight_at_a_time() {
        let slow = buckets(&[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)]);
        assert_eq!(Step::beside(&slow, 3.0), Step { hidden_us: 2.0, exposed_us: 28.0 });
    }
}
