//! Handles that are numbers, not addresses, so that a stale one is detected and not dereferenced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::errors::Failure;

/// All objects of one kind with their handles.
pub(crate) struct Handles<T> {
    /// The latest handle, and those in use.
    all: Mutex<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    /// Creates a set whose handles count from here in steps of 16. The kinds start far apart, so a handle is valid for one
    /// kind only.
    pub(crate) const fn beginning_at(first: usize) -> Self {
        Self { all: Mutex::new((first, BTreeMap::new())) }
    }

    /// Adds the object that `make` creates for a new handle.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let mut all = self.all.lock().unwrap();
        all.0 += 16;
        let (handle, made) = (all.0, Arc::new(make(all.0)));
        all.1.insert(handle, Arc::clone(&made));
        made
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, Failure> {
        self.all.lock().unwrap().1.get(&handle).cloned().ok_or(Failure::INVALID_HANDLE)
    }

    /// Invalidates a handle; returns its object.
    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, Failure> {
        self.all.lock().unwrap().1.remove(&handle).ok_or(Failure::INVALID_HANDLE)
    }

    /// Invalidates the handles of all objects that match; returns the objects.
    pub(crate) fn remove_where(&self, goes: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut all = self.all.lock().unwrap();
        all.1.extract_if(.., |_, one| goes(one)).map(|(_, one)| one).collect()
    }

    pub(crate) fn all_where(&self, holds: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.all.lock().unwrap().1.values().filter(|one| holds(one)).cloned().collect()
    }
}
