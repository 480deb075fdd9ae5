//! An input pipeline that continues from one epoch of a feed to the next.

use std::sync::{Arc, Mutex};

use unisono_data::pipeline::{Watch, lock};
use unisono_data::{DataError, Pipeline};

/// The state of a feed between two epochs: a pipeline that has begun to prepare the next epoch, if the last one was read to its end.
#[derive(Debug)]
pub(crate) struct Epochs<T> {
    kept: Kept<T>,
    /// The pipeline stages of the latest epoch.
    pub(crate) watch: Watch,
}

/// A pipeline, and the epoch that it prepares.
type Kept<T> = Arc<Mutex<Option<(usize, Pipeline<T>)>>>;

impl<T> Default for Epochs<T> {
    fn default() -> Self {
        Self { kept: Kept::default(), watch: Watch::default() }
    }
}

impl<T: Send + 'static> Epochs<T> {
    /// Returns the elements of an epoch. Uses the kept pipeline if it `may_go_on` and this epoch is its next one; otherwise builds one with `open`.
    /// The number of elements is passed if it is known.
    pub(crate) fn begin(
        &mut self,
        epoch: usize,
        length: Option<usize>,
        may_go_on: bool,
        open: impl FnOnce() -> Result<Pipeline<T>, DataError>,
    ) -> Result<Epoch<T>, DataError> {
        let kept = lock(&self.kept).take();
        let pipeline = match kept {
            Some((next, pipeline)) if next == epoch && may_go_on => pipeline,
            _ => open()?,
        };
        self.watch = pipeline.watch();
        self.watch.restart();
        Ok(Epoch { epoch, pipeline: Some(pipeline), left: length, kept: Arc::clone(&self.kept) })
    }
}

/// An epoch of a pipeline, which is kept for the next epoch at its end.
pub(crate) struct Epoch<T> {
    epoch: usize,
    pipeline: Option<Pipeline<T>>,
    left: Option<usize>,
    kept: Kept<T>,
}

impl<T> Iterator for Epoch<T> {
    type Item = Result<T, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let element = self.pipeline.as_mut()?.epoch().next();
        if let (Some(left), Some(_)) = (&mut self.left, &element) {
            *left = left.saturating_sub(1);
        }
        if element.is_none() {
            let pipeline = self.pipeline.take().filter(|pipeline| !pipeline.has_ended());
            *lock(&self.kept) = pipeline.map(|pipeline| (self.epoch + 1, pipeline));
        }
        element
    }
}

/// A consumer that knows the number of elements does not read the end marker.
impl<T> Drop for Epoch<T> {
    fn drop(&mut self) {
        if self.left == Some(0) {
            self.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_epoch_reuses_the_pipeline_and_any_other_opens_a_new_one() {
        let mut opened = vec![];
        let mut epochs = Epochs::default();
        let mut read = |epoch: usize, skipped: usize, taken: usize| {
            let elements = epochs.begin(epoch, Some(3 - skipped), skipped == 0, || {
                opened.push(epoch);
                let all = move |of: u64| Ok(Pipeline::of((0..3).map(move |element| 10 * of + element)));
                Ok(Pipeline::repeat(epoch as u64..9, all).skip(skipped))
            });
            elements.unwrap().take(taken).map(Result::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(read(1, 0, 9), [10, 11, 12]);
        assert_eq!(read(2, 0, 3), [20, 21, 22], "and the end is not asked for");
        assert_eq!(read(3, 0, 9), [30, 31, 32]);
        assert_eq!(read(2, 2, 9), [22]);
        assert_eq!(read(3, 0, 2), [30, 31]);
        assert_eq!(read(4, 0, 9), [40, 41, 42], "though the third was left early");
        assert_eq!(opened, [1, 2, 4]);
    }

    #[test]
    fn single_epoch_pipeline_is_opened_for_each_epoch() {
        let mut epochs = Epochs::default();
        for epoch in 1..4 {
            let elements = epochs.begin(epoch, None, true, || Ok(Pipeline::of(0..epoch))).unwrap();
            assert_eq!(elements.count(), epoch);
        }
    }
}
