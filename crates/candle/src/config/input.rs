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
        let threads = self.input_threads.map_or(Threads::Auto, Threads::Fixed);
        (threads, self.prefetch.map_or(Depth::Auto, Depth::Fixed))
    }

    /// Returns the feed of a rank, whose batches stay within the memory limit.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the limit is too low, or too low for the requested threads and depth.
    pub fn feed(&self, dataset: Arc<Dataset>, shares: Shares) -> Result<Sampled, TrainError> {
        let (threads, depth) = match self.input_memory {
            Some(Size(bytes)) => {
                let targets = if let Kind::Text { context, .. } = dataset.kind { context } else { 1 };
                let samples = shares.global_batch.div_ceil(shares.ranks);
                let numbers = samples * (model::inputs_of(&dataset.kind) + targets);
                within(bytes, (numbers * size_of::<f32>()) as u64, self.input_threads, self.prefetch)?
            }
            None => self.input_threads(),
        };
        Ok(Sampled::new(dataset, self.seed, shares, threads, depth).up_to_epoch(self.epochs))
    }
}

/// Returns the threads and the depth of a pipeline that fit the memory, given the size of a step's batches, and the requested threads and depth.
fn within(
    bytes: u64,
    of_step: u64,
    threads: Option<usize>,
    depth: Option<usize>,
) -> Result<(Threads, Depth), TrainError> {
    let held = (bytes / of_step.max(1)).min(1 << 20) as usize;
    // Each thread may hold a batch in progress and a finished one. The trainer holds one more.
    let used = threads.unwrap_or(0).saturating_mul(2).saturating_add(depth.unwrap_or(0));
    let spare = held.checked_sub(used.saturating_add(1));
    let found = match (threads, depth) {
        (None, None) => holding(held),
        (None, Some(depth)) => spare.map(|steps| (Threads::AtMost(steps / 2), Depth::Fixed(depth))),
        (Some(threads), None) => spare.map(|steps| (Threads::Fixed(threads), Depth::AtMost(steps))),
        (Some(threads), Some(depth)) => spare.map(|_| (Threads::Fixed(threads), Depth::Fixed(depth))),
    };
    let found = found.filter(|found| found.0 != Threads::AtMost(0) && found.1 != Depth::AtMost(0));
    found.ok_or_else(|| {
        TrainError::Setting(format!(
            "the input memory of {} holds {held} step(s) of {}: it must hold {LEAST_HELD} at least, and one more than two for each \
             thread and one for each prefetched step; allow more, or choose a smaller batch",
            approximate(bytes),
            approximate(of_step)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_depth_fit_the_memory() {
        let within = |threads, depth, held: u64| super::within(held * 100 + 99, 100, threads, depth).ok();
        assert_eq!(within(None, None, 4), Some((Threads::AtMost(1), Depth::AtMost(1))));
        assert_eq!(within(Some(3), None, 10), Some((Threads::Fixed(3), Depth::AtMost(3))));
        assert_eq!(within(None, Some(3), 10), Some((Threads::AtMost(3), Depth::Fixed(3))));
        assert_eq!(within(Some(3), Some(3), 10), Some((Threads::Fixed(3), Depth::Fixed(3))));
        for (threads, depth, held) in [
            (None, None, 3),
            (Some(3), None, 7),
            (None, Some(8), 10),
            (Some(3), Some(4), 10),
            (Some(usize::MAX), None, 10),
            (None, Some(usize::MAX), 10),
            (Some(usize::MAX), Some(usize::MAX), 10),
        ] {
            assert_eq!(within(threads, depth, held), None);
        }
        let refused = super::within(1 << 20, 1 << 19, None, None).unwrap_err().to_string();
        assert!(refused.contains("1024 KiB holds 2 step(s) of 512 KiB: it must hold 4"), "{refused}");
    }
}
