//! The step of a data-parallel trainer: buckets of gradients, all-reduced while the backward pass fills others.

/// A bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The computing before the bucket is full, since the start of the step, in microseconds.
    pub full_us: f64,
    /// The time of its all-reduce, in microseconds.
    pub all_reduce_us: f64,
}

/// The time that a step computes, and that it waits for all-reduces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// All-reduces while the rank computes, in microseconds.
    pub hidden_us: f64,
    /// All-reduces for which it waits, in microseconds.
    pub exposed_us: f64,
}

impl Step {
    /// All-reduces beside `compute_us` of computing, which they do not slow down. One is on its way at a time; the buckets are in the order
    /// in which they are full.
    ///
    /// ```
    /// use unisono_collectives::clock::{Bucket, Step};
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
        // By rounding, it may be less than nothing.
        Self { hidden_us: (total_us(buckets) - exposed_us).max(0.0), exposed_us }
    }

    /// All-reduces by the thread that computes, which does nothing else meanwhile.
    pub fn in_turn(buckets: &[Bucket]) -> Self {
        Self { hidden_us: 0.0, exposed_us: total_us(buckets) }
    }
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
    fn what_ends_before_the_pass_is_hidden() {
        let quick = buckets(&[(1.0, 1.0), (5.0, 2.0)]);
        assert_eq!(Step::beside(&quick, 7.0), Step { hidden_us: 3.0, exposed_us: 0.0 });
        assert_eq!(Step::in_turn(&quick), Step { hidden_us: 0.0, exposed_us: 3.0 });
    }

    #[test]
    fn what_is_full_last_is_exposed() {
        assert_eq!(Step::beside(&buckets(&[(7.0, 2.0)]), 7.0), Step { hidden_us: 0.0, exposed_us: 2.0 });
        assert_eq!(Step::beside(&[], 7.0), Step { hidden_us: 0.0, exposed_us: 0.0 });
    }

    #[test]
    fn one_bucket_is_on_its_way_at_a_time() {
        let slow = buckets(&[(1.0, 10.0), (2.0, 10.0), (3.0, 10.0)]);
        assert_eq!(Step::beside(&slow, 3.0), Step { hidden_us: 2.0, exposed_us: 28.0 });
    }
}
