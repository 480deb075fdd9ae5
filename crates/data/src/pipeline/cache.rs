//! Elements that are made once, and kept in memory for all epochs.

use std::iter;
use std::sync::{Arc, Mutex};

use super::{DataError, Pipeline, lock};

/// The elements of a pipeline, each made when it is first requested, and then kept in memory. Clones share them.
///
/// ```
/// use unisono_data::{DataError, Pipeline, Threads};
///
/// let cached = Pipeline::of(0..5_u64).map(Threads::Auto, |number| Ok(number * number)).cache();
/// let epochs = Pipeline::repeat(0..3, move |epoch| Ok(cached.elements().shuffle(5, 7, epoch)));
/// let all = epochs.collect::<Result<Vec<_>, DataError>>()?;
/// assert_eq!(all.len(), 15);
/// # Ok::<(), DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cached<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    made: Vec<T>,
    source: Pipeline<T>,
    has_failed: bool,
}

impl<T: Clone + Send + 'static> Pipeline<T> {
    /// Keeps all elements in memory from the first epoch on. Use it for elements that are small but expensive to produce. Later stages still work in
    /// every epoch.
    pub fn cache(self) -> Cached<T> {
        Cached(Arc::new(Mutex::new(State { made: Vec::new(), source: self, has_failed: false })))
    }
}

impl<T: Clone + Send + 'static> Cached<T> {
    /// Returns all elements, from the first on.
    ///
    /// Forwards an error of the source, which ends all clones.
    pub fn elements(&self) -> Pipeline<T> {
        let (cached, mut next) = (self.clone(), 0);
        Pipeline::new(iter::from_fn(move || {
            let element = cached.get(next);
            next += 1;
            element
        }))
    }

    fn get(&self, index: usize) -> Option<Result<T, DataError>> {
        let mut state = lock(&self.0);
        if state.has_failed {
            return Some(Err(DataError::other("an element could not be made in an earlier epoch")));
        }
        if let Some(element) = state.made.get(index) {
            return Some(Ok(element.clone()));
        }
        // A panic of the source ends it too. Without this mark, later epochs would end at that element as if it were the last.
        state.has_failed = true;
        let element = state.source.next();
        if let Some(Ok(element)) = &element {
            state.made.push(element.clone());
        }
        state.has_failed = matches!(element, Some(Err(_)));
        element
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Threads;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn each_element_is_made_once_even_if_epochs_end_early() {
        let made = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&made);
        let count = move |number: u64| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(number)
        };
        let cached = Pipeline::of(0..10).map(Threads::Fixed(3), count).cache();
        for taken in [0, 4, 10, 10] {
            let found: Result<Vec<_>, _> = cached.elements().take(taken).collect();
            assert!(found.unwrap().into_iter().eq(0..taken as u64));
        }
        assert_eq!(cached.elements().count(), 10);
        assert_eq!(made.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn an_error_repeats_in_every_epoch() {
        let fail = |number| if number == 2 { Err(DataError::other("no")) } else { Ok(number) };
        let cached = Pipeline::of(0..10).map(Threads::Fixed(1), fail).cache();
        assert_eq!(cached.elements().filter(Result::is_ok).count(), 2);
        assert!(cached.elements().next().expect("an error").is_err());
    }

    #[test]
    fn a_panic_is_an_error_in_later_epochs() {
        let fail = |number: u64| if number == 2 { panic!("no") } else { Ok(number) };
        let cached = Pipeline::of(0..10).map(Threads::Fixed(1), fail).cache();
        let epoch = || cached.elements().collect::<Result<Vec<_>, _>>();
        assert!(catch_unwind(AssertUnwindSafe(epoch)).is_err());
        let message = epoch().unwrap_err().to_string();
        assert_eq!(message, "an element could not be made in an earlier epoch");
    }
}
