//! The input pipeline of a run, within its memory limit.

use super::{Config, Size};
use crate::model;
use std::sync::Arc;
use unisono::size::approximate;
use unisono_data::pipeline::{LEAST_HELD, holding};
use unisono_data::{Dataset, Depth, Kind, Threads};
use unisono_train::{Sampled, Shares, TrainError};

impl Config {
    pub(crate) fn input_threads(&self) -> (Threads, Depth) {
        (
            self.input_threads.map_or(Threads::Auto, Threads::Fixed),
            self.prefetch.map_or(Depth::Auto, Depth::Fixed),
        )
    }

    /// Returns the feed of a rank, whose batches stay within the memory limit.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the limit is too low, or too low for the requested threads and depth.
    pub fn feed(&self, dataset: Arc<Dataset>, shares: Shares) -> Result<Sampled, TrainError> {
        let (threads, depth) = self.input_threads();
        let (threads, depth) = match self.input_memory {
            Some(Size(bytes)) => within(bytes, step_bytes(&dataset.kind, shares), threads, depth)?,
            None => (threads, depth),
        };
        Ok(Sampled::new(dataset, self.seed, shares, threads, depth).up_to_epoch(self.epochs))
    }
}

/// Returns the threads and the depth of a pipeline that fit the memory, given the size of a step's batches.
fn within(bytes: u64, of_step: u64, threads: Threads, depth: Depth) -> Result<(Threads, Depth), TrainError> {
    let held = (bytes / of_step.max(1)).min(1 << 20) as usize;
    let most_threads = match threads {
        Threads::Auto => None,
        Threads::AtMost(threads) | Threads::Fixed(threads) => Some(threads),
    };
    let most_ready = match depth {
        Depth::Auto => None,
        Depth::AtMost(depth) | Depth::Fixed(depth) => Some(depth),
    };
    // Each thread may hold a batch in progress and a finished one. The trainer holds one more.
    let spare = |used: usize| held.checked_sub(used.saturating_add(1));
    let is_some = |count: &usize| *count > 0;
    let found = match (most_threads, most_ready) {
        (None, None) => holding(held),
        (Some(most), None) => {
            let depth = spare(most.saturating_mul(2)).filter(is_some);
            depth.map(|depth| (threads, Depth::AtMost(depth)))
        }
        (None, Some(most)) => {
            let threads = spare(most).map(|steps| steps / 2).filter(is_some);
            threads.map(|threads| (Threads::AtMost(threads), depth))
        }
        (Some(most), Some(ready)) => {
            spare(most.saturating_mul(2).saturating_add(ready)).map(|_| (threads, depth))
        }
    };
    found.ok_or_else(|| {
        TrainError::Setting(format!(
            "the input memory of {} holds {held} step(s) of {}: it must hold {LEAST_HELD} at least, and one more than two for each \
             thread and one for each prefetched step; allow more, or choose a smaller batch",
            approximate(bytes),
            approximate(of_step)
        ))
    })
}

/// Returns the size of a rank's batches in a step.
fn step_bytes(kind: &Kind, shares: Shares) -> u64 {
    let targets = if let Kind::Text { context, .. } = kind { *context } else { 1 };
    let numbers = model::inputs_of(kind) + targets;
    (shares.global_batch.div_ceil(shares.ranks) * numbers * size_of::<f32>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_depth_fit_the_memory() {
        let within = |threads, depth, held: u64| super::within(held * 100 + 99, 100, threads, depth).ok();
        let (auto, fixed) = (Threads::Auto, Threads::Fixed);
        assert_eq!(within(auto, Depth::Auto, 4), Some((Threads::AtMost(1), Depth::AtMost(1))));
        assert_eq!(within(fixed(3), Depth::Auto, 10), Some((fixed(3), Depth::AtMost(3))));
        assert_eq!(within(auto, Depth::Fixed(3), 10), Some((Threads::AtMost(3), Depth::Fixed(3))));
        let most = Threads::AtMost(3);
        assert_eq!(within(most, Depth::AtMost(3), 10), Some((most, Depth::AtMost(3))));
        assert_eq!(within(most, Depth::AtMost(4), 10), None);
        assert_eq!(within(fixed(3), Depth::Fixed(3), 10), Some((fixed(3), Depth::Fixed(3))));
        for (threads, depth, held) in [
            (auto, Depth::Auto, 3),
            (fixed(3), Depth::Auto, 7),
            (auto, Depth::Fixed(8), 10),
            (fixed(3), Depth::Fixed(4), 10),
            (fixed(usize::MAX), Depth::Auto, 10),
            (auto, Depth::Fixed(usize::MAX), 10),
            (fixed(usize::MAX), Depth::Fixed(usize::MAX), 10),
        ] {
            assert_eq!(within(threads, depth, held), None);
        }
        let refused = super::within(1 << 20, 1 << 19, auto, Depth::Auto).unwrap_err().to_string();
        assert!(refused.contains("1024 KiB holds 2 step(s) of 512 KiB: it must hold 4"), "{refused}");
    }
}
