//! The step of a data-parallel trainer: buckets of gradients, all-reduced while the backward pass fills further buckets.

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
    /// buckets is sent first.
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
        let needed_us = |bucket: &Bucket| forward_us * (compute_us - bucket.full_us).max(0.0) / backward_us;
        let mut landed_us = vec![0.0; buckets.len()];
        let (mut now_us, mut middle_us) = (0.0_f64, 0.0);
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
            landed_us = in_the_order_of_need(buckets, began_us);
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

/// Returns the time at which each bucket lands, in a step that would have begun at `began_us` without waiting. The last of the full buckets is sent
/// first.
fn in_the_order_of_need(buckets: &[Bucket], began_us: f64) -> Vec<f64> {
    let mut landed_us = vec![0.0; buckets.len()];
    let mut waiting: Vec<_> = (0..buckets.len()).collect();
    let mut free_us = f64::NEG_INFINITY;
    while let Some(first) = waiting.first() {
        // Buckets are full in ascending order.
        free_us = free_us.max(began_us + buckets[*first].full_us);
        let full = waiting.iter().take_while(|&&index| began_us + buckets[index].full_us <= free_us).count();
        let next = waiting.remove(full - 1);
        free_us += buckets[next].all_reduce_us;
        landed_us[next] = free_us;
    }
    landed_us
}

/// The usual size of buckets, as in PyTorch.
pub const USUAL_BUCKET_BYTES: usize = 25 << 20;

/// Chooses the size of buckets that overlap a backward pass. `time_us` returns the time of an all-reduce of a size. The result is the smallest power
/// of two from 64 KiB on that takes at most 5 % more time per byte than 64 MiB, for which latency is negligible. Returns `None` if that is not below
/// the usual size, or if a time is unknown.
///
/// ```
/// use unisono_steps::bucket_bytes;
///
/// let gigabit = |latency_us: f64| move |bytes: usize| Some(latency_us + bytes as f64 / 125.0);
/// assert_eq!(bucket_bytes(gigabit(50.0)), Some(128 << 10));
/// assert_eq!(bucket_bytes(gigabit(1000.0)), Some(4 << 20));
/// ```
pub fn bucket_bytes(mut time_us: impl FnMut(usize) -> Option<f64>) -> Option<usize> {
    const VERY_LARGE: usize = 64 << 20;
    const DEARER: f64 = 1.05;
    let mut of_a_byte = |bytes: usize| Some(time_us(bytes)? / bytes as f64);
    let least = of_a_byte(VERY_LARGE)?;
    let sizes = (16..).map(|bits| 1 << bits).take_while(|&bytes| bytes < USUAL_BUCKET_BYTES);
    sizes.into_iter().find(|&bytes| of_a_byte(bytes).is_some_and(|price| price <= DEARER * least))
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

    #[test]
    fn last_full_bucket_is_sent_first() {
        let buckets = buckets(&[(1.0, 5.0), (2.0, 1.0), (3.0, 1.0), (9.0, 1.0)]);
        assert_eq!(in_the_order_of_need(&buckets, 10.0), [16.0, 18.0, 17.0, 20.0]);
    }

    #[test]
    fn one_bucket_is_in_flight_at_a_time() {
        let slow = buckets(&[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)]);
        assert_eq!(Step::beside(&slow, 3.0), Step { hidden_us: 2.0, exposed_us: 28.0 });
    }
}
