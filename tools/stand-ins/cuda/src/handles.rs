//! Handles that are numbers and no addresses, so that a stale one is found out and not followed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::errors::Failure;

/// Everything of one kind that the caller holds a handle of.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    /// The last handle that was given, and those in use.
    all: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    /// Handles of this kind count from here in steps of 16; kinds begin far apart, so none passes for another.
    pub(crate) const fn beginning_at(first: usize) -> Self {
        Self { all: Mutex::new((first, BTreeMap::new())) }
    }

    /// A handle of what `make` makes of it.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> Arc<T>) -> Arc<T> {
        let mut all = self.all.lock().unwrap();
        all.0 += 16;
        let (handle, made) = (all.0, make(all.0));
        all.1.insert(handle, Arc::clone(&made));
        made
    }

    /// What the handle is of.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, Failure> {
        self.all.lock().unwrap().1.get(&handle).cloned().ok_or(Failure::INVALID_HANDLE)
    }

    /// The handle is no longer one.
    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, Failure> {
        self.all.lock().unwrap().1.remove(&handle).ok_or(Failure::INVALID_HANDLE)
    }

    /// All handles that this holds of are none any longer; what they were of.
    pub(crate) fn remove_where(&self, goes: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut all = self.all.lock().unwrap();
        all.1.extract_if(.., |_, one| goes(one)).map(|(_, one)| one).collect()
    }

    /// Everything that this holds of.
    pub(crate) fn all_where(&self, holds: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.all.lock().unwrap().1.values().filter(|one| holds(one)).cloned().collect()
    }
}
