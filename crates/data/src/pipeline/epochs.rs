//! Epochs: the items that stages exchange, and pipelines that repeat.

use std::iter;

use super::watch::{Watch, lock};
use super::{DataError, Pipeline};

/// The output of a stage.
pub(super) enum Item<T> {
    Element(T),
    /// Separates the elements of an epoch from those of the next. Every stage keeps them apart, and its threads continue.
    EndOfEpoch,
}

impl<T> Item<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Item<U> {
        match self {
            Self::Element(element) => Item::Element(f(element)),
            Self::EndOfEpoch => Item::EndOfEpoch,
        }
    }

    pub(super) fn element(self) -> Option<T> {
        match self {
            Self::Element(element) => Some(element),
            Self::EndOfEpoch => None,
        }
    }
}

impl<T: Send + 'static> Pipeline<T> {
    /// Chains pipelines: calls `make` for each epoch when the previous one has ended.
    ///
    /// Later stages keep epochs apart: a [`batch`](Self::batch) has elements of one epoch, and a [`shuffle`](Self::shuffle) has an order for each.
    /// Their threads continue across epochs, and prepare the next one while the [consumer](Self::epoch) finishes the current one. Threads of stages
    /// in `make` restart with each epoch.
    ///
    /// Forwards an error of `make`, and ends.
    pub fn repeat<I, F>(epochs: I, mut make: F) -> Self
    where
        I: IntoIterator<Item = u64, IntoIter: Send + 'static>,
        F: FnMut(u64) -> Result<Self, DataError> + Send + 'static,
    {
        let (watch, watched) = Watch::repeated();
        let (mut epochs, mut current) = (epochs.into_iter(), None::<Self>);
        let next = move || {
            if current.is_none() {
                match make(epochs.next()?) {
                    Ok(epoch) => *lock(&watched) = current.insert(epoch).watch(),
                    Err(error) => return Some(Err(error)),
                }
            }
            match current.as_mut()?.next() {
                Some(element) => Some(element.map(Item::Element)),
                None => {
                    // The threads of an epoch end before those of the next start.
                    current = None;
                    Some(Ok(Item::EndOfEpoch))
                }
            }
        };
        Self::stage(iter::from_fn(next), watch)
    }
}

impl<T> Pipeline<T> {
    /// Returns the elements up to the end of the epoch, for a pipeline that [repeats](Self::repeat). The pipeline then continues with the next epoch.
    ///
    /// ```
    /// use unisono_data::{DataError, Depth, Pipeline, Threads};
    ///
    /// let epochs = Pipeline::repeat(0..2, |_| Ok(Pipeline::of(0..5_u64)));
    /// // One shuffle, one batch, and the same threads for both epochs.
    /// let mut batches = epochs.shuffle(3, 7, 0).map(Threads::Auto, Ok).batch(2).prefetch(Depth::Auto);
    /// for _ in 0..2 {
    ///     let epoch = batches.epoch().collect::<Result<Vec<_>, DataError>>()?;
    ///     assert_eq!(epoch.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    /// }
    /// assert!(batches.next().is_none());
    /// # Ok::<(), DataError>(())
    /// ```
    pub fn epoch(&mut self) -> impl Iterator<Item = Result<T, DataError>> {
        iter::from_fn(|| self.next_item()?.map(Item::element).transpose()).fuse()
    }

    /// Returns whether no element follows: after an error or a panic, or once the end was requested.
    pub fn has_ended(&self) -> bool {
        self.elements.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;
    use crate::pipeline::{Depth, Threads};

    type Numbers = Result<Vec<u64>, DataError>;

    /// Returns epoch e, which has 20 + e elements: 100 e, 100 e + 1, ….
    fn of_epoch(epoch: u64) -> Result<Pipeline<u64>, DataError> {
        Ok(Pipeline::of(100 * epoch..100 * epoch + 20 + epoch))
    }

    #[test]
    fn stages_behind_a_repeat_keep_epochs_apart() {
        let open = |number: u64| Ok(Pipeline::of([number, number + 1000, number + 2000]));
        for threads in [Threads::Fixed(1), Threads::Fixed(3), Threads::Auto] {
            let stages = |elements: Pipeline<u64>, epoch| {
                let read =
                    elements.shuffle(30, 7, epoch).interleave(2, open).shuffle(9, 7, epoch).shard(1, 2);
                read.map(threads, |number| Ok(number + 1)).batch(4).prefetch(Depth::Fixed(3))
            };
            let mut all = stages(Pipeline::repeat(3..6, of_epoch), 3);
            for epoch in 3..6 {
                let alone = stages(of_epoch(epoch).unwrap(), epoch).collect::<Result<Vec<_>, _>>().unwrap();
                let found = all.epoch().collect::<Result<Vec<_>, _>>().unwrap();
                assert_eq!(found, alone, "epoch {epoch}, {threads:?}");
            }
            assert!(all.epoch().next().is_none() && all.next().is_none());
        }
    }

    #[test]
    fn empty_epochs_are_kept() {
        let mut all = Pipeline::repeat(0..4, |epoch| Ok(Pipeline::of(0..epoch % 2)))
            .shuffle(5, 1, 0)
            .map(Threads::Auto, Ok)
            .batch(2)
            .prefetch(Depth::Auto);
        for expected in [0, 1, 0, 1] {
            assert_eq!(all.epoch().count(), expected);
        }
        assert!(all.next().is_none());
    }

    #[test]
    fn an_error_has_an_index_over_all_epochs_and_ends_the_pipeline() {
        let fail = |number| if number == 105 { Err(DataError::other("no")) } else { Ok(number) };
        let of = |threads| Pipeline::repeat(0..3, of_epoch).map(threads, fail).batch(8);
        for mut all in [of(Threads::Fixed(1)), of(Threads::Auto)] {
            assert_eq!(
                all.epoch().map(Result::unwrap).map(|batch| batch.len()).collect::<Vec<_>>(),
                [8, 8, 4]
            );
            let error = all.epoch().next().expect("an error").unwrap_err();
            assert_eq!(error.to_string(), "element 25: no");
            assert!(all.next().is_none());
        }
    }

    #[test]
    fn threads_continue_and_the_next_epoch_begins_before_one_ends() {
        let (ids, pulled) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicU64::new(0)));
        let (seen, counted) = (Arc::clone(&ids), Arc::clone(&pulled));
        let epochs = Pipeline::repeat(0..3, move |_| {
            let counted = Arc::clone(&counted);
            let count = move |_: &u64| {
                counted.fetch_add(1, Ordering::Relaxed);
            };
            Ok(Pipeline::of((0..1000).inspect(count)))
        });
        let mut all = epochs.shuffle(1000, 1, 0).map(Threads::Fixed(2), move |number: u64| {
            seen.lock().unwrap().insert(format!("{:?}", thread::current().id()));
            Ok(number)
        });
        let first: Numbers = all.epoch().collect();
        // Elements of the second epoch have replaced the drawn ones of the first, except for those that the two threads hold.
        let before = pulled.load(Ordering::Relaxed);
        assert!(before >= 1990, "{before} elements were pulled at the end of the first epoch");
        let second: Numbers = all.epoch().collect();
        let mut sorted = second.unwrap();
        assert_ne!(sorted, first.unwrap());
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
        assert!(ids.lock().unwrap().len() <= 2);
    }
}
